"""Whole rounds of many kinds of models, each beside the plainest loop over modules with `torch.optim`, in one run.

The plain loop has a process for each core, which trains its share of the modules in turn: without an exchange, and with the same one, for
which every process averages what its nodes receive out of shared memory. Ours is a whole simulation, paused between rounds: by the strategy
that the rule chooses, and by each of the two. All take turns, in processes of their own; what counts is the best round of each.

`python -m benchmarks models/lstm models/lora` measures some of the models.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import epidemic as ep
from benchmarks.memory import peak_gigabytes
from benchmarks.sizes import sized
from benchmarks.timing import verdict
from benchmarks.zoo import SUBJECTS, Subject
from epidemic.callbacks import Callback
from epidemic.core.errors import EpidemicError
from epidemic.core.workers import available_threads
from epidemic.data import Dataset
from epidemic.runtime.plan import plan_round
from epidemic.runtime.setup import prepare

NODES, STEPS = sized(16, 4), sized(3, 1)
ROUNDS = sized(7, 1)
LIMIT = 1.0
"""Our rounds a second relative to those of the plain loop with the same exchange."""
SMALLEST_SUBJECTS = ("mlp 784-32", "lora", "cnn, dropout")


def parts() -> list[str]:
    """The names of the models."""
    return list(SUBJECTS)


def run(wanted: Sequence[str] = ()) -> bool:
    """Measure these models, or all of them."""
    names = list(wanted) or list(sized(list(SUBJECTS), list(SMALLEST_SUBJECTS)))
    print(f"{NODES} nodes, {STEPS} local steps, node-steps a second: best (median); page faults a node-step; peak GB")
    ratios = {name: _measure(name) for name in names}
    reached = [
        verdict(f"{name}: rounds relative to a plain loop with exchange", ratio, LIMIT, at_most=False)
        for name, ratio in ratios.items()
    ]
    mean = float(np.exp(np.mean(np.log(list(ratios.values())))))
    if len(ratios) > 1:
        reached.append(verdict("geometric mean of these", mean, 1.25, at_most=False))
    return all(reached)


def _measure(name: str) -> float:
    """How many times as fast as the plain loop with exchange."""
    subject = SUBJECTS[name]
    nodes, steps = (4, 1) if subject.slow else (NODES, STEPS)
    contestants: dict[str, list[_Contestant]] = {
        "plain": _plain(name, nodes, steps, exchange=False),
        "plain, exchange": _plain(name, nodes, steps, exchange=True),
    }
    for strategy in ("auto", "per-node", "stacked"):
        contestants[strategy] = [_Contestant(_simulate, name, nodes, steps, strategy)]
    seconds: dict[str, list[float]] = {}
    told: dict[str, list[_Told]] = {}
    try:
        for way in list(contestants):
            if not all(one.ready() for one in contestants[way]):  # the strategy is not possible
                _end(contestants.pop(way))
        for attempt in range(ROUNDS + 1):  # the first round warms up
            for way, processes in contestants.items():
                start = time.perf_counter()
                told[way] = _round(processes)
                if attempt:
                    seconds.setdefault(way, []).append(time.perf_counter() - start)
    finally:
        for processes in contestants.values():
            _end(processes)
    made = nodes * steps
    for way, found in seconds.items():
        faults = sum(one[0] for one in told[way]) / made
        peak = sum(one[1] for one in told[way])
        kind = f" ({told[way][0][2]})" if told[way][0][2] else ""
        print(
            f"  {name:26} {way + kind:24} {made / min(found):8.1f} ({made / statistics.median(found):8.1f})"
            f" {faults:8.1f} {peak:6.2f}",
            flush=True,
        )
    return min(seconds["plain, exchange"]) / min(seconds["auto"])


_Told = tuple[float, float, str]
"""Page faults of a round, peak memory in GB, the strategy."""


class _Contestant:
    """A process that makes a round when it is told to."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self.process = context.Process(target=work, args=(there, *arguments), daemon=True)
        self.process.start()
        self._held = arguments  # what processes share is gone when nobody holds it
        there.close()

    def ready(self) -> bool:
        """Wait until it can begin; whether it can."""
        try:
            return bool(self._pipe.recv())
        except EOFError:
            return False

    def begin(self) -> None:
        """Let it make a round."""
        self._pipe.send("go")

    def ended(self) -> _Told:
        """Wait until the round is over."""
        found: _Told = self._pipe.recv()
        return found


