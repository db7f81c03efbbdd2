"""When a round closes: one small value for each rule, with the same meaning in `[clock]` and in `[network]`.

  barrier    all expected messages have arrived
  global     as barrier, and the next round opens for all nodes at the same moment (simulation only)
  quorum     a share `q` of the expected messages has arrived
  deadline   all expected messages have arrived, or `seconds` have passed since the node's own training
  adaptive   as deadline, with a time limit that follows how long rounds take, at most `deadline`
  schedule   at fixed times, every `seconds` (simulation only)

A driver calls `left` to learn how much longer a node waits. A message is expected from each in-neighbour of the round's graph that may still send;
peers that are away are not expected.

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
"""A time that is never reached, in microseconds."""
MOST_SECONDS = 1e8
"""The longest time in settings: about three years."""
WITHOUT_LIMIT = 30.0
"""Seconds used as the longest wait where a rule has none: at the end of a run and for silent peers."""


class Close(Settings, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the rules that close a round."""

    waits_for_all: ClassVar[bool] = False
    """Whether the rule waits for every expected message, however long it takes."""
    deployed: ClassVar[str] = ""
    """Why deployed nodes cannot use the rule, and what to use instead; empty if they can."""

    @property
    def kind(self) -> str:
        """The name of the rule in experiment files."""
        return str(self.__struct_config__.tag)

    @property
    def carries(self) -> bool:
        """Whether messages of closed rounds count in the next one."""
        return False

    def weight_at(self, age: int) -> float:
        """The weight in an average of a message that was sent for a round `age` rounds ago; a fresh one has weight 1."""
        return 1.0

    def enough(self, heard: int, expected: int) -> bool:
        """Whether `heard` of `expected` messages close the round although others may still come."""
        return False

    def limit(self, usual: int) -> int:
        """The longest wait after a node's own training, in microseconds; `usual` is the time that rounds usually take."""
        return NEVER

    @property
    def longest(self) -> int:
        """The longest wait that the settings allow, in microseconds; 30 s for rules without a limit."""
        limit = self.limit(NEVER)
        return round(WITHOUT_LIMIT * 1e6) if limit >= NEVER else limit

    def left(self, *, heard: int, expected: int, missing: bool, waited: int, usual: int) -> int:
        """How much longer to wait for messages, in microseconds; zero or less closes the round.

        Args:
            heard: Messages of this round that have arrived.
            expected: Messages that the round's graph gives this node.
            missing: Whether any of them may still arrive.
            waited: Microseconds since the node finished its training.
            usual: Microseconds that rounds usually take.
        """
        if not missing or self.enough(heard, expected):
            return 0
        limit = self.limit(usual)
        return NEVER if limit >= NEVER else limit - waited


class CloseBarrier(Close, frozen=True, tag="barrier"):
    """The node has trained and has received all messages of the round's graph."""

    waits_for_all: ClassVar[bool] = True


class CloseGlobal(Close, frozen=True, tag="global"):
    """All nodes have trained and all messages have arrived; the next round opens for all nodes at once."""

    waits_for_all: ClassVar[bool] = True
    deployed: ClassVar[str] = 'needs a view of all nodes; deployed nodes use "barrier", which gives the same models'


class LateMessages(Close, frozen=True, kw_only=True):
    """Base of the rules under which messages can be late."""

    late: Literal["drop", "carry"] = "drop"
    """What happens to a late message: it is dropped, or counted in the next round."""
    weight: Literal["fresh", "age"] = "fresh"
    """The weight of a carried message: that of a fresh one, or 1 / (1 + its age in rounds)."""
    catch_up: bool = False
    """Whether a simulated node that hears of a round beyond its next one skips there at once with its current model. Deployed nodes skip rounds by
    another rule: when enough peers are ahead.
    """

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
        """The weight in an average of a message that was sent for a round `age` rounds ago."""
        return 1.0 / (1 + age) if self.weight == "age" else 1.0


class CloseQuorum(LateMessages, frozen=True, tag="quorum"):
    """The node has trained and a share `q` of the expected messages has arrived, or `deadline` seconds have passed since then."""

    q: float
    deadline: float = 0.0
    """The longest wait in seconds; 0 for no limit. Deployed nodes need one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("close.q", self.q, 0, 1, above=0)
        require_real("close.deadline", self.deadline, 0, MOST_SECONDS)

    def needed(self, expected: int) -> int:
        """How many of the expected messages are enough: q * expected, rounded up."""
        return math.ceil(self.q * expected - 1e-9)  # for example, 0.28 * 25 gives slightly more than 7

    def enough(self, heard: int, expected: int) -> bool:
        """Whether `heard` of the `expected` messages reach the quorum."""
        return heard >= self.needed(expected)

    def limit(self, usual: int) -> int:
        """The longest wait after a node's own training, in microseconds."""
        return round(self.deadline * 1e6) if self.deadline else NEVER


class CloseDeadline(LateMessages, frozen=True, tag="deadline"):
    """All expected messages have arrived, or `seconds` have passed since the node's own training."""

    seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("close.seconds", self.seconds, 0, MOST_SECONDS)

    def limit(self, usual: int) -> int:
        """The longest wait after a node's own training, in microseconds."""
        return max(1, round(self.seconds * 1e6))


class CloseAdaptive(LateMessages, frozen=True, tag="adaptive"):
    """All expected messages have arrived, or an adaptive time limit has passed: it follows medians of recent rounds, at most `deadline` seconds."""

    deadline: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("close.deadline", self.deadline, 0, MOST_SECONDS, above=0)

    def limit(self, usual: int) -> int:
        """The longest wait after a node's own training, in microseconds."""
        return min(usual, int(self.deadline * 1e6))


class CloseSchedule(LateMessages, frozen=True, tag="schedule"):
    """At fixed times, every `seconds`, the same for all nodes; a node that still trains then sends nothing in that round."""

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
"""Old values of network.close, with the new spelling of each."""


def close_from(table: object, where: str, default: str) -> Any:
    """Read the closing rule of a table.

    Args:
        table: Its settings; `kind` may be left out.
        where: Its dotted path in the file, for messages.
        default: The kind if the table has none.

    Returns:
        The rule as a frozen value.
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
    """Refuse an old spelling of a closing rule, naming the new one."""
    if isinstance(close, str):
        now = RENAMED.get(close, '{kind = "adaptive"}')
        raise BadInput(f"{where} = {close!r} must be a table with a kind; use {where} = {now}")
    if isinstance(close, Mapping) and close.get("kind") == "neighbours":
        raise BadInput(f'{where}.kind = "neighbours" is called "barrier"; use {where} = {{kind = "barrier"}}')
