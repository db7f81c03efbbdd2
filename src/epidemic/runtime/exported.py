"""Exported models: a file of tensors that says which run it is of, and what its inputs and outputs mean.

The description is JSON in the metadata of the safetensors file. Files come from elsewhere: nothing in them is executed, except a model of
the author's own (`model.kind = "python"`), which is named as in an experiment file and can be refused (`--no-code`).
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from epidemic.core.config import build_kind
from epidemic.core.errors import BadInput, argument
from epidemic.data import Dataset
from epidemic.data.labels import numbered
from epidemic.data.tables import numbers_of, read_table, scaled
from epidemic.models import MODELS, Model, PythonModel

KEY = "epidemic-export"
"""The key of the description in a file's metadata."""
MOST_COLUMNS = 10_000
"""Columns of a table that a run writes down; of wider ones no model can be applied to a table later."""
BATCH = 1024
"""Rows that a model is applied to at once."""


class TableColumn(msgspec.Struct, frozen=True, array_like=True):
    """A feature of a table, and by what it was scaled."""

    name: str
    mean: float = 0.0
    deviation: float = 1.0


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata of an exported model says."""

    experiment: str
    seed: int | None = None
    round: int | None = None
    node: int | None = None  # None: the average of all nodes
    model: dict[str, Any] = {}
    data: str = ""  # kind of the data
    target: str = ""  # the column that is predicted, for tables
    classes: tuple[str, ...] = ()  # empty: a quantity
    columns: tuple[TableColumn, ...] = ()  # empty: not a table, or too wide a one

    @property
    def scales(self) -> list[tuple[float, float]]:
        """Mean and deviation of each column."""
        return [(column.mean, column.deviation) for column in self.columns]


def columns_of(data: Dataset) -> dict[str, Any]:
    """What a run on a table writes down of its columns; nothing for other data."""
    if not 0 < len(data.features) <= MOST_COLUMNS:
        return {}
    scales = data.scales or ((0.0, 1.0),) * len(data.features)
    return {"columns": [[name, *scale] for name, scale in zip(data.features, scales, strict=True)]}


def describe(info: dict[str, Any] | None, node: int | None, round: int | None) -> dict[str, str]:
    """The metadata of a model that is exported from a run.

    Args:
        info: What run.json says.
        node: Whose model it is; None: the average.
        round: After how many rounds.
    """
    if info is None:
        return {}
    table = info["experiment"]
    about = Exported(
        experiment=str(table.get("name", "")),
        seed=info.get("seed"),
        round=round,
        node=node,
        model=table.get("model", {}),
        data=str(table.get("data", {}).get("kind", "")),
        target=str(table.get("data", {}).get("target", "")),
        classes=tuple(info.get("classes", ())),
        columns=msgspec.convert(info.get("columns", []), tuple[TableColumn, ...]),
    )
    return {KEY: msgspec.json.encode(about).decode()}


class ExportedModel(NamedTuple):
    """A model with what is known of it."""

    about: Exported
    module: nn.Module


def read_exported(path: Path) -> ExportedModel:
    """The model in a file that `epidemic export` wrote from a run on a table."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = None if text is None else msgspec.json.decode(text, type=Exported)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist; write it with 'epidemic export'") from None
    except (OSError, safetensors.SafetensorError, msgspec.DecodeError) as problem:
        reason = " ".join(str(problem).split())
        raise BadInput(f"{path} cannot be read as an exported model ({reason}); export it again") from None
    if about is None:
        raise BadInput(f"{path} does not say which run it is of; write it with 'epidemic export'")
    if not about.columns:
        raise BadInput(
            f"{path} was not trained on a table of at most {MOST_COLUMNS} columns (data.kind = {about.data!r}); load it in Python instead"
        )
    return ExportedModel(about, _module(about, tensors, path))


