"""Push-sum: nothing is lost or invented, whatever the graph; the numbers of the specification (part 2, section 13)."""

import itertools
import json
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import epidemic as ep
from epidemic.algorithms import cautions
from epidemic.callbacks import Callback
from epidemic.cli import main
from epidemic.clock import CloseBarrier
from epidemic.core.errors import Interrupted
from epidemic.core.workers import Workers
from epidemic.deploy.agreement import check_deployable
from epidemic.deploy.relay import message_bytes
from epidemic.experiment import load, to_toml
from epidemic.faults import Crash, Faults, RandomCrashes
from epidemic.mixing import weights
from epidemic.record import HEADER_BYTES
from epidemic.runtime.interrupt import gentle_stop
from epidemic.runtime.population import Population
from epidemic.runtime.recorder import Host
from epidemic.runtime.setup import make_learner, prepare
from epidemic.simulator.rounds import RoundLoop


class Targets:
    """Every node sends to one other, as given for each round."""

    def __init__(self, *rounds):
        self.rounds = rounds

    def graph(self, n, round, streams):
        return ep.Graph.from_edges(n, np.arange(n), np.array(self.rounds[round]))


def nothing_to_learn(outputs, targets):
    return 0 * outputs.sum()


def point(n, **changes):
    """Single points in double precision; without changes there are no gradients."""
    fields = {
        "nodes": n, "rounds": 60, "topology": ep.ELLocal(4), "algorithm": ep.PushSum(lr=0.1), "loss": nothing_to_learn,
        "data": ep.Synthetic(problem="quadratic", features=3, groups=n, samples=20 * n), "partition": ep.Natural(), "model": ep.Point(),
    }  # fmt: skip
    return ep.Experiment(**{**fields, **changes})


class Plans(Callback):
    """Keeps the rounds as they were planned."""

    def __init__(self):
        self.plans, self.indices = [], []

    def planned(self, plan, index):
        self.plans.append(plan)
        self.indices.append(index)


class Engine:
    """The simulator, round by round, with the state of all nodes in sight."""

    def __init__(self, experiment, stop, start=None):
        setup, workers = prepare(experiment, 1), Workers(1)
        self.learner, _ = make_learner(setup, workers)
        self.population = Population(setup, self.learner)
        self.seen = Plans()
        self._simulation = RoundLoop(Host(self.population, self.learner, workers, stop), None, self.seen, "")
        if start is not None:
            self.population.state["x"] = torch.as_tensor(start, dtype=torch.float64).clone()

    @property
    def state(self):
        return {name: rows.clone() for name, rows in self.population.state.items()}

    def round(self):
        self._simulation._round()
        return self.state


@contextmanager
def engine(experiment, start=None):
    with gentle_stop() as stop:
        yield Engine(experiment, stop, start)


def spread(n, seed=1):
    return np.random.default_rng(seed).standard_normal((n, 3)) * 5


def small(**changes):
    fields = {
        "nodes": 16, "rounds": 8, "topology": ep.ELLocal(4), "algorithm": ep.PushSum(lr=0.1, local_steps=2, batch_size=4),
        "data": ep.Digits(), "partition": ep.IID(), "model": ep.Logistic(), "eval": ep.Eval(every=4, samples=100),
        "runtime": ep.Runtime(strategy="stacked"),
    }  # fmt: skip
    return ep.Experiment(**{**fields, **changes})


# -- what is conserved ------------------------------------------------------------------------------------------------


def test_the_worked_example():
    start = np.array([[0.0] * 3, [3.0] * 3, [6.0] * 3])
    with engine(point(3, topology=Targets([1, 2, 1], [2, 0, 0])), start) as run:
        first, second = run.round(), run.round()
    assert first["x"][:, 0].tolist() == [0, 4.5, 4.5]
    assert first["w"].tolist() == [0.5, 1.5, 1]
    assert second["x"][:, 0].tolist() == [4.5, 2.25, 2.25]
    assert second["w"].tolist() == [1.5, 0.75, 0.75]
    assert (second["x"] / second["w"][:, None]).tolist() == [[3.0] * 3] * 3
    assert (first["x"][:, 0] / first["w"]).tolist() == [0, 3, 4.5]


