"""Drawing a round's graph against drawing as many plain random integers with NumPy."""

from __future__ import annotations

import numpy as np

from benchmarks.sizes import sized
from benchmarks.timing import interleaved, verdict
from epidemic.core.rng import Streams
from epidemic.topology import ELLocal, ELOracle


def run() -> bool:
    n, s = sized(10_000, 100), 14
    streams, plain = Streams(1), np.random.default_rng(1)
    rounds = iter(range(10**9))
    base, local, oracle = interleaved(
        lambda: plain.integers(0, n, size=n * s),
        lambda: ELLocal(s).graph(n, next(rounds), streams),
        lambda: ELOracle(s).graph(n, next(rounds), streams),
    )
    print(f"n = {n}, s = {s}: {base * 1e3:.2f} ms for {n * s} plain integers")
    reached = [
        verdict(f"EL-Local, {local * 1e3:.2f} ms, relative to plain integers", local / base, 12, at_most=True),
        verdict(f"EL-Oracle, {oracle * 1e3:.2f} ms, relative to plain integers", oracle / base, 12, at_most=True),
    ]
    return all(reached)
