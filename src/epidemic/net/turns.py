"""Turns: processes of one machine train a few at a time, as many as there are cores, so that they do not throw each other out of the caches.

A turn is a lock on one of a few files, which the system gives back when a process dies. Nobody waits for long: one that is stopped with a turn in
its hand costs the others a little time, never their round.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOOK = 0.001
"""Seconds between two looks for a free turn."""
LEAST_PATIENCE = 0.05


class Turns:
    """The turns of one process."""

    def __init__(self, directory: Path, slots: int, processes: int) -> None:
        """So many `slots` for so many `processes`; the lock files are in this directory."""
        directory.mkdir(exist_ok=True)
        self._files = [(directory / f"turn-{i}").open("ab") for i in range(slots)]
        self._queue = processes / slots
        self._took = 0.0  # how long the last turn was

    @contextmanager
    def one(self) -> Iterator[bool]:
        """A turn, if there is one before patience runs out; what is inside happens in any case."""
        held = self._wait()
        began = time.monotonic()
        try:
            yield held is not None
        finally:
            self._took = time.monotonic() - began
            if held is not None and fcntl is not None:
                fcntl.flock(self._files[held], fcntl.LOCK_UN)

    def _wait(self) -> int | None:
        end = time.monotonic() + max(LEAST_PATIENCE, 2 * self._queue * self._took)
        while fcntl is not None:
            for i, file in enumerate(self._files):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue
                return i
            if time.monotonic() > end:
                break
            time.sleep(LOOK)
        return None

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            file.close()
