"""What one experiment would take: memory, bytes and time, in one process, on ranks or on GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import msgspec
import torch

from epidemic.core.errors import BadInput, argument, require_int
from epidemic.core.memory import machine_memory
from epidemic.core.workers import available_threads
from epidemic.data import IID, Dataset
from epidemic.estimate.measuring import (
    Exchanging,
    SampleSizes,
    TrainingCost,
    exchange_of,
    in_rounds,
    learning_of,
    sent_in_rounds,
    source_of,
    stand_in,
    watched_of,
)
from epidemic.experiment import Experiment
from epidemic.learner import Choice
from epidemic.runtime.mixing_arithmetic import columns_for
from epidemic.runtime.setup import prepare
from epidemic.runtime.tensor_files import PIECE
from epidemic.sharding.communicator import LIMIT
from epidemic.simulator.on_ranks import refuse_prepared
from epidemic.simulator.sharing import check_sharing, check_strategy

# -- The memory of a rank, counted: on processors, or on a GPU and in the process that drives it; and how many ranks it takes to fit --
# On a GPU, what is computed with lies in its memory: the state of the rank's nodes, mixtures, samples, what is on its way to others (nccl), columns of all models in
# double precision, and pieces that are handed over to be saved. The process keeps the samples as they were read, and everything that is read from a
# checkpoint or written into one goes through its memory.


class MemoryEstimate(msgspec.Struct, frozen=True):
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
        """The largest sum of parts that exist at the same time, in bytes."""
        at_work = self.share + max(self.evaluation, self.exchange, self.saving)
        return self.program + max(self.data + self.loading, at_work)


class GpuMemory(msgspec.Struct, frozen=True):
    """Bytes of a GPU that a rank needs. Training, evaluation, exchange and saving take theirs in turn."""

    state: int
    mixtures: int
    data: int  # training samples of its own nodes, all test samples, and those that are evaluated while training once more
    working: int  # what training and evaluating take for a moment, measured
    evaluation: int  # some columns of all models in double precision, for their disagreement
    exchange: int
    saving: int
    context: int  # CUDA and its libraries, measured

    @property
    def total(self) -> int:
        """The largest sum of parts that exist at the same time, in bytes."""
        in_turn = max(self.working, self.evaluation, self.exchange, self.saving)
        return self.context + self.state + self.mixtures + self.data + in_turn


class HostMemory(msgspec.Struct, frozen=True):
    """Bytes of the process that drives a GPU."""

    data: int  # the same samples as they were read
    loading: int  # all others, while they are read and cut
    going_on: int  # the state of its nodes, when it is read from a checkpoint
    saving: int  # pieces of the models, when they are written
    program: int

    @property
    def total(self) -> int:
        """The largest sum of parts that exist at the same time, in bytes."""
        return self.program + self.data + max(self.loading, self.going_on, self.saving)


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """What an experiment would take on GPUs like the one that was measured, a rank on each."""

    count: int  # for which the rest is said
    memory_of_each: int  # that it has
    memory: GpuMemory  # that a rank needs of it
    memory_in_all: int
    host: HostMemory  # that the process of a rank needs besides
    host_in_all: int
    fits: bool
    to_fit: int | None  # the fewest that would; None: not with any number of them
    least: int  # bytes of each that it takes with as many as may be


def memory_of(experiment: Experiment, learning: TrainingCost, samples: SampleSizes, ranks: int) -> MemoryEstimate:
    """Of each of so many ranks on processors: a share of the nodes and of the training samples, and what every process has."""
    n = experiment.nodes
    rows = math.ceil(n / ranks)
    block = n * min(learning.parameters, columns_for(n))  # numbers of all models that are looked at together
    # One process has them already, and each thread a block in double precision. A rank has one block, which it receives in pieces.
    alone = 8 * block * threads_of(experiment)
    mixed, every = rows * learning.message_bytes, n * learning.message_bytes
    return MemoryEstimate(
        state=rows * learning.row_bytes,
        mixtures=mixed,
        data=math.ceil(samples.train / ranks) + samples.test,
        loading=0 if ranks == 1 else samples.train,
        evaluation=alone if ranks == 1 else (4 + 8) * block + 3 * min(4 * block, LIMIT),
        exchange=0 if ranks == 1 else 4 * min(mixed, LIMIT),
        saving=min(every, PIECE) if ranks == 1 else 3 * min(every, LIMIT),
        program=learning.program,
    )


def gpu_memory_of(experiment: Experiment, learning: TrainingCost, samples: SampleSizes, ranks: int) -> GpuMemory:
    """Of each of so many GPUs with a rank each."""
    assert learning.gpu is not None
    rows, threads = math.ceil(experiment.nodes / ranks), threads_of(experiment)
    process = memory_of(experiment, learning, samples, ranks)
    return GpuMemory(
        state=process.state,
        mixtures=process.mixtures,
        data=process.data + samples.evaluated,
        working=learning.gpu.working(rows, threads),
        evaluation=process.evaluation,
        exchange=process.exchange,
        saving=0 if ranks == 1 else process.saving,  # a rank alone hands over rows as they are
        context=learning.gpu.context,
    )


def host_memory_of(experiment: Experiment, learning: TrainingCost, samples: SampleSizes, ranks: int) -> HostMemory:
    """Of the process of each of so many ranks, each with a GPU."""
    process = memory_of(experiment, learning, samples, ranks)
    every = experiment.nodes * learning.row_bytes
    return HostMemory(
        data=process.data,
        loading=process.loading,
        going_on=process.state + (min(every, PIECE) if ranks == 1 else 3 * min(every, LIMIT)),
        saving=min(every, PIECE if ranks == 1 else LIMIT),
        program=learning.program,
    )


def threads_of(experiment: Experiment) -> int:
    """Threads of a process: those that the experiment asks for, or one per core."""
    return experiment.runtime.threads or available_threads()


def fewest_ranks(takes: Callable[[int], int], most: int, available: int) -> int | None:
    """The fewest ranks, at most so many, with which each takes no more than that; None: not with any number of them.

    `takes` says what each of so many ranks needs. From two on it falls with their number, so it is found by halving; one, which has nothing on its way to
    others, is asked apart.
    """
    if takes(1) <= available:
        return 1
    low, high = 2, most
    if high < low or takes(high) > available:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if takes(middle) <= available else (middle + 1, high)
    return low


class RunEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What an experiment will cost: time, memory, bytes sent and disk, as `epidemic plan` prints it."""

    nodes: int
    rounds: int
    seeds: int
    parameters: int
    ranks: int
    memory: MemoryEstimate  # of each rank, on processors
    memory_in_all: int  # of each rank
    machine_memory: int | None
    ranks_to_fit: int | None  # on machines like this one, a rank on each; None: not with any number of them
    # bytes that the busiest rank sends to others or receives, by the way that is chosen for the first round
    exchanged_per_round: int
    sent_per_round: float | None  # bytes of a node, mean
    sent_per_node: float | None  # by the end, one seed
    sent_in_all: float | None  # all nodes, one seed
    seconds_per_round: float  # in one process here
    seconds_per_evaluation: float
    seconds: float  # all seeds
    measured_on: str  # the type of the device of this machine that was timed
    gpus: Gpus | None = None  # if GPUs were asked about
    notes: list[str]


