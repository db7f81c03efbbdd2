"""The mailbox: whatever the network does, a letter counts at most once, and only in its own round."""

from collections import Counter, defaultdict

import pytest
from epidemic.net.mailbox import OUTCOMES, Mailbox, closed
from epidemic.net.pace import SLACK, WARM_UP, Pace
from hypothesis import given, settings
from hypothesis import strategies as st

from epidemic.rng import Streams
from epidemic.topology import ELLocal


def test_each_letter_is_sorted_as_its_round_says():
    box = Mailbox(ahead=2)
    box.open(5, {1, 2})
    assert box.put(5, 1, "a") == "counted"
    assert box.put(5, 1, "a again") == "duplicate"
    assert box.put(5, 3, "b") == "unexpected"
    assert box.put(4, 2, "c") == "late"
    assert box.put(6, 4, "d") == "early"
    assert box.put(6, 4, "d again") == "duplicate"
    assert box.put(8, 4, "e") == "beyond"
    assert box.missing() == {2}
    assert box.missing(alive={1, 3}) == set()
    assert box.take() == {1: "a"}
    assert box.put(5, 2, "f") == "late"  # its round is over
    box.open(6, {4})
    assert box.take() == {4: "d"}
    assert box.tally == Counter(counted=2, duplicate=2, unexpected=1, late=2, beyond=1, early=0)


def test_an_early_letter_of_nobody_expected_does_not_count_when_its_round_opens():
    box = Mailbox()
    box.put(0, 1, "a")
    box.put(0, 2, "b")
    box.put(3, 2, "c")
    box.open(0, {1})
    assert box.take() == {1: "a"}
    box.open(4, {2})  # rounds were left out
    assert box.take() == {}
    assert +box.tally == Counter(counted=1, unexpected=1, late=1)


def test_a_round_is_taken_once_and_never_opened_again():
    box = Mailbox()
    box.open(0, None)
    with pytest.raises(ValueError, match="still open"):
        box.open(1, None)
    box.take()
    with pytest.raises(ValueError, match="taken before"):
        box.take()
    with pytest.raises(ValueError, match="open before"):
        box.open(0, None)


def test_who_has_nothing_to_send_is_not_missing_any_more():
    box = Mailbox()
    box.open(2, {1, 3})
    box.excuse(1, 1)
    assert box.missing() == {1, 3}
    box.excuse(2, 1)
    assert box.missing() == {3}


def test_letters_of_a_round_that_was_left_are_skipped():
    box = Mailbox()
    box.open(0, {1, 2})
    box.put(0, 1, "a")
    box.skip()
    assert box.put(0, 2, "b") == "late"
    assert +box.tally == Counter(skipped=1, late=1)


def test_what_is_kept_for_later_is_bounded():
    box = Mailbox(ahead=1000, room=10)
    box.open(0, None)
    outcomes = Counter(box.put(round, sender, "x") for round in range(1, 100) for sender in range(5))
    assert outcomes == Counter(early=10, beyond=485)


def test_with_a_cap_only_promised_letters_count_and_never_more_than_that():
    box = Mailbox(cap=2)
    box.open(3, None)
    assert [box.promise(3, sender) for sender in (7, 8, 9, 7)] == [True, True, False, True]
    assert not box.promise(2, 9)
    assert box.promise(4, 9)  # somebody is ahead
    assert [box.put(3, sender, sender) for sender in (9, 8, 7)] == ["unexpected", "counted", "counted"]
    assert box.take() == {7: 7, 8: 8}
    assert not box.promise(3, 1)
    box.put(4, 9, 9)
    box.open(4, None)
    assert box.take() == {9: 9}
    assert not Mailbox().promise(0, 1)  # nobody offers where there is no cap


def test_the_front_is_where_two_of_the_others_are():
    box = Mailbox(ahead=2)
    assert box.front([1, 2]) == -1
    for round, sender in ((3, 1), (50, 2), (9, 3)):
        box.put(round, sender, "x")
    assert box.front([1, 2, 3]) == 9  # one that is far ahead of everybody drags nobody along
    assert box.front([2]) == 50
    assert box.front([1, 3]) == 3
    assert box.front([]) == -1


def test_when_a_round_is_over():
    def over(close, missing, heard=0, wanted=3, overdue=False):
        return closed(close=close, missing=missing, heard=heard, wanted=wanted, overdue=overdue)

    assert over("barrier", 0)
    assert not over("barrier", 1, overdue=True)
    assert over("deadline", 0)
    assert over("deadline", 2, overdue=True)
    assert not over("deadline", 2)
    assert not over("deadline", -1, heard=99)
    assert over("quorum", -1, heard=3)
    assert not over("quorum", -1, heard=2)
    assert over("quorum", -1, heard=2, overdue=True)


# -- several mailboxes over a network that drops, delays, duplicates and reorders ----------------------------------------


