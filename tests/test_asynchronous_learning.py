"""What the main thread computes for nodes without rounds: trainings as in the simulator, and nothing insane from others stays."""

import time
from contextlib import nullcontext
from types import SimpleNamespace

import msgspec
import pytest
import torch

import epidemic as ep
from epidemic.algorithms import RoundContext
from epidemic.algorithms.async_el import AsyncEL
from epidemic.clock import Clock
from epidemic.core.errors import Diverged
from epidemic.core.workers import Workers
from epidemic.deploy.hosted import AsynchronousNode
from epidemic.deploy.hosted_models import HostedModels
from epidemic.deploy.learning import Calls, Computation
from epidemic.deploy.wire import MessageFormat
from epidemic.learner import AdamUpdate
from epidemic.protocol import events as e
from epidemic.protocol.asynchronous import Memory
from epidemic.protocol.rules import Count
from epidemic.runtime.lazy_models import GivenModel
from epidemic.runtime.population import Population
from epidemic.runtime.recorder import ExtraState, Host, RunRecorder
from epidemic.runtime.setup import make_learner, prepare

WHAT = ep.Experiment(
    nodes=4,
    topology=ep.ELLocal(2),
    algorithm=AsyncEL(lr=0.1, local_steps=2, momentum=0.5),
    data=ep.Digits(),
    model=ep.Logistic(),
    eval=ep.Eval(samples=100),
    clock=Clock(stop=5),
)


class Here:
    """Two nodes of four, without a network."""

    def __init__(self, what=WHAT):
        self.algorithm = what.algorithm
        self.setup = prepare(what, 1, node_ids=[1, 3])
        workers = Workers(1)
        learner, _ = make_learner(self.setup, workers)
        stop = SimpleNamespace(held=nullcontext, broke=False)
        self.host = Host(Population(self.setup, learner), learner, workers, stop)
        (column,) = self.host.population.columns
        format = MessageFormat.without_rounds(bytes(16), column, what.algorithm.kinds, ())
        self.nodes = {}
        for position, node_id in enumerate((1, 3)):
            identity = SimpleNamespace(node_id=node_id)
            node = AsynchronousNode(identity, position, RunRecorder(self.host, None, "", node_id=position), format)
            membership = SimpleNamespace(alive=lambda now: frozenset({0, 2}))
            body = SimpleNamespace(model=GivenModel(self.setup.initial))
            node.member = SimpleNamespace(
                membership=membership, now=0, count=Count(), trained=0, body=body, tally={}, unit="second", round=0, memory=Memory
            )  # fmt: skip
            self.nodes[node_id] = node
        self.events, self.said = [], []
        calls = Calls(
            self.events.extend, lambda _: None, dict, lambda _: None, lambda node, text: self.said.append(text)
        )
        self.learning = Computation(self.host, self.nodes, HostedModels(), calls)

    def train(self, *wanted):
        self.events.clear()
        self.learning.compute(
            [(self.nodes[node_id], e.Learn(count, GivenModel(row))) for node_id, count, row in wanted]
        )
        return {node_id: event.row.value for node_id, event in self.events if isinstance(event, e.Learnt)}

    def expected(self, node_id, count, row, velocity=None):
        """The local steps as the simulator takes them."""
        position = (1, 3).index(node_id)
        index = torch.from_numpy(self.setup.batches.of(self.setup.streams, position, count))[None]
        rows, speed = row[None].clone(), torch.zeros_like(row)[None] if velocity is None else velocity
        self.algorithm.train(rows, {"velocity": speed}, self.host.learner, RoundContext(0, index, [0], torch.zeros(1)))
        return rows[0], speed


def test_trainings_of_several_nodes_are_those_of_each_alone_by_its_own_count():
    here = Here()
    start = here.setup.initial
    found = here.train((3, 5, start), (1, 0, start))
    for node_id, count in ((1, 0), (3, 5)):
        row, _ = here.expected(node_id, count, start)
        torch.testing.assert_close(found[node_id], row, rtol=0, atol=1e-6)
    assert not torch.equal(found[1], found[3])
    again = here.train((1, 1, found[1]))  # momentum goes on where it was
    _, speed = here.expected(1, 0, start)
    row, _ = here.expected(1, 1, found[1], speed)
    torch.testing.assert_close(again[1], row, rtol=0, atol=1e-6)
    assert torch.equal(start, here.setup.initial)  # what a handle stands for never changes