def plan(experiment: Experiment, ranks: int | None = None, *, gpus: bool = False) -> RunEstimate:
    """What an experiment would take in so many processes, or on GPUs like that of this machine; times are those of one process here."""
    require_int(argument("ranks"), 1 if ranks is None else ranks, 1)
    if gpus:
        experiment = _on_the_gpu(experiment)
    n = experiment.nodes
    if ranks is not None and ranks > 1:
        check_sharing(experiment, ranks)
    notes: list[str] = []
    source = source_of(experiment)
    data = source.data
    if data is None:
        notes.append(
            "the data is not there: times are of random samples of its shape, and its size is known only about"
        )
        data = stand_in(experiment)
        experiment = msgspec.structs.replace(experiment, data=data, partition=IID())
    elif not gpus and ranks is not None and ranks > 1:
        check_strategy(experiment, data)
    learning = learning_of(experiment, data)
    found = _on_gpus(experiment, data, learning, source.sizes, ranks, notes) if gpus else None
    count = (ranks or 1) if found is None else found.count
    exchange = exchange_of(experiment, learning, count)
    if exchange is None:
        notes.append("a method without rounds: messages, and models under way, are not counted; see epidemic timeline")
    memory = memory_of(experiment, learning, source.sizes, count)
    available = machine_memory()
    takes = partial(_total, experiment, learning, source.sizes)
    sent = None
    if exchange is not None:
        sent = sent_in_rounds(in_rounds(experiment), learning.message_sizes, learning.model_bytes)
    per_round, per_evaluation, in_all = seconds_of(experiment, learning, exchange, source.evaluated, source.tests)
    return RunEstimate(
        nodes=n,
        rounds=experiment.rounds,
        seeds=len(experiment.seeds),
        parameters=learning.parameters,
        ranks=count,
        memory=memory,
        memory_in_all=memory.total,
        machine_memory=available,
        ranks_to_fit=None if available is None else fewest_ranks(takes, n, available),
        exchanged_per_round=0 if exchange is None else exchange.between_ranks,
        sent_per_round=None if sent is None else sent / max(experiment.rounds, 1),
        sent_per_node=sent,
        sent_in_all=None if sent is None else sent * n,
        seconds_per_round=per_round,
        seconds_per_evaluation=per_evaluation,
        seconds=in_all,
        measured_on=learning.device,
        gpus=found,
        notes=notes,
    )


