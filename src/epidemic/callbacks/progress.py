"""The progress of a run on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from epidemic.callbacks.base import Callback
from epidemic.callbacks.remarks import remarks
from epidemic.clock import Clock
from epidemic.core.formatting import score, simulated, size
from epidemic.counting import rounds_planned
from epidemic.learner import Learner
from epidemic.record import Record, Summary
from epidemic.runtime.setup import Setup


def share_done(
    planned: int | None, clock: Clock | None, rounds_done: int, seconds: float | None, sent: float = 0.0
) -> float:
    """How much of a seed is done, from 0 to 1: by its planned rounds, or by the time or the bytes sent at which its clock stops it."""
    shares = [] if planned is None else [rounds_done / planned if planned else 1.0]
    if clock is not None and clock.stop:
        shares.append((seconds or 0.0) / clock.stop)
    if clock is not None and clock.megabytes:
        shares.append(sent / (1e6 * clock.megabytes))
    return min(max(shares), 1.0)


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
        self._sent = 0.0
        self._share: Callable[[], float] = float
        self._count: Callable[[int], str] = str
        self._began = (0.0, 0)
        self._done = 0
        self._time: float | None = None  # simulated
        self._events: list[
            tuple[float, int]
        ] = []  # when there were how many: at the first word of them in this process, and now
        self._said: set[str] = set()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """Begin a new bar for the seed that begins or resumes."""
        self._name = f"{setup.experiment.name}, seed {setup.seed}"
        self._rounds = setup.experiment.rounds
        planned, clock = rounds_planned(setup.experiment.table()), setup.experiment.clock
        self._share = lambda: share_done(planned, clock, self._done, self._time, self._sent)
        self._count = lambda done: str(done) if planned is None else f"{done}/{planned}"
        self._began = (time.monotonic(), rounds_done)
        self._done, self._time, self._sent, self._events = rounds_done, None, 0.0, []
        if self._live:
            if self._bar is None:
                columns = (
                    TextColumn("{task.description}", markup=False), BarColumn(bar_width=24),
                    TextColumn("{task.fields[count]}", style="progress.download"),
                    TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), TextColumn("{task.fields[state]}"),
                )  # fmt: skip
                self._bar = Progress(*columns, console=self._console, transient=False)
                self._bar.start()
            self._task = self._bar.add_task(self._name, total=1.0, count=self._aligned(), rate="", state="")
            self._bar.update(self._task, completed=self._share())
        elif not self._quiet:
            again = f", resuming after round {rounds_done}" if rounds_done else ""
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
        """Move the bar to the rounds that are done."""
        self._done = rounds_done
        if self._bar is not None:
            self._bar.update(self._task, completed=self._share(), count=self._aligned(), rate=self._rate(rounds_done))

    def passed(self, seconds: float, events: int) -> None:
        """Show simulated time, and how many events are played in a second of ours."""
        self._time = seconds
        self._events = [*self._events[:1], (time.monotonic(), events)]
        if self._bar is not None:
            self._bar.update(self._task, completed=self._share(), rate=self._rate(self._done))

    def recorded(self, record: Record) -> None:
        """Show the accuracy or loss of the last evaluation beside the bar."""
        apart = "" if record.disagreement is None else f"D {record.disagreement:.2e}  "
        state = f"{apart}sent {size(record.bytes.total.mean)}"
        found = score(record.accuracy, record.loss)
        self._time = self._time if record.time is None else record.time.seconds
        self._sent = record.bytes.total.mean
        if self._bar is not None:
            self._bar.update(self._task, completed=self._share(), state=f"{found}  {state}")
        elif not self._quiet:
            self._say(f"{self._name}: round {self._count(record.round)}  {found}  {state}  {self._rate(record.round)}")

    def evaluating(self, what: str) -> None:
        """Show that a long step without rounds begins."""
        if self._bar is not None:
            self._bar.update(self._task, rate=f"[dim]{what}[/dim]")

    def finished(self, summary: Summary) -> None:
        """Show the duration, and why a seed ended early."""
        if self._bar is not None:
            if (
                self._time is not None and not summary.ended_early
            ):  # the clock stopped it, perhaps before the last round
                self._bar.update(self._task, completed=1.0)
            self._bar.update(self._task, rate=f"{time.monotonic() - self._began[0]:.0f} s")
        if summary.ended_early and not self._quiet:
            self._note(f"{self._name}: ended early after round {summary.rounds}: {summary.ended_early}")

    def _aligned(self) -> str:
        """As wide at the beginning as at the end."""
        return self._count(self._done).rjust(2 * len(str(self._rounds)) + 1)

    def _rate(self, rounds_done: int) -> str:
        start, before = self._began
        seconds = time.monotonic() - start
        parts = [] if self._time is None else [simulated(self._time)]
        if rounds_done > before and seconds > 0:
            parts.append(f"{(rounds_done - before) / seconds:.1f} rounds/s")
        (first, some), (last, many) = (self._events[0], self._events[-1]) if self._events else ((0.0, 0), (0.0, 0))
        if many > some and last > first:
            parts.append(f"{(many - some) / (last - first):,.0f} events/s")
        return "  ".join(parts)

    def _say(self, text: str) -> None:
        print(text.rstrip(), file=sys.stderr, flush=True)
