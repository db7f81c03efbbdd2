"""A user's own data: arrays in a file, a function, or objects given in Python."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np

from epidemic.core.config import call_own, import_object
from epidemic.core.errors import BadInput, plain
from epidemic.core.formatting import count
from epidemic.core.progress import tell
from epidemic.data.base import Array, Dataset, Samples, as_floats, whole_numbers
from epidemic.data.labels import Labelled, as_declared, is_label, numbered, one_hot, shown

OTHER_KINDS = {
    ".csv": 'use data.kind = "table" for tables',
    ".parquet": 'use data.kind = "table" for tables, "image-table" for pictures',
    ".npy": "it holds one array; np.savez(path, train_x=..., train_y=..., test_x=..., test_y=...) saves all four",
}


class Arrays(Labelled, frozen=True, tag="arrays"):
    """A NumPy .npz file with train_x, train_y, test_x, test_y, and optionally train_groups (the producer of each sample)."""

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
        if path.suffix.lower() in OTHER_KINDS:
            raise BadInput(f"data.path = {str(path)!r} is no .npz file: {OTHER_KINDS[path.suffix.lower()]}")
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                arrays = {key: stored[key] for key in stored.files}
        except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as problem:
            raise BadInput(f"{path} is not a readable .npz file of plain arrays ({problem})") from None
        missing = [key for key in ("train_x", "train_y", "test_x", "test_y") if key not in arrays]
        if missing:
            raise BadInput(f"{path} has no array {missing[0]!r}; it has {', '.join(sorted(arrays)) or 'none'}")
        train, test = (arrays["train_x"], arrays["train_y"]), (arrays["test_x"], arrays["test_y"])
        return from_arrays(train, test, arrays.get("train_groups"), declared=self.classes)


class PythonData(Labelled, frozen=True, tag="python"):
    """The result of a user's own function, "module:function".

    It returns a Dataset, a pair of torch.utils.data.Dataset, or ((x, y), (test_x, test_y)) arrays.
    """

    about: ClassVar[str] = 'what your own function returns: "module:function"'

    function: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    def read(self) -> Dataset:
        made = call_own(
            import_object(self.function, "data.function"), self.options, f"data.function = {self.function!r}"
        )
        return as_dataset(made, f"data.function = {self.function!r}", self.classes)


def as_dataset(made: Any, what: str, declared: Sequence[str] | None = None) -> Dataset:
    """A Dataset from what a user gives: one, a pair of sample sets, or arrays."""
    if isinstance(made, Dataset):
        return made if declared is None else as_declared(made, declared)
    if is_sample_set(made):
        refuse_endless(made, what)
        raise BadInput(f"{what} is a single {type(made).__name__}; give a pair of them, (train, test)")
    if isinstance(made, tuple | list) and len(made) == 2 and any(map(is_sample_set, made)):
        return _from_samples(made[0], made[1], what, declared)
    try:
        (train_x, train_y), (test_x, test_y) = made
    except (TypeError, ValueError):
        raise BadInput(
            f"{what} must be a Dataset, ((x, y), (test_x, test_y)), or two torch.utils.data.Dataset (train, test),"
            f" not {type(made).__name__}"
        ) from None
    try:
        arrays = [np.asarray(a) for a in (train_x, train_y, test_x, test_y)]
    except Exception as problem:
        raise BadInput(f"{what} has something that is no array: {' '.join(str(problem).split())}") from None
    return from_arrays((arrays[0], arrays[1]), (arrays[2], arrays[3]), declared=declared)


def _from_samples(train: Any, test: Any, what: str, declared: Sequence[str] | None) -> Dataset:
    """From two sample sets, each read once from its first to its last sample."""
    for part in (train, test):
        if not is_sample_set(part):
            raise BadInput(
                f"{what} is a pair of a data set and a {type(part).__name__}; give two data sets, (train, test)"
            )
    read = [read_samples(train, f"{what} (train)"), read_samples(test, f"{what} (test)")]
    if read[0].classes != read[1].classes and None not in (read[0].classes, read[1].classes):
        names = [shown(part.classes or ()) for part in read]
        raise BadInput(
            f"{what}: train has the classes {names[0]}, but test {names[1]}; their numbers would contradict each other"
        )
    own = read[0].classes or read[1].classes
    data = from_arrays((read[0].inputs, read[0].labels), (read[1].inputs, read[1].labels), own=own, declared=declared)
    sets = ((train, read[0], f"{what} (train)"), (test, read[1], f"{what} (test)"))
    return replace(data, note="; ".join(filter(None, (data.note, *(drawn_once(*one) for one in sets)))))


def from_arrays(
    train: tuple[Array, Array],
    test: tuple[Array, Array],
    groups: Array | None = None,
    *,
    own: Sequence[str] | None = None,
    declared: Sequence[str] | None = None,
) -> Dataset:
    """Names, whole numbers and truth values as targets are classes; anything else is a quantity to predict."""
    for name, array in (("train_x", train[0]), ("test_x", test[0])):
        if array.dtype.kind not in "buif" or array.ndim == 0:
            raise BadInput(
                f"{name} must be an array of numbers with an axis of samples, not {array.dtype} of shape {array.shape}"
            )
    if train[0].dtype.kind != test[0].dtype.kind or (train[0].dtype == np.uint8) != (test[0].dtype == np.uint8):
        raise BadInput(
            f"training inputs are of type {train[0].dtype} but test inputs of {test[0].dtype}; give both the same"
        )
    targets, names, note = _targets(train[1], test[1], own, declared)
    inputs = [_plain(x, f"{name}: sample") for name, x in (("train_x", train[0]), ("test_x", test[0]))]
    if groups is not None:
        if groups.ndim != 1 or len(groups) != len(inputs[0]):
            raise BadInput(f"train_groups has {len(groups)} entries, but there are {len(inputs[0])} training samples")
        groups = np.unique(groups, return_inverse=True)[1]
    scale = 1 / 255 if inputs[0].dtype == np.uint8 else 1.0
    return Dataset(Samples(inputs[0], targets[0], groups), Samples(inputs[1], targets[1]), names, scale, note=note)


def _plain(x: Array, what: str) -> Array:
    """Bytes stay bytes, whole numbers whole numbers; everything else becomes float."""
    if x.dtype == np.uint8:
        return x
    return x.astype(np.int64) if np.issubdtype(x.dtype, np.integer) else as_floats(x, what)


def _targets(
    train: Array, test: Array, own: Sequence[str] | None, declared: Sequence[str] | None
) -> tuple[list[Array], tuple[str, ...], str]:
    """Class numbers with the classes' names, or quantities without; and a note."""
    for name, y in (("train_y", train), ("test_y", test)):
        if y.ndim == 0 or not (y.dtype.kind in "biuf" or is_label(y)):
            raise BadInput(
                f"{name} must be an array with one label or some numbers for each sample, not {y.dtype} of shape {y.shape}"
            )
        if y.dtype.kind in "iu" and one_hot(y):
            raise BadInput(
                f"{name} of shape {y.shape} is one-hot; give the numbers of the classes, {name}.argmax(1),"
                " or floats for quantities to predict"
            )
    if (train.dtype.kind == "f") != (test.dtype.kind == "f"):
        raise BadInput(
            f"training targets are of type {train.dtype} but test targets of {test.dtype}; give both the same"
        )
    if train.shape[1:] != test.shape[1:]:
        raise BadInput(f"training targets are of shape {train.shape[1:]} each, but test targets {test.shape[1:]}")
    if is_label(train) and is_label(test):
        found = numbered({"training sample": train, "test sample": test}, own, declared)
        return found.targets, found.classes, found.note
    if declared is not None:
        raise BadInput(f"data.classes = {shown(declared)}, but the targets are quantities to predict; leave it out")
    parts = (("train_y", train), ("test_y", test))
    if train.dtype.kind == "f":
        return [as_floats(y, f"{name}: sample") for name, y in parts], (), ""
    note = (
        f"whole-number targets of shape {train.shape[1:]} are taken as quantities to predict by squared error,"
        " and as they are by a loss of your own"
    )
    return [whole_numbers(y, name) for name, y in parts], (), note


