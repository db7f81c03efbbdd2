"""Roster: who the others are, where they stand, and whose letters are waited for.

A peer is alive while the network shows the token of the start that it introduced itself with, or while letters of current rounds go on coming from it.
Only a place's own hello makes it known: who says to be carried by another place cannot hide that place.

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
ON_THE_WAY = SECOND
"""So long after somebody has gone letters of its may still come."""
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
        self._foreign: dict[int, str] = {}  # the tokens of those who are kept apart
        self._void: frozenset[int] = frozenset()
        self.differing: dict[int, tuple[str, ...]] = {}  # what keeps others apart from this one
        self.finished: set[int] = set()
        self._strangers: set[int] = set()
        self._alive: frozenset[int] | None = None  # worked out, until something changes ...
        self._alive_until = 0  # ... or this time comes
        self._ranks: list[int] | None = None  # the rounds of those alive, the furthest first; worked out, too

    # -- what is learnt -----------------------------------------------------------------------------------------------

    def shown(self, place: int, token: str, there: bool, now: int) -> None:
        """The network shows, or no longer shows, a token."""
        if not 0 <= place < self._nodes:
            return
        tokens = self._tokens.setdefault(place, set())
        if not there:
            tokens.discard(token)
        elif len(tokens) < MOST_TOKENS:
            tokens.add(token)
        for peer in self._peers.values():
            if peer.carrier == place:
                self._note_gone(peer, now)
        self._note_strange(place)

    def withdrawn(self, token: str, now: int) -> None:
        """A token of this node's own process is shown no more, wherever it was."""
        for place in [place for place, tokens in self._tokens.items() if token in tokens]:
            self.shown(place, token, False, now)

    def _note_gone(self, peer: _Peer, now: int) -> None:
        here = peer.token in self._tokens.get(peer.carrier, ()) and not peer.ended
        if here != (peer.gone is None):
            peer.gone = None if here else now
            self._alive = None

    def _note_strange(self, place: int) -> None:
        peer, foreign = self._peers.get(place), self._foreign.get(place)
        known = {foreign} if peer is None else {peer.token, foreign}
        strange = place != self._place and not self._tokens.get(place, set()) <= known
        (self._strangers.add if strange else self._strangers.discard)(place)

    def introduced(self, hello: Introduced, here: int, now: int) -> bool:
        """Listen to a hello, in round `here`; False if it is not believed."""
        place = hello.place
        if not 0 <= place < self._nodes or place == self._place or not 0 <= hello.carrier < self._nodes:
            return False
        if not (-1 <= hello.round <= self._rounds and 0 <= hello.start <= self._rounds):
            return False
        before = self._peers.get(place)
        same = before is not None and before.token == hello.token
        shown = hello.token in self._tokens.get(hello.carrier, ())
        present = before is not None and before.gone is None
        if not same and not shown and (present or hello.differs):
            return False  # an old one, said again by somebody else
        if hello.differs:
            self.differing[place], self._foreign[place] = hello.differs, hello.token
            if self._peers.pop(place, None) is not None:
                self._alive = None
        else:
            self.differing.pop(place, None)
            self._foreign.pop(place, None)
            self._remember(hello, shown, here, now)
        self._note_strange(place)
        return True

    def _remember(self, hello: Introduced, shown: bool, here: int, now: int) -> None:
        """Take down what a peer says of itself."""
        place = hello.place
        peer = self._peers.get(place)
        if peer is None or peer.token != hello.token:
            missed = 0 if peer is None else peer.missed  # a new start is no excuse
            peer = self._peers[place] = _met(hello, here, missed)
            self._alive = None
            if shown and not hello.finished:
                self.finished.discard(place)
        else:
            peer.since = max(peer.since or 0, hello.start)
            self.reached(place, hello.round)
        if hello.finished:
            self.finished.add(place)
        peer.ended |= hello.gone
        self._note_gone(peer, now)

    def void(self, places: Iterable[int]) -> None:
        """The certificates of these count no more."""
        self._void = frozenset(places)
        self._alive = None

    def reached(self, place: int, round: int) -> None:
        """A peer has come to this round: it says so, or a letter shows it, whether that is of use or not."""
        peer = self._peers.get(place)
        if peer is not None and round > peer.round:
            peer.round = round
            self._ranks = None

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
        """Places where somebody is who has not been introduced."""
        return sorted(self._strangers)

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
                elif peer.heard is not None and peer.heard > peer.gone + ON_THE_WAY and now - peer.heard <= STILL_HEARD:
                    found.append(place)
                    self._alive_until = min(self._alive_until, peer.heard + STILL_HEARD)
            self._alive = frozenset(found)
            self._ranks = None
        return self._alive

    def away(self, place: int, now: int, began: int) -> int:
        """For how long somebody has not been there, in microseconds; who was never seen is away since `began`."""
        peer = self._peers.get(place)
        if place in self.alive(now):
            return 0
        if peer is None or peer.gone is None:
            return now - began
        late = peer.heard is not None and peer.heard > peer.gone + ON_THE_WAY
        return now - (peer.heard if late and peer.heard is not None else peer.gone)

    def expected(self, places: Iterable[int], round: int, now: int) -> frozenset[int]:
        """Who of these is alive and can be expected to send its letters of this round."""
        alive, found = self.alive(now), []
        for place in places:
            if place in alive:
                peer = self._peers[place]
                if peer.since is not None and peer.since <= round and peer.missed < MOST_MISSED:
                    found.append(place)
        return frozenset(found)

    def learning(self, now: int) -> list[int]:
        """Who is alive and has begun, perhaps come to its end."""
        return sorted(p for p in self.alive(now) if self._peers[p].round >= 0)

    def began_without_us(self, now: int) -> bool:
        """Whether two others (or the only one) had begun before knowing of this node."""
        return sum(self._peers[place].begun for place in self.alive(now)) >= self.witnesses

    @property
    def witnesses(self) -> int:
        """How many others must say a thing for it to be believed."""
        return min(max(2, -(-len(self._alive or ()) // 3)), self._nodes - 1)

    def _ranking(self, now: int) -> list[int]:
        alive = self.alive(now)
        if self._ranks is None:
            self._ranks = sorted((self._peers[place].round for place in alive), reverse=True)
        return self._ranks

    def front(self, now: int) -> int:
        """The furthest round that enough of those alive have reached; -1: nobody has begun."""
        ranks = self._ranking(now)
        return ranks[self.witnesses - 1] if len(ranks) >= self.witnesses else -1

    def company(self, now: int) -> int:
        """How far the others are at least, without the one that says to be the furthest where there are several; -1: nobody has begun."""
        ranks = self._ranking(now)
        return ranks[min(self.witnesses, len(ranks)) - 1] if ranks else -1

    def carrier(self, place: int) -> int:
        """Whose connection leads to a place."""
        peer = self._peers.get(place)
        return place if peer is None else peer.carrier


def _met(hello: Introduced, here: int, missed: int) -> _Peer:
    """Somebody who introduces itself to a node in round `here`."""
    begun = hello.round >= 0
    late = here > hello.start and not begun  # it will say from when it takes part
    since = None if late else max(hello.start, hello.round + 2 if begun else 0)
    return _Peer(hello.carrier, hello.token, hello.round, since, begun, missed)
