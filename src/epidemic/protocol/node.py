"""The node of an asynchronous method: a small state machine that runs by itself and reacts to events.

Events come as calls (`started`, `trained`, `received`, `woken`, `online`). The node asks its `context` to train, send or wake it. It has no clock, thread,
socket or tensor. Models are lazy (`Row`); `context.mix` and `context.patch` make new ones. The driver computes them when their numbers are needed: the
simulated clock, which runs all nodes of an experiment, or a deployed process, which runs its own.

Rules that both drivers keep:
  - time is whole microseconds and never goes back;
  - a lazy model never changes: a message has the model of the moment when it was sent, however long it takes;
  - a node trains one model at a time; `trained` follows each `train`;
  - randomness is a function of (purpose, node, the node's own counter), never of the order of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

SECOND = 1_000_000
"""One second in microseconds."""

Term = tuple[float, "Row"]
"""A weight and the model that it applies to."""


class Row(Protocol):
    """A lazy model, or part of one: it never changes, and may not be computed yet."""


@dataclass(slots=True)
class Message:
    """A message that a node received."""

    sender: int
    row: Row | None  # a model or one part of it; None: no model
    tag: str = ""  # the kind of message
    note: tuple[int, ...] = ()  # integers sent along: ages, counters
    part: int | None = None  # the part of the model that it carries; None: all of it
    sent_at: int = 0  # microseconds


@dataclass(frozen=True)
class MessageKind:
    """A kind of message that a method sends. Deployed nodes refuse all other messages, so a node need not validate what it receives."""

    tag: str = ""
    row: bool = True  # whether it carries a model or a part of one
    part: bool = False  # whether it carries a part
    notes: int = 0  # how many integers it carries


class NodeContext(Protocol):
    """What a node can know and ask for. The driver makes one for each node."""

    id: int
    nodes: int
    now: int  # microseconds since the start of the run
    model: Row
    """The node's current model, which is evaluated; assign another lazy model to change it."""

    static: bool
    """Whether `peers` are always the same neighbours, in a different order each time; otherwise they are drawn anew."""

    def peers(self, count: int) -> Sequence[int]:
        """The peers that the topology offers for the count-th choice, in random order: s peers, or all neighbours."""
        ...

    def chance(self, purpose: str, count: int) -> float:
        """A number in [0, 1), keyed by this node, purpose and count."""
        ...

    def train(self, row: Row | None = None) -> None:
        """Start the local steps from this model, or from the node's own; `trained` is called with the result."""
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
        """Send a message to each of these nodes, in this order.

        Args:
            to: Node ids of the receivers.
            row: The model to send; None for a message without one.
            tag: The kind of message.
            note: Integers to send along.
            part: Send this part of the model only; None: all of it.
        """
        ...

    def withdraw(self) -> None:
        """Discard messages that have not begun to leave."""
        ...

    def wake_at(self, time: int, tag: str = "") -> None:
        """Call `woken(tag)` at this time of the run, replacing an earlier request with this tag."""
        ...

    def cancel(self, tag: str) -> None:
        """Cancel the wake-up with this tag."""
        ...

    def mix(self, terms: Sequence[Term]) -> Row:
        """The weighted sum of these models, added in this order."""
        ...

    def aggregate(self, own: Row, messages: Sequence[Message], weights: Sequence[float] = ()) -> Row:
        """The aggregate of a model and of whole models in messages, by the experiment's [aggregation].

        Args:
            own: The node's own model.
            messages: Messages in ascending order of senders.
            weights: Weights in an average, own model first; empty: all equal.
        """
        ...

    def patch(self, base: Row, parts: Mapping[int, Sequence[Term]]) -> Row:
        """The base with some parts replaced by weighted sums; each term is a whole model or a message's part."""
        ...

    def used(self, messages: Iterable[Message]) -> None:
        """Count messages that went into the model."""
        ...

    def dropped(self, messages: Iterable[Message]) -> None:
        """Count messages that were received but not used."""
        ...


class Node:
    """A node of an asynchronous method. Derive from it and override the events that matter; the others do nothing."""

    def __init__(self, context: NodeContext) -> None:
        self.context = context

    def started(self) -> None:
        """Called once, when the node has its initial model."""

    def trained(self, row: Row) -> None:
        """Called when the local steps are done, with their result; `context.model` is unchanged."""

    def received(self, message: Message) -> None:
        """Called when a message arrives."""

    def woken(self, tag: str) -> None:
        """Called at a time requested with `wake_at`."""

    def online(self) -> None:
        """Called when the node is back after an absence; its timers and its training continue by themselves."""

    def messages_held(self) -> int:
        """How many received messages are neither used nor dropped yet."""
        return 0

    def counts(self) -> dict[str, int]:
        """Further counters since the start, by name."""
        return {}

    def state(self) -> dict[str, int]:
        """State that a deployed node keeps over a restart besides its model: ages and counters. Empty: it starts afresh."""
        return {}

    def restore(self, state: Mapping[str, int]) -> None:
        """Restore what `state` returned before a restart; called before `started`."""
