"""Progress that is shown when somebody looks: of a run by its callback, of many by a watcher."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from epidemic.callbacks import Callback
from epidemic.callbacks.notebook import PAUSE, InPlace, NotebookDisplay, in_notebook
from epidemic.callbacks.progress import Display
from epidemic.core.errors import BadInput
from epidemic.study.batch import BatchListener, Job


@contextmanager
def run_shown(progress: bool | None) -> Iterator[list[Callback]]:
    """What shows the progress of runs, one after the other, if it is wanted."""
    if not _wanted(progress):
        yield []
        return
    with NotebookDisplay() if in_notebook() else Display() as display:
        yield [display]


@contextmanager
def batch_shown(jobs: Sequence[Job], progress: bool | None) -> Iterator[BatchListener]:
    """What shows the progress of a batch, if it is wanted."""
    if not _wanted(progress):
        yield BatchListener()
        return
    with NotebookBatchDisplay(jobs) if in_notebook() else BatchDisplay(jobs) as display:
        yield display


def _wanted(progress: bool | None) -> bool:
    """None: if somebody looks."""
    if progress is None:
        return in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
    if not isinstance(progress, bool):
        raise BadInput(f"progress = {progress!r} must be True, False, or None (a notebook or a terminal)")
    return progress


class NotebookBatchDisplay(BatchListener):
    """The progress of many runs in a notebook: one bar for all, what runs now, and what failed."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._count, self._rounds = len(jobs), sum(job.rounds for job in jobs)
        self._done = {job.name: job.rounds if job.finished else 0 for job in jobs}
        self._ended = sum(job.finished for job in jobs)
        self._now: dict[str, str] = {}
        self._failed: list[str] = []
        self._place = InPlace()

    def __enter__(self) -> NotebookBatchDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self._place.show(self.html())

    def began(self, job: Job) -> None:
        """It is what runs now."""
        self._now[job.name] = ""
        self._place.show(self.html())

    def advanced(self, job: Job, rounds_done: int, found: str) -> None:
        """Move the bar."""
        self._done[job.name], self._now[job.name] = rounds_done, found
        if time.monotonic() - self._place.shown >= PAUSE:
            self._place.show(self.html())

    def ended(self, job: Job, problem: str | None) -> None:
        """Count it."""
        self._ended += 1
        self._done[job.name] = job.rounds
        self._now.pop(job.name, None)
        if problem is not None:
            self._failed.append(f"{job.name} failed: {problem}")
        self._place.show(self.html())

    def html(self) -> str:
        """As it is now."""
        now = "".join(
            f"<div>{escape(f'{name}: {found}' if found else name)}</div>" for name, found in self._now.items()
        )
        failed = "".join(f"<div>{escape(line)}</div>" for line in self._failed)
        bar = f'<progress value="{sum(self._done.values())}" max="{max(self._rounds, 1)}"></progress>'
        return f"<div>{bar} {self._ended} of {self._count} runs</div>{now}{failed}"


class BatchDisplay(BatchListener):
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
