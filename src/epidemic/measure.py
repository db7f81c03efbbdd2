"""Measured properties of a topology: degrees, cost, spectrum, and how fast models that only average come to agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from epidemic.core.errors import BadInput, require_int
from epidemic.core.graph import FloatArray, IntArray
from epidemic.core.memory import require_memory
from epidemic.core.rng import Streams
from epidemic.mixing import Spectrum, Weights, affordable, disagreement, spectrum, weights
from epidemic.peer_sampling import service_from
from epidemic.theory import Floors, estimated_floors, floors
from epidemic.topology import (
    TOPOLOGIES,
    ELLocal,
    GivesGraphs,
    check_topology,
    expected,
    is_random,
    is_static,
    kind_of,
    natural_mixing,
    require_keyed,
    topology_from,
)

Tell = Callable[[str], None]

WIDTH = 16
"""Columns of the random matrix that is averaged."""

EXACT_FLOORS, ESTIMATED_FLOORS = 512, 256
"""The most nodes for which floors are worked out, and estimated: they take the cube of that."""

LONGEST_PERIOD = 64
"""A topology whose first graph does not return within so many rounds counts as random."""

DRAWN, WARM_UP = 260, 60
"""Rounds from which the floors of a random topology are estimated, and how many of them only lead there."""

AGREED = 1e-26
"""A round that shrinks disagreement below this factor reached exact agreement, up to rounding."""


class FoundFloors(msgspec.Struct, frozen=True):
    """What stays of the disagreement that each round brings in, per unit of it; see `epidemic.theory.floors`."""

    noise: float  # of noise that is fresh in every round
    bias: float  # of a constant bias, mean over its directions
    bias_worst: float  # in the worst direction
    estimated: bool  # from rounds that were drawn; otherwise exact


class TopologyReport(msgspec.Struct, frozen=True):
    """One topology at one size. Degrees, messages and bytes are per node and round, over all measured rounds.

    Messages are models' worth: an all-reduce sends fewer than its degree says, in pieces.
    """

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
    floors: FoundFloors | None = None  # where they were asked for and can be worked out


class Impossible(msgspec.Struct, frozen=True):
    """A topology that does not exist at the asked numbers, and why."""

    kind: str
    reason: str


def measure(
    topology: GivesGraphs, n: int, seed: int = 1, rounds: int = 50, model_bytes: int = 0, tell: Tell = lambda _: None
) -> TopologyReport:
    """Average a random (n, 16) matrix for some rounds, with the topology's natural weights and no training.

    `tell` is called with lines about the progress.
    """
    require_int("nodes", n, 1)
    require_int("rounds", rounds, 1)
    require_int("model-bytes", model_bytes, 0)
    check_topology(topology, n)
    degree = next((d for name in ("s", "m", "k") if isinstance(d := getattr(topology, name, None), int)), 0)
    _require_memory(n, degree)
    streams = Streams(seed)
    rule = natural_mixing(topology)
    tell("graph")
    require_keyed(topology, lambda: topology.graph(n, 0, streams))
    first = topology.graph(n, 0, streams)
    first_weights = weights(rule, first)
    tell("spectrum")
    shape = spectrum(first_weights) if affordable(first_weights) else None

    sent, heard = _Range(), _Range()
    models = 0.0
    ratios: list[float] = []
    x = _scaled(streams("measure").normals(n, WIDTH)) if n > 1 else None
    for t in range(rounds):
        tell(f"round {t + 1} of {rounds}")
        graph = first if t == 0 else topology.graph(n, t, streams)
        sent.add(graph.out_degree)
        heard.add(graph.in_degree)
        models += float(graph.sent.sum()) / graph.pieces
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
        messages_per_node=models / (n * rounds),
        bytes_per_node=models / (n * rounds) * model_bytes,
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
    """Measure every kind of topology at the same size; impossible ones are reported with the reason.

    Without `m`, EquiTopo gets as many messages as the others: m = s offsets one way, or m = (s + 1) / 2 both ways. Base graphs have up to s neighbours, MATCHA
    half of the matchings of an s-regular graph. Complete averaging appears twice: as messages, and as an all-reduce.
    """
    require_int("nodes", n, 1)
    require_int("s", s, 1)
    _require_memory(n, 0)
    reports: list[TopologyReport | Impossible] = []
    tables = {
        f"{kind}{variant}": {"kind": kind, **table}
        for kind, cls in TOPOLOGIES.items()
        for variant, table in cls.compared(s, m).items()
    }
    for name, table in tables.items():
        try:
            topology = topology_from(table)
            report = measure(topology, n, **settings, tell=_about(name, tell))
            report = with_floors(report, topology, settings.get("seed", 1), _about(name, tell))
            reports.append(msgspec.structs.replace(report, kind=name))
        except BadInput as problem:
            reports.append(Impossible(name, str(problem)))
    return reports


def compare_views(
    n: int, s: int, views: Sequence[Any], tell: Tell = lambda _: None, **settings: int
) -> list[TopologyReport | Impossible]:
    """Measure EL-Local on the views of each of these peer sampling services, given as tables or objects."""
    reports: list[TopologyReport | Impossible] = []
    for view in map(service_from, views):
        name = f"el-local, {view.__struct_config__.tag}"
        try:
            found = measure(ELLocal(s, view=view), n, **settings, tell=_about(name, tell))
            reports.append(msgspec.structs.replace(found, kind=name))
        except BadInput as problem:
            reports.append(Impossible(name, str(problem)))
    return reports


def with_floors(
    report: TopologyReport, topology: GivesGraphs, seed: int = 1, tell: Tell = lambda _: None
) -> TopologyReport:
    """The report with noise and bias floors; they take the cube of the nodes, so there are none beyond some hundred."""
    return msgspec.structs.replace(report, floors=floors_of(topology, report.nodes, seed, tell))


def floors_of(
    topology: GivesGraphs, n: int, seed: int = 1, tell: Tell = lambda _: None, share: float = 1.0
) -> FoundFloors | None:
    """Noise and bias floors of a topology with its natural weights; None: too many nodes, or just one.

    Exact by a closed form or for periodic graphs, otherwise estimated from drawn rounds. With a `share` below 1 they are those of one coordinate, where each
    sender's messages have it in that share of the rounds (random-k).
    """
    streams = Streams(seed)
    known = expected(topology, n, streams).floors if share == 1 else None
    if known is not None:
        return _found(known, estimated=False)
    if not 2 <= n <= EXACT_FLOORS:
        return None
    tell("floors")
    rule = natural_mixing(topology)

    def drawn(t: int) -> Weights:
        graph = topology.graph(n, t, streams)
        if share < 1:
            sends = streams("measure", t).uniforms(n) < share
            graph = graph.explicit().keep(sends[graph.explicit().senders])
        return weights(rule, graph)

    fixed = is_static(topology) and share == 1
    period = 1 if fixed else None if is_random(topology) or share < 1 else _period(topology, n, streams)
    if period is not None:
        return _found(floors([drawn(t).dense() for t in range(period)]), estimated=False)
    if n > ESTIMATED_FLOORS:
        return None
    return _found(estimated_floors(n, map(drawn, range(DRAWN)), WARM_UP), estimated=True)


def _found(floors: Floors, *, estimated: bool) -> FoundFloors:
    return FoundFloors(floors.noise, floors.bias, floors.bias_worst, estimated)


def _period(topology: GivesGraphs, n: int, streams: Streams) -> int | None:
    """The number of rounds after which the graphs repeat; None if they do not within the inspected rounds."""
    seen = [topology.graph(n, t, streams).digest() for t in range(2 * LONGEST_PERIOD)]
    return next((k for k in range(1, LONGEST_PERIOD + 1) if seen[k:] == seen[:-k]), None)


def _require_memory(n: int, degree: int) -> None:
    """Refuse sizes that do not fit into memory: there are at least four copies of the matrix, and 32 bytes per message."""
    require_memory(f"measuring nodes = {n:,}", n * (4 * WIDTH * 8 + 32 * degree), "use fewer nodes")


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
    """The matrix centred and scaled to D(X) = 1, so that no digits are lost however long the averaging continues."""
    x = x - x.mean(axis=0)
    return x / math.sqrt(disagreement(x))


def _per_round(ratios: list[float], *, random: bool) -> float | None:
    if not ratios:
        return None
    if random:
        return math.fsum(ratios) / len(ratios)
    late = ratios[len(ratios) // 2 :]
    return math.exp(math.fsum(map(math.log, late)) / len(late)) if all(late) else 0.0
