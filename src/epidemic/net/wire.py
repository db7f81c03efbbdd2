"""What travels between nodes, byte by byte.

A frame is a model on its way: 256 bytes in front, then the raw little-endian numbers of its tensors; where letters are compressed, the bytes that
the run's codec makes of them, whose number follows from the run as well. A model that was asked for is never compressed.

    0    4    magic and version
    4    2    length of the header, little-endian
    6   ...   header: msgpack of `Header`, then zeros up to byte 192
    192  64   Ed25519 signature of bytes 0..192 by the sender's certified key; the header holds a BLAKE3 digest of the numbers

An offer, where receivers have a cap, is 128 bytes: the same with 64 bytes in front of the signature and no numbers.

Everything from the network is untrusted: `open_frame` checks size, form, run, tensors, signature, digest and magnitude in this
order and raises `Refused` with one of REASONS, which is counted. Nothing is ever unpickled, and the numbers are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from epidemic.algorithms import Column
from epidemic.compression import sane
from epidemic.errors import BadInput
from epidemic.host.coding import Coder, letter_bytes
from epidemic.record import CONTROL_BYTES, HEADER_BYTES

MAGIC = b"EPL\x01"
SIGNATURE_BYTES = 64
NO_LETTER = b"\xff" * 8
"""What stands for the graph in a model that was asked for, so that nobody can pass it on as a letter of a round."""

REASONS = (
    "malformed",  # not a frame of this protocol, or not in its one canonical form
    "oversized",  # larger than any frame of this run
    "wrong-run",  # of another experiment, seed, initial model or library
    "wrong-shape",  # other tensors than this run's
    "wrong-dtype",
    "unknown-sender",  # nobody whose certificate was seen
    "revoked",  # a certificate that the authority took back, or that has expired
    "wrong-signature",  # signed by another key than the sender's, or changed on the way
    "wrong-kind",  # of a kind that the method does not send: an unknown tag or part, or other numbers with it
    "wrong-graph",  # the sender drew another graph for this round, or it is no letter at all
    "wrong-link",  # came over the connection of somebody else than its sender
    "implausible",  # of a round that there is not
    "insane",  # numbers that are infinite, or larger than any sane model's
    "wrong-samples",  # no number of samples that the run allows, or another one than its sender has told before
    "overflow",  # more than could be looked at
    "flood",  # over a link that carries more than any honest node sends: not looked at
)

KeyOf = Callable[[int], Ed25519PublicKey | None]
"""The certified key of the node at a place; None: not known. It raises Refused("revoked") for one that counts no more."""


class Refused(Exception):
    """A frame that does not count, and why."""

    def __init__(self, reason: str) -> None:
        assert reason in REASONS
        super().__init__(reason)
        self.reason = reason


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What stands in front of the numbers."""

    run: bytes  # 16 bytes
    round: int
    sender: int
    graph: bytes  # 8 bytes: digest of the intended graph; zeros with a private coin; 32 with a committed one: the round's link
    digest: bytes  # 32 bytes: BLAKE3 of the numbers
    tensors: tuple[tuple[str, tuple[int, ...], str], ...]  # name, shape, type of numbers


