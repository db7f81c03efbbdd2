"""How large benchmarks are: as they measure, or in their smallest form, which only shows that every one of them runs (`--smallest`).

Processes that a benchmark starts inherit the form.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

VARIABLE = "EPIDEMIC_BENCHMARKS"
SMALLEST = os.environ.get(VARIABLE) == "smallest"


def sized(usual: T, smallest: T) -> T:
    """The usual size, or that of the smallest form."""
    return smallest if SMALLEST else usual
