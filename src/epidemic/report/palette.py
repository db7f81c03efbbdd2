"""How each run is drawn, everywhere alike: by what tells it from the others.

Methods of the paper have colours of their own. Runs of a sweep are coloured by a setting: from violet to yellow where its values
are numbers, in separate hues where they are words; a second setting is told by dashes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

DASHES = ("", "7 4", "2 3", "9 3 2 3", "5 2 1 2 1 2")
SHADES = (100, 65, 40)
STEPS = 5
"""Colours between which those of ordered values are mixed: --q0 to --q4 in page.css, ORDERED in style.py."""
WORDS = 8
"""Colours for words: --w0 to --w7 in page.css, WORDS in style.py."""

KINDS = (
    "el-oracle", "el-local", "complete", "regular", "unlucky", "u-equistatic", "d-equistatic", "od-equidyn", "ou-equidyn",
    "exponential", "one-peer-exponential", "erdos-renyi", "ring", "torus", "none",
    "hypercube", "base", "matcha", "geometric", "peer-swap", "pull", "periodic",
)  # fmt: skip

USED = {
    **dict.fromkeys(("el-oracle", "peer-swap"), 0),
    **dict.fromkeys(("el-local", "pull"), 1),
    **dict.fromkeys(("regular", "exponential", "periodic"), 2),
    **dict.fromkeys(("unlucky", "one-peer-exponential", "hypercube", "base"), 3),
    **dict.fromkeys(("u-equistatic", "d-equistatic", "matcha"), 4),
    **dict.fromkeys(("od-equidyn", "ou-equidyn"), 5),
    **dict.fromkeys(("complete", "erdos-renyi", "geometric"), 6),
    **dict.fromkeys(("ring", "torus", "none"), 7),
}
"""Which of the colours for words a method's own colour is, or is close to."""


def colour_name(kind: str) -> str:
    """The CSS variable of a method's colour."""
    return f"m-{kind}" if kind in KINDS else "m-other"


def looks_of_methods(kinds: Sequence[str]) -> list[LineStyle]:
    """How methods look side by side: those of the paper have their colours, all others those that are left, each another one.

    Further ones of the same colour differ in dashes.
    """
    free = [word for word in range(WORDS) if word not in {USED.get(kind) for kind in kinds}]
    found: list[LineStyle] = []
    others = 0
    for kind in kinds:
        if kind in KINDS:
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
