"""Coding: how the messages of a run are compressed, and what receivers make of them.

Where messages are compressed, a message has besides its column "x" one more entry, "x.sent": the bytes of each sender's message. They are all that
leaves a node, in a simulation too; its own part stays exact. (Of an algorithm that sends compressed differences, what it has said counts for
itself as well.)

Shapes: k senders, d numbers of a row, b bytes of an encoded row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from epidemic.algorithms import Column, Rows
from epidemic.compression import Codec, Fill, Said
from epidemic.core.graph import IntArray
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers, blocks
from epidemic.experiment import Experiment

SENT = ".sent"
"""What the entry of a message is called that holds a column's bytes."""
SAID, HEARD = ".said", ".heard"
"""What the entries are called that hold what receivers have made of those bytes: memory for the next round."""
MEMORY = "codec.said"
"""What the entry of a state is called that holds what each node has last said of each coordinate."""
PIECE = 1 << 17
"""Numbers that are encoded at a time: so many that they stay in a core's cache."""

Memory = Callable[[str, Tensor], Tensor]
"""Gives memory for an entry of this name, like this one."""


class Coder:
    """Compresses one column, and reads it again."""

    def __init__(self, codec: Codec, column: Column, streams: Streams, fill: Fill, *, differences: bool) -> None:
        """`differences`: messages are differences, which every node adds to what it has heard before, to its own as well."""
        self._codec = codec
        self._streams = streams
        self.column = column
        self.fill = fill
        self.differences = differences
        self.kind = str(codec.__struct_config__.tag)
        self.bytes = codec.bytes(column.shape[0], column.dtype)
        self.remembers = codec.remembers and not differences

    def encode(self, rows: Tensor, round: int, ids: IntArray, before: Tensor | None, workers: Workers) -> Tensor:
        """The messages of these nodes in a round; `before`, what they have last said, is brought up to date.   # (k, d) -> (k, b) uint8"""
        keys = self._streams.keys("compression", round, last=ids.tolist())
        raw = torch.empty(len(rows), self.bytes, dtype=torch.uint8, device=rows.device)

        def one(part: slice) -> None:
            raw[part] = self._codec.encode(rows[part], keys[part], None if before is None else before[part])

        workers.map(one, self._pieces(len(rows)), size=rows.numel() * 8)
        return raw

    def decode(self, raw: Tensor) -> Said:
        """What messages say.   # (k, b) uint8 -> (k, d)"""
        return self._codec.decode(raw, self.column.shape[0], self.column.dtype)

    def decode_all(self, raw: Tensor, workers: Workers, memory: Memory | None = None) -> Said:
        """The same on all threads; `memory` gives room for entries of a message.   # (k, b) uint8 -> (k, d)"""
        like = torch.empty(len(raw), self.column.shape[0], dtype=self.column.torch_dtype, device=raw.device)
        name = self.column.name
        rows = like if memory is None else memory(name + SAID, like)
        mask = None
        if self.fill != "zero" and self._codec.partial:
            heard = torch.empty_like(like, dtype=torch.bool)
            mask = heard if memory is None else memory(name + HEARD, heard)

        def one(part: slice) -> None:
            said = self.decode(raw[part])
            rows[part] = said.rows
            if mask is not None and said.mask is not None:
                mask[part] = said.mask

        workers.map(one, self._pieces(len(raw)), size=rows.numel() * 8)
        return Said(rows, mask)

    def problem(self, raw: memoryview, largest: float) -> str | None:
        """Why bytes of the right length are refused; None if they are not."""
        return self._codec.problem(raw, self.column.shape[0], self.column.dtype, largest)

    def _pieces(self, rows: int) -> list[slice]:
        return blocks(rows, max(1, PIECE // max(1, self.column.shape[0])))


def coder_of(experiment: Experiment, columns: Sequence[Column], streams: Streams) -> Coder | None:
    """How the messages of an experiment are compressed; None if they are not."""
    own = getattr(experiment.algorithm, "compressor", None)
    if own is not None:
        return None if own.exact else Coder(own, columns[0], streams, "zero", differences=True)
    codec = experiment.compression
    if codec is None or codec.exact:
        return None
    return Coder(codec, columns[0], streams, getattr(codec, "fill", "count"), differences=False)


def message_bytes(columns: Sequence[Column], coder: Coder | None) -> int:
    """What the numbers of a message take."""
    return sum(column.bytes for column in columns) if coder is None else coder.bytes


def message_in(message: Mapping[str, Tensor]) -> Rows:
    """Of a message, what leaves its sender: by column, its bytes where it is compressed."""
    return {name: message.get(name + SENT, numbers) for name, numbers in message.items() if not name.endswith(SENT)}
