"""Golden bytes of everything that is sealed and sent between deployed nodes, field by field, and whole at the end."""

import json
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import golden
from epidemic.algorithms import Column
from epidemic.compression import BFloat16, Float16, Int8, RandomK, TopK
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers
from epidemic.deploy.agreement import Agreement
from epidemic.deploy.contacts import Book, seal_contact
from epidemic.deploy.handshake import Handshake, seal_handshakes
from epidemic.deploy.status import Status, seal_statuses
from epidemic.deploy.wire import STATE_TRANSFER, MessageFormat
from epidemic.protocol.node import MessageKind
from epidemic.runtime.message_coding import Coder

RUN = bytes.fromhex("00112233445566778899aabbccddeeff")
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
IDENTITY = SimpleNamespace(key=KEY, encoded=b"(certificate of node-1)", node_id=1)
GRAPH = b"graph-07"
X = np.array([1.0, -2.5, 0.0, 0.125, 3.0, -0.5], dtype="<f4")
Y = np.array([0.25, -8.0], dtype="<f8")
COLUMN = Column("x", (6,), "float32")
HEADER = (
    "run", "kind", "round or number", "sender", "graph", "digest of the numbers", "columns", "whole numbers", "part (-1: none)",
)  # fmt: skip


def raw(numbers):
    return numbers.view(np.uint8)


def shown(value):
    """A value of a header: bytes as hex, the rest as JSON has it."""
    return value.hex() if isinstance(value, bytes) else json.dumps(value)


def in_lines(data):
    """Bytes as hex, 32 in a line."""
    return [f"  {start:4d}  {data[start : start + 32].hex(' ', 4)}" for start in range(0, len(data), 32)]


def frame(data, names, front=256):
    """A frame field by field, and its bytes."""
    data = bytes(data)
    end = 6 + int.from_bytes(data[4:6], "little")
    header = msgspec.msgpack.decode(data[6:end])
    assert len(header) == len(names)
    lines = [f"  magic and version: {data[:4].hex()}", f"  header: {end - 6} bytes"]
    lines += [f"    {name}: {shown(value)}" for name, value in zip(names, header, strict=True)]
    assert not any(data[end : front - 64])
    lines += [
        f"  zeros: {front - 64 - end} bytes",
        f"  signature: {data[front - 64 : front].hex()}",
        f"  numbers: {data[front:].hex() or 'none'}",
        f"  in all {len(data)} bytes:",
    ]
    KEY.public_key().verify(data[front - 64 : front], data[: front - 64])
    return [*lines, *in_lines(data)]


def packed(data, names):
    """A msgpack array field by field, and its bytes."""
    found = msgspec.msgpack.decode(data)
    lines = [f"  {name}: {shown(value)}" for name, value in zip(names, found, strict=True)]
    return [*lines, f"  in all {len(data)} bytes:", *in_lines(data)]


def text(words, parts):
    """A golden text of several things by name."""
    head = "\n".join("# " + line for line in words.splitlines())
    return head + "\n" + "".join("\n" + "\n".join([name, *lines]) + "\n" for name, lines in parts.items())


