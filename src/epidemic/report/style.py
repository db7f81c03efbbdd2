"""The style of figures: the same colour and line for the same method everywhere, distinguishable to colour-blind readers.

Colours are Okabe and Ito's; methods that share one differ in dashes. Those of ordered values grow lighter from violet to orange, as in the report. Importing
this file does not import Matplotlib.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epidemic.core.errors import BadInput
from epidemic.report.palette import LineStyle, between, look_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE, GREY = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F",
)  # fmt: skip

ORDERED = ("#2d1160", "#7b1f82", "#bd3a76", "#dd5a3c", "#de8a1c")
"""Between these the colours of ordered values are mixed; the same are --q0 to --q4 in page.css."""
WORDS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)

FORMATS = (".png", ".pdf", ".svg")


VARIANTS: tuple[Any, ...] = ((0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
"""Dashes of further lines of the same kind."""


def line(kind: str, variant: int = 0) -> dict[str, Any]:
    """Keyword arguments of a Matplotlib line for a method; a further one of the same kind has other dashes."""
    word, dashes, width = look_of(kind)
    return {
        "color": WORDS[word],
        "linestyle": dashes if variant == 0 else VARIANTS[(variant - 1) % len(VARIANTS)],
        "linewidth": width,
    }


def line_of(look: LineStyle) -> dict[str, Any]:
    """The same for a run that looks like this on the page too."""
    if look.place is None and look.word is None:
        return line(look.kind, look.variant)
    if look.place is not None:
        step, share = between(look.place)
        colour = _mixed(ORDERED[step], ORDERED[step + 1], share)
    else:
        colour = WORDS[(look.word or 0) % len(WORDS)]
    dashes: Any = ("-", *VARIANTS)[look.variant % (1 + len(VARIANTS))]
    return {"color": colour, "linestyle": dashes, "linewidth": 1.8}


def _mixed(first: str, second: str, share: float) -> str:
    pairs = [(int(first[i : i + 2], 16), int(second[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in pairs)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches, without a window or any global state; a notebook shows it all the same."""
    return _figure_class()(figsize=(width, height), layout="constrained")


@cache
def _figure_class() -> type[Figure]:
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that notebooks display even if Matplotlib was not configured for them."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png", dpi=80)
            return picture.getvalue()

    return Picture


def polish(axes: Any, title: str, x: str, y: str) -> None:
    """Title, axis labels, a light grid, no box."""
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, which="major", color="0.88", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def check_picture(path: Path) -> None:
    """Refuse a picture file that cannot be written, before any work is done."""
    if path.suffix.lower() not in FORMATS:
        raise BadInput(f"{path} must end in {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{path}: the directory {path.absolute().parent} does not exist; create it first")


def save(figure: Figure, path: Path) -> None:
    """Write a figure, with the same bytes for the same figure; the ending of the path decides the format."""
    import matplotlib

    when = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix.lower())
    try:
        with matplotlib.rc_context({"svg.hashsalt": "epidemic"}):  # the same picture, the same bytes
            figure.savefig(path, dpi=150, metadata={when: None} if when else None)
            figure.set_layout_engine("none")  # where things are is known now, for the next format too
    except OSError as problem:
        raise BadInput(f"{path} cannot be written: {problem.strerror}") from None
