"""What commands print: tables, JSON, and numbers for people."""

from __future__ import annotations

from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from epidemic.core.formatting import decimals, duration, interval, number, percent, simulated, size

__all__ = [
    "decimals",
    "duration",
    "interval",
    "number",
    "percent",
    "plain_table",
    "print_json",
    "show",
    "simulated",
    "size",
]

NAMES = 12
"""Columns of words are at least so wide, if they have so long words."""


def plain_table(title: str, *columns: str | Text) -> Table:
    """A table without a frame: the first column to the left, and numbers to the right that are never broken."""
    table = Table(
        title=Text(title),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 1),
    )
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", overflow="fold", no_wrap=i > 0)
    return table


def show(*parts: Any) -> None:
    """Print to standard output. A table that needs more room than there is becomes wider: no number is ever cut."""
    console = Console()
    for part in parts:
        needed = needed_width(part, console) if isinstance(part, Table) else 0
        (console if needed <= console.width else Console(width=needed)).print(part)


def needed_width(table: Table, console: Console) -> int:
    """Set every column of a table to its minimum width, and return the width of the table."""
    needed = 0
    endless = console.options.update(width=100_000)
    for column in table.columns:
        widths = [Measurement.get(console, endless, cell).maximum for cell in (column.header, *column.cells)]
        column.min_width = max(widths) if column.no_wrap else min(max(widths), NAMES)
        needed += column.min_width + table.padding[1] + table.padding[3]
    return needed


def print_json(value: Any) -> None:
    """One JSON object and nothing else; infinities become null."""
    typer.echo(msgspec.json.encode(value).decode())
