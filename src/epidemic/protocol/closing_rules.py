"""When a round closes: one small value for each rule, the same under `[clock]` and in `[network]`, and what it decides.

  barrier    every expected message was heard
  global     the same, and the next round opens for all nodes at the same moment (simulations only)
  quorum     a share `q` of the expected messages was heard
  deadline   every expected message was heard, or `seconds` have passed since the node's own training
  adaptive   the same, with a time that follows what rounds take and is never more than `deadline`
  schedule   at fixed times, every `seconds` (simulations only)

Whoever drives rounds asks `left`: how much longer a node waits. Expected is whoever sends to the node in the round's graph and may still
be heard: of peers that are away nothing is expected.

To add a rule: a class with its settings, `enough` and `limit`, listed in CLOSES.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from epidemic.core.config import build_kind
from epidemic.core.errors import BadInput, require_choice, require_real
from epidemic.core.settings import Settings

NEVER = 2**62
"""A time that does not come, in microseconds."""
MOST_SECONDS = 1e8
"""The longest time in settings: about three years."""
WITHOUT_LIMIT = 30.0
"""Seconds that stand for the longest wait where a rule has none: for the end of a run, and for peers that are silent."""


class Close(Settings, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the rules by which a node closes a round."""

    waits_for_all: ClassVar[bool] = False
    """Whether every message of the round is waited for, however long it takes."""
    deployed: ClassVar[str] = ""
    """Why deployed nodes cannot do it, and what to use instead; empty: they can."""

    @property
    def kind(self) -> str:
        """The name of the rule."""
        return str(self.__struct_config__.tag)

    @property
    def carries(self) -> bool:
        """Whether messages of closed rounds count in the next one."""
        return False

    def weight_at(self, age: int) -> float:
        """How much a message counts that was meant for a round `age` rounds ago; a fresh one counts 1."""
        return 1.0

    def enough(self, heard: int, expected: int) -> bool:
        """Whether so many of the expected messages close the round although others may still come."""
        return False

    def limit(self, usual: int) -> int:
        """The longest wait after a node's own training, in microseconds, where the usual one is `usual`."""
        return NEVER

    @property
    def longest(self) -> int:
        """The longest wait in microseconds that the settings allow; 30 s where they have no limit."""
        limit = self.limit(NEVER)
        return round(WITHOUT_LIMIT * 1e6) if limit >= NEVER else limit

    def left(self, *, heard: int, expected: int, missing: bool, waited: int, usual: int) -> int:
        """How much longer to wait for messages, in microseconds; zero or less: the round is over.

        Args:
            heard: How many messages of this round are here.
            expected: How many the round's graph promises.
            missing: Whether any of them may still come.
            waited: Microseconds since the node had trained.
            usual: Microseconds that rounds usually take to be heard.
        """
        if not missing or self.enough(heard, expected):
            return 0
        limit = self.limit(usual)
        return NEVER if limit >= NEVER else limit - waited


class CloseBarrier(Close, frozen=True, tag="barrier"):
    """When the node has trained and has all messages that the round's graph promises it."""

    waits_for_all: ClassVar[bool] = True


class CloseGlobal(Close, frozen=True, tag="global"):
    """When every node has trained and every message has arrived; the next round begins for all at once."""

    waits_for_all: ClassVar[bool] = True
    deployed: ClassVar[str] = (
        'needs somebody who sees when all nodes are done; deployed nodes use "barrier", which gives the same models'
    )


class LateMessages(Close, frozen=True, kw_only=True):
    """Base of those under which messages can be late."""

    late: Literal["drop", "carry"] = "drop"
    """What becomes of a late message: nothing, or it counts in the next round."""
    weight: Literal["fresh", "age"] = "fresh"
    """How much a carried message counts: as a fresh one, or 1 / (1 + its age in rounds)."""
    catch_up: bool = False
    """Whether a simulated node that hears of a round further on than its next one goes there at once, with the model that it has. Deployed
    nodes leave rounds out by a rule of their own: when enough others are ahead."""

    def __post_init__(self) -> None:
        require_choice("close.late", self.late, ["drop", "carry"])
        require_choice("close.weight", self.weight, ["fresh", "age"])
        if self.weight == "age" and self.late == "drop":
            raise BadInput('close.weight = "age" is about messages that are carried; use late = "carry" with it')

    @property
    def carries(self) -> bool:
        """Whether messages of closed rounds count in the next one."""
        return self.late == "carry"

    def weight_at(self, age: int) -> float:
        """How much a message counts that was meant for a round `age` rounds ago."""
        return 1.0 / (1 + age) if self.weight == "age" else 1.0


