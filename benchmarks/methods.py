"""Every method that only mixes: what a round takes besides training.

GN-LeNet, 96 nodes: mixing, which is drawing the graphs, reading messages, averaging and counting them; and making messages smaller, where they are
compressed; both relative to training.
10,000 logistic regressions: whole rounds, relative to those of plain EL-Local.

Ratios are those of seconds or those of processor seconds, whichever are larger: on a busy machine what is short is disturbed less than what is long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import epidemic as ep
from benchmarks.sizes import sized
from benchmarks.timing import verdict
from benchmarks.training import BATCH, NODES, STEPS, pictures
from epidemic.callbacks import Callback
from epidemic.compression import BFloat16, Float16, Int8, RandomK, TopK
from epidemic.core.workers import Workers
from epidemic.runtime.interrupt import gentle_stop
from epidemic.runtime.plan import plan_round
from epidemic.runtime.population import Population
from epidemic.runtime.recorder import Host
from epidemic.runtime.setup import make_learner, prepare
from epidemic.simulator.rounds import RoundLoop

MANY = sized(10_000, 256)
FEW, MORE = sized((7, 14), (4, 7))
"""Neighbours, of large models and of many small ones."""

Times = NDArray[np.float64]
"""Seconds, and processor seconds of all threads."""


def _now() -> Times:
    return np.array([time.perf_counter(), time.process_time()])


def methods(n: int, s: int) -> dict[str, dict[str, Any]]:
    """What differs from EL-Local among n nodes, by name; s: how many neighbours where that can be chosen."""
    local = ep.ELLocal(s)
    topologies = {
        "el-oracle": ep.ELOracle(s), "el-oracle, fresh": ep.ELOracle(s, base="fresh"), "pull": ep.Pull(s),
        "el-local, cyclon": ep.ELLocal(s, view=ep.Cyclon()), "el-local, jelasity": ep.ELLocal(s, view=ep.Jelasity()),
        "el-local, spray": ep.ELLocal(s, view=ep.Spray(a=2)), "peer-swap": ep.PeerSwap(s), "regular": ep.Regular(s),
        "ring": ep.Ring(), "torus": ep.Torus(), "complete": ep.Complete(), "complete, all-reduce": ep.Complete(cost="all-reduce"),
        "erdos-renyi": ep.ErdosRenyi(), "geometric": ep.Geometric(), "exponential": ep.Exponential(),
        "one-peer-exponential": ep.OnePeerExponential(), "base, k = 1": ep.Base(1), "base, k = 4": ep.Base(4),
        "d-equistatic": ep.DEquiStatic(s), "u-equistatic": ep.UEquiStatic(s), "od-equidyn": ep.ODEquiDyn(), "ou-equidyn": ep.OUEquiDyn(),
        "matcha over a torus": ep.Matcha(ep.Torus(), probabilities="optimal" if n <= 300 else "uniform"),
        "every 5 rounds": ep.Every(local, period=5), "periodic": ep.Periodic(local, period=5),
        "1 fragment": ep.Fragments(local, k=1), "4 fragments": ep.Fragments(local, k=4), "16 fragments": ep.Fragments(local, k=16),
    }  # fmt: skip
    codecs = {
        "float16": Float16(), "bfloat16": BFloat16(), "int8": Int8(), "random-k 25 %": RandomK(0.25), "random-k 1 %": RandomK(0.01),
        "random-k 25 %, fill = own": RandomK(0.25, fill="own"), "top-k 10 %": TopK(0.1), "top-k 25 %": TopK(0.25), "top-k 1 %": TopK(0.01),
    }  # fmt: skip
    return {
        **{name: {"topology": topology} for name, topology in topologies.items()},
        "hypercube": {"topology": ep.Hypercube(), "nodes": 1 << (n.bit_length() - 1)},
        "half of the nodes": {"participation": ep.UniformParticipation(n // 2)},
        "half of the nodes, blind": {"participation": ep.UniformParticipation(n // 2, links="blind")},
        "bernoulli 0.5": {"participation": ep.BernoulliParticipation(0.5)},
        "teleportation": {"participation": ep.Teleportation(n // 2)},
        **{name: {"compression": codec} for name, codec in codecs.items()},
    }


def run() -> bool:
    """Large models, then many small ones."""
    return all([_large(), _many()])


class _Rounds:
    """An experiment whose rounds are called one by one."""

    def __init__(self, experiment: ep.Experiment, workers: Workers, data: object) -> None:
        setup = prepare(experiment, 1, data)  # type: ignore[arg-type]
        learner = make_learner(setup, workers)[0]
        with gentle_stop() as stop:
            host = Host(Population(setup, learner, workers), learner, workers, stop)
            self.engine = RoundLoop(host, None, Callback(), "")
        self.experiment, self.population, self.context = experiment, host.population, count(10**6)
        x = self.population.state["x"]
        self._trained = [x + 0.01 * torch.randn(x.shape) for _ in range(2)]  # as if it were trained, in turn

    def round(self) -> None:
        """A whole one."""
        self.engine._round()

    def besides(self) -> tuple[float, Times, Times]:
        """All of a round but training: the share of the nodes that take part, what mixing took, and what making messages smaller took."""
        t, population, setup = next(self.context), self.population, self.population.setup
        start = _now()
        plan = plan_round(self.experiment, setup.streams, t % 1000, setup.sizes)
        setup.batches.index(setup.streams, t)
        up = plan.delivery.alive
        who = None if up.all() else np.flatnonzero(up)
        ids, state = population.ids if who is None else population.ids[who], population._part(who)
        message = {"x": state["x"]}
        planned = _now()
        if population.coder is not None:
            message = population._compressed(message, state, t, ids)
            population._put(who, state)
        made = _now()
        population.aggregate(self.engine._inbox(plan, message, who), who, message)
        self.engine._count(plan)
        return float(up.mean()), (planned - start) + (_now() - made), made - planned

    def trained(self) -> None:
        """Other models than before, without training."""
        self.population.state["x"].copy_(self._trained[next(self.context) % 2])


class _Best:
    """The best of several calls: seconds, and processor seconds of all threads."""

    def __init__(self) -> None:
        self.seconds = np.full(2, np.inf)

    def of(self, work: Callable[[], object]) -> None:
        start = _now()
        work()
        self.took(_now() - start)

    def took(self, seconds: Times) -> None:
        self.seconds = np.minimum(self.seconds, seconds)

    def over(self, other: _Best) -> float:
        return float((self.seconds / other.seconds).max())


def _large() -> bool:
    """GN-LeNet, 96 nodes."""
    workers, data, reached = Workers(), pictures(), []
    fixed = {"nodes": NODES, "data": data, "partition": ep.IID(), "model": ep.GNLeNet(), "runtime": ep.Runtime(strategy="per-node"),
             "algorithm": ep.LocalSGD(lr=0.01, local_steps=STEPS, batch_size=BATCH), "topology": ep.ELLocal(FEW)}  # fmt: skip
    plain = _Rounds(ep.Experiment(**fixed), workers, data)
    learner, setup = plain.engine.host.learner, plain.population.setup
    index = torch.from_numpy(setup.batches.index(setup.streams, 0))
    training = _Best()
    for number, (name, changes) in enumerate({"el-local": {}, **methods(NODES, FEW)}.items()):
        if number % 5 == 0:
            step, x = plain.experiment.algorithm.step, plain.population.state["x"]
            training.of(lambda x=x, step=step: learner.sgd(x, index, step, [0] * NODES, {}))  # type: ignore[misc]
        rounds, mixing, making, shares = (
            _Rounds(ep.Experiment(**{**fixed, **changes}), workers, data),
            _Best(),
            _Best(),
            [],
        )
        for _ in range(sized(4, 1)):
            rounds.trained()
            share, mixed, made = rounds.besides()
            shares.append(share)
            mixing.took(mixed)
            making.took(made)
        part = float(np.mean(shares)) * rounds.experiment.nodes / NODES
        ratio = mixing.over(training) / part
        reached.append(verdict(f"  {name}: mixing, relative to training", ratio, 0.05, at_most=True))
        if rounds.population.coder is not None:
            print(f"    making messages smaller besides: {making.over(training) / part:.3f}")
    workers.close()
    return all(reached)


def _many() -> bool:
    """10,000 logistic regressions."""
    workers, reached = Workers(), []
    data = ep.Synthetic(features=64, classes=10, samples=8 * MANY).load()
    fixed = {"nodes": MANY, "data": data, "partition": ep.IID(), "model": ep.Logistic(), "runtime": ep.Runtime(strategy="stacked"),
             "algorithm": ep.LocalSGD(lr=0.05, batch_size=8), "topology": ep.ELLocal(MORE)}  # fmt: skip
    plain = _Rounds(ep.Experiment(**fixed), workers, data)
    for name, changes in methods(MANY, MORE).items():
        rounds = _Rounds(ep.Experiment(**{**fixed, **changes}), workers, data)
        rounds.round()
        base, took = _Best(), _Best()
        for _ in range(sized(3, 1)):
            base.of(plain.round)
            took.of(rounds.round)
        nodes = rounds.experiment.nodes
        what = f"  {name}: a round of {nodes:,} small models relative to el-local"
        reached.append(verdict(what, took.over(base) * MANY / nodes, 4, at_most=True))
    workers.close()
    return all(reached)
