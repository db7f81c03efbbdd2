"""How much memory there is, and sizes that cannot fit into it: said before anything is allocated."""

from __future__ import annotations

import os
from pathlib import Path

from epidemic.core.errors import BadInput
from epidemic.core.formatting import size


def machine_memory() -> int | None:
    """Bytes that this process can have at most; None where nobody says."""
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
    """Refuse what needs more bytes than there are: on this machine, or `available` ones."""
    available = machine_memory() if available is None else available
    if available is not None and needed > available:
        raise BadInput(f"{what} would take {size(needed)} of memory; there are {size(available)}: {fix}")
