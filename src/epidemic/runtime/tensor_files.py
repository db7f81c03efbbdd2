"""Files of tensors that are written and read in pieces, so that no process ever needs the rows of all nodes at once.

The format is safetensors, with the bytes that its own library writes (which orders metadata randomly; here the order is the given one): the length of a
header, the header as JSON, and the numbers of one tensor after the other, wide types first. The position of each tensor is known from the start, so
tensors can be written in any order, and the header last.

Shapes: n rows of a tensor, those of all nodes; w numbers of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from epidemic.core.errors import RunFailed
from epidemic.core.files import begin_part, finish_part, full_disk

PIECE = 32 << 20
"""Bytes of rows written or read at once."""

TYPES: dict[torch.dtype, str] = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64",
    torch.float32: "F32", torch.uint32: "U32", torch.int32: "I32",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.uint16: "U16", torch.int16: "I16",
    torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""Names of number types in a file, in the order in which their tensors are stored."""
DIGEST = 64
"""Hex digits of a digest."""


class Head(NamedTuple):
    """Type and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor, rows: int | None = None) -> Head:
        """The head of a tensor; `rows`: the number of its rows on all ranks together."""
        lead = tensor.shape[:1] if rows is None else (rows,)
        return cls(tensor.dtype, (*lead, *tensor.shape[1:]))

    @property
    def width(self) -> int:
        """The numbers per row."""
        return math.prod(self.shape[1:])

    @property
    def bytes(self) -> int:
        """The size of all its numbers in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


Put = Callable[[Tensor], None]
"""Receives the next numbers of a tensor, in any shape."""


class Fed(NamedTuple):
    """A tensor that comes in pieces: its head, and a function that passes on all pieces in order."""

    head: Head
    feed: Callable[[Put], None]


def portions(rows: int, width: int, most: int = PIECE) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of pieces of at most `most` bytes, in order; `width`: bytes of a row, whose columns are bytes."""
    if width > most:
        yield from ((slice(i, i + 1), columns) for i in range(rows) for columns in _slices(width, most // 16 * 16))
    else:
        yield from ((part, slice(0, width)) for part in _slices(rows, most // max(1, width)))


def _slices(size: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def raw(tensor: Tensor) -> Tensor:
    """The numbers of a tensor as bytes, in order.   # (w,) uint8"""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


class TensorFile:
    """A file being written; it appears under its name on `close`."""

    def __init__(self, path: Path, heads: Mapping[str, Head], metadata: Mapping[str, str]) -> None:
        """Open the file; `metadata` must be as long as that passed to `close`."""
        for name, head in heads.items():
            if head.dtype not in TYPES:
                raise RunFailed(f"{path}: {name} holds {str(head.dtype).removeprefix('torch.')}, which cannot be saved")
        self._path, self._part = path, path.with_name(path.name + ".part")
        order = {dtype: place for place, dtype in enumerate(TYPES)}
        self._heads = dict(sorted(heads.items(), key=lambda item: (order[item[1].dtype], item[0].encode())))
        self._at: dict[str, int] = {}  # where the next numbers of each tensor go
        place = len(self._header(metadata))
        for name, head in self._heads.items():
            self._at[name] = place
            place += head.bytes
        self._size = place
        self._file: IO[bytes] | None = None
        try:
            with full_disk(str(path), running=True):
                self._mode = begin_part(self._part)
                self._file = self._part.open("r+b")
        except BaseException:
            self.abandon()
            raise

    def put(self, name: str, piece: Tensor) -> None:
        """Write the next numbers of a tensor."""
        assert self._file is not None
        with full_disk(str(self._path), running=True):
            self._file.seek(self._at[name])
            self._at[name] += self._file.write(raw(piece).numpy().data)

    def close(self, metadata: Mapping[str, str]) -> None:
        """Write the metadata, and rename the file to its final name."""
        assert self._file is not None
        with full_disk(str(self._path), running=True):
            self._file.seek(0)
            self._file.write(self._header(metadata))
            self._file.truncate(self._size)
            self._file.close()
            finish_part(self._part, self._path, self._mode)

    def abandon(self) -> None:
        """Remove the unfinished file."""
        try:
            if self._file is not None:
                self._file.close()
        except OSError:  # a full disk, which has been reported
            pass
        finally:
            self._part.unlink(missing_ok=True)

    def _header(self, metadata: Mapping[str, str]) -> bytes:
        table: dict[str, Any] = {"__metadata__": dict(metadata)}
        start = 0
        for name, head in self._heads.items():
            end = start + head.bytes
            table[name] = {"dtype": TYPES[head.dtype], "shape": head.shape, "data_offsets": [start, end]}
            start = end
        said = msgspec.json.encode(table)
        said += b" " * (-len(said) % 8)
        return len(said).to_bytes(8, "little") + said


def write_tensors(
    path: Path | None,
    small: Mapping[str, Tensor],
    fed: Mapping[str, Fed],
    metadata: Callable[[str], Mapping[str, str]],
    *,
    digest: Any = None,
    together: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Write a file of tensors, completely or not at all.

    Args:
        path: Where; None on a rank that only sends its rows.
        small: Tensors given whole.
        fed: Tensors that come in pieces; all ranks name the same.
        metadata: Returns the metadata for a digest.
        digest: Updated with all names, heads and numbers, in the order of names; None: the digest is empty.
        together: An exception inside on one rank is raised on all of them.
    """
    heads = {name: Head.of(tensor) for name, tensor in small.items()} | {name: one.head for name, one in fed.items()}
    found = "" if digest is None else "0" * DIGEST
    file: TensorFile | None = None
    try:
        with together():
            file = None if path is None else TensorFile(path, heads, metadata(found))
        for name, head in sorted(heads.items()):
            if digest is not None:
                digest.update(told(name, head))
            if name in fed:
                fed[name].feed(partial(_put, file, digest, name))
            elif digest is not None:
                digest.update(raw(small[name]).numpy().data)
        with together():
            if file is not None:
                for name, tensor in small.items():
                    file.put(name, tensor)
                file.close(metadata(found if digest is None else digest.hexdigest()))
    except BaseException:
        if file is not None:
            file.abandon()
        raise


def _put(file: TensorFile | None, digest: Any, name: str, piece: Tensor) -> None:
    if digest is not None:
        digest.update(raw(piece).numpy().data)
    if file is not None:
        file.put(name, piece)


def told(name: str, head: Head) -> bytes:
    """The bytes that a digest gets for a tensor before its numbers."""
    return f"{name}\0{head.dtype}\0{head.shape}\0".encode()


def rows_of(file: Any, name: str, part: slice) -> Tensor:
    """Some rows of a tensor of an open, mapped file; a copy.   # (m, ...)"""
    found: Tensor = file.get_slice(name)[part]
    return found.clone()


def head_of(file: Any, name: str) -> Head:
    """The head of a tensor of an open file."""
    found = file.get_slice(name)
    dtype = next((known for known, called in TYPES.items() if called == found.get_dtype()), None)
    if dtype is None:
        raise ValueError(f"{name} holds {found.get_dtype()}")
    return Head(dtype, tuple(found.get_shape()))
