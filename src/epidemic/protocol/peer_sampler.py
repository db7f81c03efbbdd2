"""Side: what one deployed node does in a peer sampling service (see `sampling`), and what one exchange may change in its view. Pure.

A partner is untrusted, so a view is bounded in what a single exchange can do to it: at most half of its entries are replaced, a peer offers itself no more often than
an honest one does, and the anchors stay. Anchors are entries of the node's own sample (`sample`), which no exchange sends away or replaces.
"""

from __future__ import annotations

from collections.abc import Iterable

from epidemic.protocol.rules import Draw

Entry = tuple[int, int]
"""A place, and for how many cycles nothing was heard of it."""
Entries = tuple[Entry, ...]

MOST_AGE = 2**20
"""Nobody is older; a member could otherwise make entries that others refuse to take on."""
MOST_ANCHORS = 8
"""Anchors of a view; half of its entries where that is less."""


class PeerSampler:
    """One node's side of a peer sampling service. Entries come and go as the service says; nobody has an entry of itself."""

    def __init__(self, node_id: int, draw: Draw, most: int, usual: int) -> None:
        """`most`: how many entries an exchange may bring; further ones are not looked at. `usual`: how many a view has as a rule."""
        self.node_id = node_id
        self.draw = draw
        self.most = most
        self.usual = usual
        self.entries: list[Entry] = []
        self.anchors: list[int] = []  # peers that exchanges leave in the view, the last one anchored last
        self.own_refused = 0  # entries of partners themselves, beyond what honest ones offer

    def ask(self, reachable: Iterable[int]) -> tuple[int, Entries] | None:
        """Begin an exchange: with whom, of these, and what it is sent; None: with nobody."""
        raise NotImplementedError

    def reply(self, by: int, got: Entries) -> Entries:
        """Somebody begins an exchange: take what it sends, and say what it gets."""
        raise NotImplementedError

    def take(self, partner: int, got: Entries) -> None:
        """The partner of the exchange that was begun answers."""
        raise NotImplementedError

    def drop(self, node_id: int) -> None:
        """Somebody cannot be reached, perhaps the partner of the exchange that was begun."""
        raise NotImplementedError

    def refused(self, partner: int) -> None:
        """The partner of the exchange that was begun is there and wants none now."""
        raise NotImplementedError

    def meet(self, node_id: int) -> None:
        """Somebody is there whom this node may know, as when it first came, if there is room."""
        raise NotImplementedError

    @property
    def saved(self) -> list[Entry]:
        """What is kept over a restart."""
        return self.entries

    def admit(self, node_id: int) -> None:
        """Know somebody, instead of the oldest one that is no anchor if there is no room."""
        self.meet(node_id)
        if node_id not in self.node_ids and self.entries:
            among = [i for i, entry in enumerate(self.entries) if entry[0] not in self.anchors]
            oldest = max(among or range(len(self.entries)), key=lambda i: self.entries[i][1])
            self.entries[oldest] = (node_id, 0)

    # -- anchors ------------------------------------------------------------------------------------------------------

    @property
    def most_anchors(self) -> int:
        """Return how many entries exchanges leave alone: half of a view."""
        return min(MOST_ANCHORS, (self.usual + 1) // 2)

    def anchor(self, node_id: int) -> None:
        """Know a peer, and keep it in the view until enough later ones are anchored."""
        self.release(node_id)
        while len(self.anchors) >= self.most_anchors:
            del self.anchors[0]
        self.admit(node_id)
        if node_id in self.node_ids:
            self.anchors.append(node_id)

    def release(self, node_id: int) -> None:
        """Let exchanges replace a peer again."""
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
        """Return these entries in random order."""
        found = list(entries)
        for i in range(len(found) - 1, 0, -1):
            j = self.draw(i + 1)
            found[i], found[j] = found[j], found[i]
        return found

    def oldest(self, reachable: Iterable[int]) -> int | None:
        """The place of the oldest entry of these, at random among equals."""
        among = set(reachable)
        there = [entry for entry in self.entries if entry[0] in among]
        most = max((age for _, age in there), default=0)
        oldest = [node_id for node_id, age in there if age == most]
        return oldest[self.draw(len(oldest))] if oldest else None

    def of_others(self, got: Entries, partner: int, share: int) -> list[Entry]:
        """Return what may be taken of what came; of the partner itself at most `share` entries, and as new ones. Further ones are counted.

        Nothing that comes is older than the view is already: who makes its entries seem old is not asked before the others.
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
