"""The search: a node looks for its peers before it begins; if they began without it, it continues in their round.

At the start it waits for all nodes with a barrier, otherwise for the founders, at most `network.patience`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epidemic.protocol.events import SECOND, Adopt, Answered, Greet
from epidemic.protocol.greeting import PATIENCE as UNDERSTOOD
from epidemic.protocol.rules import listed

if TYPE_CHECKING:
    from epidemic.protocol.member import Member

DONORS = 5
"""Peers asked for a model, one after the other, before a node continues with its own."""
TAKEN = 12 * SECOND
"""How long another process may show this node's id: an earlier start whose end has not been noticed yet."""
TELL = 5 * SECOND
"""How often the awaited peers are logged."""


class Search:
    """How one node finds its peers and their round."""

    def __init__(self, node: Member) -> None:
        self._node = node
        self._told: int | None = None  # when the awaited peers were last logged
        self._donors: list[int] = []
        self._donor: int | None = None  # the peer being asked for a model
        self._goal = -1  # the round to continue from

    # -- looking ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Wait for the peers; then begin, catch up, or fail."""
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
        """Whether all awaited peers are alive, or so many run another experiment that waiting is useless; a single one says little."""
        differing, nodes = self._node.membership.differing, self._node.rules.nodes
        several_differ = len(differing) >= self._node.membership.witnesses(self._node.now)
        everybody = founders - differing.keys() <= alive and (bool(alive) or several_differ)
        return everybody or len(differing) > nodes // 2

    def _begun(self, waited: int) -> bool:
        """Whether the peers have begun, and all live ones have reported their round or had time to."""
        node = self._node
        introduced = not node.membership.strangers() or waited > UNDERSTOOD
        return not node.rules.barrier and waited > SECOND and introduced and node.membership.front(node.now) >= 0

    def _problem(self, founders: frozenset[int], alive: frozenset[int]) -> str | None:
        """Why the node cannot begin; None if it can."""
        rules, differing = self._node.rules, self._node.membership.differing
        within = f"within {rules.patience / SECOND:g} s (network.patience)"
        if len(differing) > len(alive):
            node_id, different = sorted(differing.items())[0]
            return f"node {node_id} runs another experiment: {'; '.join(different[:4])}; all nodes must agree"
        if not alive:
            return f"no other node was found {within}"
        if rules.barrier and not founders <= alive:
            missing = listed(sorted(founders - alive))
            return f'{missing} did not join {within}; network.close.kind = "barrier" needs all nodes'
        return None

    # -- catching up --------------------------------------------------------------------------------------------------

    def _rejoin(self, front: int) -> None:
        """Continue in the peers' round, with one of their models or the node's own."""
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
            node.say("no peer sent a model; continuing with this node's own")
        self._continue("with its own model")

    def answered(self, event: Answered) -> None:
        """Handle the answer of a peer asked for its model."""
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
        """Continue with the model received from a peer."""
        if self._node.phase == "adopting":
            self._continue("with another node's model")

    def _continue(self, how: str) -> None:
        node = self._node
        node.go_to(self._goal, how)
        node.act(Greet(None))  # tells them from which round to expect this node
        node.open()
