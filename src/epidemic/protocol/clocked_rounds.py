"""Rounds under the simulated clock: a node trains, sends, waits until its closing rule (`close`) is met, and aggregates.

Messages for closed rounds are dropped, or carried into the next aggregation. A node skips rounds only if `catch_up` is set or after it was away: it then
keeps its model and continues in the round that it hears of. Two rules need more than a closing condition: `GlobalNode` opens rounds for all nodes at once,
`ScheduledNode` closes them at fixed times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from epidemic.protocol.closing_rules import NEVER, Close, CloseSchedule
from epidemic.protocol.node import Message, Node, Row


class ClockedRoundContext(Protocol):
    """What a node in rounds can ask for, besides what every node can."""

    id: int
    now: int

    def awaited(self, round: int) -> int:
        """The number of messages that the node waits for in this round."""
        ...

    def open(self, round: int) -> None:
        """Start training for a round."""
        ...

    def post(self, round: int) -> None:
        """Send the message of this round to its targets."""
        ...

    def close(self, round: int, messages: Sequence[Message], ages: Sequence[int]) -> None:
        """Aggregate these messages, in ascending order of senders; `ages` counts how many rounds old each is."""
        ...

    def passed(self, rounds: int = 1) -> None:
        """Record that the node has completed or skipped this many rounds."""
        ...

    def wait_for_all(self, round: int) -> None:
        """Call `woken("all")` when every node waits in this round."""
        ...

    def wake_at(self, time: int, tag: str = "") -> None:
        """Call `woken(tag)` at this time, in microseconds."""
        ...

    def cancel(self, tag: str) -> None:
        """Cancel the wake-up with this tag."""
        ...

    def dropped(self, messages: Sequence[Message]) -> None:
        """Count messages that were received but not used."""
        ...

    def used(self, messages: Sequence[Message]) -> None:
        """Count messages that went into the model."""
        ...

    def finish(self) -> None:
        """Record that the node has completed all rounds."""
        ...


class ClosingNode(Node):
    """A node that opens and closes its own rounds by the rule `close`."""

    context: Any  # a ClockedRoundContext

    def __init__(self, context: Any, rounds: int, close: Close) -> None:
        """Start a node that takes part in `rounds` rounds in all."""
        super().__init__(context)
        self.rounds = rounds
        self.round = 0
        self.waiting = False  # it has sent its message and waits for others
        self._rule = close
        self._catch_up = bool(getattr(close, "catch_up", False))
        self._wait_began = 0  # when the wait began
        self._inbox: dict[int, Message] = {}
        self._early: dict[int, dict[int, Message]] = {}
        self._carried: dict[int, tuple[int, Message]] = {}  # by sender: round, message
        self._heard_of = 0  # the latest round that a message came from
        self._rejoining = False  # it was away and has not yet reached the peers' round

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
        """Send the message, and close the round if nothing is missing."""
        self.context.post(self.round)
        self.waiting, self._wait_began = True, self.context.now
        limit = self._rule.limit(NEVER)
        if limit < NEVER:
            self.context.wake_at(self.context.now + limit, "deadline")
        self.look()

    def received(self, message: Message) -> None:
        """Count a message of this round, keep one of a later round, and treat an earlier one as late."""
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
        """Aggregate the messages received so far, and close the round."""
        self.waiting = False
        self.context.cancel("deadline")
        heard = {sender: (0, message) for sender, message in self._inbox.items()}
        for sender, (round, message) in self._carried.items():
            if sender in heard:
                self.context.dropped([message])
            else:
                heard[sender] = (self.round - round, message)
        self._inbox, self._carried = {}, {}
        inputs = [heard[sender] for sender in sorted(heard)]
        self.context.close(self.round, [message for _, message in inputs], [age for age, _ in inputs])
        self.context.used([message for _, message in inputs])
        self.closed()

    def go_on(self) -> None:
        """Open the next round, or a later one if the node may catch up."""
        to = self.round + 1
        if (self._catch_up or self._rejoining) and self._heard_of > to:
            to = min(self._heard_of, self.rounds)
            for round in [round for round in self._early if round < to]:
                for message in self._early.pop(round).values():
                    self._late(round, message)
        self._rejoining = False
        self.context.passed(to - self.round)
        self._open(to)

    def online(self) -> None:
        """Rejoin after an absence: peers may be rounds ahead."""
        self._rejoining = True

    def messages_held(self) -> int:
        """Messages held for this round, for later rounds, or carried from earlier ones."""
        return len(self._inbox) + sum(map(len, self._early.values())) + len(self._carried)

    def look(self) -> None:
        """Close the round if its closing rule is met."""
        awaited, heard = self.context.awaited(self.round), len(self._inbox)
        waited, missing = self.context.now - self._wait_began, heard < awaited
        if self._rule.left(heard=heard, expected=awaited, missing=missing, waited=waited, usual=NEVER) <= 0:
            self.close()

    def woken(self, tag: str) -> None:
        """Check the closing rule again: the longest wait may be over."""
        if self.waiting:
            self.look()

    def closed(self) -> None:
        """Go on after the aggregation of a round."""
        self.go_on()


class GlobalNode(ClosingNode):
    """A node that opens each round at the same moment as all others."""

    def closed(self) -> None:
        """Wait until all other nodes have closed this round."""
        self.context.wait_for_all(self.round)

    def woken(self, tag: str) -> None:
        """Open the next round: all nodes are ready."""
        self.go_on()


class ScheduledNode(ClosingNode):
    """A node whose rounds end at fixed times, the same for all nodes."""

    def __init__(self, context: Any, rounds: int, close: CloseSchedule) -> None:
        super().__init__(context, rounds, close)
        self._every = close.period

    def started(self) -> None:
        """Open the first round, which ends after one period."""
        self.context.wake_at(self._every, "round")
        super().started()

    def look(self) -> None:
        """Do nothing: only the schedule closes a round."""

    def woken(self, tag: str) -> None:
        """Close the round at its scheduled time; a node that still trains continues in the next round."""
        to = self.context.now // self._every  # timers of a node that was away fire late
        if to < self.rounds:
            self.context.wake_at((to + 1) * self._every, "round")
        self._heard_of = max(self._heard_of, to)
        if self.waiting:
            self.close()
        else:
            self._pass_over(to)

    def closed(self) -> None:
        """Open the round that the schedule is in."""
        self._rejoining = True
        self.go_on()

    def _pass_over(self, to: int) -> None:
        """Skip rounds up to `to`, because the node still trains."""
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
