"""Known: whom one node knows where not everybody knows everybody, and what it does to go on knowing enough of them. Pure, as all of `protocol`.

A node has entries of others, its view, and exchanges some of them with one of those it knows, about once a round. It keeps connections to
those in its view and to nobody else, and draws the targets of a round from those of them that are there. What an exchange does to a view is its
service's matter (`PeerSampler`; see `sampling`).

What a single member can do here: fill the few entries of an exchange with places of its choice, a few times as often as an honest one exchanges with the same node.
It cannot invent places, addresses or certificates: whoever drives this checks that each entry is signed by its own place. Whatever floods come, the way back stays: the node
goes on probing peers of its sample (`sample`), which no flood changes, and anchors those that are there in its view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epidemic.protocol.events import (
    SECOND,
    AnswerEntries,
    Approached,
    Connect,
    Disconnect,
    EntriesCame,
    ExchangeViews,
    Seek,
)
from epidemic.protocol.peer_sampler import Entries, PeerSampler
from epidemic.protocol.rules import NodeView
from epidemic.protocol.sample import PeerSample

if TYPE_CHECKING:
    from epidemic.protocol.rounds import Rounds

OWN_ENTRIES = "own-entries"
"""The reason for which entries are refused that a partner offers of itself beyond its share."""
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
"""So long the connection to one who is no longer in the view is kept: messages may be on their way."""
SEEK = 10 * SECOND
"""So often a node that knows nobody looks for those it was told of at first."""
LOOK_BACK = 60 * SECOND
"""So often every node looks for those of them who are not there, and knows one again who is: a network that was cut in two grows together."""
MIX = 4 * SECOND
"""So often a peer of the sample is probed and anchored where the view is in order; every PAUSE while it has too few anchors or peers."""
MOST_PROBES = 3
"""Peers of the sample that are probed at once."""
REMEMBERED = 40
"""Rounds whose targets are remembered."""


class PartialView:
    """Whom one node knows, is connected to, and sends to."""

    def __init__(self, node: Rounds, sampler: PeerSampler, s: int, cycles: int, sample: PeerSample) -> None:
        """`s`: how many targets a round has; `cycles`: exchanges that are started in it; `sample`: peers that no flood replaces."""
        self._node = node
        self.sampler = sampler
        self.sample = sample
        self._probes: dict[int, int] = {}  # peers of the sample that are looked for, and since when
        self._mixes = 0  # when the next one is
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

    def __call__(self, round: int) -> NodeView:
        """A round as this node sees it: whom it hears is not known, nor whom it sends to before the round is open."""
        return NodeView(self._targets.get(round, ()), None, bytes(8))

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
        there = sorted(self.sampler.node_ids & node.membership.alive(node.now))
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
        self._mix()

    # -- exchanges ----------------------------------------------------------------------------------------------------

    def _exchange(self) -> None:
        """Start one. Who could have been reached by now and is not there is asked in vain, and dropped: so the dead, who grow old, are forgotten."""
        node = self._node
        alive = node.membership.alive(node.now)
        tried = alive | {node_id for node_id, since in self._linked.items() if node.now - since > TRIED}
        while self._left and self._partner is None:
            self._left -= 1
            begun = self.sampler.ask(self.sampler.node_ids & tried)
            if begun is None:
                self._left = 0
            elif begun[0] not in alive:
                self._drop(begun[0])
            else:
                self._partner, entries = begun
                node.act(ExchangeViews(self._partner, entries, ANSWER))

    def came(self, event: EntriesCame) -> None:
        """An answer, or none."""
        if event.by != self._partner:
            return
        self._partner = None
        if event.refused:
            self.sampler.refused(event.by)
        elif event.entries is None:
            self._drop(event.by)
        else:
            self._saw(event.by, event.entries)
            self.sampler.take(event.by, event.entries)
            self._count()
        self._exchange()
        self._connect()

    def approached(self, event: Approached) -> None:
        """Somebody begins an exchange with this node."""
        node = self._node
        since, often = self._answered.get(event.by, (node.now, 0))
        if node.now - since >= PAUSE * max(1, self.sampler.usual // 2):
            since, often = node.now, 0
        self._answered[event.by] = since, often + 1
        if often >= self._cycles or event.by not in node.membership.alive(node.now):
            node.count.exchanges_refused += 1
            node.act(AnswerEntries(event.reply, event.by, None))
            return
        self._saw(event.by, event.entries)
        node.act(AnswerEntries(event.reply, event.by, self.sampler.reply(event.by, event.entries)))
        self._count()
        self._connect()

    def _saw(self, by: int, entries: Entries) -> None:
        """Offer everybody whom an exchange tells of to the sample."""
        self.sample.see([by, *(node_id for node_id, _ in entries[: self.sampler.most])])

    def _count(self) -> None:
        """Count the entries that a partner offered of itself beyond its share."""
        if self.sampler.own_refused:
            self._node.count.refused[OWN_ENTRIES] += self.sampler.own_refused
            self.sampler.own_refused = 0

    def _drop(self, node_id: int) -> None:
        """Forget a peer that is not there."""
        self.sampler.release(node_id)
        self.sampler.drop(node_id)

    # -- the way back -------------------------------------------------------------------------------------------------

    def _mix(self) -> None:
        """Take peers of the sample into the view: now and then, and soon where it has too few anchors, or fewer peers than half a view or a round's targets."""
        node, sampler = self._node, self.sampler
        alive = node.membership.alive(node.now)
        for peer, since in list(self._probes.items()):
            if peer in alive:
                self._anchor(peer)
            elif node.now - since > REACHED:
                del self._probes[peer]
                self.sample.failed(peer)
        if node.now >= self._mixes:
            poor = len(sampler.node_ids & alive) < max(self._s, (sampler.usual + 1) // 2)
            soon = poor or len(sampler.anchors) < sampler.most_anchors
            self._mixes = node.now + (PAUSE if soon else MIX)
            for _ in range((MOST_PROBES if poor else 1) - len(self._probes)):
                picked = self.sample.pick({*sampler.anchors, *self._probes})
                if picked is None:
                    break
                self._probes[picked] = node.now
                if picked in alive:
                    self._anchor(picked)
        self._connect()

    def _anchor(self, peer: int) -> None:
        """A probe has reached its peer."""
        del self._probes[peer]
        self.sample.answered(peer)
        self.sampler.anchor(peer)

    # -- connections --------------------------------------------------------------------------------------------------

    def met(self, node_id: int) -> None:
        """Somebody introduced itself: at the start, and when nobody is known any more, it is as good as any."""
        self.sample.see([node_id])
        if not self._node.begun or not self.sampler.entries:
            self.sampler.meet(node_id)
        if node_id not in self.sampler.node_ids:  # perhaps one of those that were looked for
            self._leaving.setdefault(node_id, self._node.now)
        self._connect()

    def _connect(self) -> None:
        """Connect to those who are known now, or probed."""
        node_ids = self.sampler.node_ids | self._probes.keys()
        for node_id in sorted(node_ids - self._linked.keys()):
            self._linked[node_id] = self._node.now
            self._node.act(Connect(node_id))
        for node_id in sorted(self._linked.keys() - node_ids):
            self._leaving.setdefault(node_id, self._node.now)
        self._leaving = {node_id: since for node_id, since in self._leaving.items() if node_id not in node_ids}

    def _let_go(self) -> None:
        """Forget who is not there, and end connections to those who are no longer known."""
        node = self._node
        for node_id in sorted(self.sampler.node_ids - {self._partner}):
            linked = self._linked.get(node_id, node.now)
            if min(node.membership.away(node_id, node.now, linked), node.now - linked) > REACHED:
                self._drop(node_id)
        self._connect()
        for node_id in [node_id for node_id, since in self._leaving.items() if node.now - since > LINGER]:
            del self._leaving[node_id]
            self._linked.pop(node_id, None)
            node.act(Disconnect(node_id))

    def _seek(self) -> None:
        """Look for those of the beginning: soon if nobody is known, otherwise now and then."""
        node = self._node
        self._found()
        nobody = not self.sampler.entries and self._partner is None
        if node.now - self._sought <= (SEEK if nobody else LOOK_BACK):
            return
        self._look_back()
        if nobody:
            node.say("knows nobody any more: looking for those that node.toml names")
            for node_id in sorted(node.membership.alive(node.now)):
                self.sampler.meet(node_id)
            self._connect()

    def _look_back(self) -> None:
        node = self._node
        self._sought = node.now
        self._missed = node.rules.founders - node.membership.alive(node.now)
        self._waits = True
        node.act(Seek())

    def _found(self) -> None:
        """Those of the beginning had time to be found: one who was not there before is known now, and nobody else is needed."""
        node = self._node
        if not self._waits or node.now - self._sought <= TRIED:
            return
        self._waits = False
        back = sorted((self._missed & node.membership.alive(node.now)) - self.sampler.node_ids)
        if back:
            self.sampler.admit(back[node.draw(len(back))])
            self._connect()
        for node_id in sorted(node.rules.founders - self.sampler.node_ids):
            self._leaving.setdefault(node_id, node.now)
