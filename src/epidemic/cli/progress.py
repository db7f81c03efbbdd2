"""The progress of a run, and of many."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from epidemic.algorithms import cautions
from epidemic.batch import Job, Watcher
from epidemic.callbacks import Callback
from epidemic.cli.show import percent, size
from epidemic.errors import plain
from epidemic.host.describe import disconnection
from epidemic.host.setup import Setup
from epidemic.learner import Learner
from epidemic.record import Record, Summary


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
            self._say(f"{self._name}: {setup.experiment.nodes} nodes, {self._rounds} rounds, {learner.strategy}{again}")
        if self._quiet:
            return
        apart = disconnection(setup.experiment, setup.seed)
        for line in [
            *([] if apart is None else [apart]),
            *([f"data: {plain(setup.data.note, 500)}"] if setup.data.note else []),
            *cautions(setup.experiment.algorithm, setup.experiment.topology),
        ]:
            self._warn(line)

    def _warn(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(f"warning: {text}", style="yellow", markup=False)
        else:
            self._say(f"warning: {text}")

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
        """Say how long it took."""
        if self._bar is not None:
            self._bar.update(self._task, rate=f"{time.monotonic() - self._began[0]:.0f} s")

    def _rate(self, rounds_done: int) -> str:
        start, before = self._began
        seconds = time.monotonic() - start
        return f"{(rounds_done - before) / seconds:.1f} rounds/s" if rounds_done > before and seconds > 0 else ""

    def _say(self, text: str) -> None:
        print(text.rstrip(), file=sys.stderr, flush=True)


class BatchDisplay(Watcher):
    """The progress of many runs on standard error: one bar for all and one for each that runs, or a line for each that ends."""

    def __init__(self, jobs: Sequence[Job], *, quiet: bool = False) -> None:
        self._console = Console(stderr=True)
        self._live = self._console.is_terminal and not quiet
        self._quiet = quiet
        self._count = len(jobs)
        self._done: dict[str, int] = {job.name: job.rounds if job.finished else 0 for job in jobs}
        self._rounds = sum(job.rounds for job in jobs)
        self._ended = sum(job.finished for job in jobs)
        self._found: dict[str, str] = {}
        self._bar: Progress | None = None
        self._tasks: dict[str, Any] = {}
        self._overall: Any = None
        self._failed = 0

    def __enter__(self) -> BatchDisplay:
        if self._live:
            columns = (
                TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(),
                TimeRemainingColumn(elapsed_when_finished=True), TextColumn("{task.fields[state]}", markup=False),
            )  # fmt: skip
            self._bar = Progress(*columns, console=self._console, transient=False)
            self._overall = self._bar.add_task(
                "all runs", total=self._rounds, completed=sum(self._done.values()), state=self._state()
            )
            self._bar.start()
        elif not self._quiet and self._ended:
            self._say(f"{self._ended} of {self._count} runs are finished already")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def began(self, job: Job) -> None:
        """A bar of its own while it runs."""
        if self._bar is not None:
            self._tasks[job.name] = self._bar.add_task(job.name, total=job.rounds, state="")

    def advanced(self, job: Job, rounds_done: int, found: str) -> None:
        """Move the bars."""
        self._done[job.name], self._found[job.name] = rounds_done, found
        if self._bar is not None:
            self._bar.update(self._tasks[job.name], completed=rounds_done, state=found)
            self._bar.update(self._overall, completed=sum(self._done.values()))

    def ended(self, job: Job, problem: str | None) -> None:
        """Count it."""
        self._ended += 1
        self._failed += problem is not None
        self._done[job.name] = job.rounds
        found = self._found.get(job.name, "")
        if self._bar is not None:
            self._bar.remove_task(self._tasks.pop(job.name))
            self._bar.update(self._overall, completed=sum(self._done.values()), state=self._state())
            if problem is not None:
                self._bar.console.print(f"{job.name} failed: {problem}", style="red", markup=False)
        elif not self._quiet:
            self._say(f"{self._state()}: {job.name}  {found if problem is None else 'failed: ' + problem}")

    def _state(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._ended} of {self._count} runs{failed}"

    def _say(self, text: str) -> None:
        print(text.rstrip(), file=sys.stderr, flush=True)
