"""FedScale's public traces as device files, in their JSON forms.

FedScale (github.com/SymbioticLab/FedScale) publishes pickles, which can execute arbitrary code when read. They are refused, and the message says how to
convert a trusted one into JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec

from epidemic.clock.devices import Device, Line, checked, refuse_pickle
from epidemic.core.errors import BadInput, plain, require_choice, spoken
from epidemic.core.files import UNREADABLE, read_bounded


def convert(path: Path, form: str, lender: list[Device] | None = None) -> list[Line]:
    """Convert a public trace to devices.

    Args:
        path: A JSON file.
        form: fedscale-capacity or fedscale-behave.
        lender: Devices that provide missing fields, in order and repeated from the first.
    """
    require_choice(spoken("form", "--from"), form, FORMS)
    lines: list[Line] = []
    for name, entry in _entries(path):
        try:
            lines.append(FORMS[form](name, entry))
        except _Broken as problem:
            raise BadInput(f"{path}: device {plain(name, 80)!r} {problem}") from None
    if not lines:
        raise BadInput(f"{path} has no devices in the form {form}")
    if lender:
        lines = [_completed(line, other) for line, other in zip(lines, cycle(lender), strict=False)]
    # What is written must be readable: the same checks, with the names of the trace.
    checked(((f"{path}, device {plain(str(line.id), 80)!r}", msgspec.to_builtins(line)) for line in lines), str(path))
    return lines


class _Broken(Exception):
    """What is wrong with one device, as the end of a sentence."""


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        content = read_bounded(path)
        refuse_pickle(path, content)
        found = msgspec.json.decode(content)
    except UNREADABLE as problem:
        if isinstance(problem, BadInput):
            raise
        reason = getattr(problem, "strerror", None) or plain(str(problem))
        raise BadInput(f"{path} cannot be read as JSON: {reason}") from None
    if isinstance(found, list):
        return ((str(number), entry) for number, entry in enumerate(found))
    if not isinstance(found, dict):
        raise BadInput(f"{path} must hold a table of devices by id")
    return iter(found.items())


def _capacity(name: str, entry: Any) -> Line:
    """A device of {"computation": ms per sample, "communication": kbit/s, the same in both directions}."""
    ms, kbps = _number(entry, "computation"), _number(entry, "communication")
    return Line(id=name, ms_per_sample=ms, up_kbps=kbps, down_kbps=kbps)


def _behave(name: str, entry: Any) -> Line:
    """A device of {"active": [s, ...], "inactive": [s, ...], "finish_time": s}: on from active[i] to inactive[i], repeated after finish_time."""
    period = _number(entry, "finish_time")
    begins, ends = _numbers(entry, "active"), _numbers(entry, "inactive")
    if len(begins) - len(ends) not in (0, 1):
        raise _Broken(f"has {len(begins)} active and {len(ends)} inactive times; there must be as many, or one fewer")
    ends = [*ends, period][: len(begins)]
    return Line(id=name, on=_merged(zip(begins, ends, strict=True), period), period_s=period)


def _merged(sessions: Any, period: float) -> tuple[tuple[float, float], ...]:
    """Sessions within the period in order, without empty ones; those that overlap or touch are merged."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(sessions):
        start, end = max(start, 0.0), min(end, period)
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return tuple(found)


def _number(entry: Any, field: str) -> float:
    value = entry.get(field) if isinstance(entry, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise _Broken(f"must have {field}, a number greater than 0; it is {plain(repr(value), 40)}")
    return float(value)


def _numbers(entry: Any, field: str) -> list[float]:
    values = entry.get(field) if isinstance(entry, Mapping) else None
    if not isinstance(values, list) or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        raise _Broken(f"must have {field}, a list of seconds; it is {plain(repr(values), 40)}")
    return [float(value) for value in values]


def _completed(line: Line, other: Device) -> Line:
    """The line with missing fields taken from another device."""
    lent: dict[str, Any] = {
        field: getattr(other, field)
        for field in ("ms_per_sample", "up_kbps", "down_kbps")
        if getattr(line, field) is None and getattr(other, field) is not None
    }
    if line.on is None and other.on is not None:
        lent |= {"on": tuple((a, b) for a, b in other.on.tolist()), "period_s": other.period_s}
    return msgspec.structs.replace(line, **lent)


FORMS: dict[str, Callable[[str, Any], Line]] = {
    "fedscale-capacity": _capacity,
    "fedscale-behave": _behave,
}
