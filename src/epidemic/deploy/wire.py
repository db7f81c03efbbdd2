"""The bytes of messages between nodes.

Every message is a frame: 256 bytes of header and signature, then the raw little-endian numbers of its columns. Compressed messages have the bytes of the
run's codec instead, whose number is also fixed for the run.

    0    4    magic and version
    4    2    length of the header, little-endian
    6   ...   header: msgpack of `Header`, then zeros up to byte 192
    192  64   Ed25519 signature of bytes 0..192 by the sender's certified key; the header holds a BLAKE3 digest of the numbers

A header has the kind of message, its counter (the round, or for asynchronous methods a number that grows with each message of its sender), its columns,
and optionally integers and the part of the model that it carries. `WireKind` describes the messages of a kind. A method with rounds sends one kind,
whose name is empty; an asynchronous method lists its own. Every run has one more kind, a model for a returning node, which is never compressed; its
signed header prevents it from being forwarded as a message of a round.

An offer, used if receivers have a cap, is 128 bytes: 64 bytes of header, 64 of signature, and no numbers.

Everything from the network is untrusted: `MessageFormat.open` checks size, format, run, kind, columns, numbers, signature, digest and magnitude in this
order and raises `Refused` with one of REASONS, which is counted. Nothing is ever unpickled, and the numbers are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import numpy as np
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from epidemic.algorithms.base import WIDTH, Column
from epidemic.compression import sane
from epidemic.core.errors import BadInput, RunFailed
from epidemic.protocol.node import MessageKind
from epidemic.record import CONTROL_BYTES, HEADER_BYTES
from epidemic.runtime.message_coding import Coder, message_bytes

MAGIC = b"EPL\x02"
SIGNATURE_BYTES = 64
STATE_TRANSFER = "state-transfer"
"""The kind of a model for a returning node; no method may use this name."""
LONGEST_KIND, MOST_NUMBERS = 16, 4
LARGEST_NUMBER = 2**53
"""Above any age or count; the protocol checks what is plausible at a time."""

REASONS = (
    "malformed",  # not a frame of this protocol, or not in its one canonical form
    "oversized",  # larger than any frame of this run
    "wrong-run",  # of another experiment, seed, initial model or library
    "wrong-kind",  # a kind that the method does not send or nobody asked for; an unknown part; other numbers
    "wrong-shape",  # columns other than those of this run
    "wrong-dtype",
    "unknown-sender",  # its certificate has not been seen
    "revoked",  # its certificate is revoked or expired
    "wrong-signature",  # signed by another key than the sender's, or changed on the way
    "wrong-graph",  # the sender drew another graph for this round
    "wrong-link",  # came over another connection than its sender's
    "implausible",  # of a round that does not exist, or with numbers that no honest node sends
    "insane",  # infinite numbers, or larger than in any valid model
    "wrong-samples",  # a number of samples that the run does not allow, or that differs from an earlier one
    "overflow",  # more than could be checked
    "flood",  # over a link that carries more than any honest node sends: not read
)

KeyOf = Callable[[int], Ed25519PublicKey | None]
"""The certified key of a node; None: unknown. Raises Refused("revoked") for one that is no longer valid."""
ColumnTold = tuple[str, tuple[int, ...], str]
"""A column in a header: its name, its shape, and its number type or codec."""


class Refused(Exception):
    """A frame that does not count, with the reason."""

    def __init__(self, reason: str) -> None:
        assert reason in REASONS
        super().__init__(reason)
        self.reason = reason


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The header of a message."""

    run: bytes  # 16 bytes
    kind: str
    counter: int  # the round, or the number of the message
    sender: int
    graph: bytes  # with rounds: 8 bytes, the digest of the intended graph (zeros with a private coin), or 32, the round's link
    digest: bytes  # 32 bytes: BLAKE3 of the numbers
    columns: tuple[ColumnTold, ...]
    numbers: tuple[int, ...]  # integers: ages, counts, the sender's number of samples
    part: int  # the part of the model that it carries; -1: the whole


