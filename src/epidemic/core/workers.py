"""Worker threads, each with a single thread inside PyTorch, so that results do not depend on their number.

A deployed node, with one model, has one worker with several threads inside PyTorch instead.

Work is cut into pieces independently of the number of workers. One thread computes a piece: a worker, or for little work the caller, with as many threads
inside PyTorch as a worker.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
import torch.distributed as dist

from epidemic.core.errors import require_int

SMALL = 2_000_000
"""Work of fewer multiplications is done in the caller's thread: waking another one takes longer."""

A = TypeVar("A")
B = TypeVar("B")


def ranks_here() -> int:
    """The number of ranks of the simulation on this machine; 1 without ranks."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if several() else 1


def several() -> bool:
    """Whether this process is one of several connected ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def started_as_a_rank() -> bool:
    """Whether this process was started as one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def available_threads() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """A pool of worker threads, each with its own number of threads inside PyTorch."""

    def __init__(self, threads: int = 0, *, inside: int = 1) -> None:
        """Start `threads` workers, 0 for one per core, each with `inside` threads inside PyTorch."""
        require_int("runtime.threads", threads, 0, 4096)
        self.threads = threads or available_threads()
        self.inside = inside
        self._before = torch.get_num_threads()
        torch.set_num_threads(inside)
        self._pool = ThreadPoolExecutor(self.threads, "epidemic", initializer=torch.set_num_threads, initargs=(inside,))

    def map(self, work: Callable[[A], B], pieces: Sequence[A], *, size: float = math.inf) -> list[B]:
        """Apply `work` to every piece; results in order. `size`: about how many multiplications all pieces take together.

        The thread that computes a piece has no influence on its result.
        """
        if self.threads > 1 and len(pieces) > 1 and size >= SMALL:
            return list(self._pool.map(work, pieces))
        found = torch.get_num_threads()
        if found != self.inside:
            torch.set_num_threads(self.inside)
        try:
            with torch.enable_grad():  # as in a thread of its own
                return [work(piece) for piece in pieces]
        finally:
            if found != self.inside:
                torch.set_num_threads(found)

    def close(self) -> None:
        """Stop the threads, and restore PyTorch's own."""
        self._pool.shutdown()
        torch.set_num_threads(self._before)


def blocks(size: int, at_most: int) -> list[slice]:
    """Cut 0..size into slices of equal length, the last one shorter."""
    return [slice(start, min(start + at_most, size)) for start in range(0, size, at_most)]
