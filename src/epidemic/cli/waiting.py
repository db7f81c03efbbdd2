"""What takes longer than two seconds says so, on standard error."""

from __future__ import annotations

import sys
import threading
from typing import TextIO

AFTER = 2.0
"""Seconds of silence that nobody minds."""


class Waiting:
    """Says what is being done once it takes long: a line that changes on a terminal, a plain line now and then elsewhere."""

    def __init__(
        self,
        what: str,
        stream: TextIO | None = None,
        *,
        doing: str = "",
        after: float = AFTER,
        every: float = 10.0,
        at_once: bool = False,
        quiet: bool = False,
    ) -> None:
        """`at_once`: on a terminal from the first moment, where the line goes away again, and nowhere else; `quiet`: not at all."""
        self._what, self._stream = what, sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._after, self._every = 0.0 if at_once else after, 0.5 if self._live else every
        self._quiet = quiet or (at_once and not self._live)
        self._doing = doing
        self._said = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._speak, daemon=True)

    def __enter__(self) -> Waiting:
        if not self._quiet:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if not self._quiet:
            self._thread.join()
        if self._live and self._said:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def tell(self, doing: str) -> None:
        """Show what the program is doing now, once it has taken long enough for somebody to wonder."""
        self._doing = doing

    def _speak(self) -> None:
        pause = self._after
        while not self._done.wait(pause):
            line = f"{self._what}: {self._doing or 'begins'}"
            self._stream.write(f"\r\x1b[K{line}" if self._live else f"{line}\n")
            self._stream.flush()
            self._said, pause = True, self._every
