"""Connections that ask for nothing, or never finish asking: let go after a while, and of too many of them the oldest at once.

Otherwise anybody who can reach the port could hold all connections that the server has, without a token and without a word.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

ASK_WITHIN = 10.0
"""Seconds within which a request must have come with all its headers."""
MOST_IDLE = 64
"""Connections without a request that are kept."""


class Connection(H11Protocol):
    """uvicorn's connection, with a deadline for what its other end wants."""

    _deadline: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether it is open, and nothing is being answered."""
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection; an old one that says nothing makes room for it."""
        idle = [one for one in self.connections if isinstance(one, Connection) and one.idle]
        if len(idle) >= MOST_IDLE:
            min(idle, key=lambda one: one.since).transport.abort()
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer that waits for the visitor; the connection is closed."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came; if that is a request, it was in time."""
        super().data_received(data)
        if not self.idle:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless that has come already."""
        super().on_response_complete()
        if self.idle:
            self._wait()

    def _wait(self) -> None:
        self._stop_waiting()
        self.since = self.loop.time()
        self._deadline = self.loop.call_later(ASK_WITHIN, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
