"""The state of a run as its directory states it: running, finished, stopped, or failed and why."""

from __future__ import annotations

from pathlib import Path

import msgspec

from epidemic.core.errors import NOT_FINITE
from epidemic.core.files import UNREADABLE, open_regular, read_bounded

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

STATE = "state.json"


class RunState(msgspec.Struct, frozen=True):
    """The state of a run: running, finished, stopped or failed; gone if its process ended without notice; unknown if nothing is written."""

    state: str
    why: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen unless somebody resumes it."""
        return self.state not in ("running", "unknown")

    @property
    def diverged(self) -> bool:
        """Whether it failed because its numbers diverged, which would happen again."""
        return self.state == "failed" and NOT_FINITE in self.why


def read_state(path: Path) -> RunState:
    """The state of the run in a seed's directory."""
    try:
        found = msgspec.json.decode(read_bounded(path / STATE), type=RunState)
    except UNREADABLE:
        return RunState("unknown")
    if found.state == "running" and not held(path / ".lock"):
        return RunState("gone", "its process ended without notice; resuming starts from its last checkpoint")
    return found


def held(lock: Path) -> bool:
    """Whether a process holds the lock of a directory; assumed if it cannot be determined."""
    try:
        with open_regular(lock) as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
    except BlockingIOError:
        pass
    except (OSError, ValueError):
        return not lock.is_file()
    return True
