"""The item `rivals`: EL beside what it is compared with, at equal rounds and at equal bytes, with both floors of every scheme.

All leads are over EL-Oracle with s = 7, seed by seed. Verdicts are on what others claim of their methods, on what the floors predict, and on
the two controls, which must bracket the rest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from epidemic.core.formatting import decimals, interval
from epidemic.measure import FoundFloors, floors_of
from epidemic.record import Record
from epidemic.report.curves import MIB
from epidemic.report.results import Result, SeedResult
from epidemic.report.statistics import Interval, accuracy_of
from epidemic.report.style import BLUE, GREEN, GREY, RED, new_figure, polish
from epidemic.study.reproduce.base import SCALE, Check, Item, ItemResult, Request, ahead, near
from epidemic.study.reproduce.contests import Contest
from epidemic.topology import topology_from

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WORST = 0.1
"""The share of nodes with the worst models that is reported separately."""
FLOORS_SEED = 1
SLACK = 0.01
"""Of a budget: push-sum's messages have one number more than a model."""


class RivalResult:
    """The results of a method, one number for each seed. Accuracies are percentages, "final" ones on all test samples."""

    def __init__(self, result: Result, budget: float) -> None:
        self.result = result
        ends = [seed.summary for seed in result.seeds]
        self.final = [
            _percent(None if end is None or end.final_accuracy is None else end.final_accuracy.mean) for end in ends
        ]
        self.average = [_percent(None if end is None else end.final_mean_model_accuracy) for end in ends]
        self.worst = [_percent(_worst(seed)) for seed in result.seeds]
        self.disagreement = [records[-1].disagreement or 0.0 for records in result.by_seed]
        self.sent = [records[-1].bytes.total.mean for records in result.by_seed]
        within = [_within(records, budget) for records in result.by_seed]
        self.rounds = within[0].round  # for which the budget lasts
        self.within = [_percent(accuracy_of(record)) for record in within]

    @property
    def models(self) -> float:
        """Models' worth of numbers that a node sends in a round."""
        records = self.result.by_seed[0]
        return records[-1].bytes.model.mean / records[-1].round


def _percent(value: float | None) -> float:
    return float("nan") if value is None else 100 * value


