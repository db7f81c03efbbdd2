"""Progress of reading data: sources report it, listeners receive it. Without a listener nothing is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Progress = Callable[[str, int, int | None], None]
"""Called with (what is read, amount done, total amount if known)."""

_listener: ContextVar[Progress | None] = ContextVar("listener", default=None)


def tell(what: str, done: int, total: int | None) -> None:
    """Report how far reading has come; cheap enough for every few hundred samples."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


@contextmanager
def told_to(listener: Progress) -> Iterator[None]:
    """Inside this block, `listener` receives the reading progress of this thread."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)
