"""The gate: applies `limits` to everything received on a link before it is read. Called by Zenoh's threads, so it returns at once."""

from __future__ import annotations

from collections.abc import Callable

from epidemic.deploy.event_loop import EventLoop, now
from epidemic.deploy.limits import BAD, CLOSED, COSTS, Limits, Verdict
from epidemic.deploy.transport import ANYBODY, OBSERVER, Transport


class Gate:
    """Drops what arrives over a link that carries too much."""

    def __init__(self, transport: Transport, loop: EventLoop, say: Callable[[str], None], each: int) -> None:
        """Start with all links open; `each`: messages that a node sends to this process per round."""
        self._transport, self._loop, self._say = transport, loop, say
        self._limits = Limits(each)
        self._told: set[int] = set()  # links that were logged as carrying too much

    def open(self) -> None:
        """Make the transport ask this gate about everything received."""
        self._transport.admit = self.admit
        self._transport.unwelcome = lambda node_id: self._limits.closed(node_id, now())

    def admit(self, link: int, what: str) -> bool:
        """Whether to accept something received over a link; a peer that sends more than any honest node is paused, then disconnected."""
        verdict = self._limits.admit(link, COSTS.get(what, 1), now())
        if verdict is Verdict.TAKEN:
            return True
        if link not in self._told:
            self._told.add(link)
            who = {OBSERVER: "an observer", ANYBODY: "a revoked node"}.get(link, f"node {link}")
            self._loop.tell(
                self._say,
                f"{who} sends more than any honest node: its messages are dropped (counted as flood), and its"
                f" connection is closed for {CLOSED} s if it continues",
            )
        if verdict is Verdict.CLOSE:
            self._loop.tell(self._transport.shut, link)
        return False

    def forged(self, link: int) -> None:
        """Note a wrong signature received over a link."""
        self._limits.charge(link, BAD, now())

    def carries(self, link: int, nodes: int) -> None:
        """Note how many certified nodes a link carries."""
        self._limits.carries(link, nodes, now())

    @property
    def dropped(self) -> int:
        """Messages dropped unread, over all links."""
        return self._limits.dropped
