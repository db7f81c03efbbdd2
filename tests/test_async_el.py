"""Asynchronous EL and DivShare: order, contraction, learning weights, fragments (specification, part 2, sections 12.5 and 18.4)."""

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import epidemic as ep
from epidemic.algorithms.asynchronous import Message
from epidemic.theory import beta, mean_drift
from playing import PERIOD, World, chance, disagreement, el_local

N, S = 96, 7


def phases(seed):
    """Equal training times, begun at random moments of the first one."""
    return lambda node, count: PERIOD if count else int(PERIOD * chance(seed, "phase", node, 0))


def two(method, **world):
    """Two nodes that send to each other, with rows 0 and 8; the first has trained after 10, the second after 100."""
    world = {"takes": lambda node, count: (10, 100)[node], "delay": lambda *_: 1, **world}
    return World(method, [np.array([0.0]), np.array([8.0])], lambda node, _: [1 - node], **world)


def message(sender, row, sent_at=0, part=None):
    return Message(sender, np.atleast_1d(np.asarray(row, float)), part=part, sent_at=sent_at)


# -- order --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [ep.AsyncEL, ep.DivShare])
@pytest.mark.parametrize(("order", "heard"), [("send-first", 8.0), ("mix-first", 4.0)])
def test_what_is_sent_is_the_trained_model_or_the_average(method, order, heard):
    world = two(method(order=order)).run(101)
    assert world.rows[1] == 4  # both ways
    world.run(102)
    assert next(iter(world.nodes[0].inbox.values())).row[0] == heard


@pytest.mark.parametrize("method", [ep.AsyncEL(), ep.DivShare(fragments=1)])
def test_of_each_sender_the_newest_message_counts_in_whatever_order_they_come(method):
    world = World(method, [np.array([0.0])], lambda *_: [], takes=lambda *_: 10)
    for arrived in (message(1, 100, 5), message(1, 6, 7), message(1, 100, 6), message(2, 3, 1)):
        world.happen(world.nodes[0], "received", arrived)
    assert world.nodes[0].messages_held() == 2
    world.run(11)
    assert world.rows[0] == (0 + 6 + 3) / 3
    assert (world.tally["used"], world.tally["dropped"]) == (2, 2)


def test_a_node_waits_for_its_first_message_where_it_should():
    for wait, trainings in ((False, 10), (True, 1)):
        world = two(ep.AsyncEL(wait=wait)).run(100)
        assert world.nodes[0].context.trainings == trainings
    assert world.nodes[0].waiting
    world.run(102)  # the other one has sent
    assert world.rows[0] == 4
    assert world.nodes[0].context.trainings == 2


def test_nobody_waits_for_ever_where_messages_get_lost():
    world = two(ep.AsyncEL(wait=True, patience=20e-6), delay=lambda *_: None).run(200)
    assert world.nodes[0].context.trainings == 1 + 190 // 30  # trained at 10, 40, 70, ...
    assert world.nodes[0].counts() == {"gave_up": 6}
    assert two(ep.AsyncEL()).nodes[0].counts() == {}


def test_a_node_that_comes_back_does_not_wait_for_what_was_lost():
    world = two(ep.AsyncEL(wait=True)).run(50)
    world.nodes[0].online()
    assert world.nodes[0].context.trainings == 2
    world.nodes[0].online()
    assert world.nodes[0].context.trainings == 2


@pytest.mark.parametrize(("queue", "behind"), [("replace", 1), ("keep", 15)])
def test_on_a_thin_uplink_newer_messages_replace_those_that_have_not_left(queue, behind):
    world = World(ep.AsyncEL(queue=queue), [np.zeros(1)] * 4, el_local(4, 3), takes=lambda *_: 10, uplink=10)
    world.run(85)
    # Eight trainings and seven messages that have begun to leave.
    assert len(world.nodes[0].context.queue) == pytest.approx(behind, abs=2)
    assert (world.tally["withdrawn"] > 0) == (queue == "replace")


# -- what theory says -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "factor", "weight"), [("send-first", 0.264, 0.70), ("mix-first", 0.059, 0.25)])
def test_contraction_and_the_lasting_effect_of_a_step(order, factor, weight):
    factors = []
    for seed in range(4):
        rows = list(np.random.default_rng(seed).normal(size=(N, 16)))
        world = World(ep.AsyncEL(order=order), rows, el_local(N, S, seed), takes=phases(seed))
        early, late = (disagreement(world.run(cycles * PERIOD).rows) for cycles in (2, 9))
        factors.append((late / early) ** (1 / 7))
    assert statistics.mean(factors) == pytest.approx(factor, rel=0.05)
    world = World(
        ep.AsyncEL(order=order), [np.zeros(1)] * N, el_local(N, S), takes=phases(0), learn=lambda i, k, x: x + 1
    )
    early, late = (np.mean(world.run(cycles * PERIOD).rows) for cycles in (6, 24))
    assert (late - early) / 18 == pytest.approx(weight, rel=0.02)


