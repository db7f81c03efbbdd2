"""The progress of a run on standard error."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from epidemic.callbacks.base import Callback
from epidemic.callbacks.remarks import remarks
from epidemic.host.setup import Setup
from epidemic.learner import Learner
from epidemic.record import Record, Summary
from epidemic.shown import percent, size


class Display(Callback):
    """The progress of runs on standard error: a live bar on a terminal, a line per evaluation elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True)
        self._live = self._console.is_terminal and not quiet
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: Any = None
        self._name = ""
        self._rounds = 0
        self._began = (0.0, 0)
        self._said: set[str] = set()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """A new bar."""
        self._name = f"{setup.experiment.name}, seed {setup.seed}"
        self._rounds = setup.experiment.rounds
        self._began = (time.monotonic(), rounds_done)
        if self._live:
            if self._bar is None:
                columns = (
                    TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(),
                    TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), TextColumn("{task.fields[state]}"),
                )  # fmt: skip
                self._bar = Progress(*columns, console=self._console, transient=False)
                self._bar.start()
            self._task = self._bar.add_task(self._name, total=self._rounds, completed=rounds_done, rate="", state="")
        elif not self._quiet:
            again = f", going on after round {rounds_done}" if rounds_done else ""
            where = "" if setup.experiment.runtime.device in ("cpu", "auto") else f" on {setup.task.device.type}"
            self._say(
                f"{self._name}: {setup.experiment.nodes} nodes, {self._rounds} rounds, {learner.strategy}{where}{again}"
            )
        if self._quiet:
            return
        for kind, line in remarks(setup, self._said):
            self._note(f"{kind}: {line}", style="yellow" if kind == "warning" else "dim")

    def _note(self, text: str, style: str | None = None) -> None:
        if self._bar is not None:
            self._bar.console.print(text, style=style, markup=False)
        else:
            self._say(text)

    def advanced(self, rounds_done: int, x: Any) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=rounds_done, rate=self._rate(rounds_done))

    def recorded(self, record: Record) -> None:
        """Say what was found."""
        state = f"D {record.disagreement:.2e}  sent {size(record.bytes.total.mean)}"
        found = f"loss {record.loss.mean:.4f}"
        if record.accuracy is not None:
            found = f"accuracy {percent(record.accuracy.mean)}"
        if self._bar is not None:
            self._bar.update(self._task, state=f"{found}  {state}")
        elif not self._quiet:
            self._say(
                f"{self._name}: round {record.round}/{self._rounds}  {found}  {state}  {self._rate(record.round)}"
            )

    def evaluating(self, what: str) -> None:
        """Say that it takes a moment."""
        if self._bar is not None:
            self._bar.update(self._task, rate=f"[dim]{what}[/dim]")

    def finished(self, summary: Summary) -> None:
        """Say how long it took, and why it ended early."""
        if self._bar is not None:
            self._bar.update(self._task, rate=f"{time.monotonic() - self._began[0]:.0f} s")
        if summary.ended_early and not self._quiet:
            self._note(f"{self._name}: ended early after round {summary.rounds}: {summary.ended_early}")

    def _rate(self, rounds_done: int) -> str:
        start, before = self._began
        seconds = time.monotonic() - start
        return f"{(rounds_done - before) / seconds:.1f} rounds/s" if rounds_done > before and seconds > 0 else ""

    def _say(self, text: str) -> None:
        print(text.rstrip(), file=sys.stderr, flush=True)
