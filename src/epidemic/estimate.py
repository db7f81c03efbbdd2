"""What runs would cost, before any of it runs: time by timing a few rounds of some nodes, memory and bytes by counting.

`epidemic plan` and `reproduce --dry-run` both ask here.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from epidemic.algorithms import LocalSGD
from epidemic.algorithms.free import FreeRunning
from epidemic.batch import Job
from epidemic.data import IID, Dataset, Samples
from epidemic.engine.sharing import check_sharing, check_strategy
from epidemic.errors import BadInput, require_int
from epidemic.experiment import Experiment
from epidemic.host import ways
from epidemic.host.mixture import columns_for, mix
from epidemic.host.pieces import PIECE
from epidemic.host.plan import plan_round
from epidemic.host.population import Population
from epidemic.host.setup import initial_module, make_learner, prepare
from epidemic.host.shards import LIMIT
from epidemic.memory import machine_memory
from epidemic.rng import Streams
from epidemic.topology import fragments_of
from epidemic.workers import Workers
from epidemic.workload import Workload, sent_in_rounds, what_decides_times, workload_in_rounds, workload_in_time

PROBE_NODES = 16
SMALL_MODEL = 50_000  # parameters; the time of smaller ones depends on how many nodes are trained together
MOST_NODES = 1_000  # that are trained together to measure that
PROBE_SECONDS = 2.0  # of training; at least two rounds
PROBE_TESTS = 200
PROBE_NUMBERS = 1 << 22  # of the models that are mixed to measure mixing
PROBE_SAMPLES = 64  # that a node has where the data is not there, unless that were more than
MOST_SAMPLES = 20_000  # in all

SHAPES: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "fashion": ((1, 14, 14), 10, 10_000, 2000),
    "digits": ((1, 8, 8), 10, 1437, 360),
    "cifar10": ((3, 32, 32), 10, 50_000, 10_000),
    "femnist": ((1, 28, 28), 62, 720_000, 80_000),
}
"""Data that need not be there, by its kind: input shape, classes, and about how many samples for training and testing."""


class Learning(msgspec.Struct, frozen=True):
    """What was measured of training here, and what a node takes."""

    train: float  # seconds of one node's training in a round
    evaluate: float  # seconds of one model's test sample
    parameters: int
    row_bytes: int  # of all columns of a node's state
    letter_bytes: int  # of the numbers that a letter carries
    letter_sizes: tuple[int, ...]  # the same, of the letters of each part of the models
    model_bytes: int  # of a model that a node is given
    program: int  # bytes of everything else: Python, PyTorch, and what training and evaluating take for a moment


class Exchanging(msgspec.Struct, frozen=True):
    """What was measured of a round's exchange, all nodes."""

    seconds: float  # of its graph and its mixtures
    between_ranks: int = 0  # bytes that the busiest rank sends or receives in the first round


class Cost(msgspec.Struct, frozen=True):
    """Of one run, all its seeds."""

    seconds: float
    sent_per_node: float  # bytes that a node would send over the network, one seed
    disk: float  # bytes of its directory


