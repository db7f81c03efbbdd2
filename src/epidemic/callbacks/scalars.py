"""The numbers of a record by name, for plots and comparisons."""

from __future__ import annotations

from typing import Literal

from epidemic.core.errors import BadInput, suggestion
from epidemic.record import Record

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