class CloseQuorum(LateMessages, frozen=True, tag="quorum"):
    """When the node has trained and a share `q` of the expected messages has arrived, or `deadline` seconds after training."""

    q: float
    deadline: float = 0.0
    """0: none, it waits for ever; deployed nodes need one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("close.q", self.q, 0, 1, above=0)
        require_real("close.deadline", self.deadline, 0, MOST_SECONDS)

    def needed(self, expected: int) -> int:
        """How many of the expected messages are enough: q * expected, rounded up."""
        return math.ceil(self.q * expected - 1e-9)  # 0.28 * 25 comes out a little more than 7

    def enough(self, heard: int, expected: int) -> bool:
        """Whether so many of the expected messages close the round."""
        return heard >= self.needed(expected)

    def limit(self, usual: int) -> int:
        """The longest wait after a node's own training, in microseconds."""
        return round(self.deadline * 1e6) if self.deadline else NEVER


class CloseDeadline(LateMessages, frozen=True, tag="deadline"):
    """When all expected messages are there, or `seconds` after the node's own training."""

    seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("close.seconds", self.seconds, 0, MOST_SECONDS)

    def limit(self, usual: int) -> int:
        """The longest wait after a node's own training, in microseconds."""
        return max(1, round(self.seconds * 1e6))


class CloseAdaptive(LateMessages, frozen=True, tag="adaptive"):
    """When all expected messages are there, or after a time that adapts to what rounds take, by medians: at most `deadline` seconds."""

    deadline: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("close.deadline", self.deadline, 0, MOST_SECONDS, above=0)

    def limit(self, usual: int) -> int:
        """The longest wait after a node's own training, in microseconds."""
        return min(usual, int(self.deadline * 1e6))


class CloseSchedule(LateMessages, frozen=True, tag="schedule"):
    """At fixed times, every `seconds`, the same for all; who has not trained by then sends nothing in that round."""

    seconds: float
    deployed: ClassVar[str] = (
        'needs one clock that all nodes read; deployed nodes use "deadline", with seconds counted from their own training'
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("close.seconds", self.seconds, 1e-6, MOST_SECONDS)

    @property
    def period(self) -> int:
        """Microseconds from one closing to the next."""
        return round(self.seconds * 1e6)


Closing = CloseBarrier | CloseGlobal | CloseQuorum | CloseDeadline | CloseAdaptive | CloseSchedule
CLOSES: dict[str, type[Close]] = {
    "barrier": CloseBarrier,
    "global": CloseGlobal,
    "quorum": CloseQuorum,
    "deadline": CloseDeadline,
    "adaptive": CloseAdaptive,
    "schedule": CloseSchedule,
}
RENAMED = {
    "deadline": '{kind = "adaptive", deadline = 30.0}',
    "quorum": '{kind = "quorum", q = 0.75, deadline = 30.0}',
    "barrier": '{kind = "barrier"}',
}
"""What network.close was once, and what it is now."""


def close_from(table: object, where: str, default: str) -> Any:
    """The closing rule that a table describes.

    Args:
        table: Its settings; without a kind it is of kind `default`.
        where: Its dotted place in the file, for messages.
        default: The kind that is meant where none is said.
    """
    check_spelling(table, where)
    if isinstance(table, Mapping):
        table = {"kind": default, **table}
    try:
        return build_kind(table, CLOSES, where)
    except BadInput as problem:
        text = str(problem)
        raise BadInput(where + text.removeprefix("close") if text.startswith("close.") else text) from None


def check_spelling(close: object, where: str) -> None:
    """Refuse what a closing rule was called once, with what it is called now."""
    if isinstance(close, str):
        now = RENAMED.get(close, '{kind = "adaptive"}')
        raise BadInput(f"{where} = {close!r} must be a table with a kind; use {where} = {now}")
    if isinstance(close, Mapping) and close.get("kind") == "neighbours":
        raise BadInput(f'{where}.kind = "neighbours" is called "barrier"; use {where} = {{kind = "barrier"}}')
