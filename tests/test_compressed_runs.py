"""Runs with compressed messages: bytes, going on, threads, a clock, deployed nodes; and what is refused."""

import msgspec
import numpy as np
import pytest
import torch

import epidemic as ep
from epidemic.callbacks import Callback
from epidemic.cli import main
from epidemic.clock import Clock, CloseDeadline, ConstantCompute, Links
from epidemic.compression import BFloat16, Float16, Int8, RandomK, TopK, Uncompressed
from epidemic.core.errors import Interrupted
from epidemic.core.workers import Workers
from epidemic.deploy.agreement import agreement_of, check_deployable, differences
from epidemic.deploy.learning import rows_of
from epidemic.deploy.wire import STATE_TRANSFER, Refused
from epidemic.record import HEADER_BYTES, read_records
from epidemic.runtime.message_coding import MEMORY
from epidemic.runtime.population import Population
from epidemic.runtime.setup import make_learner, prepare
from test_replay import Replay, views

D = 650  # numbers of the model
EVERY = [Float16(), BFloat16(), Int8(), TopK(0.1), RandomK(0.25), RandomK(0.25, fill="own")]


def small(**changes):
    fields = {
        "nodes": 7, "rounds": 6, "topology": ep.ELLocal(3), "data": ep.Digits(), "partition": ep.IID(), "model": ep.Logistic(),
        "algorithm": ep.LocalSGD(lr=0.1, local_steps=2, batch_size=4), "eval": ep.Eval(every=3, samples=100),
        "runtime": ep.Runtime(strategy="per-node"),
    }  # fmt: skip
    return ep.Experiment(**{**fields, **changes})


def same(a, b):
    return torch.equal(a.models.rows, b.models.rows) and a.records == b.records


FILE = """
nodes = 7
rounds = 6
topology = {kind = "el-local", s = 3}
data = {kind = "digits"}
model = {kind = "logistic"}
eval = {every = 3, samples = 100}
"""


@pytest.mark.parametrize(
    ("table", "size"),
    [
        ('kind = "none"', 4 * D),
        ('kind = "float16"', 2 * D),
        ('kind = "bfloat16"', 2 * D),
        ('kind = "int8"', D + 2 * 4),
        ('kind = "top-k"\nshare = 0.01', 8 * 6),
        ('kind = "random-k"\nshare = 0.25', 4 * 162 + 8),
    ],
)
def test_a_file_runs_and_its_bytes_are_exact(table, size, tmp_path):
    (tmp_path / "e.toml").write_text(f"{FILE}[compression]\n{table}\n")
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    last = read_records(tmp_path / "run" / "seed-1" / "records.jsonl")[0][-1]
    assert last.bytes.model.mean == 6 * 3 * size
    assert last.bytes.header.mean == 6 * 3 * HEADER_BYTES
    again = ep.load(tmp_path / "run" / "experiment.toml")
    assert again.compression == ep.load(tmp_path / "e.toml").compression


def test_none_is_no_compression_to_the_last_byte():
    assert same(ep.simulate(small(compression=Uncompressed())), ep.simulate(small()))
    assert "compression" not in small().table()


@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_it_learns_and_the_messages_are_not_the_models(codec):
    plain, found = ep.simulate(small(rounds=30)), ep.simulate(small(rounds=30, compression=codec))
    assert not torch.equal(plain.models.rows, found.models.rows)
    assert found.records[-1].accuracy.mean > 0.75
    assert found.records[-1].bytes.model.mean < plain.records[-1].bytes.model.mean / 1.9


@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_threads_make_no_difference(codec):
    many = [
        ep.simulate(small(nodes=20, model=ep.MLP(hidden=(64,)), compression=codec, runtime=ep.Runtime(strategy="stacked", threads=t)))
        for t in (1, 3)
    ]  # fmt: skip
    assert same(*many)


class InterruptedAfter(Callback):
    def __init__(self, rounds):
        self.rounds = rounds

    def advanced(self, rounds_done, x):
        if rounds_done == self.rounds:
            raise KeyboardInterrupt


CRASHES = ep.Faults(loss=0.1, crashes=(ep.Crash(1, at=1, returns=4), ep.Crash(5, at=2, returns=3)))


