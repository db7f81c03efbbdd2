"""Body: what the state machine of a deployed node knows of itself, and can have done. It is the `Me` of `node`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from epidemic.protocol.events import Withdraw
from epidemic.protocol.node import Message, Row, Term

if TYPE_CHECKING:
    from epidemic.protocol.asynchronous import Asynchronous


class NodeChances(Protocol):
    """What is random, by purpose and count."""

    static: bool

    def peers(self, count: int) -> Sequence[int]:
        """Whom the topology lets this node choose the count-th time, in random order."""
        ...

    def chance(self, purpose: str, count: int) -> float:
        """A number in [0, 1)."""
        ...


class ModelMaker(Protocol):
    """Makes models of others."""

    def mix(self, terms: Sequence[Term]) -> Row:
        """The weighted sum of these models, added in this order."""
        ...

    def aggregate(self, own: Row, messages: Sequence[Message], weights: Sequence[float], now: int) -> Row:
        """What the experiment's [aggregation] makes of a model and of these messages."""
        ...

    def patch(self, base: Row, parts: Mapping[int, Sequence[Term]]) -> Row:
        """The base with some parts replaced by weighted sums."""
        ...


class DeployedContext:
    """One node, to its machine."""

    def __init__(self, free: Asynchronous, chances: NodeChances, rows: ModelMaker, model: Row) -> None:
        self._free = free
        self._chances = chances
        self._rows = rows
        self.id, self.nodes = free.rules.node_id, free.rules.nodes
        self.static = chances.static
        self.model = model
        self.choices: dict[str, int] = {}  # by purpose: how many were made, those before a restart included
        self._skipped: dict[str, int] = {}

    def skip(self, choices: Mapping[str, int]) -> None:
        """So many choices were made before a restart: they are not made again."""
        self._skipped, self.choices = dict(choices), dict(choices)

    def _counted(self, purpose: str, count: int) -> int:
        count += self._skipped.get(purpose, 0)
        self.choices[purpose] = max(self.choices.get(purpose, 0), count + 1)
        return count

    @property
    def now(self) -> int:
        """Microseconds since the start of the run."""
        return self._free.elapsed

    def peers(self, count: int) -> Sequence[int]:
        """Whom the topology lets it choose, without those who are not there."""
        membership, now = self._free.membership, self._free.now
        there = membership.alive(now) - membership.finished
        return [node_id for node_id in self._chances.peers(self._counted("peers", count)) if node_id in there]

    def chance(self, purpose: str, count: int) -> float:
        """A number in [0, 1) that belongs to this purpose and count of this node."""
        return self._chances.chance(purpose, self._counted(purpose, count))

    def train(self, row: Row | None = None) -> None:
        """Begin the local steps."""
        self._free.train(self.model if row is None else row)

    def send(
        self,
        to: Iterable[int],
        row: Row | None,
        *,
        tag: str = "",
        note: tuple[int, ...] = (),
        part: int | None = None,
    ) -> None:
        """Send to each of these."""
        self._free.post(tuple(to), row, tag, note, part)

    def withdraw(self) -> None:
        """Take back messages that have not begun to leave."""
        self._free.act(Withdraw())

    def wake_at(self, time: int, tag: str = "") -> None:
        """Have `woken(tag)` at this time."""
        self._free.alarm(tag, time)

    def cancel(self, tag: str) -> None:
        """Do not wake it with this tag."""
        self._free.alarm(tag, None)

    def mix(self, terms: Sequence[Term]) -> Row:
        """The weighted sum of these models."""
        return self._rows.mix(terms)

    def aggregate(self, own: Row, messages: Sequence[Message], weights: Sequence[float] = ()) -> Row:
        """What the experiment's [aggregation] makes of a model and of these messages."""
        return self._rows.aggregate(own, messages, weights, self.now)

    def patch(self, base: Row, parts: Mapping[int, Sequence[Term]]) -> Row:
        """The base with some parts replaced."""
        return self._rows.patch(base, parts)

    def used(self, messages: Iterable[Message]) -> None:
        """Count messages that went into the model."""
        self._free.tally["used"] += sum(1 for _ in messages)

    def dropped(self, messages: Iterable[Message]) -> None:
        """Count messages that were of no use."""
        self._free.tally["wasted"] += sum(1 for _ in messages)
