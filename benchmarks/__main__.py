"""Run the benchmarks that are named on the command line, or all of them; with --smallest, in a form that only shows that they run.

`models/lstm` is a part of a benchmark, where it has parts. `--json FILE` writes all ratios down, and they are compared with those that
`benchmarks/measured` has of the same kind of machine.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from pathlib import Path

from benchmarks.results import compare, write
from benchmarks.sizes import VARIABLE

ALL = [
    "drawing",
    "training",
    "small_models",
    "models",
    "choices",
    "views",
    "aggregation",
    "methods",
    "scaling",
    "scale",
    "clock",
    "memory",
    "shares",
    "loading",
    "network",
    "floods",
    "ranks",
    "walk",
]
MINUTES = 30
"""What all of them together may take on two cores."""


def _with_parts(words: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The benchmarks that are named, each once, and the parts of each (`models/lstm`); no parts are all of them."""
    parts: dict[str, list[str]] = {}
    for word in words:
        name, _, part = word.partition("/")
        parts.setdefault(name, []).extend([part] if part else [])
    return list(parts), parts


def main(words: list[str]) -> int:
    """0 if every ratio is reached, 1 if not or if one fails, 2 if the words are not understood."""
    smallest = "--smallest" in words
    given = [word for word in words if word != "--smallest"]
    file = None
    if "--json" in given:
        where = given.index("--json")
        if len(given) == where + 1:
            print("error: --json needs the name of a file", file=sys.stderr)
            return 2
        file = Path(given[where + 1])
        given = given[:where] + given[where + 2 :]
    names = given or ALL
    names, parts = _with_parts(names)
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"error: unknown benchmark {unknown[0]!r}; known: --smallest, {', '.join(ALL)}", file=sys.stderr)
        return 2
    for name, own in parts.items():
        known = getattr(importlib.import_module(f"benchmarks.{name}"), "parts", list)() if own else []
        strange = [part for part in own if part not in known]
        if strange:
            print(f"error: {name} has no part {strange[0]!r}; known: {', '.join(known) or 'none'}", file=sys.stderr)
            return 2
    if smallest and os.environ.get(VARIABLE) != "smallest":  # sizes are read when modules are imported
        os.environ[VARIABLE] = "smallest"
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks", *words])
    start, missed = time.perf_counter(), []
    for name in names:
        print(f"== {name}", flush=True)
        began = time.perf_counter()
        try:
            module = importlib.import_module(f"benchmarks.{name}")
            reached = module.run(parts[name]) if parts[name] else module.run()
        except Exception:  # the others are measured all the same
            traceback.print_exc()
            reached = False
        print(f"== {name} took {time.perf_counter() - began:.0f} s", flush=True)
        if not reached:
            missed.append(name)
        if file is not None:  # after each, so that an interrupt loses none that is done
            write(file)
    minutes = (time.perf_counter() - start) / 60
    if minutes > MINUTES:
        missed.append(f"{MINUTES} minutes for all")
    print(
        f"{len(names)} benchmarks took {minutes:.1f} minutes; {'missed: ' + ', '.join(missed) if missed else 'all is well'}"
    )
    if not smallest:
        compare()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