@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_going_on_after_an_interrupt_gives_the_same_bytes(codec, tmp_path):
    experiment = small(compression=codec, faults=CRASHES)
    ep.simulate(experiment, tmp_path / "whole")
    with pytest.raises(Interrupted):
        ep.simulate(experiment, tmp_path / "parts", callbacks=InterruptedAfter(3))
    ep.simulate(experiment, tmp_path / "parts", resume=True)
    for name in ("records.jsonl", "models.safetensors", "summary.json", "nodes.json"):
        whole, parts = (tmp_path / which / "seed-1" / name for which in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes()


def test_a_run_is_not_gone_on_with_under_another_codec(tmp_path):
    ep.simulate(small(compression=Int8()), tmp_path / "run")
    with pytest.raises(ep.BadInput, match=r"compression\.kind"):
        ep.simulate(small(compression=Float16()), tmp_path / "run", resume=True)


def test_a_node_that_returns_is_given_a_whole_model():
    run = ep.simulate(small(compression=Int8(), faults=ep.Faults(crashes=(ep.Crash(1, at=1, returns=4),))))
    sent = run.records[-1].bytes
    received = round(sent.header.mean * 7 / HEADER_BYTES)
    assert sent.model.mean * 7 == pytest.approx((received - 1) * (D + 8) + 4 * D)


def test_what_was_not_said_is_remembered_until_it_is():
    """Without training, a top-k sender says every coordinate that has changed, a few a round, and then has nothing left to say."""
    setup = prepare(small(nodes=2, topology=ep.ELLocal(1), compression=TopK(0.3)), 1)
    population = Population(setup, make_learner(setup, Workers(1))[0])
    x = torch.randn(2, D, generator=torch.Generator().manual_seed(1))
    assert torch.equal(population.state[MEMORY], setup.initial.repeat(2, 1))
    for t in range(4):
        left = int((population.state[MEMORY] != x).sum())
        assert left == 2 * max(0, D - 195 * t)
        message = population._compressed({"x": x}, population.state, t, population.ids)
        assert torch.equal(message["x"], x)
    assert torch.equal(population.state[MEMORY], x)


# -- under the clock --------------------------------------------------------------------------------------------------

CLOCK = Clock(compute=ConstantCompute(0.1), links=Links(uplink=1.0, latency=0.01))


@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_rounds_under_a_clock_give_the_same_models_in_less_time(codec, tmp_path):
    plain, timed = (
        ep.simulate(small(compression=codec)),
        ep.simulate(small(compression=codec, clock=CLOCK), tmp_path / "w"),
    )
    assert torch.equal(plain.models.rows, timed.models.rows)
    assert timed.records[-1].bytes == plain.records[-1].bytes
    assert timed.records[-1].time.seconds < ep.simulate(small(clock=CLOCK)).records[-1].time.seconds
    with pytest.raises(Interrupted):
        ep.simulate(small(compression=codec, clock=CLOCK), tmp_path / "p", callbacks=InterruptedAfter(3))
    ep.simulate(small(compression=codec, clock=CLOCK), tmp_path / "p", resume=True)
    assert (tmp_path / "w/seed-1/models.safetensors").read_bytes() == (
        tmp_path / "p/seed-1/models.safetensors"
    ).read_bytes()


def test_late_messages_are_compressed_too():
    close = CloseDeadline(seconds=0.2, late="carry")
    run = ep.simulate(small(compression=RandomK(0.25), clock=msgspec.structs.replace(CLOCK, close=close)))
    assert run.records[-1].accuracy.mean > run.records[0].accuracy.mean + 0.2


# -- deployed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", [ep.ELLocal(3), ep.Ring(), ep.Complete()], ids=repr)
@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_deployed_nodes_learn_the_simulators_models_from_the_bytes_of_messages(codec, topology):
    """Populations of one and two; messages go through frames, whose size is the one that the simulator counts."""
    experiment = small(compression=codec, topology=topology)
    simulated = ep.simulate(experiment)
    replay = Replay(experiment, 2)
    for t in range(experiment.rounds):
        seen = views(experiment, t)
        messages = replay.local_update(t, seen, np.ones(7, dtype=bool))
        received = {i: {} for i in messages}
        for i, message in messages.items():
            row = {"x": message["x.sent"][0]}
            frame = replay.sealed(t, i, seen[i].digest, row)
            for j in seen[i].targets:
                replay.sent[i] += len(frame)
                received[j][i] = replay.opened(frame)
        replay.aggregate(seen, messages, received)
    models = torch.cat([population.models for population in replay.populations])
    torch.testing.assert_close(models, simulated.models.rows, rtol=0, atol=1e-6)
    sent = simulated.records[-1].bytes
    assert replay.sent.mean() == sent.model.mean + sent.header.mean


def test_a_model_that_was_asked_for_is_whole_and_a_message_is_not():
    replay = Replay(small(compression=Int8()), 7)
    population = replay.populations[0]
    given = {"x": population.models[3]}
    frame = replay.sealed(2, 3, b"", given, STATE_TRANSFER)
    assert len(frame) == HEADER_BYTES + 4 * D == replay.format.frame_bytes
    assert torch.equal(rows_of(replay.opened(frame), replay.columns)["x"], given["x"])
    raw = population.coder.encode(population.models, 2, population.ids, None, Workers(1))[3]
    one_message = replay.sealed(2, 3, bytes(8), {"x": raw})
    assert len(one_message) == HEADER_BYTES + D + 8 == replay.format.usual_bytes
    for wrong in (one_message[:-1], one_message + b"\0"):
        with pytest.raises(Refused, match="malformed"):
            replay.opened(wrong)
    insane = raw.clone()
    insane[:4] = torch.tensor([float("inf")]).view(torch.uint8)
    with pytest.raises(Refused, match="insane"):
        replay.opened(replay.sealed(2, 3, bytes(8), {"x": insane}))
    other = Replay(small(compression=RandomK(0.5)), 7)
    other.keys = replay.keys
    with pytest.raises(Refused, match=r"oversized|wrong-shape"):
        other.opened(one_message)


def test_nodes_agree_on_the_codec():
    here, there = (agreement_of(prepare(small(compression=c), 1)) for c in (RandomK(0.5), RandomK(0.25)))
    assert differences(here, there) == ["compression.share = 0.5 here, 0.25 there"]
    check_deployable(small(compression=Int8()))


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compression": "int8"}, "compression = 'int8' must be a codec"),
        ({"compression": Float16(), "algorithm": ep.PushSum(), "topology": ep.ELLocal(4)}, 'use algorithm.kind = "local-sgd"'),
        ({"compression": Int8(), "algorithm": ep.AsyncEL(), "clock": CLOCK}, '"async-el" has none; .*"divshare"'),
        ({"compression": RandomK(0.5), "topology": ep.UEquiStatic(2)}, r'use compression.fill = "own" or mixing = "uniform"'),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(changes, message):
    with pytest.raises(ep.BadInput, match=message):
        small(**changes)


class Sums(ep.Defaults):
    """Asks for what cannot be had of compressed messages."""

    local_steps, batch_size = 1, 4

    def init(self, x):
        return {"x": x}

    def local_update(self, state, learner, context):
        return state, {"x": state["x"]}, torch.zeros(len(state["x"]))

    def aggregate(self, state, inbox):
        return {"x": inbox.sum("x")}


def test_numbers_that_a_codec_makes_infinite_are_not_blamed_on_the_learning_rate_alone():
    large = ep.LocalSGD(lr=3e5, local_steps=2, batch_size=4)  # weights beyond 65504, which are nothing to others
    for codec in (None, BFloat16(), Int8()):
        ep.simulate(small(algorithm=large, compression=codec))
    said = r'compression\.kind = "float16": a model has a number of magnitude \d+, and messages have none above 65504; use kind = "int8"'
    with pytest.raises(ep.RunFailed, match=said):
        ep.simulate(small(algorithm=large, compression=Float16()))


def test_sums_of_compressed_messages_are_refused():
    with pytest.raises(ep.BadInput, match="can be averaged, not added up"):
        small(algorithm=Sums(), compression=Int8())