FAULTS = [
    Faults(),
    Faults(loss=0.3),
    Faults(cap=3, max_retries=2),
    Faults(crashes=(Crash(1, at=2, returns=9), Crash(4, at=5))),
    Faults(loss=0.2, cap=4, random_crashes=RandomCrashes(0.05, rounds_down=3), on_return="keep", blocked=((0, 1),)),
]


@pytest.mark.parametrize("faults", FAULTS, ids=["none", "loss", "cap", "crashes", "all"])
@pytest.mark.parametrize("topology", [ep.ELLocal(4), ep.Complete(), ep.ErdosRenyi()], ids=["el", "complete", "er"])
def test_weights_add_up_to_n_and_models_to_what_they_were_whatever_goes_wrong(topology, faults):
    """The sender keeps the mass of what does not arrive. Only a node that returns and adopts changes the sum of the models."""
    n, start = 12, spread(12)
    with engine(point(n, topology=topology, faults=faults), start) as run:
        total = torch.from_numpy(start).sum(0)
        for _ in range(25):
            state = run.round()
            assert abs(float(state["w"].sum()) - n) < 1e-12
            if len(run.seen.plans[-1].returning):
                total = state["x"].sum(0)
            torch.testing.assert_close(state["x"].sum(0), total, rtol=0, atol=1e-12 * n)
            assert (state["w"] > 0).all()
    adopted = sum(len(plan.returning) for plan in run.seen.plans)
    assert adopted == (1 if faults.crashes else 0)


def test_with_gradients_the_sum_changes_by_them_alone():
    experiment = point(12, loss="squared-error", algorithm=ep.PushSum(lr=0.2, local_steps=3, batch_size=2))
    with engine(experiment, spread(12)) as run:
        for t in range(10):
            before = run.state
            z = before["x"] / before["w"][:, None]
            trained = z.clone()
            index = torch.from_numpy(run.population.batches(t))
            run.learner.sgd(trained, index, experiment.algorithm.step, [0] * 12, None)
            after = run.round()
            moved = (trained - z).sum(0)
            assert moved.abs().max() > 1e-3
            torch.testing.assert_close(after["x"].sum(0), before["x"].sum(0) + moved, rtol=0, atol=1e-11)
            assert abs(float(after["w"].sum()) - 12) < 1e-12


@pytest.mark.parametrize("faults", [Faults(), Faults(loss=0.3, cap=5)])
def test_models_stay_in_the_hull_and_come_to_the_true_mean(faults):
    start = spread(20)
    with engine(point(20, topology=ep.ELLocal(4), faults=faults), start) as run:
        for _ in range(60):
            run.round()
            z = run.population.models.numpy()
            assert (z >= start.min(0) - 1e-12).all()
            assert (z <= start.max(0) + 1e-12).all()
    np.testing.assert_allclose(z, np.tile(start.mean(0), (20, 1)), rtol=0, atol=1e-9)


def test_plain_averaging_over_the_same_graphs_loses_the_mean():
    start = spread(20)
    with engine(point(20, topology=ep.ELLocal(4), algorithm=ep.LocalSGD(lr=0.1)), start) as run:
        for _ in range(60):
            run.round()
    assert np.abs(run.population.models.numpy() - start.mean(0)).max() > 1e-2


def test_rounding_does_not_eat_the_weights_in_single_precision():
    with gentle_stop() as stop:
        run = Engine(small(), stop)
        for _ in range(200):
            state = run.round()
    assert state["w"].dtype == torch.float32
    assert abs(float(state["w"].double().sum()) - 16) < 1e-4


