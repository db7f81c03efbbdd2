"""Items that go beyond the paper: its theory measured on the code that trains, at n = 96."""

from __future__ import annotations

import itertools
from statistics import fmean, median, stdev

import numpy as np
from numpy.typing import NDArray

from epidemic import theory
from epidemic.core.rng import Streams
from epidemic.faults import Faults
from epidemic.measure import Impossible, TopologyReport, compare, measure
from epidemic.mixing import disagreement, spectrum, weights
from epidemic.report.style import BLACK, BLUE, GREEN, ORANGE, RED, new_figure, polish
from epidemic.report.topologies import comparison_figure
from epidemic.study.reproduce.base import SCALE, Check, Item, ItemResult, Request, measured, near
from epidemic.topology import ELLocal, ELOracle, natural_mixing, topology_from

N = 96
ROUNDS: dict[SCALE, int] = {"smoke": 200, "laptop": 3000, "paper": 20_000}
FloatArray = NDArray[np.float64]


def _ratios(report: TopologyReport) -> list[float]:
    """By which factor each round shrank the disagreement."""
    return [b / a for a, b in zip(report.disagreement, report.disagreement[1:], strict=False) if a > 1e-290]


# -- contraction ------------------------------------------------------------------------------------------------------


def _contraction(request: Request, failed: dict[str, str]) -> ItemResult:
    rounds = ROUNDS[request.scale]
    checks, rows = [], []
    for s in (1, 2, 4, 7, 14, 28, 40, 60, 80):
        row: dict[str, float] = {"n": N, "s": s}
        for name, topology, exact in (
            ("oracle", ELOracle(s), theory.alpha(N, s)),
            ("local", ELLocal(s), theory.beta(N, s) - theory.mean_drift(N, s)),
        ):
            found = _chunks(topology, rounds)
            check = measured(f"EL-{name.title()}, s = {s}", found, exact)
            row |= {
                f"{name}_exact": exact,
                f"{name}_measured": float(np.mean(found)),
                f"{name}_5_errors": check.half_width or 0.0,
            }
            if s in (1, 4, 7, 14, 40):
                checks.append(check)
        rows.append({**row, "beta": theory.beta(N, s)})
    figure = new_figure(7.5, 4.6)
    axes = figure.subplots()
    sizes = [row["s"] for row in rows]
    for name, colour, label in (("oracle", BLUE, "EL-Oracle (alpha)"), ("local", RED, "EL-Local (beta - drift)")):
        axes.loglog(sizes, [row[f"{name}_exact"] for row in rows], color=colour, label=f"{label}, exact")
        axes.loglog(sizes, [row[f"{name}_measured"] for row in rows], "o", color=colour, markersize=4, label="measured")
    axes.loglog(sizes, [1 / (s + 1) for s in sizes], color="0.5", linestyle=":", label="1 / (s + 1)")
    polish(axes, f"Contraction of disagreement a round, n = {N}", "models sent per node (s)", "factor on D(X)")
    axes.legend(frameon=False, fontsize=8)
    note = f"measured: mean of {rounds} rounds of averaging random (96, 16) matrices, ± 5 standard errors"
    return ItemResult(checks, rows, figure, [note])


