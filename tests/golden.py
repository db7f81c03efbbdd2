"""Golden text files: what comes out of a scenario, in `tests/golden/NAME.txt`, so that a change shows as a difference of lines.

A test calls `check(name, text)`, which fails with the difference if the file says something else. After a change that is meant to be

    python tests/golden.py [arguments of pytest]

runs these tests again, rewrites the files that changed and prints the differences, to be read before they are committed.
"""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "golden"
REWRITE = "REWRITE_GOLDEN_FILES"
"""The environment variable that has the files rewritten."""
MOST_LINES = 60
"""So many lines of a difference are shown in a failure."""


def check(name: str, text: str) -> None:
    """Compare a text with the golden file of this name, or rewrite the file if that was asked for.

    Args:
        name: The file's name in tests/golden, without `.txt`.
        text: What came out now; lines end in a newline.
    """
    path = FOLDER / f"{name}.txt"
    text = text.rstrip("\n") + "\n"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if text == before:
        return
    lines = list(
        difflib.unified_diff(
            before.splitlines(), text.splitlines(), f"{path.name} before", f"{path.name} now", lineterm=""
        )
    )
    if os.environ.get(REWRITE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print("\n" + "\n".join(lines))
        return
    more = [f"... and {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
    shown = "\n".join(lines[:MOST_LINES] + more)
    pytest.fail(f"{path.name} has changed; if that is meant to be: python tests/golden.py\n{shown}", pytrace=False)


def uses_golden_files(path: Path) -> bool:
    """Whether a file of tests calls `check`."""
    return "golden.check(" in path.read_text(encoding="utf-8")


if __name__ == "__main__":
    os.environ[REWRITE] = "1"
    tests = sys.argv[1:] or [str(path) for path in sorted(FOLDER.parent.glob("test_*.py")) if uses_golden_files(path)]
    sys.exit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", *tests]))
