"""DivShare (Biswas et al., 2024): asynchronous EL in fragments, each of which has its own targets.

A model is cut into fragments, by coordinates that are the same for all nodes. After each training all pairs of a fragment and a target are sent in random
order, replacing those not sent yet, so a slow uplink sends a random share of the newest model and never an old one. Every coordinate is averaged over the
own value and those received. It sends as many bytes as asynchronous EL, and each coordinate receives as many values; but no node gets a whole model, and
a slow node still sends something to all its targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from epidemic.algorithms.async_el import ORDERS
from epidemic.algorithms.asynchronous import AsynchronousMethod, Message, MessageKind, Node, NodeContext, Row, Term
from epidemic.core.errors import require_choice, require_int


class DivShare(AsynchronousMethod, frozen=True, tag="divshare"):
    """Train, send each fragment to s peers, average what has arrived by coordinate, and train on.

    send-first: the trained model is sent, as in the authors' program. mix-first: the average is sent.
    """

    fragments: int = 10
    order: Literal["send-first", "mix-first"] = "send-first"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("algorithm.fragments", self.fragments, 1)
        require_choice("algorithm.order", self.order, ORDERS)

    @property
    def parts(self) -> int:
        """The number of fragments; a message carries one."""
        return self.fragments

    @property
    def kinds(self) -> tuple[MessageKind, ...]:
        """Fragments, also where there is only one."""
        return (MessageKind(part=True),)

    def node(self, context: NodeContext) -> DivShareNode:
        """Make the node of this context."""
        return DivShareNode(context, self)


class DivShareNode(Node):
    """A node that trains all the time, and never waits."""

    def __init__(self, context: NodeContext, settings: DivShare) -> None:
        super().__init__(context)
        self.settings = settings
        self.inbox: dict[tuple[int, int], Message] = {}  # by fragment and sender: the newest
        self.cycles = 0
        self.messages = 0  # sent or taken back

    def started(self) -> None:
        """Train the initial model."""
        self.context.train()

    def trained(self, row: Row) -> None:
        """Send and average, in the chosen order; train on."""
        self.context.model = row
        if self.settings.order == "send-first":
            self._send()
            self._mix()
        else:
            self._mix()
            self._send()
        self.context.train()

    def received(self, message: Message) -> None:
        """Keep it instead of the same fragment of the same sender, if that is older."""
        node_id = message.part or 0, message.sender
        held = self.inbox.get(node_id)
        if held is not None and held.sent_at > message.sent_at:
            self.context.dropped([message])
            return
        if held is not None:
            self.context.dropped([held])
        self.inbox[node_id] = message

    def messages_held(self) -> int:
        """One of each sender and fragment at most."""
        return len(self.inbox)

    def state(self) -> dict[str, int]:
        """The numbers of its choices of targets and of orders so far."""
        return {"cycles": self.cycles, "messages": self.messages}

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue the counts of choices."""
        self.cycles, self.messages = state["cycles"], state["messages"]

    def _mix(self) -> None:
        """Average every coordinate over the own value and those received."""
        if not self.inbox:
            return
        rows: dict[int, list[Row]] = {}
        for part, sender in sorted(self.inbox):
            row = self.inbox[part, sender].row
            if row is not None:
                rows.setdefault(part, [self.context.model]).append(row)
        parts: dict[int, list[Term]] = {
            part: [(1 / len(values), row) for row in values] for part, values in rows.items()
        }
        self.context.model = self.context.patch(self.context.model, parts)
        self.context.used(self.inbox.values())
        self.inbox.clear()

    def _send(self) -> None:
        """All pairs of a fragment and one of its targets, in random order."""
        context, fragments = self.context, self.settings.fragments
        context.withdraw()
        pairs = [(part, to) for part in range(fragments) for to in context.peers(self.cycles * fragments + part)]
        node_ids = [context.chance("order", self.messages + i) for i in range(len(pairs))]
        for _, part, to in sorted((node_id, *pair) for node_id, pair in zip(node_ids, pairs, strict=True)):
            context.send([to], context.model, part=part)
        self.messages += len(pairs)
        self.cycles += 1
