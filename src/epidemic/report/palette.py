"""How each run is drawn, everywhere alike: by what tells it from the others.

Methods of the paper have colours of their own. Runs of a sweep are coloured by a setting: from violet to yellow where its values
are numbers, in separate hues where they are words; a second setting is told by dashes.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

Dashes = str | tuple[int, tuple[float, ...]]
"""A line style of Matplotlib."""

DASHES = ("", "7 4", "2 3", "9 3 2 3", "5 2 1 2 1 2")
SHADES = (100, 65, 40)
STEPS = 5
"""Number of colours between which those of ordered values are interpolated: --q0 to --q4 in page.css, ORDERED in style.py."""
WORDS = 8
"""Colours for words: --w0 to --w7 in page.css, WORDS in style.py."""

LOOKS: dict[
    str, tuple[int, Dashes, float]
] = {  # kind: which of the colours for words it has or is close to, dashes, line width
    "el-oracle": (0, "-", 2.4),
    "el-local": (1, "-", 2.4),
    "complete": (6, "-", 1.6),
    "regular": (2, "-", 1.6),
    "unlucky": (3, "-", 1.6),
    "u-equistatic": (4, "-", 1.6),
    "d-equistatic": (4, (0, (4, 2)), 1.4),
    "od-equidyn": (5, "-", 1.4),
    "ou-equidyn": (5, (0, (4, 2)), 1.4),
    "exponential": (2, (0, (4, 2)), 1.4),
    "one-peer-exponential": (3, (0, (4, 2)), 1.4),
    "erdos-renyi": (6, (0, (4, 2)), 1.4),
    "ring": (7, "-", 1.4),
    "torus": (7, (0, (4, 2)), 1.4),
    "none": (7, (0, (1, 2)), 1.4),
    "hypercube": (3, (0, (1, 1.4)), 1.4),
    "base": (3, (0, (6, 2, 1, 2)), 1.6),
    "matcha": (4, (0, (1, 1.4)), 1.4),
    "geometric": (6, (0, (1, 1.4)), 1.4),
    "peer-swap": (0, (0, (4, 2)), 1.4),
    "pull": (1, (0, (4, 2)), 1.4),
    "periodic": (2, (0, (6, 2, 1, 2)), 1.4),
}
"""The looks of the paper's methods and of those it is compared with, and their colours on the page: --m-KIND in page.css. A kind that is not here has a look that follows
from its name, so adding one needs nothing here."""


def look_of(kind: str) -> tuple[int, Dashes, float]:
    """Colour, dashes and width of a method's line, the same wherever it is drawn; "complete (all-reduce)" is a variant of "complete"."""
    if kind in LOOKS:
        return LOOKS[kind]
    if kind == "other":
        return 7, (0, (3, 1, 1, 1)), 1.4
    method, _, variant = kind.partition(" (")
    if variant and method in LOOKS:
        return LOOKS[method][0], (0, (6, 2, 1, 2)), 1.4
    return zlib.crc32(kind.encode()) % WORDS, (0, (3, 1, 1, 1)), 1.4


def colour_name(kind: str) -> str:
    """The CSS variable of a method's colour."""
    return f"m-{kind}" if kind in LOOKS or kind == "other" else f"w{look_of(kind)[0]}"


def looks_of_methods(kinds: Sequence[str]) -> list[LineStyle]:
    """The styles of methods side by side: fixed colours for those of the paper, different other ones for the rest.

    Methods that share a colour differ in dashes.
    """
    free = [word for word in range(WORDS) if word not in {LOOKS[kind][0] for kind in kinds if kind in LOOKS}]
    found: list[LineStyle] = []
    others = 0
    for kind in kinds:
        if kind in LOOKS:
            found.append(LineStyle(kind, sum(one.kind == kind for one in found)))
        else:  # where no colour is left, dashes begin with those of a second line
            turn, word = divmod(others, len(free) or WORDS)
            found.append(LineStyle(kind, turn if free else turn + 1, word=free[word] if free else word))
            others += 1
    return found


def between(place: float) -> tuple[int, float]:
    """Two neighbouring colours of the ordered ones: the number of the first, and how much of the second is mixed in."""
    step = min(int(place * (STEPS - 1)), STEPS - 2)
    return step, place * (STEPS - 1) - step


class LineStyle(msgspec.Struct, frozen=True):
    """The colour and the dashes of a run. The colour is that of an ordered value, of a word, or else of the method."""

    kind: str = "other"  # of the method
    variant: int = 0  # dashes; beyond those there are, paler ones
    place: float | None = None  # from 0 to 1, among ordered values
    word: int | None = None  # which of several words

    @property
    def style(self) -> str:
        """As CSS: sets the variable --c that marks of this run use."""
        if self.place is not None:
            step, share = between(self.place)
            first, second = f"var(--q{step})", f"var(--q{step + 1})"
            if share in (0, 1):
                return f"--c:{second if share else first}"
            return f"--c:color-mix(in srgb, {second} {100 * share:.1f}%, {first})"
        if self.word is not None:
            return f"--c:var(--w{self.word % WORDS})"
        shade = SHADES[self.variant // len(DASHES) % len(SHADES)]
        base = f"var(--{colour_name(self.kind)})"
        return f"--c:{base if shade == 100 else f'color-mix(in srgb, {base} {shade}%, var(--page))'}"

    @property
    def dash(self) -> str:
        """As an attribute of an SVG element."""
        dash = DASHES[self.variant % len(DASHES)]
        return f' stroke-dasharray="{dash}"' if dash else ""