# -- Sample sets, PyTorch's map-style data sets: anything with a length that returns (input, label) by number --------
# Every sample is read once, so a random transformation is drawn once as well. A few are read again, to report that where it matters.


READ_AGAIN = 8
"""Samples that are read twice; an image that is mirrored at random stays the same in all of them once in 256 cases."""


class SampleSet(Protocol):
    """A map-style data set, torch.utils.data.Dataset for instance."""

    def __len__(self) -> int:
        """Return the number of samples of the set."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """One sample: an input (picture, array or tensor) and its label."""
        ...


@dataclass(frozen=True, eq=False)
class Read:
    """All samples of a data set of PyTorch, as arrays."""

    inputs: Array  # (N, ...)
    labels: Array  # (N,) or (N, ...)
    classes: tuple[str, ...] | None  # as the set names them


def is_sample_set(thing: Any) -> bool:
    """Whether an object returns samples by number, and is not an array or a list of numbers."""
    torch_data = sys.modules.get("torch.utils.data")  # such an object implies that it was imported
    if torch_data is not None and isinstance(thing, torch_data.Dataset | torch_data.DataLoader):
        return True
    if isinstance(thing, tuple | list | dict | str | bytes) or hasattr(thing, "__array__"):
        return False
    return hasattr(thing, "__iter__") or (hasattr(thing, "__getitem__") and hasattr(thing, "__len__"))


def refuse_endless(samples: Any, what: str) -> None:
    """Refuse what has no samples by number."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(samples, torch_data.DataLoader):
        raise BadInput(f"{what} is a DataLoader, which makes batches; give its data set, loader.dataset")
    iterable = torch_data is not None and isinstance(samples, torch_data.IterableDataset)
    if iterable or not hasattr(samples, "__getitem__") or not hasattr(samples, "__len__"):
        raise BadInput(
            f"{what} is a {type(samples).__name__}, which has no samples by number or no length (it may have no end);"
            " give one with __len__ and __getitem__"
        )


