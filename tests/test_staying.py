"""Nodes come together again after whatever went wrong, and stay together: long simulated schedules. The laws are in `staying.py`."""

import os

import pytest

import staying
from epidemic.protocol import rounds
from epidemic.protocol.closing_rules import NEVER, CloseAdaptive
from epidemic.protocol.locate import Locate
from epidemic.protocol.membership import Membership
from epidemic.protocol.rounds import Rounds
from simulated import with_part

SECOND = staying.SECOND
CHUNKS = 16
SCHEDULES = int(os.environ.get("EPIDEMIC_LONG_SCHEDULES", "128"))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_laws_of_staying_together_hold_on_every_schedule(chunk):
    each = SCHEDULES // CHUNKS
    for seed in range(chunk * each, (chunk + 1) * each):
        try:
            staying.run(seed)
        except Exception as problem:
            pytest.fail(f"{problem!r}; replay it: python tests/soak.py --long --seed {seed}")


def schedule(n, **what):
    """Nodes that train for 30 ms, on a quick network."""
    settings = {
        "seed": 1, "n": n, "rounds": staying.ENDLESS, "topology": "el-local", "s": min(2, n - 1), "close": "adaptive", "private": False,
        "cap": None, "deadline": 30 * SECOND, "patience": 60 * SECOND, "compute": [30_000] * n, "delay": (1_000, 2_000), "loss": 0.0,
        "doubling": 0.0,
    }  # fmt: skip
    return staying.LongSchedule(**settings | what)


PAUSE = [(4 * SECOND, "stop", i, 3 * SECOND // 2) for i in (1, 2)]


class Soon(staying.Long):
    """As `Long`, but there is no time to settle but that of a few rounds."""

    def settling(self):
        return 2 * SECOND


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("close", ["adaptive", "deadline", "quorum", "barrier"])
def test_a_pause_of_all_but_one_takes_nobody_apart(n, close):
    pause = [(4 * SECOND, "stop", i, 3 * SECOND // 2) for i in range(1, n)]
    Soon(schedule(n, close=close, faults=pause)).play().check()


@pytest.mark.parametrize("n", [3, 4, 5])
def test_messages_that_are_late_once_take_nobody_apart(n):
    for late in (1, 2, 4):
        Soon(schedule(n, delayed=[(4 * SECOND, 4 * SECOND + SECOND // 20, 0, late * SECOND)])).play().check()


@pytest.mark.parametrize("s", [2, 8])
def test_a_few_that_ran_ahead_of_a_long_pause_wait_for_the_others(s):
    pause = [(3 * SECOND, "stop", i, 9 * SECOND) for i in range(3, 9)]
    staying.Long(schedule(9, s=s, deadline=2 * SECOND, compute=[60_000] * 9, faults=pause)).play().check()


def test_a_node_that_nobody_held_up_still_has_its_message_for_one_that_was_cut_off():
    staying.run(
        545
    )  # four nodes with a barrier and one message a round; one of them gets four rounds ahead in a split of 1.5 s


def test_the_schedules_have_everything_that_can_happen():
    drawn = [staying.drawn(seed) for seed in range(SCHEDULES)]
    assert {s.close for s in drawn} == {"adaptive", "quorum", "barrier"}
    assert {fault[1] for s in drawn for fault in s.faults} == {"crash", "stop", "jump", "split"}
    assert {s.n for s in drawn} >= {2, 3, 4, 12, 24}
    for some in ("private", "cap", "delayed", "amnesia"):
        assert any(getattr(s, some) for s in drawn), some
    assert any(s.slow is not None and s.close == "adaptive" for s in drawn)


# -- each law has teeth -----------------------------------------------------------------------------------------------


def caught(protocol=Rounds, words="", seeds=range(100)):
    """Whether a schedule catches a protocol, for this reason."""
    for seed in seeds:
        try:
            staying.run(seed, protocol)
        except AssertionError as problem:
            if words in str(problem):
                return True
    return False


def test_who_waits_for_nobody_when_it_is_alone_is_caught():
    class Hasty(Membership):
        def worth_waiting_for(self, node_ids, round, now):
            return frozenset()

    assert caught(with_part(membership=Hasty), "alone")


def test_who_gives_up_everybody_and_runs_away_is_caught():
    class Bitter(Membership):
        def given_up(self, node_id, now):
            return True

        def far_behind(self, round, now):
            return False

    with pytest.raises(AssertionError, match=r"apart by [0-9]* rounds too many"):
        Soon(schedule(3, faults=PAUSE), with_part(membership=Bitter)).play().check()


def test_who_does_not_hear_those_that_it_ran_away_from_is_caught():
    class Blind(Soon):
        def look(self):
            pass

    class Bitter(Membership):
        def given_up(self, node_id, now):
            return True

        def far_behind(self, round, now):
            return False

    with pytest.raises(AssertionError, match=r"counted [0-9]* of [0-9]* messages"):
        Blind(schedule(3, faults=PAUSE), with_part(membership=Bitter)).play().check()


def test_who_never_catches_up_is_caught():
    class Steady(Rounds):
        def _caught_up(self, behind):
            return False

    assert caught(Steady, "apart")


def test_who_does_not_ask_where_the_front_is_is_caught():
    class Silent(Locate):
        def ask_for_front(self):
            return False

    assert caught(with_part(locate=Silent), "apart")


def test_who_waits_for_longer_than_the_deadline_is_caught(monkeypatch):
    limit = CloseAdaptive.limit
    monkeypatch.setattr(CloseAdaptive, "limit", lambda close, usual: 10 * limit(close, NEVER))
    assert caught(words="the deadline is")


def test_who_believes_to_be_in_company_without_asking_is_caught():
    class Sociable(Locate):
        def in_company_since(self, round):
            return -10 * SECOND

    private = [seed for seed in range(300) if staying.drawn(seed).private]
    assert caught(with_part(locate=Sociable), seeds=private)


def test_who_leaves_out_rounds_to_be_with_those_that_are_one_ahead_is_caught():
    class Restless(Rounds):
        def _caught_up(self, behind):
            return super()._caught_up(1)

    assert caught(Restless, "leaves out", [seed for seed in range(40) if staying.drawn(seed).slow is not None])


def test_a_slow_node_that_sends_in_rounds_that_are_over_is_caught(monkeypatch):
    monkeypatch.setattr(rounds, "BEHIND", 8)
    slow = [seed for seed in range(300) if staying.drawn(seed).slow is not None]
    assert caught(words="of the slow node counted", seeds=slow)
