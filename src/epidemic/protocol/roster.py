"""Roster: who the others are, where they stand, and whose letters are waited for.

A peer is alive while the network shows the token of the start that it introduced itself with, or while its letters of current rounds come.

Whose letters are waited for: of those alive, who takes part in the round, and knew of this node before it (who had begun when they met
may have sent its letters for that round and the next before); but nobody who has let this node wait in vain three times in a row, until
it is heard again.

Nobody is believed alone: a front is a round that two others have reached (one, where there is only one other node).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from epidemic.protocol.events import SECOND, Introduced

MOST_MISSED = 3
"""Who was waited for in vain so often in a row is not waited for until it is heard again."""
MOST_TOKENS = 16
"""Starts of one place that may be shown at once; a member that shows more harms only itself."""
STILL_HEARD = 5 * SECOND
"""So long after a letter its sender counts as alive although the network does not show it."""


@dataclass(slots=True)
class _Peer:
    carrier: int
    token: str
    round: int  # the furthest that it was seen in
    since: int | None  # the first round in which its letters can be expected; None: it has not said
    begun: bool  # whether it had begun when it introduced itself
    missed: int = 0  # how often it was waited for in vain since it was heard last
    heard: int | None = None  # when its last letter of a current round came
    gone: int | None = None  # since when it is not shown
    ended: bool = False  # whether it has said that it gives up


class Roster:
    """The other nodes, as one of them sees them."""

    def __init__(self, place: int, nodes: int, rounds: int) -> None:
        self._place = place
        self._nodes = nodes
        self._rounds = rounds
        self._tokens: dict[int, set[str]] = {}  # by carrier
        self._peers: dict[int, _Peer] = {}
        self._void: frozenset[int] = frozenset()
        self.differing: dict[int, tuple[str, ...]] = {}  # what keeps others apart from this one
        self.finished: set[int] = set()
        self._alive: frozenset[int] | None = None  # worked out, until something changes ...
        self._alive_until = 0  # ... or this time comes

    # -- what is learnt -----------------------------------------------------------------------------------------------

    def shown(self, place: int, token: str, there: bool, now: int) -> None:
        """The network shows, or no longer shows, a token."""
        if not 0 <= place < self._nodes:
            return
        self._alive = None
        tokens = self._tokens.setdefault(place, set())
        if not there:
            tokens.discard(token)
        elif len(tokens) < MOST_TOKENS:
            tokens.add(token)
        for peer in self._peers.values():
            if peer.carrier == place:
                self._note_gone(peer, now)

    def _note_gone(self, peer: _Peer, now: int) -> None:
        if peer.token in self._tokens.get(peer.carrier, ()) and not peer.ended:
            peer.gone = None
        elif peer.gone is None:
            peer.gone = now

    def introduced(self, hello: Introduced, here: int, now: int) -> bool:
        """Listen to a hello, in round `here`; False if it is not believed."""
        place = hello.place
        if not 0 <= place < self._nodes or place == self._place or not 0 <= hello.carrier < self._nodes:
            return False
        if not (-1 <= hello.round <= self._rounds and 0 <= hello.start <= self._rounds):
            return False
        self._alive = None
        before = self._peers.get(place)
        shown = hello.token in self._tokens.get(hello.carrier, ())
        if before is not None and before.token != hello.token and before.gone is None and not shown:
            return False  # an old one, said again by somebody else
        if hello.differs:
            self.differing[place] = hello.differs
            self._peers.pop(place, None)
            return True
        self.differing.pop(place, None)
        if hello.finished:
            self.finished.add(place)
        if hello.gone:
            if before is not None and before.token == hello.token:
                before.ended = True
                self._note_gone(before, now)
            return True
        if before is not None and before.token == hello.token:
            before.since = max(before.since or 0, hello.start)
            before.round = max(before.round, hello.round)
        else:
            begun = hello.round >= 0
            late = here > hello.start and not begun  # it will say from when it takes part
            since = None if late else max(hello.start, hello.round + 2 if begun else 0)
            self._peers[place] = _Peer(hello.carrier, hello.token, hello.round, since, begun)
            if not hello.finished:
                self.finished.discard(place)
            self._note_gone(self._peers[place], now)
        return True

    def void(self, places: Iterable[int]) -> None:
        """The certificates of these count no more."""
        self._void = frozenset(places)
        self._alive = None

    def reached(self, place: int, round: int) -> None:
        """A letter of this round came from a peer, whether it is of use or not."""
        peer = self._peers.get(place)
        if peer is not None:
            peer.round = max(round, peer.round)

    def heard(self, place: int, round: int, now: int) -> None:
        """A letter of a current round came from a peer."""
        peer = self._peers.get(place)
        if peer is not None:
            peer.missed = 0
            peer.heard = now
            if peer.gone is not None:
                self._alive = None
            if peer.since is None:
                peer.since = round

    def missed(self, places: Iterable[int]) -> None:
        """These were waited for in vain."""
        for place in places:
            if place in self._peers:
                self._peers[place].missed += 1

    # -- what is asked ------------------------------------------------------------------------------------------------

    def strangers(self) -> list[int]:
        """Places where somebody is who has not been introduced; this node's own place, if another process has it."""
        known: dict[int, set[str]] = {}
        for peer in self._peers.values():
            known.setdefault(peer.carrier, set()).add(peer.token)
        return [
            place
            for place, tokens in sorted(self._tokens.items())
            if tokens - known.get(place, set()) and place not in self.differing and place != self._place
        ]

    def others_here(self, token: str) -> bool:
        """Whether another process than the one of this token shows this node's own place."""
        return bool(self._tokens.get(self._place, set()) - {token})

    def alive(self, now: int) -> frozenset[int]:
        """Who is there and does the same."""
        if self._alive is None or now > self._alive_until:
            self._alive_until = 2**62
            found = []
            for place, peer in self._peers.items():
                if place in self._void:
                    continue
                if peer.gone is None:
                    found.append(place)
                elif peer.heard is not None and now - peer.heard <= STILL_HEARD:
                    found.append(place)
                    self._alive_until = min(self._alive_until, peer.heard + STILL_HEARD)
            self._alive = frozenset(found)
        return self._alive

    def away(self, place: int, now: int, began: int) -> int:
        """For how long somebody has not been there, in microseconds; who was never seen is away since `began`."""
        peer = self._peers.get(place)
        if place in self.alive(now):
            return 0
        since = began if peer is None or peer.gone is None else max(peer.gone, peer.heard or peer.gone)
        return now - since

    def expected(self, round: int, now: int) -> frozenset[int]:
        """Who is alive and can be expected to send its letters of this round; who is not shown any more may have died since its last."""
        peers = ((place, self._peers[place]) for place in self.alive(now))
        return frozenset(
            place
            for place, peer in peers
            if peer.gone is None and peer.since is not None and peer.since <= round and peer.missed < MOST_MISSED
        )

    def learning(self, now: int) -> list[int]:
        """Who is alive and has begun, and not come to its end."""
        return sorted(p for p in self.alive(now) if self._peers[p].round >= 0)

    def began_without_us(self, now: int) -> bool:
        """Whether two others (or the only one) had begun before knowing of this node."""
        return sum(self._peers[place].begun for place in self.alive(now)) >= self.witnesses

    @property
    def witnesses(self) -> int:
        """How many others must say a thing for it to be believed."""
        return min(2, self._nodes - 1)

    def front(self, now: int) -> int:
        """The furthest round that enough of those alive have reached; -1: nobody has begun."""
        rounds = sorted((self._peers[place].round for place in self.alive(now)), reverse=True)
        return rounds[self.witnesses - 1] if len(rounds) >= self.witnesses else -1

    def furthest(self, now: int) -> int:
        """The furthest round of any other node alive; -1: nobody has begun."""
        return max((self._peers[place].round for place in self.alive(now)), default=-1)

    def carrier(self, place: int) -> int:
        """Whose connection leads to a place."""
        peer = self._peers.get(place)
        return place if peer is None else peer.carrier
