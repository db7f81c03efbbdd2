"""The user's own modules: which of them an experiment names, where they are, and what they contain.

A module is the user's own if it is found beside the experiment file or in the current directory; all others are installed, which whoever runs a node has
to do. Modules imported by own ones are treated in the same way.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epidemic.core.config import look_here, own_directories
from epidemic.core.errors import BadInput

PLACES: Mapping[str, tuple[str, ...]] = {
    "loss": (),
    "metrics": (),
    "callbacks": (),
    "model": ("factory",),
    "data": ("function",),
    "topology": ("factory",),
    "algorithm": ("factory",),
    "aggregation": ("factory",),
    "adversary": ("factory",),
}
"""Keys of an experiment's table that hold "module:name", at any depth; empty: every string is checked."""

LARGEST = 2**23
"""Most bytes of own modules that are copied."""
MOST_FILES = 1000

TAKEN = ("run", "observer", "relay", "authority", "together")
"""Directories of a deployment, which no package may be named like."""

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def references(table: Mapping[str, Any]) -> dict[str, str]:
    """Every "module:name" in an experiment's table, by its dotted path."""
    found: dict[str, str] = {}

    def walk(value: Any, place: str, keys: tuple[str, ...], here: bool) -> None:
        if isinstance(value, str):
            if here and _REFERENCE.fullmatch(value):
                found[place] = value
        elif isinstance(value, Mapping):
            for key, part in value.items():
                if key != "options":  # options are passed on unread
                    walk(part, f"{place}.{key}", keys, not keys or key in keys)
        elif isinstance(value, list | tuple):
            for i, part in enumerate(value):
                walk(part, f"{place}[{i}]", keys, here)

    for place, keys in PLACES.items():
        walk(table.get(place), place, keys, not keys)
    return found


@dataclass(frozen=True)
class OwnModule:
    """A module of the user's own: a file, or a package with its files."""

    name: str
    needed_by: str  # a path in the experiment's table, or another module
    source: Path  # the file, or the package's directory
    files: Mapping[str, bytes]  # by path below the directory that contains the module

    @property
    def digest(self) -> str:
        """16 hex digits that identify its content."""
        found = hashlib.blake2b(digest_size=8)
        for path, content in sorted(self.files.items()):
            found.update(f"{path}\0{len(content)}\0".encode() + content)
        return found.hexdigest()


def own_modules(table: Mapping[str, Any]) -> list[OwnModule]:
    """The own modules that an experiment's table needs: those that it names, and those that these import."""
    waiting = [(reference.partition(".")[0].partition(":")[0], where) for where, reference in references(table).items()]
    if not waiting:
        return []
    look_here()
    importlib.invalidate_caches()
    found: dict[str, OwnModule] = {}
    while waiting:
        name, needed_by = waiting.pop(0)
        source = None if name in found else _own_source(name)
        if source is None:
            continue
        found[name] = OwnModule(name, needed_by, source, _files(source))
        waiting += [(other, name) for content in found[name].files.values() for other in _imported(content)]
    size, count = (sum(map(f, found.values())) for f in (_size, lambda module: len(module.files)))
    if size > LARGEST or count > MOST_FILES:
        raise BadInput(
            f"the modules {', '.join(found)} are {count} files of {size} bytes, more than {MOST_FILES} files or {LARGEST} bytes;"
            " keep what the experiment does not need elsewhere, or install it on every node"
        )
    return list(found.values())


def installed(table: Mapping[str, Any]) -> dict[str, str]:
    """The other modules that an experiment's table names and every node must have installed, with the path that names each."""
    there = {module.name for module in own_modules(table)} | {"epidemic", "torch", "numpy"} | sys.stdlib_module_names
    named = {reference.partition(":")[0].partition(".")[0]: where for where, reference in references(table).items()}
    return {name: where for name, where in named.items() if name not in there}


def python_files(folder: Path) -> dict[str, bytes]:
    """The modules in a node's folder, by path."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        first, *rest = path.relative_to(folder).parts
        if first.removesuffix(".py").isidentifier() and not (rest and first in TAKEN):
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def _size(module: OwnModule) -> int:
    return sum(map(len, module.files.values()))


def _own_source(name: str) -> Path | None:
    """The file or directory of a module of the user's own; None if it is installed or missing."""
    try:
        spec = importlib.util.find_spec(name) if name != "epidemic" else None
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return None
    inside = list(spec.submodule_search_locations or [])
    if not inside and not (spec.origin or "").endswith(".py"):
        return None
    source = Path(inside[0] if inside else str(spec.origin))
    return source if source.parent.resolve() in own_directories() else None


def _files(source: Path) -> dict[str, bytes]:
    """The Python files of a module, by path below the directory that contains it."""
    top = source.parent.resolve()
    if source.is_dir() and source.name in TAKEN:
        raise BadInput(
            f"the package {source.name} cannot be taken along: a deployment has a directory of that name; call it otherwise"
        )
    paths = [source] if source.is_file() else [p for p in sorted(source.rglob("*.py")) if p.is_file()]
    found = {}
    for path in paths[: MOST_FILES + 1]:
        target = path.resolve()
        if not target.is_relative_to(top / source.name):
            raise BadInput(f"{path} is a link to {target}, outside of its module; put the file itself there")
        try:
            if target.stat().st_size > LARGEST:
                raise BadInput(
                    f"{path} has {target.stat().st_size} bytes, more than {LARGEST}; a module is code, not data"
                )
            found[path.relative_to(source.parent).as_posix()] = path.read_bytes()
        except OSError as problem:
            raise BadInput(f"{path} cannot be read: {problem.strerror}") from None
    return found


def _imported(content: bytes) -> Iterator[str]:
    """The top-level modules that a Python file imports."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):  # importing it reports the error
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
