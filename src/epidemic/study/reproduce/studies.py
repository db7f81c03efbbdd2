"""The paper's learning experiments, at every scale: which methods, on which data, with which settings (its section 5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from epidemic.core.errors import BadInput, require_int
from epidemic.core.files import directory_name
from epidemic.data import CIFAR10, FEMNIST
from epidemic.experiment import Experiment, experiment_from
from epidemic.study.batch import Job
from epidemic.study.reproduce.base import SCALE, Request

NODES, S = 96, 7
LEARNING_RATES = (0.01, 0.05, 0.1, 0.5)


class Method(msgspec.Struct, frozen=True):
    """A topology and the learning rate that the paper uses for it on CIFAR-10."""

    name: str
    topology: dict[str, Any]
    lr: float = 0.05


COMPLETE = Method("complete", {"kind": "complete"}, 0.1)
STATIC = Method("7-regular static", {"kind": "regular", "s": S})
EQUISTATIC = Method("8-U-EquiStatic", {"kind": "u-equistatic", "m": 4}, 0.1)
ORACLE = Method("EL-Oracle", {"kind": "el-oracle", "s": S})
LOCAL = Method("EL-Local", {"kind": "el-local", "s": S})
UNLUCKY = Method("unlucky 7-regular", {"kind": "unlucky", "s": S})
FIVE = (COMPLETE, STATIC, EQUISTATIC, ORACLE, LOCAL)


def with_s(method: Method, s: int) -> Method:
    """The same method with another number of models sent."""
    return method if s == S else Method(f"{method.name}, s = {s}", {**method.topology, "s": s}, method.lr)


def with_lr(method: Method, lr: float) -> Method:
    """The same method with another learning rate."""
    return method if lr == method.lr else Method(f"{method.name}, lr {lr:g}", method.topology, lr)


class Setting(msgspec.Struct, frozen=True):
    """One learning problem at one scale, as tables of an experiment file."""

    directory: str
    common: dict[str, Any]
    seeds: int
    paper_rounds: int
    same_lr: float | None = None  # one learning rate for all methods

    def experiment(self, method: Method, seeds: int | None) -> Experiment:
        """Return the experiment of a method in this setting, with as many seeds as asked for."""
        algorithm = {**self.common["algorithm"], "lr": method.lr if self.same_lr is None else self.same_lr}
        count = self.seeds if seeds is None else seeds
        require_int("--seeds", count, 1, 1000)
        table = {**self.common, "name": method.name, "nodes": NODES, "seeds": list(range(1, count + 1))}
        return experiment_from({**table, "topology": method.topology, "algorithm": algorithm})

    def job(self, method: Method, request: Request) -> Job:
        """The run of a method. Items that need the same one share it."""
        where = request.out / "runs" / self.directory / directory_name(method.name)
        return Job(where, self.experiment(method, request.seeds), f"{self.directory}: {method.name}")


_EVERY: dict[SCALE, dict[str, Any]] = {
    "smoke": {"every": 5, "samples": 300},
    "laptop": {"every": 50, "samples": 500},
    "paper": {"every": 20, "samples": "all"},
}
_SEEDS: dict[SCALE, int] = {"smoke": 2, "laptop": 1, "paper": 5}


def _cifar(scale: SCALE, directory: str, alpha: float, rounds: dict[SCALE, int]) -> Setting:
    smoke = scale == "smoke"
    common = {
        "rounds": rounds[scale],
        "data": {"kind": "fashion" if smoke else "cifar10"},
        "partition": {"kind": "dirichlet", "alpha": alpha, "min_samples": 1 if smoke else 10},
        "model": {"kind": "mlp", "hidden": [32]} if smoke else {"kind": "gn-lenet"},
        "algorithm": {"local_steps": 3, "batch_size": 8},
        "eval": _EVERY[scale],
    }
    return Setting(directory, common, _SEEDS[scale], rounds["paper"])


def cifar(scale: SCALE) -> Setting:
    """CIFAR-10 split by Dirichlet(0.1): figures 1, 4, 5 and 6, table 2. Smoke: Fashion-MNIST, reduced."""
    return _cifar(scale, "cifar10", 0.1, {"smoke": 30, "laptop": 1000, "paper": 3000})


def homogeneous(scale: SCALE) -> Setting:
    """CIFAR-10 split by Dirichlet(1.0), which the paper calls homogeneous: figure 7."""
    return _cifar(scale, "cifar10-homogeneous", 1.0, {"smoke": 30, "laptop": 500, "paper": 1000})


def femnist(scale: SCALE) -> Setting:
    """FEMNIST, each node some writers: figure 8. Smoke: the digits, split at random, because no writers are embedded."""
    smoke = scale == "smoke"
    rounds: dict[SCALE, int] = {"smoke": 15, "laptop": 200, "paper": 1440}
    common = {
        "rounds": rounds[scale],
        "data": {"kind": "digits" if smoke else "femnist"},
        "partition": {"kind": "iid" if smoke else "natural"},
        "model": {"kind": "mlp", "hidden": [32]} if smoke else {"kind": "femnist-cnn"},
        "algorithm": {"local_steps": 7, "batch_size": 16},
        "eval": {**_EVERY[scale], **({"every": 20} if scale == "laptop" else {})},
    }
    return Setting("femnist", common, _SEEDS[scale], rounds["paper"], same_lr=0.1)


REAL_DATA: dict[str, Callable[[str | None], CIFAR10 | FEMNIST]] = {
    "cifar10": lambda path: CIFAR10(path=path),
    "femnist": lambda path: FEMNIST(path=path),
}


def real_data(kind: str, place: Path | None) -> CIFAR10 | FEMNIST:
    """The source of a real data set: in a given directory, in that of its name within, or in the usual place.

    The experiment files do not say where it was, so that they are the same everywhere.
    """
    if place is None:
        return REAL_DATA[kind](None)
    inside = place / kind
    if not inside.exists() and any((place / other).exists() for other in REAL_DATA):
        raise BadInput(f"--data {place} has no {kind} in it; put it there or give --data {kind}'s own directory")
    return REAL_DATA[kind](str(inside if inside.exists() else place))


def shortfalls(request: Request, setting: Setting) -> str:
    """In what a scale falls short of the paper's experiment, in words; empty at the paper's own."""
    experiment = setting.experiment(ORACLE, request.seeds)
    if request.scale == "smoke":
        return "other data and another model"
    missing = []
    if experiment.rounds < setting.paper_rounds:
        missing.append(f"{experiment.rounds:,} of {setting.paper_rounds:,} rounds")
    if len(experiment.seeds) < 5:
        missing.append(f"{len(experiment.seeds)} of 5 seeds")
    if experiment.eval.samples != "all":
        missing.append(f"{experiment.eval.samples} test samples while training")
    return ", ".join(missing)
