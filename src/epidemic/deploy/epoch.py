"""The epoch: a number that grows with each start of a node of an asynchronous method. Its messages are numbered from EPOCH * 2**32 on.

Peers count a message only if its number is higher than (nearly) all before. So numbers must grow over restarts, even if nothing was saved or the clock
was set back: the last epoch is kept in the node's folder, and the next one is written before any message is sent. A folder restored from a backup
contains an old epoch; an epoch is therefore at least the minutes since 2020, so that a node with a correct clock is accepted at once.
"""

from __future__ import annotations

import time
from pathlib import Path

from epidemic.core.errors import BadInput
from epidemic.core.files import read_bounded, write_bytes

FILE = "epoch"
SHIFT = 32
"""Bits of a message number within an epoch."""
MOST = 2**30
"""Most epochs; in minutes, enough for 2000 years."""
_BEGAN = 1_577_836_800  # 2020-01-01, UTC


def first_number(folder: Path, used: int) -> int:
    """Begin an epoch and write it to the folder; returns the number before its first. `used`: the last number known from a checkpoint."""
    path = folder / FILE
    minutes = max(0, int(time.time()) - _BEGAN) // 60
    epoch = max(_last(path) + 1, (used >> SHIFT) + 1, min(minutes, MOST))
    if epoch >= 2 * MOST:
        raise BadInput(f"{path} says {epoch - 1}, more than any start of a node can have; delete it")
    write_bytes(path, b"%d\n" % epoch)
    return epoch << SHIFT


def _last(path: Path) -> int:
    """The epoch of the last start; 0 if there was none."""
    try:
        text = read_bounded(path, 100).strip()
    except FileNotFoundError:
        return 0
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}") from None
    except ValueError:
        text = b""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadInput(f"{path} is damaged: it must hold one whole number; delete it")
    return int(text)
