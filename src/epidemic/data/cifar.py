"""CIFAR-10: the official archives (Python or binary form, packed or unpacked), and the Hugging Face parquet layout.

The Python form consists of pickles. Only files with the published checksum are read, and by an unpickler that knows
nothing but NumPy arrays.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from epidemic.core.errors import BadInput
from epidemic.data.base import Array, Dataset, KnownSize, Samples, Source, find_directory, scaled_bytes
from epidemic.data.image_tables import read_pictures

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN = [f"data_batch_{i}" for i in range(1, 6)]
ARCHIVES = {
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
}
PICKLES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
JPEG = "a JPEG copy of CIFAR-10, which has lost details"
RECORD = 3073  # a label and 3 x 32 x 32 pixels
RECORDS = 10_000  # in each file of the binary form


class CIFAR10(Source, frozen=True, tag="cifar10"):
    """60,000 colour pictures of 32 x 32 pixels in ten classes."""

    about: ClassVar[str] = "60,000 colour pictures of 32 x 32 pixels (official archives or Hugging Face parquet)"
    size: ClassVar[KnownSize | None] = (3, 32, 32), 10, 50_000, 10_000

    def files(self) -> list[Path]:
        return _found(find_directory(self.path, "cifar10")).files

    def read(self) -> Dataset:
        train, test, note = _found(find_directory(self.path, "cifar10")).read()
        return Dataset(train, test, CLASSES, *scaled_bytes(), note=note)


class _Form(NamedTuple):
    """One of the forms of CIFAR-10: its files, and how to read them."""

    files: list[Path]
    read: Callable[[], tuple[Samples, Samples, str]]  # the last is what should be known about it


def _found(place: Path) -> _Form:
    """The form that is at the given path."""
    if place.is_file():
        return _parquet_form(place.parent) if place.suffix == ".parquet" else _archive_form(place)
    for name in ARCHIVES:
        if (place / name).is_file():
            return _archive_form(place / name)
    for directory in (place, place / "cifar-10-batches-bin"):
        if (directory / "test_batch.bin").is_file():
            return _batches_form(directory, ".bin", partial(_binary_file, directory))
    for directory in (place, place / "cifar-10-batches-py"):
        if (directory / "test_batch").is_file():
            return _batches_form(directory, "", partial(_pickled, directory))
    for directory in (place, place / "plain_text"):
        if any(directory.glob("*.parquet")):
            return _parquet_form(directory)
    raise BadInput(
        f"{place} holds no CIFAR-10: looked for {', '.join(ARCHIVES)}, their unpacked folders, and train-*.parquet / test-*.parquet"
    )


def _archive_form(path: Path) -> _Form:
    return _Form([path], lambda: (*_archive(path), ""))


def _batches_form(directory: Path, suffix: str, read: Callable[[str], tuple[Array, Array]]) -> _Form:
    return _Form([directory / (name + suffix) for name in (*TRAIN, "test_batch")], lambda: (*_batches(read), ""))


def _parquet_form(directory: Path) -> _Form:
    files = [path for split in ("train", "test") for path in _parquet_files(directory, split)]
    return _Form(files, lambda: _parquet(directory))


def _batches(read: Callable[[str], tuple[Array, Array]]) -> tuple[Samples, Samples]:
    parts = [read(name) for name in TRAIN]
    train = Samples(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))
    return train, Samples(*read("test_batch"))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}") from None


def _archive(path: Path) -> tuple[Samples, Samples]:
    raw = _bytes(path)
    found = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    if found not in ARCHIVES.values():
        raise BadInput(
            f"{path} has md5 {found}, not that of an official CIFAR-10 archive ({', '.join(ARCHIVES.values())}); fetch it again"
        )
    binary = found == ARCHIVES["cifar-10-binary.tar.gz"]
    members: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    members[Path(member.name).name] = content.read()
        if binary:
            return _batches(lambda name: _binary(members[f"{name}.bin"], path))
        return _batches(lambda name: _unpickle(members[name], path))
    except (tarfile.TarError, EOFError, KeyError) as problem:
        raise BadInput(f"{path} is not a complete CIFAR-10 archive ({problem})") from None


def _binary_file(directory: Path, name: str) -> tuple[Array, Array]:
    return _binary(_bytes(directory / f"{name}.bin"), directory / f"{name}.bin")


def _binary(raw: bytes, path: Path) -> tuple[Array, Array]:
    if len(raw) == 0 or len(raw) % RECORD:
        raise BadInput(
            f"{path}: {len(raw)} bytes are not a whole number of {RECORD}-byte records; the file is truncated or corrupt"
        )
    records = np.frombuffer(raw, np.uint8).reshape(-1, RECORD)
    if len(records) != RECORDS:
        raise BadInput(f"{path} has {len(records)} pictures where {RECORDS} belong; the file is truncated or corrupt")
    if records[:, 0].max() > 9:
        raise BadInput(f"{path} has a label {records[:, 0].max()}; the file is corrupt")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def _pickled(directory: Path, name: str) -> tuple[Array, Array]:
    path = directory / name
    raw = _bytes(path)
    found = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    if found != PICKLES[name]:
        raise BadInput(
            f"{path} has md5 {found}, not the published {PICKLES[name]}; it is not unpickled; fetch it again"
        )
    return _unpickle(raw, path)


class _ArraysOnly(pickle.Unpickler):
    """Knows how to rebuild a NumPy array, and nothing else."""

    ALLOWED: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
        ("numpy._core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return self.ALLOWED[module, name]


def _unpickle(raw: bytes, path: Path) -> tuple[Array, Array]:
    """A batch of the Python form. Its checksum has been verified by the caller."""
    try:
        batch = _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
        images, labels = batch[b"data"], np.asarray(batch[b"labels"], dtype=np.int64)
        return images.reshape(-1, 3, 32, 32), labels
    except (pickle.UnpicklingError, KeyError, ValueError, EOFError) as problem:
        raise BadInput(f"{path} is not a CIFAR-10 batch ({problem})") from None


def _parquet_files(directory: Path, split: str) -> list[Path]:
    return sorted(directory.glob(f"{split}-*.parquet"))


def _parquet(directory: Path) -> tuple[Samples, Samples, str]:
    """Hugging Face's layout: columns `img` (a struct with the encoded `bytes`) and `label`."""
    parts, note = [], ""
    for split in ("train", "test"):
        paths = _parquet_files(directory, split)
        if not paths:
            raise BadInput(f"{directory} has no {split}-*.parquet")
        found = read_pictures(paths, "img", "label", channels=3, size=(32, 32))
        if found.labels.dtype.kind not in "iu":
            raise BadInput(f"{paths[0]}: column 'label' holds no numbers of classes")
        note = JPEG if found.first.startswith(b"\xff\xd8") else note
        parts.append(Samples(found.pixels, found.labels.astype(np.int64)))
    return parts[0], parts[1], note
