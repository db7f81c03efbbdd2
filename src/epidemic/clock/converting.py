"""Public traces as device files: FedScale's two and FLASH's, in their JSON forms.

FedScale (github.com/SymbioticLab/FedScale) publishes pickles, which can execute arbitrary code when read. They are refused, and the message says how to
convert a trusted one into JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec

from epidemic.clock.devices import Device, Line, checked, refuse_pickle
from epidemic.core.errors import BadInput, plain, require_choice, spoken
from epidemic.core.files import UNREADABLE, read_bounded

MIDNIGHT = datetime(2020, 1, 2)
"""Time 0 of FLASH's own simulator; devices keep their hours of the day relative to each other."""
STAMP = "%Y-%m-%d %H:%M:%S"
NOT_WIFI = frozenset({"unknown", "2g", "3g", "4g", "5g"})


def convert(path: Path, form: str, lender: list[Device] | None = None) -> tuple[list[Line], list[str]]:
    """Convert a public trace to devices.

    Args:
        path: A JSON file.
        form: fedscale-capacity, fedscale-behave or flash.
        lender: Devices that provide missing fields, in order and repeated from the first.

    Returns:
        The devices, and lines about what was left out.
    """
    require_choice(spoken("form", "--from"), form, FORMS)
    left_out: list[str] = []
    lines: list[Line] = []
    for name, entry in _entries(path):
        try:
            lines.append(FORMS[form](name, entry))
        except _Broken as problem:
            if form != "flash":  # the others are tables of numbers, in which nothing should be invalid
                raise BadInput(f"{path}: device {plain(name, 80)!r} {problem}") from None
            left_out.append(f"device {plain(name, 80)!r} {problem}")
    if not lines:
        reason = f"; the first one {left_out[0].partition(' ')[2]}" if left_out else ""
        raise BadInput(f"{path} has no devices in the form {form}{reason}")
    if lender:
        lines = [_completed(line, other) for line, other in zip(lines, cycle(lender), strict=False)]
    # What is written must be readable: the same checks, with the names of the trace.
    checked(((f"{path}, device {plain(str(line.id), 80)!r}", msgspec.to_builtins(line)) for line in lines), str(path))
    return lines, left_out


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


def _flash(name: str, entry: Any) -> Line:
    """A device of {"guid": ..., "messages": lines of time, tab, state}: on while locked, charging and on WiFi; repeated after its length."""
    messages = entry.get("messages") if isinstance(entry, dict) else None
    if isinstance(messages, str):
        messages = messages.split("\n")
    if not isinstance(messages, list):
        raise _Broken("has no messages")
    events = sorted(filter(None, map(_event, messages)), key=lambda event: event[0])
    if not events or events[-1][0] == events[0][0]:
        raise _Broken("has a trace without length")
    period = events[-1][0] - events[0][0]
    states = {"locked": False, "charging": False, "wifi": False}
    sessions: list[tuple[float, float]] = []
    since: float | None = None
    for time, state, value in events:
        if state:
            states[state] = value
        if all(states.values()) and since is None:
            since = time
        elif since is not None and not all(states.values()):
            sessions.append((since, time))
            since = None
    if since is not None:
        sessions.append((since, events[-1][0]))
    guid = entry.get("guid", name)
    return Line(id=str(guid), on=_merged(_wrapped(sessions, period), period), period_s=period)


def _event(message: Any) -> tuple[float, str, bool] | None:
    """Parse a line of FLASH as (seconds, name, value); the name is empty if the event is irrelevant. None for an empty line."""
    if not isinstance(message, str) or not message.strip():
        return None
    time, _, state = message.strip().partition("\t")
    state = state.strip().lower()
    try:
        seconds = (datetime.strptime(time.strip(), STAMP) - MIDNIGHT).total_seconds()
    except ValueError:
        raise _Broken(f"has a line that does not begin with a time: {plain(message, 60)!r}") from None
    if state in ("battery_charged_on", "battery_charged_off"):
        return seconds, "charging", state == "battery_charged_on"
    if state == "wifi" or state in NOT_WIFI:
        return seconds, "wifi", state == "wifi"
    if state in ("screen_lock", "screen_unlock"):
        return seconds, "locked", state == "screen_lock"
    if state in ("screen_on", "screen_off") or state.endswith("%"):
        return seconds, "", False
    raise _Broken(f"has a state that is not known: {plain(state, 40)!r}")


def _wrapped(sessions: list[tuple[float, float]], period: float) -> Iterator[tuple[float, float]]:
    """Sessions at absolute times, mapped into the period; one that crosses its end is split in two."""
    for start, end in sessions:
        place = start % period
        over = place + (end - start) - period
        yield place, min(place + (end - start), period)
        if over > 0:
            yield 0.0, over


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
    "flash": _flash,
}
