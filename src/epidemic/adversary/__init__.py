"""What malicious nodes do in a simulation: every adversary, by kind.

One file each, listed here; `base.py` says what an adversary is. The room may import `core/`, `data/` and what lies between them: it knows no host
and no aggregation rule, but is given what it needs of both. May be imported by `experiment/`, `runtime/` and everything below them in the list of
ARCHITECTURE.md. To add an attack: a frozen Struct in a file of its own, derived from `Adversary` or `Informed` (with `message`), and its row in
`ADVERSARIES`. Records, refusals and the tables of the documentation follow from what it declares.
"""

from __future__ import annotations

from epidemic.adversary.alie import Alie, alie_factor
from epidemic.adversary.backdoor import Backdoor
from epidemic.adversary.base import KNOWS, Adversary, Informed, Scene, Sight
from epidemic.adversary.dissensus import Dissensus
from epidemic.adversary.flip_own import FlipOwn
from epidemic.adversary.foe import Foe
from epidemic.adversary.gaussian import Gaussian
from epidemic.adversary.huge import Huge
from epidemic.adversary.label_flip import LabelFlip
from epidemic.adversary.line_search import worst_factor
from epidemic.adversary.mimic import Mimic
from epidemic.adversary.min_max import MinMax
from epidemic.adversary.nan import NotANumber
from epidemic.adversary.own import PythonAdversary
from epidemic.adversary.reflect import Reflect
from epidemic.adversary.scaled_flip import ScaledFlip
from epidemic.adversary.sign_flip import SignFlip
from epidemic.adversary.silent import Silent
from epidemic.adversary.spectral import Spectral, fiedler_vector
from epidemic.core.config import build_kind

ADVERSARIES: dict[str, type[Adversary]] = {
    "sign-flip": SignFlip,
    "flip-own": FlipOwn,
    "scaled-flip": ScaledFlip,
    "foe": Foe,
    "alie": Alie,
    "reflect": Reflect,
    "mimic": Mimic,
    "dissensus": Dissensus,
    "spectral": Spectral,
    "min-max": MinMax,
    "gaussian": Gaussian,
    "label-flip": LabelFlip,
    "backdoor": Backdoor,
    "silent": Silent,
    "nan": NotANumber,
    "huge": Huge,
    "python": PythonAdversary,
}


def adversary_from(table: object, where: str = "adversary") -> Adversary:
    """The adversary that a TOML table describes, for example {kind = "sign-flip", nodes = 5}."""
    return build_kind(table, ADVERSARIES, where)


__all__ = [
    "ADVERSARIES",
    "KNOWS",
    "Adversary",
    "Alie",
    "Backdoor",
    "Dissensus",
    "FlipOwn",
    "Foe",
    "Gaussian",
    "Huge",
    "Informed",
    "LabelFlip",
    "Mimic",
    "MinMax",
    "NotANumber",
    "PythonAdversary",
    "Reflect",
    "ScaledFlip",
    "Scene",
    "Sight",
    "SignFlip",
    "Silent",
    "Spectral",
    "adversary_from",
    "alie_factor",
    "fiedler_vector",
    "worst_factor",
]
