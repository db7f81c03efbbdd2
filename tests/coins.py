"""Simulated schedules in which every node draws its targets by itself: those of `simulated`, with a committed coin or a private one.

Members that lie send to everybody, for the open round and for all rounds that are kept in advance, with links that are right, wrong or of
another chain. Besides the laws of `simulated`:

  committed    a message counts only if its sender has drawn the receiver, by the chain that it committed to at first
  private      no more messages count in a round than `most_private` says
"""

import gc
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import epidemic as ep
import simulated
from epidemic.protocol import events as e
from epidemic.protocol.commitment import Chain, Commitments
from epidemic.protocol.rounds import NodeView, Rounds
from epidemic.protocol.rules import most_private
from epidemic.runtime.plan import committed_targets

SECOND = e.SECOND
RUN = bytes(16)
COINS = ("committed", "private")


@lru_cache(maxsize=4096)
def chain(node, rounds, number=0):
    """The chain of a node; a liar has further ones by other numbers."""
    return Chain(bytes([number]) * 32, RUN, node, rounds)


@lru_cache(maxsize=65536)
def link(node, rounds, round, number=0):
    """What a node reveals in a round."""
    return chain(node, rounds, number).link(round)


@lru_cache(maxsize=65536)
def targets(n, s, node, round, shown):
    """Whom a node has drawn that reveals this."""
    return committed_targets(ep.Experiment(nodes=n, topology=ep.ELLocal(s)), node, round, shown)


