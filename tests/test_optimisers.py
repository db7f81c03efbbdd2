"""Local optimisers, clipping and schedules: those of PyTorch to rounding, each node's own, and the same wherever a run stops."""

import dataclasses
import json
import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import epidemic as ep
from epidemic.algorithms import ALGORITHMS, RoundContext, algorithm_from, cautions
from epidemic.cli import main
from epidemic.clock import Clock, ExponentialChurn, Links, PerNodeCompute
from epidemic.core.config import to_table
from epidemic.core.errors import Interrupted
from epidemic.core.workers import Workers
from epidemic.data import Dataset, Samples
from epidemic.experiment import load, to_toml
from epidemic.experiment.differences import same_experiment
from epidemic.learner import AdamUpdate, PerNode, SGDUpdate, Stacked, Task, accuracy, cross_entropy, with_rate

WORKERS = Workers(1)
CASES = {
    "momentum": (SGDUpdate(0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "nesterov": (SGDUpdate(0.1, 0.9, 0.01, nesterov=True), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01, nesterov=True)),
    "adam": (AdamUpdate(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "adam, decay": (AdamUpdate(0.01, (0.8, 0.95), 1e-6, 0.1), lambda p: torch.optim.Adam(p, 0.01, (0.8, 0.95), 1e-6, 0.1)),
    "adamw": (AdamUpdate(0.01, weight_decay=0.1, decoupled=True), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1)),
}  # fmt: skip


@pytest.fixture(scope="module")
def task():
    torch.manual_seed(1)
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    numbers = np.random.default_rng(1)
    samples = Samples(numbers.standard_normal((60, 6)), numbers.integers(0, 3, 60))
    data = Dataset(samples, samples, ("a", "b", "c"))
    return Task(module, data, cross_entropy, {"accuracy": accuracy}, torch.device("cpu"), kind="of these tests")


def rows(task, k):
    return torch.randn(k, task.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) / 2


def batches(k, r, seed=1):
    return torch.randint(60, (k, r, 4), generator=torch.Generator().manual_seed(seed))


def by_pytorch(task, row, index, make, clip=None):
    """The row after these steps of an ordinary module and optimiser.   # index (r, b)"""
    plain = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    plain.load_state_dict(task.layout.state_dict(row))
    optimiser = make(plain.parameters())
    shortened = 0
    for samples in index:
        inputs, targets = task.batch(samples)
        optimiser.zero_grad()
        nn.functional.cross_entropy(plain(inputs), targets).backward()
        if clip is not None:
            shortened += int(nn.utils.clip_grad_norm_(plain.parameters(), clip) > clip)
        optimiser.step()
    return task.layout.row(plain), shortened


# -- those of PyTorch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [Stacked, PerNode])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("clip", [None, 1.0])
def test_every_optimiser_is_that_of_pytorch(task, strategy, name, clip):
    """Three nodes, seven steps in two calls: what is remembered goes on."""
    step, make = CASES[name]
    step = step if clip is None else dataclasses.replace(step, clip=clip)
    x, index = rows(task, 3), batches(3, 7)
    start, memory = x.clone(), step.memory(x)
    for part in (index[:, :3], index[:, 3:]):
        strategy(task, WORKERS).sgd(x, memory, part, step, [0] * 3)
    shortened = 0
    for i in range(3):
        wanted, often = by_pytorch(task, start[i], index[i], make, clip)
        shortened += often
        torch.testing.assert_close(x[i], wanted, rtol=1e-12, atol=1e-12)
    if clip is not None:
        assert 0 < shortened < 21  # some are too long, some are not


@pytest.mark.parametrize("strategy", [Stacked, PerNode])
@pytest.mark.parametrize("name", ["nesterov", "adam", "adamw"])
def test_nodes_that_have_made_unlike_numbers_of_steps_do_not_disturb_each_other(task, strategy, name):
    """Of four nodes two train twice; then all train together, as each would alone."""
    step, make = CASES[name]
    x, first, then = rows(task, 4), batches(4, 2), batches(4, 3, seed=2)
    start, memory, some = x.clone(), step.memory(x), torch.tensor([1, 2])
    part, held = x[some], {n: m[some] for n, m in memory.items()}
    does = strategy(task, WORKERS)
    does.sgd(part, held, first[some], step, [0] * 2)
    x[some] = part
    for n, m in held.items():
        memory[n][some] = m
    does.sgd(x, memory, then, step, [0] * 4)
    for i in range(4):
        index = torch.cat([first[i], then[i]]) if i in (1, 2) else then[i]
        torch.testing.assert_close(x[i], by_pytorch(task, start[i], index, make)[0], rtol=1e-12, atol=1e-12)
    if "steps" in memory:
        assert memory["steps"].tolist() == [3, 5, 5, 3]


@pytest.mark.parametrize("step", [one for one, _ in CASES.values()] + [SGDUpdate(0.1)], ids=[*CASES, "plain"])
def test_rates_of_single_rows_are_those_of_each_alone(task, step):
    rates = torch.tensor([0.1, 0.02, 0.3], dtype=torch.float64)
    found = {}
    for strategy in (Stacked, PerNode):
        x, index = rows(task, 3), batches(3, 2)
        memory, several = step.memory(x), with_rate(step, rates)
        strategy(task, WORKERS).sgd(x, memory, index, several, [0] * 3)
        found[strategy] = x
        for i in range(3):
            alone = rows(task, 3)[i : i + 1]
            one = with_rate(step, float(rates[i]))
            strategy(task, WORKERS).sgd(alone, one.memory(alone), index[i : i + 1], one, [0])
            torch.testing.assert_close(x[i], alone[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[Stacked], found[PerNode], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_filling_up_to_a_steady_size_changes_nothing(task, name):
    """Under a clock ever other numbers of nodes train together; what they remember must not be that of the filling."""
    step = with_rate(CASES[name][0], torch.tensor([0.1, 0.02, 0.3], dtype=torch.float64))
    results = []
    for steady in (0, 8):
        does = Stacked(task, WORKERS)
        does.steady = steady
        x = rows(task, 3)
        memory = step.memory(x)
        does.sgd(x, memory, batches(3, 2), step, [0] * 3)
        results.append((x, *memory.values()))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@given(st.floats(0.01, 10), st.integers(1, 5))
def test_no_gradient_is_longer_than_the_bound_and_short_ones_stay(clip, k):
    gradient = (
        torch.randn(k, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
        * torch.arange(1.0, k + 1)[:, None]
    )
    x = torch.zeros(k, 7, dtype=torch.float64)
    parts = [(x[:, :3], {}, gradient[:, :3]), (x[:, 3:], {}, gradient[:, 3:])]
    SGDUpdate(1.0, clip=clip).update(parts)
    lengths, before = x.norm(dim=1), gradient.norm(dim=1)
    assert (lengths <= clip).all()
    torch.testing.assert_close(-x / lengths[:, None], gradient / before[:, None])  # nothing is turned
    short = before + 1e-6 <= clip
    assert torch.equal(-x[short], gradient[short])


def test_an_optimiser_without_its_memory_says_so(task):
    x = rows(task, 2)
    with pytest.raises(ValueError, match=r"no velocity: pass what step\.memory\(x\) returns"):
        PerNode(task, WORKERS).sgd(x, {}, batches(2, 1), SGDUpdate(0.1, 0.9), [0] * 2)


# -- schedules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (ep.ConstantRate(), {0: 1, 1000: 1}),
        (ep.ConstantRate(warmup=4), {0: 0.25, 1: 0.5, 2: 0.75, 3: 1, 4: 1, 99: 1}),
        (ep.StepDecay(rounds=10), {0: 1, 9: 1, 10: 0.1, 19: 0.1, 20: 0.01}),
        (ep.StepDecay(rounds=10, by=0.5, warmup=2), {0: 0.5, 1: 1, 11: 1, 12: 0.5, 22: 0.25}),
        (ep.CosineDecay(rounds=100, floor=0.2), {0: 1, 25: 0.6 + 0.4 * math.cos(math.pi / 4), 50: 0.6, 100: 0.2, 5000: 0.2}),
        (ep.CosineDecay(rounds=100, floor=0.2, warmup=10), {0: 0.1, 9: 1, 10: 1, 60: 0.6, 110: 0.2}),
    ],
    ids=str,
)  # fmt: skip
def test_factors(schedule, factors):
    assert {t: schedule.factor(t) for t in factors} == pytest.approx(factors, abs=1e-12)


@given(
    st.sampled_from([ep.ConstantRate(warmup=3), ep.StepDecay(rounds=1, by=1e-3), ep.CosineDecay(rounds=7)]),
    st.integers(0, 10**6),
)
def test_the_rate_never_vanishes(schedule, round):
    assert 0 < schedule.factor(round) <= 1


class Noting:
    """A learner that only notes by which rates it was asked to train."""

    def __init__(self):
        self.rates = []

    def sgd(self, x, index, step, seeds, memory):
        self.rates.append(step.lr)
        return torch.zeros(len(x))


def test_rounds_go_by_their_number_and_others_by_how_often_each_has_trained():
    schedule, learner, x = ep.StepDecay(rounds=2, by=0.5), Noting(), torch.zeros(3, 4)
    context = RoundContext(5, torch.zeros(3, 1, 1), [0] * 3, torch.zeros(3))
    ep.LocalSGD(lr=0.8, schedule=schedule).train(x, {}, learner, context)
    free = RoundContext(0, context.index, context.seeds, context.out_degree, [0, 3, 4])
    ep.AsyncEL(lr=0.8, schedule=schedule).train(x, {}, learner, free)
    ep.AsyncEL(lr=0.8).train(x, {}, learner, free)
    assert learner.rates[0] == pytest.approx(0.2)
    assert learner.rates[1].tolist() == pytest.approx([0.8, 0.4, 0.2])
    assert learner.rates[2] == 0.8


# -- settings -----------------------------------------------------------------------------------------------------------


def test_a_name_is_short_for_a_table_without_settings():
    assert ep.LocalSGD(optimizer={"kind": "adam"}) == ep.LocalSGD(optimizer="adam") == ep.LocalSGD(optimizer=ep.Adam())
    assert to_table(ep.LocalSGD(optimizer=ep.AdamW()))["optimizer"] == "adamw"
    said = ep.LocalSGD(
        optimizer={"kind": "adam", "betas": [0.8, 0.99]}, schedule={"kind": "cosine", "rounds": 9, "warmup": 2}
    )
    assert said.optimizer == ep.Adam((0.8, 0.99))
    assert algorithm_from(to_table(said)) == said
    assert said.step == AdamUpdate(0.05, (0.8, 0.99))
    assert ep.LocalSGD(schedule={"warmup": 3}).schedule == ep.ConstantRate(warmup=3)


def test_files_from_before_mean_what_they_meant():
    """A directory of a run that was begun without these keys can be gone on with."""
    now = {"algorithm": to_table(ep.LocalSGD())}
    before = {"algorithm": {k: v for k, v in now["algorithm"].items() if k not in ("optimizer", "nesterov")}}
    assert same_experiment(before, now) == []
    assert same_experiment(before, {"algorithm": to_table(ep.LocalSGD(optimizer="adam"))}) == ["algorithm.optimizer"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adamm"}, "algorithm.optimizer.kind = 'adamm' is not known; did you mean 'adam'?"),
        ({"optimizer": 3}, "algorithm.optimizer = 3 must be a table with a kind; known: adam, adamw, sgd"),
        ({"optimizer": {"kind": "adam", "beta": 3}}, "algorithm.optimizer.beta is not a known key; did you mean 'betas'?"),
        ({"optimizer": {"kind": "adam", "betas": [0.9, 1.0]}}, "the second of algorithm.optimizer.betas = 1 must be less than 1"),
        ({"optimizer": {"kind": "adam", "epsilon": 0.0}}, "algorithm.optimizer.epsilon = 0.0 must be greater than 0"),
        ({"optimizer": "adam", "momentum": 0.5}, 'algorithm.momentum = 0.5 is for algorithm.optimizer = "sgd"; leave it out, or'),
        ({"optimizer": "adamw", "nesterov": True}, 'algorithm.nesterov = true is for algorithm.optimizer = "sgd"'),
        ({"nesterov": True}, "algorithm.nesterov = true needs algorithm.momentum above 0"),
        ({"nesterov": 1, "momentum": 0.5}, "algorithm.nesterov = 1 must be true or false"),
        ({"clip": 0.0}, "algorithm.clip = 0.0 must be greater than 0"),
        ({"schedule": "cosine"}, "algorithm.schedule = 'cosine' must be a table with a kind; known: constant, cosine, step"),
        ({"schedule": {"kind": "cosine"}}, "algorithm.schedule.rounds is missing"),
        ({"schedule": {"kind": "linear"}}, "algorithm.schedule.kind = 'linear' is not known"),
        ({"schedule": {"kind": "step", "rounds": 0}}, "algorithm.schedule.rounds = 0 must be at least 1"),
        ({"schedule": {"kind": "cosine", "rounds": 5, "floor": 0.0}}, "algorithm.schedule.floor = 0.0 must be greater than 0"),
        ({"schedule": {"kind": "step", "rounds": 5, "by": 1.5}}, "algorithm.schedule.by = 1.5 must be at most 1"),
        ({"schedule": {"warmup": -1}}, "algorithm.schedule.warmup = -1 must be at least 0"),
    ],
    ids=str,
)  # fmt: skip
def test_what_has_no_meaning_is_refused_in_one_line(settings, message):
    for make in (ep.LocalSGD, ep.AsyncEL, lambda **s: algorithm_from({"kind": "push-sum", **s})):
        with pytest.raises(ep.BadInput) as refusal:
            make(**settings)
        assert message in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_a_learning_rate_of_sgd_is_said_to_be_large_for_adam():
    for made in (ep.LocalSGD, ep.PushSum, ep.AsyncEL):
        (said,) = cautions(made(optimizer="adamw"), ep.ELLocal(7))
        assert (
            said
            == "algorithm.lr = 0.05 is large for Adam, which moves every number by about lr in a step; 0.001 is usual"
        )
        assert cautions(made(optimizer="adam", lr=0.001), ep.ELLocal(7)) == cautions(made(), ep.ELLocal(7)) == []


# -- whole runs ---------------------------------------------------------------------------------------------------------

SETTINGS = {
    "nesterov": {"momentum": 0.9, "nesterov": True, "clip": 0.5, "lr": 0.05},
    "adam": {"optimizer": "adam", "lr": 0.01, "schedule": {"kind": "cosine", "rounds": 6, "warmup": 2}},
    "adamw": {"optimizer": {"kind": "adamw", "betas": [0.8, 0.99]}, "lr": 0.01, "weight_decay": 0.01, "clip": 1.0},
}
COMMON = {
    "nodes": 8, "rounds": 8, "topology": ep.ELLocal(4), "data": ep.Digits(), "partition": ep.IID(), "model": ep.Logistic(),
    "eval": ep.Eval(every=4, samples=60),
}  # fmt: skip


def small(algorithm, **changes):
    return ep.Experiment(**{**COMMON, "algorithm": algorithm, **changes})


class Stop(ep.Callback):
    def __init__(self, at):
        self.at = at

    def advanced(self, rounds_done, x):
        if rounds_done >= self.at:
            raise KeyboardInterrupt


def outcome(directory):
    names = ("records.jsonl", "models.safetensors", "summary.json", "nodes.json")
    return {name: (directory / "seed-1" / name).read_bytes() for name in names}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", ["local-sgd", "push-sum"])
def test_a_file_runs_and_goes_on_to_the_same_bytes(tmp_path, capsys, name, kind):
    """Stopped in the middle, and with a node that is away for a while."""
    crash = ep.Faults(crashes=(ep.Crash(1, at=2, returns=4),))
    experiment = small(algorithm_from({"kind": kind, **SETTINGS[name]}), faults=crash)
    file = tmp_path / "e.toml"
    file.write_text(to_toml(experiment))
    assert load(file) == experiment
    assert main(["run", str(file), "--out", str(tmp_path / "whole"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"][0]["final_accuracy"]["mean"] > 0.3
    with pytest.raises(Interrupted):
        ep.simulate(experiment, tmp_path / "parts", callbacks=Stop(5))
    ep.simulate(experiment, tmp_path / "parts", resume=True)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def test_more_rounds_do_not_change_the_past(tmp_path):
    """The schedule knows by itself over how many rounds it falls."""
    algorithm = ep.LocalSGD(**SETTINGS["adam"])
    ep.simulate(small(algorithm, rounds=10), tmp_path / "whole")
    ep.simulate(small(algorithm, rounds=6), tmp_path / "parts")
    ep.simulate(small(algorithm, rounds=10), tmp_path / "parts", resume=True)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("name", SETTINGS)
def test_both_strategies_learn_the_same(name):
    a, b = (
        ep.simulate(small(ep.LocalSGD(**SETTINGS[name], local_steps=2), runtime=ep.Runtime(strategy=strategy)))
        for strategy in ("stacked", "per-node")
    )
    torch.testing.assert_close(a.models.rows, b.models.rows, rtol=1e-3, atol=1e-4)


def test_a_message_is_as_long_as_without():
    plain = ep.simulate(small(ep.LocalSGD(), rounds=2))
    adam = ep.simulate(small(ep.LocalSGD(optimizer="adam"), rounds=2))
    assert adam.records[-1].bytes == plain.records[-1].bytes


UNEVEN = Clock(compute=PerNodeCompute(median=0.05, sigma=0.5), links=Links(uplink=5, latency=0.02))


@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_under_the_clock_give_the_same_models(name):
    algorithm = ep.LocalSGD(**SETTINGS[name])
    plain = ep.simulate(small(algorithm))
    timed = ep.simulate(small(algorithm, clock=UNEVEN))
    assert torch.equal(timed.models.rows, plain.models.rows)


FREE = {
    "async-el": (ep.AsyncEL, ep.ELLocal(3), {}), "gossip-learning": (ep.GossipLearning, ep.ELLocal(1), {"period": 0.2}),
    "ad-psgd": (ep.ADPSGD, ep.Complete(), {}), "divshare": (ep.DivShare, ep.ELLocal(3), {"fragments": 3}),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [*((kind, "adam") for kind in FREE), ("async-el", "nesterov")])
def test_methods_without_rounds_remember_too_and_go_on_to_the_same_bytes(tmp_path, kind, name):
    make, topology, more = FREE[kind]
    clock = msgspec.structs.replace(UNEVEN, churn=ExponentialChurn(mean_on=1.0, mean_off=0.2))
    experiment = small(
        make(**SETTINGS[name], **more), topology=topology, clock=clock, checkpoint=ep.Checkpoint(rounds=1)
    )
    whole = ep.simulate(experiment, tmp_path / "whole")
    with pytest.raises(Interrupted):
        ep.simulate(experiment, tmp_path / "parts", callbacks=Stop(4))
    ep.simulate(experiment, tmp_path / "parts", resume=True)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    plain = ep.simulate(small(make(lr=experiment.algorithm.lr, **more), topology=topology, clock=clock))
    assert not torch.equal(plain.models.rows, whole.models.rows)


@pytest.mark.parametrize("name", ["adam", "nesterov"])
def test_trainings_of_a_node_that_wait_together_remember_in_their_order(name):
    """Of the variant "um" a node trains its own model and one that came, which do not need each other; the later one has what the earlier left."""
    algorithm = ep.GossipLearning(**SETTINGS[name], period=0.2, variant="um")
    often, rarely = (
        ep.simulate(small(algorithm, topology=ep.ELLocal(1), clock=UNEVEN, eval=ep.Eval(every=every, samples=20)))
        for every in (1, 8)
    )
    torch.testing.assert_close(often.models.rows, rarely.models.rows, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in ALGORITHMS if kind not in ("python", "own-loop")])
def test_every_kind_takes_clipping_and_schedules(kind):
    made = ALGORITHMS[kind](clip=1.0, schedule={"kind": "step", "rounds": 5})
    assert made.step.clip == 1.0
    assert made.factor(5) == 0.1