class Network:
    """Letters in flight; a schedule decides what happens to them."""

    def __init__(self, data, loss):
        self.data, self.loss, self.flying = data, loss, []
        self.said = defaultdict(Counter)  # by receiver: what its mailbox answered to each put

    def send(self, *letter):
        if self.data.draw(st.floats(0, 1)) >= self.loss:
            self.flying += [letter] * self.data.draw(st.sampled_from([1, 1, 1, 2]))

    def deliver(self, boxes):
        """Some of what is in flight, in any order."""
        for _ in range(self.data.draw(st.integers(0, len(self.flying)))):
            round, sender, receiver = self.flying.pop(self.data.draw(st.integers(0, len(self.flying) - 1)))
            outcome = boxes[receiver].put(round, sender, (round, sender, receiver))
            assert outcome in OUTCOMES
            self.said[receiver][outcome] += 1


@settings(max_examples=60)
@given(st.data(), st.sampled_from([0.0, 0.3]), st.integers(1, 3))
def test_over_any_network_letters_count_once_and_in_their_round_only(data, loss, s):
    n, rounds = 5, 6
    topology, streams = ELLocal(s), Streams(data.draw(st.integers(0, 9)))
    graphs = [topology.graph(n, t, streams) for t in range(rounds)]
    boxes = [Mailbox(ahead=3, room=8) for _ in range(n)]
    at, network = [-1] * n, Network(data, loss)
    counted = []
    while min(at) < rounds:
        i = data.draw(st.sampled_from([i for i in range(n) if at[i] < rounds]))
        if at[i] >= 0:
            letters = boxes[i].take()
            for sender, letter in letters.items():
                assert letter == (at[i], sender, i)  # of this round, to this node
                assert sender in graphs[at[i]].into(i)
                counted.append(letter)
            assert list(letters) == sorted(letters)
        at[i] += 1
        if at[i] < rounds:
            boxes[i].open(at[i], graphs[at[i]].into(i).tolist())
            stray = data.draw(st.integers(0, n - 1))  # a letter that may have no business there
            for j in sorted({*graphs[at[i]].out_of(i).tolist(), stray}):
                network.send(at[i], i, j)
        network.deliver(boxes)
        for j, box in enumerate(boxes):  # every put is tallied once
            assert box.tally.total() == network.said[j].total()
    assert len(counted) == len(set(counted))  # none twice
    taken = Counter(receiver for _, _, receiver in counted)
    for i, box in enumerate(boxes):
        said = network.said[i]
        for outcome in ("late", "duplicate", "beyond"):  # as it was answered; an early one becomes none of these
            assert box.tally[outcome] == said[outcome]
        assert box.tally["early"] == 0  # all rounds are over
        assert box.tally["counted"] == taken[i]
        assert box.tally["unexpected"] == said["unexpected"] + said["early"] - (taken[i] - said["counted"])


@given(st.integers(0, 9), st.integers(1, 4))
def test_over_a_reliable_network_with_a_barrier_every_letter_counts(seed, s):
    n, rounds = 6, 5
    topology, streams = ELLocal(s), Streams(seed)
    boxes = [Mailbox() for _ in range(n)]
    for t in range(rounds):
        graph = topology.graph(n, t, streams)
        for i in range(n):
            if i % 2:  # half of them open their mailbox late
                boxes[i].open(t, graph.into(i).tolist())
        for i in range(n):
            for j in graph.out_of(i):
                boxes[j].put(t, i, i)
        for i in range(n):
            if not i % 2:
                boxes[i].open(t, graph.into(i).tolist())
            assert boxes[i].missing() == set()
            assert list(boxes[i].take()) == graph.into(i).tolist()


# -- pace ------------------------------------------------------------------------------------------------------------


def test_the_wait_is_the_deadline_until_enough_was_seen_and_then_follows_what_rounds_take():
    pace = Pace(30.0)
    assert pace.limit == 30.0
    pace.worked(1.0)
    for _ in range(WARM_UP):
        pace.waited(0.1)
    assert pace.limit == pytest.approx(SLACK + 1.0 + 0.3)
    for _ in range(200):
        pace.waited(2.0)
    assert pace.limit == pytest.approx(SLACK + 1.0 + 6.0)
    for _ in range(200):
        pace.waited(100.0)
    assert pace.limit == 30.0  # never more


@pytest.mark.parametrize("held_up", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_waits_do_not_feed_on_themselves(held_up):
    """Nodes that listened to a slow one waited for as long as they may, and others wait for them: the limit stays."""
    pace, stream = Pace(1000.0), Streams(1)("test")
    for _ in range(WARM_UP):
        pace.worked(0.5)
        pace.waited(0.05)
    first = pace.limit
    for _ in range(500):
        me, sender = stream.uniforms(2) < held_up
        pace.waited(pace.limit if sender and not me else 0.05)
    assert pace.limit == pytest.approx(first)
