"""A page as a value: pieces of HTML, some with a name, so that only what has changed is sent to whoever has the page open."""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b
from html import escape

from epidemic import __version__


class LivePage:
    """A page: its title and its pieces. A piece with a name is one element with that id, and can be exchanged alone."""

    def __init__(self, title: str, pieces: list[tuple[str | None, str]]) -> None:
        self.title, self.pieces = title, pieces

    @cached_property
    def main(self) -> str:
        """All pieces, in the element that holds them."""
        return f'<main id="main">{"".join(html for _, html in self.pieces)}</main>'

    @cached_property
    def digest(self) -> str:
        """A digest by which a browser's version of the page is recognised."""
        return blake2b(f"{self.title}\0{self.main}".encode(), digest_size=8).hexdigest()

    def since(self, before: LivePage | None) -> list[tuple[str, str]]:
        """What to exchange in the page `before` to get this one, by name; everything, if its frame is another."""
        if before is None or _frame(before) != _frame(self):
            return [("main", self.main)]
        pairs = zip(before.pieces, self.pieces, strict=True)
        return [(name, new) for (_, old), (name, new) in pairs if name is not None and old != new]

    def document(self, address: str) -> str:
        """The complete page, as it is sent first; updates come as events from `address`."""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
            f'<title>{escape(self.title)}</title><link rel="stylesheet" href="/live.css">'
            f'<script src="/live.js" defer></script></head><body data-events="{escape(address)}" data-digest="{self.digest}">'
            '<div class="bar"><a class="brand" href="/">epidemic</a><span id="link" class="link" role="status">connecting</span></div>'
            f"{self.main}<footer>epidemic {__version__}. This page only shows; it changes nothing.</footer></body></html>\n"
        )


def _frame(view: LivePage) -> list[str]:
    return [html if name is None else f"#{name}" for name, html in view.pieces]


def block(name: str, html: str, tag: str = "div", classes: str = "") -> tuple[str, str]:
    """A named piece of a page: one element with that id, so that it can be replaced alone."""
    kind = f' class="{classes}"' if classes else ""
    return name, f'<{tag} id="{name}"{kind}>{html}</{tag}>'


def badge(state: str, why: str = "") -> str:
    """A state as a coloured dot and a word."""
    said = f' title="{escape(why)}"' if why else ""
    return f'<span class="badge s-{escape(state)}"{said}><i aria-hidden="true"></i>{escape(state)}</span>'


def table(heads: list[str], rows: str, classes: str = "") -> tuple[str, str]:
    """The beginning and the end around rows."""
    top = "".join(f"<th scope=col>{escape(head)}</th>" for head in heads)
    return f'<div class="scroll" tabindex="0"><table class="{classes}"><thead><tr>{top}</tr></thead><tbody>{rows}', (
        "</tbody></table></div>"
    )


def row(cells: list[str]) -> str:
    """The cells of a row, which are HTML; the first names it."""
    return f"<th scope=row>{cells[0]}</th>" + "".join(f"<td>{cell}</td>" for cell in cells[1:])


def tiles(entries: list[tuple[str, str, str]]) -> str:
    """Numbers to be seen at a glance: what, value, and a word more."""
    parts = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(value)}{f'<small>{escape(more)}</small>' if more else ''}</dd></div>"
        for what, value, more in entries
    )
    return f'<dl class="tiles">{parts}</dl>'


def spark(values: list[float], label: str) -> str:
    """Return the SVG of a small curve without axes, of at most about 60 points."""
    step = max(1, -(-len(values) // 60))
    shown = values[::step] + ([values[-1]] if values and (len(values) - 1) % step else [])
    if len(shown) < 2:
        return '<svg class="spark" viewBox="0 0 120 26" aria-hidden="true"></svg>'
    low, high = min(shown), max(shown)
    points = " ".join(
        f"{2 + 116 * i / (len(shown) - 1):.1f},{23 - 20 * ((v - low) / (high - low) if high > low else 0.5):.1f}"
        for i, v in enumerate(shown)
    )
    return f'<svg class="spark" viewBox="0 0 120 26" role="img" aria-label="{escape(label)}"><polyline points="{points}"/></svg>'
