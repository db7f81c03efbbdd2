"""Progress that is shown when somebody looks: of a run by its callback, of many by a listener."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from epidemic.callbacks import Callback
from epidemic.callbacks.progress import Display
from epidemic.core.errors import BadInput
from epidemic.core.formatting import duration
from epidemic.core.progress import Bar, Bars, in_notebook
from epidemic.study.batch import BatchListener, Job


@contextmanager
def run_shown(progress: bool | None) -> Iterator[list[Callback]]:
    """What shows the progress of runs, one after the other, if it is wanted."""
    if not _wanted(progress):
        yield []
        return
    with Display(notebook=in_notebook()) as display:
        yield [display]


@contextmanager
def batch_shown(jobs: Sequence[Job], progress: bool | None) -> Iterator[BatchListener]:
    """What shows the progress of a batch, if it is wanted."""
    if not _wanted(progress):
        yield BatchListener()
        return
    with BatchDisplay(jobs, notebook=in_notebook()) as display:
        yield display


def _wanted(progress: bool | None) -> bool:
    """None: if somebody looks."""
    if progress is None:
        return in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
    if not isinstance(progress, bool):
        raise BadInput(f"progress = {progress!r} must be True, False, or None for when somebody looks")
    return progress


class BatchDisplay(BatchListener):
    """The progress of many runs: one bar for all and one for each that runs, or a line for each that ends."""

    def __init__(self, jobs: Sequence[Job], *, quiet: bool = False, notebook: bool = False) -> None:
        self._bars = Bars(quiet=quiet, notebook=notebook)
        self._done = {job.name: job.rounds if job.finished else 0 for job in jobs}
        self._rounds, self._count = sum(job.rounds for job in jobs), len(jobs)
        self._ended, self._failed = sum(job.finished for job in jobs), 0
        self._found: dict[str, str] = {}
        self._each: dict[str, Bar] = {}
        self._all = Bar("", None)
        self._began = time.monotonic()

    def __enter__(self) -> BatchDisplay:
        self._began = time.monotonic()
        self._all = self._bars.add("all runs", self._rounds)
        self._show_all()
        if self._ended:
            self._bars.say(f"{self._ended} of {self._count} runs are finished already")
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.update(self._all, rate=duration(time.monotonic() - self._began))
        self._bars.__exit__()

    def began(self, job: Job) -> None:
        """A bar of its own while it runs."""
        self._each[job.name] = self._bars.add(job.name, job.rounds, count=f"0/{job.rounds}")

    def advanced(self, job: Job, rounds_done: int, found: str) -> None:
        """Move the bars."""
        self._done[job.name], self._found[job.name] = rounds_done, found
        count = f"{rounds_done}/{job.rounds}"
        self._bars.update(self._each[job.name], soon=True, done=rounds_done, count=count, state=found)
        self._show_all(soon=True)

    def ended(self, job: Job, problem: str | None) -> None:
        """Count it."""
        self._ended += 1
        self._failed += problem is not None
        self._done[job.name] = job.rounds
        found = self._found.get(job.name, "")
        self._bars.remove(self._each.pop(job.name))
        self._show_all()
        self._bars.say(f"{self._state()}: {job.name}  {found if problem is None else 'failed: ' + problem}")
        if problem is not None and self._bars.moving:
            self._bars.note(f"{job.name} failed: {problem}", style="red")

    def _show_all(self, *, soon: bool = False) -> None:
        done = sum(self._done.values())
        self._bars.update(self._all, soon=soon, done=done, count=f"{done}/{self._rounds}", state=self._state())

    def _state(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._ended} of {self._count} runs{failed}"