class Memory(msgspec.Struct, frozen=True):
    """Bytes that a process needs: its share of the nodes, and what every process has.

    Evaluation, exchange and saving take theirs in turn, and all samples are there only before any model is.
    """

    state: int  # the models, and the other columns of the algorithm's state
    mixtures: int  # what a round's mixtures are written into
    data: int  # training samples of its own nodes, and all test samples
    loading: int  # all samples beside its own, while they are read and cut
    evaluation: int  # some columns of all models in double precision, for their disagreement
    exchange: int  # what is on its way to and from other processes
    saving: int  # pieces of the models, when they are written
    program: int

    @property
    def share(self) -> int:
        """Its share of everything that grows with the nodes."""
        return self.state + self.mixtures + self.data

    @property
    def total(self) -> int:
        """The most of it that is there at once."""
        at_work = self.share + max(self.evaluation, self.exchange, self.saving)
        return self.program + max(self.data + self.loading, at_work)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What an experiment would take."""

    nodes: int
    rounds: int
    seeds: int
    parameters: int
    ranks: int
    memory: Memory  # of each rank
    memory_in_all: int  # of each rank
    machine_memory: int | None
    ranks_to_fit: int | None  # on machines like this one, a rank on each; None: not with any number of them
    exchanged_per_round: (
        int  # bytes that the busiest rank sends to others or receives, by the way that is chosen for the first round
    )
    sent_per_round: float | None  # bytes of a node, mean
    sent_per_node: float | None  # by the end, one seed
    sent_in_all: float | None  # all nodes, one seed
    seconds_per_round: float  # in one process here
    seconds_per_evaluation: float
    seconds: float  # all seeds
    notes: list[str]


def plan(experiment: Experiment, ranks: int = 1) -> Plan:
    """What an experiment would take in so many processes; times are those of one process on this machine."""
    require_int("--ranks", ranks, 1)
    n = experiment.nodes
    if ranks > 1:
        check_sharing(experiment, ranks)
    notes = []
    data, samples = _data_of(experiment)
    if ranks > 1 and data is not None:
        check_strategy(experiment, data, ranks)
    if data is not None:
        evaluated, tests = len(data.evaluated), len(data.test)
    else:
        evaluated = tests = SHAPES[_kind(experiment)][3]
        notes.append(
            "the data is not there: times are of random samples of its shape, and its size is known only about"
        )
        data = _stand_in(experiment)
        experiment = msgspec.structs.replace(experiment, data=data, partition=IID())
    learning = learning_of(experiment, data)
    exchange = exchange_of(experiment, learning, ranks)
    if exchange is None:
        notes.append("a method without rounds: letters, and models under way, are not counted; see epidemic timeline")
    memory = _memory(experiment, learning, samples, ranks)
    available = machine_memory()
    sent = None
    if exchange is not None:
        sent = sent_in_rounds(_in_rounds(experiment), learning.letter_sizes, learning.model_bytes)
    per_round, per_evaluation, in_all = _seconds(experiment, learning, exchange, evaluated, tests)
    return Plan(
        nodes=n,
        rounds=experiment.rounds,
        seeds=len(experiment.seeds),
        parameters=learning.parameters,
        ranks=ranks,
        memory=memory,
        memory_in_all=memory.total,
        machine_memory=available,
        ranks_to_fit=None if available is None else _ranks_to_fit(experiment, learning, samples, available),
        exchanged_per_round=0 if exchange is None else exchange.between_ranks,
        sent_per_round=None if sent is None else sent / max(experiment.rounds, 1),
        sent_per_node=sent,
        sent_in_all=None if sent is None else sent * n,
        seconds_per_round=per_round,
        seconds_per_evaluation=per_evaluation,
        seconds=in_all,
        notes=notes,
    )


def costs(jobs: Sequence[Job]) -> dict[Path, Cost]:
    """The cost of every job, whose data need not be there; rates are measured once for what takes the same time."""
    known: dict[str, Learning] = {}
    timed: dict[bytes, Workload] = {}
    found = {}
    for job in jobs:
        given = job.experiment
        data = _stand_in(given)
        experiment = msgspec.structs.replace(given, data=data, partition=IID())
        # A rate takes no time, and methods without rounds are measured alike.
        algorithm = {**_in_rounds(given).table()["algorithm"], "lr": None}
        key = (
            f"{_kind(given)} {given.model} {given.nodes} {algorithm} {given.compression} {fragments_of(given.topology)}"
        )
        if key not in known:
            known[key] = learning_of(experiment, data)
        learning = known[key]
        tests = SHAPES[_kind(given)][3]
        if given.clock is None:
            work = workload_in_rounds(given, learning.letter_sizes, learning.model_bytes)
            seconds = _seconds(experiment, learning, exchange_of(experiment, learning), tests, tests)[2]
        else:
            same = what_decides_times(given)
            work = timed[same] = timed.get(same) or workload_in_time(given, learning.parameters)
            watched = tests if given.eval.samples == "all" else min(given.eval.samples, tests)
            evaluating = (given.nodes + 1) * learning.evaluate * (work.evaluations * watched + tests)
            training = given.nodes * learning.train * work.trainings
            seconds = len(given.seeds) * (training + evaluating + work.overhead)
        disk = len(given.seeds) * given.nodes * 4 * learning.parameters * 2.0
        found[job.path] = Cost(seconds, work.sent, disk)
    return found


def _seconds(
    experiment: Experiment, learning: Learning, exchange: Exchanging | None, evaluated: int, tests: int
) -> tuple[float, float, float]:
    """Of a round, of an evaluation while training, and of all seeds."""
    n, wanted = experiment.nodes, experiment.eval.samples
    watched = evaluated if wanted == "all" else min(wanted, evaluated)
    per_round = n * learning.train + (0.0 if exchange is None else exchange.seconds)
    per_sample = (n + 1) * learning.evaluate  # all models, and their average
    rounds, evaluations = experiment.rounds, experiment.rounds // experiment.eval.every
    whole = rounds * per_round + per_sample * (evaluations * watched + tests)
    return per_round, per_sample * watched, len(experiment.seeds) * whole


def _memory(experiment: Experiment, learning: Learning, samples: tuple[int, int], ranks: int) -> Memory:
    """Of each of so many ranks: a share of the nodes and of the training samples, and what every process has.

    `samples`: bytes of the samples for training and for testing.
    """
    n = experiment.nodes
    rows = math.ceil(n / ranks)
    block = n * min(learning.parameters, columns_for(n))  # numbers of all models that are looked at together
    threads = Workers(experiment.runtime.threads)
    # One process has them already, and each thread a block in double precision. A rank has one block, which it receives in pieces.
    evaluation = 8 * block * threads.threads if ranks == 1 else (4 + 8) * block + 3 * min(4 * block, LIMIT)
    threads.close()
    mixed, every = rows * learning.letter_bytes, n * learning.letter_bytes
    return Memory(
        state=rows * learning.row_bytes,
        mixtures=mixed,
        data=math.ceil(samples[0] / ranks) + samples[1],
        loading=0 if ranks == 1 else samples[0],
        evaluation=evaluation,
        exchange=0 if ranks == 1 else 4 * min(mixed, LIMIT),
        saving=min(every, PIECE) if ranks == 1 else 3 * min(every, LIMIT),
        program=learning.program,
    )


def _ranks_to_fit(experiment: Experiment, learning: Learning, samples: tuple[int, int], available: int) -> int | None:
    """The fewest ranks with which each has no more than that; from two on it falls with their number, so it is found by halving."""

    def fits(ranks: int) -> bool:
        return _memory(experiment, learning, samples, ranks).total <= available

    if fits(1):  # which has nothing on its way to others
        return 1
    low, high = 2, experiment.nodes
    if high < low or not fits(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


def learning_of(experiment: Experiment, data: Dataset) -> Learning:
    """Measure: some of the nodes are set up and trained, and their models evaluated."""
    probe = _in_rounds(experiment)
    small = _parameters(probe, data) < SMALL_MODEL
    hosted = min(experiment.nodes, MOST_NODES if small else PROBE_NODES)
    workers = Workers(experiment.runtime.threads)
    try:
        setup = prepare(probe, experiment.seeds[0], data, range(hosted))
        learner, _ = make_learner(setup, workers)
        population = Population(setup, learner, workers)
        degree = np.ones(hosted, dtype=np.int64)
        times: list[float] = []
        while len(times) < 3 or (sum(times) < PROBE_SECONDS and len(times) < 10):
            begin = time.perf_counter()
            population.emit(len(times), degree)
            times.append(time.perf_counter() - begin)
        rows = {rows.untyped_storage().data_ptr(): rows for rows in population.state.values()}  # one may have two names
        row_bytes = sum(one[0].numel() * one.element_size() for one in rows.values())
        inputs, targets = (part[:PROBE_TESTS] for part in setup.test)
        evaluation = _fastest(lambda: learner.evaluate(population.models, (inputs, targets)))
    finally:
        workers.close()
    taken = _peak() - hosted * row_bytes - _bytes(data.train) - _bytes(data.test)
    return Learning(
        train=min(times[1:]) / hosted,  # the first one is slower
        evaluate=evaluation / (len(inputs) * hosted),
        parameters=len(setup.initial),
        row_bytes=row_bytes,
        letter_bytes=population.letter_bytes,
        letter_sizes=tuple(population.letter_sizes),
        model_bytes=population.model_bytes,
        program=max(0, taken),
    )


def exchange_of(experiment: Experiment, learning: Learning, ranks: int = 1) -> Exchanging | None:
    """Measure: a round's graph is drawn, and some numbers of every model are mixed; None where there are no rounds."""
    if isinstance(experiment.algorithm, FreeRunning):
        return None
    n, numbers = experiment.nodes, math.ceil(learning.letter_bytes / 4)
    columns = min(numbers, max(1, PROBE_NUMBERS // n))
    begin = time.perf_counter()
    planned = plan_round(_in_rounds(experiment), Streams(experiment.seeds[0]), 0, np.ones(n, dtype=np.int64))
    drawing = time.perf_counter() - begin
    x = torch.ones(n, columns)
    out = torch.empty_like(x)
    workers = Workers(experiment.runtime.threads)
    try:
        mixing = _fastest(lambda: mix(planned.weights, x, workers, out))
    finally:
        workers.close()
    between = 0 if ranks == 1 else 4 * ways.moved(planned.weights, n, ranks, numbers)
    return Exchanging(drawing + mixing * numbers / columns, between)


def _in_rounds(experiment: Experiment) -> Experiment:
    """The same without a clock; a method without rounds trains as local SGD does."""
    algorithm = experiment.algorithm
    if isinstance(algorithm, FreeRunning):
        algorithm = LocalSGD(local_steps=algorithm.local_steps, batch_size=algorithm.batch_size)
    return msgspec.structs.replace(experiment, clock=None, algorithm=algorithm)


def _fastest(work: Callable[[], object]) -> float:
    """Seconds; the first time is not counted, because it is slower."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def _parameters(experiment: Experiment, data: Dataset) -> int:
    return sum(p.numel() for p in initial_module(experiment, data, Streams(experiment.seeds[0])).parameters())


def _peak() -> int:
    """The most memory that this process has had; 0 where nobody says."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else 1024 * found


def _bytes(samples: Samples) -> int:
    return int(samples.inputs.nbytes + samples.targets.nbytes)


def _kind(experiment: Experiment) -> str:
    table = experiment.table()["data"]
    return str(table.get("kind", "")) if isinstance(table, dict) else ""


def _data_of(experiment: Experiment) -> tuple[Dataset | None, tuple[int, int]]:
    """The data, or None if it is not there but known; and the bytes of its samples for training and testing."""
    try:
        data = experiment.load_data()
    except BadInput:
        if _kind(experiment) not in SHAPES:
            raise
        shape, _, train, test = SHAPES[_kind(experiment)]
        each = math.prod(shape) + 8
        return None, (train * each, test * each)
    return data, (_bytes(data.train), _bytes(data.test))


def _stand_in(experiment: Experiment) -> Dataset:
    """Random samples in the shape of data that is known."""
    shape, classes, _, _ = SHAPES[_kind(experiment)]
    rng = np.random.default_rng(1)

    def some(size: int) -> Samples:
        return Samples(rng.integers(0, 256, (size, *shape), dtype=np.uint8), np.arange(size) % classes)

    n = experiment.nodes
    train = some(max(n, min(PROBE_SAMPLES * n, MOST_SAMPLES)))
    return Dataset(train, some(PROBE_TESTS), tuple(map(str, range(classes))), 2 / 255, -1.0)
