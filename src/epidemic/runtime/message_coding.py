"""How the messages of a run are compressed, and what receivers make of them.

A compressed message has, besides its column "x", an entry "x.sent" with the bytes of each sender's message. Only these leave a node, in a simulation too;
the node's own row stays exact. (In an algorithm that sends compressed differences, a node applies its own differences to itself as well.)

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
"""Suffix of the message entry that holds a column's bytes."""
SAID, HEARD = ".said", ".heard"
"""Suffixes of the entries that hold decoded messages: memory reused in the next round."""
MEMORY = "codec.said"
"""Name of the state entry with the last sent value of each coordinate of a node."""
PIECE = 1 << 17
"""Numbers encoded at a time, so that they fit into a core's cache."""

Memory = Callable[[str, Tensor], Tensor]
"""Returns memory for an entry of this name, shaped like the given tensor."""


class Coder:
    """Compresses one column, and decodes it."""

    def __init__(self, codec: Codec, column: Column, streams: Streams, fill: Fill, *, differences: bool) -> None:
        """Start; `differences`: messages are differences, added by every node, the sender included, to what came before."""
        self._codec = codec
        self._streams = streams
        self.column = column
        self.fill = fill
        self.differences = differences
        self.kind = str(codec.__struct_config__.tag)
        self.bytes = codec.bytes(column.shape[0], column.dtype)
        self.remembers = codec.remembers and not differences

    def encode(self, rows: Tensor, round: int, ids: IntArray, before: Tensor | None, workers: Workers) -> Tensor:
        """The messages of these nodes in a round; updates `before`, the values last sent.   # (k, d) -> (k, b) uint8"""
        keys = self._streams.keys("compression", round, last=ids.tolist())
        raw = torch.empty(len(rows), self.bytes, dtype=torch.uint8, device=rows.device)

        def one(part: slice) -> None:
            raw[part] = self._codec.encode(rows[part], keys[part], None if before is None else before[part])

        workers.map(one, self._pieces(len(rows)), size=rows.numel() * 8)
        return raw

    def decode(self, raw: Tensor) -> Said:
        """Decode the bytes of messages.   # (k, b) uint8 -> (k, d)"""
        return self._codec.decode(raw, self.column.shape[0], self.column.dtype)

    def decode_all(self, raw: Tensor, workers: Workers, memory: Memory | None = None) -> Said:
        """Decode messages on all threads; `memory` returns memory for entries of a message.   # (k, b) uint8 -> (k, d)"""
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
        """Why bytes of the right length are refused; None if they are valid."""
        return self._codec.problem(raw, self.column.shape[0], self.column.dtype, largest)

    def _pieces(self, rows: int) -> list[slice]:
        return blocks(rows, max(1, PIECE // max(1, self.column.shape[0])))


def coder_of(experiment: Experiment, columns: Sequence[Column], streams: Streams) -> Coder | None:
    """The coder of an experiment; None if its messages are not compressed."""
    own = getattr(experiment.algorithm, "compressor", None)
    if own is not None:
        return None if own.exact else Coder(own, columns[0], streams, "zero", differences=True)
    codec = experiment.compression
    if codec is None or codec.exact:
        return None
    return Coder(codec, columns[0], streams, getattr(codec, "fill", "count"), differences=False)


def message_bytes(columns: Sequence[Column], coder: Coder | None) -> int:
    """The size of the numbers of a message in bytes."""
    return sum(column.bytes for column in columns) if coder is None else coder.bytes


def message_in(message: Mapping[str, Tensor]) -> Rows:
    """The part of a message that leaves its sender: its columns, or their bytes if compressed."""
    return {name: message.get(name + SENT, numbers) for name, numbers in message.items() if not name.endswith(SENT)}
