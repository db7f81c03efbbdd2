"""Offers: if receivers have a cap, a message is offered first; if the receiver is full, another random node is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epidemic.protocol.events import ACCEPTED, BUSY, SECOND, Answer, Answered, Asked, Send

if TYPE_CHECKING:
    from epidemic.protocol.rounds import Rounds


class Offers:
    """The offers of one node in one round."""

    def __init__(self, node: Rounds) -> None:
        self._node = node
        self._round = -1
        self._tried: set[int] = set()
        self._alive: frozenset[int] = frozenset()
        self._left: dict[int, int] = {}  # by receiver: how many alternatives may still be tried
        self.undelivered = 0

    def begin(self, round: int, targets: tuple[int, ...], alive: frozenset[int]) -> None:
        """Offer the message of a round to its live targets."""
        self._round, self._alive = round, alive
        self._tried = {*targets, self._node.rules.node_id}
        self._left = {}
        for node_id in targets:
            if node_id in alive:
                self._offer(node_id, self._node.rules.retries)

    def _offer(self, node_id: int, retries: int) -> None:
        self._left[node_id] = retries
        self._node.ask("offer", node_id, self._round, max(SECOND, self._node.adaptive_timeout.limit))

    def answered(self, event: Answered) -> None:
        """Handle the answer to an offer: send, or try another node."""
        if event.round != self._round or event.by not in self._left:
            return
        retries = self._left.pop(event.by)
        if event.answer == ACCEPTED:
            self._node.act(Send(self._round, (event.by,)))
            return
        if event.answer != BUSY:
            self.undelivered += 1
            return
        others = sorted(self._alive - self._tried)
        if retries and others and self._node.round == self._round:
            node_id = others[self._node.draw(len(others))]
            self._tried.add(node_id)
            self._offer(node_id, retries - 1)

    def asked(self, event: Asked) -> None:
        """Handle a peer's offer; it also reveals the peer's round."""
        if 0 <= event.round < self._node.rules.rounds:
            self._node.membership.reached(event.by, event.round)
        promised = self._node.mailbox.promise(event.round, event.by)
        self._node.act(Answer(event.reply, ACCEPTED if promised else BUSY))
