"""The progress of a run in a notebook: a small table with a row per seed, updated in place.

It is plain HTML, because progress bars of other libraries need widgets that not every notebook has; and it stays in the saved notebook.
"""

from __future__ import annotations

import importlib
import sys
import time
from html import escape
from typing import Any

from epidemic.callbacks.base import Callback
from epidemic.callbacks.remarks import remarks
from epidemic.core.formatting import duration, score, simulated, size
from epidemic.learner import Learner
from epidemic.record import Record, Summary
from epidemic.runtime.setup import Setup

PAUSE = 0.2
"""Seconds between two pictures of a bar; what matters more is shown at once."""


def in_notebook() -> bool:
    """Whether this code runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class InPlace:
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


class NotebookDisplay(Callback):
    """Shows the progress of each seed in a notebook."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._said: set[str] = set()
        self._place = InPlace()
        self._began = 0.0

    def __enter__(self) -> NotebookDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rows:
            self._show()

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """Add a row for the seed that begins or resumes."""
        name = f"{setup.experiment.name}, seed {setup.seed}"
        self._rows.append(
            {"name": name, "done": rounds_done, "rounds": setup.experiment.rounds, "found": "", "time": ""}
        )
        self._began = time.monotonic()
        self._notes += [f"{kind}: {line}" for kind, line in remarks(setup, self._said)]
        self._show()

    def advanced(self, rounds_done: int, x: Any) -> None:
        """Move the seed's bar to the rounds that are done."""
        self._rows[-1]["done"] = rounds_done
        if time.monotonic() - self._place.shown >= PAUSE:
            self._show()

    def recorded(self, record: Record) -> None:
        """Show the accuracy or loss of the last evaluation."""
        found = score(record.accuracy, record.loss)
        clock = "" if record.time is None else f"{simulated(record.time.seconds)}, "
        self._rows[-1]["found"] = f"{clock}{found}, sent {size(record.bytes.total.mean)}"
        if time.monotonic() - self._place.shown >= PAUSE:
            self._show()

    def finished(self, summary: Summary) -> None:
        """Show the duration, and why a seed ended early."""
        row = self._rows[-1]
        row["time"] = duration(time.monotonic() - self._began)
        if summary.ended_early:
            self._notes.append(f"{row['name']}: ended early after round {summary.rounds}: {summary.ended_early}")
        self._show()

    def _show(self) -> None:
        self._place.show(self.html())

    def html(self) -> str:
        """The current table as HTML."""
        rows = "".join(
            f"<tr><td>{escape(row['name'])}</td>"
            f'<td><progress value="{row["done"]}" max="{max(row["rounds"], 1)}"></progress></td>'
            f"<td>{row['done']}/{row['rounds']}</td><td>{escape(row['found'])}</td><td>{row['time']}</td></tr>"
            for row in self._rows
        )
        notes = "".join(f"<div>{escape(note)}</div>" for note in self._notes)
        return f"<table><tbody>{rows}</tbody></table>{notes}"
