"""Membership under the simulated clock: the counterpart of `protocol/membership.py`, for the deployed protocol.

The world knows which nodes are online, so there are no greetings, and nothing is stored per pair of nodes: a node remembers the rounds of those that it
has heard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from epidemic.protocol.membership import MOST_MISSED, MOST_TARDY, REGAINED
from epidemic.protocol.rules import Rules


class Presence:
    """Which nodes are online, shared by all nodes."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.work: Any = None  # the clockwork, once it exists
        self.protocols: list[Any] = []
        self.finished: set[int] = set()
        self._everybody = frozenset(range(nodes))
        self._online = self._everybody
        self._known = 0  # the version that `online` belongs to

    @property
    def version(self) -> int:
        """How often a node left or returned."""
        return 0 if self.work is None else int(self.work.comings)

    @property
    def online(self) -> frozenset[int]:
        """The nodes that are online."""
        if self.version != self._known:
            self._known = self.version
            self._online = frozenset(one.id for one in self.work.contexts if one.on)
        return self._online


@dataclass(slots=True)
class _WatchedPeer:
    round: int = 0  # the furthest that it has shown
    missed: int = 0  # waits in vain since its last message
    tardy: int = 0  # grows when it is missed, shrinks when it is heard
    seen: int = -1  # when it last showed its round
    vain: int = 0  # microseconds of waiting in vain since it last showed a new round ...
    vain_at: int = 0  # ... at this time


_STRANGER = _WatchedPeer()


