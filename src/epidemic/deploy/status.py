"""Status: how a node is, for whoever asks; and reading what a node says of itself, which need not be true or even meant well."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidSignature
from msgspec import Meta

from epidemic.core.errors import plain
from epidemic.deploy.keys import Identity, node_id_of
from epidemic.deploy.wire import Refused
from epidemic.record import Counted as Count
from epidemic.record import HeardCounts

_DOMAIN = b"epidemic status\0"

LARGEST_STATUS = 2**14
"""Bytes of a status; a node's own is about five hundred."""

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
Tally = Annotated[dict[str, Count], Meta(max_length=64)]


class Status(msgspec.Struct, frozen=True):
    """How a node is."""

    node_id: Count
    state: str
    round: Annotated[int, Meta(ge=-1, le=2**53)]  # -1: before the first
    rounds: Count
    accuracy: Annotated[float, Meta(ge=0, le=1)] | None
    loss: Number | None
    bytes: Count  # sent so far
    alive: Count  # nodes, itself included
    nodes: Count
    late: Count
    lost: Count
    refused: Count
    jumped: Count  # rounds that it left out
    undelivered: Count  # messages that nobody was there to take, or whose link was stuck
    limit: Seconds  # that it would wait for messages now
    longest_wait: Seconds  # that it has waited for messages at most
    messages: Tally
    refusals: Tally
    local: Count = 0  # messages sent to nodes of the same process
    trained: Count | None = None  # trainings, where there are no rounds; `round` is then the second of the run
    known: Count | None = None  # others in its view, where it does not know everybody
    left: Seconds | None = None  # seconds until its end, where there are no rounds
    delivery: HeardCounts | None = None  # messages that counted of those expected, where there are rounds
    clock: Annotated[float, Meta(ge=0, le=1e12)] | msgspec.UnsetType = (
        msgspec.UNSET
    )  # its clock when it said so, in seconds since 1970


class _SignedStatus(msgspec.Struct, frozen=True, array_like=True):
    content: bytes  # JSON of a Status
    certificate: bytes
    signature: bytes


# made once, in one thread: see `handshake`
_BUNDLES, _STATUSES = msgspec.msgpack.Decoder(list[_SignedStatus]), msgspec.json.Decoder(Status)


def seal_statuses(statuses: Iterable[tuple[Status, Identity]]) -> bytes:
    """How the nodes of a process are, each signed by its own node."""
    signed = []
    for status, identity in statuses:
        content = msgspec.json.encode(status)
        signed.append(_SignedStatus(content, identity.encoded, identity.key.sign(_DOMAIN + content)))
    return msgspec.msgpack.encode(signed)


def open_statuses(raw: bytes, identity: Identity, nodes: int) -> list[Status]:
    """What the nodes of a process say of themselves; what is not signed by the node that it is about is left out."""
    try:
        bundle = _BUNDLES.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []
    found = {}
    for signed in bundle[:nodes]:
        with suppress(Refused, InvalidSignature):
            name, key, _ = identity.recognise(signed.certificate)
            key.verify(signed.signature, _DOMAIN + signed.content)
            status = read_status(signed.content, node_id_of(name))
            if status is not None:
                found[status.node_id] = status
    return [found[node_id] for node_id in sorted(found)]


def read_status(raw: bytes, node_id: int | None) -> Status | None:
    """What the node at `node_id` says of itself, fit to be shown; None if that is not a status, or of somebody else."""
    try:
        status = _STATUSES.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if len(raw) > LARGEST_STATUS or status.node_id != node_id:
        return None
    return msgspec.structs.replace(
        status,
        state=plain(status.state, 24),
        messages={plain(k, 24): v for k, v in status.messages.items()},
        refusals={plain(k, 24): v for k, v in status.refusals.items()},
    )
