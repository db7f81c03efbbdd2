"""Conversion between TOML tables and frozen values.

Every component is a frozen msgspec Struct whose fields are its configuration, so the Python constructor, the TOML table and its validation are one
definition. `build` turns a table into such a value and words errors for people: an unknown kind or key comes with the nearest valid one.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from epidemic.core.errors import BadInput, EpidemicError, plain, spoken, suggestion

T = TypeVar("T")


def build(table: object, cls: type[T], where: str) -> T:
    """Build a `cls` from a table; `where` is its dotted path in the file, for messages."""
    if isinstance(table, cls):
        return table
    if not isinstance(table, Mapping):
        raise BadInput(f"{where} = {table!r} must be a table of keys and values")
    fields = [f.encode_name for f in msgspec.structs.fields(cls)]  # type: ignore[arg-type]
    for key in table:
        if key not in fields and key != "kind":
            takes = suggestion(key, fields) if fields else "; it takes no keys"
            raise BadInput(f"{where}.{key} is not a known key{takes}")
    try:
        return msgspec.convert(dict(table), cls)
    except msgspec.ValidationError as problem:
        raise BadInput(_explain(str(problem), where, table, cls)) from None


def build_kind(table: object, kinds: Mapping[str, type[T]], where: str) -> T:
    """Build the value that a table with a `kind` key describes; a value of one of the kinds is returned unchanged."""
    for cls in kinds.values():
        if isinstance(table, cls):
            return table
    if not isinstance(table, Mapping):
        raise BadInput(f"{where} = {table!r} must be a table with a kind; known: {', '.join(sorted(kinds))}")
    if "kind" not in table:
        raise BadInput(f"{where}.kind is missing; known: {', '.join(sorted(kinds))}")
    kind = table["kind"]
    if not isinstance(kind, str) or kind not in kinds:
        raise BadInput(f"{where}.kind = {kind!r} is not known{suggestion(str(kind), kinds)}")
    return build(table, kinds[kind], where)


def to_table(value: Any) -> dict[str, Any]:
    """The table that `build` turns back into `value`; None is left out."""
    return _without_none(msgspec.to_builtins(value))  # type: ignore[no-any-return]


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Parse a TOML document; raises BadInput that says where it is invalid."""
    try:
        return tomllib.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as problem:  # TOMLDecodeError is a ValueError; so are numbers of too many digits
        raise BadInput(f"{source} is not valid TOML: {problem}") from None


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse `key=value` of a command line; the value is read as TOML, or as text if it is not valid TOML."""
    key, equals, value = text.partition("=")
    if "\n" in text or not equals or not re.fullmatch(r"[A-Za-z0-9_.-]+", key.strip()):
        raise BadInput(f"{text!r} must have the form key=value, for example topology.s=4")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    return value


def _explain(problem: str, where: str, table: Mapping[str, Any], cls: type) -> str:
    """A msgspec error such as "Expected `int`, got `str` - at `$.s`" with dotted paths and the value; our own errors unchanged."""
    found = re.fullmatch(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?", problem, flags=re.DOTALL)
    assert found is not None
    what, path = found["what"], found["path"] or ""
    place = where + path
    missing = re.fullmatch(r"Object missing required field `(.+)`", what)
    unknown = re.fullmatch(r"Object contains unknown field `(.+)`", what)
    if missing:
        return f"{place}.{missing[1]} is missing"
    if unknown:
        return f"{place}.{unknown[1]} is not a known key"
    if what.startswith(("Expected", "Invalid")):
        value: Any = table
        for key, number in re.findall(r"\.(\w+)|\[(\d+)\]", path):
            value = value[key] if key else value[int(number)]
        wanted = re.sub(r"Expected (.+), got .+", r"\1", what).replace("`", "").removesuffix(" | null")
        wanted = {
            "object": "a table",
            "int": "a whole number",
            "float": "a number",
            "str": "a text",
            "array": "a list",
            "bool": "true or false",
        }.get(wanted, wanted)
        choices = _choices(cls, path.removeprefix("."))
        if choices:
            wanted = f"one of {', '.join(choices)}" + (f" or {wanted}" if not what.startswith("Invalid") else "")
        return f"{place} = {value!r} must be {wanted}".replace(" | null", "")
    return what


def _choices(cls: type, field: str) -> list[str]:
    """The choices of a field declared as a literal."""
    try:
        hint = typing.get_type_hints(cls).get(field)
    except (NameError, TypeError):
        return []
    parts = [hint, *typing.get_args(hint)]
    return [repr(word) for part in parts if typing.get_origin(part) is typing.Literal for word in typing.get_args(part)]


def call_own(function: Any, options: Mapping[str, Any], where: str) -> Any:
    """Call a user's own function; raises BadInput with one line if it fails."""
    if not callable(function):
        raise BadInput(f"{where} must name a function, not {type(function).__name__}")
    try:
        return function(**options)
    except EpidemicError:
        raise
    except Exception as problem:
        raise BadInput(f"{where} failed: {type(problem).__name__}: {' '.join(str(problem).split())}") from problem


