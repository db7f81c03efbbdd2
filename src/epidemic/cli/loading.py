"""Reading that takes long is said on a terminal."""

from __future__ import annotations

import sys
import time

PATIENCE = 2.0
"""Seconds of silence at first."""
PAUSE = 5.0
"""Seconds between lines after that."""


class Loading:
    """Prints how far reading has come: whole lines, because a bar of a run may be on the screen already."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._what = ""

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Print a line if it is time for one."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._began, self._last = what, now, now - PAUSE
        if now - self._began >= PATIENCE and now - self._last >= PAUSE:
            self._last = now
            progress = "" if total is None else f": {done:,} of {total:,}"
            print(f"reading {what}{progress}", file=sys.stderr, flush=True)
