"""Handing a batch over to Slurm: what is neither finished nor under way becomes an array job, one task a run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec

from epidemic.core.errors import BadInput, EpidemicError, RunFailed, suggestion
from epidemic.core.files import directory_name, write_bytes
from epidemic.core.locks import taken
from epidemic.runtime.run_directory import RunDirectory
from epidemic.study.batch import Job, check_ranks
from epidemic.study.commands import resume_command
from epidemic.study.slurm.status import (
    FOLDER,
    TASKS,
    RunStatus,
    ask,
    check_shared,
    largest_array,
    seen,
    status_of_run,
    tasks_of,
)
from epidemic.study.slurm.task import ENDED, SlurmTask
from epidemic.study.sweep import split_at_commas

# -- What `--slurm` takes: `partition=gpu,time=8h,mem=32G,array=50`, under the names that sbatch has for them --------


MINUTES = 60
"""Default minutes of a task. A run that takes longer saves, is requeued and resumes."""
SIGNAL = 90
"""Default seconds before the time limit at which a task is told to save."""
EARLY = 60
"""Seconds by which Slurm may be early."""
SHORTEST = 2
"""Shortest time limit in minutes."""
AT_ONCE = 256
"""Default number of tasks at the same time."""


@dataclass(frozen=True)
class Options:
    """The resources requested from Slurm for each run."""

    minutes: int = MINUTES
    signal: int = SIGNAL  # seconds before the limit at which a run is told to save
    at_once: int = AT_ONCE
    cpus: int = 1  # of all ranks of a run together
    ranks: int = 1  # processes that share the nodes of a run, on one machine
    more: Mapping[str, Any] = field(default_factory=dict)  # by submitit's names

    def parameters(self, name: str, at_once: int) -> dict[str, Any]:
        """As submitit's AutoExecutor takes them, for an array of which so many tasks may run side by side."""
        return {
            "name": name,
            "timeout_min": self.minutes,
            "cpus_per_task": self.cpus,
            "slurm_signal_delay_s": self.signal,
            "slurm_array_parallelism": at_once,
            # Since Slurm 22.05 the step of a batch script does not inherit the number of its processors.
            "slurm_srun_args": [f"--cpus-per-task={self.cpus}"],
            **{f"slurm_{key}": value for key, value in self.more.items()},
        }


def parse_options(texts: Sequence[str], ranks: int = 1) -> Options:
    """The options of one or several `--slurm`, for runs on so many ranks."""
    given: dict[str, str] = {}
    for text in texts:
        for part in split_at_commas(text):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key not in KNOWN:
                raise BadInput(f"--slurm {key}: not an option that is passed on{suggestion(key, KNOWN)}")
            if not equals or not value.strip("\"'"):
                raise BadInput(f"--slurm {part.strip()!r} must have the form key=value, for example {KNOWN[key][1]}")
            if key in given:
                raise BadInput(f"--slurm {key} is given twice; leave one out")
            given[key] = value.strip("\"'")
    read = {key: KNOWN[key][0](f"--slurm {key}={value}", value) for key, value in given.items()}
    minutes = math.ceil(read.pop("time", 60 * MINUTES) / 60)
    if minutes < SHORTEST:
        raise BadInput(
            f"--slurm time={given['time']} must be at least {SHORTEST} minutes, or runs save before they begin"
        )
    signal = read.pop("signal", min(SIGNAL, 60 * minutes - EARLY - 30))
    if signal + EARLY >= 60 * minutes:
        raise BadInput(
            f"--slurm signal={given['signal']} must be at least {EARLY} s less than the time, {minutes} min: Slurm may be early by as much"
        )
    at_once, cpus = read.pop("array", AT_ONCE), read.pop("cpus-per-task", ranks)
    if cpus % ranks:
        raise BadInput(
            f"--slurm cpus-per-task={cpus} must be a multiple of --ranks {ranks}, for example {ranks * math.ceil(cpus / ranks)}:"
            " all ranks of a task have as many"
        )
    if ranks > 1 and read.get("gpus-per-node", ranks) != ranks:
        raise BadInput(f"--slurm gpus-per-node={read['gpus-per-node']} must be --ranks {ranks}: one rank a GPU")
    apart = {key: read.pop(key) for key in ("reservation",) if key in read}  # what submitit has no parameter for
    more = {key.replace("-", "_"): value for key, value in read.items()}
    return Options(
        minutes, signal, at_once, cpus, ranks, {**more, **({"additional_parameters": apart} if apart else {})}
    )


