"""Gate: stands before everything that comes over a process's links, and says what `limits` decides. Called by Zenoh's threads: it returns at once."""

from __future__ import annotations

from collections.abc import Callable

from epidemic.deploy.event_loop import EventLoop, now
from epidemic.deploy.limits import BAD, CLOSED, COSTS, Limits, Verdict
from epidemic.deploy.transport import ANYBODY, OBSERVER, Transport


class Gate:
    """Drops what comes over a link that carries too much, before anything is read."""

    def __init__(self, transport: Transport, loop: EventLoop, say: Callable[[str], None], each: int) -> None:
        """`each`: how many messages a node sends to this process in a round."""
        self._transport, self._loop, self._say = transport, loop, say
        self._limits = Limits(each)
        self._told: set[int] = set()  # whose links carried too much

    def open(self) -> None:
        """Have the transport ask this gate about everything that comes in."""
        self._transport.admit = self.admit
        self._transport.unwelcome = lambda node_id: self._limits.closed(node_id, now())

    def admit(self, link: int, what: str) -> bool:
        """Whether something is taken that came over a link; who sends more than any honest node is paused, then closed."""
        verdict = self._limits.admit(link, COSTS.get(what, 1), now())
        if verdict is Verdict.TAKEN:
            return True
        if link not in self._told:
            self._told.add(link)
            who = {OBSERVER: "an observer", ANYBODY: "somebody who was revoked"}.get(link, f"node {link}")
            self._loop.tell(
                self._say,
                f"{who} sends more than any honest node: what comes over its connection is dropped (counted as flood), and the"
                f" connection is closed for {CLOSED} s whenever that goes on",
            )
        if verdict is Verdict.CLOSE:
            self._loop.tell(self._transport.shut, link)
        return False

    def forged(self, link: int) -> None:
        """Something with a wrong signature came over a link."""
        self._limits.charge(link, BAD, now())

    def carries(self, link: int, nodes: int) -> None:
        """So many certified nodes are behind a link."""
        self._limits.carries(link, nodes, now())

    @property
    def dropped(self) -> int:
        """How many messages were dropped unread, over all links."""
        return self._limits.dropped