def _module(about: Exported, tensors: dict[str, Tensor], path: Path) -> nn.Module:
    model: Model = build_kind(about.model, MODELS, f"{path}: model")
    own = isinstance(model, PythonModel)
    with (
        nullcontext() if own else torch.device("meta")
    ):  # sizes that a file claims cost nothing before its tensors have them
        module = model.build((len(about.columns),), len(about.classes) or 1)
    try:
        module.load_state_dict(tensors, assign=not own)
    except RuntimeError as problem:
        reason = " ".join(str(problem).split())
        raise BadInput(f"{path} does not hold the model that it describes: {reason}; export it again") from None
    return module.eval()


class Predictions(NamedTuple):
    """What a model says of the rows of a table."""

    outputs: NDArray[np.float32]  # (N, classes) probabilities, or (N, 1) quantities
    known: float | None  # accuracy, or root of the mean squared error, where the table has the target
    kept: dict[str, list[Any]]  # columns that were asked for, as they are

    def table(self, about: Exported) -> dict[str, list[Any]]:
        """The columns to write: those that were kept, the prediction, and the probability of each class."""
        if not about.classes:
            return {**self.kept, "prediction": self.outputs[:, 0].tolist()}
        best = self.outputs.argmax(1)
        chances = {f"probability of {name}": self.outputs[:, i].tolist() for i, name in enumerate(about.classes)}
        return {**self.kept, "prediction": [about.classes[i] for i in best], **chances}


def predict(exported: ExportedModel, path: Path, separator: str = ",", keep: tuple[str, ...] = ()) -> Predictions:
    """Apply a model to each row of a CSV or Parquet file.

    Args:
        exported: From `read_exported`.
        path: The file; columns that the model does not take are ignored.
        separator: Between the columns of a CSV file.
        keep: Columns that are given back as they are, for example a patient's number.
    """
    about, module = exported
    frame = read_table(path, separator, "the table")
    there = [str(column) for column in frame.columns]
    for name in keep:
        if name not in there:
            raise BadInput(f"{argument('keep')} {name}: {path} has no such column; it has {', '.join(there[:20])}")
    numbers = numbers_of(frame, [column.name for column in about.columns], path)
    inputs = torch.from_numpy(scaled(numbers, about.scales))
    with torch.inference_mode():
        outputs = torch.cat([module(part).float() for part in torch.split(inputs, BATCH)])
    wanted = (len(inputs), len(about.classes) or 1)
    if not about.classes and outputs.shape == wanted[:1]:
        outputs = outputs[:, None]
    if tuple(outputs.shape) != wanted:
        raise BadInput(
            f"the model gives {tuple(outputs.shape)} numbers for {wanted[0]} rows, not {wanted}: one for each class, or one quantity, is needed"
        )
    if not torch.isfinite(outputs).all():
        row = int((~torch.isfinite(outputs)).any(1).nonzero()[0])
        raise BadInput(
            f"{path}: row {row + 1} gives a number that is not finite; its inputs are too far from the training data's"
        )
    found = (outputs.softmax(1) if about.classes else outputs).numpy()
    kept = {name: frame[name].tolist() for name in keep}
    return Predictions(found, _known(about, frame, found), kept)


def _known(about: Exported, frame: Any, outputs: NDArray[np.float32]) -> float | None:
    """How right the predictions are, where the table has the column that they are of."""
    if about.target not in [str(column) for column in frame.columns]:
        return None
    truth = frame[about.target]
    if truth.isna().any():
        return None
    if not about.classes:
        if getattr(truth.dtype, "kind", "O") not in "iuf":
            return None
        return float(np.sqrt(np.mean((outputs[:, 0] - truth.to_numpy(dtype=np.float64)) ** 2)))
    kind = getattr(truth.dtype, "kind", "O")
    labels = truth.to_numpy() if kind in "biu" else np.array(truth.astype(str).tolist(), dtype=np.str_)
    try:
        (numbers,) = numbered({f"{about.target}: row": labels}, declared=about.classes, first=1).targets
    except BadInput:  # classes that the model does not know
        return None
    return float((outputs.argmax(1) == numbers).mean())
