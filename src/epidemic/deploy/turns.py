"""Turns: a script and its node take turns. The script trains while the node's thread waits; the node exchanges while the script waits.

The node's thread calls `train`, `mixed` and `end`; the script's thread calls `next_round`, `hand_over` and `aggregated`. Every wait of the script ends
by Ctrl-C, every wait of the node by `stop`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from epidemic.core.errors import EpidemicError
from epidemic.learner import Evaluation
from epidemic.runtime.interrupt import Stop

LOOK = 0.2
"""Seconds after which a wait looks up."""


class CallersStop(Stop):
    """A wish to stop, of another thread: it takes effect where nothing is half-done."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = threading.Event()

    def request(self, *_: Any) -> None:
        """Ask the node to save and end."""
        self._asked.set()

    @property
    def wanted(self) -> bool:
        """Whether somebody wants it to stop."""
        return self._asked.is_set()

    def heed(self) -> None:
        """Stop, if that is wanted."""
        if self._asked.is_set():
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """What happens inside is not interrupted, but for a wait for the script, which changes nothing."""
        try:
            yield
        finally:
            self.heed()


class Turns:
    """Whose turn it is, and what is handed over. The row of numbers belongs to the script while it trains, and to the node otherwise."""

    def __init__(self) -> None:
        self.stop = CallersStop()
        self._change = threading.Condition()
        self._round: int | None = None  # that the script is to train in
        self._row: Tensor | None = None  # (1, d) what it trains
        self._handed = False
        self._loss = float("nan")
        self._found: Evaluation | None = None
        self._ready = False  # whether the run's saved state is known
        self._last: Tensor | None = None  # (1, d) the aggregate of the last round
        self._ended = False
        self._error: BaseException | None = None
        self._given: dict[str, Tensor] = {}  # what the script wants to be kept beside what was handed over ...
        self.kept: dict[str, Tensor] = {}  # ... and what is kept beside the state of the node
        self.heard: tuple[int, ...] = ()

    # -- the node's thread --------------------------------------------------------------------------------------------

    def train(self, round: int, row: Tensor, meanwhile: Callable[[], None] = lambda: None) -> Tensor:
        """Let the script train on this row, in place; the loss that it reported. `meanwhile` is called now and then.   # (1, d) -> (1,)"""
        with self._change:
            self._commit()  # of a round that was left out
            self._round, self._row, self._handed = round, row, False
            self._change.notify_all()
            while not self._handed:
                if self.stop.wanted:
                    self._round = self._row = None
                    raise KeyboardInterrupt
                meanwhile()  # nobody touches the row then
                self._change.wait(LOOK)
            self._round = self._row = None
            return torch.tensor([self._loss])

    def found(self) -> Evaluation | None:
        """The numbers that the script reported last."""
        return self._found

    def mixed(self, heard: tuple[int, ...], last: Tensor | None) -> None:
        """A round is over: whom the node heard, and the aggregate if it was the last.   # (1, d)"""
        with self._change:
            self._commit()
            self.heard, self._last = heard, last
            self._change.notify_all()

    def restored(self, kept: dict[str, Tensor], found: Evaluation | None) -> None:
        """Where the run stands is known, and what the script wanted to be kept."""
        with self._change:
            if found is not None:
                self._found = found
            self.kept = kept
            self._ready = True
            self._change.notify_all()

    def end(self, error: BaseException | None = None, last: Tensor | None = None) -> None:
        """The node has ended; with this error, or this model.   # (1, d)"""
        with self._change:
            self._ended, self._error, self._ready = True, error, True
            self._last = last if last is not None else self._last
            self._change.notify_all()

    def _commit(self) -> None:
        if self._given:
            self.kept, self._given = self._given, {}

    # -- the script's thread ------------------------------------------------------------------------------------------

    def _wait(self, until: Callable[[], bool]) -> None:
        while not until():
            self._change.wait(LOOK)  # Ctrl-C reaches the main thread between two of them
        if self._ended and isinstance(self._error, EpidemicError):
            raise self._error
        if self._ended and self._error is not None:
            raise RuntimeError(f"the node's thread failed: {self._error}") from self._error

    def wait_ready(self) -> dict[str, Tensor]:
        """Wait until the saved state of the run is known; what was kept."""
        with self._change:
            self._wait(lambda: self._ready)
            return self.kept

    def next_round(self) -> tuple[int, Tensor] | None:
        """Wait for the next round: its number, and the row that it begins with; None after the last.   # (1, d)"""
        with self._change:
            self._wait(lambda: self._ended or self._round is not None or self._last is not None)
            if self._round is None or self._row is None:
                return None
            return self._round, self._row

    @property
    def failed(self) -> bool:
        """Whether the node has ended with an error."""
        with self._change:
            return self._error is not None

    @property
    def last(self) -> Tensor | None:
        """The aggregate of the last round, once that is over.   # (1, d)"""
        with self._change:
            return self._last

    def report(self, found: Evaluation) -> None:
        """Numbers of the script: loss, and accuracy if it has one."""
        with self._change:
            self._found = found

    def hand_over(self, fill: Callable[[Tensor], None], kept: dict[str, Tensor]) -> None:
        """The script has trained: `fill` copies what it has into the row.   # (d,)"""
        with self._change:
            assert self._row is not None
            assert self._found is not None
            fill(self._row[0])
            self._loss, self._given = float(self._found.loss[0]), kept
            self.heard = ()
            self._round, self._handed = None, True
            self._change.notify_all()

    def wait_end(self) -> None:
        """Wait until the node has ended; raises why, if that was not its proper end."""
        with self._change:
            self._wait(lambda: self._ended)
