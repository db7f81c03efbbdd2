"""When a node ends a round under the clock, by kind. Names and meanings as of a deployment's `network.close`, and more of them.

`global` and `neighbours` change times only: the models are those of the round engine, bit for bit. Under the others some letters
come too late.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from epidemic.clock.draws import MOST_SECONDS
from epidemic.errors import BadInput, require_choice, require_real


class Close(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the ways in which a round ends."""


class CloseGlobal(Close, frozen=True, tag="global"):
    """When every node has trained and every letter has arrived; the next round begins for all at once."""


class CloseNeighbours(Close, frozen=True, tag="neighbours"):
    """When the node has trained and has all letters that the round's graph promises it."""


class LateLetters(Close, frozen=True, kw_only=True):
    """Base of those under which letters can be late."""

    late: Literal["drop", "carry"] = "drop"
    """What becomes of a late letter: nothing, or it counts in the next round."""
    weight: Literal["fresh", "age"] = "fresh"
    """How much a carried letter counts: as a fresh one, or 1 / (1 + its age in rounds)."""
    catch_up: bool = False
    """Whether a node that hears of a round further on than its next one goes there at once, with the model that it has."""

    def __post_init__(self) -> None:
        require_choice("clock.close.late", self.late, ["drop", "carry"])
        require_choice("clock.close.weight", self.weight, ["fresh", "age"])
        if self.weight == "age" and self.late == "drop":
            raise BadInput('clock.close.weight = "age" is about letters that are carried; use late = "carry" with it')

    def weight_at(self, age: int) -> float:
        """What a letter counts that was meant for `age` rounds ago."""
        return 1.0 / (1 + age) if self.weight == "age" else 1.0


class CloseQuorum(LateLetters, frozen=True, tag="quorum"):
    """When the node has trained and a share `q` of the expected letters has arrived, or `deadline` seconds after training."""

    q: float
    deadline: float = 0.0
    """0: none, it waits for ever."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("clock.close.q", self.q, 0, 1, above=0)
        require_real("clock.close.deadline", self.deadline, 0, MOST_SECONDS)

    def needed(self, expected: int) -> int:
        """How many of the expected letters are enough: q * expected, rounded up."""
        return math.ceil(self.q * expected - 1e-9)  # 0.28 * 25 comes out a little more than 7


class CloseDeadline(LateLetters, frozen=True, tag="deadline"):
    """When all expected letters are there, or `seconds` after the node's own training."""

    seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("clock.close.seconds", self.seconds, 0, MOST_SECONDS)


class CloseSchedule(LateLetters, frozen=True, tag="schedule"):
    """At fixed times, every `seconds`, the same for all; who has not trained by then sends nothing in that round."""

    seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("clock.close.seconds", self.seconds, 1e-6, MOST_SECONDS)


Closing = CloseGlobal | CloseNeighbours | CloseQuorum | CloseDeadline | CloseSchedule
CLOSES: dict[str, type[Close]] = {
    "global": CloseGlobal,
    "neighbours": CloseNeighbours,
    "quorum": CloseQuorum,
    "deadline": CloseDeadline,
    "schedule": CloseSchedule,
}
