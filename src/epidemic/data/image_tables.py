"""Tables of pictures: Parquet files as Hugging Face stores data sets of pictures, with their class names in the metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from epidemic.core.errors import BadInput, plain, suggestion
from epidemic.core.progress import tell
from epidemic.data.base import Array, Dataset, Samples, find_directory, scaled_bytes, stratified
from epidemic.data.images import check_channels, decode_image, need, picture_size
from epidemic.data.labels import Labelled, check_names, numbered

# -- Pictures in Parquet files: a column of encoded pictures and one of labels, decoded on all cores -----------------


BATCH = 2000
BLOCK = 250
"""Pictures that one thread decodes at a time."""


class Pictures(NamedTuple):
    """All pictures of some files, and their labels as they are written there."""

    pixels: Array  # (N, channels, height, width) bytes
    labels: Array  # (N,)
    first: bytes  # the first picture, still encoded


def opened(path: Path) -> Any:
    """Open a Parquet file; only its metadata is read."""
    parquet = need("pyarrow.parquet", "Parquet files")
    try:
        return parquet.ParquetFile(path)
    except Exception as problem:
        raise BadInput(f"{path} is not a readable Parquet file ({plain(' '.join(str(problem).split()))})") from None


def read_pictures(
    paths: Sequence[Path], image: str, label: str, *, channels: int, size: tuple[int, int] | None = None
) -> Pictures:
    """The images and labels of these files, in order.

    Args:
        paths: The files.
        image: The column of the images: bytes, or a struct that has some.
        label: The column of the labels.
        channels: 3 for colour, 1 for greyscale.
        size: Height and width of all images; None: those of the first one.
    """
    files = [opened(path) for path in paths]
    total = sum(file.metadata.num_rows for file in files)
    if total == 0:
        raise BadInput(f"{paths[0]} has no rows")
    pixels: Array | None = None
    labels, first, done = [], b"", 0
    with ThreadPoolExecutor() as pool:
        for file, path in zip(files, paths, strict=True):
            row = 1
            for batch in _batches(file, path, [image, label]):
                tell(f"{path.parent}, pictures", done, total)
                encoded = _encoded(batch.column(0), image, path, row)
                if pixels is None:
                    first = encoded[0]
                    size = picture_size(first, f"{path}: row 1") if size is None else size
                    pixels = np.empty((total, channels, *size), dtype=np.uint8)
                assert size is not None
                blocks = [(row + i, encoded[i : i + BLOCK]) for i in range(0, len(encoded), BLOCK)]
                decode = partial(_decoded, path=path, size=size, channels=channels)
                for (at, _), found in zip(blocks, pool.map(decode, blocks), strict=True):
                    begin = done + at - row
                    pixels[begin : begin + len(found)] = found
                labels.append(_labels(batch.column(1), label, path))
                done, row = done + len(encoded), row + len(encoded)
    assert pixels is not None
    return Pictures(pixels, np.concatenate(labels), first)


def _batches(file: Any, path: Path, columns: list[str]) -> Iterator[Any]:
    for name in columns:
        if name not in file.schema_arrow.names:
            raise BadInput(f"{path} has no column {name!r}{suggestion(name, file.schema_arrow.names)}")
    try:
        for batch in file.iter_batches(BATCH, columns=columns):
            if batch.num_rows:
                yield batch.select(columns)
    except OSError as problem:
        raise BadInput(f"{path} is damaged ({plain(' '.join(str(problem).split()))})") from None


def _encoded(column: Any, name: str, path: Path, row: int) -> list[bytes]:
    """The pictures of a batch that begins with this row of the file."""
    found = (column.field("bytes") if hasattr(column, "field") else column).to_pylist()
    if None in found:
        raise BadInput(
            f"{path}: row {row + found.index(None)} has no picture in column {name!r} (a path alone is not enough)"
        )
    return found  # type: ignore[no-any-return]


def _decoded(block: tuple[int, list[bytes]], path: Path, size: tuple[int, int], channels: int) -> Array:
    row, encoded = block
    return np.stack([decode_image(one, size, channels, f"{path}: row {row + i}") for i, one in enumerate(encoded)])


def _labels(column: Any, name: str, path: Path) -> Array:
    if column.null_count:
        raise BadInput(f"{path}: column {name!r} has rows without a label; leave them out")
    values = np.array(column.to_pylist())
    if values.dtype.kind not in "biuU" or values.ndim != 1:
        raise BadInput(f"{path}: column {name!r} holds no labels but {column.type}; set data.label to the right column")
    return values


SPLITS = ("train", "test", "validation")


class ImageTable(Labelled, frozen=True, tag="image-table"):
    """Pictures of equal size in Parquet files: train-*.parquet and test-*.parquet in a folder (or its folder data), or one file.

    Without files for testing, the pictures of the split "validation" are taken, or else a stratified fifth.
    """

    about: ClassVar[str] = (
        "pictures in Parquet files as on Hugging Face (train-*.parquet, test-*.parquet), class names included"
    )

    channels: int = 3
    """3 for colour, 1 for greyscale."""
    image: str | None = None
    """The column of the pictures; not set: the one that holds pictures."""
    label: str | None = None
    """The column of the labels; not set: the one with class names, or "label"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_channels(self.channels)
        if self.path is None:
            raise BadInput("data.path is missing: the folder of the .parquet files")

    def files(self) -> list[Path]:
        return [path for paths in self._splits().values() for path in paths]

    def read(self) -> Dataset:
        splits, notes = self._splits(), []
        columns = self._columns(splits["train"][0])
        train, y, _ = read_pictures(splits["train"], columns.image, columns.label, channels=self.channels)
        if "test" not in splits and "validation" not in splits:
            found = numbered({"training sample": y}, columns.names, self.classes)
            every = Samples(train, found.targets[0])
            aside = stratified(every.targets, max(len(every) // 5, 1), "folder-test")
            rest = np.setdiff1d(np.arange(len(every)), aside)
            return Dataset(every.take(rest), every.take(aside), found.classes, *scaled_bytes(), note=found.note)
        if "test" not in splits:
            notes.append('tested on the split "validation", because there is no "test"')
        paths, size = splits.get("test") or splits["validation"], train.shape[2:]
        test, test_y, _ = read_pictures(paths, columns.image, columns.label, channels=self.channels, size=size)
        found = numbered({"training sample": y, "test sample": test_y}, columns.names, self.classes)
        note = "; ".join(filter(None, (*notes, found.note)))
        train_y, test_y = found.targets
        return Dataset(Samples(train, train_y), Samples(test, test_y), found.classes, *scaled_bytes(), note=note)

    def _splits(self) -> dict[str, list[Path]]:
        """The files of each split that is used."""
        place = find_directory(self.path, "image-table")
        if place.is_file():
            if place.suffix.lower() != ".parquet":
                raise BadInput(f"data.path = {str(place)!r} must be a .parquet file or a folder of them")
            return {"train": [place]}
        for folder in (place, place / "data", place / "default"):
            found = {
                split: sorted({*folder.glob(f"{split}-*.parquet"), *folder.glob(f"{split}.parquet")})
                for split in SPLITS
            }
            if found["train"]:
                other = "test" if found["test"] else "validation"
                return {split: paths for split, paths in found.items() if paths and split in ("train", other)}
        raise BadInput(
            f"{place} has no train-*.parquet, nor has its folder data; set data.path to the folder or the file"
        )

    def _columns(self, path: Path) -> _Columns:
        """The columns of inputs and labels, by the settings, the metadata and the types of the first file."""
        schema = opened(path).schema_arrow
        features = _features(schema.metadata or {})
        there = [str(name) for name in schema.names]
        for key, wanted in (("image", self.image), ("label", self.label)):
            if wanted is not None and wanted not in there:
                raise BadInput(f"data.{key} = {wanted!r} is no column of {path}{suggestion(wanted, there)}")
        pictures = [name for name in there if features.get(name, {}).get("_type") == "Image"]
        pictures = pictures or [field.name for field in schema if _holds_pictures(field.type)]
        image = self.image or _only(pictures, "pictures", "image", path)
        if not _holds_pictures(schema.field(image).type):
            raise BadInput(f"{path}: column {image!r} holds no encoded pictures but {schema.field(image).type}")
        labels = [name for name in there if features.get(name, {}).get("_type") == "ClassLabel"]
        label = self.label or _only(labels or [n for n in there if n == "label"], "labels", "label", path)
        names = features.get(label, {}).get("names")
        if not isinstance(names, list) or not names:
            return _Columns(image, label, None)
        check_names(names, f"{path}: the names of column {label!r}")
        return _Columns(image, label, tuple(names))


class _Columns(NamedTuple):
    image: str
    label: str
    names: tuple[str, ...] | None  # of the classes, if the metadata has them


def _features(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    """Hugging Face's metadata for each column; empty if there is none."""
    try:
        found = msgspec.json.decode(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (msgspec.MsgspecError, KeyError, TypeError, RecursionError):
        return {}
    return {k: v for k, v in found.items() if isinstance(v, dict)} if isinstance(found, dict) else {}


def _holds_pictures(kind: Any) -> bool:
    """Bytes, or a struct that has some."""
    types = need("pyarrow.types", "Parquet files")
    if types.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and _holds_pictures(kind.field(index).type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _only(found: list[str], what: str, setting: str, path: Path) -> str:
    if len(found) != 1:
        how_many = (
            f"{len(found)} columns of {what} ({', '.join(found)})"
            if found
            else f"no column of {what} that is known as such"
        )
        raise BadInput(f"{path} has {how_many}; set data.{setting} to its name")
    return found[0]
