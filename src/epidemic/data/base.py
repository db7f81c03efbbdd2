"""What data is: samples to train on, samples to test on, and how raw numbers become model inputs.

Inputs stay as they are stored (bytes for images) and become floats batch by batch, `raw * scale + shift`, so that
CIFAR-10 takes 154 MB and not 614.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from epidemic.core.errors import BadInput, require_real
from epidemic.core.rng import Streams
from epidemic.core.settings import Settings
from epidemic.data.cache import Array as Array
from epidemic.data.cache import Origin, Stored, remembered

LARGEST_FLOAT = float(np.finfo(np.float32).max)
LARGEST_WHOLE = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, eq=False)
class Samples:
    """N inputs with their targets, and optionally the group (such as the writer) of each."""

    inputs: Array  # (N, ...) bytes or floats
    targets: Array  # (N,) class numbers, (N, ...) floats, or (N, ...) whole numbers (masks, token ids)
    groups: Array | None = None  # (N,) the producer of each sample (the writer), numbered from 0

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: Array) -> Samples:
        """Return the samples at the given positions, with their groups."""
        groups = None if self.groups is None else self.groups[index]
        return Samples(self.inputs[index], self.targets[index], groups)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Everything that a learning problem's data consists of."""

    train: Samples
    test: Samples
    classes: tuple[str, ...] = ()  # empty: the targets are not classes
    scale: float = 1.0
    shift: float = 0.0
    validation: Samples | None = None
    note: str = ""  # what should be known wherever a result from it is shown
    features: tuple[str, ...] = ()  # the names of the inputs, where they have some (the columns of a table)
    scales: tuple[tuple[float, float], ...] = ()  # mean and deviation that each feature was scaled by, where it was

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one input, without the axis of samples."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def evaluated(self) -> Samples:
        """The samples evaluated during training: the validation samples if there are any, otherwise the test samples."""
        return self.test if self.validation is None else self.validation


KnownSize = tuple[tuple[int, ...], int, int, int]
"""Input shape, classes, and about how many samples for training and testing."""


