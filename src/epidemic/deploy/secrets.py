"""Secret randomness of a deployed node."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from epidemic.core.errors import BadInput
from epidemic.core.files import full_disk
from epidemic.core.rng import Streams

KEPT_IN = "coin.secret"
"""File in a node's folder with the secret of its hash chains (`network.coin = "committed"`)."""
SECRET_BYTES = 32


def secret_streams() -> Streams:
    """Streams from a secret random seed."""
    return Streams(int.from_bytes(secrets.token_bytes(7), "little"))


def drawing(streams: Streams) -> Callable[[int], int]:
    """A source of random integers: each call draws one below its argument."""
    stream = streams("choice")
    return lambda below: int(stream.integers(below, 1)[0])


def kept_secret(folder: Path) -> bytes:
    """A secret of 32 bytes, made once and kept in the node's folder, readable by its owner only."""
    path = folder / KEPT_IN
    if not path.exists():
        part = path.with_name(path.name + ".part")
        with full_disk(str(path)):
            part.unlink(missing_ok=True)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
    try:
        with path.open("rb") as file:
            found = file.read(SECRET_BYTES + 1)
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}") from None
    if len(found) != SECRET_BYTES:
        raise BadInput(
            f"{path} does not have {SECRET_BYTES} bytes: put the file back, or delete it and begin a new run (others go by what this"
            " node committed to before)"
        )
    return found
