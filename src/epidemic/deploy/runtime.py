"""Operating-system settings: Zenoh's threads, closing of connections, and long time slices.

Several node processes on one machine interrupt each other's training at every message, and each time the caches are refilled. Linux can be told that a
process computes (SCHED_BATCH), so that waking processes wait for the end of its time slice, and from version 6.12 on how long that is. No process gets
more of a core by this, and none waits longer than one time slice of each of the others.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from epidemic.core.workers import available_threads

OPEN_FILES = Path("/proc/self/fd")
"""Open files of this process, on Linux."""

_chosen_by: list[int] = []  # the process that set Zenoh's threads


def enough_threads(nodes: int, here: int = 1) -> None:
    """Set the number of Zenoh's threads before it starts: of each kind, as many as there are cores for this process, one of `here` on the machine.

    Where lingering cannot be turned off there must be as many as nodes; otherwise a network cut in half would fall silent altogether.
    """
    ours = "(acc: (worker_threads: 2), "
    known = os.environ.get("ZENOH_RUNTIME", ours)
    if not known.startswith(ours) or _chosen_by == [
        os.getpid()
    ]:  # set by the user; or by this process, not by a parent
        return
    _chosen_by[:] = [os.getpid()]
    many = max(2, min(8, available_threads() // max(1, here))) if OPEN_FILES.is_dir() else max(4, min(64, nodes))
    kinds = ", ".join(f"{kind}: (worker_threads: {many})" for kind in ("rx", "tx", "net"))
    os.environ["ZENOH_RUNTIME"] = f"{ours}{kinds})"


def shut(address: str) -> None:
    """Shut down the connections of this process to an address (HOST:PORT); Zenoh then closes their links. Linux only."""
    with suppress(OSError):
        for found in _connections():
            with found, suppress(OSError):  # no longer connected
                host, port = found.getpeername()[:2]
                if address in (f"{host}:{port}", f"[{host}]:{port}"):
                    found.shutdown(socket.SHUT_RDWR)


def no_lingering(_: object = None) -> None:
    """Make closed connections return at once.

    Zenoh sets SO_LINGER to ten seconds: closing a link with unsent data, because its other end was cut off, then blocks one of its few threads for that
    long, and with it every link of that thread (measured: with 24 of 25 links cut, the remaining one was silent for 26 s). Without it the system sends what
    it can in the background.
    """
    with suppress(OSError):
        for found in _connections():
            with found, suppress(OSError):  # closed meanwhile
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))


def _connections() -> Iterator[socket.socket]:
    """Copies of this process's TCP sockets, to be closed by the caller."""
    for path in OPEN_FILES.iterdir():
        with suppress(OSError):  # closed meanwhile
            if not str(path.readlink()).startswith("socket:"):
                continue
            copy = os.dup(int(path.name))
            try:
                found = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            if found.type == socket.SOCK_STREAM and found.family in (socket.AF_INET, socket.AF_INET6):
                yield found
            else:
                found.close()


STRETCH = 100_000_000
"""Nanoseconds, the most that Linux grants: training a model in a round takes some tens of milliseconds."""

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = struct.Struct("IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period


def compute_in_stretches() -> None:
    """Request long time slices for this thread and those that it starts; does nothing if the system cannot, or if a policy was already chosen."""
    with suppress(AttributeError, OSError):  # not Linux, or not allowed
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        _set_stretch(os.getpriority(os.PRIO_PROCESS, 0))


def _set_stretch(nice: int) -> None:
    number = _SCHED_SETATTR.get(platform.machine())
    if number is not None and struct.calcsize("P") == 8:
        wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_BATCH, 0, nice, 0, STRETCH, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, wanted, 0)  # ignored by older versions
