"""A training script as a node: what is attached, the turns of script and node, what nodes must have in common, what is refused."""

import contextlib
import io
import queue
import threading
from types import SimpleNamespace

import hypothesis.strategies as st
import msgspec
import pytest
import torch
from hypothesis import given
from torch import nn

import epidemic as ep
from epidemic.core.errors import BadInput, RunFailed
from epidemic.deploy import agreement as agreements
from epidemic.deploy import scripts
from epidemic.deploy.attached import MOST_TOLD, Attached
from epidemic.deploy.joining import AVERAGE_OF_FACTORS
from epidemic.deploy.learning import Computation
from epidemic.deploy.optimiser_state import give_state, state_of
from epidemic.deploy.own_loop import ScriptsTraining, evaluation_of
from epidemic.deploy.process import Process
from epidemic.deploy.turns import Turns
from epidemic.experiment.compatibility import refusals
from epidemic.experiment.files import experiment_from, to_toml
from epidemic.protocol import events as e
from epidemic.runtime.programs import module_of
from epidemic.runtime.setup import prepare

OWN_LOOP = ep.Experiment(nodes=4, rounds=3, topology=ep.ELLocal(1), algorithm=ep.OwnLoop())


class Adapter(nn.Module):
    """A frozen base, and two factors beside it."""

    def __init__(self, rank=2, dtype=torch.float32, base=0):
        super().__init__()
        torch.manual_seed(base)
        self.base = nn.Linear(6, 4).requires_grad_(False)
        torch.manual_seed(7)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(6, rank, bias=False, dtype=dtype)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, 4, bias=False, dtype=dtype)})


# -- what is attached --------------------------------------------------------------------------------------------------


def test_trainable_parameters_and_float_buffers_travel_and_nothing_else():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model[0].bias.requires_grad_(False)
    attached = Attached.of(model)
    assert list(attached.tensors) == ["0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    assert [entry.trainable for entry in attached.layout.entries] == [True, True, True, False, False]
    assert "frozen-base" in attached.terms


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), max_size=3), st.sampled_from([16, 32, 64, "b16"])), min_size=1, max_size=5
    ),
    st.booleans(),
)
def test_what_is_read_is_what_is_written_for_any_shapes_and_types(tensors, transposed):
    types = {16: torch.float16, 32: torch.float32, 64: torch.float64, "b16": torch.bfloat16}
    made = {str(i): torch.randn(shape).to(types[kind]) for i, (shape, kind) in enumerate(tensors)}
    if transposed:
        made = {name: tensor.t() if tensor.dim() == 2 else tensor for name, tensor in made.items()}
    attached = Attached.of(made)
    row = torch.empty(attached.layout.size, dtype=attached.layout.dtype)
    attached.read(row)
    before = {name: tensor.clone() for name, tensor in made.items()}
    for tensor in made.values():
        tensor.zero_()
    attached.write(row)
    for name, tensor in made.items():
        assert torch.equal(tensor, before[name])


def test_half_precision_travels_as_it_is_and_mixtures_in_the_widest_type():
    assert Attached.of({"x": torch.zeros(3, dtype=torch.bfloat16)}).codec == ep.compression.BFloat16()
    assert Attached.of({"x": torch.zeros(3, dtype=torch.float16)}).codec == ep.compression.Float16()
    assert "as bfloat16: 6 bytes" in str(Attached.of({"x": torch.zeros(3, dtype=torch.bfloat16)}))
    mixed = Attached.of({"x": torch.zeros(3, dtype=torch.bfloat16), "y": torch.zeros(1)})
    assert mixed.codec is None
    assert mixed.layout.dtype == torch.float32
    assert "as float32 (they are bfloat16 and float32): 16 bytes" in str(mixed)


