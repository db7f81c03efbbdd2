"""Progress of runs, sweeps, downloads and reading, shown in one way.

Code that reads data reports it with `tell`, and `told_to` sets the listener. `Bars` shows what can be counted: bars on a terminal, a table in a notebook,
whole lines elsewhere. `Waiting` and `Loading` print what takes unexpectedly long. Everything goes to standard error, or into the notebook.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from html import escape
from typing import Any, Self, TextIO

Progress = Callable[[str, int, int | None], None]
"""Called with (what is read, amount done, total amount if known)."""
AFTER = 2.0
"""Seconds before a long step is mentioned."""
BETWEEN_LINES = 5.0
"""Seconds between lines about reading."""
REDRAW = 0.2
"""Seconds between two updates of a notebook's table; important changes are shown at once."""

_listener: ContextVar[Progress | None] = ContextVar("listener", default=None)


def tell(what: str, done: int, total: int | None) -> None:
    """Report how far reading has come; cheap enough for every few hundred samples, and nothing without a listener."""
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


class Loading:
    """Prints the progress of reading in whole lines, because the bar of a run may be on the screen."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._what = ""

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Print a line if it is time for one."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._began, self._last = what, now, now - BETWEEN_LINES
        if now - self._began >= AFTER and now - self._last >= BETWEEN_LINES:
            self._last = now
            _print(f"reading {what}" + ("" if total is None else f": {done:,} of {total:,}"))


class Waiting:
    """Shows the current work once it takes long: a line that changes on a terminal, a plain line now and then elsewhere."""

    def __init__(
        self,
        what: str,
        stream: TextIO | None = None,
        *,
        doing: str = "",
        after: float = AFTER,
        every: float = 10.0,
        at_once: bool = False,
        quiet: bool = False,
    ) -> None:
        """`at_once`: on a terminal from the first moment, where the line goes away again, and nowhere else; `quiet`: not at all."""
        self._what, self._stream = what, sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._after, self._every = 0.0 if at_once else after, 0.5 if self._live else every
        self._quiet = quiet or (at_once and not self._live)
        self._doing = doing
        self._said = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._speak, daemon=True)

    def __enter__(self) -> Waiting:
        if not self._quiet:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if not self._quiet:
            self._thread.join()
        if self._live and self._said:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def tell(self, doing: str) -> None:
        """Set the work that is shown once it takes long enough."""
        self._doing = doing

    def _speak(self) -> None:
        pause = self._after
        while not self._done.wait(pause):
            line = f"{self._what}: {self._doing or 'begins'}"
            self._stream.write(f"\r\x1b[K{line}" if self._live else f"{line}\n")
            self._stream.flush()
            self._said, pause = True, self._every


@dataclass(eq=False)
class Bar:
    """One bar of `Bars`: its name, how much is done, and three short texts beside it."""

    name: str
    total: float | None  # None: not known yet
    done: float = 0.0
    count: str = ""
    rate: str = ""
    state: str = ""
    task: Any = None  # on a terminal


class Bars:
    """Bars with short texts beside them: live on a terminal, a table in a notebook; elsewhere only the lines of `say` and `note`."""

    def __init__(self, *, quiet: bool = False, notebook: bool = False) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._cell = NotebookCell() if notebook and not quiet else None
        self._terminal = self._cell is None and self._console.is_terminal and not quiet
        self.moving = self._terminal or self._cell is not None
        """Whether there are bars, rather than lines."""
        self._quiet = quiet
        self._live: Any = None  # rich.progress.Progress, from the first bar on
        self._bars: list[Bar] = []
        self._notes: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._bars:
            self._draw()

    def add(self, name: str, total: float | None = 1.0, **shown: Any) -> Bar:
        """Add a bar at the end; `shown` as for `update`."""
        bar = Bar(name, total, **shown)
        self._bars.append(bar)
        if self._terminal:
            if self._live is None:
                self._live = _on_terminal(self._console)
                self._live.start()
            bar.task = self._live.add_task(
                name, total=total, completed=bar.done, count=bar.count, rate=bar.rate, state=bar.state
            )
        self._draw()
        return bar

    def update(self, bar: Bar, *, soon: bool = False, **shown: Any) -> None:
        """Change what a bar shows.

        Args:
            bar: One of these.
            soon: In a notebook, redraw at most every `REDRAW` seconds instead of at once.
            shown: name, total, done, count, rate or state.
        """
        for field, value in shown.items():
            setattr(bar, field, value)
        if self._live is not None:
            self._live.update(
                bar.task, description=bar.name, total=bar.total, completed=bar.done,
                count=bar.count, rate=bar.rate, state=bar.state,
            )  # fmt: skip
        elif self._cell is not None and not (soon and time.monotonic() - self._cell.shown < REDRAW):
            self._draw()

    def remove(self, bar: Bar) -> None:
        """Remove a finished job's bar."""
        self._bars.remove(bar)
        if self._live is not None:
            self._live.remove_task(bar.task)
        self._draw()

    def note(self, text: str, style: str | None = None) -> None:
        """Print a line wherever progress is shown: above the bars of a terminal, below those of a notebook."""
        if self._cell is not None:
            self._notes.append(text)
            self._draw()
        elif self._live is not None:
            self._live.console.print(text, style=style, markup=False)
        else:
            self.say(text)

    def say(self, text: str) -> None:
        """Print a line where there are no bars."""
        if not self._quiet and not self.moving:
            _print(text)

    def html(self) -> str:
        """The bars as the table of a notebook: plain HTML, which needs no widgets and stays in a saved notebook."""
        rows = "".join(
            f"<tr><td>{escape(bar.name)}</td>"
            f'<td><progress value="{bar.done:g}" max="{bar.total or 1:g}"></progress></td>'
            f"<td>{escape(bar.count)}</td><td>{escape(bar.state)}</td><td>{escape(bar.rate)}</td></tr>"
            for bar in self._bars
        )
        notes = "".join(f"<div>{escape(note)}</div>" for note in self._notes)
        return f"<table><tbody>{rows}</tbody></table>{notes}"

    def _draw(self) -> None:
        if self._cell is not None:
            self._cell.show(self.html())


class NotebookCell:
    """A piece of HTML in a notebook that is updated in place."""

    def __init__(self) -> None:
        self.shown = 0.0  # when, on the clock of time.monotonic
        self._handle: Any = None

    def show(self, html: str) -> None:
        """Display the HTML, or replace what this object displayed before."""
        ipython: Any = importlib.import_module("IPython.display")
        page = ipython.HTML(html)
        self.shown = time.monotonic()
        if self._handle is None:
            self._handle = ipython.display(page, display_id=True)
        else:
            self._handle.update(page)


def in_notebook() -> bool:
    """Whether this code runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def _on_terminal(console: Any) -> Any:
    """Bars that rich draws, with the texts of `Bar`."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False), BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}", style="progress.download", markup=False),
        TextColumn("{task.fields[rate]}", markup=False), TimeRemainingColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        console=console, transient=False,
    )  # fmt: skip


def _print(text: str) -> None:
    print(text.rstrip(), file=sys.stderr, flush=True)
