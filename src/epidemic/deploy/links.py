"""Lines: the Zenoh sessions of a process, what is declared on them, and which peers are visible over each.

A process has one line that listens and, unless it knows only some of the peers, connects to all of them. Zenoh cannot change the connections of an open
session, so a node that keeps meeting peers (topology.view) opens a further line to each. A further line costs about 4 MB at each end and a thread (20
encrypted ones, measured).
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import zenoh

from epidemic.core.errors import EpidemicError
from epidemic.deploy.addresses import Addresses

Declare = Callable[[int, zenoh.Session], Any]
"""Declares something on the session of the line of this number; the result must be kept, or Zenoh drops the declaration."""

_numbers = itertools.count()


class ZenohSession:
    """One Zenoh session, and what was declared on it."""

    def __init__(self, session: zenoh.Session) -> None:
        self.session = session
        self.number = next(_numbers)  # unique within a process
        self.seen = time.monotonic()  # when a peer was last visible over it, or when it was opened
        self._declared: list[Any] = []
        self._publishers: dict[str, zenoh.Publisher] = {}
        self._matched: dict[str, float] = {}  # when a subscriber to each key was last found
        self._lock = threading.Lock()

    def declare(self, declare: Declare) -> None:
        """Declare something on this session."""
        self._declared.append(declare(self.number, self.session))

    def put(self, key: str, payload: zenoh.ZBytes, attachment: str | None) -> bool:
        """Send a message; False if nobody receives it. Blocks while the link is busy."""
        try:
            with self._lock:
                publisher = self._publishers.get(key)
                if publisher is None:
                    publisher = self.session.declare_publisher(key, congestion_control=zenoh.CongestionControl.BLOCK)
                    self._publishers[key] = publisher
            # asking each time would take longer than sending
            if time.monotonic() - self._matched.get(key, -math.inf) > 1.0:
                status: Any = publisher.matching_status  # an object, although the stubs say bool
                if not getattr(status, "matching", status):
                    return False
                self._matched[key] = time.monotonic()
            publisher.put(payload, attachment=attachment)
        except zenoh.ZError:
            return False
        return True

    def close(self) -> None:
        """Close the session and its declarations."""
        with suppress(zenoh.ZError):  # a link that is stuck; it ends with the process
            self.session.close()  # type: ignore[no-untyped-call]


Presence = Callable[[int, str, bool], None]
"""Arguments: node id, token of one of its starts, whether it is visible. Called under a lock: it must return at once."""


class Once:
    """Lets only the first of several threads call back."""

    def __init__(self, answered: Callable[[bytes | None], None]) -> None:
        self._answered = answered
        self._free = threading.Lock()

    def claim(self) -> bool:
        """Whether the caller is the first."""
        return self._free.acquire(blocking=False)

    def give_up(self) -> None:
        """Report that there is no answer, unless there was one."""
        if self.claim():
            self._answered(None)


class Watch:
    """Which peers are visible over which line, as the watcher was told.

    A peer visible over two lines is gone when neither shows it any more.
    """

    def __init__(self, changed: Presence) -> None:
        self._changed = changed
        self._seen: dict[tuple[int, str], set[int]] = {}  # the lines that show each token
        self._lock = threading.Lock()

    @property
    def node_ids(self) -> set[int]:
        """The peers that are visible now."""
        with self._lock:
            return {node_id for node_id, _ in self._seen}

    def lines_to(self, node_id: int) -> set[int]:
        """The lines over which a peer is visible."""
        with self._lock:
            return {line for (of, _), lines in self._seen.items() if of == node_id for line in lines}

    def at_end_of(self, line: int) -> set[int]:
        """The peers visible over a line."""
        with self._lock:
            return {node_id for (node_id, _), lines in self._seen.items() if line in lines}

    def noticed(self, line: int, node_id: int, token: str, there: bool) -> None:
        """Report that a token appeared or disappeared."""
        with self._lock:
            lines = self._seen.setdefault((node_id, token), set())
            before = bool(lines)
            (lines.add if there else lines.discard)(line)
            changed = before != bool(lines)
            if not lines:
                del self._seen[node_id, token]
            if changed or there:  # under the lock, so that the last report is the current state
                self._changed(node_id, token, there)

    def hide_all(self, line: int | None = None) -> None:
        """Report all peers as gone that were visible over this line, or over any."""
        with self._lock:
            seen = sorted((*key, of) for key, lines in self._seen.items() for of in lines if line in (None, of))
        for node_id, token, of in seen:
            self.noticed(of, node_id, token, False)


NOBODY = 30.0
"""Seconds after which a line without a visible peer is closed."""
LEAVING = 10.0
"""Seconds to wait for connections to close when a process leaves."""
MOST_LINES = 512
"""Most lines of a process, besides the one that listens."""


Find = Callable[[str], str]
"""Resolves an address; may take time, and raise BadInput."""


class Lines:
    """All lines of a process."""

    def __init__(self, open: Callable[[Addresses], zenoh.Session], addresses: Addresses, *, knows_all: bool) -> None:
        """Open the listening line with `open`. Unless it `knows_all`, it connects to nobody before `connect`."""
        self._open = open
        self._first = addresses if knows_all else Addresses(addresses.listen)
        self._knows_all = knows_all
        self.watches: dict[str, Watch] = {}  # by what is watched
        self._lock = threading.RLock()
        self._declarations: list[Declare] = []  # to repeat on new sessions
        self._wanted: dict[
            str, tuple[str, Find | None]
        ] = {}  # the addresses of further lines, open or planned, by name
        self._generation = 0  # how often the network was reopened
        self._opening = ThreadPoolExecutor(2, "line")
        self._closing = ThreadPoolExecutor(8, "closing")
        self.main = ZenohSession(open(self._first))
        self._further: dict[str, ZenohSession] = {}  # by name

    def all(self) -> list[ZenohSession]:
        """All lines, the listening one first."""
        with self._lock:
            return [self.main, *self._further.values()]

    def declare(self, declare: Declare) -> None:
        """Declare something on every line, present and future."""
        with self._lock:
            self._declarations.append(declare)
            for line in self.all():
                line.declare(declare)

    def to(self, node_id: int) -> ZenohSession:
        """The line to a peer: its own if it has one."""
        if self._further:
            numbers = self.watches["alive"].lines_to(node_id)
            with self._lock:
                for line in self._further.values():
                    if line.number in numbers:
                        return line
        return self.main

    # -- further ones -------------------------------------------------------------------------------------------------

    def connect(self, name: str, address: str, find: Find | None = None) -> None:
        """Open a line of this name soon, to an address or to what `find` resolves it to; does nothing if it exists, or if there are too many."""
        with self._lock:
            if self._knows_all or name in self._wanted or len(self._wanted) >= MOST_LINES:
                return
            self._wanted[name] = address, find
            self._opening.submit(self._open_line, name, address, find, self._generation)

    def _open_line(self, name: str, address: str, find: Find | None, generation: int) -> None:
        try:
            session = self._open(Addresses(None, (address if find is None else find(address),)))
        except EpidemicError:
            with self._lock:
                if self._generation == generation:
                    self._wanted.pop(name, None)
            return
        line = ZenohSession(session)
        with self._lock:
            if (
                self._generation == generation
                and self._wanted.get(name) == (address, find)
                and name not in self._further
            ):
                for declare in self._declarations:
                    line.declare(declare)
                self._further[name] = line
                return
        line.close()  # no longer wanted

    def disconnect(self, *names: str) -> None:
        """Close the lines with these names."""
        with self._lock:
            for name in names:
                self._wanted.pop(name, None)
            closing = [line for name in names if (line := self._further.pop(name, None)) is not None]
        for line in closing:
            self._closing.submit(self._close_line, line)

    def _close_line(self, line: ZenohSession) -> None:
        for watch in self.watches.values():
            watch.hide_all(line.number)
        line.close()  # takes seconds if the other end is silent
        for watch in self.watches.values():
            watch.hide_all(line.number)

    def ends(self) -> dict[str, set[int]]:
        """The peers visible over each further line, by its name."""
        with self._lock:
            numbers = {name: line.number for name, line in self._further.items()}
        watch = self.watches["alive"]
        return {name: watch.at_end_of(number) for name, number in numbers.items()}

    def let_go(self, prefix: str, besides: int | None) -> None:
        """Close lines with this prefix over which nobody but `besides` has been visible for long."""
        now, late = time.monotonic(), []
        for name, there in self.ends().items():
            line = self._further.get(name)
            if line is None or there - {besides}:
                if line is not None:
                    line.seen = now
            elif name.startswith(prefix) and now - line.seen > NOBODY:
                late.append(name)
        self.disconnect(*late)

    # -- all of them --------------------------------------------------------------------------------------------------

    def renew(self, closed: Callable[[], None]) -> None:
        """Close and reopen all lines, with everything declared; `closed` is called in between. Watchers are told that all peers are gone."""
        with self._lock:
            self._generation += 1
            lines, self._further = list(self._further.values()), {}
        for line in lines:
            self._closing.submit(self._close_line, line)
        self.main.close()
        for watch in self.watches.values():
            watch.hide_all()
        closed()
        main = ZenohSession(self._open(self._first))
        with self._lock:
            self.main = main
            wanted, self._wanted = self._wanted, {}
            for declare in self._declarations:
                main.declare(declare)
        for name, (address, find) in wanted.items():
            self.connect(name, address, find)

    def close(self) -> None:
        """Close all lines of the process."""
        self._opening.shutdown(wait=False, cancel_futures=True)
        wait([self._closing.submit(line.close) for line in self.all()], LEAVING)
        self._closing.shutdown(wait=False, cancel_futures=True)
