"""FEMNIST as LEAF writes it: JSON files of writers with their samples, in a train and a test folder."""

from __future__ import annotations

import string
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np

from epidemic.core.errors import BadInput
from epidemic.core.progress import tell
from epidemic.data.base import Dataset, KnownSize, Samples, Source, find_directory

CLASSES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)


class _Writer(msgspec.Struct):
    x: list[list[float]]
    y: list[int]


class _File(msgspec.Struct):
    users: list[str]
    user_data: dict[str, _Writer]


class FEMNIST(Source, frozen=True, tag="femnist"):
    """Handwritten characters of 62 classes by writer, 28 x 28; background 1, ink near 0, used as they are."""

    about: ClassVar[str] = (
        "handwritten characters of 62 classes by writer, 28 x 28 pixels (LEAF JSON in train/ and test/)"
    )
    size: ClassVar[KnownSize | None] = (1, 28, 28), 62, 720_000, 80_000

    def files(self) -> list[Path]:
        root = find_directory(self.path, "femnist")
        return [*_json_files(root / "train"), *_json_files(root / "test")]

    def read(self) -> Dataset:
        root = find_directory(self.path, "femnist")
        writers: dict[str, int] = {}
        return Dataset(_split(root / "train", writers), _split(root / "test", writers), CLASSES)


def _json_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.json")) if directory.is_dir() else []


def _split(directory: Path, writers: dict[str, int]) -> Samples:
    paths = _json_files(directory)
    if not paths:
        raise BadInput(
            f"{directory} has no .json files; LEAF's preprocessing makes data/train and data/test: set data.path to data"
        )
    inputs, labels, groups = [], [], []
    for i, path in enumerate(paths):
        tell(f"{directory}, files", i, len(paths))
        try:
            content = msgspec.json.decode(path.read_bytes(), type=_File)
        except (msgspec.DecodeError, OSError) as problem:
            raise BadInput(f"{path} is not a LEAF file ({problem}); it may be truncated") from None
        for user in content.users:
            if user not in content.user_data:
                raise BadInput(f"{path} lists writer {user!r} without data")
            samples = content.user_data[user]
            if len(samples.x) != len(samples.y):
                raise BadInput(f"{path}: writer {user!r} has {len(samples.x)} images but {len(samples.y)} labels")
            if any(len(row) != 784 for row in samples.x):
                raise BadInput(f"{path}: writer {user!r} has an image that is not of 784 pixels")
            if not samples.y:
                continue
            number = writers.setdefault(user, len(writers))
            inputs.append(np.asarray(samples.x, dtype=np.float32).reshape(-1, 1, 28, 28))
            labels.append(np.asarray(samples.y, dtype=np.int64))
            groups.append(np.full(len(samples.y), number))
    if not inputs:
        raise BadInput(f"{directory} holds no samples")
    return Samples(np.concatenate(inputs), np.concatenate(labels), np.concatenate(groups))
