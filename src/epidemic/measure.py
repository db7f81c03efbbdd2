"""What a topology does, measured: degrees, cost, spectrum, and how fast models that only average come to agree."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from epidemic.errors import BadInput, require_int
from epidemic.graph import FloatArray, IntArray
from epidemic.mixing import Spectrum, affordable, disagreement, spectrum, weights
from epidemic.rng import Streams
from epidemic.topology import (
    TOPOLOGIES,
    GivesGraphs,
    check_topology,
    expected,
    is_random,
    is_static,
    kind_of,
    natural_mixing,
    topology_from,
)

Tell = Callable[[str], None]

WIDTH = 16
"""Columns of the random matrix that is averaged."""

AGREED = 1e-26
"""A round that shrinks disagreement below this factor reached exact agreement, up to rounding."""


class TopologyReport(msgspec.Struct, frozen=True):
    """One topology at one size. Degrees, messages and bytes are per node and round, over all measured rounds."""

    kind: str
    nodes: int
    rounds: int
    out_degree_min: int
    out_degree_mean: float
    out_degree_max: int
    in_degree_min: int
    in_degree_mean: float
    in_degree_max: int
    messages_per_node: float
    bytes_per_node: float
    connected: bool  # of the first round's graph
    sigma: float | None  # of the first round's matrix, as are gap and p; None: too large to be worked out
    gap: float | None
    p: float | None
    expected_sigma2: float | None  # random topologies: largest eigenvalue of E[Pi W^T W Pi]
    expected_p: float | None  # 1 - expected_sigma2
    contraction_measured: float | None
    """Factor on the disagreement per round: mean over all rounds if random, else geometric mean of the second half."""
    contraction_predicted: float | None
    """Random: the exact expectation E[D(WX)] / D(X). Static: sigma^2, the factor that is approached."""
    disagreement: tuple[float, ...]  # D after 0, 1, ... rounds of averaging, starting from 1


class Impossible(msgspec.Struct, frozen=True):
    """A topology that does not exist at the asked numbers, and why."""

    kind: str
    reason: str


def measure(
    topology: GivesGraphs, n: int, seed: int = 1, rounds: int = 50, model_bytes: int = 0, tell: Tell = lambda _: None
) -> TopologyReport:
    """Average a random (n, 16) matrix for some rounds, with the topology's natural weights and no training.

    `tell` hears what is being done.
    """
    require_int("nodes", n, 1)
    require_int("rounds", rounds, 1)
    require_int("model-bytes", model_bytes, 0)
    check_topology(topology, n)
    streams = Streams(seed)
    rule = natural_mixing(topology)
    tell("graph")
    first = topology.graph(n, 0, streams)
    first_weights = weights(rule, first)
    tell("spectrum")
    shape = spectrum(first_weights) if affordable(first_weights) else None

    sent, heard = _Range(), _Range()
    ratios: list[float] = []
    x = _scaled(streams("measure").normals(n, WIDTH)) if n > 1 else None
    for t in range(rounds):
        tell(f"round {t + 1} of {rounds}")
        graph = first if t == 0 else topology.graph(n, t, streams)
        sent.add(graph.out_degree)
        heard.add(graph.in_degree)
        if x is not None:
            x = (first_weights if graph is first else weights(rule, graph)) @ x
            ratios.append(disagreement(x))
            if ratios[-1] < AGREED:
                ratios[-1] = 0.0
            x = _scaled(x) if ratios[-1] else None

    theory = expected(topology, n, streams)
    return TopologyReport(
        kind=kind_of(topology),
        nodes=n,
        rounds=rounds,
        out_degree_min=sent.low,
        out_degree_mean=sent.total / (n * rounds),
        out_degree_max=sent.high,
        in_degree_min=heard.low,
        in_degree_mean=heard.total / (n * rounds),
        in_degree_max=heard.high,
        messages_per_node=sent.total / (n * rounds),
        bytes_per_node=sent.total / (n * rounds) * model_bytes,
        connected=first.connected,
        sigma=None if shape is None else shape.sigma,
        gap=None if shape is None else shape.gap,
        p=None if shape is None else shape.p,
        expected_sigma2=theory.sigma2,
        expected_p=None if theory.sigma2 is None else 1 - theory.sigma2,
        contraction_measured=_per_round(ratios, random=is_random(topology)),
        contraction_predicted=_predicted(shape) if is_static(topology) else theory.contraction,
        disagreement=(*np.cumprod([1.0, *ratios]).tolist(), *[0.0] * (rounds - len(ratios))) if n > 1 else (),
    )


def compare(
    n: int, s: int, m: int | None = None, tell: Tell = lambda _: None, **settings: int
) -> list[TopologyReport | Impossible]:
    """Every kind of topology at the same size; those that cannot exist are reported with the reason.

    Without `m`, EquiTopo gets as many messages as the others: m = s offsets one way, or m = (s + 1) / 2 both ways.
    """
    require_int("nodes", n, 1)
    require_int("s", s, 1)
    one_way, both_ways = (s, (s + 1) // 2) if m is None else (m, m)
    reports: list[TopologyReport | Impossible] = []
    fields: dict[str, dict[str, int]] = {
        **{kind: {"s": s} for kind in ("el-oracle", "el-local", "regular", "unlucky")},
        "d-equistatic": {"m": one_way},
        "u-equistatic": {"m": both_ways},
    }
    for kind in TOPOLOGIES:
        if kind in ("every", "python"):
            continue  # a wrapper of the others, and a user's own
        try:
            topology = topology_from({"kind": kind, **fields.get(kind, {})})
            reports.append(measure(topology, n, **settings, tell=_about(kind, tell)))
        except BadInput as problem:
            reports.append(Impossible(kind, str(problem)))
    return reports


def _predicted(shape: Spectrum | None) -> float | None:
    return None if shape is None else shape.sigma**2


def _about(kind: str, tell: Tell) -> Tell:
    return lambda doing: tell(f"{kind}, {doing}")


class _Range:
    """Smallest, largest and sum of the numbers seen."""

    def __init__(self) -> None:
        self.low, self.high, self.total = 2**62, 0, 0

    def add(self, values: IntArray) -> None:
        self.low = min(self.low, int(values.min()))
        self.high = max(self.high, int(values.max()))
        self.total += int(values.sum())


def _scaled(x: FloatArray) -> FloatArray:
    """Centred and with D(X) = 1, so that no digits are lost however long the averaging goes on."""
    x = x - x.mean(axis=0)
    return x / math.sqrt(disagreement(x))


def _per_round(ratios: list[float], *, random: bool) -> float | None:
    if not ratios:
        return None
    if random:
        return math.fsum(ratios) / len(ratios)
    late = ratios[len(ratios) // 2 :]
    return math.exp(math.fsum(map(math.log, late)) / len(late)) if all(late) else 0.0
