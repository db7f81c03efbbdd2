"""Mailbox: decides which messages count. Messages are opaque.

A node works on one round at a time. A message is for a round, from a sender:
  counted     for the open round, from somebody who was expected (or anybody, where nobody knows whom to expect)
  early       for one of the next rounds: kept until that round is open; never more than `room` of them
  late        for a round that is closed, the first of its sender for it
  duplicate   a further one of its sender for the same round
  unexpected  from somebody who has nothing to send to this node in that round
  beyond      too far ahead, or no room: not kept
  skipped     counted, but its round was left for a later one
Each message is put away as exactly one of these when it comes; an early one counts (or turns out unexpected) when its round opens.

A round is taken once: messages that come afterwards are late, so that none is averaged twice and none in another round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

L = TypeVar("L")

OUTCOMES = ("counted", "early", "late", "duplicate", "unexpected", "beyond")
REMEMBERED = 16
"""Closed rounds of which it is remembered who was heard."""


class Mailbox(Generic[L]):
    """The messages of one node."""

    def __init__(
        self,
        *,
        ahead: int = 8,
        room: int = 1024,
        cap: int | None = None,
        most: int | None = None,
        tally: Mapping[str, int] | None = None,
    ) -> None:
        """Keep messages of so many rounds ahead, and no more than `room` of them; with a cap, count only those promised a place.

        `most`: after so many messages a round is `full`.
        `tally` is what was counted before a restart; what was early then is gone.
        """
        self.round = -1  # the last round that was opened
        self.tally: Counter[str] = Counter({k: v for k, v in (tally or {}).items() if k != "early"})
        self._ahead = ahead
        self._room = room
        self._taken = True
        self._expected: frozenset[int] | None = frozenset()
        self._cap = cap
        self._most = most
        self._promised: dict[int, set[int]] = {}  # by round: whose offers were accepted
        self._messages: dict[int, L] = {}  # of the open round, by sender
        self._early: dict[tuple[int, int], L] = {}  # by round and sender
        self._seen: dict[int, set[int]] = {}  # by round: who was heard, of the open and the last rounds

    def open(self, round: int, expected: Iterable[int] | None) -> None:
        """Begin a round. None expected: anybody may send."""
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
        """The next round to be opened is this one: messages for it and the following may come now."""
        if self._taken:
            self.round = max(self.round, round - 1)

    def put(self, round: int, sender: int, message: L) -> str:
        """Take a message in, and say what becomes of it: one of OUTCOMES."""
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
        """Whether this is the first message of its sender for a round; of rounds long ago nothing is remembered."""
        if round <= self.round - REMEMBERED:
            return False
        seen = self._seen.setdefault(round, set())
        first = sender not in seen
        seen.add(sender)
        return first

    def turn_away(self) -> None:
        """A message came from somebody who has nothing to send to this node in its round."""
        self.tally["unexpected"] += 1

    def full(self, round: int, sender: int) -> bool:
        """Whether a round that is open or to come has as many messages as may count, none of them from this sender."""
        if self._most is None or round < self.round or (round == self.round and self._taken):
            return False
        there = self._messages.keys() if round == self.round else self.early(round)
        return len(there) >= self._most and sender not in there

    def early(self, round: int) -> set[int]:
        """Whose messages of a round to come are here."""
        return {by for of, by in self._early if of == round}

    def promise(self, round: int, sender: int) -> bool:
        """Whether a message that is offered will be taken: a round has `cap` places, given in the order of the offers."""
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
        """Somebody who was expected has nothing to send in this round."""
        if round == self.round and self._expected is not None:
            self._expected -= {sender}

    def missing(self) -> frozenset[int]:
        """Who was expected but has not been heard in the open round."""
        return (self._expected or frozenset()) - self._messages.keys()

    @property
    def heard(self) -> int:
        """How many messages count so far in the open round."""
        return len(self._messages)

    @property
    def held(self) -> int:
        """How many messages are here, of the open round and later ones."""
        return len(self._messages) + len(self._early)

    @property
    def moved_on(self) -> int:
        """How many senders have sent messages of later rounds already."""
        return len({sender for _, sender in self._early})

    def take(self) -> dict[int, L]:
        """Close the round: its messages, by sender in ascending order."""
        if self._taken:
            raise ValueError(f"round {self.round} was taken before")
        self._taken = True
        messages, self._messages = self._messages, {}
        return {sender: messages[sender] for sender in sorted(messages)}

    def skip(self) -> None:
        """Leave the open round, if there is one, without taking its messages: none of them counts."""
        skipped = 0 if self._taken else len(self.take())
        self.tally["counted"] -= skipped
        self.tally["skipped"] += skipped
