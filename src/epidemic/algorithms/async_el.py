"""Epidemic Learning without rounds: whoever has trained sends, takes what has come, and trains on.

The order matters. Letters are half a training old on average, so a gradient step moves the network's mean by 1/(1 + s/(s+1)/2) of what
it would with rounds (0.70 at s = 7) where the trained model is sent, and by 1/((s+1)(1 - s/(s+1)/2)) (about a quarter) where the mixture is:
a comparison at the same lr is void.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from epidemic.algorithms.free import SECOND, FreeRunning, Letter, Me, Node, Row
from epidemic.errors import BadInput, require_choice, require_real
from epidemic.topology import kind_of

ORDERS = ("send-first", "mix-first")
QUEUES = ("replace", "keep")
PATIENCE = 30.0
"""Seconds that a node waits for a letter, unless it is told otherwise."""


class AsyncEL(FreeRunning, frozen=True, tag="async-el"):
    """Train, send the model to s others, average it with the newest letter of each sender, and train on.

    send-first: what is sent is the trained model. mix-first: it is the average.
    """

    aggregates = True

    order: Literal["send-first", "mix-first"] = "send-first"
    wait: bool = False
    """Whether a node that has heard nothing since its last average waits for a letter before it trains on."""
    patience: float | None = None
    """Seconds after which it waits no longer, because the letter may be lost; 30 unless given, and only where nodes wait."""
    queue: Literal["replace", "keep"] = "replace"
    """What happens to letters that have not begun to leave when newer ones are sent: on thin uplinks kept ones pile up without end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("algorithm.order", self.order, ORDERS)
        require_choice("algorithm.queue", self.queue, QUEUES)
        if self.patience is not None:
            require_real("algorithm.patience", self.patience, 1 / SECOND)
            if not self.wait:
                raise BadInput(
                    f"algorithm.patience = {self.patience:g} has no meaning where nobody waits; leave it out or use wait = true"
                )

    def check(self, topology: Any, mixing: str) -> None:
        """Nobody can wait for letters where nobody sends."""
        if self.wait and kind_of(topology) == "none":
            raise BadInput(
                'algorithm.wait = true needs somebody to hear from, but topology.kind = "none"; use wait = false'
            )

    def node(self, me: Me) -> AsyncELNode:
        """The node that `me` is."""
        return AsyncELNode(me, self)


class AsyncELNode(Node):
    """Trains all the time, or waits for its first letter where it should."""

    def __init__(self, me: Me, settings: AsyncEL) -> None:
        super().__init__(me)
        self.settings = settings
        self.inbox: dict[int, Letter] = {}  # the newest of each sender
        self.cycles = 0
        self.waiting = False  # trained, and nothing heard yet
        self.gave_up = 0

    def started(self) -> None:
        """Train the initial model."""
        self.me.train()

    def trained(self, row: Row) -> None:
        """Send, and take what has come, in the order that was asked for."""
        self.me.model = row
        if self.settings.order == "send-first":
            self._send()
        if self.settings.wait and not self.inbox:
            self.waiting = True
            patience = PATIENCE if self.settings.patience is None else self.settings.patience
            self.me.wake_at(self.me.now + round(patience * SECOND))
        else:
            self._go_on()

    def received(self, letter: Letter) -> None:
        """Keep it instead of an older one of the same sender; a node that waited goes on."""
        held = self.inbox.get(letter.sender)
        if held is not None and held.sent_at > letter.sent_at:
            self.me.dropped([letter])
            return
        if held is not None:
            self.me.dropped([held])
        self.inbox[letter.sender] = letter
        if self.waiting:
            self._go_on()

    def woken(self, tag: str) -> None:
        """Nothing came for too long."""
        if self.waiting:
            self.gave_up += 1
            self._go_on()

    def online(self) -> None:
        """What it waited for may have been lost while it was away."""
        if self.waiting:
            self._go_on()

    def letters_held(self) -> int:
        """One of each sender at most."""
        return len(self.inbox)

    def counts(self) -> dict[str, int]:
        """How often it waited in vain."""
        return {"gave_up": self.gave_up} if self.settings.wait else {}

    def state(self) -> dict[str, int]:
        """How often it has chosen whom to send to."""
        return {"cycles": self.cycles}

    def restore(self, state: Mapping[str, int]) -> None:
        """Choose on."""
        self.cycles = state["cycles"]

    def _go_on(self) -> None:
        if self.waiting:
            self.waiting = False
            self.me.cancel("")
        letters = [self.inbox[sender] for sender in sorted(self.inbox)]
        if letters:
            self.me.model = self.me.aggregate(self.me.model, letters)
            self.me.used(letters)
            self.inbox.clear()
        if self.settings.order == "mix-first":
            self._send()
        self.me.train()

    def _send(self) -> None:
        if self.settings.queue == "replace":
            self.me.withdraw()
        self.me.send(self.me.peers(self.cycles), self.me.model)
        self.cycles += 1
