"""Randomness of a deployed node that nobody else can know."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from epidemic.rng import Streams


def secret_streams() -> Streams:
    """Randomness that nobody else can know."""
    return Streams(int.from_bytes(secrets.token_bytes(7), "little"))


def drawing(streams: Streams) -> Callable[[int], int]:
    """Random whole numbers, one after the other."""
    stream = streams("choice")
    return lambda below: int(stream.integers(below, 1)[0])
