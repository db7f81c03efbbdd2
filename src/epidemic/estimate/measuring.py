"""What is measured of an experiment on this machine: a few rounds of some of its nodes are trained, evaluated and mixed, and timed."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from epidemic.aggregation import made
from epidemic.algorithms import LocalSGD
from epidemic.algorithms.asynchronous import AsynchronousMethod
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers
from epidemic.data import Dataset, Samples, Source
from epidemic.data.base import KnownSize
from epidemic.experiment import Experiment
from epidemic.learner import Learner
from epidemic.learner.stacked import most_trained
from epidemic.runtime.counters import Counters
from epidemic.runtime.inbox import aggregate_by
from epidemic.runtime.mixing_arithmetic import mix
from epidemic.runtime.plan import plan_round
from epidemic.runtime.population import Population
from epidemic.runtime.setup import Setup, initial_module, make_learner, prepare
from epidemic.sharding import routing
from epidemic.simulator.dry_run import dry_run

# -- The data that an experiment would train on: its own where it is there, and otherwise random samples in the shape of what is known --


PROBE_TESTS = 200
PROBE_SAMPLES = 64  # that a node has where the data is not there, unless that were more than
MOST_SAMPLES = 20_000  # in all


class SampleSizes(NamedTuple):
    """How many bytes the training, test and evaluated samples take."""

    train: int
    test: int
    evaluated: int = 0  # those that are evaluated while training


class SampleSource(NamedTuple):
    """The data of an experiment, or what stands in for it."""

    data: Dataset | None  # None: it is not there, but known
    sizes: SampleSizes
    evaluated: int  # samples that may be evaluated while training
    tests: int


def source_of(experiment: Experiment) -> SampleSource:
    """The data, and how much of it there is."""
    try:
        data = experiment.load_data()
    except BadInput:
        known = size_of(experiment)
        if known is None:
            raise
        shape, _, train, tests = known
        each = math.prod(shape) + 8
        watched = watched_of(experiment, tests)
        return SampleSource(None, SampleSizes(train * each, tests * each, watched * each), tests, tests)
    evaluated, tests = len(data.evaluated), len(data.test)
    watched = math.ceil(bytes_of(data.evaluated) * watched_of(experiment, evaluated) / max(1, evaluated))
    return SampleSource(data, SampleSizes(bytes_of(data.train), bytes_of(data.test), watched), evaluated, tests)


def watched_of(experiment: Experiment, evaluated: int) -> int:
    """How many samples are evaluated while training, of so many that could be."""
    wanted = experiment.eval.samples
    return evaluated if wanted == "all" else min(wanted, evaluated)


def bytes_of(samples: Samples) -> int:
    """Return how many bytes the inputs and targets take."""
    return int(samples.inputs.nbytes + samples.targets.nbytes)


def size_of(experiment: Experiment) -> KnownSize | None:
    """Input shape, classes, and how many samples for training and testing its data is known to have; None if nobody knows."""
    return experiment.data.size if isinstance(experiment.data, Source) else None


def kind_of(experiment: Experiment) -> str:
    """What its data is called; empty for arrays of a user's own."""
    table = experiment.table()["data"]
    return str(table.get("kind", "")) if isinstance(table, dict) else ""


def stand_in(experiment: Experiment) -> Dataset:
    """Random samples in the shape of data that is known."""
    known = size_of(experiment)
    assert known is not None
    shape, classes, _, _ = known
    rng = np.random.default_rng(1)

    def some(size: int) -> Samples:
        return Samples(rng.integers(0, 256, (size, *shape), dtype=np.uint8), np.arange(size) % classes)

    n = experiment.nodes
    train = some(max(n, min(PROBE_SAMPLES * n, MOST_SAMPLES)))
    return Dataset(train, some(PROBE_TESTS), tuple(map(str, range(classes))), 2 / 255, -1.0)


# -- What a seed of an experiment does, counted without training: trainings, evaluations and bytes of a node ---------


DRAWN = 48
"""Most rounds planned to count what is sent ..."""
DRAWING_SECONDS = 3.0
"""... within this many seconds."""
DRY_EVALUATIONS = 2
"""So many evaluations of a run under the clock lie in the part that is run without models."""


class Workload(msgspec.Struct, frozen=True):
    """What one seed does, counted without training: trainings, evaluations and bytes sent."""

    trainings: float  # of a node
    evaluations: int
    sent: float  # bytes, per node
    overhead: float = 0.0  # seconds that deciding takes under a clock, besides learning


