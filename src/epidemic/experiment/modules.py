"""A user's own modules: which of them an experiment names, where they are, and what is in them.

A module is the user's own if it is found beside the experiment file or in the current directory; everything else is installed, which is
the business of whoever runs a node. Modules that own ones import are looked at in the same way.
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
"""Where an experiment's table names objects as "module:name": the keys that hold them, at any depth; none: every text is looked at."""

LARGEST = 2**23
"""Bytes of own modules that are taken along."""
MOST_FILES = 1000

TAKEN = ("run", "observer", "relay", "authority", "together")
"""Directories of a deployment, which no package may be called like."""

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def references(table: Mapping[str, Any]) -> dict[str, str]:
    """The "module:name" of everything that an experiment's table names, by the dotted place where it stands."""
    found: dict[str, str] = {}

    def walk(value: Any, place: str, keys: tuple[str, ...], here: bool) -> None:
        if isinstance(value, str):
            if here and _REFERENCE.fullmatch(value):
                found[place] = value
        elif isinstance(value, Mapping):
            for key, part in value.items():
                if key != "options":  # what is handed over is not ours to read
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
    needed_by: str  # a place in the experiment's table, or another module
    source: Path  # the file, or the package's directory
    files: Mapping[str, bytes]  # by their path below the directory that it is in

    @property
    def digest(self) -> str:
        """16 hex digits of what is in it."""
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
    """The other modules that an experiment's table names, which every node must have by itself, each with the place that names it."""
    there = {module.name for module in own_modules(table)} | {"epidemic", "torch", "numpy"} | sys.stdlib_module_names
    named = {reference.partition(":")[0].partition(".")[0]: where for where, reference in references(table).items()}
    return {name: where for name, where in named.items() if name not in there}


def python_files(folder: Path) -> dict[str, bytes]:
    """The modules that were put into a node's folder, by their path in it."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        first, *rest = path.relative_to(folder).parts
        if first.removesuffix(".py").isidentifier() and not (rest and first in TAKEN):
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def _size(module: OwnModule) -> int:
    return sum(map(len, module.files.values()))


def _own_source(name: str) -> Path | None:
    """The file or directory of a module of the user's own; None if it is installed, or not here."""
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
    """The Python files of a module, by their path below the directory that it is in."""
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
    """The modules that a Python file imports, by their first name."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):  # whoever imports it says so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
