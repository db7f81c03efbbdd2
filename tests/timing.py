"""A world of a few nodes for tests of the clock, and clockworks in it that compute nothing."""

import numpy as np

from epidemic.core.rng import Streams
from epidemic.runtime.lazy_models import GivenModel, LazyModels
from epidemic.simulator.assembly import Sizes, assemble
from epidemic.simulator.dry_run import DrySeed
from epidemic.simulator.trace import Log

SECOND = 10**6


class World:
    """Everything is said: seconds of a step by node, bytes a second of links, seconds of latency, and when nodes are there."""

    def __init__(self, steps, *, up=np.inf, down=np.inf, latency=0.0, on=None):
        n = len(steps)
        self._steps = [round(step * SECOND) for step in steps]
        self.uplink = np.full(n, up) / SECOND
        self.downlink = np.full(n, down) / SECOND
        self._latency = round(latency * SECOND)
        self._on = {node: [round(t * SECOND) for t in times] for node, times in (on or {}).items()}

    def step_cost(self, node, count):
        return self._steps[node]

    def latency(self, sender, receiver):
        return self._latency

    def on_at_start(self, node):
        return True

    def next_change(self, node, after):
        return next((t for t in self._on.get(node, []) if t > after), None)


def dry(experiment, world, *, size=10**6, seed=1, header=0):
    """The clockwork in this world, with messages of so many bytes, and what it writes down."""
    promises, log = LazyModels(dry=True), Log()
    work = assemble(
        DrySeed(experiment, Streams(seed)), Sizes(size // 4, 4, size), promises, promises.new(GivenModel(None)),
        world=world, header_bytes=header, log=log,
    )  # fmt: skip
    return work, log


def play(work):
    """Let it run to its end."""
    for _ in work.run():
        pass
    return work