class World(simulated.World):
    """Time, nodes, and coins that each of them flips by itself."""

    def __init__(self, schedule, coin, protocol=Rounds, liars=None):
        super().__init__(schedule, self._made)
        self.coin, self.kind = coin, protocol
        self.liars = set(liars or schedule.liars)
        self.saved = {}  # what nodes knew of others' commitments when they were saved
        self.counted = Counter()  # messages that counted at honest nodes, by sender
        self.trained = Counter()  # rounds by node

    def targets(self, node, round, shown):
        return targets(self.what.n, self.what.s, node, round, shown)

    def link(self, node, round, number=0):
        return link(node, self.what.rounds, round, number)

    def _made(self, rules, view, draw, token, **kept):
        if self.coin == "private":
            return self.kind(replace(rules, most=most_private(self.what.s)), view, draw, token, **kept)
        own = chain(rules.node_id, rules.rounds)

        def drawn(round):
            shown = self.link(rules.node_id, round)
            return NodeView(self.targets(rules.node_id, round, shown), None, shown)

        saved = self.saved.get(rules.node_id, b"") if kept["done"] else b""
        coin = Commitments(own, RUN, rules.node_id, rules.rounds, self.targets, saved)
        return self.kind(rules, drawn, draw, token, coin=coin, **kept)

    def save(self, node):
        super().save(node)
        if self.coin == "committed":
            self.saved[node.node_id] = node.protocol.coin.saved

    def step(self, node, event):
        if self.coin == "committed" and isinstance(event, e.Introduced) and not event.commitment:
            event = replace(event, commitment=chain(event.node_id, self.what.rounds).commitment)
        super().step(node, event)

    def on_train(self, node, action):
        super().on_train(node, action)
        self.trained[node.node_id] += 1

    # -- members that lie ---------------------------------------------------------------------------------------------

    def lie(self):
        if self.random.random() < 0.5:
            super().lie()
            return
        for node_id in sorted(self.liars):
            self.flood(self.nodes[node_id])

    def flood(self, liar, only_true=False):
        """It sends to everybody, as early as anybody keeps a message."""
        for victim in self.nodes:
            if not liar.running or victim.node_id in self.liars or not self.open(liar.node_id, victim.node_id):
                continue
            if not only_true and victim.running and self.coin == "committed" and self.random.random() < 0.3:
                other = chain(liar.node_id, self.what.rounds, 1).commitment
                self.step(victim, e.Introduced(liar.node_id, liar.node_id, liar.token, 0, 0, commitment=other))
            here = victim.protocol.round if victim.running else 0
            for round in range(max(0, here - 2), min(here + 10, self.what.rounds)):
                self.forge(liar, victim, round, only_true)

    def forge(self, liar, victim, round, only_true):
        if not victim.running:
            return
        graph = bytes(8)
        if self.coin == "committed":
            wrong = 0 if only_true else self.random.choice([0, 0, 0, 1])
            of = round if only_true or self.random.random() < 0.8 else self.random.randrange(self.what.rounds)
            graph = self.link(liar.node_id, of, wrong)
        self.messages["sent"] += 1
        self.deliver(victim.node_id, liar.node_id, round, graph, (round, liar.node_id, victim.node_id))

    # -- laws ---------------------------------------------------------------------------------------------------------

    def check_inbox(self, node, round, messages):
        super().check_inbox(node, round, messages)
        senders = [sender for sender, _ in messages]
        if node.node_id not in self.liars:
            self.counted.update(senders)
        if self.coin == "private":
            assert len(senders) <= most_private(self.what.s), f"{len(senders)} messages count in one round"
            return
        for sender in senders:
            first = node.protocol.coin._known[sender].commitment if sender in node.protocol.coin._known else None
            assert first is not None, f"a message counts of node {sender}, which has committed to nothing"
            (number,) = (k for k in (0, 1) if chain(sender, self.what.rounds, k).commitment == first)
            drawn = self.targets(sender, round, self.link(sender, round, number))
            assert node.node_id in drawn, f"a message counts of node {sender}, which has drawn {drawn}"

    def check_jump(self, node, round):
        if len(self.liars) >= max(2, -(-(self.what.n - 1) // 3)):  # as many as are believed
            return
        others = (other.reached for other in self.nodes if other is not node and other.node_id not in self.liars)
        real = max(node.reached, *others) if self.what.n > 2 else self.what.rounds
        assert round <= real + 1, f"node {node.node_id} goes to round {round}, but the others are in {real}"
        node.reached = max(node.reached, round)

    @staticmethod
    def said(protocol):
        return protocol.count.refused["implausible-handshake"] + protocol.count.refused["other-commitment"]

    @property
    def share(self):
        """Of the messages that counted at honest nodes, the share of those that lie."""
        return sum(self.counted[node_id] for node_id in self.liars) / max(1, sum(self.counted.values()))


def drawn(seed):
    """A schedule in which every node draws its targets by itself, and the coin that it does so with."""
    schedule = simulated.drawn(seed)
    close = "adaptive" if schedule.close == "barrier" else schedule.close
    s = min(schedule.s, schedule.n - 1)
    return replace(schedule, topology="el-local", private=True, cap=None, close=close, s=s), COINS[seed % 2]


def run(seed, protocol=Rounds):
    """Play the schedule of a seed and check the laws; what came out."""
    gc.disable()
    try:
        schedule, coin = drawn(seed)
        world = World(schedule, coin, protocol).play()
        world.check()
        if schedule.honest_but_one:
            world.check_liar(World(replace(schedule, liar=None, ids=()), coin, protocol).play())
        return world
    finally:
        gc.enable()


def flooded(coin, close, n=16, s=2, liars=2, rounds=60, seed=3, protocol=Rounds):
    """A calm cluster in which the last `liars` members do what honest ones do, and besides send to everybody, early, again and again."""
    schedule = simulated.Schedule(
        seed, n, rounds, "el-local", s, close, True, None, deadline=5 * SECOND, patience=20 * SECOND,
        compute=[20_000 + 2_000 * i for i in range(n)], delay=(1_000, 5_000), loss=0.0, doubling=0.0,
    )  # fmt: skip
    world = World(schedule, coin, protocol, set(range(n - liars, n)))

    def go_on():
        for node_id in sorted(world.liars):
            world.flood(world.nodes[node_id], only_true=True)
        if world.up:
            world.at(world.now + SECOND // 10, go_on)

    world.at(SECOND, go_on)
    return world.play()