def test_what_no_pattern_matches_stays_private_and_need_not_be_the_same():
    model = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    attached = Attached.of(model, names="body.*")
    assert list(attached.tensors) == ["body.weight", "body.bias"]
    before = attached.terms
    nn.init.ones_(model["head"].weight)
    assert attached.terms == before


def test_one_factor_frozen_is_part_of_the_base():
    model = Adapter()
    assert Attached.of(model).both_factors
    attached = Attached.of(model, freeze_lora="A")
    assert list(attached.tensors) == ["lora_B.default.weight"]
    assert not attached.both_factors
    assert not model.lora_A["default"].weight.requires_grad
    other = Adapter()
    nn.init.ones_(other.lora_A["default"].weight)
    assert Attached.of(other, freeze_lora="A").terms["frozen-base"] != attached.terms["frozen-base"]


@given(st.integers(1, 4), st.integers(0, 10**6))
def test_with_one_factor_frozen_the_average_of_the_other_is_the_average_of_the_products(rank, seed):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(rank, 5, generator=generator, dtype=torch.float64)
    bs = [torch.randn(3, rank, generator=generator, dtype=torch.float64) for _ in range(3)]
    torch.testing.assert_close(sum(bs) / 3 @ a, sum(b @ a for b in bs) / 3)


@pytest.mark.parametrize(
    ("what", "options", "said"),
    [
        (nn.Linear(2, 2), {"names": "haed.*"}, "names = 'haed.*' matches no tensor"),
        (nn.Linear(2, 2).requires_grad_(False), {}, "nothing could travel"),
        ({"n": torch.zeros(2, dtype=torch.int64)}, {}, "n is int64"),
        ([torch.zeros(1)], {}, "list must be a torch.nn.Module or a dict"),
        ({}, {}, "not empty"),
        (nn.Linear(2, 2), {"freeze_lora": "A"}, "no parameter has a name with lora_A"),
        (nn.Linear(2, 2), {"freeze_lora": "C"}, "freeze_lora = 'C' is not known"),
        ({"x": torch.zeros(1)}, {"freeze_lora": "A"}, "is for a model"),
        (nn.LazyLinear(2), {}, "lazy parameters"),
        (nn.Linear(2, 2), {"names": []}, "names is empty"),
    ],
)
def test_what_cannot_be_attached_is_refused_in_a_line(what, options, said):
    with pytest.raises(BadInput) as refusal:
        Attached.of(what, **options)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2e6, -2e6])
def test_numbers_that_others_would_refuse_are_found_before_they_are_sent(value):
    model = nn.Linear(2, 1)
    attached = Attached.of(model)
    assert attached.problem(1e6) is None
    with torch.no_grad():
        model.bias[0] = value
    assert attached.problem(1e6).startswith("bias has numbers from")


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float16, 65504), (torch.bfloat16, 1e6), (torch.float32, 1e6)])
def test_no_number_is_taken_that_is_infinite_in_a_tensor_of_half_precision(dtype, largest):
    """Otherwise one member that sends it ends all others, whose next exchange finds infinite numbers."""
    attached = Attached.of({"x": torch.zeros(1, dtype=dtype), "y": torch.zeros(1)})
    setup = ScriptsTraining(attached, Turns()).setup(OWN_LOOP, [0], None, None, lambda _: None)
    assert setup.experiment.network.largest == largest
    attached.write(torch.full((2,), setup.experiment.network.largest))
    assert attached.problem(1e6) is None


# -- what nodes must have in common ------------------------------------------------------------------------------------


class Directory:
    """As much of a run's directory as an agreement asks for."""

    def __init__(self, info=None):
        self.info = info

    def run_info(self):
        return self.info

    def amend(self, more):
        self.info = {**(self.info or {}), **more}


def agreed(what, experiment=OWN_LOOP, directory=None, **options):
    training = ScriptsTraining(Attached.of(what, **options), Turns())
    setup = training.setup(experiment, [0], None, None, lambda _: None)
    return training.agreement(setup, None, directory or Directory())