def _round(processes: list[_Contestant]) -> list[_Told]:
    for one in processes:
        one.begin()
    return [one.ended() for one in processes]


def _end(processes: list[_Contestant]) -> None:
    for one in processes:
        one.process.kill()
        one.process.join()


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _experiment(subject: Subject, data: Dataset, nodes: int, steps: int, strategy: str) -> ep.Experiment:
    torch.manual_seed(0)
    return ep.Experiment(
        nodes=nodes, rounds=10**6, topology=ep.ELLocal(min(7, nodes - 1)), data=data, partition=ep.IID(), model=subject.build(),
        algorithm=ep.LocalSGD(lr=0.01, local_steps=steps, batch_size=subject.batch),
        eval=ep.Eval(every=10**6, samples=16), runtime=ep.Runtime(strategy=strategy, threads=available_threads()),
    )  # fmt: skip


# -- ours -------------------------------------------------------------------------------------------------------------


class _Paused(Callback):
    """Waits after each round until it is told to go on."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.strategy = ""
        self.before = 0

    def started(self, setup: Any, learner: Any, rounds_done: int) -> None:
        """Before the first round."""
        self.strategy = learner.strategy

    def planned(self, plan: Any, index: Any) -> None:
        """The first round's graph takes part in no measurement."""
        if self.before == 0:
            self.pipe.send(True)
            self._wait()

    def advanced(self, round: int, models: Tensor) -> None:
        """After each round."""
        self.pipe.send((_faults() - self.before, peak_gigabytes(), self.strategy))
        self._wait()

    def _wait(self) -> None:
        self.pipe.recv()
        self.before = _faults()


def _simulate(pipe: Connection, name: str, nodes: int, steps: int, strategy: str) -> None:
    subject = SUBJECTS[name]
    data = subject.data()
    try:
        ep.simulate(_experiment(subject, data, nodes, steps, strategy), data=data, callbacks=[_Paused(pipe)])
    except EpidemicError:
        with suppress(OSError):  # nobody may be there any more
            pipe.send(False)


# -- plain ------------------------------------------------------------------------------------------------------------


def _plain(name: str, nodes: int, steps: int, *, exchange: bool) -> list[_Contestant]:
    context, processes = multiprocessing.get_context("spawn"), available_threads()
    barrier = context.Barrier(processes)
    size = sum(p.numel() for p in SUBJECTS[name].build().parameters() if p.requires_grad)
    rows = torch.zeros(nodes if exchange else 0, size).share_memory_()
    shares = np.array_split(np.arange(nodes), processes)
    return [_Contestant(_loop, name, nodes, steps, share.tolist(), rows, barrier) for share in shares]


def _loop(pipe: Connection, name: str, nodes: int, steps: int, own: list[int], rows: Tensor, barrier: Any) -> None:
    """Train the own modules one after the other, as anybody would; average what their nodes receive."""
    torch.set_num_threads(1)
    subject = SUBJECTS[name]
    data = subject.data()
    experiment = _experiment(subject, data, nodes, steps, "per-node")
    setup = prepare(experiment, 1, data)
    inputs, targets = torch.from_numpy(data.train.inputs), torch.from_numpy(data.train.targets)
    modules: list[nn.Module] = []
    for _ in own:
        torch.manual_seed(0)
        modules.append(subject.build())
    trained = [[p for p in module.parameters() if p.requires_grad] for module in modules]
    optimisers = [torch.optim.SGD(parameters, lr=0.01) for parameters in trained]
    pipe.send(True)
    for t in range(10**6):
        pipe.recv()
        before = _faults()
        index = setup.batches.index(setup.streams, t)
        for i, module, optimiser in zip(own, modules, optimisers, strict=True):
            for r in range(steps):
                which = torch.from_numpy(index[i, r])
                optimiser.zero_grad()
                F.cross_entropy(module(inputs[which]), targets[which]).backward()
                optimiser.step()
        if len(rows):
            for i, parameters in zip(own, trained, strict=True):
                rows[i] = nn.utils.parameters_to_vector(parameters).detach()
            barrier.wait()
            weights = torch.from_numpy(plan_round(experiment, setup.streams, t).weights.spelled_out.toarray()[own])
            mixed = weights.float() @ rows
            barrier.wait()
            for row, parameters in zip(mixed, trained, strict=True):
                nn.utils.vector_to_parameters(row, parameters)
        pipe.send((_faults() - before, peak_gigabytes(), ""))
