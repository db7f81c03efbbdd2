"""Smaller letters: what compressing, reading and averaging them takes, relative to training and to a whole round of plain EL-Local."""

from __future__ import annotations

from itertools import count

import epidemic as ep
from benchmarks.timing import interleaved, verdict
from benchmarks.training import BATCH, NODES, STEPS, pictures
from epidemic.callbacks import Callback
from epidemic.compression import Float16, Int8, RandomK, TopK
from epidemic.engine.round import InRounds
from epidemic.host.interrupt import gentle_stop
from epidemic.host.journal import Host
from epidemic.host.population import Population
from epidemic.host.setup import make_learner, prepare
from epidemic.workers import Workers

SMALLER = {
    "float16": {"compression": Float16()},
    "int8": {"compression": Int8()},
    "random-k 25 %": {"compression": RandomK(0.25)},
    "top-k 10 %": {"compression": TopK(0.1)},
    "4 fragments": {"topology": ep.Fragments(ep.ELLocal(7), 4)},
    "16 fragments": {"topology": ep.Fragments(ep.ELLocal(7), 16)},
}


def run() -> bool:
    """Large models, then many small ones."""
    return all([_large(), _many()])


class _Rounds:
    """An experiment whose phases are called one by one."""

    def __init__(self, experiment: ep.Experiment, workers: Workers, data: object) -> None:
        setup = prepare(experiment, 1, data)  # type: ignore[arg-type]
        learner = make_learner(setup, workers)[0]
        with gentle_stop() as stop:
            self.engine = InRounds(
                Host(Population(setup, learner, workers), learner, workers, stop), None, Callback(), ""
            )

    def round(self) -> None:
        self.engine._round()

    def times(self, repeat: int) -> dict[str, float]:
        """Seconds of each phase of the fastest round, by what takes them."""
        clock = self.engine.journal.clock
        clock.taken()
        found = []
        for _ in range(repeat):
            self.round()
            found.append(clock.taken())
        return {phase: min(one[phase] for one in found) for phase in found[0]}


def _large() -> bool:
    """GN-LeNet, 96 nodes: what mixing, with all that is about letters, takes relative to plain training."""
    workers, data, reached = Workers(), pictures(), []
    fixed = {"nodes": NODES, "data": data, "partition": ep.IID(), "model": ep.GNLeNet(), "runtime": ep.Runtime(strategy="per-node"),
             "algorithm": ep.LocalSGD(lr=0.01, local_steps=STEPS, batch_size=BATCH)}  # fmt: skip
    plain = _Rounds(ep.Experiment(**fixed, topology=ep.ELLocal(7)), workers, data)  # type: ignore[arg-type]
    for name, changes in SMALLER.items():
        rounds = _Rounds(ep.Experiment(**{**fixed, "topology": ep.ELLocal(7), **changes}), workers, data)  # type: ignore[arg-type]
        rounds.round()
        base, found = plain.times(2), rounds.times(2)
        letters = _letters(rounds)
        reached.append(verdict(f"  {name}: letters and mixing relative to training", (letters + found["mix"]) / base["train"],
                               0.05, at_most=True))  # fmt: skip
    workers.close()
    return all(reached)


def _letters(rounds: _Rounds) -> float:
    """Seconds that making the letters of a round takes, which is a part of training elsewhere."""
    population = rounds.engine.host.population
    message, turn = {"x": population.state["x"]}, count(10**6)
    if population.coder is None:
        return 0.0

    def make() -> None:
        population._compressed(message, population.state, next(turn), population.ids)

    return interleaved(make, repeat=3)[0]


def _many() -> bool:
    """10,000 logistic regressions: whole rounds relative to those of plain EL-Local."""
    workers, reached = Workers(), []
    nodes = 10_000
    data = ep.Synthetic(features=64, classes=10, samples=8 * nodes).load()
    fixed = {"nodes": nodes, "data": data, "partition": ep.IID(), "model": ep.Logistic(), "runtime": ep.Runtime(strategy="stacked"),
             "algorithm": ep.LocalSGD(lr=0.05, batch_size=8)}  # fmt: skip
    plain = _Rounds(ep.Experiment(**fixed, topology=ep.ELLocal(14)), workers, data)  # type: ignore[arg-type]
    for name, changes in SMALLER.items():
        own = {"topology": ep.Fragments(ep.ELLocal(14), changes["topology"].k)} if "topology" in changes else changes  # type: ignore[attr-defined]
        rounds = _Rounds(ep.Experiment(**{**fixed, "topology": ep.ELLocal(14), **own}), workers, data)  # type: ignore[arg-type]
        rounds.round()
        plain.round()
        base, found = interleaved(plain.round, rounds.round, repeat=4)
        reached.append(
            verdict(f"  {name}: a round of 10,000 small models relative to a plain one", found / base, 4, at_most=True)
        )
    workers.close()
    return all(reached)
