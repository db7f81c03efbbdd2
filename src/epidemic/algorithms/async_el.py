"""Asynchronous Epidemic Learning: a node trains, sends, averages what has arrived, and trains on.

The order matters. Messages are half a training old on average, so a gradient step moves the network's mean by 1/(1 + s/(s+1)/2) of what it would with rounds
(0.70 at s = 7) if the trained model is sent, and by 1/((s+1)(1 - s/(s+1)/2)) (about a quarter) if the mixture is: a comparison at the same lr is
invalid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from epidemic.algorithms.asynchronous import SECOND, AsynchronousMethod, Message, Node, NodeContext, Row
from epidemic.core.errors import BadInput, require_choice, require_real
from epidemic.topology import kind_of

ORDERS = ("send-first", "mix-first")
QUEUES = ("replace", "keep")
PATIENCE = 30.0
"""Seconds that a node waits for a message, unless set otherwise."""


class AsyncEL(AsynchronousMethod, frozen=True, tag="async-el"):
    """Train, send the model to s peers, average it with the newest message of each sender, and train on.

    send-first: the trained model is sent. mix-first: the average is sent.
    """

    aggregates = True

    order: Literal["send-first", "mix-first"] = "send-first"
    wait: bool = False
    """Whether a node that has received nothing since its last average waits for a message before it trains on."""
    patience: float | None = None
    """Seconds after which it stops waiting, because the message may be lost; 30 by default, and only if nodes wait."""
    queue: Literal["replace", "keep"] = "replace"
    """What happens to unsent messages when newer ones are sent: on slow uplinks kept ones pile up without end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("algorithm.order", self.order, ORDERS)
        require_choice("algorithm.queue", self.queue, QUEUES)
        if self.patience is not None:
            require_real("algorithm.patience", self.patience, 1 / SECOND)
            if not self.wait:
                raise BadInput(
                    f"algorithm.patience = {self.patience:g} has no effect unless nodes wait; leave it out or use wait = true"
                )

    def check(self, topology: Any, mixing: str) -> None:
        """Raise BadInput if nodes wait for messages but nobody sends."""
        if self.wait and kind_of(topology) == "none":
            raise BadInput(
                'algorithm.wait = true needs a node that sends, but topology.kind = "none"; use wait = false'
            )

    def node(self, context: NodeContext) -> AsyncELNode:
        """Make the node of this context."""
        return AsyncELNode(context, self)


class AsyncELNode(Node):
    """Trains all the time, or waits for its first message where it should."""

    def __init__(self, context: NodeContext, settings: AsyncEL) -> None:
        super().__init__(context)
        self.settings = settings
        self.inbox: dict[int, Message] = {}  # the newest of each sender
        self.cycles = 0
        self.waiting = False  # trained, and nothing heard yet
        self.gave_up = 0

    def started(self) -> None:
        """Train the initial model."""
        self.context.train()

    def trained(self, row: Row) -> None:
        """Send and aggregate, in the chosen order."""
        self.context.model = row
        if self.settings.order == "send-first":
            self._send()
        if self.settings.wait and not self.inbox:
            self.waiting = True
            patience = PATIENCE if self.settings.patience is None else self.settings.patience
            self.context.wake_at(self.context.now + round(patience * SECOND))
        else:
            self._train_on()

    def received(self, message: Message) -> None:
        """Keep the message in place of an older one of its sender; a waiting node goes on."""
        held = self.inbox.get(message.sender)
        if held is not None and held.sent_at > message.sent_at:
            self.context.dropped([message])
            return
        if held is not None:
            self.context.dropped([held])
        self.inbox[message.sender] = message
        if self.waiting:
            self._train_on()

    def woken(self, tag: str) -> None:
        """Stop waiting for a message."""
        if self.waiting:
            self.gave_up += 1
            self._train_on()

    def online(self) -> None:
        """Go on if it waited: the message may have been lost while it was away."""
        if self.waiting:
            self._train_on()

    def messages_held(self) -> int:
        """Messages not yet used, at most one per sender."""
        return len(self.inbox)

    def counts(self) -> dict[str, int]:
        """How often it waited in vain."""
        return {"gave_up": self.gave_up} if self.settings.wait else {}

    def state(self) -> dict[str, int]:
        """The number of its choices of targets so far."""
        return {"cycles": self.cycles}

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue the count of choices."""
        self.cycles = state["cycles"]

    def _train_on(self) -> None:
        if self.waiting:
            self.waiting = False
            self.context.cancel("")
        messages = [self.inbox[sender] for sender in sorted(self.inbox)]
        if messages:
            self.context.model = self.context.aggregate(self.context.model, messages)
            self.context.used(messages)
            self.inbox.clear()
        if self.settings.order == "mix-first":
            self._send()
        self.context.train()

    def _send(self) -> None:
        if self.settings.queue == "replace":
            self.context.withdraw()
        self.context.send(self.context.peers(self.cycles), self.context.model)
        self.cycles += 1
