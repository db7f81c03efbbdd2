"""What `--slurm` takes: `partition=gpu,time=8h,mem=32G,array=50`, under the names that sbatch has for them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epidemic.core.errors import BadInput, suggestion
from epidemic.study.sweep import split_at_commas

MINUTES = 60
"""A task's time if none is given. It need not be enough: a run that takes longer saves, is requeued and goes on."""
SIGNAL = 90
"""Seconds before the limit at which it is told to save, if nothing is given."""
EARLY = 60
"""Seconds by which Slurm may be early."""
SHORTEST = 2
"""Minutes."""
AT_ONCE = 256
"""Tasks side by side, if nothing is given."""


@dataclass(frozen=True)
class Options:
    """What is asked of Slurm for each run."""

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
