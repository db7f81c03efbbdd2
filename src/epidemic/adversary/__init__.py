"""What malicious nodes do in a simulation: every adversary, by kind.

One file each, listed here; `base.py` says what an adversary is. The room may import `core/`, `data/` and what lies between them: it knows no host
and no aggregation rule, but is given what it needs of both. May be imported by `experiment/`, `runtime/` and everything below them in the list of
ARCHITECTURE.md. To add an attack: a frozen Struct in a file of its own, derived from `Adversary` or `Informed` (with `message`), and its row in
`ADVERSARIES`. Records, refusals and the tables of the documentation follow from what it declares.
"""

from __future__ import annotations

from epidemic.adversary.base import Adversary, Informed, Scene, Sight
from epidemic.adversary.flip_own import FlipOwn
from epidemic.adversary.own import PythonAdversary
from epidemic.adversary.scaled_flip import ScaledFlip
from epidemic.adversary.sign_flip import SignFlip
from epidemic.core.config import build_kind

ADVERSARIES: dict[str, type[Adversary]] = {
    "sign-flip": SignFlip,
    "flip-own": FlipOwn,
    "scaled-flip": ScaledFlip,
    "python": PythonAdversary,
}


def adversary_from(table: object, where: str = "adversary") -> Adversary:
    """The adversary that a TOML table describes, for example {kind = "sign-flip", nodes = 5}."""
    return build_kind(table, ADVERSARIES, where)


__all__ = [
    "ADVERSARIES",
    "Adversary",
    "FlipOwn",
    "Informed",
    "PythonAdversary",
    "ScaledFlip",
    "Scene",
    "Sight",
    "SignFlip",
    "adversary_from",
]
