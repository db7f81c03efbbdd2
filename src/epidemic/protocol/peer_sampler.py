"""One deployed node's side of a peer sampling service (see `peer_sampling/`), and what one exchange may change in its view.

Partners are untrusted, so the effect of one exchange on a view is bounded: it replaces at most half of the entries, a peer offers itself no more often
than an honest one would, and the anchors stay. Anchors are peers of the node's own sample (`sample`), which no exchange sends away or replaces.
"""

from __future__ import annotations

from collections.abc import Iterable

from epidemic.protocol.rules import Draw

Entry = tuple[int, int]
"""A node id and the age of the entry in cycles."""
Entries = tuple[Entry, ...]

MOST_AGE = 2**20
"""The largest age; without it a member could make entries that others refuse."""
MOST_ANCHORS = 8
"""Most anchors of a view, or half of its entries if that is less."""


class PeerSampler:
    """One node's side of a peer sampling service. A view never contains the node itself."""

    def __init__(self, node_id: int, draw: Draw, most: int, usual: int) -> None:
        """Start with an empty view.

        Args:
            node_id: This node.
            draw: Source of secret random numbers.
            most: Most entries read from an exchange.
            usual: The usual size of a view.
        """
        self.node_id = node_id
        self.draw = draw
        self.most = most
        self.usual = usual
        self.entries: list[Entry] = []
        self.anchors: list[int] = []  # peers that exchanges leave in the view, in the order of anchoring
        self.own_refused = 0  # entries that partners offered of themselves beyond their share

    def ask(self, reachable: Iterable[int]) -> tuple[int, Entries] | None:
        """Start an exchange with one of these peers: (partner, entries to send); None: with nobody."""
        raise NotImplementedError

    def reply(self, by: int, got: Entries) -> Entries:
        """Answer an exchange: take in the entries `got`, and return those to send back."""
        raise NotImplementedError

    def take(self, partner: int, got: Entries) -> None:
        """Take in the partner's answer to the exchange that this node started."""
        raise NotImplementedError

    def drop(self, node_id: int) -> None:
        """Forget a peer that cannot be reached, perhaps the partner of the current exchange."""
        raise NotImplementedError

    def refused(self, partner: int) -> None:
        """Handle a partner that is alive but refuses the exchange."""
        raise NotImplementedError

    def meet(self, node_id: int) -> None:
        """Take a live peer into the view if there is room."""
        raise NotImplementedError

    @property
    def saved(self) -> list[Entry]:
        """The entries to keep over a restart."""
        return self.entries

    def admit(self, node_id: int) -> None:
        """Take a peer into the view, replacing the oldest entry that is no anchor if there is no room."""
        self.meet(node_id)
        if node_id not in self.node_ids and self.entries:
            among = [i for i, entry in enumerate(self.entries) if entry[0] not in self.anchors]
            oldest = max(among or range(len(self.entries)), key=lambda i: self.entries[i][1])
            self.entries[oldest] = (node_id, 0)

    # -- anchors ------------------------------------------------------------------------------------------------------

    @property
    def most_anchors(self) -> int:
        """How many entries exchanges leave alone: at most half of a view."""
        return min(MOST_ANCHORS, (self.usual + 1) // 2)

    def anchor(self, node_id: int) -> None:
        """Take a peer into the view and keep it there until enough later ones are anchored."""
        self.release(node_id)
        while len(self.anchors) >= self.most_anchors:
            del self.anchors[0]
        self.admit(node_id)
        if node_id in self.node_ids:
            self.anchors.append(node_id)

    def release(self, node_id: int) -> None:
        """Allow exchanges to replace a peer again."""
        if node_id in self.anchors:
            self.anchors.remove(node_id)

    # -- what services share ------------------------------------------------------------------------------------------

    @property
    def node_ids(self) -> set[int]:
        """The node ids of the peers in this view."""
        return {node_id for node_id, _ in self.entries}

    def age(self) -> None:
        """Make every entry one cycle older."""
        self.entries = [(node_id, min(age + 1, MOST_AGE)) for node_id, age in self.entries]

    def shuffled(self, entries: Iterable[Entry]) -> list[Entry]:
        """These entries in random order."""
        found = list(entries)
        for i in range(len(found) - 1, 0, -1):
            j = self.draw(i + 1)
            found[i], found[j] = found[j], found[i]
        return found

    def oldest(self, reachable: Iterable[int]) -> int | None:
        """The peer with the oldest entry among these, at random among equals."""
        among = set(reachable)
        there = [entry for entry in self.entries if entry[0] in among]
        most = max((age for _, age in there), default=0)
        oldest = [node_id for node_id, age in there if age == most]
        return oldest[self.draw(len(oldest))] if oldest else None

    def of_others(self, got: Entries, partner: int, share: int) -> list[Entry]:
        """The entries of an answer that may be taken in: at most `share` about the partner itself, as new ones; further ones are counted.

        Ages are limited to the oldest in the view, so a partner cannot make its entries look older and be asked first.
        """
        found: list[Entry] = []
        oldest = max((age for _, age in self.entries), default=0)
        for node_id, age in got[: self.most]:
            if node_id == partner:
                share -= 1
                if share < 0:
                    self.own_refused += 1
                    continue
            if node_id != self.node_id:
                found.append((node_id, 0 if node_id == partner else min(age, oldest)))
        return found
