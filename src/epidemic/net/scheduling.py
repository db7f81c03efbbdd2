"""Scheduling: a process that hosts nodes computes in long stretches.

Several processes of nodes on one machine take the cores from each other in the middle of a model's training, at every letter that comes in, and each time
the caches are filled anew. Linux can be told that a process computes (SCHED_BATCH), so that those who wake up wait for the end of its stretch, and from
version 6.12 on how long a stretch is. Nobody has more of a core for it, and nobody waits longer than a stretch of each of the others.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from contextlib import suppress

STRETCH = 100_000_000
"""Nanoseconds, the most that Linux grants: a model's training in a round takes some tens of milliseconds."""

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = struct.Struct("IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period


def compute_in_stretches() -> None:
    """Ask for it, for this thread and those that it starts; where the system cannot, or somebody has chosen a policy, all stays as it is."""
    with suppress(AttributeError, OSError):  # not Linux; not allowed
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        _set_stretch(os.getpriority(os.PRIO_PROCESS, 0))


def _set_stretch(nice: int) -> None:
    number = _SCHED_SETATTR.get(platform.machine())
    if number is not None and struct.calcsize("P") == 8:
        wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_BATCH, 0, nice, 0, STRETCH, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, wanted, 0)  # older versions take no notice