def seconds_of(
    experiment: Experiment, learning: TrainingCost, exchange: Exchanging | None, evaluated: int, tests: int
) -> tuple[float, float, float]:
    """Of a round, of an evaluation while training, and of all seeds."""
    n, watched = experiment.nodes, watched_of(experiment, evaluated)
    per_round = n * learning.train + (0.0 if exchange is None else exchange.seconds)
    per_sample = (n + 1) * learning.evaluate  # all models, and their average
    rounds, evaluations = experiment.rounds, experiment.rounds // experiment.eval.every
    whole = rounds * per_round + per_sample * (evaluations * watched + tests)
    return per_round, per_sample * watched, len(experiment.seeds) * whole


def _total(experiment: Experiment, learning: TrainingCost, samples: SampleSizes, ranks: int) -> int:
    return memory_of(experiment, learning, samples, ranks).total


def _on_the_gpu(experiment: Experiment) -> Experiment:
    """The same on the GPU of this machine."""
    if not torch.cuda.is_available():
        raise BadInput("--gpus measures on a GPU, and there is none here; run this command where there is one")
    runtime = msgspec.structs.replace(experiment.runtime, device="cuda")
    return msgspec.structs.replace(experiment, runtime=runtime)


def _on_gpus(
    experiment: Experiment,
    data: Dataset,
    learning: TrainingCost,
    samples: SampleSizes,
    asked: int | None,
    notes: list[str],
) -> Gpus:
    """What it takes on so many GPUs like this one, or on as many as it takes."""
    assert learning.gpu is not None
    capacity = learning.gpu.capacity

    def takes(ranks: int) -> int:
        return gpu_memory_of(experiment, learning, samples, ranks).total

    refused = _why_not_shared(experiment, data, learning)
    if refused is not None and asked is not None and asked > 1:
        raise refused
    most = 1 if refused is not None else experiment.nodes
    to_fit = fewest_ranks(takes, most, capacity)
    count = asked or to_fit or 1
    memory = gpu_memory_of(experiment, learning, samples, count)
    host = host_memory_of(experiment, learning, samples, count)
    if refused is not None and to_fit is None:
        notes.append(f"one GPU is all that it can have: {refused}")
    return Gpus(
        count=count,
        memory_of_each=capacity,
        memory=memory,
        memory_in_all=memory.total,
        host=host,
        host_in_all=host.total,
        fits=memory.total <= capacity,
        to_fit=to_fit,
        least=min(takes(1), takes(most)),
    )


def _why_not_shared(experiment: Experiment, data: Dataset, learning: TrainingCost) -> BadInput | None:
    """Why several GPUs could not share it; None if they could."""
    assert learning.gpu is not None
    strategy = "stacked" if learning.gpu.stacked else "per-node"
    try:
        check_sharing(experiment, min(2, experiment.nodes))
        task = prepare(in_rounds(experiment), experiment.seeds[0], data, [0]).task
        refuse_prepared(task, Choice(strategy, "", task.nature.random))
    except BadInput as problem:
        return problem
    return None