def test_the_same_scripts_agree():
    assert agreements.differences(agreed(Adapter()), agreed(Adapter())) == []
    assert agreed(Adapter()).run == agreed(Adapter()).run


@pytest.mark.parametrize(
    ("other", "options", "said"),
    [
        (
            Adapter(rank=3),
            {},
            ['attached.lora_A.default.weight = "float32 [2, 6]" here, "float32 [3, 6]" there', "one adapter rank"],
        ),
        (Adapter(dtype=torch.bfloat16), {}, ["bfloat16"]),
        (Adapter(base=1), {}, ["frozen-base", "load the same pretrained weights"]),
        (Adapter(), {"freeze_lora": "A"}, ["attached.lora_A.default.weight", "not set"]),
    ],
    ids=["rank", "type", "base", "frozen"],
)
def test_nodes_with_another_layout_or_base_are_told_in_what(other, options, said):
    here, there = agreed(Adapter()), agreed(other, **options)
    assert here.run != there.run
    found = "; ".join(agreements.differences(here, there)[:4])
    for part in said:
        assert part in found


def test_values_that_differ_at_the_start_are_told_and_a_run_that_goes_on_has_those_that_it_began_with():
    def model(seed):
        torch.manual_seed(seed)
        return nn.Linear(2, 2)

    directory = Directory()
    here = agreed(model(0), directory=directory)
    (said,) = agreements.differences(here, agreed(model(1)))
    assert "initial-values" in said
    assert "seed before the model is made" in said
    assert agreements.differences(here, agreed(model(1), directory=directory)) == []


def test_an_agreement_of_very_many_tensors_is_told_as_a_digest():
    many = {f"layer{i}": torch.zeros(1) for i in range(3 * MOST_TOLD)}
    here = agreed(many)
    assert len(msgspec.json.encode(here)) < 2**16
    many[f"layer{3 * MOST_TOLD - 1}"] = torch.zeros(2)
    (said, _) = agreements.differences(here, agreed(many))
    assert said.startswith("attached-rest = ")


def test_an_agreement_of_long_names_is_short_enough_to_be_read():
    from epidemic.deploy.handshake import LARGEST_AGREEMENT

    long = {f"{i}{'é' * 300}": torch.zeros(1) for i in range(MOST_TOLD)}
    here = agreed(long)
    assert len(msgspec.json.encode(here)) <= LARGEST_AGREEMENT
    long[f"{MOST_TOLD - 1}{'é' * 300}"] = torch.zeros(2)
    assert len(agreements.differences(here, agreed(long))) == 2


# -- turns -------------------------------------------------------------------------------------------------------------


def play(rounds, average):
    """The node's side: every round, then the end."""

    def node(turns):
        row = torch.zeros(1, 2)
        for round in range(rounds):
            loss = turns.train(round, row)
            assert float(loss) == round
            row = average(row)
            turns.mixed((round + 10,), row if round + 1 == rounds else None)
        turns.end()

    return node


def test_script_and_node_take_turns_and_never_hold_the_row_at_the_same_time():
    turns = Turns()
    thread = threading.Thread(target=play(5, lambda row: row * 2), args=(turns,), daemon=True)
    thread.start()
    seen = []
    while (found := turns.next_round()) is not None:
        round, row = found
        seen.append((round, row[0].tolist()))
        turns.report(evaluation_of(round, None))
        turns.hand_over(lambda own, row=row: own.copy_(row[0] + 1), {"step": torch.tensor(round)})
        if round == 4:
            break
        assert turns.next_round()[0] == round + 1
        assert turns.heard == (round + 10,)
        assert turns.kept == {"step": torch.tensor(round)}
    turns.wait_end()
    thread.join()
    assert seen == [(0, [0, 0]), (1, [2, 2]), (2, [6, 6]), (3, [14, 14]), (4, [30, 30])]
    assert turns.last.tolist() == [[62, 62]]


