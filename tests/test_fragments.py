"""Fragments: each part of the models over its own graph of the same topology."""

import msgspec
import numpy as np
import pytest
import torch

import epidemic as ep
from epidemic import theory
from epidemic.callbacks import Callback
from epidemic.cli import main
from epidemic.clock import Clock, ConstantCompute
from epidemic.compression import Int8
from epidemic.core.errors import Interrupted
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers
from epidemic.deploy.agreement import check_deployable
from epidemic.record import HEADER_BYTES
from epidemic.runtime.fragments import FragmentsInbox
from epidemic.runtime.parts import parts_of
from epidemic.runtime.plan import plan_round

D = 650


def small(**changes):
    fields = {
        "nodes": 9, "rounds": 6, "topology": ep.Fragments(ep.ELLocal(3), k=4), "data": ep.Digits(), "partition": ep.IID(),
        "model": ep.Logistic(), "algorithm": ep.LocalSGD(lr=0.1, local_steps=2, batch_size=4),
        "eval": ep.Eval(every=3, samples=100), "runtime": ep.Runtime(strategy="per-node"),
    }  # fmt: skip
    return ep.Experiment(**{**fields, **changes})


class Watch(Callback):
    """Keeps plans and models."""

    def __init__(self, stop=None):
        self.plans, self.models, self._stop = [], [], stop

    def planned(self, plan, index):
        self.plans.append(plan)

    def advanced(self, rounds_done, x):
        self.models.append(x.clone())
        if rounds_done == self._stop:
            raise KeyboardInterrupt


FAULTY = ep.Faults(
    loss=0.2, cap=4, crashes=(ep.Crash(1, at=1, returns=4),), random_crashes=ep.RandomCrashes(0.05, rounds_down=2)
)


@pytest.mark.parametrize(
    ("inner", "faults"),
    [
        (ep.ELLocal(3), FAULTY),
        (ep.Ring(), ep.Faults()),
        (ep.Complete(), FAULTY),
        (ep.Every(ep.ELOracle(4), period=2), ep.Faults()),
    ],
)
def test_one_fragment_is_the_inner_topology_to_the_last_byte(inner, faults):
    one, alone = (
        ep.simulate(small(topology=t, faults=faults, mixing="uniform")) for t in (ep.Fragments(inner, k=1), inner)
    )
    assert torch.equal(one.models.rows, alone.models.rows)
    assert one.records == alone.records


def test_parts_are_all_coordinates_once_and_of_equal_size():
    parts = parts_of(small(), D, Streams(1))
    assert sorted(np.concatenate(parts).tolist()) == list(range(D))
    assert {len(part) for part in parts} == {162, 163}
    assert not np.array_equal(parts[0], np.arange(len(parts[0])))
    with pytest.raises(ep.BadInput, match="a model of 3 numbers cannot be cut into 4 parts; use at most 3"):
        parts_of(small(), 3, Streams(1))


def test_every_part_has_graphs_of_its_own_and_the_first_those_of_the_inner_topology():
    experiment, streams = small(), Streams(1)
    plan = plan_round(experiment, streams, 2)
    graphs = [one.delivery.graph for one in plan.passages]
    assert graphs[0].digest() == ep.ELLocal(3).graph(9, 2, streams).digest()
    assert len({graph.digest() for graph in graphs}) == 4
    assert all((graph.out_degree == 3).all() for graph in graphs)


def test_messages_of_a_part_get_lost_by_themselves_and_nodes_crash_as_a_whole():
    plan = plan_round(small(nodes=40, faults=ep.Faults(loss=0.3, random_crashes=ep.RandomCrashes(0.2))), Streams(1), 3)
    first, *rest = (one.delivery for one in plan.passages)
    assert 0 < first.alive.sum() < 40
    for other in rest:
        assert np.array_equal(other.alive, first.alive)
        assert other.lost.sum() > 0
        assert not np.array_equal(other.lost, first.lost)


@pytest.mark.parametrize("faults", [FAULTY])
def test_each_part_is_mixed_by_its_own_weights(faults):
    """What the engine computes is W_f X on the coordinates of fragment f, by the plan, in double precision."""
    watch = Watch()
    experiment = small(faults=faults, model=ep.Logistic())
    ep.simulate(experiment, callbacks=watch)
    parts, streams = parts_of(experiment, D, Streams(1)), Streams(1)
    for plan in watch.plans:
        x = torch.from_numpy(streams("x", plan.round).normals(9, D))
        who = np.flatnonzero(plan.delivery.alive)
        by = [one.weights.among(who) for one in plan.passages]
        cut = [torch.from_numpy(part) for part in parts]
        mixed = (
            FragmentsInbox({"x": x[who]}, by, cut, Workers(1), lambda _, like: torch.empty_like(like)).mean("x").numpy()
        )
        for one, part in zip(plan.passages, parts, strict=True):
            np.testing.assert_allclose(mixed[:, part], (one.weights.dense() @ x.numpy())[np.ix_(who, part)], atol=1e-12)