def _chunks(topology: ELOracle | ELLocal, rounds: int) -> list[float]:
    """Ratios of many rounds, in stretches of 100 so that no product leaves the numbers."""
    return [r for seed in range(rounds // 100) for r in _ratios(measure(topology, N, seed + 1, 100))]


# -- drift of the mean ------------------------------------------------------------------------------------------------


def _drift(request: Request, failed: dict[str, str]) -> ItemResult:
    rounds = ROUNDS[request.scale]
    rows, checks = [], []
    for s in (1, 2, 4, 7, 14, 28, 40, 60):
        found = _mean_moves(s, rounds)
        exact, bound = theory.mean_drift(N, s), theory.beta(N, s) / N
        check = measured(f"s = {s}: squared move of the mean", found, exact, digits=8)
        rows.append(
            {
                "n": N,
                "s": s,
                "exact": exact,
                "paper_bound": bound,
                "measured": float(np.mean(found)),
                "5_errors": check.half_width,
            }
        )
        if s in (1, 4, 7, 14, 40):
            checks.append(check)
    worst = max(row["exact"] / row["paper_bound"] for row in rows)  # type: ignore[operator]
    checks.append(
        Check(what="largest share of the paper's bound that is used", ours=worst, claim="at most 1", verdict="agrees" if worst <= 1 else "differs",
              reason="the bound is true, and loose", digits=3)
    )  # fmt: skip
    figure = new_figure(7.5, 4.6)
    axes = figure.subplots()
    sizes = [row["s"] for row in rows]
    axes.loglog(sizes, [row["paper_bound"] for row in rows], color=BLACK, label="the paper's bound, beta / n")
    axes.loglog(sizes, [row["exact"] for row in rows], color=RED, label="exact, v / (n - 1)")
    axes.loglog(sizes, [row["measured"] for row in rows], "o", color=RED, markersize=4, label="measured")
    polish(
        axes, f"EL-Local: how far a round moves the mean, n = {N}", "models sent per node (s)", "squared move / D(X)"
    )
    axes.legend(frameon=False, fontsize=8)
    return ItemResult(checks, rows, figure, ["EL-Oracle never moves the mean: its matrix is doubly stochastic"])


def _mean_moves(s: int, rounds: int) -> list[float]:
    """Squared move of the mean in single rounds, relative to the disagreement before."""
    topology, streams = ELLocal(s), Streams(1)
    rule = natural_mixing(topology)
    moves = []
    for t in range(rounds):
        x = streams("measure", t).normals(N, 16)
        x -= x.mean(0)
        moved = (weights(rule, topology.graph(N, t, streams)) @ x).mean(0)
        moves.append(float((moved**2).sum()) / disagreement(x))
    return moves


# -- the cap ----------------------------------------------------------------------------------------------------------

CAPS = (1, 2, 4, 5, 6, 7, 8, 9, 10, 12, 14, 18)


def _cap(request: Request, failed: dict[str, str]) -> ItemResult:
    s, rounds = 7, ROUNDS[request.scale] // 2
    beta, alpha = theory.beta(N, s), theory.alpha(N, s)
    rows, checks = [], []
    for k in CAPS:
        exact = theory.cap(N, s, k)
        row: dict[str, float] = {
            "n": N,
            "s": s,
            "k": k,
            "exact_no_retry": exact.contraction,
            "lost_no_retry": exact.lost,
        }
        for name, retries in (("no retry", 0), ("one retry", 1), ("unlimited retries", "unlimited")):
            if retries == "unlimited" and k < s:
                continue  # too few nodes: all would ask all others
            found = _capped(Faults(cap=k, max_retries=retries), s, rounds)  # type: ignore[arg-type]
            row[name.replace(" ", "_")] = float(np.mean(found))
            if name == "no retry" and k in (1, 4, 7, 10, 14):
                checks.append(measured(f"k = {k}, no retry", found, exact.contraction))
            if name == "unlimited retries" and k == s:
                checks.append(
                    near(f"k = {k}, unlimited retries: as EL-Oracle", float(np.mean(found)), alpha, 0.002, digits=5)
                )
        rows.append(row)
    patient = [row for row in rows if "unlimited_retries" in row]
    improves = all(a["unlimited_retries"] <= b["unlimited_retries"] + 0.002 for a, b in itertools.pairwise(patient))
    checks.append(
        Check(what="with unlimited retries a smaller k (from 7) mixes better", ours=float(improves), claim="1", digits=0,
              verdict="agrees" if improves else "differs")
    )  # fmt: skip
    figure = new_figure(7.5, 4.6)
    axes = figure.subplots()
    axes.plot(CAPS, [row["exact_no_retry"] for row in rows], color=RED, label="no retry, exact")
    for name, colour, mark in (("no_retry", RED, "o"), ("one_retry", GREEN, "s"), ("unlimited_retries", ORANGE, "^")):
        shown = [row for row in rows if name in row]
        label = f"{name.replace('_', ' ')}, measured"
        axes.plot(
            [row["k"] for row in shown], [row[name] for row in shown], mark, color=colour, markersize=5, label=label
        )
    axes.axhline(beta, color=RED, linestyle=":", linewidth=1, label="EL-Local without a cap (beta)")
    axes.axhline(alpha, color=BLUE, linestyle=":", linewidth=1, label="EL-Oracle (alpha)")
    axes.set_yscale("log")
    polish(
        axes,
        f"EL-Local with a cap on received models, n = {N}, s = {s}",
        "cap k",
        "factor on D(X), around the old mean",
    )
    axes.legend(frameon=False, fontsize=8)
    return ItemResult(
        checks, rows, figure, [f"measured: mean over {rounds} rounds of (sum of 1 / (received + 1) - 1) / (n - 1)"]
    )


def _capped(faults: Faults, s: int, rounds: int) -> list[float]:
    """The trace form of the contraction, round by round: only in-degrees are needed."""
    topology, streams = ELLocal(s), Streams(1)
    found = []
    for t in range(rounds):
        heard = faults.deliver(topology.graph(N, t, streams), t, streams).graph.in_degree
        found.append(float(((1 / (heard + 1.0)).sum() - 1) / (N - 1)))
    return found


# -- spectra ----------------------------------------------------------------------------------------------------------

EXACT = {"ring": 0.9985726155, "torus": 0.9464101615, "exponential": 0.75, "complete": 0.0}
RANDOM: dict[str, tuple[dict[str, int], str, float]] = {  # fields, and what hundreds of earlier draws gave
    "regular": ({"s": 7}, "mean", 0.700),
    "unlucky": ({"s": 7}, "mean", 0.99234),
    "erdos-renyi": ({}, "mean", 0.817),
    "u-equistatic": ({"m": 4}, "median", 0.828),
    "d-equistatic": ({"m": 7}, "median", 0.744),
}
ROUNDING = {"regular": 5e-4, "unlucky": 5e-6}  # of those values; else 5e-4
SPECTRA_DRAWS: dict[SCALE, int] = {"smoke": 20, "laptop": 200, "paper": 1000}


def _spectra(request: Request, failed: dict[str, str]) -> ItemResult:
    reports = [r for r in compare(N, 7) if not isinstance(r, Impossible)]
    found = {r.kind: r for r in reports}
    rows = [
        {"kind": r.kind, "messages_per_node": r.messages_per_node, "sigma": r.sigma, "gap": r.gap, "p": r.p, "expected_p": r.expected_p,
         "contraction_measured": r.contraction_measured, "contraction_predicted": r.contraction_predicted}
        for r in reports
    ]  # fmt: skip
    sigma = {r.kind: r.sigma for r in reports if r.sigma is not None}
    checks = [near(f"{kind}: sigma", sigma[kind], exact, 1e-9, digits=7) for kind, exact in EXACT.items()]
    draws = SPECTRA_DRAWS[request.scale]
    for kind, (fields, which, usual) in RANDOM.items():
        topology = topology_from({"kind": kind, **fields})
        rule = natural_mixing(topology)
        sigmas = [spectrum(weights(rule, topology.graph(N, 0, Streams(seed)))).sigma for seed in range(1, draws + 1)]
        middle, factor = (fmean(sigmas), 1.0) if which == "mean" else (median(sigmas), 1.2533)
        tolerance = 5 * factor * stdev(sigmas) / draws**0.5 + ROUNDING.get(kind, 5e-4)
        what = f"{kind}: sigma, {which} of {draws} draws"
        reason = "agrees within 5 standard errors"
        checks.append(near(what, middle, usual, tolerance, digits=4, source="earlier draws", reason=reason))
    checks.append(near("el-oracle: p", found["el-oracle"].expected_p or 0.0, 0.88421, 5e-6, digits=5))
    checks.append(near("el-local: p", found["el-local"].expected_p or 0.0, 0.86776, 5e-6, digits=5))
    return ItemResult(
        checks, rows, comparison_figure(reports), ["all topologies at n = 96 with about seven models sent a round"]
    )


CONTRACTION = Item(
    "contraction", "Contraction against s: alpha, beta and measured", _contraction, expected_from="theory"
)
DRIFT = Item("drift", "Drift of the mean: exact, measured, and the paper's bound", _drift, expected_from="theory")
CAP = Item("cap", "Mixing against the cap k on received models", _cap, expected_from="theory")
SPECTRA = Item("spectra", "Spectra of all topologies at n = 96", _spectra, expected_from="theory")
