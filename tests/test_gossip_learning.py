"""Gossip Learning: merges and ages, contraction, lineages, parts and token accounts (specification, part 2, sections 12.1 to 12.3)."""

import itertools
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import epidemic as ep
from epidemic.algorithms.asynchronous import Message
from playing import PERIOD, World, chance, disagreement, el_local

N = 96


def nobody(node, count):
    return []


def one(method, row=1.0, age=1, **world):
    """A world of a node with a row and an age that hears what a test tells it."""
    world = World(method, [np.array([float(row)]) if np.isscalar(row) else row], nobody, **world)
    world.nodes[0].ages = [age] * method.parts
    return world, world.nodes[0]


def tell(world, row, age, part=None, sender=1):
    world.happen(
        world.nodes[0], "received", Message(sender, np.atleast_1d(np.asarray(row, float)), note=(age,), part=part)
    )


# -- one message -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("merge", "merged"), [("age", 4.0), ("average", 3.0)])
def test_a_model_of_one_step_merges_with_one_of_three_and_then_trains(merge, merged):
    world, node = one(
        ep.GossipLearning(merge=merge, local_steps=2), takes=lambda *_: 5, learn=lambda i, k, row: row + 10
    )
    tell(world, 5, 3)
    assert node.context.model == merged
    assert node.ages == [3]
    world.run(PERIOD // 2)
    assert node.context.model == merged + 10
    assert node.ages == [5]  # of steps


def test_models_without_age_count_the_same():
    world, node = one(ep.GossipLearning(), age=0)
    tell(world, 5, 0)
    assert node.context.model == 3


def test_a_walking_model_replaces_the_one_that_was_there():
    world, node = one(ep.GossipLearning(variant="rw"), age=9, learn=lambda i, k, row: row + 10)
    tell(world, 5, 3)
    world.run(1)
    assert node.context.model == 15
    assert node.ages == [4]


def test_um_trains_both_models_and_then_merges_by_their_new_ages():
    steps = {0: 1, 1: 100}  # what the first and the second training add
    world, node = one(ep.GossipLearning(variant="um"), takes=lambda *_: 5, learn=lambda i, k, row: row + steps[k])
    tell(world, 5, 2)
    assert node.messages_held() == 1
    world.run(6)
    assert node.context.model == 1  # one of two trainings
    world.run(11)
    assert node.context.model == pytest.approx(2 / 5 * (1 + 1) + 3 / 5 * (5 + 100))  # ages 1 + 1 and 2 + 1
    assert node.ages == [3]
    assert node.messages_held() == 0


def test_a_node_trains_first_where_it_should_and_alone_never_again():
    for trained in (False, True):
        world = World(ep.GossipLearning(start_trained=trained), [np.zeros(1)], nobody).run(5 * PERIOD)
        assert world.nodes[0].context.trainings == trained


@pytest.mark.parametrize(
    ("settings", "merged", "dropped"),
    [({}, 4, 0), ({"capacity": 2}, 3, 1), ({"on_busy": "replace"}, 2, 2), ({"on_busy": "drop"}, 1, 3)],
)
def test_messages_that_come_during_training_wait_and_the_oldest_are_dropped(settings, merged, dropped):
    world, node = one(ep.GossipLearning(variant="rw", **settings), takes=lambda *_: 5)
    for row in (10, 20, 30, 40):
        tell(world, row, 0)
    assert node.context.model == 10
    world.run(100)
    assert (world.tally["received"], world.tally["used"], world.tally["dropped"]) == (4, merged, dropped)
    assert node.context.model == (40 if merged > 1 else 10)


def test_parts_merge_alone_by_their_own_ages():
    world, node = one(
        ep.GossipLearning(parts=2), np.array([1.0, 1, 1, 1]), learn=lambda i, k, row: row + 1, takes=lambda *_: 5
    )
    node.ages = [1, 7]
    tell(world, [5, np.nan, 9, np.nan], 3, part=0)
    assert node.context.model.tolist() == [4, 1, 7, 1]
    world.run(PERIOD // 2)
    assert node.context.model.tolist() == [5, 2, 8, 2]
    assert node.ages == [4, 8]


def test_a_message_carries_one_part_at_random_with_its_age_and_all_parts_come_to_agree():
    sent = []
    world = World(ep.GossipLearning(parts=4), list(np.random.default_rng(0).normal(size=(12, 8))), el_local(12, 1),
                  delay=lambda *_: 10)  # fmt: skip
    send = world.nodes[0].context.send
    world.nodes[0].context.send = lambda to, row, **more: (sent.append(more), send(to, row, **more))
    before = disagreement(world.rows)
    world.run(100 * PERIOD)
    assert {more["part"] for more in sent} == {0, 1, 2, 3}
    assert all(len(more["note"]) == 1 for more in sent)
    assert disagreement(world.rows) < 1e-3 * before
    assert np.isfinite(world.rows).all()


def test_a_static_topology_gets_a_message_to_one_neighbour_and_el_local_to_all_that_are_drawn():
    def ring(node, count):
        beside = [(node + 1) % 8, (node - 1) % 8]
        return beside if chance(0, "side", node, count) < 0.5 else beside[::-1]

    rows = [np.zeros(1)] * 8
    assert World(ep.GossipLearning(), rows, ring, static=True).run(10 * PERIOD).tally["sent"] == 80
    assert World(ep.GossipLearning(), rows, el_local(8, 3)).run(10 * PERIOD).tally["sent"] == 240


def test_periods_vary_around_the_period_and_never_vanish():
    method = ep.GossipLearning(period=2.0, jitter=0.1)
    gaps = [method.gap(chance(0, "jitter", 0, k)) / PERIOD for k in range(2000)]
    assert statistics.mean(gaps) == pytest.approx(2, abs=5 * 0.2 / 2000**0.5)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.1)
    assert ep.GossipLearning(jitter=1).gap(0.0) == PERIOD // 10
    assert ep.GossipLearning(jitter=1).gap(1 - 2**-53) == 1.9 * PERIOD
    assert ep.GossipLearning(period=2.0).gap(0.3) == 2 * PERIOD


# -- many nodes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 4, 5])
def test_a_merge_of_a_random_pair_contracts_by_exactly_what_theory_says(n):
    rows = [Fraction(value) for value in (3, -1, 4, 1, -5)[:n]]
    before, mean = disagreement(rows), sum(rows) / n
    after, around, drift = [], [], []
    for sender, receiver in itertools.permutations(range(n), 2):
        world = World(ep.GossipLearning(merge="average"), rows, nobody)
        world.happen(world.nodes[receiver], "received", Message(sender, rows[sender], note=(0,)))
        new = world.run(1).rows
        after.append(disagreement(new))
        around.append(sum((row - mean) ** 2 for row in new) / n)
        drift.append((sum(new) / n - mean) ** 2)
    assert statistics.mean(after) / before == 1 - Fraction(n + 1, 2 * n * (n - 1))
    assert statistics.mean(around) / before == 1 - Fraction(1, 2 * (n - 1))
    assert statistics.mean(drift) / before == Fraction(1, 2 * n * (n - 1))


def test_a_period_contracts_like_a_round_of_el_local_and_leaves_out_as_many():
    ratios, silent = [], []
    for seed in range(30):
        rows = list(np.random.default_rng(seed).normal(size=(N, 16)))
        world = World(ep.GossipLearning(merge="average"), rows, el_local(N, 1, seed), seed=seed).run(PERIOD)
        assert world.tally["sent"] == N  # everybody once
        ratios.append(disagreement(world.rows) / disagreement(rows))
        silent.append(N - len(world.heard))
    assert statistics.mean(ratios) == pytest.approx(0.599, abs=5 * statistics.stdev(ratios) / 30**0.5)
    assert statistics.mean(ratios) == pytest.approx(0.599, abs=0.03)
    assert statistics.mean(silent) / N == pytest.approx(
        (1 - 1 / 95) ** 95, abs=5 * statistics.stdev(silent) / N / 30**0.5
    )


def test_ages_grow_faster_than_anybody_trains_and_make_merging_plain_averaging():
    world = World(ep.GossipLearning(jitter=0.1), [Fraction(0)] * N, el_local(N, 1)).run(30 * PERIOD)
    early, merges = statistics.mean(node.ages[0] for node in world.nodes), len(world.mixed)
    world.run(150 * PERIOD)
    ages = [node.ages[0] for node in world.nodes]
    assert (statistics.mean(ages) - early) / 120 == pytest.approx(3.7, abs=0.25)
    assert statistics.mean(node.context.trainings for node in world.nodes) / 150 == pytest.approx(1, abs=0.02)
    weights = [weights[1] for weights in world.mixed[merges + 70 * N :]]
    assert statistics.mean(0.49 <= weight <= 0.511 for weight in weights) > 0.96
    assert 0.45 < min(weights) <= max(weights) < 0.55


def test_lineages_of_walking_models_die_out():
    world = World(ep.GossipLearning(variant="rw"), [Fraction(i) for i in range(N)], el_local(N, 1))
    alive = [len(set(world.run(periods * PERIOD).rows)) for periods in (0, 1, 5, 10, 20)]
    assert alive[0] == N
    assert alive == sorted(alive, reverse=True)
    assert 40 <= alive[1] <= 60  # 49 in the run of the specification
    assert 2 <= alive[4] <= 12  # 5


# -- token accounts ----------------------------------------------------------------------------------------------------------


def accounts():
    pairs = st.integers(1, 12).flatmap(lambda A: st.tuples(st.just(A), st.integers(A, 20)))
    return st.one_of(
        st.just(ep.Tokens("proactive")),
        st.integers(1, 20).map(lambda C: ep.Tokens("simple", C=C)),
        st.builds(
            lambda name, pair: ep.Tokens(name, A=pair[0], C=pair[1]),
            st.sampled_from(["generalised", "randomised"]),
            pairs,
        ),
    )


@given(
    accounts(), st.lists(st.tuples(st.sampled_from(["period", "useful", "useless"]), st.floats(0, 0.999)), max_size=120)
)
def test_an_account_never_sends_more_than_was_saved(tokens, events):
    balance, sent, periods, history = 0, 0, 0, [(0, 0)]
    for what, luck in events:
        if what == "period":
            periods += 1
            if luck < tokens.proactive(balance):
                sent += 1
            else:
                balance += 1
        else:
            spent = tokens.reactive(balance, what == "useful", luck)
            assert 0 <= spent <= balance
            balance, sent = balance - spent, sent + spent
        assert sent == periods - balance
        assert 0 <= balance <= (tokens.C or 0)
        history.append((periods, sent))
    for (p, a), (q, b) in itertools.combinations(history[::3], 2):
        assert b - a <= q - p + (tokens.C or 0)


def test_the_values_of_the_specification():
    generalised, randomised = ep.Tokens("generalised", A=5, C=10), ep.Tokens("randomised", A=10, C=20)
    assert [generalised.reactive(10, useful, 0) for useful in (True, False)] == [2, 1]
    assert generalised.reactive(0, True, 0) == 0
    assert [randomised.proactive(a) for a in (0, 9, 10, 20)] == [0, 0, pytest.approx(1 / 11), 1]
    assert [randomised.reactive(15, True, luck) for luck in (0.49, 0.5)] == [2, 1]
    assert randomised.reactive(15, False, 0) == 0


@pytest.mark.parametrize(
    "tokens", [ep.Tokens("simple", C=5), ep.Tokens("generalised", A=2, C=6), ep.Tokens("randomised", A=3, C=8)]
)
def test_nodes_keep_their_accounts_and_nobody_starves(tokens):
    world = World(ep.GossipLearning(tokens=tokens), [np.zeros(1)] * 12, el_local(12, 1)).run(60 * PERIOD)
    for node in world.nodes:
        assert node.periods == 60
        assert node.sendings == 60 - node.balance
        assert 0 <= node.balance <= tokens.C
        assert node.context.sent >= 60 - tokens.C
    assert sum(node.context.sent for node in world.nodes) == world.tally["sent"]


def test_what_is_handled_is_answered_at_once_while_there_are_tokens():
    world = World(
        ep.GossipLearning(tokens={"strategy": "simple", "C": 3}), [np.zeros(1)] * 2, lambda node, _: [1 - node]
    )
    node = world.nodes[0]
    node.balance = 2
    for left in (1, 0, 0):
        tell(world, 1, 0)
        world.run(world.now + 1)
        assert node.balance == left
    assert node.context.sent == 2


@pytest.mark.parametrize(("age", "sent"), [(8, 1), (9, 2), (10, 2)])
def test_a_message_that_is_as_old_as_the_own_model_is_useful(age, sent):
    tokens = ep.Tokens("generalised", A=5, C=10)
    world = World(ep.GossipLearning(tokens=tokens), [np.zeros(1)] * 2, lambda node, _: [1 - node], delay=lambda *_: 10)
    node = world.nodes[0]
    node.balance, node.ages = 10, [9]
    tell(world, 1, age)
    world.run(1)
    assert (node.context.sent, node.balance) == (sent, 10 - sent)
