"""What the C library does with memory that is free: keep it for the next step instead of giving it back to the system.

Every local step needs temporary tensors of the same sizes. glibc maps large ones anew each time, and gives the upper end of a thread's memory
back as soon as it is free; the system then clears every page again, which took up to an eighth of the time of training.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

MEGABYTE = 1 << 20
TRIM, MAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
KEPT = 64 * MEGABYTE
"""So much free memory at the upper end stays with each thread."""
MAPPED = 32 * MEGABYTE
"""Blocks from this size on are mapped on their own, the most that glibc allows."""


@cache
def keep_freed_memory() -> bool:
    """Set glibc's thresholds for this process, once; whether that was done.

    Nothing is done with another C library, or where the user has set thresholds of glibc's in the environment.
    """
    own = [name for name in os.environ if name.startswith("MALLOC_") and name.endswith("_")]
    if own or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or sys.platform != "linux":
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - others have no such function
        return bool(library.mallopt(MAP, MAPPED)) and bool(library.mallopt(TRIM, KEPT))
    except (OSError, AttributeError):
        return False
