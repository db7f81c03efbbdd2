"""Simulated schedules of nodes that know a part of the others while some members flood exchanges with entries of themselves.

Liars take part in rounds as everybody does. They connect to all honest nodes, begin exchanges with each of them four times as often as an honest node
begins any, and fill these and all their answers with entries of themselves and of each other. They work together. Law, besides those of `partial`:

  isolation   after the last exchange every honest node has an entry of an honest node in its view, with up to a tenth of liars that are fewer than a view's entries
  way back    however many they are, no honest node is without one for longer than ten seconds

`python tests/flooding.py` prints the table of docs/peer-sampling.md: which share of the entries of honest nodes liars hold.
"""

import gc
import sys
from collections import Counter
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))
import partial
import simulated
from epidemic.core.rng import Streams
from epidemic.peer_sampling import Cyclon, Jelasity, Spray
from epidemic.protocol import events as e
from epidemic.protocol.events import SECOND
from epidemic.protocol.partial_view import PAUSE
from epidemic.protocol.rounds import Rounds

SERVICES = (
    Cyclon(size=3, shuffle=2),
    Cyclon(size=4, shuffle=2),
    Jelasity(size=4),
    Jelasity(size=4, discard="healer"),
    Jelasity(size=4, propagation="push"),
    Spray(a=1),
    Spray(a=2),
)
WAYS = ("young", "old", "starve")
"""How liars lie: their entries seem new, so that they are kept; or old, so that they are asked; or they answer nothing, so that views shrink."""


