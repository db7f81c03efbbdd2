"""Whereabouts: a node that cannot tell where the others are asks some of them, drawn at random.

It asks in two cases. Somebody says to be far ahead, and the last word of other witnesses is too old to tell. Or nobody knows whom to
expect, and a round brought next to nothing: either nobody drew this node, or this node is ahead of the others and must wait.

To ask is to greet: the answer is a signed hello with the round that its sender is in. Few are asked, at random, and never faster than the
pauses below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epidemic.protocol.events import SECOND, Greet

if TYPE_CHECKING:
    from epidemic.protocol.rounds import Rounds

SOME = 5
"""How many are asked whether this node is ahead."""
PAUSE = SECOND
"""The shortest time between two questions of one kind."""
LONGEST = 60 * SECOND
"""The longest time between two questions that changed nothing."""


class Locate:
    """What one node asks about the rounds of the others."""

    def __init__(self, node: Rounds) -> None:
        self._node = node
        self._asked: list[int] = []  # carriers that were asked whether this node is ahead ...
        self._asked_at = -PAUSE  # ... at this time
        self._company_round = -1  # in which others were found to be, too ...
        self._company_since = 0  # ... at this time
        self._front_asked: list[int] = []  # carriers that were asked where they are ...
        self._front_asked_at = 0  # ... at this time
        self._front_from = 0  # when the front may be asked for again
        self._front_pause = PAUSE

    def ask_for_front(self) -> bool:
        """Ask where the others are, less and less often as long as nothing comes of it; False: not now."""
        now = self._node.now
        if now < self._front_from:
            return False
        self._front_from = now + self._front_pause
        self._front_pause = min(LONGEST, 2 * self._front_pause)
        self._front_asked, self._front_asked_at = self._ask(2 * self._node.membership.witnesses(now)), now
        return True

    @property
    def front_is_known(self) -> bool:
        """Whether all who were asked for the front have answered."""
        membership = self._node.membership
        return all(membership.answered(carrier, self._front_asked_at) is not None for carrier in self._front_asked)

    def found_front(self) -> None:
        """This node was left behind: asking is worth while."""
        self._front_pause = PAUSE

    def in_company_since(self, round: int) -> int | None:
        """Since when this node knows that a third of some others, who are asked, have reached this round; None: it does not."""
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
