"""The mailbox: whatever the network does, a message counts at most once, and only in its own round."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epidemic.core.rng import Streams
from epidemic.protocol.adaptive_timeout import SLACK, WARM_UP, AdaptiveTimeout
from epidemic.protocol.events import SECOND
from epidemic.protocol.mailbox import OUTCOMES, REMEMBERED, Mailbox
from epidemic.topology import ELLocal


def test_each_message_is_sorted_as_its_round_says():
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
    assert box.take() == {1: "a"}
    assert box.put(5, 2, "f") == "late"  # its round is over
    box.open(6, {4})
    assert box.take() == {4: "d"}
    assert box.tally == Counter(counted=2, duplicate=2, unexpected=1, late=2, beyond=1, early=0)


def test_an_early_message_of_nobody_expected_does_not_count_when_its_round_opens():
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


def test_messages_of_a_round_that_was_left_are_skipped():
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


def test_with_a_cap_only_promised_messages_count_and_never_more_than_that():
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


def test_only_the_first_late_message_of_a_sender_and_round_is_late():
    box = Mailbox()
    box.open(0, {1, 2})
    box.put(0, 1, "a")
    box.take()
    assert [box.put(0, sender, "x") for sender in (1, 2, 2, 2)] == ["duplicate", "late", "duplicate", "duplicate"]
    box.open(REMEMBERED, None)
    assert box.put(0, 3, "x") == "duplicate"  # of rounds long ago nothing is remembered
    assert box.put(1, 3, "x") == "late"


def test_the_tally_goes_on_after_a_restart_without_what_was_early():
    box = Mailbox(tally={"counted": 3, "early": 2, "late": 1})
    box.put(0, 1, "x")
    assert box.tally == Counter(counted=3, late=1, early=1)


def test_messages_may_come_for_the_round_that_is_to_be_opened_next():
    box = Mailbox(ahead=2)
    box.begin_with(40)
    assert [box.put(round, 1, "x") for round in (39, 40, 42)] == ["late", "early", "beyond"]
    box.open(40, {1})
    box.begin_with(60)  # it is open: nothing changes
    assert box.take() == {1: "x"}


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "open", "take", "skip", "promise"]), st.integers(0, 30), st.integers(0, 4))
    )
)
def test_every_message_is_in_one_tally_whatever_happens(steps):
    box, put = Mailbox(ahead=4, room=6, cap=2), 0
    for what, round, sender in steps:
        if what == "put":
            put += 1
            assert box.put(round, sender, "x") in OUTCOMES
        elif what == "promise":
            box.promise(round, sender)
        elif what == "open" and box._taken and round > box.round:
            box.open(round, None)
        elif what == "take" and not box._taken:
            assert len(box.take()) <= 2
        elif what == "skip":
            box.skip()
        assert sum(box.tally.values()) == put
        assert all(number >= 0 for number in box.tally.values())


# -- several mailboxes over a network that drops, delays, duplicates and reorders ----------------------------------------


class Network:
    """Messages in flight; a schedule decides what happens to them."""

    def __init__(self, data, loss):
        self.data, self.loss, self.flying = data, loss, []

    def send(self, *message):
        if self.data.draw(st.floats(0, 1)) >= self.loss:
            self.flying += [message] * self.data.draw(st.sampled_from([1, 1, 1, 2]))

    def deliver(self, boxes):
        """Some of what is in flight, in any order."""
        for _ in range(self.data.draw(st.integers(0, len(self.flying)))):
            round, sender, receiver = self.flying.pop(self.data.draw(st.integers(0, len(self.flying) - 1)))
            assert boxes[receiver].put(round, sender, (round, sender, receiver)) in OUTCOMES


@settings(max_examples=60)
@given(st.data(), st.sampled_from([0.0, 0.3]), st.integers(1, 3))
def test_over_any_network_messages_count_once_and_in_their_round_only(data, loss, s):
    n, rounds = 5, 6
    topology, streams = ELLocal(s), Streams(data.draw(st.integers(0, 9)))
    graphs = [topology.graph(n, t, streams) for t in range(rounds)]
    boxes = [Mailbox(ahead=3, room=8) for _ in range(n)]
    at, network, put = [-1] * n, Network(data, loss), Counter()
    counted = []
    while min(at) < rounds:
        i = data.draw(st.sampled_from([i for i in range(n) if at[i] < rounds]))
        if at[i] >= 0:
            messages = boxes[i].take()
            for sender, message in messages.items():
                assert message == (at[i], sender, i)  # of this round, to this node
                assert sender in graphs[at[i]].into(i)
                counted.append(message)
            assert list(messages) == sorted(messages)
        at[i] += 1
        if at[i] < rounds:
            boxes[i].open(at[i], graphs[at[i]].into(i).tolist())
            for j in graphs[at[i]].out_of(i):
                network.send(at[i], i, int(j))
                put[i] += 1
        network.deliver(boxes)
    assert len(counted) == len(set(counted))  # none twice
    for box in boxes:
        assert all(v >= 0 for v in box.tally.values())


@given(st.integers(0, 9), st.integers(1, 4))
def test_over_a_reliable_network_with_a_barrier_every_message_counts(seed, s):
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
    adaptive_timeout = AdaptiveTimeout(30 * SECOND)
    assert adaptive_timeout.limit == 30 * SECOND
    adaptive_timeout.worked(SECOND)
    for _ in range(WARM_UP):
        adaptive_timeout.waited(SECOND // 10)
    assert adaptive_timeout.limit == SLACK + SECOND + 3 * SECOND // 10
    for _ in range(200):
        adaptive_timeout.waited(2 * SECOND)
    assert adaptive_timeout.limit == SLACK + SECOND + 6 * SECOND
    for _ in range(200):
        adaptive_timeout.waited(100 * SECOND)
    assert adaptive_timeout.limit == 30 * SECOND  # never more


def test_one_of_two_neighbours_cannot_make_a_node_wait_longer_and_longer():
    adaptive_timeout = AdaptiveTimeout(1000 * SECOND)
    for _ in range(WARM_UP):
        adaptive_timeout.worked(SECOND)
        adaptive_timeout.waited(0)
    first = adaptive_timeout.limit
    for _ in range(100):
        adaptive_timeout.waited(0)
        adaptive_timeout.waited(adaptive_timeout.limit)  # just in time, in every round
    assert adaptive_timeout.limit == first


@pytest.mark.parametrize("held_up", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_waits_do_not_feed_on_themselves(held_up):
    """Nodes that listened to a slow one waited for as long as they may, and others wait for them: the limit stays."""
    adaptive_timeout, stream = AdaptiveTimeout(1000 * SECOND), Streams(1)("test")
    for _ in range(WARM_UP):
        adaptive_timeout.worked(SECOND // 2)
        adaptive_timeout.waited(SECOND // 20)
    first = adaptive_timeout.limit
    for _ in range(500):
        me, sender = stream.uniforms(2) < held_up
        adaptive_timeout.waited(adaptive_timeout.limit if sender and not me else SECOND // 20)
    assert adaptive_timeout.limit == first


def test_others_are_suspected_after_much_more_than_a_rounds_work():
    adaptive_timeout = AdaptiveTimeout(1000 * SECOND)
    assert adaptive_timeout.suspicious == SECOND
    adaptive_timeout.worked(3 * SECOND)
    assert adaptive_timeout.suspicious == 12 * SECOND
    for _ in range(2):
        adaptive_timeout.worked(SECOND)
    adaptive_timeout.worked(600 * SECOND)  # the machine slept
    assert adaptive_timeout.suspicious == 8 * SECOND
    adaptive_timeout.worked(SECOND)
    assert adaptive_timeout.suspicious == 4 * SECOND


def test_how_many_senders_have_moved_on():
    box = Mailbox(ahead=4)
    box.open(0, None)
    assert box.moved_on == 0
    box.put(0, 1, "now")
    box.put(1, 2, "next")
    box.put(2, 2, "next but one")
    box.put(1, 3, "next")
    box.put(9, 4, "beyond")
    assert box.moved_on == 2
