"""Locks between processes, on files that are not removed; a lock is released when its process ends, in whatever way."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from epidemic.core.files import open_regular

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def taken(path: Path) -> FileLock | None:
    """Take the lock of a file, which is created if necessary; None if another process holds it. Its `release` unlocks the file.

    Raises:
        OSError: The file cannot be written, or the file system has no locks.
    """
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    return lock


def held(path: Path) -> bool:
    """Whether a process holds the lock of a file; assumed if it cannot be determined.

    The file is opened for reading only, unlike by filelock, so that this works for runs of other users, too.
    """
    try:
        with open_regular(path) as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
    except BlockingIOError:
        pass
    except (OSError, ValueError):
        return not path.is_file()
    return True
