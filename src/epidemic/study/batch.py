"""Many experiments, one after the other or side by side in processes of their own.

What is finished is skipped, an interrupted batch goes on when it is run again, and a run that fails, even one whose process
dies, does not stop the others. Those of which each is itself shared among several processes follow at the end.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from epidemic.callbacks import Callback, Callbacks, all_of
from epidemic.core import children
from epidemic.core.children import process_context
from epidemic.core.errors import BadInput, EpidemicError, Interrupted
from epidemic.core.formatting import score, simulated
from epidemic.core.workers import available_threads
from epidemic.data import Dataset
from epidemic.experiment import Experiment, experiment_from
from epidemic.experiment.files import received, sent
from epidemic.learner import Learner
from epidemic.record import Record, Summary
from epidemic.runtime.run_directory import RunDirectory
from epidemic.runtime.run_state import read_state
from epidemic.runtime.setup import Setup
from epidemic.simulator import simulate
from epidemic.simulator.sharing import check_sharing, check_strategy, what_decides_strategy
from epidemic.study.commands import execute, resume_command

Tell = Callable[[int, str], None]  # rounds done in all seeds, and what was last found


@dataclass(frozen=True, eq=False)
class Job:
    """An experiment and the directory that it runs in."""

    path: Path
    experiment: Experiment
    label: str = ""  # tells it from other jobs of a batch; the experiment's name, if that does

    @property
    def name(self) -> str:
        """Its name in progress and messages."""
        return self.label or self.experiment.name

    @property
    def rounds(self) -> int:
        """Return the number of rounds that all seeds of the job have together."""
        return self.experiment.rounds * len(self.experiment.seeds)

    @property
    def finished(self) -> bool:
        """Whether all seeds have run to their end."""
        return all(RunDirectory(self.path, self.experiment, seed).finished for seed in self.experiment.seeds)

    def check(self) -> None:
        """Refuse a directory that holds something else."""
        for seed in self.experiment.seeds:
            RunDirectory(self.path, self.experiment, seed).check(resume=True)


class BatchListener:
    """Receives the progress of a batch; does nothing by default."""

    def began(self, job: Job) -> None:
        """A job starts or resumes."""

    def advanced(self, job: Job, rounds_done: int, found: str) -> None:
        """A job has progressed, counting the rounds of all its seeds; `found` is the last evaluation in words."""

    def ended(self, job: Job, problem: str | None) -> None:
        """A job is done, or has failed."""


@dataclass(frozen=True)
class Outcome:
    """What became of each job of a batch: run, skipped because it was finished before, or failed with a reason."""

    ran: list[Job]
    skipped: list[Job]  # had been finished before
    failed: dict[str, str]  # the reason by name


def run_batch(
    jobs: Sequence[Job],
    workers: int = 1,
    watcher: BatchListener | None = None,
    data: Dataset | None = None,
    callbacks: Callback | Sequence[Callback] = (),
) -> Outcome:
    """Run what is not finished; `data` spares loading it, `callbacks` are told of every run (both for one worker only).

    With several workers this starts processes, so a script of your own must guard its start with `if __name__ == "__main__"`.

    Raises:
        BadInput: A directory holds something else; nothing has been run then.
        Interrupted: By Ctrl-C or SIGTERM; what ran has been saved.
    """
    watcher = BatchListener() if watcher is None else watcher
    check_apart(jobs)
    for job in jobs if workers > 1 else []:
        if not job.experiment.portable:
            sent(job.experiment)  # says what cannot be
    told = all_of(callbacks)
    if workers > 1 and told.callbacks:
        raise BadInput("callbacks work in one process only; use one worker")
    for job in jobs:
        job.check()
    skipped = [job for job in jobs if job.finished]
    todo = [job for job in jobs if job not in skipped]
    workers = min(workers, len(todo))
    with directories({job.path.parent for job in todo}), sigterm_interrupts():
        failed = _Processes(todo, workers, watcher).run() if workers > 1 else _in_turn(todo, watcher, data, told)
    return Outcome([job for job in todo if job.name not in failed], skipped, failed)


def diverged(jobs: Sequence[Job]) -> dict[str, str]:
    """Those runs that have failed because their numbers diverged, by name, with their messages."""
    found = {}
    for job in jobs:
        for seed in job.experiment.seeds:
            state = read_state(job.path / f"seed-{seed}")
            if state.diverged:
                found[job.name] = state.why
    return found


def check_apart(jobs: Sequence[Job]) -> None:
    """Refuse a batch of which two have the same name, or would write into the same directory."""
    for what, found in (("name", [job.name for job in jobs]), ("directory", [str(job.path) for job in jobs])):
        twice = next((one for one in found if found.count(one) > 1), None) if len(set(found)) < len(found) else None
        if twice is not None:
            raise BadInput(f"two experiments of a batch have the same {what}, {twice}; give each a {what} of its own")


@contextmanager
def directories(places: Collection[Path]) -> Iterator[None]:
    """Make directories; on bad input, empty ones are removed again."""
    new = sorted({one for place in places for one in (place, *place.parents) if not one.exists()})
    try:
        for place in places:
            try:
                place.mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                raise BadInput(f"{place} cannot be written: {problem.strerror}; choose another directory") from None
        yield
    except BadInput:
        for place in reversed(new):
            with suppress(OSError):
                place.rmdir()
        raise


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Inside, SIGTERM acts like Ctrl-C."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread: the caller handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Relay(Callback):
    """Passes the progress of a job on, counting the rounds of all its seeds."""

    def __init__(self, job: Job, tell: Tell) -> None:
        self._job, self._tell = job, tell
        self._before, self._found = 0, ""

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        self._before = self._job.experiment.rounds * self._job.experiment.seeds.index(setup.seed)
        self._tell(self._before + rounds_done, self._found)

    def advanced(self, rounds_done: int, x: Any) -> None:
        self._tell(self._before + rounds_done, self._found)

    def recorded(self, record: Record) -> None:
        self._found = score(record.accuracy, record.loss)
        self._found += "" if record.time is None else f", {simulated(record.time.seconds)}"

    def finished(self, summary: Summary) -> None:
        self._tell(self._before + self._job.experiment.rounds, self._found)


def _run(job: Job, tell: Tell, data: Dataset | None, callbacks: Sequence[Callback] = ()) -> str | None:
    """Run a job; the reason if it failed."""
    try:
        simulate(job.experiment, job.path, resume=True, callbacks=[_Relay(job, tell), *callbacks], data=data)
    except Interrupted:
        raise
    except EpidemicError as problem:
        return " ".join(str(problem).split())
    except Exception as problem:
        if "EPIDEMIC_DEBUG" in os.environ:
            raise
        return " ".join(f"unexpected {type(problem).__name__}: {problem}".split())
    return None


class Loaded:
    """The data of the last job, kept for the next one if it is the same."""

    def __init__(self) -> None:
        self._source = ""
        self._data: Dataset | None = None

    def of(self, experiment: Experiment) -> Dataset:
        """Return the data of an experiment; the last data set is kept, because neighbouring jobs often share it."""
        source = _source(experiment)
        if self._data is None or source != self._source:
            self._data, self._source = experiment.load_data(), source
        return self._data


def _source(experiment: Experiment) -> str:
    """Which data it is; arrays of a user's own cannot be compared as they are."""
    return str(experiment.table()["data"])