class CountedHeader(Header, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The same where voices count by their samples."""

    samples: int  # how many training samples the sender has


class Offer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A model for a receiver that may have enough of them."""

    run: bytes
    round: int
    sender: int
    receiver: int


@dataclass(frozen=True)
class Letter:
    """A frame that was found in order."""

    round: int
    sender: int
    graph: bytes
    tensors: Mapping[str, memoryview]  # raw bytes of each, within the frame
    samples: int = 0  # of the sender, where voices count by them


class Format:
    """The frames of one run: which tensors, how many bytes."""

    def __init__(
        self,
        run: bytes,
        columns: tuple[Column, ...],
        largest: float = float("inf"),
        most_samples: int = 0,
        coder: Coder | None = None,
        graph_bytes: int = 8,
    ) -> None:
        """`largest`: numbers of a greater magnitude are refused.

        `most_samples`: letters tell how many training samples their sender has, at most this many; 0: they do not.
        `coder`: how letters are compressed; None: they are not.
        `graph_bytes`: of what a message says of the graph.
        """
        self.run = run
        self.largest = largest
        self.most_samples = most_samples
        if most_samples:
            self.kind = CountedHeader
        self.columns = columns
        self.coder = coder
        self.graph_bytes = graph_bytes
        self.tensors = tuple((c.name, c.shape, c.dtype) for c in columns)
        self.model_bytes = sum(c.bytes for c in columns)  # of a model that was asked for
        self.body_bytes = letter_bytes(columns, coder)  # of a letter
        self.usual_bytes = HEADER_BYTES + self.body_bytes
        self.frame_bytes = HEADER_BYTES + max(self.body_bytes, self.model_bytes)  # no frame is larger
        self.most_bytes = self.usual_bytes  # of a letter; only models that were asked for may be larger
        self.parts = 1  # letters that make a model
        self._check_room(self._header(2**63 - 1, 2**31 - 1, bytes(graph_bytes), bytes(32), most_samples))

    def _check_room(self, header: Header) -> None:
        """That the fullest header has room."""
        room, most = len(msgspec.msgpack.encode(header)), HEADER_BYTES - SIGNATURE_BYTES - 6
        if room > most:
            raise BadInput(
                f"a message of {len(self.columns)} tensors needs {room} bytes of header, more than {most}; send fewer, or give"
                " them shorter names"
            )

    def _header(self, round: int, sender: int, graph: bytes, digest: bytes, samples: int) -> Header:
        tensors = self._told(graph)
        if self.most_samples:
            return CountedHeader(self.run, round, sender, graph, digest, tensors, samples)
        return Header(self.run, round, sender, graph, digest, tensors)

    def _compressed(self, graph: bytes) -> Coder | None:
        """How the frame is compressed that has this in the place of the graph."""
        return None if graph == NO_LETTER else self.coder

    def _told(self, graph: bytes) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """What its header says of its tensors."""
        coder = self._compressed(graph)
        return self.tensors if coder is None else ((coder.column.name, (coder.bytes,), coder.kind),)

    def _lengths(self, graph: bytes) -> dict[str, int]:
        """The bytes of each of its tensors, in order."""
        coder = self._compressed(graph)
        return {c.name: c.bytes for c in self.columns} if coder is None else {coder.column.name: coder.bytes}

    def seal(
        self,
        round: int,
        sender: int,
        graph: bytes,
        tensors: Mapping[str, Any],
        key: Ed25519PrivateKey,
        samples: int = 0,
    ) -> bytearray:
        """A signed frame with these numbers: for each tensor its raw bytes, as a NumPy array of bytes.

        `samples`: how many training samples the sender has; it is told only where voices count by it.
        """
        lengths = self._lengths(graph)
        frame = bytearray(HEADER_BYTES + sum(lengths.values()))
        start = HEADER_BYTES
        for name, length in lengths.items():
            np.frombuffer(frame, np.uint8, length, start)[:] = tensors[name]
            start += length
        digest = blake3(memoryview(frame)[HEADER_BYTES:]).digest()
        frame[:HEADER_BYTES] = sealed(self._header(round, sender, graph, digest, samples), HEADER_BYTES, key)
        return frame

    kind: type[Header] = Header
    """What stands in front of the numbers."""

    def peek(self, frame: bytes) -> Header:
        """The header of a frame, of which nothing is certain yet but that it is one of this run; raises Refused."""
        if len(frame) > self.frame_bytes:
            raise Refused("oversized")
        header: Header = parsed(frame, HEADER_BYTES, self.kind)[0]
        if header.run != self.run:
            raise Refused("wrong-run")
        return header

    def open(self, frame: bytes, key_of: KeyOf) -> Letter:
        """The letter in a frame; raises Refused."""
        if len(frame) > self.frame_bytes:
            raise Refused("oversized")
        header, signed, signature = parsed(frame, HEADER_BYTES, self.kind)
        if header.run != self.run:
            raise Refused("wrong-run")
        told, lengths = self._told(header.graph), self._lengths(header.graph)
        if header.tensors != told:
            shapes = [(name, shape) for name, shape, _ in header.tensors]
            raise Refused("wrong-dtype" if shapes == [(n, s) for n, s, _ in told] else "wrong-shape")
        known = self.graph_bytes if header.graph != NO_LETTER else len(NO_LETTER)
        if len(frame) != HEADER_BYTES + sum(lengths.values()) or len(header.graph) != known or header.round < 0:
            raise Refused("malformed")
        samples = header.samples if isinstance(header, CountedHeader) else 0
        if self.most_samples and not 1 <= samples <= self.most_samples:
            raise Refused("wrong-samples")
        verify(header.sender, signed, signature, key_of)
        body = body_of(frame, header.digest)
        tensors, start = {}, 0
        for name, length in lengths.items():
            tensors[name] = body[start : start + length]
            start += length
        self._check_numbers(tensors, self._compressed(header.graph))
        return Letter(header.round, header.sender, header.graph, tensors, samples)

    def _check_numbers(self, tensors: Mapping[str, memoryview], coder: Coder | None) -> None:
        """Raise Refused unless these are bytes of the codec, or numbers, of a sane model."""
        for column in self.columns:
            raw = tensors[column.name]
            if coder is not None:
                problem = coder.problem(raw, self.largest)
            else:
                problem = None if sane(raw, column.dtype, self.largest) else "insane"
            if problem is not None:
                raise Refused(problem)

    def seal_offer(self, round: int, sender: int, receiver: int, key: Ed25519PrivateKey) -> bytes:
        """An offer, signed."""
        return sealed(Offer(self.run, round, sender, receiver), CONTROL_BYTES, key)

    def open_offer(self, raw: bytes, key_of: KeyOf) -> Offer:
        """The offer in these bytes; raises Refused."""
        if len(raw) > CONTROL_BYTES:
            raise Refused("oversized")
        offer: Offer
        offer, signed, signature = parsed(raw, CONTROL_BYTES, Offer)
        if offer.run != self.run:
            raise Refused("wrong-run")
        verify(offer.sender, signed, signature, key_of)
        return offer


def body_of(frame: bytes, digest: bytes) -> memoryview:
    """The numbers of a frame; raises Refused if they are not those that were signed."""
    body = memoryview(frame)[HEADER_BYTES:]
    if blake3(body).digest() != digest:
        raise Refused("wrong-signature")
    return body


def sealed(header: Header | Offer, size: int, key: Ed25519PrivateKey) -> bytes:
    """The signed bytes in front of the numbers."""
    packed = msgspec.msgpack.encode(header)
    front = (MAGIC + len(packed).to_bytes(2, "little") + packed).ljust(size - SIGNATURE_BYTES, b"\0")
    assert len(front) == size - SIGNATURE_BYTES
    return front + key.sign(front)


DECODERS: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Header, CountedHeader, Offer)
}  # made once, in one thread: see `hello`


def parsed(raw: bytes, size: int, kind: type[Any]) -> tuple[Any, bytes, bytes]:
    """Header, the signed bytes, the signature."""
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
