"""The item `async`: who reaches an accuracy first where some links are slow, beside what DivShare publishes.

DivShare reports to be up to 3.9 times faster to an accuracy than AD-PSGD with stragglers (Biswas et al., 2024). Its program's AD-PSGD is another
one than ours: after each training it sends its model to three nodes and goes on without waiting, so it sends more and is held up
by thin links; ours is that of Lian et al. (2018), one exchange at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from epidemic.core.formatting import interval
from epidemic.record import HEADER_BYTES
from epidemic.report.curves import MIB, MethodCurve, race_figure
from epidemic.report.palette import LineStyle
from epidemic.report.results import Result
from epidemic.report.statistics import (
    FIRST,
    MOST,
    CostToTarget,
    Interval,
    accuracy_of,
    cost,
    curve,
    node_seconds,
    over_seeds,
    until,
)
from epidemic.study.reproduce.base import SCALE, Check, Item, ItemResult, Request, Verdict, ahead
from epidemic.study.reproduce.contests import Contest

# -- Who learns fastest where some links are slow: the experiments of the item `async`, at every scale ---------------
# The setting is DivShare's (Biswas et al., 2024, arXiv 2410.12918): 60 nodes, of which 7 have thin uplinks (the device file stragglers-60),
# degree 6, latency 1 ms, five shards of the data for each node, batches of 8.
#
# How long a training takes is not published, and it decides how much slow links matter: where computing is slower still, not at all. Here
# a training takes as long as a fast device needs to send ten models, at every scale; a straggler then has time for two.
# All other times follow from that, so that a small model on embedded data meets the same network.
#
# Gossip Learning and AD-PSGD send about one model a training, EL and DivShare six; asynchronous EL with one (s = 1) is there to tell
# what that makes.


NODES, DEGREE, DEVICES = 60, 6, "stragglers-60"
FAST_MBIT = 60.0
LATENCY = 0.001

TRAINING = 10
"""A training takes as long as a fast device needs for so many messages."""
DEADLINE = 8
"""So long after its training a node waits for messages, where rounds have a deadline: six messages of a fast device, and some more."""
JITTER = 0.1
"""Sigma of the lognormal law of training times, so that no nodes run in step by accident."""

NEIGHBOURS, QUORUM, DEADLINES, SCHEDULE = "EL neighbours", "EL quorum", "EL deadline", "EL schedule"
ASYNC_EL, ONE_MESSAGE = "async EL", "async EL, s = 1"
GOSSIP, AD_PSGD, DIVSHARE = "Gossip Learning", "AD-PSGD", "DivShare"
IN_ROUNDS = (NEIGHBOURS, QUORUM, DEADLINES, SCHEDULE)
METHODS = (*IN_ROUNDS, ASYNC_EL, ONE_MESSAGE, GOSSIP, AD_PSGD, DIVSHARE)


class Race(Contest, frozen=True, kw_only=True):
    """The comparison of asynchronous and synchronous methods at one scale: data, model and clock."""

    item: ClassVar[str] = "async"
    over: ClassVar[str] = "the time that there is"

    data: str
    model: dict[str, Any]
    parameters: int  # of the model
    local_steps: int
    trainings: int  # for which there is time, where nobody waits
    evaluations: int
    samples: int | str  # that are evaluated
    fragments: int = 10  # of DivShare

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods that are compared."""
        return METHODS

    @property
    def message(self) -> float:
        """Seconds that a fast device needs to send one model."""
        return (4 * self.parameters + HEADER_BYTES) * 8 / (FAST_MBIT * 1e6)

    @property
    def training(self) -> float:
        """The mean duration of a training in seconds."""
        return TRAINING * self.message

    @property
    def stop(self) -> float:
        """The simulated seconds that every method has."""
        return _seconds(self.trainings * self.training)

    @property
    def rounds(self) -> int:
        """A few more than there is time for, so that it is time that ends a run."""
        return self.trainings + self.trainings // 10 + 5

    def table(self, method: str, lr: float) -> dict[str, Any]:
        """The experiment of a method, without its seeds."""
        own = self._own(method)
        return {
            "name": method,
            "nodes": NODES,
            "rounds": self.rounds,
            "data": {"kind": self.data},
            "partition": {"kind": "shards", "shards": 5, "min_samples": 1},
            "model": self.model,
            "topology": own.get("topology", {"kind": "el-local", "s": DEGREE}),
            "algorithm": {"lr": lr, "local_steps": self.local_steps, "batch_size": 8, **own.get("algorithm", {})},
            "eval": {"every": self.rounds, "samples": self.samples},
            "clock": {
                "devices": DEVICES,
                "links": {"latency": LATENCY},
                "compute": {
                    "kind": "per-step",
                    "median": _seconds(self.training / self.local_steps),
                    "sigma": JITTER,
                    "mean_one": True,
                },
                "stop": self.stop,
                "evaluate": _seconds(self.stop / self.evaluations),
                **({"close": own["close"]} if "close" in own else {}),
            },
        }

    def _own(self, method: str) -> dict[str, Any]:
        """The settings of one method only."""
        one = {"kind": "el-local", "s": 1}
        owned: dict[str, dict[str, Any]] = {
            NEIGHBOURS: {"close": {"kind": "barrier"}},
            QUORUM: {"close": {"kind": "quorum", "q": 0.75}},
            DEADLINES: {"close": {"kind": "deadline", "seconds": _seconds(DEADLINE * self.message)}},
            SCHEDULE: {"close": {"kind": "schedule", "seconds": _seconds((TRAINING + DEADLINE) * self.message)}},
            ASYNC_EL: {"algorithm": {"kind": "async-el"}},
            ONE_MESSAGE: {"topology": one, "algorithm": {"kind": "async-el"}},
            GOSSIP: {"topology": one, "algorithm": {"kind": "gossip-learning", "period": _seconds(self.training)}},
            AD_PSGD: {"topology": {"kind": "complete"}, "algorithm": {"kind": "ad-psgd"}},
            DIVSHARE: {"algorithm": {"kind": "divshare", "fragments": self.fragments}},
        }
        return owned[method]


