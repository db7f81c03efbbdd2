"""What travels between nodes of a method without rounds: the frames of `wire`, whose header says more.

In place of the round stands the number of the letter, which grows with each that its sender sends. Besides: a word for the kind of letter,
whole numbers that go with it, and which part of a model it carries. A letter may carry a model, a part of one, or nothing; so it is as
long as its kind needs, and its header still has its 256 bytes. Letters of no kind that the method lists are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from epidemic.algorithms.base import WIDTH, Column
from epidemic.algorithms.free import Kind
from epidemic.compression import sane
from epidemic.errors import BadInput, RunFailed
from epidemic.net.wire import (
    DECODERS,
    NO_LETTER,
    Format,
    Header,
    KeyOf,
    Letter,
    Refused,
    body_of,
    parsed,
    sealed,
    verify,
)
from epidemic.record import HEADER_BYTES

LONGEST_TAG, MOST_NOTES = 16, 4
LARGEST_NOTE = 2**53
"""Beyond any age or count; what is plausible at a time is less, and looked at by the protocol."""


class FreeHeader(Header, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What stands in front of the numbers."""

    tag: str
    note: tuple[int, ...]
    part: int  # -1: none


DECODERS[FreeHeader] = msgspec.msgpack.Decoder(FreeHeader)  # made once, in one thread: see `hello`


@dataclass(frozen=True)
class FreeLetter(Letter):
    """A frame that was found in order; its `round` is the letter's number."""

    tag: str = ""
    note: tuple[int, ...] = ()
    part: int | None = None


class FreeFormat(Format):
    """The frames of one run of a method without rounds."""

    kind = FreeHeader

    def __init__(
        self, run: bytes, column: Column, kinds: Sequence[Kind], sizes: Sequence[int], largest: float = float("inf")
    ) -> None:
        """`sizes`: how many numbers each part of a model has; empty: models are not cut."""
        super().__init__(run, (column,), largest)
        for kind in kinds:
            if not kind.tag.isascii() or len(kind.tag) > LONGEST_TAG or not 0 <= kind.notes <= MOST_NOTES:
                raise BadInput(
                    f"letters of kind {kind.tag!r} with {kind.notes} numbers cannot be sent: a tag has at most {LONGEST_TAG} ASCII"
                    f" characters, and at most {MOST_NOTES} whole numbers go with a letter"
                )
        self._column = column
        self._kinds = {kind.tag: kind for kind in kinds}
        self._sizes = tuple(sizes)
        self.parts = max(1, len(self._sizes))
        self.usual_bytes = HEADER_BYTES + self.body_bytes // self.parts
        self.most_bytes = self.frame_bytes
        fullest = FreeHeader(
            run, 2**63 - 1, 2**31 - 1, bytes(8), bytes(32), self.tensors, "x" * LONGEST_TAG, (LARGEST_NOTE,) * MOST_NOTES, 2**31 - 1
        )  # fmt: skip
        self._check_room(fullest)

    def kind_of(self, tag: str, row: bool, note: tuple[int, ...], part: int | None) -> Kind | None:
        """The kind of a letter; None if it is of none that the method lists."""
        kind = self._kinds.get(tag)
        if kind is None or kind.row != row or kind.notes != len(note) or kind.part != (part is not None):
            return None
        return kind if part is None or 0 <= part < len(self._sizes) else None

    def check_own(self, sender: int, tag: str, row: bool, note: tuple[int, ...], part: int | None) -> None:
        """Raise RunFailed if this node's method sends a letter that nobody would take."""
        if self.kind_of(tag, row, note, part) is None or not all(0 <= number <= LARGEST_NOTE for number in note):
            what = f"tag = {tag!r}, {'a row' if row else 'no row'}, note = {note}, part = {part}"
            raise RunFailed(
                f"algorithm: node {sender} sends a letter ({what}) of no kind that its method lists in `kinds`"
            )

    def tensors_of(self, row: bool, part: int | None) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """What such a letter carries, as its header says it."""
        if not row:
            return ()
        return self.tensors if part is None else ((self._column.name, (self._sizes[part],), self._column.dtype),)

    def bytes_of(self, row: bool, part: int | None) -> int:
        """What the numbers of such a letter take."""
        return sum(WIDTH[dtype] * shape[0] for _, shape, dtype in self.tensors_of(row, part))

    def seal_letter(
        self,
        number: int,
        sender: int,
        row: Any,
        key: Ed25519PrivateKey,
        *,
        tag: str = "",
        note: tuple[int, ...] = (),
        part: int | None = None,
        graph: bytes = bytes(8),
    ) -> bytearray:
        """A signed frame with these numbers, an array of bytes; None: words only."""
        tensors = self.tensors_of(row is not None, part)
        frame = bytearray(HEADER_BYTES + self.bytes_of(row is not None, part))
        if row is not None:
            np.frombuffer(frame, np.uint8, offset=HEADER_BYTES)[:] = row
        digest = blake3(memoryview(frame)[HEADER_BYTES:]).digest()
        header = FreeHeader(
            self.run, number, sender, graph, digest, tensors, tag, note, -1 if part is None else part
        )  # fmt: skip
        frame[:HEADER_BYTES] = sealed(header, HEADER_BYTES, key)
        return frame

    def seal(
        self,
        round: int,
        sender: int,
        graph: bytes,
        tensors: Mapping[str, Any],
        key: Ed25519PrivateKey,
        samples: int = 0,
    ) -> bytearray:
        """A model that was asked for; its numbers by column."""
        return self.seal_letter(round, sender, tensors[self._column.name], key, graph=graph)

    def open(self, frame: bytes, key_of: KeyOf) -> FreeLetter:
        """The letter in a frame; raises Refused."""
        if len(frame) > self.frame_bytes:
            raise Refused("oversized")
        header, signed, signature = parsed(frame, HEADER_BYTES, FreeHeader)
        if header.run != self.run:
            raise Refused("wrong-run")
        part, row = None if header.part == -1 else header.part, bool(header.tensors)
        asked_for = header.graph == NO_LETTER
        whole = row and part is None and not header.tag and not header.note
        if not (whole if asked_for else self.kind_of(header.tag, row, header.note, part)):
            raise Refused("wrong-kind")
        if header.tensors != self.tensors_of(row, part):
            raise Refused("wrong-shape")
        size = HEADER_BYTES + self.bytes_of(row, part)
        if len(frame) != size or header.graph not in (NO_LETTER, bytes(8)) or header.round < 0:
            raise Refused("malformed")
        if not all(0 <= number <= LARGEST_NOTE for number in header.note):
            raise Refused("implausible")
        verify(header.sender, signed, signature, key_of)
        body = body_of(frame, header.digest)
        if row and not sane(body, self._column.dtype, self.largest):
            raise Refused("insane")
        tensors = {self._column.name: body} if row else {}
        return FreeLetter(header.round, header.sender, header.graph, tensors, 0, header.tag, header.note, part)
