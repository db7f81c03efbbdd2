"""Sample sets, PyTorch's map-style data sets: anything with a length that returns (input, label) by number.

Every sample is read once, so a random transformation is drawn once as well. A few are read again, to report that where it matters.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from epidemic.core.errors import BadInput, plain
from epidemic.core.reading import tell
from epidemic.data.base import Array, as_floats

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
            f"{what} has {size:,} samples of {x.nbytes:,} bytes, which need {needed:,.0f} GiB of memory; use fewer or smaller ones"
        ) from None


def _classes(samples: Any) -> tuple[str, ...] | None:
    """The names of its classes, or of those of the set that it is a part of (torch.utils.data.Subset)."""
    for _ in range(8):
        names = getattr(samples, "classes", None)
        if isinstance(names, tuple | list) and names and all(isinstance(name, str) for name in names):
            return tuple(names)
        samples = getattr(samples, "dataset", None)
    return None