def test_a_wish_to_stop_reaches_a_node_that_waits_and_leaves_the_row_as_it_was():
    turns, row, found = Turns(), torch.ones(1, 2), []

    def node():
        try:
            with turns.stop.held():
                turns.train(0, row)
        except KeyboardInterrupt:
            found.append(turns.stop.broke)
            turns.end()

    thread = threading.Thread(target=node, daemon=True)
    thread.start()
    assert turns.next_round()[0] == 0
    turns.stop.request()
    thread.join(5)
    assert found == [False]
    assert row.tolist() == [[1, 1]]


def test_an_interrupt_while_numbers_are_handed_over_leaves_the_model_of_before():
    """Otherwise the node would save a model that is half of before and half of after."""
    turns, restored, row = Turns(), [], torch.zeros(1, 2)
    population = SimpleNamespace(
        snapshot=lambda who: {"x": row.clone()},
        restore=lambda who, state: restored.append(state["x"].tolist()),
        local_update=lambda number, *_: turns.train(number, row),
    )
    computation = Computation.__new__(Computation)
    computation._host, computation._nodes = SimpleNamespace(population=population), {0: None}
    node = SimpleNamespace(position=0, recorder=SimpleNamespace(clock=lambda _: contextlib.nullcontext()))

    def live():
        with contextlib.suppress(KeyboardInterrupt):
            computation._train(0, [(node, 1)])

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    turns.next_round()
    turns.report(evaluation_of(1.0, None))

    def interrupted(row):
        row[0] = 5
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turns.hand_over(interrupted, {})
    turns.stop.request()
    thread.join(5)
    assert row.tolist() == [[5, 0]]
    assert restored == [[[0, 0]]]


def test_what_the_script_wants_to_be_kept_counts_only_when_the_round_is_over():
    """Otherwise a restart would have the optimiser of after a training and the model of before."""
    turns = Turns()
    thread = threading.Thread(target=turns.train, args=(0, torch.zeros(1, 1)), daemon=True)
    thread.start()
    turns.next_round()
    turns.report(evaluation_of(1.0, 0.5))
    turns.hand_over(lambda row: None, {"momentum": torch.ones(1)})
    thread.join()
    assert turns.kept == {}
    turns.mixed((), None)
    assert list(turns.kept) == ["momentum"]


def test_while_the_script_trains_the_node_does_what_cannot_wait():
    turns, done = Turns(), threading.Event()
    thread = threading.Thread(target=turns.train, args=(0, torch.zeros(1, 1), done.set), daemon=True)
    thread.start()
    turns.next_round()
    assert done.wait(5)
    turns.report(evaluation_of(1.0, None))
    turns.hand_over(lambda row: None, {})
    thread.join()


def test_while_a_script_trains_models_are_given_and_everything_else_is_put_off_in_order():
    work, computed, problem = queue.SimpleQueue(), [], RunFailed("the certificate has expired")
    process = SimpleNamespace(_work=work, _put_off=[], learning=SimpleNamespace(compute=computed.append))
    give, conclude, leave = (1, e.Give(print, 2)), (1, e.Conclude()), (1, e.Leave())
    for found in ([conclude, give], [leave], problem, [give]):
        work.put(found)
    Process._give_meanwhile(process)
    assert computed == [[give], [give]]
    assert process._put_off == [[conclude], [leave], problem]


def test_an_error_of_the_node_is_raised_in_the_script():
    turns = Turns()
    turns.end(RunFailed("the certificate has expired"))
    with pytest.raises(RunFailed, match="the certificate has expired"):
        turns.next_round()


