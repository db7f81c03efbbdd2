"""Runs under the simulated clock: what an event costs, training without rounds, many nodes, and how much is held in memory.

Dry runs are measured against pushing as many tuples onto a heap and popping them all, GN-LeNet against the round engine.
"""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import time
from heapq import heappop, heappush
from typing import Any

import epidemic as ep
from benchmarks.memory import peak_gigabytes
from benchmarks.sizes import sized
from benchmarks.timing import interleaved, verdict
from benchmarks.training import BATCH, NODES, STEPS, pictures
from epidemic.algorithms.ad_psgd import ADPSGD
from epidemic.algorithms.async_el import AsyncEL
from epidemic.algorithms.divshare import DivShare
from epidemic.algorithms.gossip_learning import GossipLearning
from epidemic.clock import Clock, CloseDeadline, Links, PerNodeCompute
from epidemic.runtime.lazy_models import LazyModel
from epidemic.simulator.dry_run import dry_work

METHODS: dict[str, dict[str, Any]] = {
    "async-el": {"algorithm": AsyncEL()},
    "divshare": {"algorithm": DivShare(), "rounds": 3},
    "gossip-learning": {"algorithm": GossipLearning(period=0.1), "topology": ep.ELLocal(1), "rounds": sized(60, 3)},
    "ad-psgd": {"algorithm": ADPSGD(), "topology": ep.ELLocal(1), "rounds": sized(60, 3)},
    "rounds, neighbours": {"algorithm": ep.LocalSGD()},
    "rounds, deadline": {"algorithm": ep.LocalSGD(), "close": CloseDeadline(seconds=0.05)},
}


def _experiment(
    nodes: int = sized(1000, 20), rounds: int = sized(20, 3), close: Any = None, latency: float = 0.02, **settings: Any
) -> Any:
    clock = Clock(
        compute=PerNodeCompute(median=0.1, sigma=0.3),
        links=Links(uplink=100.0, latency=latency),
        **({} if close is None else {"close": close}),
    )
    given = {"topology": ep.ELLocal(7), "eval": ep.Eval(every=rounds, samples=100), **settings}
    return ep.Experiment(nodes=nodes, rounds=rounds, clock=clock, **given)


def _events() -> list[bool]:
    reached = []
    for name, settings in METHODS.items():
        experiment = _experiment(**settings)
        work = dry_work(experiment, 1, 10_000)
        for _ in work.run():
            pass
        chance, events = random.Random(1), work.events
        tuples = [(chance.randrange(work.now), 2, i % 1000, i, None) for i in range(events)]

        def dry(experiment=experiment) -> None:
            for _ in dry_work(experiment, 1, 10_000).run():
                pass

        def heap(tuples=tuples) -> None:
            waiting: list[Any] = []
            for one in tuples:
                heappush(waiting, one)
            while waiting:
                heappop(waiting)

        base, took = interleaved(heap, dry, repeat=5)
        what = f"  {name}: {took / events * 1e6:.1f} us an event, relative to {base / events * 1e6:.2f} us for push and pop"
        reached.append(verdict(what, took / base, 25, at_most=True))
    return reached


class _Pace(ep.Callback):
    """Seconds of a round, from the end of the first to that of the last."""

    def __init__(self) -> None:
        self._told: list[tuple[int, float]] = []

    def advanced(self, rounds_done: int, x: Any) -> None:
        self._told.append((rounds_done, time.perf_counter()))

    @property
    def seconds(self) -> float:
        (first, began), (last, ended) = self._told[0], self._told[-1]
        return (ended - began) / (last - first)


def _seconds(experiment: ep.Experiment) -> float:
    pace = _Pace()
    ep.simulate(experiment, callbacks=[pace])
    return pace.seconds


def _training() -> list[bool]:
    settings = {"lr": 0.01, "local_steps": STEPS, "batch_size": BATCH}
    common: dict[str, Any] = {
        "nodes": NODES, "rounds": 4, "topology": ep.ELLocal(7), "data": pictures(), "partition": ep.IID(), "model": ep.GNLeNet(),
        "eval": ep.Eval(every=4, samples=10),
    }  # fmt: skip
    in_rounds = ep.Experiment(algorithm=ep.LocalSGD(**settings), **common)
    free = _experiment(algorithm=AsyncEL(**settings), **common)
    pairs = [(_seconds(in_rounds), _seconds(free)) for _ in range(sized(2, 1))]
    rounds, without = (NODES * STEPS / min(times) for times in zip(*pairs, strict=True))
    print(f"GN-LeNet, 96 nodes: {rounds:.0f} node-steps/s in rounds, {without:.0f} of async-el")
    return [verdict("  async-el relative to the round engine", without / rounds, 0.9, at_most=False)]


def _nodes() -> list[bool]:
    n = sized(10_000, 100)
    common: dict[str, Any] = {
        "nodes": n, "rounds": 3, "data": ep.Synthetic(samples=8 * n), "partition": ep.IID(), "model": ep.Logistic(),
        "eval": ep.Eval(every=3, samples=10),
    }  # fmt: skip
    settings = {"lr": 0.05, "batch_size": 8}
    print(f"logistic regression, {n} nodes, s = 7:")
    for name, algorithm in (("rounds, neighbours", ep.LocalSGD(**settings)), ("async-el", AsyncEL(**settings))):
        print(f"  {name}: {_seconds(_experiment(algorithm=algorithm, **common)):.2f} s a round")
    return [True]


FEW, SHORT = sized(200, 10), sized(6, 2)
SIZES = {
    "": (FEW, SHORT, 0.02),
    "more nodes": (4 * FEW, SHORT, 0.02),
    "more rounds": (FEW, 4 * SHORT, 0.02),
    "more messages": (FEW, SHORT, 0.5),
}
"""Of the runs whose memory is compared: nodes, rounds, latency; a training takes a tenth of a second."""


def _wide(nodes: int, rounds: int, latency: float) -> ep.Experiment:
    """Models of 0.25 MB."""
    return _experiment(
        nodes, rounds, latency=latency, algorithm=AsyncEL(lr=0.01, batch_size=2), model=ep.MLP((850,)), data=ep.Digits(), partition=ep.IID(),
    )  # fmt: skip


class _Held(ep.Callback):
    """The most models that anybody held at the end of a round: promises, whether or not they are computed."""

    most = 0

    def advanced(self, rounds_done: int, x: Any) -> None:
        self.most = max(self.most, sum(isinstance(one, LazyModel) for one in gc.get_objects()))


def _memory() -> list[bool]:
    held, peak = {}, {}
    print("async-el with models of 0.25 MB, s = 7:")
    for name, (nodes, rounds, latency) in SIZES.items():
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.clock", name], capture_output=True, text=True, check=True
        )
        held[name], peak[name] = map(float, done.stdout.split())
        print(
            f"  {nodes} nodes, {rounds} rounds, latency {latency:g} s: {held[name]:.0f} models held, {peak[name]:.2f} GB at the peak"
        )
    return [
        verdict("  models held with four times as many nodes", held["more nodes"] / held[""], 4.4, at_most=True),
        verdict("  models held in four times as many rounds", held["more rounds"] / held[""], 1.1, at_most=True),
        verdict("  peak memory of four times as many rounds", peak["more rounds"] / peak[""], 1.25, at_most=True),
    ]


def run() -> bool:
    print("dry runs under the simulated clock, 1,000 nodes:")
    return all([*_events(), *_training(), *_nodes(), *_memory()])


if __name__ == "__main__":
    watch = _Held()
    ep.simulate(_wide(*SIZES[sys.argv[1]]), callbacks=[watch])
    print(watch.most, peak_gigabytes())
