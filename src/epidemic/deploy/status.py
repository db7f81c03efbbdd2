"""The status of a node, for observers. A received status need not be true, or even well-intended."""

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
"""Most bytes of a status; about five hundred are usual."""

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
Tally = Annotated[dict[str, Count], Meta(max_length=64)]


class Status(msgspec.Struct, frozen=True):
    """A node's report about itself."""

    node_id: Count
    state: str
    round: Annotated[int, Meta(ge=-1, le=2**53)]  # -1: before the first round
    rounds: Count
    accuracy: Annotated[float, Meta(ge=0, le=1)] | None
    loss: Number | None
    bytes: Count  # sent so far
    alive: Count  # live nodes, itself included
    nodes: Count
    late: Count
    lost: Count
    refused: Count
    jumped: Count  # rounds skipped
    undelivered: Count  # messages whose receiver was gone or whose link was stuck
    limit: Seconds  # current limit of the wait for messages
    longest_wait: Seconds  # longest wait for messages so far
    messages: Tally
    refusals: Tally
    local: Count = 0  # messages sent to nodes of the same process
    trained: Count | None = None  # trainings, for asynchronous methods; `round` is then the second of the run
    known: Count | None = None  # peers in its view, if it knows only some of them
    left: Seconds | None = None  # seconds until the end, for asynchronous methods
    delivery: HeardCounts | None = None  # messages counted and expected, for methods with rounds
    clock: Annotated[float, Meta(ge=0, le=1e12)] | msgspec.UnsetType = (
        msgspec.UNSET
    )  # the node's clock when it sent this, in seconds since 1970


class _SignedStatus(msgspec.Struct, frozen=True, array_like=True):
    content: bytes  # JSON of a Status
    certificate: bytes
    signature: bytes


# created once, in one thread: see `handshake`
_BUNDLES, _STATUSES = msgspec.msgpack.Decoder(list[_SignedStatus]), msgspec.json.Decoder(Status)


def seal_statuses(statuses: Iterable[tuple[Status, Identity]]) -> bytes:
    """The statuses of the nodes of a process, each signed by its own node."""
    signed = []
    for status, identity in statuses:
        content = msgspec.json.encode(status)
        signed.append(_SignedStatus(content, identity.encoded, identity.key.sign(_DOMAIN + content)))
    return msgspec.msgpack.encode(signed)


def open_statuses(raw: bytes, identity: Identity, nodes: int) -> list[Status]:
    """The statuses in an answer; those not signed by the node that they are about are left out."""
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
    """The status of the node `node_id`, safe to be shown; None if it is invalid or about another node."""
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
