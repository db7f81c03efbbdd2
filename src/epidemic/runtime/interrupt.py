"""Interrupts: Ctrl-C and SIGTERM wait while models or records are being changed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 3.0
"""Seconds that an interrupt waits for the end of a held section that may never end."""

AT_ONCE = 2.0
"""Seconds in which several signals count as one: a terminal and a launcher both forward the same Ctrl-C."""


class Stop:
    """Delays an interrupt while a round changes the models."""

    def __init__(self) -> None:
        self._holding = False
        self._wanted = False
        self._raised = False
        self._since = 0.0  # when it was requested first
        self.broke = False  # whether the models were left in the middle of a round

    def request(self, *_: Any) -> None:
        """Handle a signal from the system."""
        if not self._holding or self._wanted:  # a second Ctrl-C does not wait; the last checkpoint then counts
            self._raised = True
            raise KeyboardInterrupt
        self._wanted, self._since = True, time.monotonic()

    def heed(self) -> None:
        """Stop if an interrupt was lost: Python ignores exceptions raised while objects are destroyed. Call it between units of work."""
        if self._raised:
            raise KeyboardInterrupt

    def heed_at_last(self) -> None:
        """Raise KeyboardInterrupt, held or not, if a request is older than `PATIENCE`; the last checkpoint then counts."""
        if self._wanted and time.monotonic() - self._since > PATIENCE:
            raise KeyboardInterrupt

    @property
    def wanted(self) -> bool:
        """Whether an interrupt was requested."""
        return self._wanted

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay interrupts inside; a request is honoured at the end."""
        self._holding = True
        try:
            yield
        except KeyboardInterrupt:
            self.broke = True
            raise
        finally:
            self._holding = False
        if self._wanted:
            raise KeyboardInterrupt


class AgreedStop(Stop):
    """Only records interrupts: the ranks of a simulation stop when all have agreed, because each waits for the others in every round."""

    def request(self, *_: Any) -> None:
        """Handle a signal from the system."""
        now = time.monotonic()
        if self._wanted and now - self._since > AT_ONCE:  # a second one does not wait
            self.broke = True
            raise KeyboardInterrupt
        if not self._wanted:
            self._wanted, self._since = True, now

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay interrupts inside: on ranks they are always delayed."""
        yield


@contextmanager
def signals_to(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM call this handler, afterwards the earlier one; has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def gentle_stop(stop: Stop | None = None) -> Iterator[Stop]:
    """Inside, Ctrl-C and SIGTERM wait for the end of the round, or for what `stop` waits for."""
    stop = Stop() if stop is None else stop
    with signals_to(stop.request):
        yield stop


@contextmanager
def agreed_stop() -> Iterator[Stop]:
    """The same for ranks, which must agree. If nested, it returns the outer one, so that a request between two runs is not lost."""
    outer = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if isinstance(outer, AgreedStop):
        yield outer
        return
    with gentle_stop(AgreedStop()) as stop:
        yield stop