class World(partial.World):
    """Time, nodes, and liars among them."""

    def __init__(self, schedule, service, liars, way, protocol=Rounds):
        super().__init__(schedule, service, protocol)
        self.liars, self.way = frozenset(liars), way
        self.alone = Counter()  # how often in a row nodes were seen to know liars only
        self.longest = 0
        self.shares = []  # of liars in the views of honest nodes, every two seconds
        start = service.start(schedule.n, Streams(schedule.seed)("views-start")).ids.tolist()
        self.told = [frozenset({(i + 1) % schedule.n, *row} - {i, -1}) for i, row in enumerate(start)]

    def first(self, node_id):
        """Whom a node is told of: as `epidemic cluster init` does it."""
        return self.told[node_id]

    def play(self):
        end = 40 * SECOND
        for time in range(SECOND, end, PAUSE // 4):
            self.at(time, self.flood)
        for time in range(PAUSE, end, PAUSE):
            self.at(time, self.look)
        return super().play()

    @property
    def honest(self):
        return [node for node in self.nodes if node.node_id not in self.liars and node.running]

    def look(self):
        """Note which share of entries liars hold, once they had time, and who knows liars only."""
        self.alone = Counter({node_id: self.alone[node_id] + 1 for node_id in self.isolated})
        self.longest = max([self.longest, *self.alone.values()])
        if self.now < 20 * SECOND:
            return
        entries = [node_id for node in self.honest for node_id, _ in node.protocol.known.sampler.entries]
        if entries:
            self.shares.append(sum(node_id in self.liars for node_id in entries) / len(entries))

    @property
    def isolated(self):
        """Honest nodes that know no honest one."""
        return [node.node_id for node in self.honest if node.protocol.known.sampler.node_ids <= self.liars]

    def false(self, liar, receiver):
        """What a liar says to a node: as many entries of liars as anybody may send."""
        others = sorted(self.liars - {liar})
        self.random.shuffle(others)
        most = self.nodes[receiver].protocol.known.sampler.most
        age = 10**9 if self.way == "old" else 0
        return tuple((node_id, age) for node_id in ([liar, *others] * most)[:most])

    def flood(self):
        """Every liar begins an exchange with every honest node."""
        for node_id in sorted(self.liars):
            liar = self.nodes[node_id]
            for victim in self.honest:
                if liar.running:
                    self.link(liar, victim.node_id)
                    self.step(victim, e.Approached(node_id, self.false(node_id, victim.node_id), lambda _: None))

    def on_exchange(self, node, action):
        if node.node_id in self.liars:  # it begins none of its own, but those of `flood`
            self.later(1, node, e.EntriesCame(action.to, None, refused=True))
        else:
            super().on_exchange(node, action)

    def on_entries(self, node, action):
        if node.node_id in self.liars and action.entries is not None:
            action.reply(() if self.way == "starve" else self.false(node.node_id, action.to))
        else:
            super().on_entries(node, action)

    def check_view(self, node):
        if node.node_id not in self.liars:
            super().check_view(node)


def schedule(seed, n, s=2, seconds=40):
    """Nothing is wrong but the liars: rounds of half a second."""
    return simulated.Schedule(
        seed, n, 2 * seconds + 20, "el-local", s, "adaptive", True, None, deadline=2 * SECOND, patience=20 * SECOND,
        compute=[480_000] * n, delay=(1_000, 2_000), loss=0.0, doubling=0.0, save_every=1000,
    )  # fmt: skip


def drawn(seed):
    """A schedule, its service, its liars and how they lie: one of up to 19 nodes, two of up to 24."""
    random = Random(seed)
    n = random.choice([10, 12, 16, 20, 24])
    liars = random.sample(range(n), n // 10)
    return schedule(seed, n), SERVICES[seed % len(SERVICES)], liars, WAYS[seed // len(SERVICES) % len(WAYS)]


def run(seed, protocol=Rounds):
    """Play the schedule of a seed and check the laws; what came out."""
    gc.disable()
    try:
        return play(*drawn(seed), protocol)
    finally:
        gc.enable()


def play(what, service, liars, way, protocol=Rounds):
    """Play it; liars that leave honest nodes without an honest entry break the law."""
    world = World(what, service, liars, way, protocol)
    found, honest = [], []
    world.at(40 * SECOND - 1, lambda: (found.extend(world.isolated), honest.extend(world.honest)))
    world.play()
    assert len(honest) == what.n - len(liars), "a node had ended before the last exchange"
    assert world.longest <= 10 * SECOND // PAUSE, (
        f"{way}: a node knows liars only for {world.longest} looks under {service}"
    )
    usual = service.sampler(what.n, 0, lambda _: 0).usual
    assert not found or len(liars) >= usual, (
        f"{way}: liars {sorted(liars)} of {what.n} isolate nodes {found} under {service}"
    )
    world.check()
    return world


TABLE = (
    (16, 1, (Cyclon(size=4, shuffle=2), Jelasity(size=4), Spray(a=2))),
    (16, 3, (Cyclon(size=4, shuffle=2), Jelasity(size=4), Spray(a=2))),
    (40, 2, (Cyclon(size=6, shuffle=3), Jelasity(size=6), Spray(a=2))),
    (40, 4, (Cyclon(size=6, shuffle=3), Jelasity(size=6), Spray(a=2))),
)


def measure():
    """Print the share of liars' entries and of isolated honest nodes, of the way of lying that is the worst: three seeds of 16 nodes, one of 40."""
    print("| nodes | liars | service | fair share | entries of liars | isolated |\n|---|---|---|---|---|---|")
    for n, f, services in TABLE:
        for service in services:
            worst = {}
            for way in WAYS:
                shares, isolated, honest = [], 0, 0
                for seed in range(3 if n == 16 else 1):
                    world, found = World(schedule(seed, n), service, Random(seed).sample(range(n), f), way), []
                    world.at(
                        40 * SECOND - 1,
                        lambda world=world, found=found: found.append((len(world.isolated), len(world.honest))),
                    )
                    world.play()
                    shares.append(sum(world.shares) / len(world.shares))
                    isolated, honest = isolated + found[0][0], honest + found[0][1]
                worst[way] = (sum(shares) / len(shares), isolated / honest)
            share, alone = max(value[0] for value in worst.values()), max(value[1] for value in worst.values())
            name = type(service).__name__.lower()
            size = service.size if hasattr(service, "size") else f"a = {service.a}"
            told = " / ".join(f"{value[0]:.0%}" for value in worst.values())
            print(
                f"| {n} | {f} | {name}, {size} | {f / (n - 1):.0%} | {share:.0%} ({told}) | {alone:.0%} |", flush=True
            )


if __name__ == "__main__":
    measure()
