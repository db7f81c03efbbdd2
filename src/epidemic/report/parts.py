"""Pieces of HTML that the page is made of. Texts are escaped here, except where a docstring says that they are HTML."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from typing import Any

import msgspec

from epidemic.core.formatting import decimals as shown
from epidemic.core.formatting import half_width, interval
from epidemic.report.palette import LineStyle

# -- Numbers as a page shows them: by the rules of `epidemic.core.formatting`, with room around the ± ----------------


__all__ = ["half_width", "shown", "shown_interval"]

shown_interval = partial(interval, between=" ± ")


LONG = 40
"""A table with more rows than this scrolls upwards too."""


class Cell(msgspec.Struct, frozen=True):
    """One cell of a heat map: its text, further lines on hovering, and the strength of its colour, from 0 to 1."""

    text: str
    below: list[str] = []
    title: str = ""
    depth: float | None = 0.0  # None: there is no result


def section(title: str, content: str) -> str:
    """A heading with HTML below it."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def figure(title: str, chart: str, text: str = "", numbers: str = "") -> str:
    """A chart with its caption and, to be opened, a table of its numbers; chart and table are HTML."""
    more = f"<details><summary>Numbers</summary>{numbers}</details>" if numbers else ""
    return (
        f"<figure>{chart}<figcaption>{escape(title)}{'. ' + escape(text) if text else ''}</figcaption>{more}</figure>"
    )


def swatch(look: LineStyle) -> str:
    """A short piece of a run's line."""
    return f'<svg class=swatch viewBox="0 0 28 10" aria-hidden="true"><line class="line" style="{look.style}"{look.dash} x1="1" x2="27" y1="5" y2="5"/></svg>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML; the heads are text."""
    top = "".join(f"<th scope=col>{escape(head)}</th>" for head in heads)
    body = "".join(
        f"<tr><th scope=row>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}</tr>" for row in rows
    )
    kind = '"scroll long"' if len(rows) > LONG else "scroll"
    return f"<div class={kind} tabindex=0><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def heat_table(
    caption: str, down: str, across: str, rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[Cell]]
) -> str:
    """A grid of results as a table with coloured cells; a table can be read on any screen.

    `rows` are values of the setting `down`, `columns` those of `across`; `cells` has a list for each row. `caption` describes them.
    """
    top = "".join(f"<th scope=col>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr><th scope=row>{escape(name)}</th>{''.join(map(_heat_cell, row))}</tr>"
        for name, row in zip(rows, cells, strict=True)
    )
    return (
        f"<figure><div class=scroll tabindex=0><table class=heatmap><thead>"
        f"<tr><td></td><th scope=colgroup colspan={len(columns)}>{escape(across)}</th></tr>"
        f"<tr><th scope=col>{escape(down)}</th>{top}</tr></thead><tbody>{body}</tbody></table></div>"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _heat_cell(cell: Cell) -> str:
    below = "".join(f"<small>{escape(line)}</small>" for line in cell.below)
    title = f' title="{escape(cell.title)}"' if cell.title else ""
    depth = "" if cell.depth is None else f' style="--d:{100 * cell.depth:.0f}%"'
    return f"<td{depth}{title}>{escape(cell.text)}{below}</td>"


def value_text(value: Any) -> str:
    """A setting's value as the experiment's file has it; a dash where there is none. Not escaped."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def legend(groups: Sequence[tuple[str, Sequence[tuple[LineStyle, str]]]]) -> str:
    """Lines and what they mean, in groups with an optional heading."""
    found = []
    for heading, entries in groups:
        first = f"<li class=head>{escape(heading)}</li>" if heading else ""
        found.append(
            f"<ul class=legend>{first}{''.join(f'<li>{swatch(look)}{escape(text)}</li>' for look, text in entries)}</ul>"
        )
    return "".join(found)
