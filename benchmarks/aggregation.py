"""Aggregators beside the mean: of 16 models of GN-LeNet's size that each hear 7 others, and of 100 small ones."""

from __future__ import annotations

import torch

import epidemic as ep
from benchmarks.sizes import sized
from benchmarks.timing import interleaved, verdict
from epidemic.aggregation import Aggregator
from epidemic.core.workers import Workers
from epidemic.mixing import weights
from epidemic.runtime.inbox import MatrixInbox

S = 7
LARGE = (16, sized(89_834, 1_000))
SMALL = (100, 650)
RULES: dict[str, Aggregator] = {
    "mean": ep.Mean(),
    "trimmed mean, f = 1": ep.TrimmedMean(f=1),
    "trimmed mean, f = 2": ep.TrimmedMean(f=2),
    "median": ep.Median(),
}


def run() -> bool:
    """Both sizes, on one thread."""
    workers = Workers(1)
    large, small = _times(*LARGE, workers), _times(*SMALL, workers)
    workers.close()
    slowest = max(large.values())
    reached = [
        verdict("the slowest rule relative to the mean, 8 large models", slowest / large["mean"], 20, at_most=True),
        verdict("PyTorch's sort relative to the slowest rule", _sorting(*LARGE) / slowest, 8, at_most=False),
        verdict(
            "the slowest rule relative to the mean, small models", max(small.values()) / small["mean"], 20, at_most=True
        ),
    ]
    return all(reached)


def _inputs(n: int, d: int) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(1))


def _times(n: int, d: int, workers: Workers) -> dict[str, float]:
    """Seconds of each rule for a round of n models of d numbers."""
    graph, rows = ep.ELOracle(S).graph(n, 0, ep.Streams(1)), _inputs(n, d)
    spare = {"x": torch.empty_like(rows)}

    def exchange(rule: Aggregator) -> MatrixInbox:
        w = weights("uniform", graph)
        return MatrixInbox({"x": rows}, w, torch.arange(n).numpy(), workers, lambda name, _: spare[name], rule=rule)

    found = interleaved(*(lambda rule=rule: exchange(rule).aggregate("x") for rule in RULES.values()), repeat=20)
    times = dict(zip(RULES, found, strict=True))
    for name, seconds in times.items():
        print(f"{n} models of {d:,}: {name} {1e3 * seconds:.2f} ms, {seconds / times['mean']:.1f} times the mean")
    return times


def _sorting(n: int, d: int) -> float:
    """Seconds of the same by `torch.sort`, of n nodes one by one."""
    rows = _inputs(S + 1, d)
    (seconds,) = interleaved(lambda: rows.sort(0).values[1:-1].mean(0), repeat=3)
    return seconds * n
