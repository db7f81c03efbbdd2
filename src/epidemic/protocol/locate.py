"""A node that does not know how far its peers are asks some of them, drawn at random.

It asks in two cases. First, a peer claims to be far ahead, and the last reports of other witnesses are too old to confirm it. Second, the node does not
know whom to expect, and a round brought almost no messages: either nobody drew this node, or it is ahead of the others and must wait.

The question is a greeting; the answer is a signed handshake with the round of its sender. Few peers are asked, at random, and not more often than the
pauses below allow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epidemic.protocol.events import SECOND, Greet

if TYPE_CHECKING:
    from epidemic.protocol.rounds import Rounds

SOME = 5
"""How many peers are asked whether this node is ahead."""
PAUSE = SECOND
"""The shortest time between two questions of one kind."""
LONGEST = 60 * SECOND
"""The longest time between questions for the front that brought no news."""


class Locate:
    """What one node asks about the rounds of its peers."""

    def __init__(self, node: Rounds) -> None:
        self._node = node
        self._asked: list[int] = []  # carriers asked whether this node is ahead ...
        self._asked_at = -PAUSE  # ... at this time
        self._company_round = -1  # round in which other nodes were found, too ...
        self._company_since = 0  # ... and since when
        self._front_asked: list[int] = []  # carriers asked how far they are ...
        self._front_asked_at = 0  # ... at this time
        self._front_from = 0  # earliest time to ask again
        self._front_pause = PAUSE

    def ask_for_front(self) -> bool:
        """Ask how far the peers are, less and less often while nothing changes; False: too early."""
        now = self._node.now
        if now < self._front_from:
            return False
        self._front_from = now + self._front_pause
        self._front_pause = min(LONGEST, 2 * self._front_pause)
        self._front_asked, self._front_asked_at = self._ask(2 * self._node.membership.witnesses(now)), now
        return True

    @property
    def front_is_known(self) -> bool:
        """Whether all peers asked for the front have answered."""
        membership = self._node.membership
        return all(membership.answered(carrier, self._front_asked_at) is not None for carrier in self._front_asked)

    def found_front(self) -> None:
        """Reset the pause between questions: this node was behind."""
        self._front_pause = PAUSE

    def in_company_since(self, round: int) -> int | None:
        """Since when a third of a random few peers are known to have reached this round; None if unknown (and ask them)."""
        node, now = self._node, self._node.now
        if self._company_round == round:
            return self._company_since
        answers = [node.membership.answered(carrier, self._asked_at) for carrier in self._asked]
        there = sum(answer is not None and answer >= round for answer in answers)
        if answers and 3 * there >= len(answers):
            self._company_round, self._company_since = round, now
            return now
        if now - self._asked_at >= PAUSE:
            self._asked, self._asked_at = self._ask(SOME), now
        return None

    def _ask(self, number: int) -> list[int]:
        node = self._node
        carriers, drawn = sorted(node.membership.carriers(node.now)), list[int]()
        while carriers and len(drawn) < number:
            drawn.append(carriers.pop(node.draw(len(carriers))))
        for carrier in drawn:
            node.act(Greet(carrier))
        return drawn
