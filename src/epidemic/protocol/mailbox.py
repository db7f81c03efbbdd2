"""Mailbox: decides which messages count. Messages are opaque.

A node works on one round at a time. A message has a round and a sender:
  counted     for the open round, from an expected sender (or from anybody, if the node cannot know whom to expect)
  early       for one of the next rounds: kept until that round opens; at most `room` of them
  late        for a closed round, the first of its sender for it
  duplicate   a further message of its sender for the same round
  unexpected  from a node that has no edge to this one in that round
  beyond      too far ahead, or no room: not kept
  skipped     counted, but the node left the round for a later one
Each message gets exactly one of these outcomes on arrival; an early one becomes counted or unexpected when its round opens.

The messages of a round are taken once. Those that arrive afterwards are late, so none is averaged twice or in the wrong round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

L = TypeVar("L")

OUTCOMES = ("counted", "early", "late", "duplicate", "unexpected", "beyond")
REMEMBERED = 16
"""Closed rounds for which the senders are remembered."""


class Mailbox(Generic[L]):
    """The messages that one node has received, and the outcome of each."""

    def __init__(
        self,
        *,
        ahead: int = 8,
        room: int = 1024,
        cap: int | None = None,
        most: int | None = None,
        tally: Mapping[str, int] | None = None,
    ) -> None:
        """Start empty.

        Args:
            ahead: Rounds ahead of the open one for which messages are kept.
            room: Most early messages kept.
            cap: Messages that a round accepts, each offered before; None: no limit, no offers.
            most: Messages after which a round is `full`; None: never.
            tally: Messages by outcome before a restart; early ones were lost.
        """
        self.round = -1  # the last opened round
        self.tally: Counter[str] = Counter({k: v for k, v in (tally or {}).items() if k != "early"})
        self._ahead = ahead
        self._room = room
        self._taken = True
        self._expected: frozenset[int] | None = frozenset()
        self._cap = cap
        self._most = most
        self._promised: dict[int, set[int]] = {}  # by round: senders whose offers were accepted
        self._messages: dict[int, L] = {}  # of the open round, by sender
        self._early: dict[tuple[int, int], L] = {}  # by round and sender
        self._seen: dict[int, set[int]] = {}  # senders by round, of the open and the last rounds

    def open(self, round: int, expected: Iterable[int] | None) -> None:
        """Open a round; `expected` are its in-neighbours, None if anybody may send."""
        if not self._taken:
            raise ValueError(f"round {self.round} is still open")
        if round <= self.round:
            raise ValueError(f"round {round} was open before: the last one was {self.round}")
        self.round, self._taken = round, False
        self._expected = None if expected is None else frozenset(expected)
        self._promised = {of: senders for of, senders in self._promised.items() if of >= round}
        self._seen = {of: senders for of, senders in self._seen.items() if of > round - REMEMBERED}
        self._messages = {}
        waiting, self._early = self._early, {}
        for (of, sender), message in waiting.items():
            if of > round:
                self._early[of, sender] = message
            else:
                self.tally["early"] -= 1
                self.tally[self._sort(of, sender, message)] += 1

    def begin_with(self, round: int) -> None:
        """Accept messages for this round and later ones, before it is opened."""
        if self._taken:
            self.round = max(self.round, round - 1)

    def put(self, round: int, sender: int, message: L) -> str:
        """Take in a message and return its outcome, one of OUTCOMES."""
        outcome = self._sort(round, sender, message)
        self.tally[outcome] += 1
        return outcome

    def _sort(self, round: int, sender: int, message: L) -> str:
        if round < self.round or (round == self.round and self._taken):
            return "late" if self._first(round, sender) else "duplicate"
        if round == self.round:
            if sender in self._messages:
                return "duplicate"
            if self._expected is not None and sender not in self._expected:
                return "unexpected"
            if self._cap is not None and sender not in self._promised.get(round, ()):
                return "unexpected"
            self._messages[sender] = message
            self._first(round, sender)
            return "counted"
        if (round, sender) in self._early:
            return "duplicate"
        if round > self.round + self._ahead or len(self._early) >= self._room:
            return "beyond"
        self._early[round, sender] = message
        return "early"

    def _first(self, round: int, sender: int) -> bool:
        """Whether this is the first message of its sender for a round; always True for rounds no longer remembered."""
        if round <= self.round - REMEMBERED:
            return False
        seen = self._seen.setdefault(round, set())
        first = sender not in seen
        seen.add(sender)
        return first

    def refuse(self) -> None:
        """Count a message as unexpected."""
        self.tally["unexpected"] += 1

    def full(self, round: int, sender: int) -> bool:
        """Whether an open or later round has all the messages that may count, none of them from this sender."""
        if self._most is None or round < self.round or (round == self.round and self._taken):
            return False
        there = self._messages.keys() if round == self.round else self.early(round)
        return len(there) >= self._most and sender not in there

    def early(self, round: int) -> set[int]:
        """The senders whose early messages for this round are held."""
        return {by for of, by in self._early if of == round}

    def promise(self, round: int, sender: int) -> bool:
        """Whether an offered message will be accepted: a round has `cap` places, given in the order of the offers."""
        if (
            self._cap is None
            or not self.round <= round <= self.round + self._ahead
            or (round == self.round and self._taken)
        ):
            return False
        promised = self._promised.setdefault(round, set())
        if sender not in promised and len(promised) >= self._cap:
            return False
        promised.add(sender)
        return True

    def excuse(self, round: int, sender: int) -> None:
        """Note that an expected sender has no message for this round."""
        if round == self.round and self._expected is not None:
            self._expected -= {sender}

    def missing(self) -> frozenset[int]:
        """The expected senders of the open round whose messages have not arrived."""
        return (self._expected or frozenset()) - self._messages.keys()

    @property
    def heard(self) -> int:
        """How many messages of the open round have been counted."""
        return len(self._messages)

    @property
    def held(self) -> int:
        """How many messages are held, of the open round and later ones."""
        return len(self._messages) + len(self._early)

    @property
    def moved_on(self) -> int:
        """How many senders have already sent messages of later rounds."""
        return len({sender for _, sender in self._early})

    def take(self) -> dict[int, L]:
        """Close the round and return its messages by sender, in ascending order."""
        if self._taken:
            raise ValueError(f"round {self.round} was taken before")
        self._taken = True
        messages, self._messages = self._messages, {}
        return {sender: messages[sender] for sender in sorted(messages)}

    def skip(self) -> None:
        """Leave the open round, if there is one: its messages become skipped."""
        skipped = 0 if self._taken else len(self.take())
        self.tally["counted"] -= skipped
        self.tally["skipped"] += skipped