class Offer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The offer of a message to a receiver with a cap."""

    run: bytes
    round: int
    sender: int
    receiver: int


@dataclass(frozen=True)
class OpenedMessage:
    """The content of a valid frame."""

    kind: str
    counter: int
    sender: int
    graph: bytes
    columns: Mapping[str, memoryview]  # the raw bytes of each column, within the frame
    numbers: tuple[int, ...] = ()
    part: int | None = None


@dataclass(frozen=True)
class WireKind:
    """The properties of messages of one kind."""

    model: bool = True  # whether they carry a model or a part of one
    parts: tuple[int, ...] = ()  # how many numbers each part has; empty: whole models
    numbers: int = 0  # how many integers they carry
    graph_bytes: int = 0  # bytes that describe the round's graph
    coder: Coder | None = None  # how they are compressed; None: not at all
    most_samples: int = 0  # they state the sender's number of training samples, at most this many; 0: they do not

    def fits(self, model: bool, numbers: Sequence[int], part: int | None) -> bool:
        """Whether a message with these properties is of this kind."""
        known = part is None if not self.parts else part is not None and 0 <= part < len(self.parts)
        return known and self.model == model and self.numbers == len(numbers)


class MessageFormat:
    """The messages of one run: kinds, columns and sizes in bytes."""

    def __init__(
        self, run: bytes, columns: tuple[Column, ...], kinds: Mapping[str, WireKind], largest: float = float("inf")
    ) -> None:
        """Prepare the format of a run.

        Args:
            run: 16 bytes that identify the run.
            columns: The columns of a model.
            kinds: The messages that the method sends, by the name of their kind.
            largest: Numbers of a greater magnitude are refused.
        """
        self.run = run
        self.largest = largest
        self.columns = columns
        self.kinds = {**kinds, STATE_TRANSFER: WireKind()}
        self.coder = next((kind.coder for kind in kinds.values() if kind.coder is not None), None)
        self.most_samples = max(kind.most_samples for kind in kinds.values())
        self.parts = max(1, *(len(kind.parts) for kind in kinds.values()))  # messages that make a model
        self.model_bytes = sum(column.bytes for column in columns)  # of a model for a returning node
        self.body_bytes = message_bytes(columns, self.coder)  # of a whole model in a message
        self.usual_bytes = HEADER_BYTES + self.body_bytes // self.parts
        self.most_bytes = HEADER_BYTES + self.body_bytes  # of a message; only models for returning nodes may be larger
        self.frame_bytes = HEADER_BYTES + max(self.body_bytes, self.model_bytes)  # of the largest frame
        for name, kind in self.kinds.items():
            self._check_room(name, kind)

    @classmethod
    def in_rounds(
        cls,
        run: bytes,
        columns: tuple[Column, ...],
        largest: float = float("inf"),
        most_samples: int = 0,
        coder: Coder | None = None,
        graph_bytes: int = 8,
    ) -> Self:
        """The format of a method with rounds, which sends one kind of message.

        Args:
            run: 16 bytes that identify the run.
            columns: The columns of a model.
            largest: Numbers of a greater magnitude are refused.
            most_samples: Messages state the sender's number of training samples, at most this many; 0: they do not.
            coder: How messages are compressed; None: not at all.
            graph_bytes: Bytes that describe the round's graph.
        """
        kind = WireKind(
            graph_bytes=graph_bytes, coder=coder, most_samples=most_samples, numbers=1 if most_samples else 0
        )
        return cls(run, columns, {"": kind}, largest)

    @classmethod
    def without_rounds(
        cls,
        run: bytes,
        column: Column,
        kinds: Sequence[MessageKind],
        sizes: Sequence[int],
        largest: float = float("inf"),
    ) -> Self:
        """The format of an asynchronous method, which lists its kinds; `sizes`: how many numbers each part of a model has."""
        for kind in kinds:
            if not kind.tag.isascii() or len(kind.tag) > LONGEST_KIND or not 0 <= kind.notes <= MOST_NUMBERS:
                raise BadInput(
                    f"messages of kind {kind.tag!r} with {kind.notes} numbers cannot be sent: a tag has at most {LONGEST_KIND} ASCII"
                    f" characters, and at most {MOST_NUMBERS} whole numbers go with a message"
                )
            if kind.tag == STATE_TRANSFER:
                raise BadInput(
                    f"messages of kind {kind.tag!r} cannot be sent: that is what models for returning nodes are called"
                )
        found = {
            kind.tag: WireKind(model=kind.row, parts=tuple(sizes) if kind.part else (), numbers=kind.notes)
            for kind in kinds
        }
        return cls(run, (column,), found, largest)

    def _check_room(self, name: str, kind: WireKind) -> None:
        """Raise BadInput if the largest header of a kind does not fit."""
        part = len(kind.parts) - 1 if kind.parts else None
        told = self._told(kind, part) if kind.model else ()
        numbers = (max(kind.most_samples, LARGEST_NUMBER),) * kind.numbers
        fullest = Header(
            self.run, name, 2**63 - 1, 2**31 - 1, bytes(kind.graph_bytes), bytes(32), told, numbers, 2**31 - 1
        )
        room, most = len(msgspec.msgpack.encode(fullest)), HEADER_BYTES - SIGNATURE_BYTES - 6
        if room > most:
            raise BadInput(
                f"a message of {len(self.columns)} tensors needs {room} bytes of header, more than {most}; send fewer, or give"
                " them shorter names"
            )

    def _told(self, kind: WireKind, part: int | None) -> tuple[ColumnTold, ...]:
        """The columns as a header describes them."""
        if not kind.model:
            return ()
        if kind.coder is not None:
            return ((kind.coder.column.name, (kind.coder.bytes,), kind.coder.kind),)
        if part is not None:
            (column,) = self.columns
            return ((column.name, (kind.parts[part],), column.dtype),)
        return tuple((column.name, column.shape, column.dtype) for column in self.columns)

    def _lengths(self, kind: WireKind, part: int | None) -> dict[str, int]:
        """The bytes of each column, in order."""
        if not kind.model:
            return {}
        if kind.coder is not None:
            return {kind.coder.column.name: kind.coder.bytes}
        if part is not None:
            (column,) = self.columns
            return {column.name: WIDTH[column.dtype] * kind.parts[part]}
        return {column.name: column.bytes for column in self.columns}

    def bytes_of(self, kind: str, part: int | None = None) -> int:
        """The size of the columns of such a message in bytes."""
        return sum(self._lengths(self.kinds[kind], part).values())

    def check_own(self, sender: int, kind: str, model: bool, numbers: tuple[int, ...], part: int | None) -> None:
        """Raise RunFailed if this node's method sends a message that peers would refuse."""
        known = self.kinds.get(kind)
        if known is None or kind == STATE_TRANSFER or not known.fits(model, numbers, part) or not _plausible(numbers):
            what = f"tag = {kind!r}, {'a row' if model else 'no row'}, note = {numbers}, part = {part}"
            raise RunFailed(
                f"algorithm: node {sender} sends a message ({what}) of no kind that its method lists in `kinds`"
            )

    def seal(
        self,
        counter: int,
        sender: int,
        columns: Mapping[str, Any],
        key: Ed25519PrivateKey,
        *,
        kind: str = "",
        graph: bytes = b"",
        numbers: tuple[int, ...] = (),
        part: int | None = None,
    ) -> bytearray:
        """Make a signed frame.

        Args:
            counter: The round, or the number of the message.
            sender: The id of its sender.
            columns: The raw bytes of each column, as NumPy arrays of bytes.
            key: The sender's key.
            kind: The kind of the message.
            graph: The bytes that describe the round's graph.
            numbers: The integers that it carries.
            part: The part of a model that it carries, if its kind has parts.
        """
        known = self.kinds[kind]
        lengths = self._lengths(known, part)
        frame = bytearray(HEADER_BYTES + sum(lengths.values()))
        start = HEADER_BYTES
        for name, length in lengths.items():
            np.frombuffer(frame, np.uint8, length, start)[:] = columns[name]
            start += length
        digest = blake3(memoryview(frame)[HEADER_BYTES:]).digest()
        told, which = self._told(known, part), -1 if part is None else part
        header = Header(self.run, kind, counter, sender, graph, digest, told, numbers, which)
        frame[:HEADER_BYTES] = sealed(header, HEADER_BYTES, key)
        return frame

    def peek(self, frame: bytes) -> Header:
        """The header of a frame of this run, not verified yet; raises Refused."""
        return self._parsed(frame)[0]

    def _parsed(self, frame: bytes) -> tuple[Header, bytes, bytes]:
        """The header of a frame of this run, the signed bytes and the signature; raises Refused."""
        if len(frame) > self.frame_bytes:
            raise Refused("oversized")
        header, signed, signature = parsed(frame, HEADER_BYTES, Header)
        if header.run != self.run:
            raise Refused("wrong-run")
        return header, signed, signature

    def open(self, frame: bytes, key_of: KeyOf) -> OpenedMessage:
        """Check a frame and return its message; raises Refused."""
        header, signed, signature = self._parsed(frame)
        kind, part = self.kinds.get(header.kind), None if header.part == -1 else header.part
        if kind is None or not kind.fits(bool(header.columns), header.numbers, part):
            raise Refused("wrong-kind")
        told, lengths = self._told(kind, part), self._lengths(kind, part)
        if header.columns != told:
            shapes = [(name, shape) for name, shape, _ in header.columns]
            raise Refused("wrong-dtype" if shapes == [(n, s) for n, s, _ in told] else "wrong-shape")
        size = HEADER_BYTES + sum(lengths.values())
        if len(frame) != size or len(header.graph) != kind.graph_bytes or header.counter < 0:
            raise Refused("malformed")
        if kind.most_samples and not 1 <= header.numbers[0] <= kind.most_samples:
            raise Refused("wrong-samples")
        if not _plausible(header.numbers):
            raise Refused("implausible")
        verify(header.sender, signed, signature, key_of)
        body = memoryview(frame)[HEADER_BYTES:]
        if blake3(body).digest() != header.digest:
            raise Refused("wrong-signature")
        columns, start = {}, 0
        for name, length in lengths.items():
            columns[name] = body[start : start + length]
            start += length
        self._check_magnitude(columns, kind.coder)
        return OpenedMessage(header.kind, header.counter, header.sender, header.graph, columns, header.numbers, part)

    def _check_magnitude(self, columns: Mapping[str, memoryview], coder: Coder | None) -> None:
        """Raise Refused unless these are valid bytes of the codec, or numbers of plausible magnitude."""
        for column in self.columns:
            raw = columns.get(column.name)
            if raw is None:  # a message without a model
                continue
            if coder is not None:
                problem = coder.problem(raw, self.largest)
            else:
                problem = None if sane(raw, column.dtype, self.largest) else "insane"
            if problem is not None:
                raise Refused(problem)

    def samples_of(self, message: OpenedMessage) -> int:
        """The sender's number of training samples in a message; 0: not stated."""
        return message.numbers[0] if self.kinds[message.kind].most_samples else 0

    def seal_offer(self, round: int, sender: int, receiver: int, key: Ed25519PrivateKey) -> bytes:
        """Make a signed offer."""
        return sealed(Offer(self.run, round, sender, receiver), CONTROL_BYTES, key)

    def open_offer(self, raw: bytes, key_of: KeyOf) -> Offer:
        """Check an offer and return it; raises Refused."""
        if len(raw) > CONTROL_BYTES:
            raise Refused("oversized")
        offer: Offer
        offer, signed, signature = parsed(raw, CONTROL_BYTES, Offer)
        if offer.run != self.run:
            raise Refused("wrong-run")
        verify(offer.sender, signed, signature, key_of)
        return offer