def _text(shown: str, value: str) -> str:
    if not value.isprintable():
        raise BadInput(f"{shown!r} has a line break or a control character; leave it out")
    return value


def _count(shown: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", value) or int(value) < 1:
        raise BadInput(f"{shown} must be a whole number of at least 1")
    return int(value)


def _memory(shown: str, value: str) -> str:
    if not re.fullmatch(r"[0-9]{1,9}[KMGT]?", value):
        raise BadInput(f"{shown} must be a size like 32G or 500M")
    return value


def _seconds(shown: str, value: str) -> int:
    """`8h`, `1d12h`, `90` (minutes), or as Slurm writes it: `1-12:00:00`."""
    units = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", value)
    own = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", value)
    if re.fullmatch(r"\d+", value):
        found = 60 * int(value)
    elif units or own:
        parts = [int(part or 0) for part in (units or own).groups()]  # type: ignore[union-attr]
        found = sum(size * part for size, part in zip((86400, 3600, 60, 1), parts, strict=True))
    else:
        raise BadInput(f"{shown} must be a time like 8h, 1d12h, 45m, 90 (minutes) or 1-12:00:00")
    if not 1 <= found <= 365 * 86400:
        raise BadInput(f"{shown} must be between a second and a year")
    return found


KNOWN: dict[str, tuple[Callable[[str, str], Any], str]] = {
    "account": (_text, "account=group"),
    "array": (_count, "array=50"),
    "constraint": (_text, "constraint=avx512"),
    "cpus-per-task": (_count, "cpus-per-task=8"),
    "exclude": (_text, "exclude=n[1-3]"),
    "gpus-per-node": (_count, "gpus-per-node=1"),
    "gres": (_text, "gres=gpu:a100:1"),
    "mail-type": (_text, "mail-type=END"),
    "mail-user": (_text, "mail-user=me@example.org"),
    "mem": (_memory, "mem=32G"),
    "nodelist": (_text, "nodelist=n[1-3]"),
    "partition": (_text, "partition=gpu"),
    "qos": (_text, "qos=long"),
    "reservation": (_text, "reservation=course"),
    "signal": (_seconds, "signal=5m"),
    "time": (_seconds, "time=8h"),
    "wckey": (_text, "wckey=project"),
}
"""Options by name: how a value is read, and an example."""


MOST_REQUEUES = 1_000_000
"""submitit counts how often a task reaches its time limit. A run without progress ends by itself (`Task.checkpoint`)."""


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
    """Write which tasks were submitted. If that fails, those with these ids are cancelled, because the same command would submit them again."""
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
    """The task that resumes a run, with as many threads as it has processors, in all ranks together."""
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
    """Write each experiment into its directory, from which its task resumes; removed if the submission fails."""
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
    """Lock the directory against other submissions; a folder that stays empty is removed."""
    try:
        (where / FOLDER).mkdir(parents=True, exist_ok=True)
        lock = taken(where / FOLDER / ".lock")
    except OSError as problem:
        raise BadInput(f"{where} cannot be written: {problem.strerror}; choose another directory") from None
    if lock is None:
        raise BadInput(f"{where}: another process is submitting its runs; wait for it")
    try:
        yield
    finally:
        if [one.name for one in (where / FOLDER).iterdir()] == [".lock"]:
            (where / FOLDER / ".lock").unlink()
            for place in (where / FOLDER, where):
                with suppress(OSError):
                    place.rmdir()
        lock.release()