class Source(Settings, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Where data comes from; the fields are its configuration."""

    about: ClassVar[str] = ""
    built_in: ClassVar[bool] = False
    """Whether nothing has to be fetched or found."""
    size: ClassVar[KnownSize | None] = None
    """Of data that need not be there to plan a run; None: it must be there."""
    common: ClassVar[tuple[str, ...]] = ()
    """Settings that deployed nodes must share even if each has its own data."""

    path: str | None = None
    """File or directory of the data, where it needs one."""
    validation: float = 0.0
    """Share of the training samples that is set aside and evaluated instead of the test samples."""

    def __post_init__(self) -> None:
        require_real("data.validation", self.validation, 0, 0.9)

    def load(self) -> Dataset:
        """Read and check the data, and split off the validation samples; decoded data comes from the cache the next time."""
        if self.validation == 0:
            return self._remembered(lambda: prepared(self.read(), 0.0))
        # Set aside from a copy without validation samples, so that another share needs no decoding.
        whole = msgspec.structs.replace(self, validation=0.0)
        return self._remembered(lambda: prepared(whole.load(), self.validation))

    def read(self) -> Dataset:
        """Read and decode the data, without the cache. Each kind of source implements this."""
        raise NotImplementedError

    def differs_by_place(self) -> str | None:
        """Why nodes with data of their own cannot use these settings; None if they can."""
        return None

    def files(self) -> list[Path]:
        """All files that `read` reads, and folders whose names matter, if decoding is slow enough for the cache."""
        return []

    def _remembered(self, make: Callable[[], Dataset]) -> Dataset:
        files = self.files()
        if not files:
            return make()
        settings = {k: v for k, v in msgspec.to_builtins(self).items() if k != "path"}
        place = os.path.commonpath([file.absolute() for file in files])
        shown = {"kind": settings["kind"], "place": place}
        return _unpack(remembered(Origin(settings, place, files), lambda: _pack(make(), shown)))


def prepared(data: Dataset, validation: float) -> Dataset:
    """Check what was read, and set a stratified share of the training samples aside."""
    _check(data)
    train, test = _with_whole_numbers(data.train, "train"), _with_whole_numbers(data.test, "test")
    aside = None if data.validation is None else _with_whole_numbers(data.validation, "validation")
    data = replace(data, train=train, test=test, validation=aside)
    if validation == 0:
        return data
    size = round(len(data.train) * validation)
    if size < 1:
        raise BadInput(f"data.validation = {validation} of {len(data.train)} samples is nothing; use a larger share")
    chosen = stratified(data.train.targets, size, "validation")
    rest = np.setdiff1d(np.arange(len(data.train)), chosen)
    return replace(data, train=data.train.take(rest), validation=data.train.take(chosen))


def _pack(data: Dataset, about: dict[str, Any]) -> Stored:
    """Return the data as named arrays with a description, which is the form that the cache stores."""
    parts = {"train": data.train, "test": data.test, "validation": data.validation}
    arrays = {
        f"{part}.{name}": array
        for part, samples in parts.items()
        if samples is not None
        for name, array in (("inputs", samples.inputs), ("targets", samples.targets), ("groups", samples.groups))
        if array is not None
    }
    rest = {"classes": data.classes, "scale": data.scale, "shift": data.shift, "note": data.note}
    rest |= {"features": data.features, "scales": data.scales}
    return Stored(arrays, {**about, **rest})


def _unpack(stored: Stored) -> Dataset:
    def samples(part: str) -> Samples:
        inputs, targets = stored.arrays[f"{part}.inputs"], stored.arrays[f"{part}.targets"]
        return Samples(inputs, targets, stored.arrays.get(f"{part}.groups"))

    about = stored.about
    validation = samples("validation") if "validation.inputs" in stored.arrays else None
    return Dataset(
        samples("train"), samples("test"), tuple(about["classes"]), about["scale"], about["shift"], validation, about["note"],
        tuple(about.get("features", ())), tuple(tuple(scale) for scale in about.get("scales", ())),
    )  # fmt: skip


def as_floats(x: Array, what: str, first: int | None = 0) -> Array:
    """Numbers of 32 bits. One that is too large for that is named: by `what` and its row, counted from `first`; None: there are no rows."""
    with np.errstate(over="ignore"):
        found = x.astype(np.float32)
    lost = np.argwhere(np.isinf(found) & np.isfinite(x))
    if len(lost):
        row = "" if first is None else f" {lost[0][0] + first}"
        raise BadInput(
            f"{what}{row} has the number {x[tuple(lost[0])]:.4g}; the largest that a model can take is {LARGEST_FLOAT:.2g}:"
            " scale it down, or leave it out"
        )
    return found


def whole_numbers(y: Array, what: str) -> Array:
    """Class numbers, masks, token ids and the like, as integers of 64 bits."""
    if y.dtype.kind == "u" and y.size and y.max() > LARGEST_WHOLE:
        raise BadInput(f"{what} has the number {y.max()}; whole numbers up to {LARGEST_WHOLE} are possible")
    return y.astype(np.int64, copy=False)


def _with_whole_numbers(samples: Samples, what: str) -> Samples:
    """The same samples; targets that are integers or truth values of any width are integers of 64 bits."""
    if samples.targets.dtype.kind not in "biu" or samples.targets.dtype == np.int64:
        return samples
    return replace(samples, targets=whole_numbers(samples.targets, f"{what}_y"))


def stratified(targets: Array, size: int, purpose: str) -> NDArray[np.int64]:
    """The numbers of `size` samples, each class in proportion: always the same ones for the same targets."""
    stream = Streams(0)(purpose)
    order = stream.permutation(len(targets))
    if size >= len(targets):
        return np.arange(len(targets))
    if targets.ndim > 1 or not np.issubdtype(targets.dtype, np.integer):
        return np.sort(order[:size])
    by_class = order[np.argsort(targets[order], kind="stable")]  # classes one after the other, shuffled within
    picks = (np.arange(size) + 0.5) * len(targets) / size
    return np.sort(by_class[picks.astype(np.int64)])


def _check(data: Dataset) -> None:
    for what, samples in (("training", data.train), ("test", data.test)):
        if len(samples) == 0:
            raise BadInput(f"data has no {what} samples")
        if len(samples.targets) != len(samples):
            raise BadInput(f"data has {len(samples)} {what} inputs but {len(samples.targets)} targets")
        if not np.issubdtype(samples.inputs.dtype, np.integer) and not np.isfinite(samples.inputs).all():
            raise BadInput(f"data has {what} inputs that are not finite numbers")
        if not np.issubdtype(samples.targets.dtype, np.integer) and not np.isfinite(samples.targets).all():
            raise BadInput(f"data has {what} targets that are not finite numbers")
        if data.classes and (samples.targets.min() < 0 or samples.targets.max() >= len(data.classes)):
            raise BadInput(
                f"data has {what} labels from {samples.targets.min()} to {samples.targets.max()}, but {len(data.classes)} classes"
            )
    if data.train.inputs.shape[1:] != data.test.inputs.shape[1:]:
        raise BadInput(
            f"training inputs are {data.train.inputs.shape[1:]} but test inputs {data.test.inputs.shape[1:]}"
        )


def data_home() -> Path:
    """Where `epidemic data fetch` puts files: $EPIDEMIC_DATA, or the user's data directory."""
    if "EPIDEMIC_DATA" in os.environ:
        return Path(os.environ["EPIDEMIC_DATA"])
    return Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share")) / "epidemic"


def find_directory(path: str | None, name: str, *usual: Path) -> Path:
    """The given path, or the first usual location that exists."""
    if path is not None:
        if not Path(path).exists():
            raise BadInput(f"data.path = {path!r} does not exist")
        return Path(path)
    places = [data_home() / name, *usual]
    for place in places:
        if place.exists():
            return place
    from epidemic.data.fetch import DOWNLOADS  # it uses this file

    how = f"run 'epidemic data fetch {name}' or " if name in DOWNLOADS else ""
    raise BadInput(f"{name} is not in {' or '.join(map(str, places))}; {how}set data.path to its location")


def scaled_bytes() -> tuple[float, float]:
    """Scale and shift from 0..255 to [-1, 1], as the paper normalises."""
    return 2 / 255, -1.0