def test_contraction_of_each_coordinate_is_that_of_the_inner_topology():
    """(96, 7), 8 fragments, at 5 sigma: beta around the old mean, and the variation from round to round is smaller."""
    n, k, rounds = 96, 8, 40
    experiment = ep.Experiment(nodes=n, topology=ep.Fragments(ep.ELLocal(7), k=k))
    found, whole = [], []
    for t in range(rounds):
        streams = Streams(7)
        x = streams("x", t).normals(n, 64)
        x -= x.mean(0)
        by = [one.weights for one in plan_round(experiment, streams, t).passages]
        ratios = [np.square(w @ x).sum() / np.square(x).sum() for w in by]
        found.append(np.mean(ratios))
        whole.append(ratios[0])
    beta = theory.beta(n, 7)
    assert abs(np.mean(found) - beta) < 5 * np.std(found, ddof=1) / rounds**0.5
    assert np.std(found, ddof=1) < np.std(whole, ddof=1)


def test_the_same_models_in_more_messages():
    plain, cut = ep.simulate(small(topology=ep.ELLocal(3))), ep.simulate(small())
    assert cut.records[-1].bytes.model == plain.records[-1].bytes.model
    assert cut.records[-1].bytes.header.mean == 4 * plain.records[-1].bytes.header.mean == 6 * 3 * 4 * HEADER_BYTES
    assert not torch.equal(plain.models.rows, cut.models.rows)


def test_threads_make_no_difference():
    runs = [
        ep.simulate(
            small(
                nodes=30, rounds=2, model=ep.MLP(hidden=(64,)), runtime=ep.Runtime(strategy="stacked", threads=threads)
            )
        )
        for threads in (1, 3)
    ]
    assert torch.equal(runs[0].models.rows, runs[1].models.rows)


def test_a_file_runs_and_goes_on_to_the_same_bytes(tmp_path):
    (tmp_path / "e.toml").write_text(
        """
        nodes = 9
        rounds = 6
        topology = {kind = "fragments", inner = {kind = "el-local", s = 3}, k = 4}
        data = {kind = "digits"}
        model = {kind = "logistic"}
        eval = {every = 3, samples = 100}
        faults = {loss = 0.1, crashes = [{node = 1, at = 1, returns = 4}]}
        """
    )
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "whole"), "--quiet"]) == 0
    experiment = ep.load(tmp_path / "whole" / "experiment.toml")
    assert experiment.topology == ep.Fragments(ep.ELLocal(3), k=4)
    with pytest.raises(Interrupted):
        ep.simulate(experiment, tmp_path / "parts", callbacks=Watch(stop=3))
    ep.simulate(experiment, tmp_path / "parts", resume=True)
    for name in ("records.jsonl", "models.safetensors", "summary.json", "nodes.json"):
        whole, parts = (tmp_path / which / "seed-1" / name for which in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes()


class Messages(ep.Defaults):
    """Asks for the messages themselves."""

    local_steps, batch_size = 1, 4

    def init(self, x):
        return {"x": x}

    def local_update(self, state, learner, context):
        return state, {"x": state["x"]}, torch.zeros(len(state["x"]))

    def aggregate(self, state, inbox):
        return {"x": torch.stack([heard.own for heard in inbox.each("x")])}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clock": Clock(compute=ConstantCompute(0.1))}, 'under one use algorithm.kind = "divshare"'),
        ({"compression": Int8()}, "leave one of them out"),
        ({"algorithm": ep.PushSum(), "topology": ep.Fragments(ep.ELLocal(5), k=2)}, "use its inner topology alone"),
        ({"topology": ep.Every(ep.Fragments(ep.ELLocal(3), k=2), period=2)}, "make it the outermost"),
        ({"topology": ep.Fragments(ep.ELLocal(9), k=2)}, "topology.s = 9 must be at most nodes - 1 = 8"),
    ],
)
def test_what_does_not_fit_is_one_line(changes, message):
    with pytest.raises(ep.BadInput, match=message):
        small(**changes)


def test_what_cannot_be_deployed_or_asked_for_is_one_line():
    with pytest.raises(ep.BadInput, match=r'deployed nodes send parts of models with algorithm\.kind = "divshare"'):
        check_deployable(small())
    check_deployable(small(topology=ep.Fragments(ep.ELLocal(3), k=1)))
    with pytest.raises(ep.BadInput, match=r"asks for messages as a whole \(inbox\.each\)"):
        small(algorithm=Messages())
    for table, said in (({"k": 0}, "topology.k = 0 must be at least 1"), ({"inner": 3}, "must be a topology")):
        with pytest.raises(ep.BadInput, match=said):
            ep.Fragments(**{"inner": ep.Ring(), **table})


def test_pushed_to_files_it_stays_what_it_is():
    assert small().portable
    assert small().table()["topology"] == {"kind": "fragments", "inner": {"kind": "el-local", "s": 3}, "k": 4}
    assert msgspec.structs.replace(small(), rounds=9).topology.inner == ep.ELLocal(3)


def test_more_parts_than_numbers_are_refused_before_a_round_of_each_is_planned():
    with pytest.raises(
        ep.BadInput, match=r"a model of 650 numbers cannot be cut into 1000000000 parts; use at most 650"
    ):
        ep.simulate(small(topology=ep.Fragments(ep.ELLocal(3), k=10**9)))
