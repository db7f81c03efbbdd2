"""Simulated schedules of nodes that know a part of the others: those of `simulated`, where who is not linked neither sees nor hears each other.

A link is there while one of the two has a line to the other. A line to somebody who is not there waits, as a real one does. Besides the laws of
`simulated`:

  views        nobody knows itself or somebody twice (Spray: more than twice), nor more than its service allows; a liar's exchanges change no more than anybody else's
  connections  a node has lines to those in its view, those that just left it and those of the beginning, and to nobody else
"""

import gc
from collections import Counter
from dataclasses import replace

import simulated
from epidemic.peer_sampling import Cyclon, Jelasity, Spray
from epidemic.protocol import events as e
from epidemic.protocol.partial_view import LINGER, OWN_ENTRIES, PAUSE, PartialView
from epidemic.protocol.rounds import PartialKnowledge, Rounds
from epidemic.protocol.sample import PeerSample

SERVICES = (
    Cyclon(size=3, shuffle=2),
    Cyclon(size=5, shuffle=3, cycles=2),
    Jelasity(size=4),
    Jelasity(size=4, propagation="push"),
    Spray(a=2),
)


class World(simulated.World):
    """Time, nodes, and lines between some of them."""

    def __init__(self, schedule, service, protocol=Rounds):
        super().__init__(schedule, self._made)
        self.service, self.kind = service, protocol
        self.lines = {i: set() for i in range(schedule.n)}
        self.views = {}  # of nodes when they were saved
        self.samples = {}
        self.exchanges = 0
        self.do |= {
            e.Connect: self.on_connect, e.Disconnect: self.on_disconnect, e.Seek: self.on_seek,
            e.ExchangeViews: self.on_exchange, e.AnswerEntries: self.on_entries,
        }  # fmt: skip

    def first(self, node_id):
        """Whom a node is told of."""
        n, late = self.what.n, self.what.late
        others = [(node_id + k) % n for k in range(1, n)]
        return frozenset([i for i in others if i not in late][:2])

    def _made(self, rules, view, draw, token, **kept):
        sampler = self.service.sampler(rules.nodes, rules.node_id, draw)
        if kept["done"]:
            sampler.entries = list(self.views.get(rules.node_id, []))
        rules = replace(rules, founders=self.first(rules.node_id), partial=True)
        sample = PeerSample(rules.node_id, draw, self.samples.get(rules.node_id, ()) if kept["done"] else ())
        known = PartialKnowledge(sampler, self.what.s, self.service.cycles, sample)
        return self.kind(rules, known, draw, token, **kept)

    def save(self, node):
        super().save(node)
        self.views[node.node_id] = list(node.protocol.known.sampler.entries)
        self.samples[node.node_id] = node.protocol.known.sample.saved

    def end(self, node, outcome, noticed=0):
        self.check_view(node)
        self.lines[node.node_id] = set()
        super().end(node, outcome, noticed)

    def step(self, node, event):
        super().step(node, event)
        if node.running:
            self.check_view(node)

    # -- links --------------------------------------------------------------------------------------------------------

    def open(self, a, b):
        return super().open(a, b) and (b in self.lines[a] or a in self.lines[b])

    def link(self, node, node_id):
        if node_id != node.node_id and node_id not in self.lines[node.node_id]:
            self.lines[node.node_id].add(node_id)
            other = self.nodes[node_id]
            if other.running:
                self.show(node, other)
                self.show(other, node)

    def on_connect(self, node, action):
        self.link(node, action.node_id)

    def on_seek(self, node, action):
        for node_id in self.first(node.node_id):
            self.link(node, node_id)

    def on_disconnect(self, node, action):
        self.lines[node.node_id].discard(action.node_id)
        other = self.nodes[action.node_id]
        if not self.open(node.node_id, action.node_id):
            self.hide(node, other.node_id, other.token, 0)
            self.hide(other, node.node_id, node.token, self.delay())

    # -- exchanges ----------------------------------------------------------------------------------------------------

    def on_exchange(self, node, action):
        self.exchanges += 1
        to = action.to

        def reach(other, reply):
            self.step(
                other,
                e.Approached(
                    node.node_id,
                    action.entries,
                    lambda entries: reply(e.EntriesCame(to, entries, refused=entries is None)),
                ),
            )

        self.question(node, to, action.patience, reach, e.EntriesCame(to, None))

    def on_entries(self, node, action):
        action.reply(action.entries)

    def lie(self):
        liar = self.nodes[self.what.liar]
        victim = self.nodes[self.random.randrange(self.what.n)]
        if liar.running and victim.running and victim is not liar and self.random.random() < 0.5:
            self.link(liar, victim.node_id)
            before = victim.protocol.known.sampler.node_ids
            for _ in range(10):
                entries = tuple((self.random.randrange(self.what.n), self.random.choice([0, 10**9])) for _ in range(40))
                self.step(victim, e.Approached(liar.node_id, entries, lambda _: None))
                if not victim.running:
                    return
            new = victim.protocol.known.sampler.node_ids - before
            most = self.service.cycles * victim.protocol.known.sampler.most
            assert len(new) <= most, f"a liar brought {len(new)} entries into a view"
        super().lie()

    # -- laws ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def said(protocol):
        """Refused entries are no messages."""
        return simulated.World.said(protocol) + protocol.count.refused[OWN_ENTRIES]

    def check_view(self, node):
        known: PartialView = node.protocol.known
        node_ids = [node_id for node_id, _ in known.sampler.entries]
        assert node.node_id not in node_ids, f"node {node.node_id} knows itself"
        assert all(0 <= node_id < self.what.n for node_id in node_ids)
        if not isinstance(self.service, Spray):
            assert len(node_ids) == len(set(node_ids)) <= min(self.service.size, self.what.n - 1)
        else:  # a view may be larger than a network of few
            most = max(2, -(-4 * known.sampler.usual // (self.what.n - 1)))
            copies = max(Counter(node_ids).values(), default=0)
            assert copies <= most, f"node {node.node_id} has {copies} entries of one peer"
        lately = set(known._leaving) | set(known._linked)
        assert node.node_id == self.what.liar or self.lines[node.node_id] <= set(node_ids) | lately | self.first(
            node.node_id
        ), "a line to somebody who is not known"
        assert len(known._targets) <= 40

    def limit(self):
        return super().limit() + 10 * (PAUSE + LINGER)


def drawn(seed):
    """A schedule of nodes that know a part of the others, and their service."""
    schedule = simulated.drawn(seed)
    service = SERVICES[seed % len(SERVICES)]
    close = "adaptive" if schedule.close == "barrier" else schedule.close
    n = max(4, schedule.n)
    compute = (schedule.compute * 2)[:n]
    s = min(schedule.s, 3, n - 1)
    return replace(schedule, n=n, compute=compute, topology="el-local", private=True, close=close, s=s, ids=()), service


def run(seed, protocol=Rounds):
    """Play the schedule of a seed and check the laws; what came out."""
    gc.disable()
    try:
        schedule, service = drawn(seed)
        world = World(schedule, service, protocol).play()
        world.check()
        if schedule.honest_but_one:
            world.check_liar(World(replace(schedule, liar=None), service, protocol).play())
        return world
    finally:
        gc.enable()