def test_adam_and_its_schedule_go_by_each_nodes_own_trainings():
    schedule = {"kind": "step", "rounds": 2, "by": 0.5}
    here = Here(
        msgspec.structs.replace(WHAT, algorithm=AsyncEL(lr=0.01, local_steps=2, optimizer="adam", schedule=schedule))
    )
    start, memory = here.setup.initial, {1: None, 3: None}
    rows = {1: start, 3: start}
    for counts in ({1: 0, 3: 1}, {3: 2}, {1: 1, 3: 3}):
        found = here.train(*((node_id, count, rows[node_id]) for node_id, count in counts.items()))
        for node_id, count in counts.items():
            position = (1, 3).index(node_id)
            index = torch.from_numpy(here.setup.batches.of(here.setup.streams, position, count))[None]
            row = rows[node_id][None].clone()
            step = AdamUpdate(0.01 * 0.5 ** (count // 2))
            memory[node_id] = step.memory(row) if memory[node_id] is None else memory[node_id]
            here.host.learner.sgd(row, index, step, [0], memory[node_id])
            torch.testing.assert_close(found[node_id], row[0], rtol=0, atol=1e-6)
            rows[node_id] = found[node_id]
    assert here.host.population.state["steps"].tolist() == [4, 6]


def test_a_model_that_others_made_insane_is_replaced_by_the_own_one():
    here = Here()
    start = here.setup.initial
    own = here.train((1, 0, start))[1]
    speed = here.host.population.state["velocity"][0:1].clone()
    row, _ = here.expected(1, 1, own, speed)
    found = here.train((1, 1, torch.full_like(start, 1e7)))[1]  # beyond network.largest
    torch.testing.assert_close(found, row, rtol=0, atol=1e-6)
    mended = [event.row.value for _, event in here.events if isinstance(event, e.Mended)]
    assert torch.equal(mended[0], own)
    assert here.nodes[1].mended == 1
    assert here.said == [
        "second 0: received numbers gave an invalid model (network.largest = 1e+06): continuing with its own (further ones are only counted)"
    ]


def test_where_training_explodes_the_own_model_is_trained_instead():
    here = Here(msgspec.structs.replace(WHAT, algorithm=AsyncEL(lr=100.0, local_steps=2, momentum=0.5)))
    start = here.setup.initial
    own = here.train((1, 0, start))[1]
    speed = here.host.population.state["velocity"][0:1].clone()
    row, after = here.expected(1, 1, own, speed)
    found = here.train((1, 1, torch.full_like(start, 999_999.0)))[1]  # passes as sane, and a step from there does not
    assert here.nodes[1].mended == 1
    torch.testing.assert_close(found, row, rtol=0, atol=1e-4)
    torch.testing.assert_close(here.host.population.state["velocity"][0:1], after, rtol=0, atol=1e-4)


def test_a_node_that_explodes_by_itself_fails():
    here = Here()
    with pytest.raises(Diverged, match="no longer a finite number"):
        here.train((1, 0, torch.full_like(here.setup.initial, float("nan"))))


def test_a_look_evaluates_the_model_of_its_moment_and_writes_down_the_time():
    here = Here()
    node = here.nodes[1]
    trained = here.train((1, 0, here.setup.initial))[1]
    node.member.trained = 1
    here.learning.compute([(node, e.Look(GivenModel(trained), Memory(elapsed=1_500_000, trained=1), True))])
    (record,) = node.recorder.records
    assert (record.round, record.alive, record.time.seconds, record.time.steps) == (1, 3, 1.5, 2)
    assert record.time.accuracies == [record.accuracy.mean]
    assert here.events[-1] == (1, e.Looked())
    here.learning.compute([(node, e.Look(GivenModel(trained), Memory(elapsed=1_500_000, trained=1), True))])
    assert len(node.recorder.records) == 1  # a node that goes on is not evaluated again where it was
    torch.testing.assert_close(node.recorder.models[0], trained)


def test_what_a_node_remembers_comes_back_from_its_checkpoint_and_numbers_grow(tmp_path):
    here = Here()
    node = here.nodes[3]
    node.member.tally = {"counted": 7, "used": 5}
    node.member.count.taken = 4
    node.memory = Memory(2_000_000, 4, 123, {"peers": 9, "phase": 1}, {"age 0": 31})
    node.busy, node.undelivered = 1.25, 2
    extra = node.extra()
    other = Here().nodes[3]
    other.identity.folder = tmp_path
    memory, tally, count = other.restored(ExtraState({}, extra.tallies))
    assert (memory.elapsed, memory.trained, memory.choices, memory.state) == (
        2_000_000,
        4,
        {"peers": 9, "phase": 1},
        {"age 0": 31},
    )
    assert (tally, count.taken, other.busy, other.undelivered) == ({"counted": 7, "used": 5}, 4, 1.25, 2)
    assert memory.number > 123
    again, _, _ = other.restored(ExtraState({}, extra.tallies))
    assert again.number > memory.number
    new, _, _ = other.restored(None)
    assert new.number > again.number


def test_numbers_grow_although_nothing_was_saved_and_the_clock_went_back_by_an_hour(tmp_path, monkeypatch):
    node = Here().nodes[3]
    node.identity.folder = tmp_path
    before = node.restored(None)[0].number
    back = time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: back)
    monkeypatch.setattr(time, "time_ns", lambda: int(back * 1e9))
    assert node.restored(None)[0].number > before
