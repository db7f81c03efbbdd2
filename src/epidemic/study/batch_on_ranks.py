"""Many experiments one after the other, each shared among several ranks: a command of its own, which may fail or be killed alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from epidemic.core.errors import BadInput, EpidemicError, Interrupted
from epidemic.core.formatting import score
from epidemic.runtime.run_directory import RunDirectory
from epidemic.simulator.sharing import check_sharing, check_strategy, what_decides_strategy
from epidemic.study.batch import BatchListener, Job, Loaded, Outcome, Tell, check_apart, directories, sigterm_interrupts
from epidemic.study.commands import execute, resume_command

LOOK = 1.0
"""Seconds between two looks at how far a run has come."""


def run_batch_on_ranks(
    jobs: Sequence[Job],
    ranks: int,
    watcher: BatchListener | None = None,
    settings: Mapping[Path, Sequence[str]] | None = None,
) -> Outcome:
    """Run what is not finished, each on so many ranks; `settings` (key=value) by a run's directory are given to its command.

    Raises:
        BadInput: A directory holds something else, or a run cannot be shared; nothing has been run then.
        Interrupted: By Ctrl-C or SIGTERM; what ran has been saved.
    """
    watcher = BatchListener() if watcher is None else watcher
    check_apart(jobs)
    for job in jobs:
        job.check()
    skipped = [job for job in jobs if job.finished]
    todo = [job for job in jobs if job not in skipped]
    check_ranks(todo, ranks)
    failed: dict[str, str] = {}
    with directories({job.path for job in todo}), sigterm_interrupts():
        for done, job in enumerate(todo):
            watcher.began(job)
            problem: str | None = None
            try:
                RunDirectory(job.path, job.experiment, job.experiment.seeds[0]).announce()
                with _followed(job, partial(watcher.advanced, job)):
                    execute(resume_command(job.path, ranks, (settings or {}).get(job.path, ())))
            except (Interrupted, KeyboardInterrupt):
                raise Interrupted(f"interrupted in {job.name}, after {done} of {len(todo)} runs") from None
            except (EpidemicError, OSError) as why:  # a directory that went away meanwhile fails its own run
                problem = failed[job.name] = " ".join(str(why).split())
            watcher.ended(job, problem)
    return Outcome([job for job in todo if job.name not in failed], skipped, failed)


def check_ranks(jobs: Sequence[Job], ranks: int) -> None:
    """Refuse a batch of which some run cannot be shared among so many ranks, naming it. Data that is not here is not waited for."""
    if ranks == 1:
        return
    loaded, known = Loaded(), set()
    for job in jobs:
        with _named(job):
            check_sharing(job.experiment, ranks)
    for job in jobs:
        alike = what_decides_strategy(job.experiment)
        if alike in known:
            continue
        known.add(alike)
        try:
            data = loaded.of(job.experiment)
        except BadInput:
            continue  # it may be where the run will be
        with _named(job):
            check_strategy(job.experiment, data)


@contextmanager
def _named(job: Job) -> Iterator[None]:
    """Whatever is refused inside is this job's."""
    try:
        yield
    except BadInput as problem:
        raise BadInput(f"{job.name}: {problem}") from None


@contextmanager
def _followed(job: Job, tell: Tell) -> Iterator[None]:
    """Meanwhile, and at the end, tell how far a run in other processes has come, by what it writes down."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK):
            tell(*_so_far(job))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        tell(*_so_far(job))


def _so_far(job: Job) -> tuple[int, str]:
    """Rounds done in all seeds as far as they are recorded, and what was last found."""
    rounds, found = 0, ""
    for seed in job.experiment.seeds:
        with suppress(EpidemicError, OSError):
            records = RunDirectory(job.path, job.experiment, seed).records()
            if records:
                rounds, found = rounds + records[-1].round, score(records[-1].accuracy, records[-1].loss)
    return rounds, found