def sent_in_rounds(experiment: Experiment, message_sizes: Sequence[int], model_bytes: int) -> float:
    """Bytes that a node sends in all rounds, mean, as the run will count them: from the plans of the first rounds; the rest is like them.

    `message_sizes`: of a message's numbers, or of one of each part of the models.
    """
    n, streams = experiment.nodes, Streams(experiment.seeds[0])
    counters, samples = Counters.zero(n), np.ones(n, dtype=np.int64)
    begun, drawn = time.perf_counter(), 0
    while drawn < min(experiment.rounds, DRAWN) and (drawn < 2 or time.perf_counter() - begun < DRAWING_SECONDS):
        counters.count(plan_round(experiment, streams, drawn, samples), message_sizes, model_bytes)
        drawn += 1
    return counters.traffic().total.mean * experiment.rounds / max(drawn, 1)


def workload_in_rounds(experiment: Experiment, message_sizes: Sequence[int], model_bytes: int) -> Workload:
    """The workload of an experiment without a clock."""
    evaluations = experiment.rounds // experiment.eval.every
    return Workload(experiment.rounds, evaluations, sent_in_rounds(experiment, message_sizes, model_bytes))


def workload_in_time(experiment: Experiment, parameters: int) -> Workload:
    """From the first part of its simulated time, run without models; the rest is like it."""
    assert experiment.clock is not None
    stop, evaluate = experiment.clock.stop, experiment.clock.evaluate
    assert stop > 0  # those that are reproduced end by time
    assert evaluate > 0
    part = min(DRY_EVALUATIONS * evaluate, stop)
    begun = time.perf_counter()
    work = dry_run(experiment, experiment.seeds[0], 4 * parameters, seconds=part)
    overhead = (time.perf_counter() - begun) * stop / part
    trainings = work.tally.steps / experiment.nodes / experiment.algorithm.local_steps
    sent = work.tally.bytes_sent / experiment.nodes
    return Workload(trainings * stop / part, round(stop / evaluate), sent * stop / part, overhead)


def what_decides_times(experiment: Experiment) -> bytes:
    """Under a clock, what decides when things happen: neither rates of learning nor samples do."""
    table = experiment.table()
    algorithm = {name: value for name, value in table["algorithm"].items() if name != "lr"}
    left = {name: value for name, value in table.items() if name not in ("name", "seeds", "data", "algorithm")}
    return msgspec.json.encode([algorithm, left])


PROBE_NODES = 16
SMALL_MODEL = 50_000  # parameters; the time of smaller ones depends on how many nodes are trained together
MOST_NODES = 1_000  # that are trained together to measure that
PROBE_SECONDS = 2.0  # of training; at least two rounds
PROBE_NUMBERS = 1 << 22  # of the models that are mixed to measure mixing


class GpuCost(msgspec.Struct, frozen=True):
    """What was measured on the GPU of this machine."""

    capacity: int  # bytes that it has
    context: int  # bytes that CUDA, its libraries and PyTorch's allocator keep beside all tensors
    row: int  # bytes that training and evaluating take for a moment, for each row that is worked on at once
    numbers: int  # of a row
    stacked: bool  # many rows are worked on at once; otherwise one for each thread
    convolved: bool

    def working(self, rows: int, threads: int) -> int:
        """Bytes that training and evaluating so many rows take for a moment."""
        most = most_trained(rows, self.numbers, convolved=self.convolved) if self.stacked else 1
        return self.row * min(rows, threads * most)


class TrainingCost(msgspec.Struct, frozen=True):
    """What was measured of training here, and what a node takes."""

    train: float  # seconds of one node's training in a round
    evaluate: float  # seconds of one model's test sample
    parameters: int
    row_bytes: int  # of all columns of a node's state
    message_bytes: int  # of the numbers that a message carries
    message_sizes: tuple[int, ...]  # the same, of the messages of each part of the models
    model_bytes: int  # of a model that a node is given
    program: int  # bytes of everything else: Python, PyTorch, and what training and evaluating take for a moment
    device: str = "cpu"  # the type of device that was measured
    gpu: GpuCost | None = None  # if that device is a GPU


class Exchanging(msgspec.Struct, frozen=True):
    """What was measured of a round's exchange, all nodes."""

    seconds: float  # of its graph and its mixtures
    between_ranks: int = 0  # bytes that the busiest rank sends or receives in the first round


