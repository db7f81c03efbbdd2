"""Known: whom one node knows where not everybody knows everybody, and what it does to go on knowing enough of them. Pure, as all of `protocol`.

A node has entries of others, its view, and exchanges some of them with one of those it knows, about once a round. It keeps connections to
those in its view and to nobody else, and draws the targets of a round from those of them that are there. What an exchange does to a view is its
service's matter (`Side`; see `sampling`).

What a single member can do here: fill the few entries of an exchange with places of its choice, as often as an honest one begins exchanges.
It cannot invent places, addresses or certificates: whoever drives this checks that each entry is signed by its own place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from epidemic.protocol.events import (
    SECOND,
    AnswerEntries,
    Approached,
    Connect,
    Disconnect,
    EntriesCame,
    Exchange,
    Seek,
)
from epidemic.protocol.rules import Draw, View

if TYPE_CHECKING:
    from epidemic.protocol.rounds import Rounds

Entry = tuple[int, int]
"""A place, and for how many cycles nothing was heard of it."""
Entries = tuple[Entry, ...]

MOST_ENTRIES = 64
"""Entries of an exchange."""
PAUSE = 2 * SECOND
"""A node starts no exchanges more often than this, however short its rounds are: every one of them leads to new connections."""
ANSWER = 5 * SECOND
"""So long an answer is waited for."""
TRIED = 3 * SECOND
"""So long after a connection was wanted its other end should be there."""
REACHED = 10 * SECOND
"""Who is in the view and is not there for so long is dropped from it."""
LINGER = 4 * SECOND
"""So long the connection to one who is no longer in the view is kept: letters may be on their way."""
SEEK = 10 * SECOND
"""So often a node that knows nobody looks for those it was told of at first."""
LOOK_BACK = 60 * SECOND
"""So often every node looks for those of them who are not there, and knows one again who is: a network that was cut in two grows together."""
MOST_AGE = 2**20
"""Nobody is older; a member could otherwise make entries that others refuse to take on."""
REMEMBERED = 40
"""Rounds whose targets are remembered."""


class Side:
    """One node's side of a peer sampling service. Entries come and go as the service says; nobody has an entry of itself."""

    def __init__(self, place: int, draw: Draw, most: int) -> None:
        """`most`: how many entries an exchange may bring; further ones are not looked at."""
        self.place = place
        self.draw = draw
        self.most = most
        self.entries: list[Entry] = []

    def ask(self, reachable: Iterable[int]) -> tuple[int, Entries] | None:
        """Begin an exchange: with whom, of these, and what it is sent; None: with nobody."""
        raise NotImplementedError

    def reply(self, by: int, got: Entries) -> Entries:
        """Somebody begins an exchange: take what it sends, and say what it gets."""
        raise NotImplementedError

    def take(self, partner: int, got: Entries) -> None:
        """The partner of the exchange that was begun answers."""
        raise NotImplementedError

    def drop(self, place: int) -> None:
        """Somebody cannot be reached, perhaps the partner of the exchange that was begun."""
        raise NotImplementedError

    def refused(self, partner: int) -> None:
        """The partner of the exchange that was begun is there and wants none now."""
        raise NotImplementedError

    def meet(self, place: int) -> None:
        """Somebody is there whom this node may know, as when it first came, if there is room."""
        raise NotImplementedError

    @property
    def saved(self) -> list[Entry]:
        """What is kept over a restart."""
        return self.entries

    def admit(self, place: int) -> None:
        """Know somebody, instead of the oldest one if there is no room."""
        self.meet(place)
        if place not in self.places and self.entries:
            oldest = max(self.entries, key=lambda entry: entry[1])
            self.entries = [(place, 0) if entry is oldest else entry for entry in self.entries]

    # -- what services share ------------------------------------------------------------------------------------------

    @property
    def places(self) -> set[int]:
        """Whom it knows."""
        return {place for place, _ in self.entries}

    def age(self) -> None:
        """A cycle has passed."""
        self.entries = [(place, min(age + 1, MOST_AGE)) for place, age in self.entries]

    def shuffled(self, entries: Iterable[Entry]) -> list[Entry]:
        """These in random order."""
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
        oldest = [place for place, age in there if age == most]
        return oldest[self.draw(len(oldest))] if oldest else None

    def of_others(self, got: Entries) -> list[Entry]:
        """What may be taken of what came."""
        return [(place, min(age, MOST_AGE)) for place, age in got[: self.most] if place != self.place]


