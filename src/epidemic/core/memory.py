"""The available memory, and refusal of sizes that cannot fit, before anything is allocated."""

from __future__ import annotations

import os
from pathlib import Path

from epidemic.core.errors import BadInput
from epidemic.core.formatting import size


def machine_memory() -> int | None:
    """The bytes available to this process; None if unknown."""
    found = []
    try:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):  # Windows
        return None
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int(Path(limit).read_text()))
        except (OSError, ValueError):  # no container, or one without a limit
            continue
    return min(found)


def require_memory(what: str, needed: int, fix: str, available: int | None = None) -> None:
    """Raise BadInput if something needs more bytes than available on this machine, or than `available`."""
    available = machine_memory() if available is None else available
    if available is not None and needed > available:
        raise BadInput(f"{what} would take {size(needed)} of memory; there are {size(available)}: {fix}")