# -- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", [ep.ELOracle(4), ep.ELOracle(7), ep.Ring(), ep.Exponential(), ep.Regular(5)])
def test_on_regular_graphs_every_weight_stays_one(topology):
    with engine(point(16, topology=topology), spread(16)) as run:
        for _ in range(10):
            assert float((run.round()["w"] - 1).abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("n", "topology"),
    [(16, ep.ELOracle(7)), (10, ep.ELOracle(3)), (8, ep.Exponential()), (16, ep.Regular(3)), (8, ep.Complete())],
)
def test_on_regular_graphs_push_sum_is_local_sgd_to_the_last_bit_where_shares_are_powers_of_two(n, topology):
    settings = {"lr": 0.1, "local_steps": 2, "batch_size": 4, "momentum": 0.5, "weight_decay": 0.01}
    a = ep.simulate(small(nodes=n, topology=topology, algorithm=ep.PushSum(**settings)))
    b = ep.simulate(small(nodes=n, topology=topology, algorithm=ep.LocalSGD(**settings)))
    assert torch.equal(a.models.rows, b.models.rows)
    assert [r.accuracy for r in a.records] == [r.accuracy for r in b.records]


@pytest.mark.parametrize("topology", [ep.Ring(), ep.ELOracle(4)])
def test_on_other_regular_graphs_it_is_local_sgd_up_to_rounding(topology):
    a = ep.simulate(small(topology=topology))
    b = ep.simulate(small(topology=topology, algorithm=ep.LocalSGD(lr=0.1, local_steps=2, batch_size=4)))
    torch.testing.assert_close(a.models.rows, b.models.rows, rtol=1e-4, atol=1e-5)


def test_after_the_first_round_of_el_local_weights_count_who_was_heard():
    with engine(point(16, topology=ep.ELLocal(4)), spread(16)) as run:
        w = run.round()["w"]
        heard = run.seen.plans[0].delivery.graph.in_degree
    np.testing.assert_allclose(w.numpy(), (1 + heard) / 5, rtol=0, atol=1e-15)


# -- numbers ----------------------------------------------------------------------------------------------------------


def split_evenly(graph, x):
    """P x: everybody splits its mass among its targets and itself."""
    return weights("uniform", graph).ones @ (x / (1 + graph.out_degree)[:, None])


def factor(n, s):
    """E||Px||^2 / ||x||^2 for x that add up to nothing, P from the targets of EL-Local."""
    q = Fraction(s, n - 1)
    return Fraction(1, s + 1) - (2 * q + (n - 2) * q * q) / (s + 1) ** 2


@pytest.mark.parametrize(("n", "known"), [(3, Fraction(3, 16)), (4, Fraction(5, 18))])
def test_the_exact_factor_by_enumerating_all_targets(n, known):
    x = [Fraction(k) for k in (5, -2, -3, 0)[:n]]
    squares = Fraction(0)
    choices = [[j for j in range(n) if j != i] for i in range(n)]
    outcomes = list(itertools.product(*choices))
    for targets in outcomes:
        graph = ep.Graph.from_edges(n, np.arange(n), np.array(targets))
        adjacency = weights("uniform", graph).ones.dense().astype(int)
        squares += sum(sum(int(a) * v / 2 for a, v in zip(row, x, strict=True)) ** 2 for row in adjacency)
    assert squares / len(outcomes) / sum(v * v for v in x) == known == factor(n, 1)


@pytest.mark.parametrize(
    ("n", "s", "known"), [(96, 1, 0.4921330), (96, 4, 0.1899657), (96, 14, 0.0562837), (1000, 10, 0.0899172)]
)
def test_the_factor_at_other_sizes(n, s, known):
    assert float(factor(n, s)) == pytest.approx(known, abs=5e-8)


def test_the_factor_at_96_nodes_that_send_to_7():
    assert float(factor(96, 7)) == pytest.approx(0.1147230, abs=5e-8)
    x = np.random.default_rng(1).standard_normal((96, 200))
    x -= x.mean(0)
    streams = ep.Streams(1)
    found = [
        (split_evenly(ep.ELLocal(7).graph(96, t, streams), x) ** 2).sum() / (x**2).sum() for t in range(600)
    ]  # fmt: skip
    error = np.std(found) / len(found) ** 0.5
    assert error < 2e-4
    assert abs(np.mean(found) - 0.1147230) < 5 * error


