"""Connecting the ranks of a simulation, from the environment set by `torchrun` and `--ranks`, and finding out why one was lost.

A failing rank leaves a message in the store through which the ranks met. A rank that loses a connection leaves one too and reads the others', so that
all can report which one is gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from epidemic.core.errors import EpidemicError, Interrupted, RankLost, plain
from epidemic.core.workers import several, started_as_a_rank

TIMEOUT = 600.0
"""Seconds that a rank waits for the others before it gives up."""
ROLL_CALL = 5.0
"""Seconds that ranks which have lost one wait for the messages of the others."""

_LOST = "-"
_met: Any = None  # the store of this process's group, if it was created here


@contextmanager
def same_for_all() -> Iterator[None]:
    """An exception inside on one rank is raised on all of them; without ranks this does nothing."""
    if not several():
        yield
        return
    from epidemic.sharding.communicator import Communicator

    with Communicator().together():
        yield


def told_by_the_first(path: Path) -> bytes | None:
    """The content of a file on the first rank; None if it does not exist, or without ranks, where the caller reads it itself."""
    if not several():
        return None
    from epidemic.sharding.communicator import Communicator

    ranks, raw = Communicator(), b""
    with ranks.together():
        raw = path.read_bytes() if ranks.rank == 0 and path.is_file() else b""
    return ranks.told(raw) or None


@contextmanager
def joined(timeout: float | None = None) -> Iterator[None]:
    """Connect to the other ranks, if this process was started as one of several; `timeout`: seconds to wait for them, now and later."""
    global _met
    if not started_as_a_rank() or several():
        yield
        return
    seconds = TIMEOUT if timeout is None else timeout
    rank = int(os.environ["RANK"])
    on_gpus = torch.cuda.is_available()
    if on_gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    wait = timedelta(seconds=seconds)
    try:
        store, rank, count = next(iter(rendezvous("env://", timeout=wait)))
        store.set_timeout(wait)
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo", store=store, rank=rank, world_size=count, timeout=wait)  # fmt: skip
    except (RuntimeError, ValueError, KeyError, OSError) as problem:
        raise RankLost(
            f"rank {rank} could not meet the others within {seconds:g} s ({plain(str(problem), 160)});"
            " all of them must be started, and reach MASTER_ADDR and MASTER_PORT"
        ) from None
    _met = PrefixStore("epidemic", store)
    try:
        yield
    except BaseException as problem:
        farewell(rank, problem)
        raise
    dist.destroy_process_group()


def farewell(rank: int, problem: BaseException) -> None:
    """Tell the other ranks why this one ends, unless they know or have ended first."""
    if _met is None or getattr(problem, "agreed", False) or isinstance(problem, RankLost | Interrupted):
        return
    said = str(problem) if isinstance(problem, EpidemicError) else f"{type(problem).__name__}: {problem}"
    _leave_word(rank, plain(" ".join(said.split()), 300) or type(problem).__name__)


def why_lost(rank: int, count: int, reason: str) -> str:
    """What this rank can report about a lost connection: which ranks have said why they end, or which are silent."""
    timed_out = "imed out" in reason or "timeout" in reason.lower()
    what = "waited too long for another rank" if timed_out else "lost the connection to another rank"
    if _met is None:
        return f"rank {rank} {what} ({plain(' '.join(reason.split()), 160)})"
    _leave_word(rank, _LOST)
    words: dict[int, str] = {}
    try:
        end = time.monotonic() + ROLL_CALL
        while time.monotonic() < end and len(words) < count - 1:
            for other in range(count):
                if other != rank and other not in words and _met.check([f"end/{other}"]):
                    words[other] = _met.get(f"end/{other}").decode(errors="replace")
            if any(word != _LOST for word in words.values()):
                break
            time.sleep(0.05)
    except RuntimeError:
        return f"rank {rank} {what}, and the first rank, by which all had met, is gone"
    for other, word in sorted(words.items()):
        if word != _LOST:
            return f"rank {other}: {word}"
    silent = [other for other in range(count) if other != rank and other not in words]
    if not silent:
        return f"rank {rank} {what}; all ranks are there, so it is the network ({plain(' '.join(reason.split()), 160)})"
    who = f"rank {silent[0]} is" if len(silent) == 1 else f"ranks {', '.join(map(str, silent[:8]))} are"
    return f"{who} gone or do not answer" if len(silent) > 1 else f"{who} gone or does not answer"


def _leave_word(rank: int, word: str) -> None:
    try:
        _met.set(f"end/{rank}", word)
    except RuntimeError:  # the store ended with the rank that held it
        return
