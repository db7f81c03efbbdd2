"""What commands print: tables, JSON, and numbers for people."""

from __future__ import annotations

from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from epidemic.shown import duration, interval, number, percent, size

__all__ = ["duration", "interval", "number", "percent", "plain_table", "print_json", "show", "size"]


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
    """Print to standard output."""
    console = Console()
    for part in parts:
        console.print(part)


def print_json(value: Any) -> None:
    """One JSON object and nothing else; infinities become null."""
    typer.echo(msgspec.json.encode(value).decode())