def read_samples(samples: Any, what: str) -> Read:
    """All samples of a set, from the first to the last."""
    refuse_endless(samples, what)
    try:
        size = len(samples)
    except (TypeError, NotImplementedError, OverflowError) as problem:
        raise BadInput(f"{what} has no length: {' '.join(str(problem).split())}") from None
    if size == 0:
        raise BadInput(f"{what} has no samples")
    inputs: Array | None = None
    labels: list[Any] = []
    for i in range(size):
        if i % 100 == 0:
            tell(f"{what}, samples", i, size)
        x, y = _sample(samples, i, what)
        if inputs is None:
            inputs = _room(size, x, what)
        if x.shape != inputs.shape[1:] or x.dtype != inputs.dtype:
            raise BadInput(
                f"sample {i} of {what} is {x.dtype} of shape {x.shape}, but the first is {inputs.dtype} of shape"
                f" {inputs.shape[1:]}; all must be alike: resize or convert them"
            )
        if labels and type(y) is not type(labels[0]):
            raise BadInput(
                f"sample {i} of {what} has a label of type {type(y).__name__}, but the first of {type(labels[0]).__name__}"
            )
        inputs[i] = x
        labels.append(y)
    assert inputs is not None
    try:
        targets = np.array(labels)
    except (ValueError, OverflowError) as problem:
        raise BadInput(f"{what} has labels of different shapes: {' '.join(str(problem).split())}") from None
    return Read(inputs, targets, _classes(samples))


def drawn_once(samples: Any, read: Read, what: str) -> str:
    """A warning if some of the first samples differ when read again: a random transformation is drawn only once."""
    for i in range(min(READ_AGAIN, len(read.labels))):
        x, y = _sample(samples, i, what)
        before = read.inputs[i]
        same = x.shape == before.shape and np.array_equal(x, before, equal_nan=x.dtype.kind == "f")
        if not same or not np.array_equal(np.asarray(y), read.labels[i]):
            return (
                f"sample {i} of {what} is another one when it is read again (a random transformation?);"
                " every sample is read once, and stays as it was drawn then"
            )
    return ""


def _sample(samples: Any, i: int, what: str) -> tuple[Array, Any]:
    """An input as an array, and its label: a plain value, or an array of numbers."""
    try:
        found = samples[i]
    except Exception as problem:
        reason = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        raise BadInput(f"sample {i} of {what} cannot be read: {plain(reason, 300)}") from problem
    if not isinstance(found, tuple | list) or len(found) != 2:
        length = f" of {len(found)}" if isinstance(found, tuple | list) else ""
        raise BadInput(f"sample {i} of {what} must be (input, label), not a {type(found).__name__}{length}")
    try:
        x, y = _input(found[0], f"sample {i} of {what}"), _array(found[1])
    except BadInput:
        raise
    except (TypeError, ValueError, RuntimeError) as problem:
        reason = " ".join(str(problem).split())
        raise BadInput(f"sample {i} of {what} is no picture, array or tensor with a label: {plain(reason)}") from None
    if x.dtype.kind not in "buif":
        raise BadInput(f"sample {i} of {what} has an input of type {x.dtype}; give numbers")
    return x, y.item() if y.ndim == 0 else y


def _input(x: Any, what: str) -> Array:
    """Pictures as (channels, height, width) bytes; numbers in as few types as the rest knows. `what` it is, for messages."""
    if hasattr(x, "getbands") and hasattr(x, "convert"):  # a picture of Pillow's
        if x.mode in ("I", "F") or x.mode.startswith("I;"):
            return np.asarray(x, dtype=np.float32)[None]
        pixels = np.asarray(x if x.mode in ("L", "RGB") else x.convert("RGB"))
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    array = _array(x)
    if array.dtype == np.uint8 or array.dtype.kind not in "buif":
        return array
    return array.astype(np.int64) if array.dtype.kind in "iu" else as_floats(array, what, None)


def _array(x: Any) -> Array:
    if hasattr(x, "detach"):  # a tensor, perhaps of a type or on a device that NumPy does not know
        x = x.detach().cpu()
        x = x.double() if x.is_floating_point() else x
    return np.asarray(x)


def _room(size: int, x: Array, what: str) -> Array:
    try:
        return np.empty((size, *x.shape), dtype=x.dtype)
    except (MemoryError, ValueError):
        needed = size * x.nbytes / 2**30
        raise BadInput(
            f"{what} has {count(size, 'sample')} of {x.nbytes:,} bytes, which need {needed:,.0f} GiB of memory; use fewer or smaller ones"
        ) from None


def _classes(samples: Any) -> tuple[str, ...] | None:
    """The names of its classes, or of those of the set that it is a part of (torch.utils.data.Subset)."""
    for _ in range(8):
        names = getattr(samples, "classes", None)
        if isinstance(names, tuple | list) and names and all(isinstance(name, str) for name in names):
            return tuple(names)
        samples = getattr(samples, "dataset", None)
    return None
