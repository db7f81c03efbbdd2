"""What TensorBoard and Weights & Biases are told of a run: the same numbers under the same names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from epidemic.callbacks.base import Callback
from epidemic.core.errors import BadInput, suggestion
from epidemic.data.images import need
from epidemic.record import MessageCounts, Record

if TYPE_CHECKING:
    from epidemic.learner import Learner
    from epidemic.record import Record, Summary
    from epidemic.runtime.setup import Setup


# -- The numbers of a record by name, for plots and comparisons ------------------------------------------------------


Better = Literal["max", "min"]

BUILT_IN: dict[str, Better | None] = {
    "accuracy": "max",
    "accuracy_min": "max",
    "accuracy_max": "max",
    "mean_model_accuracy": "max",
    "loss": "min",
    "loss_max": "min",
    "mean_model_loss": "min",
    "train_loss": "min",
    "disagreement": "min",
    "bytes": None,
    "alive": None,
}
"""Every number that a record may have, and whether more or less is better; a user's own metrics come in addition."""


SHARES = ("accuracy", "accuracy_min", "accuracy_max", "mean_model_accuracy")
"""Numbers that are shares of the samples, from 0 to 1."""


LATE = ("staleness", "staleness_95", "uplink")
"""Numbers that a record under the clock may lack: before the first message is used, or if uplinks have no limit. Nor is there a training
loss before the first round.
"""


def scalars(record: Record) -> dict[str, float | None]:
    """What a record knows, by name: accuracy and loss are means over nodes, bytes what a node has sent since the start.

    Under the simulated clock there are `Moment.numbers`, too: seconds, steps, messages, staleness, how busy nodes were.

    A metric of the user's own has its own name, or metric.NAME where that is taken. None is a number that is not finite.
    """
    accuracy = record.accuracy
    found: dict[str, float | None] = {
        "accuracy": None if accuracy is None else accuracy.mean,
        "accuracy_min": None if accuracy is None else accuracy.min,
        "accuracy_max": None if accuracy is None else accuracy.max,
        "mean_model_accuracy": record.mean_model_accuracy,
        "loss": record.loss.mean,
        "loss_max": record.loss.max,
        "mean_model_loss": record.mean_model_loss,
        "train_loss": record.train_loss,
        "disagreement": record.disagreement,
        "bytes": record.bytes.total.mean,
        "alive": float(record.alive),
    }
    found |= {} if record.time is None else record.time.numbers()
    known = {name: value for name, value in found.items() if value is not None}
    own = {f"metric.{name}" if name in found else name: spread.mean for name, spread in record.metrics.items()}
    return {**known, **own}


def numbers(record: Record) -> dict[str, float]:
    """The finite numbers of a record by name."""
    return {name: value for name, value in scalars(record).items() if value is not None}


def scalar(record: Record, name: str, where: str) -> float | None:
    """One of them; None if it is unknown this time: not finite, or before the first training."""
    found = scalars(record)
    if name in found:
        return found[name]
    late = {"train_loss", *(LATE if record.time is not None else ())}
    if name in late:
        return None
    known = {*found, *late}
    raise BadInput(f"{where}: metric = {name!r} is not in the records{suggestion(name, known)}")


# -- A callback that writes curves for TensorBoard, each seed in a directory of its own ------------------------------


TAGS = {
    "accuracy": "accuracy/mean",
    "accuracy_min": "accuracy/min",
    "accuracy_max": "accuracy/max",
    "mean_model_accuracy": "accuracy/average_model",
    "loss": "loss/mean",
    "loss_max": "loss/max",
    "mean_model_loss": "loss/average_model",
    "train_loss": "loss/training",
    "disagreement": "network/disagreement",
    "bytes": "network/bytes_sent_per_node",
    "alive": "network/nodes_up",
    "seconds": "time/simulated_seconds",
    "steps": "time/local_steps",
    "busy": "time/processors_busy",
    "uplink": "time/uplinks_busy",
    "online": "time/nodes_online",
    "staleness": "messages/staleness",
    "staleness_95": "messages/staleness_95",
    **{f"messages_{part}": f"messages/{part}" for part in MessageCounts.__struct_fields__},
}
"""What curves are called: what stands before the slash is a group on the page. A user's own metrics are in a group `metrics`."""


class TensorBoard(Callback):
    """Writes the numbers of every record as scalars for TensorBoard, each seed in a directory of its own.

    Accuracy, loss, training loss, disagreement, your own metrics, and the bytes sent, against rounds; under the simulated clock also against simulated time,
    which is then TensorBoard's "relative" axis. View them with `tensorboard --logdir DIR`. A resumed seed continues its curves: points beyond its checkpoint are
    replaced.

    Needs the package tensorboard: pip install 'epidemic-learning[tensorboard]'.

    Args:
        directory: Where to write; seed 3 goes to DIR/seed-3.

    Example:
        >>> ep.simulate(experiment, callbacks=[ep.callbacks.TensorBoard("logs/first")])
    """

    def __init__(self, directory: str | Path) -> None:
        need("tensorboard", "TensorBoard's curves", "tensorboard")
        self.directory = Path(directory)
        if self.directory.exists() and not self.directory.is_dir():
            raise BadInput(f"{self.directory} is a file; choose a directory for TensorBoard's curves")
        self._seed: Path | None = None
        self._open: Any = None

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """Open the directory of this seed."""
        self._close()
        self._seed = self.directory / f"seed-{setup.seed}"

    def resumed(self, records: Sequence[Record]) -> None:
        """Continue after the last record; write all of them if there are no curves yet."""
        assert self._seed is not None
        known = any(self._seed.glob("events.out.tfevents.*"))
        if known and records[-1].time is None:
            self._writer(purge=records[-1].round + 1)
            return
        for record in records:  # under the clock, a round may have several records, of which only some were kept
            if not known or record.round == records[-1].round:
                self.recorded(record)

    def recorded(self, record: Record) -> None:
        """Write it at once, because the process may be killed."""
        writer = self._writer(purge=record.round)
        when = None if record.time is None else record.time.seconds
        for name, value in numbers(record).items():
            writer.add_scalar(TAGS.get(name, f"metrics/{name}"), value, record.round, when)
        writer.flush()

    def finished(self, summary: Summary) -> None:
        """Close the seed's event file, so that it can be read whole."""
        self._close()

    def _writer(self, purge: int) -> Any:
        """The open file; a new one replaces what earlier ones hold of rounds from `purge` on."""
        if self._open is None:
            writer = need("torch.utils.tensorboard", "TensorBoard's curves", "tensorboard").SummaryWriter
            try:
                self._open = writer(str(self._seed), purge_step=purge)
            except OSError as problem:
                raise BadInput(
                    f"{self._seed} cannot be written: {problem.strerror}; choose another directory"
                ) from None
        return self._open

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


# -- A callback that logs curves to Weights & Biases, each seed as a run ---------------------------------------------


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
