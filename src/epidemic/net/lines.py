"""Lines: all sessions of a process, and what is declared on every one of them. One listens; who meets others as it goes has further ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import zenoh

from epidemic.errors import EpidemicError
from epidemic.net.addresses import Addresses
from epidemic.net.hearing import Watch
from epidemic.net.line import Declare, Line

NOBODY = 30.0
"""Seconds after which a line is closed at whose end nobody is in sight."""
LEAVING = 10.0
"""Seconds that the end of connections is waited for, when a process leaves."""
MOST_LINES = 512
"""Lines of a process, besides the one that listens."""


Find = Callable[[str], str]
"""Where an address leads: it may take its time, and raise BadInput."""


class Lines:
    """The lines of a process."""

    def __init__(self, open: Callable[[Addresses], zenoh.Session], addresses: Addresses, *, knows_all: bool) -> None:
        """Open the one that listens, with `open`. Unless it `knows_all`, it connects to nobody before `connect` says so."""
        self._open = open
        self._first = addresses if knows_all else Addresses(addresses.listen)
        self._knows_all = knows_all
        self.watches: dict[str, Watch] = {}  # by what is watched
        self._lock = threading.RLock()
        self._declarations: list[Declare] = []  # how to declare everything once more
        self._wanted: dict[
            str, tuple[str, Find | None]
        ] = {}  # the addresses to which there is a line, or will be, by the names of lines
        self._generation = 0  # how often the network was opened anew
        self._opening = ThreadPoolExecutor(2, "line")
        self._closing = ThreadPoolExecutor(8, "closing")
        self.main = Line(open(self._first))
        self._further: dict[str, Line] = {}  # by name

    def all(self) -> list[Line]:
        """Every line, the one that listens first."""
        with self._lock:
            return [self.main, *self._further.values()]

    def declare(self, declare: Declare) -> None:
        """Have something declared on every line, also on those to come."""
        with self._lock:
            self._declarations.append(declare)
            for line in self.all():
                line.declare(declare)

    def to(self, place: int) -> Line:
        """The line that leads to a place: one of its own if there is one."""
        if self._further:
            numbers = self.watches["alive"].lines_to(place)
            with self._lock:
                for line in self._further.values():
                    if line.number in numbers:
                        return line
        return self.main

    # -- further ones -------------------------------------------------------------------------------------------------

    def connect(self, name: str, address: str, find: Find | None = None) -> None:
        """Have a line of this name to an address, or to where `find` says that it leads, soon; nothing happens if there is one, or if there are too many."""
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
        line = Line(session)
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
        line.close()  # it is no longer wanted

    def disconnect(self, *names: str) -> None:
        """Close the lines of these names."""
        with self._lock:
            for name in names:
                self._wanted.pop(name, None)
            closing = [line for name in names if (line := self._further.pop(name, None)) is not None]
        for line in closing:
            self._closing.submit(self._close_line, line)

    def _close_line(self, line: Line) -> None:
        for watch in self.watches.values():
            watch.lost_sight(line.number)
        line.close()  # takes seconds where the other end says nothing
        for watch in self.watches.values():
            watch.lost_sight(line.number)

    def ends(self) -> dict[str, set[int]]:
        """Who is in sight at the end of each further line, by the names of the lines."""
        with self._lock:
            numbers = {name: line.number for name, line in self._further.items()}
        watch = self.watches["alive"]
        return {name: watch.at_end_of(number) for name, number in numbers.items()}

    def let_go(self, prefix: str, besides: int | None) -> None:
        """Close lines with names that begin so at whose end nobody, `besides` one place, has been in sight for long."""
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
        """Close all and open them again, with everything declared; `closed` is called in between. Watchers are told that everyone is gone."""
        with self._lock:
            self._generation += 1
            lines, self._further = list(self._further.values()), {}
        for line in lines:
            self._closing.submit(self._close_line, line)
        self.main.close()
        for watch in self.watches.values():
            watch.lost_sight()
        closed()
        main = Line(self._open(self._first))
        with self._lock:
            self.main = main
            wanted, self._wanted = self._wanted, {}
            for declare in self._declarations:
                main.declare(declare)
        for name, (address, find) in wanted.items():
            self.connect(name, address, find)

    def close(self) -> None:
        """Leave."""
        self._opening.shutdown(wait=False, cancel_futures=True)
        wait([self._closing.submit(line.close) for line in self.all()], LEAVING)
        self._closing.shutdown(wait=False, cancel_futures=True)
