"""The memory of a rank, counted: on processors, or on a GPU and in the process that drives it; and how many ranks it takes to fit.

On a GPU, what is computed with lies in its memory: the state of the rank's nodes, mixtures, samples, what is on its way to others (nccl), columns of all models in
double precision, and pieces that are handed over to be saved. The process keeps the samples as they were read, and everything that is read from a
checkpoint or written into one goes through its memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from epidemic.core.workers import available_threads
from epidemic.estimate.measuring import TrainingCost
from epidemic.estimate.standing_in import SampleSizes
from epidemic.experiment import Experiment
from epidemic.runtime.mixing_arithmetic import columns_for
from epidemic.runtime.tensor_files import PIECE
from epidemic.sharding.communicator import LIMIT


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
        """The most of it that is there at once."""
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
        """The most of it that is there at once."""
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
        """The most of it that is there at once."""
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
    """Of a process: those that the experiment asks for, or as many as there are cores here."""
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
