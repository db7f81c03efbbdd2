"""How far reading has come: sources tell, and whoever wants to know listens. Without a listener nothing is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Progress = Callable[[str, int, int | None], None]
"""Called with what is read, how much of it is done and how much there is in all (if known)."""

_listener: ContextVar[Progress | None] = ContextVar("listener", default=None)


def tell(what: str, done: int, total: int | None) -> None:
    """Say how far reading has come; cheap enough for every few hundred samples."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


@contextmanager
def told_to(listener: Progress) -> Iterator[None]:
    """Let `listener` hear what is read inside this block, by this thread."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)