def _seconds(value: float) -> float:
    """Whole microseconds, which is what the clock has."""
    return round(value, 6)


RACES: dict[SCALE, Race] = {
    "smoke": Race(
        data="digits", model={"kind": "mlp", "hidden": [32]}, parameters=2410, local_steps=3, trainings=24, evaluations=24,
        samples=100, fragments=4, seeds=2, rates=(0.05, 0.1, 0.2, 0.4, 0.8),
        known={**dict.fromkeys(METHODS, 0.4), AD_PSGD: 0.2},
    ),
    "laptop": Race(
        data="cifar10", model={"kind": "gn-lenet"}, parameters=89_834, local_steps=16, trainings=80, evaluations=20,
        samples=300, seeds=1, rates=(0.01, 0.025, 0.05, 0.1, 0.25),
    ),
    "paper": Race(
        data="cifar10", model={"kind": "gn-lenet"}, parameters=89_834, local_steps=128, trainings=1600, evaluations=40,
        samples="all", seeds=5, rates=(0.01, 0.025, 0.05, 0.1, 0.25),
    ),
}  # fmt: skip


PUBLISHED = 3.9
"""Times faster than AD-PSGD, at best (abstract of arXiv 2410.12918)."""
ROUGHLY = 0.25
"""Direction and rough size are the check: what a training takes is not published."""
SHARE = 0.9
"""The target is this share of the best accuracy of AD-PSGD, mean over seeds, so that each of its seeds gets there."""

LOOKS = {
    **{name: LineStyle(variant=i, word=0) for i, name in enumerate(IN_ROUNDS)},
    **{name: LineStyle(word=word) for name, word in ((ASYNC_EL, 1), (GOSSIP, 2), (AD_PSGD, 6), (DIVSHARE, 4))},
    ONE_MESSAGE: LineStyle(variant=1, word=1),
}
"""Variants of a method have one colour, and dashes."""


class TimeToTarget:
    """What a method took to the target, seed by seed."""

    def __init__(self, result: Result, target: float) -> None:
        self.result, self.target = result, target
        self.costs: list[CostToTarget] = [cost(records, target) for records in result.by_seed]
        nodes = [node_seconds(records, target) for records in result.by_seed]
        self.seconds = over_seeds([one.seconds for one in self.costs])
        self.steps = over_seeds([one.steps for one in self.costs])
        self.bytes = over_seeds([one.bytes for one in self.costs])
        self.first = over_seeds([until(times, FIRST) for times in nodes])
        self.most = over_seeds([until(times, MOST) for times in nodes])
        self.average = Interval.of([records[-1].mean_model_accuracy or 0.0 for records in result.by_seed])
        self.best = Interval.of([max(map(accuracy_of, records)) for records in result.by_seed])

    @property
    def resolution(self) -> float:
        """Seconds between two evaluations: smaller differences cannot be resolved."""
        return float(self.result.experiment["clock"]["evaluate"])

    @property
    def reaching(self) -> int:
        """How many seeds reach the target."""
        return sum(one.reached for one in self.costs)

    @property
    def when(self) -> str:
        """Write the seconds to the target with their interval, or how many seeds reach it."""
        return interval(self.seconds) if self.seconds else f"{self.reaching} of {len(self.costs)} seeds"

    def earlier(self, other: TimeToTarget) -> Interval | None:
        """By how many seconds before another, seed by seed; None where some seed never gets there."""
        return self._compared(other, lambda mine, theirs: theirs - mine)

    def faster(self, other: TimeToTarget) -> Interval | None:
        """How many times faster than another, seed by seed."""
        return self._compared(other, lambda mine, theirs: theirs / mine)

    def _compared(self, other: TimeToTarget, by: Callable[[float, float], float]) -> Interval | None:
        pairs = zip(self.costs, other.costs, strict=True)
        return over_seeds(
            [by(a.seconds or 0.0, b.seconds or 0.0) if a.reached and b.reached else None for a, b in pairs]
        )


