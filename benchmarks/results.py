"""What was measured, as a file, and beside what was measured before on the same kind of machine."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path

import torch

from benchmarks.timing import FOUND
from epidemic.core.workers import available_threads

MEASURED = Path(__file__).parent / "measured"
"""The committed measurements, a file for each kind of machine."""
NOTICED = 1.25
"""Ratios that differ by less than this factor are not worth a line: machines are shared."""


def machine() -> str:
    """The kind of machine: processor, cores, version of PyTorch."""
    processor = platform.processor() or platform.machine()
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        processor = found[1] if found else processor
    except OSError:
        pass
    words = f"{processor} {available_threads()} cores torch {torch.__version__.partition('+')[0]}"
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-")


def write(file: Path) -> None:
    """All ratios so far."""
    file.write_text(json.dumps({"machine": machine(), "ratios": FOUND}, indent=1) + "\n", encoding="utf-8")


def compare() -> None:
    """Print which ratios differ from those that are committed for this kind of machine."""
    file = MEASURED / f"{machine()}.json"
    if not file.exists():
        print(f"nothing is committed for this kind of machine ({machine()})")
        return
    before = {one["what"]: one["ratio"] for one in json.loads(file.read_text(encoding="utf-8"))["ratios"]}
    for line in differences(before):
        print(line)


def differences(before: dict[str, float]) -> list[str]:
    """A line for each ratio that is worse or better than before by more than noise."""
    lines = []
    for one in FOUND:
        old, new = before.get(one["what"]), one["ratio"]
        if old and new and max(old / new, new / old) > NOTICED:
            better = (new < old) == bool(one.get("at_most"))
            lines.append(f"{one['what']}: {new:.2f}, {'better' if better else 'WORSE'} than the committed {old:.2f}")
    return lines
