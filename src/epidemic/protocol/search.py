"""Search: a node looks for the others before it begins; where they have begun without it, it goes on where they are.

What it waits for at the start: everybody with a barrier, otherwise the founders; for no longer than its patience.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epidemic.protocol.events import SECOND, Adopt, Answered, Greet
from epidemic.protocol.greeting import PATIENCE as UNDERSTOOD
from epidemic.protocol.rules import listed

if TYPE_CHECKING:
    from epidemic.protocol.member import Member

DONORS = 5
"""How many others are asked for a model, one after the other, before a node goes on with its own."""
TAKEN = 12 * SECOND
"""For so long another process may be shown at this node's place: an earlier one whose end was not noticed yet."""
TELL = 5 * SECOND
"""How often it is told whom the node waits for, from the start."""


class Search:
    """How one node finds the others, and where they are."""

    def __init__(self, node: Member) -> None:
        self._node = node
        self._told: int | None = None  # when it was told last whom it waits for
        self._donors: list[int] = []
        self._donor: int | None = None  # who is just asked for a model
        self._goal = -1  # the round to go on from

    # -- looking ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Wait for the others; begin, catch up, or give up."""
        node = self._node
        rules, membership, waited = node.rules, node.membership, node.now - node.began
        if membership.others_here(node.token):
            if waited > TAKEN:
                node.fail(f"another process runs as node {rules.node_id}; stop it first", bad_input=True)
            return
        alive = membership.alive(node.now)
        founders = rules.others if rules.barrier else rules.founders
        if not (self._complete(founders, alive) or self._begun(waited) or waited > rules.patience):
            if self._told is None or node.now - self._told > TELL:
                self._told = node.now
                missing, nobody = sorted(founders - alive), "" if alive else "; nobody answers yet"
                node.say(f"waiting for {len(missing)} of {len(founders)} others: {listed(missing)}{nobody}")
            return
        problem = self._problem(founders, alive)
        if problem is not None:
            node.fail(problem, bad_input=True)
            return
        node.introductions.found(alive)
        front = membership.front(node.now)
        if membership.began_without_us(node.now) and front > node.done and not rules.barrier:
            self._rejoin(front)
        else:
            node.open()

    def _complete(self, founders: frozenset[int], alive: frozenset[int]) -> bool:
        """Whether everybody who is waited for is there, or so many differ that it is no use to wait; one alone who differs says little."""
        differing, nodes = self._node.membership.differing, self._node.rules.nodes
        several_differ = len(differing) >= self._node.membership.witnesses(self._node.now)
        everybody = founders - differing.keys() <= alive and (bool(alive) or several_differ)
        return everybody or len(differing) > nodes // 2

    def _begun(self, waited: int) -> bool:
        """Whether the others have begun, and all who are there have said where they are, or had the time to."""
        node = self._node
        introduced = not node.membership.strangers() or waited > UNDERSTOOD
        return not node.rules.barrier and waited > SECOND and introduced and node.membership.front(node.now) >= 0

    def _problem(self, founders: frozenset[int], alive: frozenset[int]) -> str | None:
        """Why the node cannot begin."""
        rules, differing = self._node.rules, self._node.membership.differing
        within = f"within {rules.patience / SECOND:g} s (network.patience)"
        if len(differing) > len(alive):
            node_id, different = sorted(differing.items())[0]
            return f"node {node_id} runs another experiment: {'; '.join(different[:4])}; all nodes must agree"
        if not alive:
            return f"no other node was found {within}"
        if rules.barrier and not founders <= alive:
            missing = listed(sorted(founders - alive))
            return f'{missing} did not come {within}; with network.close.kind = "barrier" everyone must be there'
        return None

    # -- catching up --------------------------------------------------------------------------------------------------

    def _rejoin(self, front: int) -> None:
        """Go on where the others are, with one of their models or the own one."""
        node = self._node
        node.enter("adopting")
        self._goal = front + 1
        donors = node.membership.learning(node.now) if node.wants_model else []
        self._donors = []
        while donors and len(self._donors) < DONORS:
            self._donors.append(donors.pop(node.draw(len(donors))))
        self._ask_donor()

    def _ask_donor(self) -> None:
        node = self._node
        self._goal = max(self._goal, node.membership.front(node.now) + 1)
        self._donor = self._donors.pop(0) if self._donors else None
        if self._donor is not None:
            node.ask("model", self._donor, self._goal - 1, min(5 * SECOND, max(SECOND, node.rules.deadline)))
            return
        if node.wants_model:
            node.say("nobody gave a model; going on with the own one")
        self._go_on("with its own model")

    def answered(self, event: Answered) -> None:
        """A model was given, or not."""
        node = self._node
        if node.phase != "adopting" or event.by != self._donor:
            return
        self._donor = None
        if event.answer is None or isinstance(event.answer, str):
            self._ask_donor()
        else:
            self._goal = max(self._goal, node.membership.front(node.now) + 1)
            node.act(Adopt(event.answer))

    def adopted(self) -> None:
        """The model that was given is taken."""
        if self._node.phase == "adopting":
            self._go_on("with another node's model")

    def _go_on(self, how: str) -> None:
        node = self._node
        node.go_to(self._goal, how)
        node.act(Greet(None))  # from when to expect this node
        node.open()
