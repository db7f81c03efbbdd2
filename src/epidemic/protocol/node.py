"""What a node of a method without rounds is: it goes on by itself, and only events tell it what happened.

A node of such a method is a small state machine. Events come as calls (`started`, `trained`, `received`, `woken`, `online`), and what it
wants done it says to `context`: train, send, wake me. It knows no clock, thread, socket or tensor: models are handles (`Row`), of which new
ones are made by `context.mix` and `context.patch`. Who drives it computes them when it has to: the simulated clock, which plays all nodes of an
experiment, or a deployed process, which plays its own.

Rules that both drivers keep:
  - time is whole microseconds, and never goes back;
  - a handle never changes: what is sent is what it was at that moment, however long the message takes;
  - a node trains one thing at a time; `trained` follows each `train`;
  - what is random is a function of (purpose, node, the node's own counter), never of the order of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

SECOND = 1_000_000
"""Microseconds."""

Term = tuple[float, "Row"]
"""A weight and what it weighs."""


class Row(Protocol):
    """A handle of a model, or of a part of one: what it stands for never changes, and may not be computed yet."""


@dataclass(slots=True)
class Message:
    """What one node sent to another."""

    sender: int
    row: Row | None  # a model, or one part of it; None: words only
    tag: str = ""  # what kind of message it is
    note: tuple[int, ...] = ()  # whole numbers that go with it: ages, counters
    part: int | None = None  # which part of a model it carries; None: all of it
    sent_at: int = 0  # microseconds


@dataclass(frozen=True)
class MessageKind:
    """A kind of message that a method sends. Deployed nodes refuse messages of no kind, so that a node need not look at what it is given."""

    tag: str = ""
    row: bool = True  # whether it carries a model, or a part of one
    part: bool = False  # whether that is a part
    notes: int = 0  # how many whole numbers go with it


class NodeContext(Protocol):
    """What a node knows of itself, and can have done. The driver makes one for each node."""

    id: int
    nodes: int
    now: int  # microseconds since the start of the run
    model: Row
    """The model that is evaluated; give it another handle to change it."""

    static: bool
    """Whether `peers` are always the same ones, its neighbours, in another order each time; else they are chosen anew."""

    def peers(self, count: int) -> Sequence[int]:
        """Whom this node's topology lets it choose the count-th time, in random order: s others, or its neighbours."""
        ...

    def chance(self, purpose: str, count: int) -> float:
        """A number in [0, 1) that belongs to this purpose and count of this node."""
        ...

    def train(self, row: Row | None = None) -> None:
        """Begin the local steps from this model, or its own; the result comes with `trained`."""
        ...

    def send(
        self,
        to: Iterable[int],
        row: Row | None,
        *,
        tag: str = "",
        note: tuple[int, ...] = (),
        part: int | None = None,
    ) -> None:
        """Send to each of these, in this order; with `part`, that part of the row only."""
        ...

    def withdraw(self) -> None:
        """Take back messages that have not begun to leave."""
        ...

    def wake_at(self, time: int, tag: str = "") -> None:
        """Have `woken(tag)` at this time, instead of any that was asked for with this tag before."""
        ...

    def cancel(self, tag: str) -> None:
        """Do not wake it with this tag."""
        ...

    def mix(self, terms: Sequence[Term]) -> Row:
        """The weighted sum of these models, added in this order."""
        ...

    def aggregate(self, own: Row, messages: Sequence[Message], weights: Sequence[float] = ()) -> Row:
        """What the experiment's [aggregation] makes of a model and of messages that carry whole ones, by ascending sender.

        `weights`: how much each counts in an average, the own model first; none: all alike.
        """
        ...

    def patch(self, base: Row, parts: Mapping[int, Sequence[Term]]) -> Row:
        """The base with some parts replaced by weighted sums; a term is a whole model or a message's part."""
        ...

    def used(self, messages: Iterable[Message]) -> None:
        """Count messages that went into the model."""
        ...

    def dropped(self, messages: Iterable[Message]) -> None:
        """Count messages that came and were of no use."""
        ...


class Node:
    """One node of a method without rounds. Derive from it and write what should happen; the rest does nothing."""

    def __init__(self, context: NodeContext) -> None:
        self.context = context

    def started(self) -> None:
        """The node exists and has its initial model; called once."""

    def trained(self, row: Row) -> None:
        """The local steps are done, and this came out; `context.model` is still what it was."""

    def received(self, message: Message) -> None:
        """A message came."""

    def woken(self, tag: str) -> None:
        """The time has come that was asked for."""

    def online(self) -> None:
        """The node is back after it was away; its timers and its training go on by themselves."""

    def messages_held(self) -> int:
        """How many messages came and are neither used nor dropped yet."""
        return 0

    def counts(self) -> dict[str, int]:
        """What else it counted since it started, by name."""
        return {}

    def state(self) -> dict[str, int]:
        """What a deployed node should remember over a restart, besides its model: ages, and its own counters. Empty: it starts fresh."""
        return {}

    def restore(self, state: Mapping[str, int]) -> None:
        """Take up what `state` gave before a restart; called before `started`."""
