"""What a node goes by, what it counts, and what a round has in store for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from epidemic.protocol.closing_rules import Close, CloseAdaptive
from epidemic.protocol.events import SECOND


@dataclass(frozen=True)
class NodeView:
    """A round, as one node sees it before it happens."""

    targets: tuple[int, ...]  # whom it sends to
    expected: frozenset[int] | None  # whom it hears; None: not known
    graph: bytes  # what its messages say of the graph: its digest; with a committed coin, the link that its targets follow from


Draw = Callable[[int], int]
"""A random whole number below its argument, that nobody else can know."""


@dataclass(frozen=True)
class Rules:
    """What a node goes by. Times in microseconds."""

    node_id: int
    nodes: int
    rounds: int
    close: Close = field(default_factory=CloseAdaptive)
    patience: int = 60 * SECOND
    founders: frozenset[int] = frozenset()  # who is waited for at the start, besides this node
    adopt: bool = True  # whether a node that returns takes somebody's model
    cap: int | None = None  # messages taken a round; each is offered first
    retries: int = 0
    blind: bool = False  # whether nobody knows whom to expect, because everybody draws its targets by itself
    partial: bool = False  # whether it knows a part of the others only
    witnesses: int = 0  # carriers that must be somewhere for it to be believed; 0: two, or a third of those alive
    most: int | None = None  # messages that count a round at most, where nobody can check who was drawn

    @property
    def barrier(self) -> bool:
        """Whether a round ends only when everybody was heard."""
        return self.close.waits_for_all

    @property
    def deadline(self) -> int:
        """The longest wait for messages that the closing rule allows, in microseconds."""
        return self.close.longest

    @property
    def kept(self) -> int:
        """Rounds whose messages can be sent again.

        With a barrier one that is missing ends the run, and a node to whom nobody sends for a while gets far ahead of one that waits for its message:
        with one message a round by `nodes` rounds in a quarter of all cases of 3 or 4 nodes, by 16 in fewer than one of a thousand up to 24 nodes.
        """
        return min(2 * self.nodes + 4, 16) if self.barrier else 4

    @property
    def ahead(self) -> int:
        """Rounds ahead of which messages are kept until their round opens."""
        return max(8, self.kept)

    @property
    def others(self) -> frozenset[int]:
        """All places but this node's."""
        return frozenset(range(self.nodes)) - {self.node_id}


@dataclass
class Count:
    """What a node counts besides messages."""

    lost: int = 0  # messages waited for in vain
    jumped: int = 0  # rounds left out
    taken: int = 0  # rounds taken part in
    expected: int = 0  # messages that the graphs of these rounds gave it
    heard: int = 0  # messages that counted in them
    lonely: int = 0  # of these rounds, those without any message although there should have been one
    asked: int = 0  # control messages sent
    longest_wait: int = 0  # for messages, in microseconds
    exchanges_refused: int = 0  # of views, that somebody began too often
    refused: Counter[str] = field(default_factory=Counter)  # messages that are in order and do not count, by reason


def most_private(s: int) -> int:
    """How many messages count a round where senders draw their `s` targets in private, and nobody can check that they do.

    A node is drawn by s others on average, with a standard deviation below sqrt(s): four of them above the mean are hardly ever reached.
    """
    return math.ceil(s + 4 * math.sqrt(s))


def listed(node_ids: list[int]) -> str:
    """Places, for people."""
    more = ", ..." if len(node_ids) > 12 else ""
    return ("node " if len(node_ids) == 1 else "nodes ") + ", ".join(map(str, node_ids[:12])) + more