def learning_of(experiment: Experiment, data: Dataset) -> TrainingCost:
    """Measure: some of the nodes are set up and trained, and their models evaluated."""
    probe = in_rounds(experiment)
    small = _parameters(probe, data) < SMALL_MODEL
    hosted = min(experiment.nodes, MOST_NODES if small else PROBE_NODES)
    workers = Workers(experiment.runtime.threads)
    try:
        setup = prepare(probe, experiment.seeds[0], data, range(hosted))
        learner, _ = make_learner(setup, workers)
        population = Population(setup, learner, workers)
        degree = np.ones(hosted, dtype=np.int64)
        before = _tensors_on_gpu(setup.task.device)
        times: list[float] = []
        while len(times) < 3 or (sum(times) < PROBE_SECONDS and len(times) < 10):
            begin = time.perf_counter()
            population.local_update(len(times), degree)
            _settle()
            times.append(time.perf_counter() - begin)
        rows = {rows.untyped_storage().data_ptr(): rows for rows in population.state.values()}  # one may have two names
        row_bytes = sum(one[0].numel() * one.element_size() for one in rows.values())
        inputs, targets = (part[:PROBE_TESTS] for part in setup.test)
        evaluation = _fastest(lambda: learner.evaluate(population.models, (inputs, targets)))
        device = setup.task.device.type
        taken = _peak() - bytes_of(data.train) - bytes_of(data.test) - (hosted * row_bytes if device == "cpu" else 0)
        gpu = None if before is None else _on_gpu(setup, learner, before, hosted, workers.threads)
    finally:
        workers.close()
    return TrainingCost(
        train=min(times[1:]) / hosted,  # the first one is slower
        evaluate=evaluation / (len(inputs) * hosted),
        parameters=len(setup.initial),
        row_bytes=row_bytes,
        message_bytes=population.message_bytes,
        message_sizes=tuple(population.message_sizes),
        model_bytes=population.model_bytes,
        program=max(0, taken),
        device=device,
        gpu=gpu,
    )


def exchange_of(experiment: Experiment, learning: TrainingCost, ranks: int = 1) -> Exchanging | None:
    """Measure: a round's graph is drawn, and some numbers of every model are mixed; None where there are no rounds."""
    if isinstance(experiment.algorithm, AsynchronousMethod):
        return None
    rule = made(experiment.aggregation)
    n, numbers = experiment.nodes, math.ceil(learning.message_bytes / 4)
    columns = min(numbers, max(1, PROBE_NUMBERS // n))
    begin = time.perf_counter()
    planned = plan_round(in_rounds(experiment), Streams(experiment.seeds[0]), 0, np.ones(n, dtype=np.int64))
    drawing = time.perf_counter() - begin
    x = torch.ones(n, columns, device=learning.device)
    out = torch.empty_like(x)
    workers = Workers(experiment.runtime.threads)
    try:
        if rule.linear:
            mixing = _fastest(lambda: mix(planned.weights, x, workers, out))
        else:
            mixing = _fastest(lambda: aggregate_by(rule, planned.weights, np.arange(n), x, x, workers, out))
    finally:
        workers.close()
    between = 0 if ranks == 1 else 4 * routing.moved(planned.weights, n, ranks, numbers)
    return Exchanging(drawing + mixing * numbers / columns, between)


def in_rounds(experiment: Experiment) -> Experiment:
    """The same without a clock; a method without rounds trains as local SGD does."""
    algorithm = experiment.algorithm
    mixing = experiment.mixing
    if isinstance(algorithm, AsynchronousMethod):
        algorithm = LocalSGD(local_steps=algorithm.local_steps, batch_size=algorithm.batch_size)
        if not made(experiment.aggregation).weighted:
            mixing = "uniform"  # as the method has it
    return msgspec.structs.replace(experiment, clock=None, algorithm=algorithm, mixing=mixing)


def _fastest(work: Callable[[], object]) -> float:
    """Seconds; the first time is not counted, because it is slower."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        work()
        _settle()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def _settle() -> None:
    """Wait for a GPU, which does not wait for what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _tensors_on_gpu(device: torch.device) -> int | None:
    """Bytes of all tensors on a GPU, from which on the most is noted; None on another device."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _on_gpu(setup: Setup, learner: Learner, before: int, rows: int, threads: int) -> GpuCost:
    """What training and evaluating so many rows has taken, beside the bytes of tensors that were there before."""
    device, nature = setup.task.device, setup.task.nature
    free, capacity = torch.cuda.mem_get_info(device)
    most = torch.cuda.max_memory_allocated(device)
    unit = GpuCost(capacity, 0, 1, len(setup.initial), learner.strategy == "stacked", nature.products > 0)
    at_once = unit.working(rows, threads)
    taken = math.ceil((most - before) / at_once)
    return msgspec.structs.replace(unit, context=max(0, capacity - free - most), row=taken)


def _parameters(experiment: Experiment, data: Dataset) -> int:
    return sum(p.numel() for p in initial_module(experiment, data, Streams(experiment.seeds[0])).parameters())


def _peak() -> int:
    """The peak memory of this process; 0 if unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else 1024 * found
