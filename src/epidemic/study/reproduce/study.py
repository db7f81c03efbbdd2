"""The results of some methods of a setting: what is drawn of them, and what of them is compared with the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from epidemic.core.rng import Streams
from epidemic.mixing import spectrum, weights
from epidemic.record import Record
from epidemic.report.curves import MethodCurve
from epidemic.report.results import Result, read_results
from epidemic.report.statistics import Interval, curve, mean_cost
from epidemic.study.reproduce import studies
from epidemic.study.reproduce.base import Check, Request, Verdict
from epidemic.study.reproduce.studies import EQUISTATIC, Method

Value = Callable[[list[Record]], float]


class Study:
    """The results of some methods of a setting."""

    def __init__(self, setting: studies.Setting, methods: Sequence[Method], request: Request) -> None:
        self.setting, self.request = setting, request
        self.found: dict[str, Result] = {}
        for method in methods:
            job = setting.job(method, request)
            seeds = set(job.experiment.seeds)
            run = read_results(job.path).runs[0]
            kept = [seed for seed in run.seeds if seed.seed in seeds]
            self.found[method.name] = Result(run.label, run.path, run.experiment, kept)
        about = {seed.info.data for run in self.found.values() for seed in run.seeds if seed.info.data}
        self.shortfall = ", ".join([part for part in (studies.shortfalls(request, setting), *sorted(about)) if part])
        real = "CIFAR-10 (JPEG copy)" if any("JPEG" in text for text in about) else "CIFAR-10"
        self.data = "Fashion-MNIST (smoke)" if request.scale == "smoke" else real

    def lines(self, methods: Sequence[Method], names: Sequence[str] | None = None) -> list[MethodCurve]:
        """Lines of a figure, under their own or other names; those of one kind are told apart by their dashes."""
        kinds = [self.found[m.name].kind for m in methods]
        names = [m.name for m in methods] if names is None else names
        return [
            MethodCurve(name, kinds[i], self.found[m.name].by_seed, kinds[:i].count(kinds[i]))
            for i, (m, name) in enumerate(zip(methods, names, strict=True))
        ]

    def lead(self, one: Method, other: Method, value: Value) -> Interval:
        """By how many percentage points one method is ahead, seed by seed."""
        pairs = zip(self.found[one.name].by_seed, self.found[other.name].by_seed, strict=True)
        return Interval.of([100 * (value(a) - value(b)) for a, b in pairs])

    def accuracy(self, method: Method, value: Value) -> Interval:
        """Return an accuracy of a method over its seeds, in percent, with its interval."""
        return Interval.of([100 * value(records) for records in self.found[method.name].by_seed])

    def to_target(self, method: Method, target: float) -> tuple[float, float] | None:
        """Round and bytes sent per node at the first evaluation whose mean over seeds reaches the target."""
        found, _ = mean_cost(self.found[method.name].by_seed, target)
        return (found.rounds, found.bytes) if found.reached else None

    def number(self, what: str, ours: Interval, paper: float, tolerance: float, digits: int = 2) -> Check:
        """A number of the paper: comparable where the experiment is the paper's own."""
        off = abs(ours.mean - paper)
        reason = self.shortfall or f"agrees within {tolerance:g}"
        inside = ours.half_width is None or off <= ours.half_width
        verdict: Verdict = "agrees" if off <= tolerance else "open" if inside else "differs"
        return Check(
            what=what, ours=ours.mean, half_width=ours.half_width, expected=paper, digits=digits,
            verdict="not comparable" if self.shortfall else verdict, reason=reason,
        )  # fmt: skip

    def curves(self) -> list[dict[str, Any]]:
        """Return the data of the figure: one row for each method and evaluated round."""
        rows = []
        for name, run in self.found.items():
            parts = {what: curve(run.by_seed, what) for what in ("accuracy", "loss", "bytes", "disagreement")}
            for i, t in enumerate(parts["accuracy"].rounds):
                row: dict[str, Any] = {"method": name, "seeds": len(run.seeds), "round": t}
                for what, found in parts.items():
                    row[what] = found.mean[i]
                    if what in ("accuracy", "loss") and len(run.seeds) > 1:
                        row[f"{what}_half_width"] = found.half_width[i]
                rows.append(row)
        return rows

    def notes(self) -> list[str]:
        """What the reader should know: how far the experiment is from the paper's, and how well U-EquiStatic was drawn."""
        said = []
        if self.request.scale == "smoke":
            said.append(
                "smoke: other data and another model than the paper's, with the learning rates that it tuned on CIFAR-10 (0.1 for"
                " complete and 8-U-EquiStatic, else 0.05); only the signs of leads can be compared"
            )
        elif self.shortfall:
            said.append(f"not the paper's whole experiment: {self.shortfall}")
        if EQUISTATIC.name in self.found:
            experiment = self.setting.experiment(EQUISTATIC, self.request.seeds)
            rule, sigmas = experiment.mixing_rule, []
            for seed in experiment.seeds:
                graph = experiment.topology.graph(experiment.nodes, 0, Streams(seed))
                sigmas.append(spectrum(weights(rule, graph)).sigma)
            listed = ", ".join(f"{sigma:.3f}" for sigma in sigmas)
            said.append(
                f"sigma of 8-U-EquiStatic's random offsets, by seed: {listed} (median of all draws 0.828; 1: disconnected)"
            )
        return said
