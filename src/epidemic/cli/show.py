"""What commands print: tables, JSON, and numbers for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from epidemic.report.statistics import Interval


def size(value: float) -> str:
    """Bytes for people, in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError


def duration(seconds: float) -> str:
    """Time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def number(value: float | None) -> str:
    """A number for people."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def percent(value: float | None) -> str:
    """A share for people."""
    return "-" if value is None else f"{100 * value:.2f}%"


def interval(value: Interval, factor: float = 1.0, digits: int = 2, *, signed: bool = False) -> str:
    """Mean and half-width for people."""
    mean = f"{factor * value.mean:{'+' if signed else ''}.{digits}f}"
    return mean if value.half_width is None else f"{mean}±{factor * value.half_width:.{digits}f}"


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
