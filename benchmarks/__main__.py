"""Run the benchmarks that are named on the command line, or all of them."""

from __future__ import annotations

import importlib
import sys

ALL = [
    "drawing",
    "training",
    "small_models",
    "views",
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
]


def main() -> int:
    names = sys.argv[1:] or ALL
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"error: unknown benchmark {unknown[0]!r}; known: {', '.join(ALL)}", file=sys.stderr)
        return 2
    reached = [importlib.import_module(f"benchmarks.{name}").run() for name in names]
    return 0 if all(reached) else 1


sys.exit(main())
