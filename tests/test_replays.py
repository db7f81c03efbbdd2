"""Replays: repeated messages cost no signature, and nothing unverified keeps a true message out."""

from hypothesis import given
from hypothesis import strategies as st

from epidemic.deploy.replays import FAR, Replays
from epidemic.protocol.events import SECOND
from epidemic.protocol.replay_filter import MOST_A_SECOND, WINDOW


def taken(replays, number, nodes=(0,), now=0, sender=1):
    """Sort a message and verify it, if it is to be."""
    found = replays.sort(sender, number, nodes, now)
    if found == "new":
        replays.verified(sender, number, nodes)
    return found


def test_what_was_verified_is_recognised_for_each_node_here():
    replays = Replays(lambda: (0, 20))
    assert [taken(replays, 5, nodes) for nodes in ((0,), (0,), (0, 3), (3,), (0, 3))] == [
        "new", "duplicate", "new", "duplicate", "duplicate"
    ]  # fmt: skip
    assert taken(replays, 5, sender=2) == "new"


@given(st.lists(st.integers(0, 30)))
def test_what_was_not_verified_never_keeps_the_true_message_out(forged):
    for replays in (Replays(lambda: (0, 30)), Replays(None)):
        for number in forged:
            replays.sort(1, number, (0,), 0)
        assert replays.sort(1, 30, (0,), 0) == "new"


def test_of_rounds_far_away_a_few_are_verified_so_that_it_is_known_where_a_sender_is():
    replays = Replays(lambda: (100, 120))
    old = [taken(replays, i % 100) for i in range(1000)]
    assert old.count("new") == 2 * FAR
    assert set(old[2 * FAR :]) == {"duplicate"}
    assert taken(replays, 500, now=0) == "beyond"
    assert taken(replays, 110) == "new"  # those that matter are not concerned
    assert taken(replays, 500, now=SECOND) == "new"
    assert taken(replays, 500, now=SECOND) == "new"  # one too far ahead was not kept, so that it may come again


def test_what_is_remembered_of_rounds_is_bounded():
    at = 0
    replays = Replays(lambda: (at - 16, at + 8))
    for at in range(5000):
        assert taken(replays, at) == "new"
        assert taken(replays, at) == "duplicate"
    assert len(replays._senders[1].seen) <= 60


def test_numbered_messages_count_once_and_may_overtake_each_other_by_a_window():
    replays = Replays(None)
    start = 10**15
    for i in range(5 * WINDOW):
        now = i * SECOND // 100
        assert taken(replays, start + i, now=now) == "new"
    assert taken(replays, start + 5 * WINDOW - 1, now=now) == "duplicate"
    assert taken(replays, start, now=now) == "duplicate"  # older than the window
    assert taken(replays, start + 5 * WINDOW + 100, now=now) == "new"
    assert taken(replays, start + 5 * WINDOW + 50, now=now) == "new"
    assert len(replays._senders[1].seen) <= 2 * WINDOW


def test_more_numbered_messages_of_one_sender_than_twice_those_that_count_are_not_verified():
    for parts in (1, 3):
        replays = Replays(None, parts)
        found = [taken(replays, i) for i in range(4000 * parts)]
        most = 2 * SECOND // (SECOND // (2 * MOST_A_SECOND * parts))
        assert found == ["new"] * most + ["flood"] * (4000 * parts - most)
