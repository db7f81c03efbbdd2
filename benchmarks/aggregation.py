"""Aggregators beside the mean: of 16 models of GN-LeNet's size that each hear 7 others, of 100 small ones, of one node, and beside training."""

from __future__ import annotations

import time

import numpy as np
import torch

import epidemic as ep
from benchmarks.sizes import sized
from benchmarks.timing import interleaved, verdict
from benchmarks.training import BATCH, NODES, STEPS, pictures
from epidemic.aggregation import Aggregator, Heard, made
from epidemic.core.workers import Workers
from epidemic.mixing import weights
from epidemic.runtime.aggregating import aggregate_one
from epidemic.runtime.inbox import MatrixInbox

S = 7
LARGE = (16, sized(89_834, 1_000))
SMALL = (100, 650)
RULES: dict[str, Aggregator] = {
    "mean": ep.Mean(),
    "trimmed mean, f = 1": ep.TrimmedMean(f=1),
    "trimmed mean, f = 2": ep.TrimmedMean(f=2),
    "median": ep.Median(),
    "meamed, f = 2": ep.MeaMed(f=2),
    "nearest, f = 2": ep.Nearest(f=2),
    "clipped, f = 2": ep.Clipped(f=2),
    "multi-krum, f = 2": ep.MultiKrum(f=2),
    "geometric median": ep.GeometricMedian(),
    "nnm and trimmed mean, f = 2": ep.TrimmedMean(f=2, before="nnm"),
    "w-msr, f = 2": ep.WMSR(f=2),
}
TARGETS = {"trimmed mean, f = 2": 1.5, "nnm and trimmed mean, f = 2": 2.5, "nearest, f = 2": 0.6}
"""Milliseconds of one node and thread that has 8 models of 89,834 numbers."""


def run() -> bool:
    """Both sizes, on one thread."""
    workers = Workers(1)
    large, small = _times(*LARGE, workers), _times(*SMALL, workers)
    single = _single(sized(89_834, 1_000))
    workers.close()
    slowest = max(large.values())
    reached = [
        *(verdict(f"{name}, one node, ms", 1e3 * single[name], most, at_most=True) for name, most in TARGETS.items()),
        verdict("the slowest rule relative to the mean, 8 large models", slowest / large["mean"], 45, at_most=True),
        verdict("PyTorch's sort relative to the median", _sorting(*LARGE) / large["median"], 8, at_most=False),
        verdict(
            "the slowest rule relative to the mean, small models", max(small.values()) / small["mean"], 80, at_most=True
        ),
        verdict("a round with nnm and trimmed mean relative to one with mean", _round_ratio(), 1.15, at_most=True),
    ]
    return all(reached)


def _inputs(n: int, d: int) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(1))


def _times(n: int, d: int, workers: Workers) -> dict[str, float]:
    """Seconds of each rule for a round of n models of d numbers."""
    graph, rows = ep.ELOracle(S).graph(n, 0, ep.Streams(1)), _inputs(n, d)
    spare = {"x": torch.empty_like(rows)}

    def exchange(rule: Aggregator) -> MatrixInbox:
        w, rule = weights("uniform", graph), made(rule)
        return MatrixInbox({"x": rows}, w, torch.arange(n).numpy(), workers, lambda name, _: spare[name], rule=rule)

    found = interleaved(*(lambda rule=rule: exchange(rule).aggregate("x") for rule in RULES.values()), repeat=20)
    times = dict(zip(RULES, found, strict=True))
    for name, seconds in times.items():
        print(f"{n} models of {d:,}: {name} {1e3 * seconds:.2f} ms, {seconds / times['mean']:.1f} times the mean")
    return times


def _single(d: int) -> dict[str, float]:
    """Seconds of one node that has received S models, one by one."""
    own, *received = _inputs(S + 1, d).unbind()
    heard = Heard(own, own[None][:0], np.arange(S), np.full(S + 1, 1 / (S + 1)), np.zeros(S, dtype=np.int64))
    out = torch.empty_like(own)
    works = [lambda rule=rule: aggregate_one(made(rule), own, received, heard, out) for rule in RULES.values()][1:]
    times = dict(zip(list(RULES)[1:], interleaved(*works, repeat=40), strict=True))
    for name, seconds in times.items():
        print(f"one node, {S + 1} models of {d:,}: {name} {1e3 * seconds:.2f} ms")
    return times


def _round_ratio() -> float:
    """How long a round of 96 GN-LeNets takes with nearest-neighbour mixing and a trimmed mean, relative to one with the mean."""
    rules = [ep.Mean(), ep.TrimmedMean(f=2, before="nnm")]

    def seconds(rule: Aggregator) -> float:
        timer = _Timer()
        what = ep.Experiment(
            nodes=NODES, rounds=sized(4, 1), topology=ep.ELOracle(min(S, NODES - 2)), data=data, partition=ep.IID(), model=ep.GNLeNet(),
            algorithm=ep.LocalSGD(lr=0.01, local_steps=STEPS, batch_size=BATCH), aggregation=rule, eval=ep.Eval(every=100, samples=8),
            runtime=ep.Runtime(threads=1, strategy="per-node"),
        )  # fmt: skip
        ep.simulate(what, callbacks=[timer])
        return timer.fastest

    data = pictures()
    plain, robust = (seconds(rule) for rule in rules)
    print(f"a round of {NODES} GN-LeNets on one thread: mean {plain:.2f} s, nnm and trimmed mean {robust:.2f} s")
    return robust / plain


class _Timer(ep.Callback):
    """Seconds of the fastest round."""

    fastest = float("inf")

    def planned(self, plan: object, index: object) -> None:
        self._begun = time.perf_counter()

    def advanced(self, rounds_done: int, x: torch.Tensor) -> None:
        self.fastest = min(self.fastest, time.perf_counter() - self._begun)


def _sorting(n: int, d: int) -> float:
    """Seconds of the same by `torch.sort`, of n nodes one by one."""
    rows = _inputs(S + 1, d)
    (seconds,) = interleaved(lambda: rows.sort(0).values[1:-1].mean(0), repeat=3)
    return seconds * n
