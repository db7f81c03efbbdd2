"""The partial view of one node, where nodes know only some of the others: whom it knows, connects to and sends to.

A node has a view of entries about peers and exchanges some of them with one peer about once a round. It keeps connections to the peers in its view only,
and draws the targets of a round from those that are alive. The peer sampling service decides how an exchange changes the view (`PeerSampler`; see
`peer_sampling/`).

What a single malicious member can do: fill the few entries of an exchange with nodes of its choice, a few times as often as an honest node exchanges with
the same peer. It cannot invent nodes, addresses or certificates: the driver checks that each entry is signed by the node that it is about. A flood cannot
isolate the node: it keeps probing peers of its sample (`sample`), which no flood changes, and anchors live ones in its view.
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
"""The reason given when a partner offers more entries about itself than its share."""
MOST_ENTRIES = 64
"""Most entries of an exchange."""
PAUSE = 2 * SECOND
"""The shortest time between exchanges that a node starts, however short its rounds are: each leads to new connections."""
ANSWER = 5 * SECOND
"""How long an answer is awaited."""
TRIED = 3 * SECOND
"""Time in which a new connection should be established."""
REACHED = 10 * SECOND
"""Time after which an unreachable peer is dropped from the view."""
LINGER = 4 * SECOND
"""Time for which the connection to a peer dropped from the view is kept: messages may be on their way."""
SEEK = 10 * SECOND
"""How often a node that knows nobody looks for its initial peers."""
LOOK_BACK = 60 * SECOND
"""How often every node looks for its initial peers that were away, and takes one that is back into its view, so that a split network heals."""
MIX = 4 * SECOND
"""How often a peer of the sample is probed and anchored; every PAUSE if the node has too few anchors or peers."""
MOST_PROBES = 3
"""Most peers of the sample probed at once."""
REMEMBERED = 40
"""Rounds for which the targets are remembered."""


class PartialView:
    """The peers that one node knows, is connected to, and sends to."""

    def __init__(self, node: Rounds, sampler: PeerSampler, s: int, cycles: int, sample: PeerSample) -> None:
        """Start with the sampler's view.

        Args:
            node: The node's state machine.
            sampler: Its side of the peer sampling service.
            s: Targets per round.
            cycles: Exchanges started per round.
            sample: Peers that no flood can replace.
        """
        self._node = node
        self.sampler = sampler
        self.sample = sample
        self._probes: dict[int, int] = {}  # peers of the sample being probed, and since when
        self._mixes = 0  # when to probe next
        self._s = s
        self._cycles = cycles
        self._partner: int | None = None  # peer whose answer is awaited
        self._left = 0  # exchanges still to be started in this round
        self._next = 0  # earliest time of the next exchange
        self._sought = 0  # when the initial peers were last looked for
        self._missed: frozenset[int] = frozenset()  # initial peers that were away then
        self._waits = False  # whether they still have time to connect
        self._linked: dict[int, int] = {}  # since when a connection to a peer is wanted
        self._leaving: dict[int, int] = {}  # since when it is no longer wanted
        self._answered: dict[int, tuple[int, int]] = {}  # by peer: (start of the window, exchanges answered in it)
        self._targets: dict[int, tuple[int, ...]] = {}  # by round

    # -- rounds -------------------------------------------------------------------------------------------------------

    def __call__(self, round: int) -> NodeView:
        """The node's view of a round: its targets, once the round is open; its in-neighbours are unknown."""
        return NodeView(self._targets.get(round, ()), None, bytes(8))

    def started(self) -> None:
        """Connect to the initial peers and to those in the view."""
        self._look_back()
        self._connect()

    def looking(self) -> None:
        """Look for the initial peers again if the search takes long."""
        if self._node.now - self._sought > SEEK:
            self._look_back()

    def opened(self, round: int) -> None:
        """Draw the targets of a new round, and start its exchanges."""
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
        """Start an exchange. A peer that should be connected by now but is not is dropped, so that dead peers, whose entries age, disappear."""
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
        """Handle the answer to an exchange, or its failure."""
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
        """Answer an exchange that a peer starts, or refuse it if the peer does so too often."""
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
        """Offer all peers named in an exchange to the sample."""
        self.sample.see([by, *(node_id for node_id, _ in entries[: self.sampler.most])])

    def _count(self) -> None:
        """Count the entries about itself that a partner offered beyond its share."""
        if self.sampler.own_refused:
            self._node.count.refused[OWN_ENTRIES] += self.sampler.own_refused
            self.sampler.own_refused = 0

    def _drop(self, node_id: int) -> None:
        """Forget a peer that cannot be reached."""
        self.sampler.release(node_id)
        self.sampler.drop(node_id)

    # -- the way back -------------------------------------------------------------------------------------------------

    def _mix(self) -> None:
        """Take peers of the sample into the view: now and then, and soon if there are too few anchors, or fewer live peers than half a view or than targets."""
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
        """Anchor a probed peer that was reached."""
        del self._probes[peer]
        self.sample.answered(peer)
        self.sampler.anchor(peer)

    # -- connections --------------------------------------------------------------------------------------------------

    def met(self, node_id: int) -> None:
        """Take in a peer that introduced itself, at the start or when the view is empty."""
        self.sample.see([node_id])
        if not self._node.begun or not self.sampler.entries:
            self.sampler.meet(node_id)
        if node_id not in self.sampler.node_ids:  # perhaps one of the initial peers
            self._leaving.setdefault(node_id, self._node.now)
        self._connect()

    def _connect(self) -> None:
        """Connect to peers in the view and probed ones; schedule the others for disconnection."""
        node_ids = self.sampler.node_ids | self._probes.keys()
        for node_id in sorted(node_ids - self._linked.keys()):
            self._linked[node_id] = self._node.now
            self._node.act(Connect(node_id))
        for node_id in sorted(self._linked.keys() - node_ids):
            self._leaving.setdefault(node_id, self._node.now)
        self._leaving = {node_id: since for node_id, since in self._leaving.items() if node_id not in node_ids}

    def _let_go(self) -> None:
        """Drop peers that stay unreachable, and close connections that are no longer needed."""
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
        """Look for the initial peers: soon if nobody is known, otherwise now and then."""
        node = self._node
        self._found()
        nobody = not self.sampler.entries and self._partner is None
        if node.now - self._sought <= (SEEK if nobody else LOOK_BACK):
            return
        self._look_back()
        if nobody:
            node.say("knows no peers any more: looking for those in node.toml")
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
        """Once the initial peers had time to connect, take one that was away before into the view, and release the others."""
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