def _find(request: Request, failed: dict[str, str]) -> ItemResult:
    race = RACES[request.scale]
    race.need(request, failed)
    found = {method: race.result(method, request) for method in METHODS}
    target = SHARE * max(curve(found[AD_PSGD].by_seed, "accuracy").mean)
    standings = {method: TimeToTarget(result, target) for method, result in found.items()}
    baseline = standings[AD_PSGD]
    missing = _shortfall(race, request, found)
    checks = [_published(standings[DIVSHARE], baseline, missing), _lead(DIVSHARE, AD_PSGD, standings, "abstract")]
    checks += [_lead(method, NEIGHBOURS, standings, "our guess") for method in (QUORUM, DEADLINES, SCHEDULE, ASYNC_EL)]
    lines = [
        MethodCurve(method, "other", result.by_seed, look=LOOKS[method], free=method not in IN_ROUNDS)
        for method, result in found.items()
    ]
    data = {"digits": "digits (smoke)", "cifar10": "CIFAR-10"}[race.data]
    figure = race_figure(
        lines, f"60 nodes, 7 with slow links, {data}", target, AD_PSGD, ("published of DivShare, at best", PUBLISHED)
    )
    rows = [_row(race, method, request, standings) for method in METHODS]
    table = [_shown(row, standings[row["method"]], baseline) for row in rows]
    title = f"Until {100 * target:.1f} % (mean over nodes), and until a tenth and nine tenths of the nodes had it themselves"
    return ItemResult(checks, rows, figure, _notes(race, request, target, missing, failed), (title, table))


# -- verdicts ---------------------------------------------------------------------------------------------------------


def _published(ours: TimeToTarget, baseline: TimeToTarget, missing: str) -> Check:
    """DivShare's own number: comparable where its experiment is."""
    ratio = ours.faster(baseline)
    what = f"DivShare: times faster than AD-PSGD to {100 * ours.target:.1f} %"
    if ratio is None:
        verdict: Verdict = "not comparable" if missing else "open"
        reason = f"{ours.reaching} and {baseline.reaching} of {len(ours.costs)} seeds reach it; {missing}".removesuffix(
            "; "
        )
        return Check(what=what, ours=None, expected=PUBLISHED, claim="up to", verdict=verdict, reason=reason)
    off = abs(ratio.mean - PUBLISHED)
    inside = ratio.half_width is None or off <= ratio.half_width
    verdict = "agrees" if off <= ROUGHLY * PUBLISHED else "open" if inside else "differs"
    return Check(
        what=what, ours=ratio.mean, half_width=ratio.half_width, expected=PUBLISHED, claim="up to",
        verdict="not comparable" if missing else verdict, reason=missing or f"agrees within {100 * ROUGHLY:g} %",
    )  # fmt: skip


def _lead(one: str, other: str, standings: dict[str, TimeToTarget], source: str) -> Check:
    """The lead of one method over another, judged by its sign: an interval without zero, and more than the resolution."""
    ours, theirs = standings[one], standings[other]
    what = f"{one}: seconds before {other}"
    lead = ours.earlier(theirs)
    if lead is None:
        reason = f"the target is reached by {ours.reaching} and {theirs.reaching} of {len(ours.costs)} seeds"
        return Check(what=what, ours=None, claim="> 0", source=source, verdict="open", reason=reason)
    check = msgspec.structs.replace(ahead(what, lead, None, claim="> 0"), source=source, digits=3)
    if check.verdict != "open" and not _told_apart(lead, ours.resolution):
        return msgspec.structs.replace(check, verdict="open", reason="not more than the time between two evaluations")
    return check


def _told_apart(lead: Interval, resolution: float) -> bool:
    """Whether it is longer than the time between two evaluations; times are whole microseconds."""
    return abs(lead.mean) > resolution + 1e-6


def _judged(lead: Interval | None, resolution: float) -> str:
    """A lead needs an interval without zero, and one seed has none."""
    if (
        lead is None
        or lead.half_width is None
        or abs(lead.mean) <= lead.half_width
        or not _told_apart(lead, resolution)
    ):
        return "open"
    return "faster" if lead.mean > 0 else "slower"


