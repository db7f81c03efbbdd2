"""How a run is, as its directory says: running, finished, stopped, failed and why."""

from __future__ import annotations

from pathlib import Path

import msgspec

from epidemic.core.errors import NOT_FINITE
from epidemic.core.files import UNREADABLE, read_bounded
from epidemic.core.locks import held

STATE = "state.json"


class RunState(msgspec.Struct, frozen=True):
    """How a run is: running, finished, stopped, failed; gone, if its process ended without a word; unknown, if nothing says."""

    state: str
    why: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing will happen any more unless somebody goes on with it."""
        return self.state not in ("running", "unknown")

    @property
    def diverged(self) -> bool:
        """Whether it has failed for good: its numbers exploded, and would again."""
        return self.state == "failed" and NOT_FINITE in self.why


def read_state(path: Path) -> RunState:
    """How the run in the directory of a seed is."""
    try:
        found = msgspec.json.decode(read_bounded(path / STATE), type=RunState)
    except UNREADABLE:
        return RunState("unknown")
    if found.state == "running" and not held(path / ".lock"):
        return RunState("gone", "its process ended without a word; going on starts from its last checkpoint")
    return found
