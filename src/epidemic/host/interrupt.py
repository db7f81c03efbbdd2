"""Stopping gently: Ctrl-C and SIGTERM wait while the models or the records are being changed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stop:
    """Holds an interrupt back while a round changes the models."""

    def __init__(self) -> None:
        self._holding = False
        self._wanted = False
        self.broke = False  # whether the models were left in the middle of a round

    def request(self, *_: Any) -> None:
        """The signal handler."""
        if not self._holding or self._wanted:  # a second Ctrl-C does not wait; the last checkpoint then counts
            raise KeyboardInterrupt
        self._wanted = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """What happens inside is not interrupted; a request is honoured at the end."""
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


@contextmanager
def gentle_stop() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM wait for the end of the round."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