class Known:
    """Whom one node knows, is connected to, and sends to."""

    def __init__(self, node: Rounds, side: Side, s: int, cycles: int) -> None:
        """`s`: how many targets a round has; `cycles`: exchanges that are started in it."""
        self._node = node
        self.side = side
        self._s = s
        self._cycles = cycles
        self._partner: int | None = None  # whose answer is waited for
        self._left = 0  # exchanges still to be started
        self._next = 0  # not before then
        self._sought = 0  # when those of the beginning were looked for last
        self._missed: frozenset[int] = frozenset()  # who of them was not there then
        self._waits = False  # whether they still have time to be found
        self._linked: dict[int, int] = {}  # since when a connection to somebody is wanted
        self._leaving: dict[int, int] = {}  # since when it is no longer
        self._answered: dict[int, tuple[int, int]] = {}  # by whom: since when, how often
        self._targets: dict[int, tuple[int, ...]] = {}  # by round

    # -- rounds -------------------------------------------------------------------------------------------------------

    def __call__(self, round: int) -> View:
        """A round as this node sees it: whom it hears is not known, nor whom it sends to before the round is open."""
        return View(self._targets.get(round, ()), None, bytes(8))

    def started(self) -> None:
        """The node has its place in the network."""
        self._look_back()
        self._connect()

    def looking(self) -> None:
        """The node has not found enough others yet."""
        if self._node.now - self._sought > SEEK:
            self._look_back()

    def opened(self, round: int) -> None:
        """A round begins: draw its targets, and start its exchanges."""
        node = self._node
        self._let_go()
        there = sorted(self.side.places & node.roster.alive(node.now))
        if len(there) < self._s:
            node.say_once(
                "few", f"round {round}: knows {len(there)} others, fewer than s = {self._s}: sends to all of them"
            )
        drawn: list[int] = []
        while there and len(drawn) < self._s:
            drawn.append(there.pop(node.draw(len(there))))
        self._targets[round] = tuple(sorted(drawn))
        self._targets = {of: to for of, to in self._targets.items() if of > round - REMEMBERED}
        if self._partner is None and node.now >= self._next:
            self._next = node.now + PAUSE
            self._left = self._cycles
            self._exchange()
        self._seek()

    # -- exchanges ----------------------------------------------------------------------------------------------------

    def _exchange(self) -> None:
        """Start one. Who could have been reached by now and is not there is asked in vain, and dropped: so the dead, who grow old, are forgotten."""
        node = self._node
        alive = node.roster.alive(node.now)
        tried = alive | {place for place, since in self._linked.items() if node.now - since > TRIED}
        while self._left and self._partner is None:
            self._left -= 1
            begun = self.side.ask(self.side.places & tried)
            if begun is None:
                self._left = 0
            elif begun[0] not in alive:
                self.side.drop(begun[0])
            else:
                self._partner, entries = begun
                node.act(Exchange(self._partner, entries, ANSWER))

    def came(self, event: EntriesCame) -> None:
        """An answer, or none."""
        if event.by != self._partner:
            return
        self._partner = None
        if event.refused:
            self.side.refused(event.by)
        elif event.entries is None:
            self.side.drop(event.by)
        else:
            self.side.take(event.by, event.entries)
        self._exchange()
        self._connect()

    def approached(self, event: Approached) -> None:
        """Somebody begins an exchange with this node."""
        node = self._node
        since, often = self._answered.get(event.by, (node.now, 0))
        if node.now - since >= PAUSE:
            since, often = node.now, 0
        self._answered[event.by] = since, often + 1
        if often >= self._cycles or event.by not in node.roster.alive(node.now):
            node.count.exchanges_refused += 1
            node.act(AnswerEntries(event.reply, event.by, None))
            return
        node.act(AnswerEntries(event.reply, event.by, self.side.reply(event.by, event.entries)))
        self._connect()

    # -- connections --------------------------------------------------------------------------------------------------

    def met(self, place: int) -> None:
        """Somebody introduced itself: at the start, and when nobody is known any more, it is as good as any."""
        if not self._node.begun or not self.side.entries:
            self.side.meet(place)
        if place not in self.side.places:  # perhaps one of those that were looked for
            self._leaving.setdefault(place, self._node.now)
        self._connect()

    def _connect(self) -> None:
        """Connect to those who are known now."""
        places = self.side.places
        for place in sorted(places - self._linked.keys()):
            self._linked[place] = self._node.now
            self._node.act(Connect(place))
        for place in sorted(self._linked.keys() - places):
            self._leaving.setdefault(place, self._node.now)
        self._leaving = {place: since for place, since in self._leaving.items() if place not in places}

    def _let_go(self) -> None:
        """Forget who is not there, and end connections to those who are no longer known."""
        node = self._node
        for place in sorted(self.side.places - {self._partner}):
            linked = self._linked.get(place, node.now)
            if min(node.roster.away(place, node.now, linked), node.now - linked) > REACHED:
                self.side.drop(place)
        self._connect()
        for place in [place for place, since in self._leaving.items() if node.now - since > LINGER]:
            del self._leaving[place]
            self._linked.pop(place, None)
            node.act(Disconnect(place))

    def _seek(self) -> None:
        """Look for those of the beginning: soon if nobody is known, otherwise now and then."""
        node = self._node
        self._found()
        nobody = not self.side.entries and self._partner is None
        if node.now - self._sought <= (SEEK if nobody else LOOK_BACK):
            return
        self._look_back()
        if nobody:
            node.say("knows nobody any more: looking for those that node.toml names")
            for place in sorted(node.roster.alive(node.now)):
                self.side.meet(place)
            self._connect()

    def _look_back(self) -> None:
        node = self._node
        self._sought = node.now
        self._missed = node.rules.founders - node.roster.alive(node.now)
        self._waits = True
        node.act(Seek())

    def _found(self) -> None:
        """Those of the beginning had time to be found: one who was not there before is known now, and nobody else is needed."""
        node = self._node
        if not self._waits or node.now - self._sought <= TRIED:
            return
        self._waits = False
        back = sorted((self._missed & node.roster.alive(node.now)) - self.side.places)
        if back:
            self.side.admit(back[node.draw(len(back))])
            self._connect()
        for place in sorted(node.rules.founders - self.side.places):
            self._leaving.setdefault(place, node.now)
