"""Status: how a node is, for whoever asks; and reading what a node says of itself, which need not be true or even meant well."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from epidemic.errors import plain

LARGEST_STATUS = 2**14
"""Bytes of a status; a node's own is about five hundred."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
Tally = Annotated[dict[str, Count], Meta(max_length=64)]


class Status(msgspec.Struct, frozen=True):
    """How a node is."""

    place: Count
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
    undelivered: Count  # letters that nobody was there to take, or whose link was stuck
    limit: Seconds  # that it would wait for letters now
    longest_wait: Seconds  # that it has waited for letters at most
    letters: Tally
    refusals: Tally


def read_status(raw: bytes, place: int) -> Status | None:
    """What the node at `place` says of itself; None if that is not a status, or of somebody else."""
    try:
        status = msgspec.json.decode(raw, type=Status)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if len(raw) > LARGEST_STATUS or status.place != place:
        return None
    return msgspec.structs.replace(
        status,
        state=plain(status.state, 24),
        letters={plain(k, 24): v for k, v in status.letters.items()},
        refusals={plain(k, 24): v for k, v in status.refusals.items()},
    )
