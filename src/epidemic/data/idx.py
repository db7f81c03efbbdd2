"""MNIST and Fashion-MNIST in their IDX files, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from importlib.resources import as_file, files
from pathlib import Path
from typing import ClassVar

import numpy as np

from epidemic.core.errors import BadInput
from epidemic.data.base import Array, Dataset, KnownSize, Samples, Source, find_directory, scaled_bytes, stratified

FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist installs it."""


class MNIST(Source, frozen=True, tag="mnist"):
    """70,000 handwritten digits of 28 x 28 pixels, from IDX files."""

    about: ClassVar[str] = "70,000 handwritten digits of 28 x 28 pixels (IDX files)"

    def files(self) -> list[Path]:
        return idx_files(find_directory(self.path, "mnist"))

    def read(self) -> Dataset:
        return read_idx_pair(find_directory(self.path, "mnist"), tuple(str(i) for i in range(10)))


class FashionMNIST(Source, frozen=True, tag="fashion-mnist"):
    """70,000 pictures of clothes of 28 x 28 pixels, from IDX files; finds Debian's package dataset-fashion-mnist."""

    about: ClassVar[str] = (
        "70,000 pictures of clothes of 28 x 28 pixels (IDX files; finds Debian's dataset-fashion-mnist)"
    )

    def files(self) -> list[Path]:
        return idx_files(find_directory(self.path, "fashion-mnist", DEBIAN))

    def read(self) -> Dataset:
        return read_idx_pair(find_directory(self.path, "fashion-mnist", DEBIAN), FASHION)


def idx_files(directory: Path) -> list[Path]:
    """The usual four files, as far as they are there."""
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    found = [_idx_file(directory, f"{split}-{kind}") for split in ("train", "t10k") for kind in kinds]
    return [path for path in found if path is not None]


def read_idx_pair(directory: Path, classes: tuple[str, ...]) -> Dataset:
    """The usual four files: images and labels, training and test."""
    parts = []
    for split in ("train", "t10k"):
        images = read_idx(directory, f"{split}-images-idx3-ubyte", 3)
        labels = read_idx(directory, f"{split}-labels-idx1-ubyte", 1)
        parts.append(Samples(images[:, None], labels.astype(np.int64)))
    return Dataset(parts[0], parts[1], classes, *scaled_bytes())


def read_idx(directory: Path, name: str, dimensions: int) -> Array:
    """One IDX file of unsigned bytes, `name` or `name.gz`."""
    path = _idx_file(directory, name)
    if path is None:
        raise BadInput(f"{directory} has no {name} or {name}.gz")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as problem:
        raise BadInput(f"{path} is truncated or corrupt ({problem}); fetch it again") from None
    start = 4 + 4 * dimensions
    if len(raw) < start or raw[:4] != bytes([0, 0, 8, dimensions]):
        raise BadInput(f"{path} is not an IDX file of {dimensions}-dimensional bytes")
    shape = tuple(int(d) for d in np.frombuffer(raw, ">u4", dimensions, 4))
    if len(raw) - start != math.prod(shape):
        raise BadInput(
            f"{path} is truncated or corrupt: {len(raw) - start} bytes of data where {math.prod(shape)} belong"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _idx_file(directory: Path, name: str) -> Path | None:
    return next((p for p in (directory / name, directory / f"{name}.gz") if p.is_file()), None)


# -- Data that ships with the package; sources and licences are in embedded/NOTICE -----------------------------------


def _embedded(name: str) -> dict[str, Array]:
    with as_file(files("epidemic.data") / "embedded" / name) as path, np.load(path, allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


class _Embedded(Source, frozen=True):
    built_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is not None:
            raise BadInput(f"data.path = {self.path!r}: this data is embedded in the package; leave the path out")


class Fashion(_Embedded, frozen=True, tag="fashion"):
    """Embedded: 8,000 + 2,000 images of Fashion-MNIST, reduced to 14 x 14."""

    about: ClassVar[str] = "embedded: Fashion-MNIST reduced to 14 x 14 pixels, 8,000 training and 2,000 test images"
    size: ClassVar[KnownSize | None] = (1, 14, 14), 10, 10_000, 2000

    def read(self) -> Dataset:
        stored = _embedded("fashion.npz")
        train = Samples(stored["train_x"], stored["train_y"].astype(np.int64))
        test = Samples(stored["test_x"], stored["test_y"].astype(np.int64))
        return Dataset(train, test, FASHION, *scaled_bytes())


class Digits(_Embedded, frozen=True, tag="digits"):
    """Embedded: the 1,797 real handwritten digits of 8 x 8 pixels; every fifth (stratified) is for testing."""

    about: ClassVar[str] = "embedded: 1,797 handwritten digits of 8 x 8 pixels, 360 of them for testing"
    size: ClassVar[KnownSize | None] = (1, 8, 8), 10, 1437, 360

    def read(self) -> Dataset:
        stored = _embedded("digits.npz")
        x, y = stored["x"], stored["y"].astype(np.int64)
        test = stratified(y, 360, "digits-test")
        train = np.setdiff1d(np.arange(len(y)), test)
        names = tuple(str(i) for i in range(10))
        return Dataset(Samples(x[train], y[train]), Samples(x[test], y[test]), names, 2 / 16, -1.0)