def _same_data(jobs: Sequence[Job]) -> bool:
    return len({_source(job.experiment) for job in jobs}) == 1


def _in_turn(jobs: Sequence[Job], watcher: BatchListener, data: Dataset | None, told: Callbacks) -> dict[str, str]:
    failed: dict[str, str] = {}
    loaded = Loaded()
    for done, job in enumerate(jobs):
        watcher.began(job)
        try:
            problem: str | None
            try:
                found = loaded.of(job.experiment) if data is None else data
            except BadInput as missing:
                if _same_data(jobs):
                    raise  # no job could run without it
                problem = str(missing)
            else:
                problem = _run(job, partial(watcher.advanced, job), found, told.callbacks)
        except (Interrupted, KeyboardInterrupt):
            raise Interrupted(f"interrupted in {job.name}, after {done} of {len(jobs)} runs") from None
        if problem is not None:
            failed[job.name] = problem
        watcher.ended(job, problem)
    return failed


# -- several processes ------------------------------------------------------------------------------------------------


class _Processes:
    """Keeps so many processes busy. They live in sessions of their own, so that Ctrl-C reaches only the parent."""

    def __init__(self, jobs: Sequence[Job], workers: int, watcher: BatchListener) -> None:
        self._context = process_context("epidemic.study.batch")
        self._waiting = deque(jobs)
        self._all = len(jobs)
        self._watcher = watcher
        self._threads = max(1, available_threads() // workers)
        self._busy: dict[Any, tuple[Any, Job]] = {}  # connection: process, its job
        self._failed: dict[str, str] = {}
        self._workers = workers
        self._ended = 0
        self._same_data = _same_data(jobs)

    def run(self) -> dict[str, str]:
        """Run all jobs; returns the reasons of those that failed."""
        try:
            while self._waiting and len(self._busy) < self._workers:
                self._start()
            while self._busy:
                for connection in multiprocessing.connection.wait(list(self._busy)):
                    self._listen(connection)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted after {self._ended} of {self._all} runs") from None
        finally:
            self._stop()
        return self._failed

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_worker, args=(theirs, self._threads, dict(os.environ)), daemon=False)
        children.start(process)
        theirs.close()
        self._busy[ours] = process, self._waiting[0]
        self._hand_out(ours)

    def _hand_out(self, connection: Any) -> None:
        process, _ = self._busy[connection]
        if not self._waiting:
            del self._busy[connection]
            connection.send(None)
            connection.close()
            process.join()
            return
        job = self._waiting.popleft()
        self._busy[connection] = process, job
        self._watcher.began(job)
        own = not job.experiment.portable
        raw = sent(job.experiment) if own else msgspec.json.encode(job.experiment.table())
        connection.send((str(job.path), own, raw))

    def _listen(self, connection: Any) -> None:
        process, job = self._busy[connection]
        try:
            kind, *content = connection.recv()
        except (EOFError, ConnectionError):
            process.join()
            del self._busy[connection]
            killed = ": it was killed, perhaps for lack of memory" if process.exitcode == -signal.SIGKILL else ""
            self._end(job, f"its process died (exit code {process.exitcode}){killed}")
            if self._waiting:
                self._start()
            return
        if kind == "advanced":
            self._watcher.advanced(job, *content)
        elif kind == "missing" and self._same_data:
            raise BadInput(content[0])  # nobody could run without it
        else:
            self._end(job, content[0])
            self._hand_out(connection)

    def _end(self, job: Job, problem: str | None) -> None:
        self._ended += 1
        if problem is not None:
            self._failed[job.name] = problem
        self._watcher.ended(job, problem)

    def _stop(self) -> None:
        """Ask all running jobs to save and end."""
        children.ask_to_end([process for process, _ in self._busy.values()])
        for connection, (process, _) in self._busy.items():
            process.join()
            connection.close()


