"""Rounds under the simulated clock: a node trains, sends, waits until its closing rule (`close`) says that the round is over, and mixes.

Messages of rounds that are closed are dropped, or carried into the next mixture. A node does not leave rounds out, unless it may catch up or
was away: then it keeps its model and goes on in the round that it hears of. Two rules need more than the answer when to close: `GlobalNode` opens
rounds for all at once, `ScheduledNode` closes by the time of day.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from epidemic.protocol.closing_rules import NEVER, Close, CloseSchedule
from epidemic.protocol.node import Message, Node, Row


class ClockedRoundContext(Protocol):
    """What a node in rounds knows and can have done, besides what every node can."""

    id: int
    now: int

    def awaited(self, round: int) -> int:
        """How many messages it waits for."""
        ...

    def open(self, round: int) -> None:
        """Begin to train for a round."""
        ...

    def post(self, round: int) -> None:
        """Send what was trained."""
        ...

    def close(self, round: int, messages: Sequence[Message], ages: Sequence[int]) -> None:
        """Mix these messages, by ascending sender, so many rounds old."""
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

    def dropped(self, messages: Sequence[Message]) -> None:
        """Count messages that were of no use."""
        ...

    def used(self, messages: Sequence[Message]) -> None:
        """Count messages that went into the model."""
        ...

    def finish(self) -> None:
        """All rounds are done."""
        ...


class ClosingNode(Node):
    """A node that opens and closes its rounds by itself, as `close` says."""

    context: Any  # an InRounds

    def __init__(self, context: Any, rounds: int, close: Close) -> None:
        """`rounds`: how many there are in all."""
        super().__init__(context)
        self.rounds = rounds
        self.round = 0
        self.waiting = False  # for messages, having sent its own
        self._rule = close
        self._catch_up = bool(getattr(close, "catch_up", False))
        self._since = 0  # when it began to wait
        self._inbox: dict[int, Message] = {}
        self._early: dict[int, dict[int, Message]] = {}
        self._carried: dict[int, tuple[int, Message]] = {}  # by sender: round, message
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
        self.context.open(round)

    def _end(self) -> None:
        left = [message for messages in self._early.values() for message in messages.values()]
        self.context.dropped(left + [message for _, message in self._carried.values()])
        self._early, self._carried, self._inbox = {}, {}, {}
        self.context.finish()

    def trained(self, row: Row) -> None:
        """Send, and look whether everything is there already."""
        self.context.post(self.round)
        self.waiting, self._since = True, self.context.now
        limit = self._rule.limit(NEVER)
        if limit < NEVER:
            self.context.wake_at(self.context.now + limit, "deadline")
        self.look()

    def received(self, message: Message) -> None:
        """Messages of this round count; later ones are kept; earlier ones are late."""
        round = message.note[0]
        self._heard_of = max(self._heard_of, round)
        if round < self.round or self.round >= self.rounds:
            self._late(round, message)
        elif round == self.round:
            self._inbox[message.sender] = message
            if self.waiting:
                self.look()
        else:
            self._early.setdefault(round, {})[message.sender] = message

    def _late(self, round: int, message: Message) -> None:
        before = self._carried.get(message.sender)
        if not self._rule.carries or self.round >= self.rounds or (before is not None and before[0] >= round):
            self.context.dropped([message])
            return
        if before is not None:
            self.context.dropped([before[1]])
        self._carried[message.sender] = (round, message)

    def close(self) -> None:
        """Mix what was heard, and go on."""
        self.waiting = False
        self.context.cancel("deadline")
        heard = {sender: (0, message) for sender, message in self._inbox.items()}
        for sender, (round, message) in self._carried.items():
            if sender in heard:
                self.context.dropped([message])
            else:
                heard[sender] = (self.round - round, message)
        self._inbox, self._carried = {}, {}
        those = [heard[sender] for sender in sorted(heard)]
        self.context.close(self.round, [message for _, message in those], [age for age, _ in those])
        self.context.used([message for _, message in those])
        self.closed()

    def go_on(self) -> None:
        """Open the next round, or a later one where it may catch up."""
        to = self.round + 1
        if (self._catch_up or self._joining) and self._heard_of > to:
            to = min(self._heard_of, self.rounds)
            for round in [round for round in self._early if round < to]:
                for message in self._early.pop(round).values():
                    self._late(round, message)
        self._joining = False
        self.context.passed(to - self.round)
        self._open(to)

    def online(self) -> None:
        """Back again: the others may be rounds ahead."""
        self._joining = True

    def messages_held(self) -> int:
        """Those of this round and later ones, and those that are carried."""
        return len(self._inbox) + sum(map(len, self._early.values())) + len(self._carried)

    def look(self) -> None:
        """Close the round if it is over."""
        awaited, heard = self.context.awaited(self.round), len(self._inbox)
        waited, missing = self.context.now - self._since, heard < awaited
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
        self.context.wait_for_all(self.round)

    def woken(self, tag: str) -> None:
        """Everybody is done."""
        self.go_on()


class ScheduledNode(ClosingNode):
    """Rounds end at fixed times for everybody."""

    def __init__(self, context: Any, rounds: int, close: CloseSchedule) -> None:
        super().__init__(context, rounds, close)
        self._every = close.period

    def started(self) -> None:
        """The first round ends after one period."""
        self.context.wake_at(self._every, "round")
        super().started()

    def look(self) -> None:
        """Only time ends a round."""

    def woken(self, tag: str) -> None:
        """A round is over; who still trains goes on with it in the next one."""
        to = self.context.now // self._every  # timers of a node that was away come late
        if to < self.rounds:
            self.context.wake_at((to + 1) * self._every, "round")
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
        for message in late:
            self._late(self.round - passed, message)
        for round in [round for round in self._early if round < self.round]:
            for message in self._early.pop(round).values():
                self._late(round, message)
        self.context.passed(passed)
        if self.round >= self.rounds:
            self._end()
            return
        self._inbox = self._early.pop(self.round, {})