_LOOKED: dict[str, None] = {}  # in this order
_FOUND: dict[str, str] = {}  # by module


def look_beside(path: str | Path, *, first: bool = False) -> None:
    """Also look for modules named in a file in its directory, after everything installed, or (`first`) before it."""
    directory = str(Path(path).resolve().parent)
    _LOOKED[directory] = None
    if code_refused():  # missing optional packages must not be found there, either
        return
    if first:
        sys.path.insert(0, directory)
    elif directory not in sys.path:
        sys.path.append(directory)


def own_places() -> list[Path]:
    """The directories of files that were read, in the order of reading."""
    return list(map(Path, _LOOKED))


def own_directories() -> set[Path]:
    """Where the user's own modules are: the current directory, and those of files that were read."""
    return {Path.cwd(), *map(Path, _LOOKED)}


def look_here() -> None:
    """Look for modules in the current directory first."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def modules_found_in(modules: Iterable[str]) -> list[str]:
    """The directories, current or of files, in which this process has found these modules."""
    return sorted({_FOUND[module] for module in modules if module in _FOUND})


NO_CODE = "EPIDEMIC_NO_CODE"
"""If set in the environment, modules named in files are refused, in this process and those that it starts."""


def code_refused() -> bool:
    """Whether modules named in files are refused."""
    return os.environ.get(NO_CODE, "") not in ("", "0")


def check_code(reference: str, where: str) -> None:
    """Raise BadInput for a module named in a file, if these are refused."""
    if code_refused():
        raise BadInput(
            f"{where} = {reference!r} names code to be executed, which {spoken(NO_CODE, f'--no-code ({NO_CODE})')} refuses;"
            " read that code first, then leave it out"
        )


_SAID: set[str] = set()  # the user's own modules that this process has executed


def _say_first(module: str, reference: str, where: str) -> None:
    """Print a line before a module of the user's own is first executed."""
    top = module.partition(".")[0]
    if (
        top in _SAID or top in sys.modules or os.environ.get("RANK", "0") != "0"
    ):  # only the first of several ranks prints it
        return
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return  # the importing code prints it
    inside = list(spec.submodule_search_locations or []) if spec is not None else []
    source = Path(inside[0] if inside else (spec.origin or "/") if spec is not None else "/")
    if source.parent.resolve() in own_directories():
        _SAID.add(top)
        print(f"executing the code of {plain(str(source), 500)}, named by {where} = {reference!r}", file=sys.stderr)


def import_object(reference: str, where: str) -> Any:
    """Import the object "module:name"; modules are also looked for in the current directory and beside the experiment file."""
    module, colon, name = reference.partition(":")
    if not colon or not module or not name:
        raise BadInput(f'{where} = {reference!r} must have the form "module:name"')
    check_code(reference, where)
    look_here()
    _say_first(module, reference, where)
    try:
        found: Any = importlib.import_module(module)
        _remember(module, found, {str(directory) for directory in own_directories()})
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise BadInput(f"{where} = {reference!r}: {module} has no {name}") from None
    except ModuleNotFoundError as problem:
        missing = f"{where} = {reference!r} cannot be imported: there is no module {problem.name}"
        if problem.name != module.partition(".")[0]:
            raise BadInput(f"{missing}, which {module} needs") from problem
        raise BadInput(f"{missing} here, beside the experiment file, or installed; start it where it is") from None
    except Exception as problem:
        reason = " ".join(str(problem).split())
        raise BadInput(f"{where} = {reference!r} cannot be imported: {type(problem).__name__}: {reason}") from problem
    return found


def _remember(module: str, found: Any, places: set[str]) -> None:
    """Record in which of these directories a module was found."""
    file, top = Path(getattr(found, "__file__", None) or "/").resolve(), module.partition(".")[0]
    for place in map(Path, places):
        if file in (place / f"{top}.py", place / top) or place / top in file.parents:
            _FOUND[module] = str(place)
