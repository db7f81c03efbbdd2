"""The settings of a deployed node, its counters, and its view of a round."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from epidemic.protocol.closing_rules import Close, CloseAdaptive
from epidemic.protocol.events import SECOND


@dataclass(frozen=True)
class NodeView:
    """A round as one node knows it in advance."""

    targets: tuple[int, ...]  # node ids that it sends to
    expected: frozenset[int] | None  # in-neighbours; None: unknown
    graph: bytes  # what its messages carry: the digest of the graph; with a committed coin, the link that gives its targets


Draw = Callable[[int], int]
"""Draws a secret random integer below its argument."""


@dataclass(frozen=True)
class Rules:
    """The settings of a deployed node. Times in microseconds."""

    node_id: int
    nodes: int
    rounds: int
    close: Close = field(default_factory=CloseAdaptive)
    patience: int = 60 * SECOND
    founders: frozenset[int] = frozenset()  # peers awaited at the start
    adopt: bool = True  # whether a returning node takes a peer's model
    cap: int | None = None  # messages accepted per round, each offered first
    retries: int = 0
    blind: bool = False  # whether in-neighbours are unknown because every node draws its own targets
    partial: bool = False  # whether it knows only some of the peers
    witnesses: int = 0  # carriers needed to confirm a round; 0: two, or a third of the live ones
    most: int | None = None  # most messages that count in a round, if nobody can check who was drawn

    @property
    def barrier(self) -> bool:
        """Whether a round ends only when every expected message has arrived."""
        return self.close.waits_for_all

    @property
    def deadline(self) -> int:
        """The longest wait for messages that the closing rule allows, in microseconds."""
        return self.close.longest

    @property
    def kept(self) -> int:
        """Rounds whose messages can be sent again.

        With a barrier one missing message ends the run, and a node that receives nothing for a while gets far ahead of a peer that waits for its message. With
        one message a round, the distance reaches `nodes` rounds in a quarter of all cases of 3 or 4 nodes, and 16 rounds in fewer than one in a thousand up to
        24 nodes.
        """
        return min(2 * self.nodes + 4, 16) if self.barrier else 4

    @property
    def ahead(self) -> int:
        """How many rounds ahead messages are kept."""
        return max(8, self.kept)

    @property
    def others(self) -> frozenset[int]:
        """The ids of all nodes but this one."""
        return frozenset(range(self.nodes)) - {self.node_id}


@dataclass
class Count:
    """The counters of a node, besides messages by outcome."""

    lost: int = 0  # messages waited for in vain
    jumped: int = 0  # rounds skipped
    taken: int = 0  # rounds completed
    expected: int = 0  # messages that the graphs of these rounds gave it
    heard: int = 0  # messages that counted in them
    lonely: int = 0  # rounds without any message although some were expected
    asked: int = 0  # control messages sent
    longest_wait: int = 0  # for messages, in microseconds
    exchanges_refused: int = 0  # exchanges of views refused because a peer started too many
    refused: Counter[str] = field(default_factory=Counter)  # valid messages that do not count, by reason


def most_private(s: int) -> int:
    """How many messages count in a round if senders draw their `s` targets in private and nobody can check them.

    A node is drawn by s peers on average, with a standard deviation below sqrt(s); four of these above the mean are hardly ever exceeded.
    """
    return math.ceil(s + 4 * math.sqrt(s))


def listed(node_ids: list[int]) -> str:
    """A list of node ids as words, such as "nodes 1, 2", cut after twelve."""
    more = ", ..." if len(node_ids) > 12 else ""
    return ("node " if len(node_ids) == 1 else "nodes ") + ", ".join(map(str, node_ids[:12])) + more
