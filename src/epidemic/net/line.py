"""Line: one session of Zenoh, and what was declared on it.

A process has one that listens and, unless it knows a part of the others only, connects to all of them. Zenoh cannot change whom an open session
connects to; who goes on meeting others (topology.view) has a further one for each of those it connects to. A further one costs about 4 MB at
each end and a thread (20 encrypted ones, measured).
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zenoh

Declare = Callable[[int, zenoh.Session], Any]
"""Declares something on the session of the line of this number; what it gives must be held, or Zenoh drops it."""

_numbers = itertools.count()


class Line:
    """One of them."""

    def __init__(self, session: zenoh.Session) -> None:
        self.session = session
        self.number = next(_numbers)  # no two lines of a process ever have the same
        self.seen = time.monotonic()  # when somebody was last in sight at its end, or it was opened
        self._declared: list[Any] = []
        self._publishers: dict[str, zenoh.Publisher] = {}
        self._matched: dict[str, float] = {}  # when somebody was there to take what is put under a key
        self._lock = threading.Lock()

    def declare(self, declare: Declare) -> None:
        """Have something declared here."""
        self._declared.append(declare(self.number, self.session))

    def put(self, key: str, payload: zenoh.ZBytes, attachment: str | None) -> bool:
        """Send something; False if nobody is there to take it. Blocks while the link is busy."""
        try:
            with self._lock:
                publisher = self._publishers.get(key)
                if publisher is None:
                    publisher = self.session.declare_publisher(key, congestion_control=zenoh.CongestionControl.BLOCK)
                    self._publishers[key] = publisher
            # asking each time would take longer than sending
            if time.monotonic() - self._matched.get(key, -math.inf) > 1.0:
                status: Any = publisher.matching_status  # an object where the stubs say bool
                if not getattr(status, "matching", status):
                    return False
                self._matched[key] = time.monotonic()
            publisher.put(payload, attachment=attachment)
        except zenoh.ZError:
            return False
        return True

    def close(self) -> None:
        """End it."""
        with suppress(zenoh.ZError):  # a link that is stuck; it ends with the process
            self.session.close()  # type: ignore[no-untyped-call]
