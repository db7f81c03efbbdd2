"""What a run tells while it goes on, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from epidemic.errors import BadInput
from epidemic.experiment import Experiment
from epidemic.host.plan import Plan
from epidemic.host.setup import Setup
from epidemic.learner import Layout, Learner
from epidemic.record import Record, Summary


class Observer:
    """Who wants to know how a run goes on; this one does not care about anything."""

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """A seed begins, or goes on after so many rounds."""

    def planned(self, plan: Plan, index: NDArray[np.int64]) -> None:
        """A round is about to be computed, on these samples.   # (n, r, b)"""

    def advanced(self, rounds_done: int, x: Tensor) -> None:
        """A round is done; these are the models.   # (n, d)"""

    def recorded(self, record: Record) -> None:
        """The models were evaluated."""

    def evaluating(self, what: str) -> None:
        """Something long without rounds begins."""

    def finished(self, summary: Summary) -> None:
        """A seed is done."""


@dataclass(frozen=True, eq=False)
class Models:
    """The final models of all nodes."""

    layout: Layout
    rows: Tensor  # (n, d)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, node: int) -> dict[str, Tensor]:
        return self.layout.state_dict(self.rows[node])

    @property
    def mean(self) -> dict[str, Tensor]:
        """The average of all models."""
        return self.layout.state_dict(self.rows.double().mean(0).to(self.rows.dtype))


@dataclass(frozen=True, eq=False)
class SeedRun:
    """What came out of one seed."""

    seed: int
    records: list[Record]
    summary: Summary
    rows: Models | None  # None if it was read back from a directory
    path: Path | None

    @property
    def models(self) -> Models:
        """The final models."""
        if self.rows is None:
            raise BadInput(f"the models of this finished run are in {self.path}; use epidemic export")
        return self.rows


@dataclass(frozen=True, eq=False)
class Run:
    """What came out of an experiment."""

    experiment: Experiment
    seeds: list[SeedRun]

    @property
    def records(self) -> list[Record]:
        """The records of all seeds."""
        return [record for seed in self.seeds for record in seed.records]

    @property
    def models(self) -> Models:
        """The final models of the first seed."""
        return self.seeds[0].models