@pytest.mark.parametrize(
    "make", [torch.optim.Adam, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), torch.optim.SGD]
)
def test_an_optimiser_that_is_given_its_saved_state_goes_on_as_if_nothing_had_been(make):
    def steps(model, optimiser, count):
        for step in range(count):
            optimiser.zero_grad()
            model(torch.full((1, 3), 0.1 * step)).sum().backward()
            optimiser.step()

    first = nn.Linear(3, 2)
    optimiser = make(first.parameters())
    steps(first, optimiser, 3)
    again = nn.Linear(3, 2)
    again.load_state_dict(first.state_dict())
    other = make(again.parameters())
    give_state(other, {name: tensor.clone() for name, tensor in state_of(optimiser).items()})
    steps(first, optimiser, 2)
    steps(again, other, 2)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_the_experiment_of_a_script_has_no_data_and_no_model_and_can_be_written_down():
    table = OWN_LOOP.table()
    assert not {"data", "partition", "model", "loss"} & table.keys()
    assert experiment_from({**table}) == OWN_LOOP
    assert "fashion" not in to_toml(OWN_LOOP)


def test_the_simulator_refuses_a_script_in_one_line():
    with pytest.raises(
        BadInput, match="trained by a script of your own, which a simulation has not; start it with: epidemic"
    ):
        ep.simulate(OWN_LOOP)
    with pytest.raises(BadInput, match="trained by a script"):
        prepare(OWN_LOOP, 1)
    assert list(refusals(OWN_LOOP, "deployment")) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": ep.Logistic()}, "model has no meaning"),
        ({"data": ep.Digits()}, "data has no meaning"),
        ({"metrics": ["macro-f1"]}, "metrics has no meaning"),
        ({"mixing": "samples"}, "nobody counts the samples"),
        ({"clock": ep.Clock()}, "nobody knows how long a script"),
    ],
)
def test_settings_that_a_script_ignores_are_refused(changed, said):
    with pytest.raises(BadInput, match=said):
        msgspec.structs.replace(OWN_LOOP, **changed)


@pytest.fixture
def folder(tmp_path):
    from epidemic.deploy.addresses import free_addresses
    from epidemic.deploy.folders import make_cluster

    return make_cluster(OWN_LOOP, free_addresses(4), tmp_path / "cluster")[0]


def twice(node):
    with node:
        node.attach(nn.Linear(2, 1))
        node.attach(nn.Linear(2, 1))


def exchanged_outside(node):
    with node:
        node.attach(Adapter())
        node.exchange()


def test_a_script_that_never_attaches_or_never_exchanges_is_told_so(folder, monkeypatch):
    with pytest.raises(BadInput, match=r"without node.attach"), ep.join(folder, quiet=True):
        pass
    with pytest.raises(BadInput, match=r"without a single node.exchange"), ep.join(folder, quiet=True) as node:
        node.attach(nn.Linear(2, 1))
    with pytest.raises(BadInput, match=r"attach.* was called twice"):
        twice(ep.join(folder, quiet=True))
    monkeypatch.delenv("EPIDEMIC_FOLDER", raising=False)
    assert ep.join(folder, settings="rounds=7").experiment.rounds == 7
    with pytest.raises(BadInput, match=r"join\(\) has no folder"):
        ep.join()


def test_a_folder_of_a_script_is_not_for_epidemic_node_nor_the_other_way_round(folder, tmp_path):
    from epidemic.deploy.node import run_node

    with pytest.raises(BadInput, match="start that with EPIDEMIC_FOLDER set"):
        run_node(folder)
    other = msgspec.structs.replace(OWN_LOOP, algorithm=ep.LocalSGD())
    (folder / "experiment.toml").write_text(to_toml(other))
    with (
        pytest.raises(BadInput, match=r"a script needs an experiment with algorithm.kind"),
        ep.join(folder, quiet=True) as node,
    ):
        node.attach(nn.Linear(2, 1))


@pytest.mark.parametrize("end", ["", "sys.exit()", "sys.exit(0)"])
def test_a_script_that_ends_well_but_early_is_an_error(tmp_path, capsys, end):
    (tmp_path / "train.py").write_text(f"import sys\n{end}\n")
    assert scripts._run(tmp_path, str(tmp_path / "train.py")) == 2
    assert "ended before its node had finished" in capsys.readouterr().out


