"""Data that ships with the package; sources and licences are in embedded/NOTICE."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import ClassVar

import numpy as np

from epidemic.core.errors import BadInput
from epidemic.data.base import Array, Dataset, KnownSize, Samples, Source, scaled_bytes, stratified
from epidemic.data.idx import FASHION


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
