"""What EL is compared with: the experiments of the item `rivals`, at every scale.

The setting is the paper's: 96 nodes, s = 7, Dirichlet(0.1). Everybody has the same start, data, batches, number of local steps, seeds and test
samples, and a learning rate of its own. Two methods that nobody would deploy bracket the rest: no exchange at all, and exact averaging
in every round.

EL is there with several s, because a method that sends one model a round is not to be compared with s = 7 alone. Each wrapper, codec and
algorithm works on EL with s = 7, EL-Oracle where it needs weights that are doubly stochastic and EL-Local where it
does not. Gossip-PGA is there as published: one-peer exponential, and an all-reduce every sixth round.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from epidemic.study.reproduce.base import SCALE
from epidemic.study.reproduce.contests import Contest

NODES, S = 96, 7
SHARE = 0.25
"""Of the coordinates, in a message of random-k."""
PERIOD = 6
"""Of Gossip-PGA (Chen et al., 2021)."""
BUDGET = 0.25
"""Bytes are compared at what EL-Oracle sends in this part of the rounds."""


class Rival(msgspec.Struct, frozen=True):
    """A method: the tables that are its own, and what it takes for granted that EL-Local does not."""

    topology: dict[str, Any]
    needs: str = ""
    algorithm: dict[str, Any] = {}
    compression: dict[str, Any] | None = None
    plain: bool = True  # averages models and nothing else, so that floors are its own


SEED, PLACES, FIXED, NO_LOSS, EVERYBODY = (
    "a shared seed",
    "everybody's place",
    "fixed links",
    "no loss",
    "everybody at once",
)

_ORACLE, _LOCAL = {"kind": "el-oracle", "s": S}, {"kind": "el-local", "s": S}

ORACLE, LOCAL = "EL-Oracle, s = 7", "EL-Local, s = 7"
ORACLE_1, BASE_2, BASE_8 = "EL-Oracle, s = 1", "Base-2", "Base-8"
ONE_PEER, EXPONENTIAL, EQUISTATIC, MATCHA = "one-peer exponential", "exponential", "8-U-EquiStatic", "MATCHA"
PUSH_SUM, QG, TRACKING, PGA = "push-sum", "QG momentum", "gradient tracking", "Gossip-PGA"
FRAGMENTS_1, FRAGMENTS_4, FRAGMENTS_16 = (f"fragments, K = {k}" for k in (1, 4, 16))
INT8, RANDOM_K = "int8", "random-k, 25 %"
NONE, COMPLETE, ALL_REDUCE = "none", "complete", "complete, all-reduce"

RIVALS: dict[str, Rival] = {
    **{f"EL-Oracle, s = {s}": Rival({"kind": "el-oracle", "s": s}, SEED) for s in (1, 2, 4, 7)},
    **{f"EL-Local, s = {s}": Rival({"kind": "el-local", "s": s}) for s in (1, 2, 4, 7)},
    BASE_2: Rival({"kind": "base", "k": 1}, f"{PLACES}, {SEED}"),
    BASE_8: Rival({"kind": "base", "k": 7}, f"{PLACES}, {SEED}"),
    ONE_PEER: Rival({"kind": "one-peer-exponential"}, PLACES),
    EXPONENTIAL: Rival({"kind": "exponential"}, f"{PLACES}, {FIXED}"),
    EQUISTATIC: Rival({"kind": "u-equistatic", "m": 4}, f"{FIXED}, {SEED}"),
    MATCHA: Rival({"kind": "matcha", "inner": {"kind": "regular", "s": S}}, f"{FIXED}, {SEED}"),
    PUSH_SUM: Rival(_LOCAL, NO_LOSS, {"kind": "push-sum"}, plain=False),
    QG: Rival(_ORACLE, SEED, {"kind": "qg-momentum"}, plain=False),
    TRACKING: Rival(_ORACLE, f"{SEED}, {NO_LOSS}", {"kind": "gradient-tracking"}, plain=False),
    PGA: Rival({"kind": "periodic", "inner": {"kind": "one-peer-exponential"}, "period": PERIOD, "cost": "all-reduce"}, f"{PLACES}, {EVERYBODY}"),
    **{f"fragments, K = {k}": Rival({"kind": "fragments", "inner": _LOCAL, "k": k}) for k in (1, 4, 16)},
    INT8: Rival(_ORACLE, SEED, compression={"kind": "int8"}, plain=False),
    RANDOM_K: Rival(_ORACLE, SEED, compression={"kind": "random-k", "share": SHARE}),
    NONE: Rival({"kind": "none"}),
    COMPLETE: Rival({"kind": "complete"}, EVERYBODY),
    ALL_REDUCE: Rival({"kind": "complete", "cost": "all-reduce"}, f"{EVERYBODY}, {NO_LOSS}"),
}  # fmt: skip
METHODS = tuple(RIVALS)
CONTROLS = (NONE, COMPLETE, ALL_REDUCE)


class Rivalry(Contest, frozen=True, kw_only=True):
    """The comparison of EL with its rivals at one scale: data, model and rounds."""

    item: ClassVar[str] = "rivals"
    over: ClassVar[str] = "the rounds"

    data: str
    model: dict[str, Any]
    rounds: int  # not a multiple of Gossip-PGA's period: it would be looked at just when everybody has the average
    every: int  # rounds, between two evaluations
    samples: int | str  # that are evaluated while training; all of them at the end

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods that are compared."""
        return METHODS

    @property
    def quarter(self) -> int:
        """The rounds of EL-Oracle whose bytes everybody may spend; it is evaluated then."""
        return max(round(BUDGET * self.rounds / self.every), 1) * self.every

    def table(self, method: str, lr: float) -> dict[str, Any]:
        """The experiment of a method, without its seeds."""
        rival = RIVALS[method]
        return {
            "name": method,
            "nodes": NODES,
            "rounds": self.rounds,
            "data": {"kind": self.data},
            "partition": {"kind": "dirichlet", "alpha": 0.1, "min_samples": 1 if self.data == "digits" else 10},
            "model": self.model,
            "topology": rival.topology,
            "algorithm": {"lr": lr, "local_steps": 3, "batch_size": 8, **rival.algorithm},
            "eval": {"every": self.every, "samples": self.samples},
            **({} if rival.compression is None else {"compression": rival.compression}),
        }


_CIFAR: dict[str, Any] = {"data": "cifar10", "model": {"kind": "gn-lenet"}, "rates": (0.0125, 0.025, 0.05, 0.1, 0.2)}

RIVALRIES: dict[SCALE, Rivalry] = {
    "smoke": Rivalry(
        data="digits", model={"kind": "mlp", "hidden": [32]}, rounds=50, every=2, samples=200, seeds=2,
        rates=(0.1, 0.2, 0.4, 0.8, 1.6), known={**dict.fromkeys(METHODS, 0.4), TRACKING: 0.2},
    ),
    "laptop": Rivalry(**_CIFAR, rounds=200, every=10, samples=300, seeds=1),
    "paper": Rivalry(**_CIFAR, rounds=2900, every=50, samples="all", seeds=5),
}  # fmt: skip
