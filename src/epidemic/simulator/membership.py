"""Membership under the simulated clock: who is there, as the deployed protocol asks for it. It is what `protocol/membership.py` is to a deployed node.

The world knows who is there, so nobody greets anybody, and nothing is kept for each pair of nodes: a node remembers the rounds of those
that it has heard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from epidemic.protocol.membership import MOST_MISSED, MOST_TARDY, REGAINED
from epidemic.protocol.rules import Rules


class Presence:
    """Who is there, the same for all nodes."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.work: Any = None  # the clockwork, once it is there
        self.protocols: list[Any] = []
        self.finished: set[int] = set()
        self._everybody = frozenset(range(nodes))
        self._online = self._everybody
        self._known = 0  # changes of who is there that are in `online`

    @property
    def version(self) -> int:
        """How often somebody came or went."""
        return 0 if self.work is None else int(self.work.comings)

    @property
    def online(self) -> frozenset[int]:
        """The nodes that are there."""
        if self.version != self._known:
            self._known = self.version
            self._online = frozenset(one.id for one in self.work.contexts if one.on)
        return self._online


@dataclass(slots=True)
class _WatchedPeer:
    round: int = 0  # the furthest that it was seen in
    missed: int = 0  # how often it was waited for in vain since it was heard last
    tardy: int = 0  # grows whenever it is missed, shrinks whenever it is heard
    seen: int = -1  # when it last showed what round it is in
    vain: int = 0  # microseconds that it was waited for in vain since it last showed a new round ...
    vain_at: int = 0  # ... at this time


_STRANGER = _WatchedPeer()


