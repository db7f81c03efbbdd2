"""A contest: methods on the same data, each with a learning rate that was found for it.

A comparison at the same learning rate is void, because a step does not move the network equally far under all methods. So each method's is
found on the same grid, on samples that are set aside for it and a seed that is used for nothing else.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import numpy as np

from epidemic.core.errors import NOT_FINITE, RunFailed, require_int
from epidemic.core.files import directory_name
from epidemic.experiment import Experiment, experiment_from, merged
from epidemic.report.results import Result, read_results
from epidemic.report.statistics import accuracy_of
from epidemic.study.batch import Job
from epidemic.study.reproduce.base import Request

TUNING_SEED = 1001
VALIDATION = 0.1


class Contest(msgspec.Struct, frozen=True, kw_only=True):
    """The methods of an item at one scale."""

    item: ClassVar[str]
    over: ClassVar[str]  # what the accuracy is averaged over where rates are compared

    seeds: int
    rates: tuple[float, ...]  # the grid
    known: dict[str, float] = {}  # rates that the same grid gave before; empty: they are found first

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods that are compared."""
        raise NotImplementedError

    def table(self, method: str, lr: float) -> dict[str, Any]:
        """The experiment of a method, without its seeds."""
        raise NotImplementedError

    def job(self, method: str, request: Request) -> Job:
        """The run of a method, with its own learning rate. The directory names the rate, so that another one is another run."""
        count = self.seeds if request.seeds is None else request.seeds
        require_int("--seeds", count, 1, 1000)
        lr = self.rate(method, request)
        experiment = _experiment(self.table(method, lr), list(range(1, count + 1)))
        return Job(request.out / "runs" / self.item / _directory(method, lr), experiment, f"{self.item}: {method}")

    def jobs(self, request: Request) -> list[Job]:
        """One job for each method."""
        return [self.job(method, request) for method in self.methods]

    def trials(self, method: str, request: Request) -> dict[float, Job]:
        """The runs that find a method's learning rate, by rate."""
        found = {}
        for lr in self.rates:
            tables = merged(self.table(method, lr), {"data": {"validation": VALIDATION}})
            where = request.out / "runs" / f"{self.item}-tuning" / f"tuning-{_directory(method, lr)}"
            found[lr] = Job(where, _experiment(tables, [TUNING_SEED]), f"{self.item} tuning: {method}, lr {lr:g}")
        return found

    def tuning(self, request: Request) -> list[Job]:
        """All of these runs; none where the rates are known."""
        return [] if self.known else [job for method in self.methods for job in self.trials(method, request).values()]

    def scores(self, method: str, request: Request) -> dict[float, float]:
        """By learning rate the accuracy on the samples set aside, mean over the run; of the runs that have finished."""
        return {lr: _throughout(job) for lr, job in self.trials(method, request).items() if job.finished}

    def rate(self, method: str, request: Request) -> float:
        """The best rate of the grid; the one in its middle as long as nothing has been tried."""
        if self.known:
            return self.known[method]
        found = self.scores(method, request)
        return max(found, key=lambda lr: found[lr]) if found else self.rates[len(self.rates) // 2]

    def at_edge(self, method: str, request: Request) -> bool:
        """Whether a better rate may lie outside the grid."""
        return self.rate(method, request) in (self.rates[0], self.rates[-1])

    def need(self, request: Request, failed: dict[str, str]) -> None:
        """A run that diverges while rates are tried is a result; anything else that fails is not."""
        for method in self.methods:
            trials = [] if self.known else list(self.trials(method, request).values())
            broken = [job.name for job in trials if job.name in failed and NOT_FINITE not in failed[job.name]]
            if trials and all(job.name in failed for job in trials):
                broken = [trials[0].name]
            for name in (*broken, self.job(method, request).name):
                if name in failed:
                    raise RunFailed(f"{name} failed: {failed[name]}")

    def result(self, method: str, request: Request) -> Result:
        """The result of a method over the requested seeds."""
        job = self.job(method, request)
        run = read_results(job.path).runs[0]
        kept = [seed for seed in run.seeds if seed.seed in set(job.experiment.seeds)]
        return Result(run.label, run.path, run.experiment, kept)

    def rate_notes(self, request: Request, failed: dict[str, str]) -> list[str]:
        """The grid, and how each rate of it did where that was found just now."""
        grid = ", ".join(f"{lr:g}" for lr in self.rates)
        how = f"mean accuracy over {self.over}, on {100 * VALIDATION:g} % of the training samples, set aside, seed {TUNING_SEED}"
        known = "found before with this grid" if self.known else "found with this grid"
        notes = [f"learning rates: each method's own, {known}: {grid} ({how})"]
        for method in () if self.known else self.methods:
            tried = [f"{lr:g}: {100 * score:.1f} %" for lr, score in self.scores(method, request).items()]
            tried += [f"{lr:g}: diverged" for lr, job in self.trials(method, request).items() if job.name in failed]
            edge = " (at the edge of the grid)" if self.at_edge(method, request) else ""
            notes.append(f"{method}: {', '.join(tried)}{edge}")
        return notes


def _experiment(table: dict[str, Any], seeds: list[int]) -> Experiment:
    return experiment_from({**table, "seeds": seeds})


def _directory(method: str, lr: float) -> str:
    return directory_name(f"{method}, lr {lr:g}")


def _throughout(job: Job) -> float:
    """Mean over the evaluations after the start: higher where learning is quicker."""
    records = read_results(job.path).runs[0].by_seed[0]
    return float(np.mean([accuracy_of(record) for record in records[1:]]))
