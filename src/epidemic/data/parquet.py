"""Pictures in Parquet files: a column of encoded pictures and one of labels, decoded on all cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from epidemic.core.errors import BadInput, plain, suggestion
from epidemic.core.reading import tell
from epidemic.data.base import Array
from epidemic.data.images import decode_image, need, picture_size

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
