"""AD-PSGD: displacements keep the sum under any interleaving; contraction and staleness (specification, part 2, section 12.4)."""

import itertools
import random
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import epidemic as ep
from epidemic.algorithms.ad_psgd import REMEMBERED
from epidemic.algorithms.asynchronous import Message
from epidemic.clock import Clock
from playing import PERIOD, World, chance, disagreement, el_local


def complete(n, seed=0):
    def peers(node, count):
        order = [other for other in range(n) if other != node]
        random.Random(f"{seed} {node} {count}").shuffle(order)
        return order

    return peers


def step(node, count):
    """What a training adds, whatever it starts from."""
    return Fraction(node + 1, count + 2)


def played(n, seed, spread, patience, until, peers=None, static=True, lost=0.0):
    """A run in which trainings and messages take random times; it ends when nothing is on its way any more."""

    def delay(sender, to, count):
        return (
            None if chance(seed, "lost", sender, count) < lost else int(spread * chance(seed, "delay", sender, count))
        )

    world = World(
        ep.ADPSGD(patience=patience), [Fraction(i * i) for i in range(n)], peers or complete(n, seed),
        learn=lambda node, count, row: row + step(node, count),
        takes=lambda node, count: 1 + int(1000 * chance(seed, "takes", node, count)),
        delay=delay, static=static, last_training=until,
    )  # fmt: skip
    return world.run()


def missing(world):
    """By how much the sum differs from what the first rows and all trainings make."""
    learnt = sum(step(node.context.id, count) for node in world.nodes for count in range(node.context.trainings))
    return sum(world.rows) - sum(Fraction(i * i) for i in range(world.n)) - learnt


@settings(max_examples=40)
@given(st.integers(2, 7), st.integers(0, 10_000), st.sampled_from([1, 300, 3000]), st.sampled_from([1e-6, 3e-4, 1.0]))
def test_the_sum_changes_by_learning_only_whatever_happens_in_between(n, seed, spread, patience):
    world = played(n, seed, spread, patience, until=8000)
    assert world.tally["sent"] > 0
    if world.tally["dropped"] == 0:  # no answer came later than all that are remembered
        assert missing(world) == 0
    else:
        assert spread * 1e-6 > REMEMBERED * patience


def test_a_late_answer_still_counts_and_is_counted():
    world = played(6, 3, spread=2000, patience=1e-4, until=8000)
    assert missing(world) == 0
    assert world.tally["dropped"] == 0
    assert sum(node.counts()["gave_up"] for node in world.nodes) > 10


def test_an_answer_to_an_earlier_question_does_not_end_the_wait_for_the_later_one():
    world = World(ep.ADPSGD(patience=20e-6), [Fraction(0), Fraction(8)], complete(2), static=True,
                  takes=lambda node, _: 10 if node else 1000, delay=lambda sender, to, count: 35 if count == 0 and sender else 15)  # fmt: skip
    world.run(46)  # asked at 10, gave up at 30, asked again at 40
    active = world.nodes[1]
    assert (active.gave_up, list(active.asked)) == (1, [1, 2])
    world.happen(active, "received", Message(0, Fraction(0), "answer", (1,)))
    assert world.rows[1] == 4
    assert active.learnt is not None
    assert list(active.asked) == [2]


def test_random_targets_serve_as_well_as_a_graph():
    world = played(6, 1, spread=300, patience=1.0, until=8000, peers=el_local(6, 1), static=False)
    assert missing(world) == 0
    assert all(world.heard[node] > 3 for node in range(6))


def test_a_lost_answer_breaks_the_sum_and_nobody_is_stuck():
    world = played(6, 2, spread=10, patience=0.005, until=200_000, lost=0.2)
    assert missing(world) != 0
    gave_up = sum(node.gave_up for node in world.nodes)
    asked = sum(node.exchanges for node in world.nodes)
    assert gave_up / asked == pytest.approx(1 - 0.8**2, abs=5 * (0.36 * 0.64 / asked) ** 0.5)
    assert min(node.context.trainings for node in world.nodes) > 30
    assert all(len(node.asked) <= REMEMBERED for node in world.nodes)