def test_the_stationary_variance_of_the_weights():
    streams, w, found = ep.Streams(2), np.ones((96, 1)), []
    for t in range(3000):
        w = split_evenly(ep.ELLocal(7).graph(96, t, streams), w)
        if t >= 30 and t % 3 == 0:  # three rounds later 0.1 % of it is left
            found.append(((w - 1) ** 2).mean())
    error = np.std(found) / len(found) ** 0.5
    assert error < 1e-3
    assert abs(np.mean(found) - 0.114445) < 5 * error


# -- settings ---------------------------------------------------------------------------------------------------------


def test_a_message_has_four_bytes_more_than_the_model():
    run = ep.simulate(small())
    assert run.records[-1].bytes.model.mean == 8 * 4 * (4 * 650 + 4)
    assert run.records[-1].bytes.header.mean == 8 * 4 * HEADER_BYTES
    assert message_bytes(small()) == HEADER_BYTES + 4 * 650 + 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topology": ep.ELLocal(1)}, 'topology.s = 1 is too few for algorithm.kind = "push-sum" over el-local'),
        ({"topology": ep.ELLocal(2)}, "use s = 4 or more, or local-sgd"),
        ({"topology": ep.Every(ep.ELLocal(2), period=1)}, "topology.s = 2 is too few"),
        ({"topology": ep.Every(ep.ELLocal(7), period=2)}, "with graphs held for 2 rounds"),
        ({"topology": ep.Every(ep.ELLocal(2), period=1000)}, "with graphs held for 1000 rounds"),
        ({"mixing": "uniform"}, 'mixing = "uniform" has no meaning for algorithm.kind = "push-sum"'),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(changes, message):
    with pytest.raises(ep.BadInput) as refusal:
        small(**changes)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_three_targets_are_few_and_four_are_enough():
    few = cautions(ep.PushSum(), ep.ELLocal(3))
    assert few == [
        "push-sum over el-local with s = 3: weights of single nodes get small now and then; more is safer"
    ]  # fmt: skip
    assert cautions(ep.PushSum(), ep.ELLocal(4)) == cautions(ep.PushSum(), ep.ELOracle(2)) == []
    assert cautions(ep.LocalSGD(), ep.ELLocal(3)) == []


def test_nodes_on_a_network_need_every_message():
    with pytest.raises(
        ep.BadInput, match=r'"push-sum" needs every message to arrive; use network\.close\.kind = "barrier"'
    ):
        check_deployable(small())
    check_deployable(small(network=ep.Network(close=CloseBarrier())))


def test_a_weight_that_is_gone_ends_the_run():
    """Nobody ever sends to node 0, which sends half of what it has each round."""
    with pytest.raises(
        ep.RunFailed, match=r"push-sum: the weight of a node fell to .*, below 1e-12; use a larger topology\.s"
    ):
        ep.simulate(small(nodes=3, topology=Targets(*[[1, 2, 1]] * 60), rounds=60))


def test_a_node_that_returns_takes_the_model_and_keeps_its_weight():
    faults = Faults(crashes=(Crash(2, at=3, returns=6),))
    with engine(point(8, faults=faults, topology=ep.ELLocal(4)), spread(8)) as run:
        for t in range(8):
            before = run.state
            after = run.round()
            assert abs(float(after["w"].sum()) - 8) < 1e-12
            if t in (3, 4, 5):
                assert torch.equal(after["x"][2], before["x"][2])
                assert torch.equal(after["w"][2], before["w"][2])
        (plan,) = [plan for plan in run.seen.plans if len(plan.returning)]
        assert (plan.round, plan.returning.tolist()) == (6, [2])
        weight, donor = run.population.state["w"].clone(), 5
        z = run.population.models[donor].clone()
        run.population.adopt(np.array([2]), run.population.give(np.array([donor])))
        torch.testing.assert_close(run.population.models[2], z, rtol=0, atol=1e-14)
        assert torch.equal(run.population.state["w"], weight)


# -- files and commands -----------------------------------------------------------------------------------------------

FILE = """
nodes = 8
rounds = 6
data = {kind = "digits"}
partition = {kind = "iid"}
model = {kind = "logistic"}
eval = {every = 3, samples = 60}
runtime = {strategy = "stacked"}
topology = {kind = "el-local", s = 4}
"""
PUSH_SUM = '[algorithm]\nkind = "push-sum"\nlr = 0.1\nlocal_steps = 2\n'


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(FILE + PUSH_SUM)
    return path


