"""The ways in which things end early, and the checks that raise the first.

`BadInput` is the user's to fix (exit code 2), `RunFailed` happened while running (exit code 1), `Interrupted` can go on (130).
Every message is one line that names the value, the limit and the fix.
"""

from __future__ import annotations

import difflib
import math
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class EpidemicError(Exception):
    """Anything this package raises on purpose."""

    agreed = False
    """Whether all ranks of a simulation know of it, so that one of them says it for all."""


class BadInput(EpidemicError, ValueError):
    """A value that cannot be honoured: what it is, what is allowed, what to do."""


class RunFailed(EpidemicError, RuntimeError):
    """A run that started and could not go on."""


NOT_FINITE = "no longer a finite number"
"""In what a run says that has diverged: doing the same again would end the same."""


class Diverged(RunFailed):
    """A loss that is no longer a finite number."""


class CallbackFailed(RunFailed):
    """A callback raised something; the run itself is sound and can go on."""


class RankLost(RunFailed):
    """Another rank of the simulation is gone, or does not answer."""


class Interrupted(EpidemicError):
    """A run that was stopped by the user and can go on later (exit code 130)."""


_flags = False  # whether messages are for somebody at a command line


@contextmanager
def for_the_command_line() -> Iterator[None]:
    """Inside, messages name the options of commands instead of the arguments of Python functions."""
    global _flags
    before, _flags = _flags, True
    try:
        yield
    finally:
        _flags = before


def spoken(python: str, command: str) -> str:
    """The words of a message for whoever reads it: somebody who calls a Python function, or somebody at a command line."""
    return command if _flags else python


def argument(name: str) -> str:
    """What an argument is called by whoever gives it: `name` in Python, `--name` at a command line."""
    return spoken(name, f"--{name.replace('_', '-')}")


def require_int(name: str, value: object, low: int, high: int | None = None) -> None:
    """Refuse anything but a whole number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{name} = {value!r} must be a whole number")
    if value < low:
        raise BadInput(f"{name} = {value} must be at least {low}")
    if high is not None and value > high:
        raise BadInput(f"{name} = {value} must be at most {high}")


def require_real(
    name: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: float | None = None,
) -> None:
    """Refuse anything but a finite number in [low, high]; with `above`, also strictly larger."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(f"{name} = {value!r} must be a number")
    if not math.isfinite(value):
        raise BadInput(f"{name} = {value} must be a finite number")
    if above is not None and value <= above:
        raise BadInput(f"{name} = {value} must be greater than {above:g}")
    if value < low:
        raise BadInput(f"{name} = {value} must be at least {low:g}")
    if value > high:
        raise BadInput(f"{name} = {value} must be at most {high:g}")


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse anything but one of `choices`, suggesting the nearest."""
    choices = list(choices)
    if value not in choices:
        raise BadInput(f"{name} = {value!r} is not known{suggestion(str(value), choices)}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """The tail of an error message: the nearest known word, or all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def plain(text: str, most: int = 200) -> str:
    """Words of somebody else, fit for a line of a terminal or a log: no control characters, on one line, of at most `most` characters.

    Escape codes, line breaks, and marks that turn the direction of writing become question marks. Rich's markup is left as it is;
    print what this gives with markup off, or as a `Text`.
    """
    cut = text[:most]
    shown = "".join(c if unicodedata.category(c)[0] != "C" and c not in "\u2028\u2029" else "?" for c in cut)
    return shown if len(text) <= most else shown[: most - 3] + "..."
