"""The committed coin: nobody can send to whom it has not drawn, and what it draws has the law of EL-Local."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import epidemic as ep
from epidemic.core.errors import BadInput
from epidemic.deploy.secrets import KEPT_IN, kept_secret
from epidemic.protocol import commitment
from epidemic.protocol.commitment import FEW, Chain, Commitments, chain_key, walk
from epidemic.protocol.mailbox import Mailbox
from epidemic.protocol.rules import most_private
from epidemic.runtime.plan import committed_targets

RUN = bytes(range(16))
SECRETS = [bytes([i]) * 32 for i in range(20)]


def chain(node=1, rounds=50, run=RUN, secret=None):
    return Chain(SECRETS[node] if secret is None else secret, run, node, rounds)


def everybody(node, round, link):
    return range(100)


def coin(node=0, rounds=50, targets=everybody, saved=b"", run=RUN):
    return Commitments(chain(node, rounds, run), run, node, rounds, targets, saved)


def knows(*chains, **how):
    found = coin(**how)
    for node, one in enumerate(chains, start=1):
        assert found.commit(node, one.commitment)
    return found


# -- chains -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 400))
@settings(max_examples=60)
def test_every_link_is_the_hash_of_the_next_and_the_commitment_that_of_the_first(rounds):
    made, key = chain(rounds=rounds), chain_key(RUN, 1)
    links = [made.link(t) for t in range(rounds)]
    assert walk(key, links[0], 0, -1) == made.commitment
    for t in range(1, rounds):
        assert walk(key, links[t], t, t - 1) == links[t - 1]
    assert len({made.commitment, *links}) == rounds + 1


def test_a_restart_gives_the_same_chain_and_another_run_node_or_secret_another():
    same = chain(), chain()
    assert same[0].commitment == same[1].commitment
    others = [chain(run=bytes(16)), chain(2, secret=SECRETS[1]), chain(secret=SECRETS[2]), chain(rounds=51)]
    assert len({same[0].commitment, *(other.commitment for other in others)}) == 5
    assert len({same[0].link(7), *(other.link(7) for other in others)}) == 5


def test_a_long_chain_keeps_few_links():
    made = chain(rounds=100_000)
    assert len(made._marks) < 330
    assert walk(chain_key(RUN, 1), made.link(99_999), 99_999, 31_415) == made.link(31_415)


def test_the_secret_is_made_once_and_readable_by_its_owner_only(tmp_path):
    first = kept_secret(tmp_path)
    assert kept_secret(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == [KEPT_IN]
    assert (tmp_path / KEPT_IN).stat().st_mode & 0o777 == 0o600
    (tmp_path / "other").mkdir()
    assert kept_secret(tmp_path / "other") != first
    (tmp_path / KEPT_IN).write_bytes(first[:31])
    with pytest.raises(BadInput, match=r"coin\.secret does not have 32 bytes: put the file back"):
        kept_secret(tmp_path)


# -- checking ---------------------------------------------------------------------------------------------------------


def test_the_first_commitment_of_a_node_stays_also_over_a_restart():
    a, b = chain(1).commitment, chain(2).commitment
    found = coin()
    assert found.commit(1, a)
    assert found.commit(1, a)
    assert not found.commit(1, b)
    assert not found.commit(2, b"")
    assert not found.commit(2, b[:31])
    again = coin(saved=found.saved)
    assert not again.commit(1, b)
    assert again.commit(1, a)
    assert again.commit(2, b)
    assert coin(saved=found.saved, run=bytes(16)).commit(1, b)  # what was said in another run binds nobody in this one
    assert coin(saved=found.saved[:-1]).commit(1, b)


@given(st.lists(st.integers(0, 49), min_size=1, max_size=30))
def test_a_true_link_is_believed_in_any_order_and_nothing_else_is(rounds):
    one, other = chain(1), chain(2)
    found = knows(one, other)
    for t in rounds:
        assert found.problem(1, t, one.link(t)) is None
        for wrong in (other.link(t), one.link((t + 1) % 50), one.commitment, bytes(32), b"", one.link(t)[:31]):
            assert found.problem(1, t, wrong) == "wrong-coin"
        assert found.problem(2, t, one.link(t)) == "wrong-coin"
    for t in (-1, 50, 10**12):
        assert found.problem(1, t, one.link(0)) == "wrong-coin"
    assert found.problem(3, 5, one.link(5)) == "wrong-coin"  # nobody who has committed to anything


def test_who_has_not_drawn_this_node_is_refused():
    def targets(node, round, link):
        assert (node, link) == (1, one.link(round))
        return {0} if round % 3 else {2}

    one = chain(1)
    found = knows(one, targets=targets)
    assert [found.problem(1, t, one.link(t)) for t in range(6)] == ["not-drawn", None, None] * 2


def test_a_sender_costs_no_more_hashes_than_there_are_rounds_besides_a_few(monkeypatch):
    rounds, cost = 20_000, 0
    one = chain(1, rounds)
    true = {t: one.link(t) for t in (10, 5000, 10_000, rounds - 1)}

    def counted(key, link, round, to):
        nonlocal cost
        cost += round - to
        return walk(key, link, round, to)

    lied_to, led_on, honest = (knows(one, rounds=rounds) for _ in range(3))
    monkeypatch.setattr(commitment, "walk", counted)
    for i in range(40):  # wrong links of far rounds
        assert lied_to.problem(1, rounds - 1 - i, bytes([i]) * 32) == "wrong-coin"
    assert cost <= rounds
    assert lied_to.problem(1, 10, true[10]) is None  # near ones are looked at all the same
    cost = 0  # it reveals its last link; then all others are far from it
    assert led_on.problem(1, rounds - 1, true[rounds - 1]) is None
    assert [led_on.problem(1, 10, true[10]) for _ in range(40)] == ["wrong-coin"] * 40
    assert cost <= rounds + FEW
    cost = 0
    assert [honest.problem(1, t, true[t]) for t in sorted(true)] == [None] * 4
    assert cost == rounds


# -- the law of the draw ----------------------------------------------------------------------------------------------


def what(n, s, seed=1):
    return ep.Experiment(nodes=n, topology=ep.ELLocal(s), seeds=[seed])


def draws(n, s, node, rounds, seed=1):
    experiment, link, found = what(n, s, seed), chain(node, rounds).link(rounds - 1), []
    for t in reversed(range(rounds)):
        found.append(committed_targets(experiment, node, t, link))
        link = walk(chain_key(RUN, node), link, t, t - 1)
    return found[::-1]


def test_targets_are_distinct_others_and_follow_from_link_seed_and_round():
    for n, s in ((2, 1), (3, 2), (9, 4), (9, 7), (9, 8)):
        for node in (0, n - 1):
            for targets in draws(n, s, node, 40):
                assert list(targets) == sorted(set(targets) - {node})
                assert len(targets) == s
                assert 0 <= targets[0] <= targets[-1] < n
    link = chain().link(3)
    base = committed_targets(what(50, 8), 1, 3, link)
    assert base == committed_targets(what(50, 8), 1, 3, bytes(link))
    others = [(what(50, 8), 1, 3, chain(2).link(3)), (what(50, 8, 2), 1, 3, link), (what(50, 8), 1, 4, link)]
    assert all(committed_targets(*other) != base for other in others)


@pytest.mark.parametrize(("n", "s"), [(5, 2), (6, 3), (6, 1)])
def test_every_subset_of_the_others_is_equally_likely(n, s):
    """Chi-square over all subsets: within five standard deviations of its mean."""
    node, rounds = 2, 12_000
    subsets = dict.fromkeys(itertools.combinations([i for i in range(n) if i != node], s), 0)
    for targets in draws(n, s, node, rounds):
        subsets[targets] += 1
    mean, freedom = rounds / len(subsets), len(subsets) - 1
    chi2 = sum((count - mean) ** 2 / mean for count in subsets.values())
    assert abs(chi2 - freedom) < 5 * math.sqrt(2 * freedom)


def test_in_degrees_have_the_law_of_el_local_and_rounds_are_independent():
    """Mean s and variance s (1 - s / (n - 1)), and what a node drew says nothing about what it draws next."""
    n, s, rounds = 16, 4, 1500
    chosen = np.zeros((rounds, n, n), dtype=bool)
    for node in range(n):
        for t, targets in enumerate(draws(n, s, node, rounds)):
            chosen[t, node, list(targets)] = True
    degrees, p = chosen.sum(axis=1), s / (n - 1)
    variance = s * (1 - p)
    assert abs(degrees.mean() - s) < 1e-12  # everybody sends to s
    sd_of_variance = variance * math.sqrt(2 / degrees.size)
    assert abs(degrees.var() - variance) < 5 * sd_of_variance
    again = (chosen[1:] & chosen[:-1]).sum(axis=(0, 2))  # by sender: how often a target is drawn twice running
    mean, sd = (rounds - 1) * s * p, math.sqrt((rounds - 1) * s * p)
    assert (abs(again - mean) < 5 * sd).all()
    # the law of the simulator's own draw, by the same numbers
    theirs = np.stack([[ep.ELLocal(s).graph(n, t, ep.Streams(1)).into(j).size for j in range(n)] for t in range(300)])
    assert abs(theirs.var() - degrees.var()) < 5 * variance * math.sqrt(2 / theirs.size + 2 / degrees.size)


# -- a private coin ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("s", "most"), [(1, 5), (2, 8), (4, 12), (7, 18), (9, 21)])
def test_with_a_private_coin_so_many_count_that_an_honest_one_is_hardly_ever_refused(s, most):
    assert most_private(s) == most
    n = 200
    p = s / (n - 1)
    more = 1 - sum(math.comb(n - 1, k) * p**k * (1 - p) ** (n - 1 - k) for k in range(most + 1))
    assert more < 1e-3


def test_a_full_round_takes_nobody_else_and_those_to_come_are_counted_apart():
    box = Mailbox(most=2)
    box.open(3, None)
    for sender in (1, 2):
        assert not box.full(3, sender)
        assert box.put(3, sender, "x") == "counted"
    assert box.full(3, 4)
    assert not box.full(3, 2)  # it is there already: a duplicate
    assert not box.full(4, 4)
    for sender in (4, 5):
        assert box.put(4, sender, "x") == "early"
    assert box.full(4, 6)
    assert not box.full(4, 5)
    assert not box.full(5, 6)
    box.take()
    assert not box.full(3, 9)  # late
    box.open(4, None)
    assert box.full(4, 6)
    assert not Mailbox().full(0, 1)
