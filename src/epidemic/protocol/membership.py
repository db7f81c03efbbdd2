"""Membership: the peers, the rounds that they are in, and whose messages are expected.

A peer is alive while the network shows the token of its handshake, or while its messages of current rounds keep coming. A node becomes known only by its
own handshake: a node that claims to be carried by another cannot hide that one.

Messages are expected from live peers that take part in the round and knew of this node before it (a peer that had already begun when they met may have
sent its messages for that round and the next before). A peer that was waited for in vain three times in a row is not expected until it is heard again.

A node that would otherwise be alone waits longer for a live peer that is not ahead, until that peer has cost one deadline since it last showed a new
round. This allowance recovers slowly, so a peer that stays silent costs at most a tenth of the time.

No single peer is believed: the front is a round that enough witnesses have reached. A witness is a carrier, a process with its own connection; nodes of
one process are one witness, those of this node's own process are none. Two witnesses are needed, or a third of the live carriers if that is more, or the
number in the settings; never more than there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from epidemic.protocol.events import SECOND, Introduced

MOST_MISSED = 3
"""Waits in vain in a row after which a peer is no longer expected until it is heard."""
MOST_TARDY = 8
"""Messages in a row after which a peer that was often missed counts as punctual again."""
MOST_TOKENS = 16
"""Most tokens that one node may show at once; a member that shows more harms only itself."""
ON_THE_WAY = SECOND
"""Time after a peer disappeared in which its messages may still arrive."""
STILL_HEARD = 5 * SECOND
"""Time after its last message for which a sender counts as alive although the network does not show it."""
REGAINED = 10
"""Seconds after which one second of waiting in vain is forgiven."""


@dataclass(slots=True)
class _Peer:
    carrier: int
    token: str
    round: int  # the furthest that it has shown
    since: int | None  # the first round in which its messages can be expected; None: unknown
    begun: bool  # whether it had begun at its handshake
    missed: int = 0  # waits in vain since its last message
    tardy: int = 0  # grows when it is missed, shrinks when it is heard; 0 for a peer in step
    heard: int | None = None  # when its last message of a current round arrived
    gone: int | None = None  # since when the network does not show it
    shown: bool = False  # whether the network has ever shown its token at its carrier
    ended: bool = False  # whether it has reported a failure
    seen: int = 0  # when it last showed its round
    vain: int = 0  # microseconds of waiting in vain since it last showed a new round ...
    vain_at: int = 0  # ... at this time


class Membership:
    """The peers of one node, as it sees them."""

    def __init__(
        self, node_id: int, nodes: int, rounds: int, *, token: str = "", deadline: int = 30 * SECOND, witnesses: int = 0
    ) -> None:
        """Start without peers.

        Args:
            node_id: This node.
            nodes: Number of nodes in all.
            rounds: Number of rounds in all.
            token: This node's own token, which other nodes of its process share.
            deadline: The longest wait in a round, in microseconds.
            witnesses: How many witnesses are needed; 0: see the module.
        """
        self._node_id = node_id
        self.token = token
        self._deadline = deadline
        self._wanted = witnesses
        self._nodes = nodes
        self._rounds = rounds
        self._tokens: dict[int, set[str]] = {}  # by carrier
        self._peers: dict[int, _Peer] = {}
        self._foreign: dict[int, str] = {}  # tokens of peers that run another experiment
        self._void: frozenset[int] = frozenset()
        self.differing: dict[int, tuple[str, ...]] = {}  # the settings in which those peers differ
        self.finished: set[int] = set()
        self._strangers: set[int] = set()
        self._alive: frozenset[int] | None = None  # cached until something changes ...
        self._alive_until = 0  # ... or this time
        self._votes: list[int] | None = None  # cached: rounds of live carriers, the furthest first
        self._need = 1  # cached: witnesses needed

    # -- what is learnt -----------------------------------------------------------------------------------------------

    def shown(self, node_id: int, token: str, there: bool, now: int) -> None:
        """Note that the network shows, or no longer shows, a token."""
        if not 0 <= node_id < self._nodes:
            return
        tokens = self._tokens.setdefault(node_id, set())
        if not there:
            tokens.discard(token)
        elif len(tokens) < MOST_TOKENS:
            tokens.add(token)
        for peer in self._peers.values():
            if peer.carrier == node_id:
                self._note_gone(peer, now)
        self._note_strange(node_id)

    def withdrawn(self, token: str, now: int) -> None:
        """Note that a token of this node's own process is no longer shown."""
        for node_id in [node_id for node_id, tokens in self._tokens.items() if token in tokens]:
            self.shown(node_id, token, False, now)

    def _note_gone(self, peer: _Peer, now: int) -> None:
        shown = peer.token in self._tokens.get(peer.carrier, ())
        peer.shown |= shown
        here = shown and not peer.ended
        if here != (peer.gone is None):
            peer.gone = None if here else now
            self._alive = None

    def _note_strange(self, node_id: int) -> None:
        peer, foreign = self._peers.get(node_id), self._foreign.get(node_id)
        known = {foreign} if peer is None else {peer.token, foreign}
        strange = node_id != self._node_id and not self._tokens.get(node_id, set()) <= known
        (self._strangers.add if strange else self._strangers.discard)(node_id)

    def introduced(self, handshake: Introduced, here: int, now: int) -> bool:
        """Take in a handshake while this node is in round `here`; False if it is not believed."""
        node_id = handshake.node_id
        if not 0 <= node_id < self._nodes or node_id == self._node_id or not 0 <= handshake.carrier < self._nodes:
            return False
        if not (-1 <= handshake.round <= self._rounds and 0 <= handshake.start <= self._rounds):
            return False
        before = self._peers.get(node_id)
        same = before is not None and before.token == handshake.token
        shown = handshake.token in self._tokens.get(handshake.carrier, ())
        present = before is not None and before.gone is None
        if not same and not shown and (present or handshake.differs):
            return False  # a replay of an old handshake
        if handshake.differs:
            self.differing[node_id], self._foreign[node_id] = handshake.differs, handshake.token
            if self._peers.pop(node_id, None) is not None:
                self._alive = None
        else:
            self.differing.pop(node_id, None)
            self._foreign.pop(node_id, None)
            self._remember(handshake, shown, here, now)
        self._note_strange(node_id)
        return True

    def _remember(self, handshake: Introduced, shown: bool, here: int, now: int) -> None:
        """Record what a peer's handshake says."""
        node_id = handshake.node_id
        peer = self._peers.get(node_id)
        if peer is None or peer.token != handshake.token:
            missed = 0 if peer is None else peer.missed  # a restart does not reset this
            peer = self._peers[node_id] = _met(handshake, here, missed)
            self._alive = None
            if shown and not handshake.finished:
                self.finished.discard(node_id)
        else:
            peer.since = max(peer.since or 0, handshake.start)
            self.reached(node_id, handshake.round)
        peer.seen = now
        if handshake.finished:
            self.finished.add(node_id)
        peer.ended |= handshake.gone
        self._note_gone(peer, now)

    def void(self, node_ids: Iterable[int]) -> None:
        """Forget these peers: their certificates are revoked."""
        self._void = frozenset(node_ids)
        self._alive = None

    def reached(self, node_id: int, round: int) -> None:
        """Note that a peer has reached this round, by its own report or by a message, useful or not."""
        peer = self._peers.get(node_id)
        if peer is not None and round > peer.round:
            peer.round = round
            peer.vain = 0
            self._votes = None

    def heard(self, node_id: int, round: int, now: int) -> None:
        """Note that a message of a current round arrived from a peer."""
        peer = self._peers.get(node_id)
        if peer is not None:
            peer.missed = peer.vain = 0
            peer.tardy = max(0, peer.tardy - 1)
            peer.heard = peer.seen = now
            if peer.gone is not None:
                self._alive = None
            if peer.since is None:
                peer.since = round

    def nearly(self, node_id: int) -> None:
        """Note that a message was only a little late: its sender is expected again."""
        if node_id in self._peers:
            self._peers[node_id].missed = 0

    def missed(self, node_ids: Iterable[int], took: int = 0, now: int = 0) -> None:
        """Note that these peers were waited for in vain, for `took` microseconds."""
        for node_id in node_ids:
            if node_id in self._peers:
                peer = self._peers[node_id]
                peer.missed += 1
                peer.tardy = min(MOST_TARDY, peer.tardy + 2)
                peer.vain, peer.vain_at = self._vain(peer, now) + took, now

    # -- what is asked ------------------------------------------------------------------------------------------------

    def strangers(self) -> list[int]:
        """The nodes shown by the network that have not introduced themselves."""
        return sorted(self._strangers)

    def others_here(self, token: str) -> bool:
        """Whether another process than that of this token uses this node's own id."""
        return bool(self._tokens.get(self._node_id, set()) - {token})

    def alive(self, now: int) -> frozenset[int]:
        """Live peers that run the same experiment."""
        if self._alive is None or now > self._alive_until:
            self._alive_until = 2**62
            found = []
            for node_id, peer in self._peers.items():
                if node_id in self._void:
                    continue
                if peer.gone is None:
                    found.append(node_id)
                elif peer.heard is not None and peer.heard > peer.gone + ON_THE_WAY and now - peer.heard <= STILL_HEARD:
                    found.append(node_id)
                    self._alive_until = min(self._alive_until, peer.heard + STILL_HEARD)
            self._alive = frozenset(found)
            self._votes = None
        return self._alive

    def away(self, node_id: int, now: int, began: int) -> int:
        """How long a peer has been away, in microseconds; since `began` if it was never seen."""
        peer = self._peers.get(node_id)
        if node_id in self.alive(now):
            return 0
        if peer is None or peer.gone is None:
            return now - began
        late = peer.heard is not None and peer.heard > peer.gone + ON_THE_WAY
        return now - (peer.heard if late and peer.heard is not None else peer.gone)

    def expected(self, node_ids: Iterable[int], round: int, now: int) -> frozenset[int]:
        """Those of these peers that are alive and expected to send their messages of this round."""
        alive, found = self.alive(now), []
        for node_id in node_ids:
            if node_id in alive:
                peer = self._peers[node_id]
                if peer.since is not None and peer.since <= round and peer.missed < MOST_MISSED:
                    found.append(node_id)
        return frozenset(found)

    def punctual(self, node_ids: Iterable[int]) -> bool:
        """Whether at least one of these peers is usually in time."""
        return any(not self._peers[node_id].tardy for node_id in node_ids)

    def learning(self, now: int) -> list[int]:
        """The live peers that have begun, including finished ones, in ascending order."""
        return sorted(p for p in self.alive(now) if self._peers[p].round >= 0)

    def given_up(self, node_id: int, now: int) -> bool:
        """Whether a peer has cost this node as much waiting in vain as a round may take."""
        peer = self._peers.get(node_id)
        return peer is None or self._vain(peer, now) >= self._deadline

    @staticmethod
    def _vain(peer: _Peer, now: int) -> int:
        return max(0, peer.vain - max(0, now - peer.vain_at) // REGAINED)

    def taking_part(self, node_ids: Iterable[int], now: int) -> frozenset[int]:
        """Those of these peers that are alive and have said from which round they take part; their next messages may have left before they knew this node."""
        alive, peers = self.alive(now), self._peers
        return frozenset(node_id for node_id in node_ids if node_id in alive and peers[node_id].since is not None)

    def worth_waiting_for(self, node_ids: Iterable[int], round: int, now: int) -> frozenset[int]:
        """Those of these peers that may still send their message of this round: not ahead of it, and not given up."""
        return frozenset(p for p in node_ids if self._peers[p].round <= round and not self.given_up(p, now))

    # -- where they are -----------------------------------------------------------------------------------------------

    def carriers(self, now: int) -> dict[int, int]:
        """The live carriers other than this node's own, with their rounds.

        A carrier speaks for its process. Other nodes cannot push its round forward by claiming to be carried by it, nor become witnesses by naming carriers
        that do not confirm it or that the network has never shown.
        """
        alive, found = self.alive(now), dict[int, int]()
        for node_id in alive:
            peer = self._peers[node_id]
            if peer.token == self.token:
                continue
            own = self._peers.get(peer.carrier)
            if own is None or own.carrier != peer.carrier or not own.shown:
                continue
            if peer.carrier in alive:
                found[peer.carrier] = own.round
            elif peer.gone is None:  # the process runs, but its first node has failed or is revoked
                found[peer.carrier] = min(peer.round, found.get(peer.carrier, peer.round))
        return found

    def _count_votes(self, now: int) -> list[int]:
        self.alive(now)
        if self._votes is None:
            self._votes = sorted(self.carriers(now).values(), reverse=True)
            inside = {node_id for node_id, peer in self._peers.items() if peer.token == self.token}
            carriers = {peer.carrier for node_id, peer in self._peers.items() if node_id not in inside}
            possible = len(carriers) + self._nodes - 1 - len(self._peers)  # unknown nodes may be processes of their own
            self._need = max(1, min(self._wanted or max(2, -(-len(self._votes) // 3)), possible))
        return self._votes

    def witnesses(self, now: int) -> int:
        """How many carriers must report a thing before it is believed."""
        self._count_votes(now)
        return self._need

    def began_without_us(self, now: int) -> bool:
        """Whether enough peers had begun before they knew this node."""
        begun = [carrier for carrier in self.carriers(now) if self._peers[carrier].begun]
        return len(begun) >= self.witnesses(now)

    def front(self, now: int, ahead: int = 0) -> int:
        """The furthest round that enough witnesses have reached; -1 if nobody has begun.

        With `ahead`, two carriers that are so many rounds ahead suffice: the last reports of the others may be old.
        """
        votes, need = self._count_votes(now), self._need
        if len(votes) < need:
            return -1
        return votes[need - 1] if need <= 2 else min(votes[1], votes[need - 1] + ahead)

    def furthest(self, now: int) -> int:
        """The furthest round that any carrier reports; -1 if nobody has begun."""
        votes = self._count_votes(now)
        return votes[0] if votes else -1

    def far_behind(self, round: int, now: int) -> bool:
        """Whether all carriers but at most one are at this round or before it."""
        votes = self._count_votes(now)
        return bool(votes) and votes[min(2, len(votes)) - 1] <= round

    def answered(self, carrier: int, since: int) -> int | None:
        """The round of a carrier, if it reported one after this time; else None."""
        peer = self._peers.get(carrier)
        return None if peer is None or peer.seen <= since else peer.round

    def carrier(self, node_id: int) -> int:
        """The node whose connection carries this node's messages."""
        peer = self._peers.get(node_id)
        return node_id if peer is None else peer.carrier


def _met(handshake: Introduced, here: int, missed: int) -> _Peer:
    """A new entry for a peer whose handshake arrives in round `here`."""
    begun = handshake.round >= 0
    late = here > handshake.start and not begun  # it will say later from which round it takes part
    since = None if late else max(handshake.start, handshake.round + 2 if begun else 0)
    return _Peer(handshake.carrier, handshake.token, handshake.round, since, begun, missed)
