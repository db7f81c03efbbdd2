"""Who learns fastest where some links are slow: the experiments of the item `async`, at every scale.

The setting is DivShare's (Biswas et al., 2024, arXiv 2410.12918): 60 nodes, of which 7 have thin uplinks (the device file stragglers-60),
degree 6, latency 1 ms, five shards of the data for each node, batches of 8.

How long a training takes is not published, and it decides how much slow links matter: where computing is slower still, not at all. Here
a training takes as long as a fast device needs to send ten models, at every scale; a straggler then has time for two.
All other times follow from that, so that a small model on embedded data meets the same network.

Gossip Learning and AD-PSGD send about one model a training, EL and DivShare six; asynchronous EL with one (s = 1) is there to tell
what that makes.
"""

from __future__ import annotations

from typing import Any, ClassVar

from epidemic.record import HEADER_BYTES
from epidemic.study.reproduce.base import SCALE
from epidemic.study.reproduce.contests import Contest

NODES, DEGREE, DEVICES = 60, 6, "stragglers-60"
FAST_MBIT = 60.0
LATENCY = 0.001

TRAINING = 10
"""A training takes as long as a fast device needs for so many messages."""
DEADLINE = 8
"""So long after its training a node waits for messages, where rounds have a deadline: six messages of a fast device, and some more."""
JITTER = 0.1
"""Trainings differ by so much (the sigma of a lognormal law), so that nobody marches in step by accident."""

NEIGHBOURS, QUORUM, DEADLINES, SCHEDULE = "EL neighbours", "EL quorum", "EL deadline", "EL schedule"
ASYNC_EL, ONE_MESSAGE = "async EL", "async EL, s = 1"
GOSSIP, AD_PSGD, DIVSHARE = "Gossip Learning", "AD-PSGD", "DivShare"
IN_ROUNDS = (NEIGHBOURS, QUORUM, DEADLINES, SCHEDULE)
METHODS = (*IN_ROUNDS, ASYNC_EL, ONE_MESSAGE, GOSSIP, AD_PSGD, DIVSHARE)


class Race(Contest, frozen=True, kw_only=True):
    """The comparison of asynchronous and synchronous methods at one scale: data, model and clock."""

    item: ClassVar[str] = "async"
    over: ClassVar[str] = "the time that there is"

    data: str
    model: dict[str, Any]
    parameters: int  # of the model
    local_steps: int
    trainings: int  # for which there is time, where nobody waits
    evaluations: int
    samples: int | str  # that are evaluated
    fragments: int = 10  # of DivShare

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods that are compared."""
        return METHODS

    @property
    def message(self) -> float:
        """Seconds that a fast device needs to send one model."""
        return (4 * self.parameters + HEADER_BYTES) * 8 / (FAST_MBIT * 1e6)

    @property
    def training(self) -> float:
        """Seconds that a training takes, mean."""
        return TRAINING * self.message

    @property
    def stop(self) -> float:
        """The simulated seconds that every method has."""
        return _seconds(self.trainings * self.training)

    @property
    def rounds(self) -> int:
        """A few more than there is time for, so that it is time that ends a run."""
        return self.trainings + self.trainings // 10 + 5

    def table(self, method: str, lr: float) -> dict[str, Any]:
        """The experiment of a method, without its seeds."""
        own = self._own(method)
        return {
            "name": method,
            "nodes": NODES,
            "rounds": self.rounds,
            "data": {"kind": self.data},
            "partition": {"kind": "shards", "shards": 5, "min_samples": 1},
            "model": self.model,
            "topology": own.get("topology", {"kind": "el-local", "s": DEGREE}),
            "algorithm": {"lr": lr, "local_steps": self.local_steps, "batch_size": 8, **own.get("algorithm", {})},
            "eval": {"every": self.rounds, "samples": self.samples},
            "clock": {
                "devices": DEVICES,
                "links": {"latency": LATENCY},
                "compute": {
                    "kind": "per-step",
                    "median": _seconds(self.training / self.local_steps),
                    "sigma": JITTER,
                    "mean_one": True,
                },
                "stop": self.stop,
                "evaluate": _seconds(self.stop / self.evaluations),
                **({"close": own["close"]} if "close" in own else {}),
            },
        }

    def _own(self, method: str) -> dict[str, Any]:
        """What a method has to itself."""
        one = {"kind": "el-local", "s": 1}
        owned: dict[str, dict[str, Any]] = {
            NEIGHBOURS: {"close": {"kind": "barrier"}},
            QUORUM: {"close": {"kind": "quorum", "q": 0.75}},
            DEADLINES: {"close": {"kind": "deadline", "seconds": _seconds(DEADLINE * self.message)}},
            SCHEDULE: {"close": {"kind": "schedule", "seconds": _seconds((TRAINING + DEADLINE) * self.message)}},
            ASYNC_EL: {"algorithm": {"kind": "async-el"}},
            ONE_MESSAGE: {"topology": one, "algorithm": {"kind": "async-el"}},
            GOSSIP: {"topology": one, "algorithm": {"kind": "gossip-learning", "period": _seconds(self.training)}},
            AD_PSGD: {"topology": {"kind": "complete"}, "algorithm": {"kind": "ad-psgd"}},
            DIVSHARE: {"algorithm": {"kind": "divshare", "fragments": self.fragments}},
        }
        return owned[method]


def _seconds(value: float) -> float:
    """Whole microseconds, which is what the clock has."""
    return round(value, 6)


RACES: dict[SCALE, Race] = {
    "smoke": Race(
        data="digits", model={"kind": "mlp", "hidden": [32]}, parameters=2410, local_steps=3, trainings=24, evaluations=24,
        samples=100, fragments=4, seeds=2, rates=(0.05, 0.1, 0.2, 0.4, 0.8),
        known={**dict.fromkeys(METHODS, 0.4), AD_PSGD: 0.2},
    ),
    "laptop": Race(
        data="cifar10", model={"kind": "gn-lenet"}, parameters=89_834, local_steps=16, trainings=80, evaluations=20,
        samples=300, seeds=1, rates=(0.01, 0.025, 0.05, 0.1, 0.25),
    ),
    "paper": Race(
        data="cifar10", model={"kind": "gn-lenet"}, parameters=89_834, local_steps=128, trainings=1600, evaluations=40,
        samples="all", seeds=5, rates=(0.01, 0.025, 0.05, 0.1, 0.25),
    ),
}  # fmt: skip
