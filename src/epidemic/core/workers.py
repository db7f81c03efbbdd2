"""Worker threads, each with a single thread inside PyTorch, so that results do not depend on how many there are.

A deployed node, with one model to work on, has one worker with several threads inside PyTorch instead.

Work is cut into pieces in a way that does not know the number of workers; a piece is computed by one thread: a worker's, or, where
there is little to do, that of whoever asks, with as many threads inside PyTorch as a worker has.
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
"""Work of fewer multiplications is done where it is asked for: to wake a thread and to share Python's lock with it takes longer."""

A = TypeVar("A")
B = TypeVar("B")


def ranks_here() -> int:
    """How many ranks of the simulation share this machine; 1 in a process of its own."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if several() else 1


def several() -> bool:
    """Whether this process is one of several ranks that have met."""
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
        """`threads` workers, 0 means one per core; each with so many threads `inside` PyTorch."""
        require_int("runtime.threads", threads, 0, 4096)
        self.threads = threads or available_threads()
        self.inside = inside
        self._before = torch.get_num_threads()
        torch.set_num_threads(inside)
        self._pool = ThreadPoolExecutor(self.threads, "epidemic", initializer=torch.set_num_threads, initargs=(inside,))

    def map(self, work: Callable[[A], B], pieces: Sequence[A], *, size: float = math.inf) -> list[B]:
        """`work` on every piece; results in order. `size`: about how many multiplications all pieces take together.

        Where a piece is worked on has no influence on its result.
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
        """End the threads, and give PyTorch its own back."""
        self._pool.shutdown()
        torch.set_num_threads(self._before)


def blocks(size: int, at_most: int) -> list[slice]:
    """0..size cut into slices of equal length, the last one shorter."""
    return [slice(start, min(start + at_most, size)) for start in range(0, size, at_most)]
