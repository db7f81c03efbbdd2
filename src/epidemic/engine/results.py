"""What comes out of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from epidemic.errors import BadInput
from epidemic.experiment import Experiment
from epidemic.learner import Layout
from epidemic.record import Record, Summary


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
