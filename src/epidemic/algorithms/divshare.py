"""DivShare (Biswas et al., 2024): asynchronous EL in fragments, each of which goes to targets of its own.

A model is cut into fragments, by coordinates that are the same for all nodes. After each training all pairs of a fragment and a target are sent in
random order instead of those that have not left yet, so that a slow uplink sends a random share of the newest model and never an old one. Every
coordinate is averaged over the own value and those that came. As many bytes as asynchronous EL, and the same law of how many values a
coordinate meets; but nobody gets a whole model, and somebody slow still sends something to everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from epidemic.algorithms.async_el import ORDERS
from epidemic.algorithms.free import FreeRunning, Kind, Letter, Me, Node, Row, Term
from epidemic.errors import require_choice, require_int


class DivShare(FreeRunning, frozen=True, tag="divshare"):
    """Train, send each fragment to s others, average what has come by coordinate, and train on.

    send-first: what is sent is the trained model, as in the authors' program. mix-first: it is the average.
    """

    fragments: int = 10
    order: Literal["send-first", "mix-first"] = "send-first"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("algorithm.fragments", self.fragments, 1)
        require_choice("algorithm.order", self.order, ORDERS)

    @property
    def parts(self) -> int:
        """A letter carries one fragment."""
        return self.fragments

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Fragments, also where there is only one."""
        return (Kind(part=True),)

    def node(self, me: Me) -> DivShareNode:
        """The node that `me` is."""
        return DivShareNode(me, self)


class DivShareNode(Node):
    """Trains all the time."""

    def __init__(self, me: Me, settings: DivShare) -> None:
        super().__init__(me)
        self.settings = settings
        self.inbox: dict[tuple[int, int], Letter] = {}  # by fragment and sender: the newest
        self.cycles = 0
        self.letters = 0  # sent or taken back

    def started(self) -> None:
        """Train the initial model."""
        self.me.train()

    def trained(self, row: Row) -> None:
        """Send, and take what has come, in the order that was asked for; train on."""
        self.me.model = row
        if self.settings.order == "send-first":
            self._send()
            self._mix()
        else:
            self._mix()
            self._send()
        self.me.train()

    def received(self, letter: Letter) -> None:
        """Keep it instead of the same fragment of the same sender, if that is older."""
        place = letter.part or 0, letter.sender
        held = self.inbox.get(place)
        if held is not None and held.sent_at > letter.sent_at:
            self.me.dropped([letter])
            return
        if held is not None:
            self.me.dropped([held])
        self.inbox[place] = letter

    def letters_held(self) -> int:
        """One of each sender and fragment at most."""
        return len(self.inbox)

    def state(self) -> dict[str, int]:
        """How often it has chosen whom to send to, and in which order."""
        return {"cycles": self.cycles, "letters": self.letters}

    def restore(self, state: Mapping[str, int]) -> None:
        """Choose on."""
        self.cycles, self.letters = state["cycles"], state["letters"]

    def _mix(self) -> None:
        """Every coordinate: the average of the own value and those that came."""
        if not self.inbox:
            return
        rows: dict[int, list[Row]] = {}
        for part, sender in sorted(self.inbox):
            row = self.inbox[part, sender].row
            if row is not None:
                rows.setdefault(part, [self.me.model]).append(row)
        parts: dict[int, list[Term]] = {
            part: [(1 / len(values), row) for row in values] for part, values in rows.items()
        }
        self.me.model = self.me.patch(self.me.model, parts)
        self.me.used(self.inbox.values())
        self.inbox.clear()

    def _send(self) -> None:
        """All pairs of a fragment and one of its targets, in random order."""
        me, fragments = self.me, self.settings.fragments
        me.withdraw()
        pairs = [(part, to) for part in range(fragments) for to in me.peers(self.cycles * fragments + part)]
        places = [me.chance("order", self.letters + i) for i in range(len(pairs))]
        for _, part, to in sorted((place, *pair) for place, pair in zip(places, pairs, strict=True)):
            me.send([to], me.model, part=part)
        self.letters += len(pairs)
        self.cycles += 1