def test_a_lost_request_changes_nothing():
    def nothing_arrives(*_):
        return None

    world = World(ep.ADPSGD(patience=1.0), [Fraction(0), Fraction(8)], complete(2), delay=nothing_arrives,
                  takes=lambda *_: PERIOD, last_training=5 * PERIOD, static=True).run()  # fmt: skip
    assert world.rows == [0, 8]


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_an_exchange_contracts_by_exactly_what_theory_says(n):
    ratios = []
    for values in itertools.permutations([Fraction(v) for v in (3, -1, 4, 1, -5)[:n]]):
        # Only node 1 trains before the end, and its exchange takes no time.
        world = World(ep.ADPSGD(), values, complete(n), takes=lambda node, _: 1 if node == 1 else 100, last_training=1,
                      static=True).run(50)  # fmt: skip
        assert (sum(world.rows), world.tally["used"]) == (sum(values), 2)
        ratios.append(disagreement(world.rows) / disagreement(values))
    assert statistics.mean(ratios) == 1 - Fraction(1, n - 1)


def test_a_passive_node_is_averaged_once_per_training_on_average():
    n, hits = 96, []

    class Counting(World):
        def happen(self, node, what, detail):
            if node.context.id % 2 == 0 and what == "trained" and self.now > 2 * PERIOD:
                hits.append(self.heard[node.context.id])
            if what == "trained":
                self.heard[node.context.id] = 0
            super().happen(node, what, detail)

    Counting(ep.ADPSGD(), [Fraction(0)] * n, complete(n), static=True,
             takes=lambda node, count: PERIOD if count else int(PERIOD * chance(0, "phase", node, 0))).run(25 * PERIOD)  # fmt: skip
    assert len(hits) >= 22 * n // 2
    assert statistics.mean(hits) == pytest.approx(1, abs=0.01)  # each of n / 2 active nodes asks once
    assert statistics.mean(hit == 0 for hit in hits) == pytest.approx(
        (1 - 2 / n) ** (n / 2), abs=5 * (0.23 / len(hits)) ** 0.5
    )


def test_what_a_node_has_not_asked_for_is_dropped():
    world = World(ep.ADPSGD(), [Fraction(0), Fraction(8)], complete(2), takes=lambda *_: 10, static=True)
    for node, tag, number in ((1, "ask", 1), (1, "answer", 7), (0, "answer", 1)):
        world.happen(world.nodes[node], "received", Message(1 - node, Fraction(99), tag, (number,)))
    assert world.tally["dropped"] == 3
    assert world.rows == [0, 8]


def test_who_finds_nobody_goes_on_alone_and_counts_it():
    for static in (True, False):
        world = World(ep.ADPSGD(), [Fraction(0)] * 4, lambda node, _: [3 - node] if node in (0, 3) else [], static=static,
                      takes=lambda *_: 10).run(95)  # fmt: skip
        assert [node.gave_up for node in world.nodes] == [0, 9, 0, 0]
        assert [node.context.trainings for node in world.nodes] == [10] * 4


class Pairs:
    """A static graph, as given."""

    static = True

    def __init__(self, *edges):
        self.edges = edges

    def graph(self, n, round, streams):
        return ep.Graph.from_edges(n, *(np.array(ends) for ends in zip(*self.edges, strict=True)))


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ([(1, 0), (3, 0), (3, 2), (0, 1)], None),
        ([(1, 0), (3, 0), (0, 2), (2, 0)], "node 2 is even and has no odd neighbour to exchange with"),
        ([(1, 0), (1, 2), (3, 1)], "node 3 is odd and has no even neighbour to exchange with"),
        ([(1, 0), (1, 2), (0, 3)], "node 3 is odd and has no even neighbour to exchange with"),  # it cannot ask
    ],
)
def test_a_graph_in_which_somebody_has_nobody_to_exchange_with_is_refused(edges, words):
    def check():
        ep.ADPSGD().check_run(Pairs(*edges), 4, ep.Streams(7))

    if words is None:
        check()
    else:
        with pytest.raises(ep.BadInput, match=words + r" \(seed 7\); use another topology"):
            check()


def test_an_experiment_is_refused_before_it_runs():
    fields = {"nodes": 6, "rounds": 2, "algorithm": ep.ADPSGD(), "clock": Clock()}
    for topology in (ep.Complete(), ep.Ring(), ep.ELLocal(1)):
        ep.Experiment(topology=topology, **fields)
    with pytest.raises(ep.BadInput, match="neighbour to exchange with"):
        ep.Experiment(topology=Pairs((0, 2), (2, 4), (1, 3), (3, 5)), **fields)
