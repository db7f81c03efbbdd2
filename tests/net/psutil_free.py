"""How much memory a process takes, from /proc."""

import os
from pathlib import Path


def resident(pid):
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
