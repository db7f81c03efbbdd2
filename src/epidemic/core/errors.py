"""The exceptions of this package, and checks of arguments.

`BadInput` is the user's to fix (exit code 2), `RunFailed` happened while running (exit code 1), `Interrupted` can be resumed (130). Every message is one
line that names the value, the limit and the fix.
"""

from __future__ import annotations

import difflib
import math
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class EpidemicError(Exception):
    """Base of all exceptions that this package raises on purpose."""

    agreed = False
    """Whether all ranks of a simulation raise it, so that only one of them prints it."""


class BadInput(EpidemicError, ValueError):
    """An invalid value: the message says what it is, what is allowed, and what to do."""


class RunFailed(EpidemicError, RuntimeError):
    """A run failed after it had started."""


NOT_FINITE = "no longer a finite number"
"""Part of the message of a diverged run: repeating it would end the same way."""


class Diverged(RunFailed):
    """A loss is no longer a finite number."""


class CallbackFailed(RunFailed):
    """A callback raised an exception; the run itself is sound and can be resumed."""


class RankLost(RunFailed):
    """Another rank of the simulation has ended or does not answer."""


class Interrupted(EpidemicError):
    """The user stopped a run, which can be resumed later (exit code 130)."""


_flags = False  # whether messages are for the command line


@contextmanager
def for_the_command_line() -> Iterator[None]:
    """Inside, messages name options of commands instead of arguments of Python functions."""
    global _flags
    before, _flags = _flags, True
    try:
        yield
    finally:
        _flags = before


def spoken(python: str, command: str) -> str:
    """The wording of a message for its reader: a caller of a Python function, or a user of the command line."""
    return command if _flags else python


def argument(name: str) -> str:
    """The name of an argument for its reader: `name` in Python, `--name` on the command line."""
    return spoken(name, f"--{name.replace('_', '-')}")


def require_int(name: str, value: object, low: int, high: int | None = None) -> None:
    """Refuse anything but an integer in [low, high]."""
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
    """Foreign text made safe for one line of a terminal or a log: no control characters, at most `most` characters.

    Escape codes, line breaks, and marks that change the writing direction become question marks. Rich's markup is unchanged; print the result with markup
    off, or as a `Text`.
    """
    cut = text[:most]
    shown = "".join(c if unicodedata.category(c)[0] != "C" and c not in "\u2028\u2029" else "?" for c in cut)
    return shown if len(text) <= most else shown[: most - 3] + "..."
