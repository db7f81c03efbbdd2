"""Records: one frozen row per evaluated round, written as it happens, read by reports; and how traffic is counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from epidemic.errors import BadInput
from epidemic.shown import html_table, number, percent, size

HEADER_BYTES = 256
"""What travels with each model besides its numbers: run, round, sender, graph digest, signature."""
CONTROL_BYTES = 128
"""A message without a model: the signed offer that precedes a model where receivers have a cap."""


class Spread(msgspec.Struct, frozen=True):
    """A quantity over the nodes; sd is that of the whole population."""

    mean: float
    sd: float
    min: float
    max: float

    @staticmethod
    def of(values: Any) -> Spread:
        """Of one number per node."""
        v = np.asarray(values, dtype=np.float64)
        return Spread(float(v.mean()), float(v.std()), float(v.min()), float(v.max()))


class OwnSpread(msgspec.Struct, frozen=True):
    """A user's own metric over the nodes; None where it is not a finite number."""

    mean: float | None
    sd: float | None
    min: float | None
    max: float | None

    @staticmethod
    def of(values: Any) -> OwnSpread:
        """Of one number per node."""
        with np.errstate(invalid="ignore"):  # infinite ones
            found = msgspec.structs.astuple(Spread.of(values))
        return OwnSpread(*(v if math.isfinite(v) else None for v in found))


class MeanMax(msgspec.Struct, frozen=True):
    """Over the nodes."""

    mean: float
    max: int


class Traffic(msgspec.Struct, frozen=True):
    """Bytes that a node has sent since the start: models, what travels with them, and messages without a model."""

    model: MeanMax
    header: MeanMax
    control: MeanMax
    total: MeanMax


class Living(msgspec.Struct, frozen=True):
    """Of the nodes that were up in the last round alone; the others' models stay as they were when they went down."""

    accuracy: Spread | None
    loss: Spread
    disagreement: float


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a run after `round` rounds: what the nodes' models are worth on the evaluated samples, and what was sent.

    `record.accuracy.mean` is over nodes, `record.mean_model_accuracy` that of the average of all models, `record.disagreement`
    D(X), `record.bytes.total.mean` the bytes that a node has sent since the start, `record.metrics["name"].mean` your own.
    """

    round: int
    seed: int
    alive: int  # nodes that were up in the last round
    accuracy: Spread | None = None  # over nodes; None where the targets are not classes
    loss: Spread
    mean_model_accuracy: float | None = None  # of the average of all models
    mean_model_loss: float | None = None  # a deployed node does not know the others' models
    train_loss: float | None = None  # mean over nodes in the last round
    disagreement: float | None = None  # D(X); a deployed node does not know it
    living: Living | None = None  # the same of the nodes that are up, where some are not
    bytes: Traffic
    metrics: dict[str, OwnSpread] = msgspec.field(default_factory=dict)  # a user's own

    def __repr__(self) -> str:
        accuracy = "" if self.accuracy is None else f"accuracy {percent(self.accuracy.mean)}, "
        apart = "" if self.disagreement is None else f"D {self.disagreement:.3g}, "
        found = f"{accuracy}loss {self.loss.mean:.4f}, {apart}sent {size(self.bytes.total.mean)} per node"
        return f"Record(round {self.round}, seed {self.seed}: {found})"

    def _repr_html_(self) -> str:
        heads = ["over nodes", "mean", "sd", "min", "max"]
        spreads: dict[str, Any] = {"accuracy": self.accuracy, "loss": self.loss, **self.metrics}
        rows = [
            [name, *(number(getattr(spread, part)) for part in heads[1:])]
            for name, spread in spreads.items()
            if spread is not None
        ]
        single = {
            "accuracy of the average model": self.mean_model_accuracy,
            "loss of the average model": self.mean_model_loss,
            "training loss": self.train_loss,
            "disagreement": self.disagreement,
        }
        rows += [[name, number(value), "", "", ""] for name, value in single.items() if value is not None]
        sent = self.bytes.total
        rows.append(["sent per node", size(sent.mean), "", "", size(sent.max)])
        return html_table(f"round {self.round}, seed {self.seed}, {self.alive} nodes up", rows, heads)


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came out of one seed. "best" is over the evaluated rounds, "final" on the full test set."""

    name: str
    seed: int
    rounds: int
    best_accuracy: float | None
    best_accuracy_round: int | None
    best_loss: float
    best_loss_round: int
    final_accuracy: Spread | None
    final_loss: Spread
    final_mean_model_accuracy: float | None
    final_mean_model_loss: float | None
    final_disagreement: float | None
    final_metrics: dict[str, OwnSpread]
    test_samples: int
    bytes: Traffic
    ended_early: str = ""  # why, if a callback ended the seed before all rounds were done


def encode(value: object) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(value) + b"\n"


def read_records(path: Path) -> tuple[list[Record], bool]:
    """The records of a file, and whether its last line was cut off (it is then left out)."""
    try:
        raw = path.read_bytes()
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}") from None
    lines = raw.split(b"\n")
    cut = lines.pop() != b""
    try:
        return [msgspec.json.decode(line, type=Record) for line in lines], cut
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise BadInput(f"{path} is not a file of records: {problem}") from None
