"""Limits of links: nobody honest is ever paused, and who floods is paused, then closed, whatever the others do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epidemic.deploy.limits import BAD, CLOSED, COSTS, FULL, MOST_RATE, OWED, RATE, SECONDS, Limits, Verdict
from epidemic.protocol.events import SECOND

TAKEN, DROPPED, CLOSE = Verdict.TAKEN, Verdict.DROPPED, Verdict.CLOSE


def flood(limits, link=1, cost=1, now=0):
    """What became of messages that come all at once, until the link is closed."""
    found = [limits.admit(link, cost, now)]
    while found[-1] is not CLOSE:
        found.append(limits.admit(link, cost, now))
    return found


@given(st.lists(st.integers(0, 3 * RATE), max_size=30))
def test_who_sends_no_more_in_any_second_than_the_rate_is_never_paused(counts):
    limits = Limits()
    for second, count in enumerate(counts):
        for i in range(min(count, RATE)):
            assert limits.admit(1, 1, second * SECOND + i * (SECOND // RATE)) is TAKEN
    assert limits.dropped == 0


@pytest.mark.parametrize(
    ("each", "nodes", "rate"), [(1, 1, RATE), (3, 1, 3 * RATE), (1, 4, 4 * RATE), (5, 9, MOST_RATE)]
)
def test_a_burst_of_some_seconds_is_taken_then_the_link_is_paused_then_closed(each, nodes, rate):
    limits = Limits(each)
    limits.carries(1, nodes, 0)
    found = flood(limits)
    pause = SECOND // rate
    burst = FULL // pause
    assert found == [TAKEN] * burst + [DROPPED] * (len(found) - burst - 1) + [CLOSE]
    assert len(found) == -(-(FULL + OWED) // pause)
    assert limits.dropped == len(found) - burst
    assert limits.closed(1, 0)


def test_another_link_is_not_concerned():
    limits = Limits()
    flood(limits)
    assert limits.admit(2, 1, 0) is TAKEN
    assert not limits.closed(2, 0)


def test_a_paused_link_is_heard_again_once_it_has_been_calm():
    limits = Limits()
    for _ in range(RATE * SECONDS + RATE // 2):
        limits.admit(1, 1, 0)
    assert limits.admit(1, 1, SECOND // 4) is DROPPED
    assert limits.admit(1, 1, FULL) is TAKEN
    assert not limits.closed(1, FULL)


def test_a_closed_link_is_told_once_and_heard_again_after_a_while():
    limits = Limits()
    flood(limits, now=5)
    assert {limits.admit(1, 1, 5 + i) for i in range(1000)} == {DROPPED}
    assert limits.closed(1, 4 + CLOSED * SECOND)
    assert not limits.closed(1, 5 + CLOSED * SECOND)
    again = flood(limits, now=5 + CLOSED * SECOND)
    assert again[: RATE * SECONDS] == [TAKEN] * RATE * SECONDS


def test_greetings_cost_more_than_messages_and_what_no_honest_node_sends_most():
    assert flood(Limits(), cost=COSTS["handshake"]).count(TAKEN) == RATE * SECONDS / COSTS["handshake"]
    limits, bad = Limits(), 0
    while limits.admit(1, 1, 0) is TAKEN:
        bad += 1
        limits.charge(1, BAD, 0)
    assert bad <= RATE * SECONDS / BAD


def test_links_beyond_those_that_can_be_remembered_are_not_heard(monkeypatch):
    monkeypatch.setattr("epidemic.deploy.limits.MOST_LINKS", 2)
    limits = Limits()
    assert [limits.admit(link, 1, 0) for link in range(3)] == [TAKEN, TAKEN, DROPPED]
    limits.carries(5, 3, 0)
    limits.charge(5, 3, 0)
    assert not limits.closed(5, 0)