@pytest.mark.parametrize(("code", "found"), [(3, 3), (256, 1), (-1, 1), ("'no data'", 1)])
def test_a_script_that_ends_with_an_error_has_never_code_0(tmp_path, capsys, code, found):
    (tmp_path / "train.py").write_text(f"import sys\nsys.exit({code})\n")
    assert scripts._run(tmp_path, str(tmp_path / "train.py")) == found


def test_a_bar_that_is_drawn_over_and_over_takes_no_room():
    log = io.StringIO()
    lines = scripts.TimedLines(log)
    for i in range(3000):
        lines.write(f"\r{i}% {'#' * 60}")
    assert len(lines._part) < 100
    lines.write("\r100%\nnext\r\n")
    lines.write("x" * 10**6)
    assert len(lines._part) <= scripts.LONGEST_LINE + 1
    assert [line.split(maxsplit=1)[1] for line in log.getvalue().splitlines()] == ["100%", "next"]


def test_calls_in_the_wrong_order_are_told(folder, capsys):
    node = ep.join(folder)
    with pytest.raises(BadInput, match=r"call node.attach"):
        node.exchange()
    with pytest.raises(BadInput, match="must be a finite number"):
        node.report(loss=float("nan"))
    for value in (torch.zeros(3), "low", None):
        with pytest.raises(BadInput, match=r"report: loss is .*; give one number"):
            node.report(loss=value)
    with pytest.raises(BadInput, match="report: accuracy = 80"):
        node.report(loss=1.0, accuracy=80)
    with pytest.raises(BadInput, match=r"exchange.. needs a round"):
        exchanged_outside(node)
    assert AVERAGE_OF_FACTORS in capsys.readouterr().err


def test_the_model_of_a_script_is_not_written_as_a_program(tmp_path):
    run = tmp_path / "seed-1"
    run.mkdir()
    (run / "run.json").write_text('{"seed": 1}')
    (tmp_path / "experiment.toml").write_text(to_toml(OWN_LOOP))
    with pytest.raises(BadInput, match="is in a script of your own"):
        module_of(run, {"w": torch.zeros(1)})


def test_a_script_and_an_experiment_that_needs_one_go_together(tmp_path, capsys):
    from epidemic.cli.app import main

    (tmp_path / "own.toml").write_text(to_toml(OWN_LOOP))
    (tmp_path / "train.py").write_text("")
    (tmp_path / "other.toml").write_text(to_toml(ep.Experiment(nodes=2, topology=ep.ELLocal(1), data=ep.Digits())))
    for words, said in {
        ("own.toml",): "add --script train.py",
        ("other.toml", "--script", "train.py"): '--script is for algorithm.kind = "own-loop"',
        ("own.toml", "--script", "none.py"): "does not exist",
        ("own.toml", "--script", "train.py", "--processes", "2"): "a script is one node in a process of its own",
    }.items():
        given = [str(tmp_path / word) if word.endswith((".toml", ".py")) else word for word in words]
        assert main(["cluster", "up", *given, "--out", str(tmp_path / "out")]) == 2
        assert said in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out" / "node-0" / "run").exists()


# -- adapters ----------------------------------------------------------------------------------------------------------


def test_the_average_of_both_factors_is_another_adapter_and_that_of_one_is_exact(monkeypatch):
    """What the page says of adapters is measured by this example."""
    from pathlib import Path
    from runpy import run_path

    example = run_path(str(Path(__file__).parents[1] / "examples/lora_average.py"))
    play = example["play"]
    monkeypatch.setitem(play.__globals__, "ROUNDS", 1)
    assert play(4, 0.05, 0, freeze=False)[0] > 0.05
    assert play(4, 0.05, 0, freeze=True)[0] < 1e-6
