"""The state of a run as its directory states it: running, finished, stopped, or failed and why."""

from __future__ import annotations

from pathlib import Path

import msgspec

from epidemic.core.errors import NOT_FINITE
from epidemic.core.files import UNREADABLE, read_bounded
from epidemic.core.locks import held

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