def test_with_steps_at_the_same_time_it_is_el_local_round_by_round():
    """Everybody sends at once and hears all of it before the next time: W X of the graph that was drawn."""
    peers, rows = el_local(12, 3), list(np.random.default_rng(1).normal(size=(12, 5)))
    world = World(ep.AsyncEL(), rows, peers, takes=lambda *_: PERIOD, delay=lambda *_: 1).run(2 * PERIOD + 1)
    W = np.eye(12)
    for node in range(12):
        W[peers(node, 0), node] = 1
    W /= W.sum(axis=1, keepdims=True)
    assert np.allclose(world.rows, W @ rows, atol=1e-12)


# -- fragments ----------------------------------------------------------------------------------------------------------------------


def test_fragments_contract_as_whole_models_do_and_cost_the_same():
    factors = []
    for seed in range(5):
        rows = list(np.random.default_rng(seed).normal(size=(N, 16)))
        world = World(ep.DivShare(fragments=4), rows, el_local(N, S, seed), takes=lambda *_: PERIOD, delay=lambda *_: 1)
        world.run(2 * PERIOD + 1)  # everybody sent, and then took it
        factors.append(disagreement(world.rows) / disagreement(rows))
        assert world.tally["sent"] == 2 * N * S * 4
        assert np.isfinite(world.rows).all()
    spread = max(statistics.stdev(factors), 0.0073)  # of one trial with 8, by the specification
    assert statistics.mean(factors) == pytest.approx(beta(N, S) - mean_drift(N, S), abs=5 * spread / 5**0.5)


def test_every_fragment_has_targets_of_its_own_and_all_leave_in_random_order():
    sent = []
    world = World(ep.DivShare(fragments=4), [np.zeros(8)] * N, el_local(N, S), takes=lambda *_: PERIOD)
    world.nodes[0].context.send = lambda to, row, part: sent.append((part, *to))
    world.run(2 * PERIOD + 1)
    first, second = sent[:28], sent[28:]
    for cycle in (first, second):
        assert len(set(cycle)) == 28
        targets = [{to for part, to in cycle if part == fragment} for fragment in range(4)]
        assert [len(these) for these in targets] == [S] * 4
        assert len(set(map(frozenset, targets))) == 4
        assert [part for part, _ in cycle] != sorted(part for part, _ in cycle)
    assert set(first) != set(second)


def test_coordinates_are_averaged_over_what_came_of_them():
    world = World(ep.DivShare(fragments=2), [np.array([1.0, 1.0])], lambda *_: [], takes=lambda *_: 10)
    nan = np.nan
    for arrived in (message(1, [4, nan], part=0), message(2, [7, nan], part=0), message(1, [nan, 3], part=1)):
        world.happen(world.nodes[0], "received", arrived)
    world.run(11)
    assert world.rows[0].tolist() == pytest.approx([4, 2])


@settings(max_examples=25)
@given(st.integers(0, 1000), st.sampled_from(["send-first", "mix-first"]), st.integers(2, 6))
def test_one_fragment_is_asynchronous_el(seed, order, n):
    def play(method):
        rows = list(np.random.default_rng(seed).normal(size=(n, 3)))
        return World(
            method, rows, el_local(n, min(2, n - 1), seed),
            takes=lambda node, count: 1 + int(100 * chance(seed, "takes", node, count)),
            delay=lambda sender, to, count: int(50 * chance(seed, f"delay {to}", sender, count // min(2, n - 1))),
        ).run(400)  # fmt: skip

    assert np.allclose(play(ep.AsyncEL(order=order)).rows, play(ep.DivShare(fragments=1, order=order)).rows, atol=1e-12)


def test_a_slow_uplink_sends_a_random_share_of_the_newest_model():
    arrived = []

    class Noting(World):
        def happen(self, node, what, detail):
            if what == "received" and detail.sender == 0:
                arrived.append((self.now - detail.sent_at, detail.part, node.context.id))
            super().happen(node, what, detail)

    world = Noting(ep.DivShare(fragments=5), [np.zeros(5)] * 4, el_local(4, 3), takes=lambda *_: 100, uplink=25)
    world.run(10_000)  # four of fifteen messages leave while a node trains
    assert len(arrived) == pytest.approx(400, abs=8)
    assert max(age for age, _, _ in arrived) <= 125
    assert {(part, to) for _, part, to in arrived} == {(part, to) for part in range(5) for to in (1, 2, 3)}