@dataclass
class SimulatedMembership:
    """The peers as one simulated node sees them; has the methods of `Membership`."""

    rules: Rules
    presence: Presence
    own: int
    token: str = ""
    differing: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    _peers: dict[int, _WatchedPeer] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)  # how many online peers that were heard are in each round
    _version: int = 0  # the version of `presence` that was counted
    _votes: tuple[int, int, int, int] | None = None  # (witnesses needed, furthest, second and needed-th furthest round)

    # -- what is learnt -----------------------------------------------------------------------------------------------

    def reached(self, node_id: int, round: int) -> None:
        """Note that a peer has reached this round."""
        peer = self._peers.get(node_id)
        if peer is None:
            peer = self._peers[node_id] = _WatchedPeer()
            self._count(node_id, 0, 1)
        if round > peer.round:
            self._count(node_id, peer.round, -1)
            self._count(node_id, round, 1)
            peer.round, peer.vain = round, 0

    def _count(self, node_id: int, round: int, more: int) -> None:
        """Count a peer in a round; after a change of presence all are counted anew."""
        if self._version == self.presence.version and node_id in self.presence.online:
            self._counts[round] = self._counts.get(round, 0) + more
            if not self._counts[round]:
                del self._counts[round]
            self._votes = None

    def heard(self, node_id: int, round: int, now: int) -> None:
        """Note that a message of a current round arrived from a peer."""
        self.reached(node_id, 0)
        peer = self._peers[node_id]
        peer.missed = peer.vain = 0
        peer.tardy = max(0, peer.tardy - 1)
        peer.seen = now

    def says(self, node_id: int, round: int, now: int) -> None:
        """Note a peer's answer to the question for its round."""
        self.reached(node_id, max(0, round))
        self._peers[node_id].seen = now

    def nearly(self, node_id: int) -> None:
        """Note that a message was only a little late: its sender is expected again."""
        if node_id in self._peers:
            self._peers[node_id].missed = 0

    def missed(self, node_ids: Iterable[int], took: int = 0, now: int = 0) -> None:
        """Note that these peers were waited for in vain, for `took` microseconds."""
        for node_id in node_ids:
            self.reached(node_id, 0)
            peer = self._peers[node_id]
            peer.missed += 1
            peer.tardy = min(MOST_TARDY, peer.tardy + 2)
            peer.vain, peer.vain_at = self._vain(peer, now) + took, now

    # -- what is asked ------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> set[int]:
        """The peers that have finished."""
        return self.presence.finished

    def alive(self, now: int) -> frozenset[int]:
        """The nodes that are online, including this one."""
        return self.presence.online

    def away(self, node_id: int, now: int, began: int) -> int:
        """How long a peer has been away, in microseconds."""
        return 0 if node_id in self.presence.online else now - began

    def expected(self, node_ids: Iterable[int], round: int, now: int) -> frozenset[int]:
        """Those of these peers that are online and were not missed too often in a row."""
        online, peers = self.presence.online, self._peers
        return frozenset(p for p in node_ids if p in online and peers.get(p, _STRANGER).missed < MOST_MISSED)

    def punctual(self, node_ids: Iterable[int]) -> bool:
        """Whether at least one of these peers is usually in time."""
        return any(not self._peers.get(node_id, _STRANGER).tardy for node_id in node_ids)

    def taking_part(self, node_ids: Iterable[int], now: int) -> frozenset[int]:
        """Those of these peers that are online: all nodes take part from the start."""
        return self.presence.online.intersection(node_ids)

    def given_up(self, node_id: int, now: int) -> bool:
        """Whether a peer has cost this node as much waiting in vain as a round may take."""
        return self._vain(self._peers.get(node_id, _STRANGER), now) >= self.rules.deadline

    @staticmethod
    def _vain(peer: _WatchedPeer, now: int) -> int:
        return max(0, peer.vain - max(0, now - peer.vain_at) // REGAINED)

    def worth_waiting_for(self, node_ids: Iterable[int], round: int, now: int) -> frozenset[int]:
        """Those of these peers that may still send their message of this round: not ahead of it, and not given up."""
        peers = self._peers
        return frozenset(p for p in node_ids if peers.get(p, _STRANGER).round <= round and not self.given_up(p, now))

    def carriers(self, now: int) -> frozenset[int]:
        """The peers that are online, each a process of its own."""
        return self.presence.online - {self.own}

    def others_here(self, token: str) -> bool:
        """Whether another process runs as this node: never."""
        return False

    def began_without_us(self, now: int) -> bool:
        """Whether the peers began without this node: never."""
        return False

    def strangers(self) -> list[int]:
        """The nodes that have not introduced themselves: none."""
        return []

    def answered(self, carrier: int, since: int) -> int | None:
        """The round of a peer, if it showed it after this time; else None."""
        peer = self._peers.get(carrier)
        return None if peer is None or peer.seen <= since else peer.round

    # -- where they are -----------------------------------------------------------------------------------------------

    def _count_votes(self) -> tuple[int, int, int, int]:
        if self._version != self.presence.version:  # a node left or returned
            self._version, self._votes = self.presence.version, None
            online, self._counts = self.presence.online, {}
            for node_id, peer in self._peers.items():
                if node_id in online:
                    self._counts[peer.round] = self._counts.get(peer.round, 0) + 1
        if self._votes is None:
            others = len(self.presence.online) - (self.own in self.presence.online)
            need = max(1, min(self.rules.witnesses or max(2, -(-others // 3)), self.presence.nodes - 1))
            ranks, seen = {1: 0, 2: 0, need: 0}, 0  # peers that were never heard are in round 0
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
        """How many peers must report a thing before it is believed."""
        return self._count_votes()[0]

    def front(self, now: int, ahead: int = 0) -> int:
        """The furthest round that enough peers have reached; with `ahead`, two that are so many rounds ahead suffice."""
        need, _, second, front = self._count_votes()
        return front if need <= 2 or front < 0 else min(second, front + ahead)

    def furthest(self, now: int) -> int:
        """The furthest round that any peer has shown."""
        return self._count_votes()[1]

    def far_behind(self, round: int, now: int) -> bool:
        """Whether all peers but at most one are at this round or before it."""
        return self._count_votes()[2] <= round