def _plausible(numbers: Sequence[int]) -> bool:
    return all(0 <= number <= LARGEST_NUMBER for number in numbers)


def sealed(header: Header | Offer, size: int, key: Ed25519PrivateKey) -> bytes:
    """The signed header, padded to `size`."""
    packed = msgspec.msgpack.encode(header)
    front = (MAGIC + len(packed).to_bytes(2, "little") + packed).ljust(size - SIGNATURE_BYTES, b"\0")
    assert len(front) == size - SIGNATURE_BYTES
    return front + key.sign(front)


DECODERS: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Header, Offer)
}  # created once, in one thread: see `handshake`


def parsed(raw: bytes, size: int, kind: type[Any]) -> tuple[Any, bytes, bytes]:
    """Split raw bytes into header, signed bytes and signature."""
    front = raw[: size - SIGNATURE_BYTES]
    if len(raw) < size or front[:4] != MAGIC:
        raise Refused("malformed")
    end = 6 + int.from_bytes(front[4:6], "little")
    if end > len(front) or any(front[end:]):
        raise Refused("malformed")
    try:
        header = DECODERS[kind].decode(front[6:end])
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        raise Refused("malformed") from None
    return header, front, raw[size - SIGNATURE_BYTES : size]


def verify(sender: int, signed: bytes, signature: bytes, key_of: KeyOf) -> None:
    """Raise Refused unless the sender's key has signed this."""
    key = key_of(sender)
    if key is None:
        raise Refused("unknown-sender")
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        raise Refused("wrong-signature") from None
