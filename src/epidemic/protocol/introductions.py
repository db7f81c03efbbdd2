"""Introductions: the node exchanges handshakes with its peers and logs who joins and leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epidemic.protocol.events import SECOND, Greet, Introduced
from epidemic.protocol.greeting import Greeting

if TYPE_CHECKING:
    from epidemic.protocol.member import Member


class Introductions:
    """The greetings, handshakes and log lines about peers of one node."""

    def __init__(self, node: Member) -> None:
        self._node = node
        self._greeting = Greeting()
        self._told: frozenset[int] = frozenset()  # live peers as last logged ...
        self._tell_from = 0  # ... and the earliest time to log them again

    def changed(self) -> None:
        """Update after a peer joined, left or became known."""
        self._greeting.look_for(self._node.membership.strangers())
        self.greet()
        self._node.settle()

    def greet(self) -> None:
        """Greet the unknown peers that are due."""
        for node_id in self._greeting.due(self._node.now):
            self._node.act(Greet(node_id))
        if (at := self._greeting.next_time()) is not None:
            self._node.wake("greet", at)

    def ungreeted(self, node_id: int) -> None:
        """Note that a peer gave no valid answer to a greeting."""
        self._greeting.failed(node_id, self._node.now)
        self.greet()

    def introduced(self, handshake: Introduced) -> None:
        """Handle a peer's handshake: check it, and record its round and its settings."""
        node, node_id = self._node, handshake.node_id
        if node_id == node.rules.node_id:
            if handshake.token != node.token:
                node.say_once("twin", "another process uses this node's id")
            return
        if not handshake.differs and not node.commits(handshake):
            node.count.refused["other-commitment"] += 1
            self._greeting.failed(node_id, node.now)
            node.say_once(
                f"commitment {node_id}",
                f"refused node {node_id}: its hash chain differs from the first one; does it have its coin.secret?",
            )
            return
        if not node.membership.introduced(handshake, node.round, node.now):
            node.count.refused["implausible-handshake"] += 1
            node.say_once(f"implausible {node_id}", f"refused the handshake of node {node_id}: implausible")
            return
        if handshake.differs:
            what = "; ".join(handshake.differs[:4])
            node.say_once(f"differs {node_id}", f"refused node {node_id}: it runs another experiment: {what}")
        if node_id == handshake.carrier:
            if (
                node_id in node.membership.strangers()
            ):  # its network token is another one: perhaps an earlier start that has not been seen to end
                self._greeting.failed(node_id, node.now)
            else:
                self._greeting.known(node_id, node.now)
        if not handshake.differs:
            node.met(node_id)
        self.changed()

    def found(self, alive: frozenset[int]) -> None:
        """Log the live peers found at the end of the search."""
        if self._node.rules.partial:
            self._node.say(f"{len(alive)} of {self._node.rules.nodes - 1} peers are known and alive")
        else:
            self._node.say(f"{1 + len(alive)} of {self._node.rules.nodes} nodes are there")
        self._told = alive

    def tell(self) -> None:
        """Log which peers joined and left, at most once a second. Partial views change all the time and are not logged."""
        node = self._node
        if node.rules.partial or node.now < self._tell_from or node.phase in ("starting", "looking"):
            return
        alive = node.membership.alive(node.now)
        if alive is self._told:
            return
        gone, come = self._told - alive - node.membership.finished, alive - self._told
        for node_id in sorted(gone):
            node.say(f"{node.unit} {node.round}: node {node_id} is gone")
        for node_id in sorted(come):
            node.say(f"{node.unit} {node.round}: node {node_id} is there")
        if gone or come:
            self._tell_from = node.now + SECOND
        self._told = alive