def _shortfall(race: Race, request: Request, found: dict[str, Result]) -> str:
    """How it falls short of DivShare's experiment; empty at its own scale."""
    full = RACES["paper"]
    seeds = len(found[AD_PSGD].seeds)
    missing = []
    if race.data != full.data:
        missing.append("other data and another model")
    if race.local_steps < full.local_steps:
        missing.append(f"{race.local_steps} of {full.local_steps} local steps")
    if race.trainings < full.trainings:
        missing.append(f"time for {race.trainings:,} of {full.trainings:,} trainings")
    if seeds < full.seeds:
        missing.append(f"{seeds} of {full.seeds} seeds")
    about = {seed.info.data for run in found.values() for seed in run.seeds if seed.info.data}
    return ", ".join([*missing, *sorted(about)])


# -- what is shown ----------------------------------------------------------------------------------------------------


def _row(race: Race, method: str, request: Request, standings: dict[str, TimeToTarget]) -> dict[str, Any]:
    one, baseline = standings[method], standings[AD_PSGD]
    last = [records[-1] for records in one.result.by_seed]
    times = [record.time for record in last if record.time is not None]
    row: dict[str, Any] = {"method": method, "lr": race.rate(method, request), "seeds": len(last), "target": one.target}
    row["seeds_reaching_target"] = one.reaching
    for name, value, factor in (
        ("best_accuracy", one.best, 1.0),
        ("final_accuracy_of_the_average_model", one.average, 1.0),
        ("seconds_to_target", one.seconds, 1.0),
        ("first_nodes_to_target", one.first, 1.0),
        ("most_nodes_to_target", one.most, 1.0),
        ("steps_to_target", one.steps, 1.0),
        ("mib_to_target", one.bytes, 1 / MIB),
        ("seconds_before_ad_psgd", one.earlier(baseline), 1.0),
        ("times_faster_than_ad_psgd", one.faster(baseline), 1.0),
    ):
        row[name] = None if value is None else factor * value.mean
        row[f"{name}_half_width"] = None if value is None or value.half_width is None else factor * value.half_width
    row["seconds_in_all"] = times[0].seconds
    row["steps_in_all"] = sum(time.steps for time in times) / len(times)
    row["mib_in_all"] = sum(record.bytes.total.mean for record in last) / len(last) / MIB
    row["messages_used"] = sum(time.messages.used / time.messages.sent for time in times) / len(times)
    return row


def _shown(row: dict[str, Any], one: TimeToTarget, baseline: TimeToTarget) -> dict[str, str]:
    """The printed form of a row."""
    same = one is baseline
    return {
        "method": row["method"],
        "lr": f"{row['lr']:g}",
        "best (%)": interval(one.best, 100, 1),
        "average (%)": interval(one.average, 100, 1),
        "seconds": one.when,
        "10 %": interval(one.first),
        "90 %": interval(one.most),
        "steps": interval(one.steps, digits=0),
        "MiB": interval(one.bytes, 1 / MIB, 2),
        "times AD-PSGD": "1" if same else interval(one.faster(baseline)),
        "": "" if same else _judged(one.earlier(baseline), one.resolution),
    }


def _notes(race: Race, request: Request, target: float, missing: str, failed: dict[str, str]) -> list[str]:
    notes = [
        f"target: {100 * target:.1f} %, {SHARE:g} of the best of AD-PSGD. seconds, steps, MiB: of the first evaluation that has it (every {race.stop / race.evaluations:.3g} s)",
        "times AD-PSGD: its seconds divided by those of the method, seed by seed; faster or slower where the difference is more than its interval and than the time between two evaluations, else open",
        f"a training takes {race.training:.3g} s (as long as a fast device needs for ten models; DivShare does not say), and there are {race.stop:.3g} s",
        *race.rate_notes(request, failed),
    ]
    notes.append(
        "DivShare's program has another AD-PSGD: three models after each training, and nobody waits; here it is that of Lian et al. (2018), one exchange at a time"
    )
    notes.append(
        "average: the accuracy of the average of all models at the end. Models are looked at as they rest: those of EL and DivShare have just been averaged, those of AD-PSGD and Gossip Learning just trained"
    )
    if missing:
        notes.append(f"not DivShare's whole experiment: {missing}")
    return notes


ASYNC = Item(
    "async",
    "Time to accuracy with slow links: rounds, and methods without",
    _find,
    lambda request: RACES[request.scale].jobs(request),
    expected_from="DivShare",
    first=lambda request: RACES[request.scale].tuning(request),
)