def _worst(seed: SeedResult) -> float | None:
    """Mean accuracy of the worst tenth of the nodes at the end."""
    found = sorted(node.final_accuracy for node in seed.nodes or [] if node.final_accuracy is not None)
    count = -(-len(found) // round(1 / WORST))
    return float(np.mean(found[:count])) if found else None


def _within(records: Sequence[Record], budget: float) -> Record:
    """The last evaluation until which a node has sent no more: models and what goes with them, without headers."""
    return [record for record in records if record.bytes.model.mean <= budget * (1 + SLACK)][-1]


def lead(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """By how much the one is ahead of the other, seed by seed."""
    return Interval.of([a - b for a, b in zip(ours, theirs, strict=True)])


@cache
def floors_for(method: str) -> FoundFloors:
    """The floors of a method's averaging; for random-k those of a coordinate."""
    rival = RIVALS[method]
    share = float((rival.compression or {}).get("share", 1.0))
    found = floors_of(topology_from(rival.topology), NODES, FLOORS_SEED, share=share)
    assert found is not None  # there are few nodes
    return found


def _find(request: Request, failed: dict[str, str]) -> ItemResult:
    rivalry = RIVALRIES[request.scale]
    rivalry.need(request, failed)
    found = {method: rivalry.result(method, request) for method in rivalry.methods}
    first = found[ORACLE].by_seed[0]
    budget = next((r for r in first if r.round >= rivalry.quarter), first[-1]).bytes.model.mean
    standings = {method: RivalResult(result, budget) for method, result in found.items()}
    rows = [_row(rivalry, method, request, standings, budget) for method in rivalry.methods]
    entries = [_entry(method, standings) for method in rivalry.methods if method != ORACLE]
    data = {"digits": "digits", "cifar10": "CIFAR-10"}[rivalry.data]
    seeds = len(found[ORACLE].seeds)
    words = (
        f"{data}, {seeds} seeds: after {rivalry.rounds} rounds",
        f"After {budget / MIB:.3g} MiB a node",
        "What mixing leaves",
    )
    figure = leads_figure(entries, words, ORACLE, floors_for(ORACLE))
    title = f"{data}, {NODES} nodes, {rivalry.rounds} rounds, and as many as {budget / MIB:.3g} MiB allow; leads over {ORACLE}"
    table = [_shown(row, standings) for row in rows]
    return ItemResult(_checks(standings), rows, figure, _notes(rivalry, request, budget, found, failed), (title, table))


# -- verdicts ---------------------------------------------------------------------------------------------------------

Of = Callable[[RivalResult], Sequence[float]]


def _final(one: RivalResult) -> Sequence[float]:
    return one.final


def _at_budget(one: RivalResult) -> Sequence[float]:
    return one.within


def _checks(standings: dict[str, RivalResult]) -> list[Check]:
    def claimed(
        one: str, other: str, source: str, of: Of = _final, what: str = "points after the last round", sign: int = 1
    ) -> Check:
        found = lead(of(standings[one]), of(standings[other]))
        words = f"{one} ahead of {other}: {what}"
        check = ahead(words, found, None, claim="> 0" if sign > 0 else "< 0", sign=sign)
        return msgspec.structs.replace(check, source=source)

    def average(one: RivalResult) -> Sequence[float]:
        return one.average

    def apart(one: RivalResult) -> Sequence[float]:
        return [100 * float(np.log(d)) for d in one.disagreement]

    bytes_alike = "points at equal bytes"
    return [
        claimed(COMPLETE, ORACLE, "control"),
        claimed(ORACLE, NONE, "control"),
        claimed(ORACLE, LOCAL, "floors"),
        claimed(ORACLE, EXPONENTIAL, "floors"),
        claimed(ORACLE_1, BASE_2, "floors"),
        *(_explained(standings, name) for name in ("bias", "noise")),
        claimed(QG, ORACLE, "Lin et al."),
        claimed(TRACKING, ORACLE, "theory of bias"),
        claimed(PGA, ONE_PEER, "Chen et al."),
        claimed(INT8, ORACLE, "fewer bytes", _at_budget, bytes_alike),
        claimed(RANDOM_K, ORACLE, "fewer bytes", _at_budget, bytes_alike),
        claimed(ALL_REDUCE, ORACLE, "arithmetic", _at_budget, bytes_alike),
        _same(standings[FRAGMENTS_1], standings[LOCAL]),
        claimed(FRAGMENTS_16, FRAGMENTS_1, "Mosaic, up to 12"),
        claimed(FRAGMENTS_16, FRAGMENTS_1, "Mosaic's reviewers: no gain", average, "points of the averaged model", -1),
        claimed(FRAGMENTS_16, FRAGMENTS_1, "Mosaic's reviewers", apart, "D(X), per cent on a log scale"),
    ]  # fmt: skip


def _explained(standings: dict[str, RivalResult], floor: str) -> Check:
    """Whether smaller floors go with higher accuracy, over the methods that only average: Spearman's rank correlation, seed by seed."""
    from scipy.stats import spearmanr

    plain = [method for method in standings if RIVALS[method].plain and method not in (*CONTROLS, FRAGMENTS_1)]
    floors = [-getattr(floors_for(method), floor) for method in plain]
    seeds = range(len(standings[ORACLE].final))
    ranks = [float(spearmanr(floors, [standings[method].final[i] for method in plain]).statistic) for i in seeds]
    what = f"small {floor} floors and high accuracies: rank correlation over {len(plain)} methods"
    return msgspec.structs.replace(ahead(what, Interval.of(ranks), None, claim="> 0"), source="floors")


def _same(one: RivalResult, other: RivalResult) -> Check:
    """One fragment is the inner topology, to the last bit."""
    pairs = zip(itertools.chain(*one.result.by_seed), itertools.chain(*other.result.by_seed), strict=True)
    off = max(abs(a.loss.mean - b.loss.mean) + abs((a.disagreement or 0.0) - (b.disagreement or 0.0)) for a, b in pairs)
    return near(f"{FRAGMENTS_1} and {LOCAL}: largest difference of loss and D(X)", off, 0.0, 0.0, source="exact")


def _judged(found: Interval) -> str:
    if found.half_width is None or abs(found.mean) <= found.half_width:
        return "open"
    return "ahead" if found.mean > 0 else "behind"


# -- what is shown ----------------------------------------------------------------------------------------------------


def _entry(method: str, standings: dict[str, RivalResult]) -> MethodLead:
    one, baseline = standings[method], standings[ORACLE]
    return MethodLead(method, lead(one.final, baseline.final), lead(one.within, baseline.within), floors_for(method))


def _row(
    rivalry: Rivalry, method: str, request: Request, standings: dict[str, RivalResult], budget: float
) -> dict[str, Any]:
    one, baseline, floors = standings[method], standings[ORACLE], floors_for(method)
    row: dict[str, Any] = {
        "method": method,
        "lr": rivalry.rate(method, request),
        "seeds": len(one.final),
        "noise_floor": floors.noise,
        "bias_floor": floors.bias,
        "bias_floor_worst": floors.bias_worst,
        "floors_estimated": floors.estimated,
        "rounds": rivalry.rounds,
        "budget_mib": budget / MIB,
        "rounds_within_budget": one.rounds,
    }
    for name, values in (
        ("accuracy", one.final),
        ("ahead_at_equal_rounds", [a - b for a, b in zip(one.final, baseline.final, strict=True)]),
        ("worst_tenth_accuracy", one.worst),
        ("averaged_model_accuracy", one.average),
        ("disagreement", one.disagreement),
        ("mib", [sent / MIB for sent in one.sent]),
        ("accuracy_within_budget", one.within),
        ("ahead_at_equal_bytes", [a - b for a, b in zip(one.within, baseline.within, strict=True)]),
    ):
        found = Interval.of(values)
        row[name], row[f"{name}_half_width"] = found.mean, found.half_width
    row["needs"] = RIVALS[method].needs
    return row


def _shown(row: dict[str, Any], standings: dict[str, RivalResult]) -> dict[str, str]:
    """The printed form of a row."""
    one, baseline = standings[row["method"]], standings[ORACLE]
    at_rounds, at_bytes = lead(one.final, baseline.final), lead(one.within, baseline.within)
    same = one is baseline
    return {
        "method": row["method"],
        "lr": f"{row['lr']:g}",
        "F_N": decimals(row["noise_floor"], 3),
        "F_B": decimals(row["bias_floor"], 3),
        "accuracy (%)": interval(Interval.of(one.final), digits=1),
        "ahead": "" if same else f"{interval(at_rounds, digits=1, signed=True)} {_judged(at_rounds)}",
        "worst 10 %": interval(Interval.of(one.worst), digits=1),
        "average (%)": interval(Interval.of(one.average), digits=1),
        "D(X)": f"{Interval.of(one.disagreement).mean:.3g}",
        "MiB": f"{row['mib']:.3g}",
        "bytes: rounds": str(one.rounds),
        "accuracy": interval(Interval.of(one.within), digits=1),
        "ahead ": "" if same else f"{interval(at_bytes, digits=1, signed=True)} {_judged(at_bytes)}",
        "needs": row["needs"],
    }


def _notes(
    rivalry: Rivalry, request: Request, budget: float, found: dict[str, Result], failed: dict[str, str]
) -> list[str]:
    about = sorted({seed.info.data for run in found.values() for seed in run.seeds if seed.info.data})
    return [
        f"accuracy: mean over nodes on all test samples after {rivalry.rounds} rounds; average: of the average of all models; worst 10 %: mean over the tenth of the nodes with the worst models",
        f"at equal bytes: the last evaluation (every {rivalry.every} rounds) until which a node sent at most {budget / MIB:.3g} MiB (one per cent more is let pass), what {ORACLE} sends in {rivalry.quarter} rounds; who sends less in all rounds is read at the end. Numbers are counted there, not the 256 bytes that go with each message; MiB counts both",
        f"F_N, F_B: what stays of noise and of a constant bias, per unit that a round brings in ({NODES} nodes, mean over directions). Of push-sum, QG momentum and gradient tracking they are those of plain averaging over the same graphs; of random-k those of a coordinate; int8 adds its rounding",
        f"intervals are of each comparison by itself, 95 %: of {2 * (len(found) - 1)} leads one in twenty excludes zero by chance",
        *rivalry.rate_notes(request, failed),
        *about,
    ]


RIVALS_ITEM = Item(
    "rivals",
    "EL beside its rivals, at equal rounds and at equal bytes",
    _find,
    lambda request: RIVALRIES[request.scale].jobs(request),
    expected_from="claim",
    first=lambda request: RIVALRIES[request.scale].tuning(request),
)


# -- What EL is compared with: the experiments of the item `rivals`, at every scale ----------------------------------
# The setting is the paper's: 96 nodes, s = 7, Dirichlet(0.1). Everybody has the same start, data, batches, number of local steps, seeds and test
# samples, and a learning rate of its own. Two methods that nobody would deploy bracket the rest: no exchange at all, and exact averaging
# in every round.
#
# EL is there with several s, because a method that sends one model a round is not to be compared with s = 7 alone. Each wrapper, codec and
# algorithm works on EL with s = 7, EL-Oracle where it needs weights that are doubly stochastic and EL-Local where it
# does not. Gossip-PGA is there as published: one-peer exponential, and an all-reduce every sixth round.


NODES, S = 96, 7
SHARE = 0.25
"""Of the coordinates, in a message of random-k."""
PERIOD = 6
"""Rounds between all-reduces in Gossip-PGA (Chen et al., 2021)."""
BUDGET = 0.25
"""Bytes are compared at what EL-Oracle sends in this part of the rounds."""


class Rival(msgspec.Struct, frozen=True):
    """A method: its own tables, and what it requires beyond EL-Local."""

    topology: dict[str, Any]
    needs: str = ""
    algorithm: dict[str, Any] = {}
    compression: dict[str, Any] | None = None
    plain: bool = True  # averages models and nothing else, so that floors are its own


SEED, PLACES, FIXED, NO_LOSS, EVERYBODY = (
    "a shared seed",
    "everybody's place",
    "fixed links",
    "no loss",
    "everybody at once",
)

_ORACLE, _LOCAL = {"kind": "el-oracle", "s": S}, {"kind": "el-local", "s": S}

ORACLE, LOCAL = "EL-Oracle, s = 7", "EL-Local, s = 7"
ORACLE_1, BASE_2, BASE_8 = "EL-Oracle, s = 1", "Base-2", "Base-8"
ONE_PEER, EXPONENTIAL, EQUISTATIC, MATCHA = "one-peer exponential", "exponential", "8-U-EquiStatic", "MATCHA"
PUSH_SUM, QG, TRACKING, PGA = "push-sum", "QG momentum", "gradient tracking", "Gossip-PGA"
FRAGMENTS_1, FRAGMENTS_4, FRAGMENTS_16 = (f"fragments, K = {k}" for k in (1, 4, 16))
INT8, RANDOM_K = "int8", "random-k, 25 %"
NONE, COMPLETE, ALL_REDUCE = "none", "complete", "complete, all-reduce"

RIVALS: dict[str, Rival] = {
    **{f"EL-Oracle, s = {s}": Rival({"kind": "el-oracle", "s": s}, SEED) for s in (1, 2, 4, 7)},
    **{f"EL-Local, s = {s}": Rival({"kind": "el-local", "s": s}) for s in (1, 2, 4, 7)},
    BASE_2: Rival({"kind": "base", "k": 1}, f"{PLACES}, {SEED}"),
    BASE_8: Rival({"kind": "base", "k": 7}, f"{PLACES}, {SEED}"),
    ONE_PEER: Rival({"kind": "one-peer-exponential"}, PLACES),
    EXPONENTIAL: Rival({"kind": "exponential"}, f"{PLACES}, {FIXED}"),
    EQUISTATIC: Rival({"kind": "u-equistatic", "m": 4}, f"{FIXED}, {SEED}"),
    MATCHA: Rival({"kind": "matcha", "inner": {"kind": "regular", "s": S}}, f"{FIXED}, {SEED}"),
    PUSH_SUM: Rival(_LOCAL, NO_LOSS, {"kind": "push-sum"}, plain=False),
    QG: Rival(_ORACLE, SEED, {"kind": "qg-momentum"}, plain=False),
    TRACKING: Rival(_ORACLE, f"{SEED}, {NO_LOSS}", {"kind": "gradient-tracking"}, plain=False),
    PGA: Rival({"kind": "periodic", "inner": {"kind": "one-peer-exponential"}, "period": PERIOD, "cost": "all-reduce"}, f"{PLACES}, {EVERYBODY}"),
    **{f"fragments, K = {k}": Rival({"kind": "fragments", "inner": _LOCAL, "k": k}) for k in (1, 4, 16)},
    INT8: Rival(_ORACLE, SEED, compression={"kind": "int8"}, plain=False),
    RANDOM_K: Rival(_ORACLE, SEED, compression={"kind": "random-k", "share": SHARE}),
    NONE: Rival({"kind": "none"}),
    COMPLETE: Rival({"kind": "complete"}, EVERYBODY),
    ALL_REDUCE: Rival({"kind": "complete", "cost": "all-reduce"}, f"{EVERYBODY}, {NO_LOSS}"),
}  # fmt: skip
METHODS = tuple(RIVALS)
CONTROLS = (NONE, COMPLETE, ALL_REDUCE)


class Rivalry(Contest, frozen=True, kw_only=True):
    """The comparison of EL with its rivals at one scale: data, model and rounds."""

    item: ClassVar[str] = "rivals"
    over: ClassVar[str] = "the rounds"

    data: str
    model: dict[str, Any]
    rounds: int  # not a multiple of Gossip-PGA's period: it would be evaluated just when all nodes have the average
    every: int  # rounds, between two evaluations
    samples: int | str  # that are evaluated while training; all of them at the end

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods that are compared."""
        return METHODS

    @property
    def quarter(self) -> int:
        """The rounds of EL-Oracle whose bytes every method may send; evaluated then."""
        return max(round(BUDGET * self.rounds / self.every), 1) * self.every

    def table(self, method: str, lr: float) -> dict[str, Any]:
        """The experiment of a method, without its seeds."""
        rival = RIVALS[method]
        return {
            "name": method,
            "nodes": NODES,
            "rounds": self.rounds,
            "data": {"kind": self.data},
            "partition": {"kind": "dirichlet", "alpha": 0.1, "min_samples": 1 if self.data == "digits" else 10},
            "model": self.model,
            "topology": rival.topology,
            "algorithm": {"lr": lr, "local_steps": 3, "batch_size": 8, **rival.algorithm},
            "eval": {"every": self.every, "samples": self.samples},
            **({} if rival.compression is None else {"compression": rival.compression}),
        }


_CIFAR: dict[str, Any] = {"data": "cifar10", "model": {"kind": "gn-lenet"}, "rates": (0.0125, 0.025, 0.05, 0.1, 0.2)}

RIVALRIES: dict[SCALE, Rivalry] = {
    "smoke": Rivalry(
        data="digits", model={"kind": "mlp", "hidden": [32]}, rounds=50, every=2, samples=200, seeds=2,
        rates=(0.1, 0.2, 0.4, 0.8, 1.6), known={**dict.fromkeys(METHODS, 0.4), TRACKING: 0.2},
    ),
    "laptop": Rivalry(**_CIFAR, rounds=200, every=10, samples=300, seeds=1),
    "paper": Rivalry(**_CIFAR, rounds=2900, every=50, samples="all", seeds=5),
}  # fmt: skip


# -- A figure of many methods beside one: by how much each is ahead at equal rounds and at equal bytes, and what its mixing leaves --


SMALLEST, LARGEST = 1e-2, 1e2
"""Floors beyond these are drawn at the edge, and written out."""
REACH = 30.0
"""Leads of more points than this are drawn at the edge, as triangles, and written out."""


class MethodLead(msgspec.Struct, frozen=True):
    """A method: its leads in percentage points, and its floors."""

    name: str
    at_equal_rounds: Interval
    at_equal_bytes: Interval
    floors: FoundFloors


def leads_figure(
    entries: Sequence[MethodLead], titles: tuple[str, str, str], baseline: str, own: FoundFloors
) -> Figure:
    """Three panels with a line for each method: two of leads over the baseline with their intervals, one of floors.

    Green is ahead, red behind, grey where the interval has zero in it or there is none.
    """
    figure = new_figure(14.5, 1.6 + 0.27 * len(entries))
    rounds, traffic, floors = figure.subplots(1, 3, sharey=True, width_ratios=(4, 4, 3))
    for i, entry in enumerate(entries):
        _lead(rounds, i, entry.at_equal_rounds)
        _lead(traffic, i, entry.at_equal_bytes)
        for value, colour, marker in ((entry.floors.noise, GREY, "o"), (entry.floors.bias, BLUE, "D")):
            floors.plot(min(max(value, SMALLEST), LARGEST), i, marker, color=colour, markersize=5)
        if not SMALLEST <= entry.floors.bias <= LARGEST:
            small = entry.floors.bias < SMALLEST
            words, side = f"{entry.floors.bias:.3g}".replace("inf", "∞"), "left" if small else "right"
            floors.annotate(
                words, (1.3 * SMALLEST if small else LARGEST / 1.3, i), ha=side, va="center", fontsize=8, color=BLUE
            )
    for axes, title in zip((rounds, traffic), titles, strict=False):
        axes.axvline(0, color="0.4", linewidth=0.9)
        axes.set_xlim(-REACH, REACH)
        polish(axes, title, f"points ahead of {baseline}", "")
    floors.set_xscale("log")
    floors.axvline(own.noise, color=GREY, linewidth=0.9, linestyle=":")
    floors.axvline(own.bias, color=BLUE, linewidth=0.9, linestyle=":")
    floors.plot([], [], "o", color=GREY, label="noise floor F_N")
    floors.plot([], [], "D", color=BLUE, label="bias floor F_B")
    polish(floors, titles[2], f"log; dotted: {baseline}", "")
    floors.legend(frameon=False, fontsize=8, loc="center right")
    rounds.set_yticks(range(len(entries)), [entry.name for entry in entries], fontsize=9)
    rounds.invert_yaxis()
    return figure


def _lead(axes: Any, place: int, found: Interval) -> None:
    if math.isnan(found.mean):
        return
    half = found.half_width
    sure = half is not None and abs(found.mean) > half
    colour = GREY if not sure else GREEN if found.mean > 0 else RED
    if abs(found.mean) > REACH:
        side = math.copysign(1, found.mean)
        axes.plot(0.97 * side * REACH, place, ">" if side > 0 else "<", color=colour, markersize=6)
        axes.annotate(f"{found.mean:+.0f}", (0.94 * side * REACH, place), ha="right" if side > 0 else "left", va="center", fontsize=8, color=colour)  # fmt: skip
        return
    axes.errorbar(found.mean, place, xerr=half, fmt="o", color=colour, markersize=5, capsize=2.5, elinewidth=1.2)
