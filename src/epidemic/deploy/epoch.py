"""Epoch: a number that grows with each start of a node whose method has no rounds. Its messages are numbered from EPOCH * 2**32 on.

Others count a message only if its number is higher than (nearly) all before. So numbers must grow over restarts, also where nothing was saved and
where the clock was set back: the last epoch is kept in the node's folder, and the next one is written down before any message is sent. A folder that
was restored from a backup knows an old epoch only; therefore an epoch is also at least the minutes since 2020, so that a node whose clock is
right is heard at once all the same.
"""

from __future__ import annotations

import time
from pathlib import Path

from epidemic.core.errors import BadInput
from epidemic.core.files import read_bounded, write_bytes

FILE = "epoch"
SHIFT = 32
"""Bits of a number that are counted within an epoch."""
MOST = 2**30
"""Epochs that a node may have; minutes are enough for 2000 years."""
_BEGAN = 1_577_836_800  # 2020-01-01, UTC


def first_number(folder: Path, used: int) -> int:
    """Begin an epoch, written down in the folder: the number below the first of it. `used` is the last number that is known from a checkpoint."""
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
