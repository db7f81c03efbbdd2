"""The results of a run."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from epidemic.core.errors import BadInput
from epidemic.core.files import read_json
from epidemic.core.formatting import count, html_table, number, percent, size
from epidemic.experiment import Experiment
from epidemic.learner import Layout
from epidemic.record import Record, Summary
from epidemic.runtime.more_rounds import SUMMARY
from epidemic.runtime.saved_models import load_models


@dataclass(frozen=True, eq=False, repr=False)
class Models:
    """The final models of all nodes: `models[3]` for `module.load_state_dict`, `models.mean` for their average."""

    layout: Layout
    rows: Tensor  # (n, d)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, node: int) -> dict[str, Tensor]:
        limit = f"there {'is' if len(self) == 1 else 'are'} {len(self)}, from 0 to {len(self) - 1}"
        try:
            number = operator.index(node)
        except TypeError:
            raise BadInput(f"node {node!r} must be the number of a node: {limit}") from None
        if not 0 <= number < len(self):
            raise BadInput(f"node {number}: {limit}")
        return self.layout.state_dict(self.rows[number])

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self[node] for node in range(len(self)))

    def __repr__(self) -> str:
        return f"Models({count(len(self), 'node')}, {self.rows.shape[1]:,} numbers each)"

    @property
    def mean(self) -> dict[str, Tensor]:
        """The average of all models."""
        return self.layout.state_dict(self.rows.double().mean(0).to(self.rows.dtype))


def models_in(path: Path, module: nn.Module, rounds: int) -> Callable[[], Models]:
    """A function that reads a seed's models after `rounds` rounds from its directory, when they are first needed."""
    where, module = path.absolute(), copy.deepcopy(module).cpu()

    def read() -> Models:
        if not where.is_dir():
            raise BadInput(f"{where} is gone, and with it the models of this run; keep it, or run without a directory")
        found = (read_json(where / SUMMARY) or {}).get("rounds")
        if found != rounds:
            raise BadInput(
                f"{where} does not hold the models of this run any more, which had {count(rounds, 'round')}:"
                " it has continued; simulate(..., resume=True) reads the current state"
            )
        return Models(*load_models(where, module))

    return read


@dataclass(frozen=True, eq=False, repr=False)
class SeedRun:
    """The results of one seed.

    Attributes:
        seed: The seed.
        records: One for each evaluated round.
        summary: Best and final values; the final ones on the full test set.
        path: Its run directory, or None if nothing was written.
    """

    seed: int
    records: list[Record]
    summary: Summary
    path: Path | None
    read_models: Callable[[], Models]

    @cached_property
    def models(self) -> Models:
        """The final models: `models[3]` is the state dict of node 3, `models.mean` that of the average, `models.rows` (n, d).

        They are read from the run directory, if there is one, on first use; buffers that a module does not save then have their initial values.
        """
        return self.read_models()

    def __repr__(self) -> str:
        early = ", ended early" if self.summary.ended_early else ""
        return f"SeedRun(seed {self.seed}: {count(self.summary.rounds, 'round')}{early}, {', '.join(self._found())})"

    def _repr_html_(self) -> str:
        s = self.summary
        rows: list[tuple[str, object]] = [("rounds", s.rounds)]
        if s.ended_early:
            rows.append(("ended early", s.ended_early))
        if s.final_accuracy is not None:
            a = s.final_accuracy
            rows.append(("accuracy over nodes", f"{percent(a.mean)} ({percent(a.min)} to {percent(a.max)})"))
            rows.append(("accuracy of the average model", percent(s.final_mean_model_accuracy)))
        rows.append(("loss over nodes", f"{s.final_loss.mean:.4f}"))
        rows += [(name, "-" if m.mean is None else f"{m.mean:.4g}") for name, m in s.final_metrics.items()]
        rows.append(("disagreement", number(s.final_disagreement)))
        rows.append(("sent per node", size(s.bytes.total.mean)))
        return html_table(f"{s.name}, seed {self.seed}", rows)

    def _found(self) -> list[str]:
        s = self.summary
        accuracy = [] if s.final_accuracy is None else [f"accuracy {percent(s.final_accuracy.mean)}"]
        return [*accuracy, f"loss {s.final_loss.mean:.4f}", f"sent {size(s.bytes.total.mean)} per node"]


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """The results of an experiment."""

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
