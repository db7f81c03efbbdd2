"""Rounds under the simulated clock: a node trains, sends, waits until its closing rule (`close`) says that the round is over, and mixes.

Messages of rounds that are closed are dropped, or carried into the next mixture. A node does not leave rounds out, unless it may catch up or
was away: then it keeps its model and goes on in the round that it hears of. Two rules need more than the answer when to close: `GlobalNode` opens
rounds for all at once, `ScheduledNode` closes by the time of day.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from epidemic.close import NEVER, Close, CloseSchedule
from epidemic.protocol.node import Letter, Node, Row


class InRounds(Protocol):
    """What a node in rounds knows and can have done, besides what every node can."""

    id: int
    now: int

    def awaited(self, round: int) -> int:
        """How many letters it waits for."""
        ...

    def open(self, round: int) -> None:
        """Begin to train for a round."""
        ...

    def post(self, round: int) -> None:
        """Send what was trained."""
        ...

    def close(self, round: int, letters: Sequence[Letter], ages: Sequence[int]) -> None:
        """Mix these letters, by ascending sender, so many rounds old."""
        ...

    def passed(self, rounds: int = 1) -> None:
        """So many rounds are behind it."""
        ...

    def wait_for_all(self, round: int) -> None:
        """Be woken with "all" when everybody waits in this round."""
        ...

    def wake_at(self, time: int, tag: str = "") -> None:
        """Be woken."""
        ...

    def cancel(self, tag: str) -> None:
        """Do not be woken."""
        ...

    def dropped(self, letters: Sequence[Letter]) -> None:
        """Count letters that were of no use."""
        ...

    def used(self, letters: Sequence[Letter]) -> None:
        """Count letters that went into the model."""
        ...

    def finish(self) -> None:
        """All rounds are done."""
        ...


class ClosingNode(Node):
    """A node that opens and closes its rounds by itself, as `close` says."""

    me: Any  # an InRounds

    def __init__(self, me: Any, rounds: int, close: Close) -> None:
        """`rounds`: how many there are in all."""
        super().__init__(me)
        self.rounds = rounds
        self.round = 0
        self.waiting = False  # for messages, having sent its own
        self._rule = close
        self._catch_up = bool(getattr(close, "catch_up", False))
        self._since = 0  # when it began to wait
        self._inbox: dict[int, Letter] = {}
        self._early: dict[int, dict[int, Letter]] = {}
        self._carried: dict[int, tuple[int, Letter]] = {}  # by sender: round, message
        self._heard_of = 0  # the latest round that somebody is in
        self._joining = False  # it was away, and goes on where the others are

    def started(self) -> None:
        """Open the first round."""
        self._open(0)

    def _open(self, round: int) -> None:
        self.round = round
        if round >= self.rounds:
            self._end()
            return
        self._inbox = self._early.pop(round, {})
        self.me.open(round)

    def _end(self) -> None:
        left = [letter for letters in self._early.values() for letter in letters.values()]
        self.me.dropped(left + [letter for _, letter in self._carried.values()])
        self._early, self._carried, self._inbox = {}, {}, {}
        self.me.finish()

    def trained(self, row: Row) -> None:
        """Send, and look whether everything is there already."""
        self.me.post(self.round)
        self.waiting, self._since = True, self.me.now
        limit = self._rule.limit(NEVER)
        if limit < NEVER:
            self.me.wake_at(self.me.now + limit, "deadline")
        self.look()

    def received(self, letter: Letter) -> None:
        """Letters of this round count; later ones are kept; earlier ones are late."""
        round = letter.note[0]
        self._heard_of = max(self._heard_of, round)
        if round < self.round or self.round >= self.rounds:
            self._late(round, letter)
        elif round == self.round:
            self._inbox[letter.sender] = letter
            if self.waiting:
                self.look()
        else:
            self._early.setdefault(round, {})[letter.sender] = letter

    def _late(self, round: int, letter: Letter) -> None:
        before = self._carried.get(letter.sender)
        if not self._rule.carries or self.round >= self.rounds or (before is not None and before[0] >= round):
            self.me.dropped([letter])
            return
        if before is not None:
            self.me.dropped([before[1]])
        self._carried[letter.sender] = (round, letter)

    def close(self) -> None:
        """Mix what was heard, and go on."""
        self.waiting = False
        self.me.cancel("deadline")
        heard = {sender: (0, letter) for sender, letter in self._inbox.items()}
        for sender, (round, letter) in self._carried.items():
            if sender in heard:
                self.me.dropped([letter])
            else:
                heard[sender] = (self.round - round, letter)
        self._inbox, self._carried = {}, {}
        those = [heard[sender] for sender in sorted(heard)]
        self.me.close(self.round, [letter for _, letter in those], [age for age, _ in those])
        self.me.used([letter for _, letter in those])
        self.closed()

    def go_on(self) -> None:
        """Open the next round, or a later one where it may catch up."""
        to = self.round + 1
        if (self._catch_up or self._joining) and self._heard_of > to:
            to = min(self._heard_of, self.rounds)
            for round in [round for round in self._early if round < to]:
                for letter in self._early.pop(round).values():
                    self._late(round, letter)
        self._joining = False
        self.me.passed(to - self.round)
        self._open(to)

    def online(self) -> None:
        """Back again: the others may be rounds ahead."""
        self._joining = True

    def letters_held(self) -> int:
        """Those of this round and later ones, and those that are carried."""
        return len(self._inbox) + sum(map(len, self._early.values())) + len(self._carried)

    def look(self) -> None:
        """Close the round if it is over."""
        awaited, heard = self.me.awaited(self.round), len(self._inbox)
        waited, missing = self.me.now - self._since, heard < awaited
        if self._rule.left(heard=heard, expected=awaited, missing=missing, waited=waited, usual=NEVER) <= 0:
            self.close()

    def woken(self, tag: str) -> None:
        """The longest wait may be over."""
        if self.waiting:
            self.look()

    def closed(self) -> None:
        """The messages of the round are mixed."""
        self.go_on()


class GlobalNode(ClosingNode):
    """Everybody opens the next round at the same moment."""

    def closed(self) -> None:
        """Wait for all others."""
        self.me.wait_for_all(self.round)

    def woken(self, tag: str) -> None:
        """Everybody is done."""
        self.go_on()


class ScheduledNode(ClosingNode):
    """Rounds end at fixed times for everybody."""

    def __init__(self, me: Any, rounds: int, close: CloseSchedule) -> None:
        super().__init__(me, rounds, close)
        self._every = close.period

    def started(self) -> None:
        """The first round ends after one period."""
        self.me.wake_at(self._every, "round")
        super().started()

    def look(self) -> None:
        """Only time ends a round."""

    def woken(self, tag: str) -> None:
        """A round is over; who still trains goes on with it in the next one."""
        to = self.me.now // self._every  # timers of a node that was away come late
        if to < self.rounds:
            self.me.wake_at((to + 1) * self._every, "round")
        self._heard_of = max(self._heard_of, to)
        if self.waiting:
            self.close()
        else:
            self._pass_over(to)

    def closed(self) -> None:
        """The next round is that of the schedule."""
        self._joining = True
        self.go_on()

    def _pass_over(self, to: int) -> None:
        """It still trains: the rounds go by without it."""
        late = list(self._inbox.values())
        self._inbox, passed, self.round = {}, min(to, self.rounds) - self.round, min(to, self.rounds)
        for letter in late:
            self._late(self.round - passed, letter)
        for round in [round for round in self._early if round < self.round]:
            for letter in self._early.pop(round).values():
                self._late(round, letter)
        self.me.passed(passed)
        if self.round >= self.rounds:
            self._end()
            return
        self._inbox = self._early.pop(self.round, {})
