"""Serving: a socket, the address that is printed, and an end that does not wait for open pages."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from epidemic.core.errors import BadInput, require_int
from epidemic.web.app import MOST_CLIENTS, application

# -- Connections that ask for nothing, or never finish asking: let go after a while, and of too many of them the oldest at once --
# Otherwise anybody who can reach the port could hold all connections that the server has, without a token and without a word.


ASK_WITHIN = 10.0
"""Seconds within which a request with all its headers must arrive."""
MOST_IDLE = 64
"""Connections without a request that are kept."""


class Connection(H11Protocol):
    """uvicorn's connection, with a deadline for requests."""

    _deadline: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether it is open, and nothing is being answered."""
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a new connection, closing the oldest idle one if necessary."""
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
        """Handle received data; a complete request stops the deadline."""
        super().data_received(data)
        if not self.idle:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Start the deadline for the next request, unless it has already arrived."""
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


PORT = 8321
"""Where it listens unless told otherwise."""
NEXT = 20
"""So many ports after it are tried if it is taken."""


def serve(
    directories: Sequence[Path],
    host: str,
    port: int | None,
    *,
    token: bool,
    insecure: bool,
    say: Callable[[str], None],
) -> None:
    """Show directories until Ctrl-C. Visitors from other machines need the token, which is printed."""
    if port is not None:
        require_int("--port", port, 0, 65535)
    with _bound(host, port) if port is not None else _next_free(host) as listening:
        chosen = listening.getsockname()[1]
        secret = secrets.token_urlsafe(24) if token or not is_here(listening) else None
        app = application(directories, host=host, token=secret, cookie=f"epidemic-{chosen}", insecure=insecure)
        for line in announcement(listening, host, secret):
            say(line)
        try:
            uvicorn.Server(configuration(app)).run(sockets=[listening])
        except KeyboardInterrupt:  # how it is meant to end
            return


def configuration(app: ASGIApp) -> uvicorn.Config:
    """Return the settings with which uvicorn serves the application."""
    return uvicorn.Config(
        app,
        http=Connection,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=4 * MOST_CLIENTS,
        timeout_graceful_shutdown=0,
    )


def _next_free(host: str) -> socket.socket:
    for port in range(PORT, PORT + NEXT):
        with suppress(_Taken):
            return _bound(host, port)
    return _bound(host, PORT + NEXT)


class _Taken(BadInput):
    pass


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except (socket.gaierror, UnicodeError):
        raise BadInput(f"--host {host} is not an address of this machine; leave it out for 127.0.0.1") from None
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            raise _Taken(f"--port {port} is in use; choose another one, or 0 for any that is free") from None
        if problem.errno == errno.EACCES:
            raise BadInput(f"--port {port} may not be used by you; choose one from 1024 on, or 0 for any") from None
        if problem.errno == errno.EADDRNOTAVAIL:
            raise BadInput(f"--host {host} is not an address of this machine; leave it out for 127.0.0.1") from None
        raise BadInput(f"--host {host} --port {port} cannot be listened on: {problem.strerror}") from None


def is_here(listening: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def announcement(listening: socket.socket, host: str, token: str | None) -> list[str]:
    """The lines printed at the start: the address, and warnings."""
    address, port = listening.getsockname()[:2]
    anywhere = ipaddress.ip_address(address.partition("%")[0]).is_unspecified
    name = socket.gethostname() if anywhere else host.strip("[]")
    name = f"[{name}]" if ":" in name else name
    lines = [f"http://{name}:{port}/" + ("" if token is None else f"?token={token}")]
    if token is not None and not is_here(listening):
        lines.append(
            "others need this address with its token; it is not encrypted: on a network you do not trust, use an SSH tunnel"
        )
    return [*lines, "Ctrl-C ends it"]
