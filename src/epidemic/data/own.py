"""A user's own data: arrays in a file, or a function of theirs."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from epidemic.config import call_own, import_object
from epidemic.data.base import Array, Dataset, Samples, Source
from epidemic.errors import BadInput

MOST_CLASSES = 100_000


class Arrays(Source, frozen=True, tag="arrays"):
    """A NumPy .npz file with train_x, train_y, test_x, test_y, and optionally train_groups (whose sample it is)."""

    about: ClassVar[str] = "a NumPy .npz file with train_x, train_y, test_x, test_y (and train_groups)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is None:
            raise BadInput("data.path is missing: the .npz file")

    def read(self) -> Dataset:
        path = Path(str(self.path))
        if not path.is_file():
            raise BadInput(
                f"data.path = {str(path)!r} {'is a directory' if path.is_dir() else 'does not exist'}; give the .npz file"
            )
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                arrays = {key: stored[key] for key in stored.files}
        except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as problem:
            raise BadInput(f"{path} is not a readable .npz file of plain arrays ({problem})") from None
        missing = [key for key in ("train_x", "train_y", "test_x", "test_y") if key not in arrays]
        if missing:
            raise BadInput(f"{path} has no array {missing[0]!r}; it has {', '.join(sorted(arrays)) or 'none'}")
        return from_arrays(
            (arrays["train_x"], arrays["train_y"]), (arrays["test_x"], arrays["test_y"]), arrays.get("train_groups")
        )


class PythonData(Source, frozen=True, tag="python"):
    """The result of a user's own function, "module:function": a Dataset, or ((x, y), (test_x, test_y)) arrays."""

    about: ClassVar[str] = 'what your own function returns: "module:function"'

    function: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    def read(self) -> Dataset:
        made = call_own(
            import_object(self.function, "data.function"), self.options, f"data.function = {self.function!r}"
        )
        return as_dataset(made, f"data.function = {self.function!r}")


def as_dataset(made: Any, what: str) -> Dataset:
    """A Dataset from whatever a user hands over."""
    if isinstance(made, Dataset):
        return made
    try:
        (train_x, train_y), (test_x, test_y) = made
    except (TypeError, ValueError):
        raise BadInput(f"{what} must be a Dataset or ((x, y), (test_x, test_y)), not {type(made).__name__}") from None
    try:
        arrays = [np.asarray(a) for a in (train_x, train_y, test_x, test_y)]
    except Exception as problem:
        raise BadInput(f"{what} has something that is no array: {' '.join(str(problem).split())}") from None
    return from_arrays((arrays[0], arrays[1]), (arrays[2], arrays[3]))


def _plain(x: Array) -> Array:
    """Bytes stay bytes, whole numbers whole numbers; everything else becomes float."""
    if x.dtype == np.uint8:
        return x
    return x.astype(np.int64 if np.issubdtype(x.dtype, np.integer) else np.float32)


def from_arrays(train: tuple[Array, Array], test: tuple[Array, Array], groups: Array | None = None) -> Dataset:
    """Whole-number targets are classes 0, 1, ...; anything else is a quantity to predict."""
    for name, array in (("train_x", train[0]), ("train_y", train[1]), ("test_x", test[0]), ("test_y", test[1])):
        if array.dtype.kind not in "buif" or array.ndim == 0:
            raise BadInput(
                f"{name} must be an array of numbers with an axis of samples, not {array.dtype} of shape {array.shape}"
            )
    if train[1].dtype.kind == "b" or test[1].dtype.kind == "b":
        raise BadInput("labels are true or false; use whole numbers 0, 1, ... for classes")
    if np.issubdtype(train[1].dtype, np.integer) != np.issubdtype(test[1].dtype, np.integer):
        raise BadInput(
            f"training targets are of type {train[1].dtype} but test targets of {test[1].dtype}; give both the same"
        )
    if np.issubdtype(train[1].dtype, np.integer) and train[1].ndim == 1:
        labels = np.concatenate([train[1], test[1].ravel()])
        if labels.size and (labels.min() < 0 or labels.max() >= MOST_CLASSES):
            odd = labels.min() if labels.min() < 0 else labels.max()
            raise BadInput(
                f"labels must be 0, 1, ... up to {MOST_CLASSES - 1}, but one is {odd}; number the classes from 0"
            )
        names = tuple(str(i) for i in range(int(labels.max()) + 1 if labels.size else 0))
        targets = [y.astype(np.int64) for y in (train[1], test[1])]
    else:
        names = ()
        targets = [y.astype(np.float32) for y in (train[1], test[1])]
    if train[0].dtype.kind != test[0].dtype.kind or (train[0].dtype == np.uint8) != (test[0].dtype == np.uint8):
        raise BadInput(
            f"training inputs are of type {train[0].dtype} but test inputs of {test[0].dtype}; give both the same"
        )
    inputs = [_plain(x) for x in (train[0], test[0])]
    if groups is not None:
        if groups.ndim != 1 or len(groups) != len(inputs[0]):
            raise BadInput(f"train_groups has {len(groups)} entries, but there are {len(inputs[0])} training samples")
        groups = np.unique(groups, return_inverse=True)[1]
    scale = 1 / 255 if inputs[0].dtype == np.uint8 else 1.0
    return Dataset(Samples(inputs[0], targets[0], groups), Samples(inputs[1], targets[1]), names, scale)