def algorithms_in(directory):
    """The algorithm of each run, as its run.json has it."""
    found = {path.parents[1].name: json.loads(path.read_text()) for path in Path(directory).rglob("run.json")}
    return {name: info["experiment"]["algorithm"] for name, info in found.items()}


def test_a_file_runs(file, tmp_path, capsys):
    assert load(file).algorithm == ep.PushSum(lr=0.1, local_steps=2)
    (tmp_path / "again.toml").write_text(to_toml(load(file)))
    assert load(tmp_path / "again.toml") == load(file)
    assert main(["run", str(file), "--out", str(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["seeds"][0]["bytes"]["model"]["mean"] == 6 * 4 * 2604
    assert "warning" not in err


def test_a_run_with_three_targets_is_warned_of(file, tmp_path, capsys):
    command = ["run", str(file), "--set", "topology.s=3"]
    assert main([*command, "--out", str(tmp_path / "a")]) == 0
    assert "warning: push-sum over el-local with s = 3" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path / "b"), "--quiet"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert main(["run", str(file), "--set", "topology.s=2", "--out", str(tmp_path / "c")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_kinds_are_compared(tmp_path, capsys):
    file = tmp_path / "m.toml"
    file.write_text(
        FILE
        + "[algorithm]\nlr = 0.2\nlocal_steps = 2\n"
        + '[[methods]]\nname = "plain"\n[[methods]]\nname = "said"\nalgorithm.kind = "local-sgd"\n'
        + '[[methods]]\nname = "push"\nalgorithm = {kind = "push-sum", lr = 0.2, local_steps = 2}\n'
    )
    assert main(["compare", str(file), "--out", str(tmp_path / "out"), "--quiet", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["push"]["bytes_in_all"] - rows["plain"]["bytes_in_all"] == 6 * 4 * 4
    assert rows["said"] == {**rows["plain"], "name": "said"}  # a kind that is only said changes nothing
    found = algorithms_in(tmp_path / "out")
    assert {name: (a["kind"], a["lr"]) for name, a in found.items()} == {
        "plain": ("local-sgd", 0.2), "said": ("local-sgd", 0.2), "push": ("push-sum", 0.2),
    }  # fmt: skip


def test_kinds_are_swept(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text(FILE + "algorithm = {lr = 0.2}\n")
    grid = ["--grid", "algorithm.kind=local-sgd,push-sum", "--grid", "topology.s=4,5"]
    assert main(["sweep", str(file), *grid, "--out", str(tmp_path / "out"), "--quiet"]) == 0
    found = algorithms_in(tmp_path / "out")
    assert {name: a["kind"] for name, a in found.items()} == {
        f"kind={kind},s={s}": kind for kind in ("local-sgd", "push-sum") for s in (4, 5)
    }
    assert found["kind=local-sgd,s=4"]["lr"] == 0.2  # what the file means anyway takes nothing away
    assert found["kind=push-sum,s=4"]["lr"] == 0.05  # a new kind takes nothing over


class InterruptedAfter(Callback):
    def __init__(self, rounds):
        self.rounds = rounds

    def advanced(self, rounds_done, x):
        if rounds_done == self.rounds:
            raise KeyboardInterrupt


@pytest.mark.parametrize("rounds", [1, 5])
def test_going_on_after_an_interrupt_gives_the_same_bytes(tmp_path, rounds):
    faults = Faults(loss=0.1, cap=5, crashes=(Crash(1, at=2, returns=6),))
    experiment = small(faults=faults, algorithm=ep.PushSum(lr=0.1, momentum=0.5))
    ep.simulate(experiment, tmp_path / "whole")
    with pytest.raises(Interrupted):
        ep.simulate(experiment, tmp_path / "parts", callbacks=InterruptedAfter(rounds))
    ep.simulate(experiment, tmp_path / "parts", resume=True)
    for name in ("records.jsonl", "models.safetensors", "summary.json", "nodes.json"):
        whole, parts = (tmp_path / which / "seed-1" / name for which in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes()
