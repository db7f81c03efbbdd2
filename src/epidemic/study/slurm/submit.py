"""Handing a batch over to Slurm: what is neither finished nor under way becomes an array job, one task a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec

from epidemic.core.errors import BadInput, EpidemicError, RunFailed
from epidemic.core.files import directory_name, write_bytes
from epidemic.runtime.run_directory import RunDirectory
from epidemic.study.batch import Job
from epidemic.study.batch_on_ranks import check_ranks
from epidemic.study.commands import resume_command
from epidemic.study.slurm.options import Options
from epidemic.study.slurm.queue import ask, check_shared, largest_array, seen
from epidemic.study.slurm.status import FOLDER, TASKS, RunStatus, status_of_run, tasks_of
from epidemic.study.slurm.task import ENDED, SlurmTask

MOST_REQUEUES = 1_000_000
"""submitit counts how often a task runs into its time limit. A run ends by itself if it comes no further (`Task.checkpoint`)."""


@dataclass(frozen=True)
class Submission:
    """What became of each run of a batch: submitted, already queued or running, or finished."""

    submitted: dict[str, str]  # the task of each run by its name
    under_way: dict[str, str]  # queued or running since before: the state by name
    finished: list[str]
    again: dict[str, str]  # of those submitted: why they ended early before


def submit(
    jobs: Sequence[Job], where: Path, options: Options, settings: Mapping[Path, Sequence[str]] | None = None
) -> Submission:
    """Submit what is not finished and not under way; `settings` (key=value) by a run's directory are given to its command.

    Raises:
        BadInput: A directory holds something else or is not shared, a run cannot be shared among ranks, there is no
            Slurm or submitit, or Slurm refuses.
            Nothing has been submitted then.
    """
    submitit = _submitit()
    ask("sbatch", "--version")
    if "%" in str(where.resolve()):
        raise BadInput(f"{where.resolve()}: Slurm replaces % in paths of its logs; choose an --out without it")
    check_shared(where)
    for job in jobs:
        job.check()
    check_ranks([job for job in jobs if not job.finished], options.ranks)
    with _alone(where):
        tasks, listed = tasks_of(where), seen()
        before = {job.path: status_of_run(where, job.path, tasks, listed) for job in jobs}
        finished = [job.name for job in jobs if job.finished]
        under_way = {job.name: before[job.path].state for job in jobs if _busy(before[job.path])}
        todo = [job for job in jobs if job.name not in {*finished, *under_way}]
        again = {job.name: before[job.path].why for job in todo if before[job.path].state in ("failed", "stopped")}
        submitted: dict[str, str] = {}
        for part in _parts(todo, largest_array()):
            with _announced(part, where):
                made = [_task(job, options, (settings or {}).get(job.path, ())) for job in part]
                share = max(1, options.at_once * len(part) // len(todo))
                ids = _array(submitit, where, options.parameters(_name(where), share), made)
            submitted |= {job.name: task for job, task in zip(part, ids, strict=True)}
            tasks |= {str(job.path.relative_to(where)): submitted[job.name] for job in part}
            _note(where, tasks, ids)
        return Submission(submitted, under_way, finished, again)


def _note(where: Path, tasks: Mapping[str, str], ids: Sequence[str]) -> None:
    """Write down which tasks there are. Those with these ids are cancelled if that fails, or the same command would submit them once more."""
    try:
        write_bytes(where / FOLDER / TASKS, msgspec.json.format(msgspec.json.encode(tasks), indent=1) + b"\n")
    except EpidemicError:
        ask("scancel", *{one.partition("_")[0] for one in ids})
        raise


def _parts(jobs: Sequence[Job], most: int) -> list[Sequence[Job]]:
    """One array, or several where Slurm allows none so large."""
    return [jobs[i : i + most] for i in range(0, len(jobs), most)]


def _name(where: Path) -> str:
    return f"epidemic-{directory_name(where.resolve().name)}"


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise BadInput("--on slurm needs submitit; install it with: pip install 'epidemic-learning[slurm]'") from None
    return submitit


def _busy(status: RunStatus) -> bool:
    return status.state in ("queued", "running")


def _task(job: Job, options: Options, settings: Sequence[str]) -> SlurmTask:
    """The command that goes on with a run, on as many threads as the task has processors, in all its ranks together."""
    threads = [f"runtime.threads={options.cpus // options.ranks}"] if job.experiment.runtime.threads == 0 else []
    return SlurmTask(resume_command(job.path, options.ranks, [*threads, *settings]), str(job.path.resolve()))


def _array(submitit: Any, where: Path, parameters: Mapping[str, Any], tasks: Sequence[SlurmTask]) -> list[str]:
    """Submit an array job; the ids of its tasks."""
    refused = (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError)
    folder = where.resolve() / FOLDER
    with redirect_stderr(StringIO()):  # submitit prints what it raises, too
        try:
            executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=MOST_REQUEUES)
            executor.update_parameters(**parameters)
            with executor.batch():
                sent = [executor.submit(task) for task in tasks]
            return [str(job.job_id) for job in sent]
        except (*refused, OSError) as problem:
            for left in folder.glob("*.pkl"):  # pickles that got no number, and the file that sbatch did not take
                if "_" not in left.name:
                    left.unlink()
            for left in folder.glob(".submission_file_*.sh"):
                left.unlink()
            if isinstance(problem, OSError):  # the disk is full
                raise
            words = " ".join(str(problem).replace("sbatch: error: ", "").split())
            raise BadInput(f"Slurm refuses: {words}; see the options of --slurm") from None


@contextmanager
def _announced(jobs: Sequence[Job], where: Path) -> Iterator[None]:
    """Write each experiment into its directory, from which its task goes on; taken back if nothing comes of it."""
    new = [job for job in jobs if not (job.path / "experiment.toml").exists()]
    try:
        for job in jobs:
            job.path.mkdir(parents=True, exist_ok=True)
            (job.path / ENDED).unlink(missing_ok=True)
            RunDirectory(job.path, job.experiment, job.experiment.seeds[0]).announce()
        yield
    except (OSError, EpidemicError) as problem:
        for job in new:
            for file in ("experiment.toml", "places.json"):
                (job.path / file).unlink(missing_ok=True)
            with suppress(OSError):
                job.path.rmdir()
        if isinstance(problem, EpidemicError):
            raise
        raise RunFailed(
            f"{problem.filename or where} cannot be written: {problem.strerror}; nothing was submitted"
        ) from None


@contextmanager
def _alone(where: Path) -> Iterator[None]:
    """Nobody else submits runs of this directory at the same time; a folder that stays empty is taken away again."""
    import fcntl

    try:
        (where / FOLDER).mkdir(parents=True, exist_ok=True)
        lock = (where / FOLDER / ".lock").open("wb")
    except OSError as problem:
        raise BadInput(f"{where} cannot be written: {problem.strerror}; choose another directory") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"{where}: another process is submitting its runs; wait for it") from None
        try:
            yield
        finally:
            if [one.name for one in (where / FOLDER).iterdir()] == [".lock"]:
                (where / FOLDER / ".lock").unlink()
                for place in (where / FOLDER, where):
                    with suppress(OSError):
                        place.rmdir()
