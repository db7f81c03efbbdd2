"""Roster: who the others are, where they stand, and whose messages are waited for.

A peer is alive while the network shows the token of the start that it introduced itself with, or while messages of current rounds go on coming from it.
Only a place's own hello makes it known: who says to be carried by another place cannot hide that place.

Whose messages are waited for: of those alive, who takes part in the round, and knew of this node before it (who had begun when they met
may have sent its messages for that round and the next before); but nobody who has let this node wait in vain three times in a row, until
it is heard again.

Who is worth more patience, where a node would otherwise be alone: a live peer that is not ahead, until it has cost a deadline in vain since it
last showed a new round. That time comes back slowly, so that a peer that is silent for ever costs a tenth of the time at most.

Nobody is believed alone: a front is a round that enough witnesses have reached. A witness is a carrier, which is a process with a connection of
its own: nodes of one process are one witness, those of this node's own process are none. Two are needed, or a third of the live carriers if that
is more, or as many as the settings say; never more than there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from epidemic.protocol.events import SECOND, Introduced

MOST_MISSED = 3
"""Who was waited for in vain so often in a row is not waited for until it is heard again."""
MOST_TARDY = 8
"""Who was missed again and again has to be heard so often in a row to be as punctual as the others."""
MOST_TOKENS = 16
"""Starts of one place that may be shown at once; a member that shows more harms only itself."""
ON_THE_WAY = SECOND
"""So long after somebody has gone messages of its may still come."""
STILL_HEARD = 5 * SECOND
"""So long after a message its sender counts as alive although the network does not show it."""
REGAINED = 10
"""Of so many seconds one is regained of the time that a peer was waited for in vain."""


@dataclass(slots=True)
class _Peer:
    carrier: int
    token: str
    round: int  # the furthest that it was seen in
    since: int | None  # the first round in which its messages can be expected; None: it has not said
    begun: bool  # whether it had begun when it introduced itself
    missed: int = 0  # how often it was waited for in vain since it was heard last
    tardy: int = 0  # grows whenever it is missed, shrinks whenever it is heard; nobody who is in step has any
    heard: int | None = None  # when its last message of a current round came
    gone: int | None = None  # since when it is not shown
    shown: bool = False  # whether the network has ever shown its token at its carrier
    ended: bool = False  # whether it has said that it gives up
    seen: int = 0  # when it last showed what round it is in
    vain: int = 0  # microseconds that it was waited for in vain since it last showed a new round ...
    vain_at: int = 0  # ... at this time


class Membership:
    """The other nodes, as one of them sees them."""

    def __init__(
        self, node_id: int, nodes: int, rounds: int, *, token: str = "", deadline: int = 30 * SECOND, witnesses: int = 0
    ) -> None:
        """`token`: the own one, which other nodes of this process have, too; `witnesses`: how many are needed, 0: see above."""
        self._node_id = node_id
        self.token = token
        self._deadline = deadline
        self._wanted = witnesses
        self._nodes = nodes
        self._rounds = rounds
        self._tokens: dict[int, set[str]] = {}  # by carrier
        self._peers: dict[int, _Peer] = {}
        self._foreign: dict[int, str] = {}  # the tokens of those who are kept apart
        self._void: frozenset[int] = frozenset()
        self.differing: dict[int, tuple[str, ...]] = {}  # what keeps others apart from this one
        self.finished: set[int] = set()
        self._strangers: set[int] = set()
        self._alive: frozenset[int] | None = None  # worked out, until something changes ...
        self._alive_until = 0  # ... or this time comes
        self._votes: list[int] | None = None  # the rounds of live carriers, the furthest first; worked out, too
        self._need = 1  # how many witnesses are needed; worked out with them

    # -- what is learnt -----------------------------------------------------------------------------------------------

    def shown(self, node_id: int, token: str, there: bool, now: int) -> None:
        """The network shows, or no longer shows, a token."""
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
        """A token of this node's own process is shown no more, wherever it was."""
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
        """Listen to a hello, in round `here`; False if it is not believed."""
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
            return False  # an old one, said again by somebody else
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
        """Take down what a peer says of itself."""
        node_id = handshake.node_id
        peer = self._peers.get(node_id)
        if peer is None or peer.token != handshake.token:
            missed = 0 if peer is None else peer.missed  # a new start is no excuse
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
        """The certificates of these count no more."""
        self._void = frozenset(node_ids)
        self._alive = None

    def reached(self, node_id: int, round: int) -> None:
        """A peer has come to this round: it says so, or a message shows it, whether that is of use or not."""
        peer = self._peers.get(node_id)
        if peer is not None and round > peer.round:
            peer.round = round
            peer.vain = 0
            self._votes = None

    def heard(self, node_id: int, round: int, now: int) -> None:
        """A message of a current round came from a peer."""
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
        """A message came a little too late: its sender is in step, or nearly, and is waited for again."""
        if node_id in self._peers:
            self._peers[node_id].missed = 0

    def missed(self, node_ids: Iterable[int], took: int = 0, now: int = 0) -> None:
        """These were waited for in vain, for so long."""
        for node_id in node_ids:
            if node_id in self._peers:
                peer = self._peers[node_id]
                peer.missed += 1
                peer.tardy = min(MOST_TARDY, peer.tardy + 2)
                peer.vain, peer.vain_at = self._vain(peer, now) + took, now

    # -- what is asked ------------------------------------------------------------------------------------------------

    def strangers(self) -> list[int]:
        """Places where somebody is who has not been introduced."""
        return sorted(self._strangers)

    def others_here(self, token: str) -> bool:
        """Whether another process than the one of this token shows this node's own place."""
        return bool(self._tokens.get(self._node_id, set()) - {token})

    def alive(self, now: int) -> frozenset[int]:
        """Who is there and does the same."""
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
        """For how long somebody has not been there, in microseconds; who was never seen is away since `began`."""
        peer = self._peers.get(node_id)
        if node_id in self.alive(now):
            return 0
        if peer is None or peer.gone is None:
            return now - began
        late = peer.heard is not None and peer.heard > peer.gone + ON_THE_WAY
        return now - (peer.heard if late and peer.heard is not None else peer.gone)

    def expected(self, node_ids: Iterable[int], round: int, now: int) -> frozenset[int]:
        """Who of these is alive and can be expected to send its messages of this round."""
        alive, found = self.alive(now), []
        for node_id in node_ids:
            if node_id in alive:
                peer = self._peers[node_id]
                if peer.since is not None and peer.since <= round and peer.missed < MOST_MISSED:
                    found.append(node_id)
        return frozenset(found)

    def punctual(self, node_ids: Iterable[int]) -> bool:
        """Whether one of these is usually in time."""
        return any(not self._peers[node_id].tardy for node_id in node_ids)

    def learning(self, now: int) -> list[int]:
        """Who is alive and has begun, perhaps come to its end."""
        return sorted(p for p in self.alive(now) if self._peers[p].round >= 0)

    def given_up(self, node_id: int, now: int) -> bool:
        """Whether a peer has let this node wait in vain for as long as a round may take."""
        peer = self._peers.get(node_id)
        return peer is None or self._vain(peer, now) >= self._deadline

    @staticmethod
    def _vain(peer: _Peer, now: int) -> int:
        return max(0, peer.vain - max(0, now - peer.vain_at) // REGAINED)

    def taking_part(self, node_ids: Iterable[int], now: int) -> frozenset[int]:
        """Who of these is alive and has said from when it takes part; its next messages may have left before it knew of this node."""
        alive, peers = self.alive(now), self._peers
        return frozenset(node_id for node_id in node_ids if node_id in alive and peers[node_id].since is not None)

    def worth_waiting_for(self, node_ids: Iterable[int], round: int, now: int) -> frozenset[int]:
        """Who of these may still send its message of this round: not ahead of it, and not given up."""
        return frozenset(p for p in node_ids if self._peers[p].round <= round and not self.given_up(p, now))

    # -- where they are -----------------------------------------------------------------------------------------------

    def carriers(self, now: int) -> dict[int, int]:
        """The live carriers but this node's own, and the rounds that they are in.

        A carrier speaks for its process: other nodes cannot make it seem further than it is by saying that it carries them, nor can they be
        witnesses by naming carriers that do not say so themselves, or that the network has never shown.
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
            elif peer.gone is None:  # the process is there, but its first node has given up or counts no more
                found[peer.carrier] = min(peer.round, found.get(peer.carrier, peer.round))
        return found

    def _count_votes(self, now: int) -> list[int]:
        self.alive(now)
        if self._votes is None:
            self._votes = sorted(self.carriers(now).values(), reverse=True)
            inside = {node_id for node_id, peer in self._peers.items() if peer.token == self.token}
            carriers = {peer.carrier for node_id, peer in self._peers.items() if node_id not in inside}
            possible = len(carriers) + self._nodes - 1 - len(self._peers)  # who is unknown may be one of its own
            self._need = max(1, min(self._wanted or max(2, -(-len(self._votes) // 3)), possible))
        return self._votes

    def witnesses(self, now: int) -> int:
        """How many carriers must say a thing for it to be believed."""
        self._count_votes(now)
        return self._need

    def began_without_us(self, now: int) -> bool:
        """Whether enough others had begun before knowing of this node."""
        begun = [carrier for carrier in self.carriers(now) if self._peers[carrier].begun]
        return len(begun) >= self.witnesses(now)

    def front(self, now: int, ahead: int = 0) -> int:
        """The furthest round that enough witnesses have reached; -1: nobody has begun.

        `ahead`: so many rounds more, if two carriers have reached those: what the other witnesses showed last is not of this moment.
        """
        votes, need = self._count_votes(now), self._need
        if len(votes) < need:
            return -1
        return votes[need - 1] if need <= 2 else min(votes[1], votes[need - 1] + ahead)

    def furthest(self, now: int) -> int:
        """The furthest round that any carrier says to have reached; -1: nobody has begun."""
        votes = self._count_votes(now)
        return votes[0] if votes else -1

    def far_behind(self, round: int, now: int) -> bool:
        """Whether all carriers but one at most are where this round is, or before."""
        votes = self._count_votes(now)
        return bool(votes) and votes[min(2, len(votes)) - 1] <= round

    def answered(self, carrier: int, since: int) -> int | None:
        """The round of a carrier, if it has shown it after this time."""
        peer = self._peers.get(carrier)
        return None if peer is None or peer.seen <= since else peer.round

    def carrier(self, node_id: int) -> int:
        """Whose connection leads to a place."""
        peer = self._peers.get(node_id)
        return node_id if peer is None else peer.carrier


def _met(handshake: Introduced, here: int, missed: int) -> _Peer:
    """Somebody who introduces itself to a node in round `here`."""
    begun = handshake.round >= 0
    late = here > handshake.start and not begun  # it will say from when it takes part
    since = None if late else max(handshake.start, handshake.round + 2 if begun else 0)
    return _Peer(handshake.carrier, handshake.token, handshake.round, since, begun, missed)