@dataclass
class SimulatedMembership:
    """The others, as one simulated node sees them; the questions are those of `Membership`."""

    rules: Rules
    presence: Presence
    own: int
    token: str = ""
    differing: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    _peers: dict[int, _WatchedPeer] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)  # of those heard who are there, how many are in each round
    _version: int = 0  # of `presence` that is counted
    _votes: tuple[int, int, int, int] | None = (
        None  # how many are needed; the first, second and needed-th furthest round
    )

    # -- what is learnt -----------------------------------------------------------------------------------------------

    def reached(self, node_id: int, round: int) -> None:
        """A peer has come to this round."""
        peer = self._peers.get(node_id)
        if peer is None:
            peer = self._peers[node_id] = _WatchedPeer()
            self._count(node_id, 0, 1)
        if round > peer.round:
            self._count(node_id, peer.round, -1)
            self._count(node_id, round, 1)
            peer.round, peer.vain = round, 0

    def _count(self, node_id: int, round: int, more: int) -> None:
        """Count a peer in a round; after somebody came or went all are counted anew."""
        if self._version == self.presence.version and node_id in self.presence.online:
            self._counts[round] = self._counts.get(round, 0) + more
            if not self._counts[round]:
                del self._counts[round]
            self._votes = None

    def heard(self, node_id: int, round: int, now: int) -> None:
        """A message of a current round came from a peer."""
        self.reached(node_id, 0)
        peer = self._peers[node_id]
        peer.missed = peer.vain = 0
        peer.tardy = max(0, peer.tardy - 1)
        peer.seen = now

    def says(self, node_id: int, round: int, now: int) -> None:
        """A peer was asked for its round, and this is the answer."""
        self.reached(node_id, max(0, round))
        self._peers[node_id].seen = now

    def nearly(self, node_id: int) -> None:
        """A message came a little too late: its sender is waited for again."""
        if node_id in self._peers:
            self._peers[node_id].missed = 0

    def missed(self, node_ids: Iterable[int], took: int = 0, now: int = 0) -> None:
        """These were waited for in vain, for so long."""
        for node_id in node_ids:
            self.reached(node_id, 0)
            peer = self._peers[node_id]
            peer.missed += 1
            peer.tardy = min(MOST_TARDY, peer.tardy + 2)
            peer.vain, peer.vain_at = self._vain(peer, now) + took, now

    # -- what is asked ------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> set[int]:
        """Who has come to its end."""
        return self.presence.finished

    def alive(self, now: int) -> frozenset[int]:
        """Who is there; this node is among them."""
        return self.presence.online

    def away(self, node_id: int, now: int, began: int) -> int:
        """For how long somebody has not been there, in microseconds."""
        return 0 if node_id in self.presence.online else now - began

    def expected(self, node_ids: Iterable[int], round: int, now: int) -> frozenset[int]:
        """Who of these is there and was not missed too often in a row."""
        online, peers = self.presence.online, self._peers
        return frozenset(p for p in node_ids if p in online and peers.get(p, _STRANGER).missed < MOST_MISSED)

    def punctual(self, node_ids: Iterable[int]) -> bool:
        """Whether one of these is usually in time."""
        return any(not self._peers.get(node_id, _STRANGER).tardy for node_id in node_ids)

    def taking_part(self, node_ids: Iterable[int], now: int) -> frozenset[int]:
        """Who of these is there: all nodes take part from the start."""
        return self.presence.online.intersection(node_ids)

    def given_up(self, node_id: int, now: int) -> bool:
        """Whether a peer has let this node wait in vain for as long as a round may take."""
        return self._vain(self._peers.get(node_id, _STRANGER), now) >= self.rules.deadline

    @staticmethod
    def _vain(peer: _WatchedPeer, now: int) -> int:
        return max(0, peer.vain - max(0, now - peer.vain_at) // REGAINED)

    def worth_waiting_for(self, node_ids: Iterable[int], round: int, now: int) -> frozenset[int]:
        """Who of these may still send its message of this round: not ahead of it, and not given up."""
        peers = self._peers
        return frozenset(p for p in node_ids if peers.get(p, _STRANGER).round <= round and not self.given_up(p, now))

    def carriers(self, now: int) -> frozenset[int]:
        """The others who are there, each a process of its own."""
        return self.presence.online - {self.own}

    def others_here(self, token: str) -> bool:
        """Whether another process runs as this node: never."""
        return False

    def began_without_us(self, now: int) -> bool:
        """Whether the others have begun without this node: never."""
        return False

    def strangers(self) -> list[int]:
        """Who has not been introduced: nobody."""
        return []

    def answered(self, carrier: int, since: int) -> int | None:
        """The round of a peer, if it has shown it after this time."""
        peer = self._peers.get(carrier)
        return None if peer is None or peer.seen <= since else peer.round

    # -- where they are -----------------------------------------------------------------------------------------------

    def _count_votes(self) -> tuple[int, int, int, int]:
        if self._version != self.presence.version:  # somebody came or went
            self._version, self._votes = self.presence.version, None
            online, self._counts = self.presence.online, {}
            for node_id, peer in self._peers.items():
                if node_id in online:
                    self._counts[peer.round] = self._counts.get(peer.round, 0) + 1
        if self._votes is None:
            others = len(self.presence.online) - (self.own in self.presence.online)
            need = max(1, min(self.rules.witnesses or max(2, -(-others // 3)), self.presence.nodes - 1))
            ranks, seen = {1: 0, 2: 0, need: 0}, 0  # those who were never heard are in round 0
            for round in sorted(self._counts, reverse=True):
                before, seen = seen, seen + self._counts[round]
                for rank in ranks:
                    if before < rank <= seen:
                        ranks[rank] = round
                if seen >= need:
                    break
            if others < need:
                ranks[need] = -1
            self._votes = need, ranks[1] if others else -1, ranks[2] if others > 1 else ranks[1], ranks[need]
        return self._votes

    def witnesses(self, now: int) -> int:
        """How many others must say a thing for it to be believed."""
        return self._count_votes()[0]

    def front(self, now: int, ahead: int = 0) -> int:
        """The furthest round that enough others have reached; `ahead`: so many more, if two have reached those."""
        need, _, second, front = self._count_votes()
        return front if need <= 2 or front < 0 else min(second, front + ahead)

    def furthest(self, now: int) -> int:
        """The furthest round that any of the others was seen in."""
        return self._count_votes()[1]

    def far_behind(self, round: int, now: int) -> bool:
        """Whether all others but one at most are where this round is, or before."""
        return self._count_votes()[2] <= round
