"""A callback that logs curves to Weights & Biases, each seed as a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from epidemic.callbacks.base import Callback
from epidemic.callbacks.scalars import numbers
from epidemic.data.images import need

if TYPE_CHECKING:
    from epidemic.learner import Learner
    from epidemic.record import Record, Summary
    from epidemic.runtime.setup import Setup


class WandB(Callback):
    """Logs the numbers of every record to Weights & Biases, each seed as a run in a group named like the experiment.

    Curves are drawn against rounds, under the simulated clock against simulated seconds. The run's configuration is the experiment; its summary has the final
    values on the full test set. A resumed seed is logged from its beginning, as a new run or, with `id`, in the old one.

    Needs the package wandb: pip install 'epidemic-learning[wandb]'. With `mode="offline"` nothing leaves the machine.

    Args:
        project: The project on Weights & Biases.
        id: A name for this run of the experiment; seed 3 is then ID-3 and resumes under this name.
        module: The package to log with; wandb itself by default.
        settings: Further arguments of `wandb.init`, for example mode="offline", dir="logs", entity, tags.

    Example:
        >>> ep.simulate(experiment, callbacks=[ep.callbacks.WandB("epidemic", mode="offline")])
    """

    def __init__(
        self, project: str | None = None, *, id: str | None = None, module: Any = None, **settings: Any
    ) -> None:
        self._wandb = need("wandb", "Weights & Biases", "wandb") if module is None else module
        self._settings = {"project": project, **settings}
        self._id = id
        self._run: Any = None
        self._count = 0  # records of this seed so far

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """Each seed is a run; one that an error left open has failed."""
        if self._run is not None:
            self._run.finish(exit_code=1)
        experiment = setup.experiment
        known = {} if self._id is None else {"id": f"{self._id}-{setup.seed}", "resume": "allow"}
        usual = {
            "group": experiment.name,
            "name": f"{experiment.name}, seed {setup.seed}",
            "config": msgspec.to_builtins({**experiment.table(), "seed": setup.seed}),
        }
        self._run = self._wandb.init(**{**usual, **self._settings, **known})
        self._count = 0

    def resumed(self, records: Sequence[Record]) -> None:
        """Log what the run does not know yet."""
        known = self._run.step  # a resumed run continues its count; a new one starts at 0
        for record in records:
            if (record.round if record.time is None else self._count) >= known:
                self.recorded(record)
            else:
                self._count += 1

    def recorded(self, record: Record) -> None:
        """Log it under its round; under the clock, where a round may have several records, under its number, drawn against seconds."""
        if record.time is None:
            self._run.log(numbers(record), step=record.round)
        else:
            if not self._count:
                self._run.define_metric("*", step_metric="seconds")
            self._run.log({"round": record.round, **numbers(record)}, step=self._count)
        self._count += 1

    def finished(self, summary: Summary) -> None:
        """The final values are the run's summary."""
        final = {
            "rounds": summary.rounds,
            "final_accuracy": None if summary.final_accuracy is None else summary.final_accuracy.mean,
            "final_mean_model_accuracy": summary.final_mean_model_accuracy,
            "final_loss": summary.final_loss.mean,
            "final_disagreement": summary.final_disagreement,
            "simulated_seconds": summary.seconds,
            "ended_early": summary.ended_early or None,
            **{f"final_{name}": spread.mean for name, spread in summary.final_metrics.items()},
        }
        self._run.summary.update({name: value for name, value in final.items() if value is not None})
        self._run.finish()
        self._run = None
