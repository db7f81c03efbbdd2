"""What nodes do with models: every algorithm, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epidemic.aggregation import Heard
from epidemic.algorithms.ad_psgd import ADPSGD
from epidemic.algorithms.async_el import AsyncEL
from epidemic.algorithms.asynchronous import AsynchronousMethod
from epidemic.algorithms.base import (
    SAMPLINGS,
    WIDTH,
    Algorithm,
    Column,
    Defaults,
    Inbox,
    LocalTraining,
    RoundContext,
    Rows,
    cautions,
    check_algorithm,
)
from epidemic.algorithms.choco import Choco
from epidemic.algorithms.divshare import DivShare
from epidemic.algorithms.exact_diffusion import ExactDiffusion
from epidemic.algorithms.gossip_learning import GossipLearning, Tokens
from epidemic.algorithms.gradient_tracking import GradientTracking
from epidemic.algorithms.local_sgd import LocalSGD
from epidemic.algorithms.optimisers import Adam, AdamW
from epidemic.algorithms.own import MISSING, PythonAlgorithm, asked_for, asynchronous_method
from epidemic.algorithms.own_loop import OwnLoop
from epidemic.algorithms.push_pull import PushPull
from epidemic.algorithms.push_sum import PushSum
from epidemic.algorithms.qg_momentum import QGMomentum
from epidemic.algorithms.schedules import ConstantRate, CosineDecay, StepDecay
from epidemic.core.config import build_kind

ALGORITHMS: dict[str, type[Any]] = {
    "local-sgd": LocalSGD,
    "push-sum": PushSum,
    "qg-momentum": QGMomentum,
    "exact-diffusion": ExactDiffusion,
    "gradient-tracking": GradientTracking,
    "push-pull": PushPull,
    "choco": Choco,
    "async-el": AsyncEL,
    "gossip-learning": GossipLearning,
    "ad-psgd": ADPSGD,
    "divshare": DivShare,
    "own-loop": OwnLoop,
    "python": PythonAlgorithm,
}

UNSAID_KIND = "local-sgd"
"""What a table without a kind means; files written before there were several have none."""


def algorithm_from(table: object, where: str = "algorithm") -> Any:
    """The algorithm that a TOML table describes; without a kind it is local SGD."""
    if isinstance(table, Mapping) and "kind" not in table:
        table = {"kind": UNSAID_KIND, **table}
    return build_kind(table, ALGORITHMS, where)


__all__ = [
    "ADPSGD",
    "ALGORITHMS",
    "MISSING",
    "SAMPLINGS",
    "UNSAID_KIND",
    "WIDTH",
    "Adam",
    "AdamW",
    "Algorithm",
    "AsyncEL",
    "AsynchronousMethod",
    "Choco",
    "Column",
    "ConstantRate",
    "CosineDecay",
    "Defaults",
    "DivShare",
    "ExactDiffusion",
    "GossipLearning",
    "GradientTracking",
    "Heard",
    "Inbox",
    "LocalSGD",
    "LocalTraining",
    "OwnLoop",
    "PushPull",
    "PushSum",
    "PythonAlgorithm",
    "QGMomentum",
    "RoundContext",
    "Rows",
    "StepDecay",
    "Tokens",
    "algorithm_from",
    "asked_for",
    "asynchronous_method",
    "cautions",
    "check_algorithm",
]