def _worker(connection: Any, threads: int, environment: Mapping[str, str]) -> None:
    """The life of a process: one job after the other, until there is none or the parent is gone."""
    os.environ.clear()
    os.environ.update(environment)  # as the parent has it now: the process that this one is forked from may be older
    children.on_its_own()
    loaded = Loaded()

    def tell(rounds: int, found: str) -> None:
        try:
            connection.send(("advanced", rounds, found))
        except (BrokenPipeError, ConnectionError):
            raise KeyboardInterrupt from None  # the parent is gone: save and end

    with suppress(Interrupted, KeyboardInterrupt, EOFError, ConnectionError):
        while (task := connection.recv()) is not None:
            path, own, raw = task
            try:
                experiment = received(raw) if own else experiment_from(msgspec.json.decode(raw))
                if experiment.runtime.threads == 0:
                    runtime = msgspec.structs.replace(experiment.runtime, threads=threads)
                    experiment = msgspec.structs.replace(experiment, runtime=runtime)
                data = loaded.of(experiment)
            except Exception as missing:
                kind = "missing" if isinstance(missing, BadInput) else f"unexpected {type(missing).__name__}"
                connection.send(("missing", str(missing)) if kind == "missing" else ("ended", f"{kind}: {missing}"))
                continue
            connection.send(("ended", _run(Job(Path(path), experiment), tell, data)))


# -- Many experiments one after the other, each shared among several ranks: a command of its own, which may fail or be killed alone --


LOOK = 1.0
"""Seconds between two checks of a run's progress."""


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
    """Name this job in refusals raised inside."""
    try:
        yield
    except BadInput as problem:
        raise BadInput(f"{job.name}: {problem}") from None


@contextmanager
def _followed(job: Job, tell: Tell) -> Iterator[None]:
    """While inside, and at the end, report the progress of a run in other processes from its files."""
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