def test_frames_of_rounds():
    two = MessageFormat.in_rounds(RUN, (COLUMN, Column("y", (2,), "float64")))
    one = MessageFormat.in_rounds(RUN, (COLUMN,))
    counted = MessageFormat.in_rounds(RUN, (COLUMN,), most_samples=1000)
    committed = MessageFormat.in_rounds(RUN, (COLUMN,), graph_bytes=32)
    parts = {
        "one column": frame(one.seal(7, 1, {"x": raw(X)}, KEY, graph=GRAPH), HEADER),
        "two columns, round 1000000": frame(two.seal(10**6, 1, {"x": raw(X), "y": raw(Y)}, KEY, graph=GRAPH), HEADER),
        "with the number of samples": frame(
            counted.seal(7, 1, {"x": raw(X)}, KEY, graph=GRAPH, numbers=(250,)), HEADER
        ),
        "with a committed coin": frame(
            committed.seal(7, 1, {"x": raw(X)}, KEY, graph=bytes(range(32))),
            (*HEADER[:4], "link of the round", *HEADER[5:]),
        ),
        "a model that was asked for": frame(one.seal(7, 1, {"x": raw(X)}, KEY, kind=STATE_TRANSFER), HEADER),
        "an offer": frame(one.seal_offer(7, 1, 2, KEY), ("run", "round", "sender", "receiver"), front=128),
    }
    golden.check(
        "frames-rounds",
        text(
            "Signed frames of methods with rounds: node 1 sends 6 numbers of float32, in the second also 2 of float64.",
            parts,
        ),
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compressed_frames(dtype):
    column = Column("x", (32,), dtype)
    # whole sixteenths up to 8: exact in every type, so that the bytes are the same on any processor
    rows = torch.tensor([[(k * 37 % 255 - 127) / 16 for k in range(32)]], dtype=column.torch_dtype)
    before = torch.zeros_like(rows)
    parts = {}
    for name, codec in {
        "float16": Float16(), "bfloat16": BFloat16(), "int8": Int8(), "random-k": RandomK(0.25), "top-k": TopK(0.25),
    }.items():  # fmt: skip
        coder = Coder(codec, column, Streams(3), "own", differences=False)
        remembered = before.clone() if coder.remembers else None
        sent = coder.encode(rows, 7, np.array([1]), remembered, Workers(1))
        format = MessageFormat.in_rounds(RUN, (column,), coder=coder)
        parts[name] = frame(format.seal(7, 1, {"x": sent[0].numpy()}, KEY, graph=GRAPH), HEADER)
    golden.check(
        f"frames-compressed-{dtype}",
        text(
            f"Signed frames of compressed models: node 1 sends 32 numbers of {dtype}, multiples of 1/16 up to 8.", parts
        ),
    )


def test_frames_without_rounds():
    kinds = (MessageKind(notes=1), MessageKind("piece", part=True), MessageKind("word", row=False, notes=2))
    format = MessageFormat.without_rounds(RUN, COLUMN, kinds, sizes=(4, 2))
    parts = {
        "a model with its age": frame(format.seal(7, 1, {"x": raw(X)}, KEY, numbers=(3,)), HEADER),
        "part 1 of a model": frame(format.seal(8, 1, {"x": raw(X[:2])}, KEY, kind="piece", part=1), HEADER),
        "words only": frame(format.seal(9, 1, {}, KEY, kind="word", numbers=(0, 2**40)), HEADER),
        "a model that was asked for": frame(format.seal(10, 1, {"x": raw(X)}, KEY, kind=STATE_TRANSFER), HEADER),
    }
    golden.check(
        "frames-asynchronous", text("Signed frames of asynchronous methods: node 1 sends 6 numbers of float32.", parts)
    )


def signed_hello(said):
    signed, told = msgspec.msgpack.decode(seal_handshakes([(said, IDENTITY)], TERMS))
    content, signature = signed[0]
    names = (
        "node", "carrier", "token", "certificate", "run", "round", "takes part from", "finished", "gone", "contact", "commitment",
    )  # fmt: skip
    values = msgspec.msgpack.decode(content)
    KEY.public_key().verify(signature, b"epidemic hello\0" + content)
    lines = [f"  {name}: {shown(value)}" for name, value in zip(names, values, strict=True)]
    return [
        *lines,
        f"  signature: {signature.hex()}",
        f"  agreement: {told.decode()}",
        "  content:",
        *in_lines(content),
    ]


TERMS = Agreement({"nodes": 4, "algorithm.lr": 0.1}, "graphs", "model", "data", (8,), version="0")


def test_what_nodes_tell_each_other():
    said = Handshake(1, 1, "token", IDENTITY.encoded, TERMS.run, 5, 2, False, False)
    contact = seal_contact(IDENTITY, "192.0.2.1:7447", 1_700_000_000)
    book = Book(IDENTITY, contact, 4)
    exchange = msgspec.msgpack.decode(book.seal(RUN, 1, 2, ((1, 0),), KEY))
    status = Status(
        node_id=1, state="learning", round=5, rounds=20, accuracy=0.5, loss=1.25, bytes=1000, alive=4, nodes=4, late=0, lost=1, refused=2,
        jumped=0, undelivered=0, limit=0.5, longest_wait=0.75, messages={"counted": 9}, refusals={"wrong-graph": 2},
    )  # fmt: skip
    content, certificate, signature = msgspec.msgpack.decode(seal_statuses([(status, IDENTITY)]))[0]
    parts = {
        "a handshake": signed_hello(said),
        "where a node is": [
            *packed(msgspec.msgpack.decode(contact)[0], ("node", "address", "since", "certificate")),
            f"  signature: {msgspec.msgpack.decode(contact)[1].hex()}",
        ],
        "an exchange of entries": [
            f"  content: {exchange[0].hex()}",
            f"  signature: {exchange[1].hex()}",
        ],
        "a status": [
            f"  content: {content.decode()}",
            f"  certificate: {certificate.decode()}",
            f"  signature: {signature.hex()}",
        ],
        "the run's name, of what nodes must agree on": [f"  {TERMS.run.hex()}"],
    }
    golden.check(
        "frames-handshake", text("What nodes tell each other before and beside messages; signed by node 1.", parts)
    )


def test_every_codec_has_its_bytes_here():
    from epidemic.compression import CODECS

    assert set(CODECS) == {"none", "float16", "bfloat16", "int8", "random-k", "top-k"}
