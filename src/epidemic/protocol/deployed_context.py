"""The context of a deployed node's state machine: what it can know and ask for (`node.NodeContext`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from epidemic.protocol.events import Withdraw
from epidemic.protocol.node import Message, Row, Term

if TYPE_CHECKING:
    from epidemic.protocol.asynchronous import Asynchronous


class NodeChances(Protocol):
    """The random choices of a node, keyed by purpose and count."""

    static: bool

    def peers(self, count: int) -> Sequence[int]:
        """The peers that the topology offers this node for its count-th choice, in random order."""
        ...

    def chance(self, purpose: str, count: int) -> float:
        """A number in [0, 1), keyed by purpose and count."""
        ...


class ModelMaker(Protocol):
    """Makes lazy models from others."""

    def mix(self, terms: Sequence[Term]) -> Row:
        """The weighted sum of these models, added in this order."""
        ...

    def aggregate(self, own: Row, messages: Sequence[Message], weights: Sequence[float], now: int) -> Row:
        """The aggregate of a model and these messages by the experiment's [aggregation]."""
        ...

    def patch(self, base: Row, parts: Mapping[int, Sequence[Term]]) -> Row:
        """The base with some parts replaced by weighted sums."""
        ...


class DeployedContext:
    """The context of one deployed node: passes on what its state machine asks for."""

    def __init__(self, free: Asynchronous, chances: NodeChances, rows: ModelMaker, model: Row) -> None:
        self._free = free
        self._chances = chances
        self._rows = rows
        self.id, self.nodes = free.rules.node_id, free.rules.nodes
        self.static = chances.static
        self.model = model
        self.choices: dict[str, int] = {}  # choices made so far by purpose, including those before a restart
        self._skipped: dict[str, int] = {}

    def skip(self, choices: Mapping[str, int]) -> None:
        """Continue the counts of choices from before a restart, so that none is repeated."""
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
        """The peers that the topology offers for this choice, without those that are away or finished."""
        membership, now = self._free.membership, self._free.now
        there = membership.alive(now) - membership.finished
        return [node_id for node_id in self._chances.peers(self._counted("peers", count)) if node_id in there]

    def chance(self, purpose: str, count: int) -> float:
        """A number in [0, 1) that belongs to this purpose and count of this node."""
        return self._chances.chance(purpose, self._counted(purpose, count))

    def train(self, row: Row | None = None) -> None:
        """Start the local steps from this model, or from the node's own."""
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
        """Send a message to each of these peers."""
        self._free.post(tuple(to), row, tag, note, part)

    def withdraw(self) -> None:
        """Discard messages that have not begun to leave."""
        self._free.act(Withdraw())

    def wake_at(self, time: int, tag: str = "") -> None:
        """Call `woken(tag)` at this time of the run."""
        self._free.alarm(tag, time)

    def cancel(self, tag: str) -> None:
        """Cancel the wake-up with this tag."""
        self._free.alarm(tag, None)

    def mix(self, terms: Sequence[Term]) -> Row:
        """The weighted sum of these models."""
        return self._rows.mix(terms)

    def aggregate(self, own: Row, messages: Sequence[Message], weights: Sequence[float] = ()) -> Row:
        """The aggregate of a model and these messages by the experiment's [aggregation]."""
        return self._rows.aggregate(own, messages, weights, self.now)

    def patch(self, base: Row, parts: Mapping[int, Sequence[Term]]) -> Row:
        """The base with some parts replaced."""
        return self._rows.patch(base, parts)

    def used(self, messages: Iterable[Message]) -> None:
        """Count messages that went into the model."""
        self._free.tally["used"] += sum(1 for _ in messages)

    def dropped(self, messages: Iterable[Message]) -> None:
        """Count messages that were received but not used."""
        self._free.tally["wasted"] += sum(1 for _ in messages)
