"""The interface of algorithms: two pure steps around one exchange, over the rows of the hosted nodes. Nothing in it depends on where it runs.

    init(x)                      -> state
    local_update(state, learner, context) -> state, message, loss     train locally, return what to send
    aggregate(state, inbox)               -> state                    combine with what arrived

A message consists of the columns that the algorithm declares; wire format, byte counts and checkpoints follow from the declaration. State and message are
mappings of named tensors with a leading axis of hosted nodes. `local_update` and `aggregate` may reuse the memory of their arguments.

Shapes: k hosted nodes, d numbers of a model, r local steps, b samples of a batch, h messages received.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import msgspec
import torch
from torch import Tensor

from epidemic.aggregation import Heard
from epidemic.algorithms.optimisers import OptimizerSteps, as_said, made_optimizer, optimizer_from
from epidemic.algorithms.schedules import schedule_from
from epidemic.compression import Codec
from epidemic.core.errors import BadInput, EpidemicError, require_choice, require_int, require_real
from epidemic.core.settings import Settings
from epidemic.learner import Learner, Optimiser, Rate, with_rate

Rows = dict[str, Tensor]
"""Named tensors, one row per hosted node.   # (k, d) or (k,) each"""

WIDTH = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Types of numbers that can be sent, and their bytes."""

SAMPLINGS = ("replacement", "epoch")

LARGE_FOR_ADAM = 0.02
"""Learning rates above it, good ones for SGD among them, are rarely meant for Adam."""


@dataclass(frozen=True)
class Column:
    """One named part of a message."""

    name: str
    shape: tuple[int, ...]
    """Of one node's part: (d,) for something like a model, () for a single number."""
    dtype: str

    def __post_init__(self) -> None:
        require_choice(f"the type of column {self.name!r}", self.dtype, WIDTH)

    @property
    def bytes(self) -> int:
        """The size of the column's numbers in bytes."""
        return math.prod(self.shape) * WIDTH[self.dtype]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of its numbers in PyTorch."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found


@dataclass(frozen=True, eq=False)
class RoundContext:
    """A round, as the hosted nodes that take part see it before it happens."""

    round: int
    index: Tensor  # (k, r, b) the samples to train on
    seeds: Sequence[int]  # one for each, for models that draw random numbers
    out_degree: Tensor  # (k,) to how many others each sends its message
    trainings: Sequence[int] | None = None  # (k,) without rounds: how many each has behind it


class Inbox(Protocol):
    """What k receivers hold after an exchange. Nothing is computed before it is asked for."""

    def own(self, column: str) -> Tensor:
        """Each node's own part, as it counts in the averages.   # (k, d)"""
        ...

    def aggregate(self, column: str) -> Tensor:
        """Each node's own part and its messages, combined by the experiment's [aggregation]: by default `mean`.   # (k, d)"""
        ...

    def mean(self, column: str) -> Tensor:
        """Each node's own part and its messages, averaged by the round's mixing weights.   # (k, d)"""
        ...

    def sum(self, column: str) -> Tensor:
        """Each node's own part plus its messages.   # (k, d)"""
        ...

    def each(self, column: str) -> Iterator[Heard]:
        """The single messages, receiver by receiver."""
        ...


class Defaults:
    """Defaults of most algorithms: the message is the model "x", which is also evaluated and adopted."""

    __slots__ = ()

    aggregates = False
    """Whether it combines messages by `inbox.aggregate` (or `context.aggregate`), so that any [aggregation] works. Methods that need exact sums do not."""
    exact_exchange = False
    """Whether a message that does not arrive breaks it; nodes then need network.close.kind = "barrier"."""
    balanced = False
    """Whether every node must have the same total weight in every round (a doubly stochastic matrix)."""
    symmetric_weights = False
    """Whether any two nodes must give each other the same weight in every round (a symmetric matrix)."""
    own_weights: ClassVar[bool] = False
    """Whether it sets its own weights, so that a mixing rule would have no effect."""
    same_neighbours: ClassVar[bool] = False
    """Whether it needs the same neighbours in all rounds."""
    natural_mixing: ClassVar[str | None] = None
    """The mixing rule that it needs on every topology; None: that of the topology."""
    own_training: ClassVar[bool] = False
    """Whether somebody's own script trains, so that an experiment has neither data nor a model."""
    sampling: str = "replacement"
    compressor: Codec | None = None
    """The codec of an algorithm that sends compressed differences, which the sender applies to itself as well."""

    def columns(self, size: int, dtype: str) -> tuple[Column, ...]:
        """What a message consists of, for models of `size` numbers."""
        return (Column("x", (size,), dtype),)

    def model(self, state: Rows) -> Tensor:
        """The models that are evaluated and kept at the end.   # (k, d)"""
        return state["x"]

    def give(self, state: Rows) -> Rows:
        """What a returning node gets from another one: the columns of a message."""
        return {"x": state["x"]}

    def adopt(self, state: Rows, given: Rows) -> Rows:
        """The state of nodes that take the models of others; what belongs to one node only (momentum) stays."""
        return {**state, "x": given["x"]}


@runtime_checkable
class Algorithm(Protocol):
    """What the engine and a deployed node ask of an algorithm; deriving from `Defaults` leaves init, local_update and aggregate to write."""

    @property
    def local_steps(self) -> int:
        """Local steps per round."""
        ...

    @property
    def batch_size(self) -> int:
        """Samples per local step."""
        ...

    def columns(self, size: int, dtype: str) -> tuple[Column, ...]:
        """The columns of a message, for models of `size` numbers."""
        ...

    def init(self, x: Tensor) -> Rows:
        """The state of nodes with these initial models.   # (k, d)"""
        ...

    def local_update(self, state: Rows, learner: Learner, context: RoundContext) -> tuple[Rows, Rows, Tensor]:
        """Train: the new state, the message by column, the training loss of each.   # loss (k,)"""
        ...

    def aggregate(self, state: Rows, inbox: Inbox) -> Rows:
        """The new state, from the old one and the inbox."""
        ...

    def model(self, state: Rows) -> Tensor:
        """The models that are evaluated.   # (k, d)"""
        ...

    def give(self, state: Rows) -> Rows:
        """What a returning node gets from another one."""
        ...

    def adopt(self, state: Rows, given: Rows) -> Rows:
        """The state after taking another node's model."""
        ...


def check_algorithm(algorithm: Algorithm, topology: Any, mixing: str) -> None:
    """Raise BadInput if the algorithm's settings are invalid or do not fit the topology and the mixing rule."""
    require_int("algorithm.local_steps", algorithm.local_steps, 1)
    require_int("algorithm.batch_size", algorithm.batch_size, 1)
    require_choice("algorithm.sampling", getattr(algorithm, "sampling", "replacement"), SAMPLINGS)
    check = getattr(algorithm, "check", None)
    if check is None:
        return
    try:
        check(topology, mixing)
    except EpidemicError:
        raise
    except Exception as problem:
        raise BadInput(
            f"algorithm: check failed: {type(problem).__name__}: {' '.join(str(problem).split())}"
        ) from problem


def cautions(algorithm: Algorithm, topology: Any) -> list[str]:
    """What a user should know about this algorithm on this topology, a line each."""
    warn = getattr(algorithm, "cautions", None)
    return [] if warn is None else list(warn(topology))


class LocalTraining(Defaults, Settings, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """The settings of every algorithm that trains by mini-batches of the node's own data."""

    lr: float = 0.05
    local_steps: int = 1
    batch_size: int = 8
    momentum: float = 0.0
    weight_decay: float = 0.0
    sampling: Literal["replacement", "epoch"] = "replacement"
    """replacement: every batch is drawn anew from the node's data, as the theory has it. epoch: the node goes through its data
    in a random order, then through it again in another one, as the authors' program does."""
    optimizer: Any = "sgd"
    """sgd, adam or adamw, by name, or a table with its settings."""
    nesterov: bool = False
    """Whether momentum is Nesterov's."""
    clip: float | None = None
    """The largest length of a node's gradient in a step; longer ones are shortened to it. None: any length."""
    schedule: Any = None
    """How the learning rate changes from round to round; None: never."""

    def __post_init__(self) -> None:
        require_real("algorithm.lr", self.lr, above=0)
        require_int("algorithm.local_steps", self.local_steps, 1)
        require_int("algorithm.batch_size", self.batch_size, 1)
        require_real("algorithm.momentum", self.momentum, 0, 1)
        require_real("algorithm.weight_decay", self.weight_decay, 0)
        require_choice("algorithm.sampling", self.sampling, SAMPLINGS)
        if not isinstance(self.nesterov, bool):
            raise BadInput(f"algorithm.nesterov = {self.nesterov!r} must be true or false")
        if self.clip is not None:
            require_real("algorithm.clip", self.clip, above=0)
        if self.schedule is not None:
            msgspec.structs.force_setattr(self, "schedule", schedule_from(self.schedule))
        msgspec.structs.force_setattr(self, "optimizer", as_said(optimizer_from(self.optimizer)))
        self.check_steps()

    def check_steps(self) -> None:
        """Refuse settings of the steps that do not fit each other."""
        optimizer_from(self.optimizer).check(self._steps)

    def cautions(self, topology: Any) -> list[str]:
        """Warnings about settings that are allowed but unwise."""
        if self.step.remembers[:1] != ("moment",) or self.lr <= LARGE_FOR_ADAM:
            return []
        return [
            f"algorithm.lr = {self.lr:g} is large for Adam, which moves every number by about lr in a step; 0.001 is usual"
        ]

    @property
    def _steps(self) -> OptimizerSteps:
        return OptimizerSteps(self.lr, self.momentum, self.nesterov, self.weight_decay, self.clip)

    @property
    def called(self) -> str:
        """The kind by which experiment files name it."""
        return str(self.__struct_config__.tag or type(self).__name__)

    @property
    def step(self) -> Optimiser:
        """One step of the optimiser, at the full learning rate."""
        return made_optimizer(self.optimizer).step(self._steps)

    def factor(self, round: int) -> float:
        """What the learning rate is multiplied with in a round."""
        return 1.0 if self.schedule is None else float(self.schedule.factor(round))

    def rate(self, context: RoundContext) -> Rate:
        """The learning rate of a turn; without rounds each node has its own.   # or (k,)"""
        if self.schedule is None:
            return self.lr
        if context.trainings is None:
            return self.lr * self.factor(context.round)
        return torch.tensor([self.lr * self.factor(count) for count in context.trainings], dtype=torch.float64)

    def with_memory(self, state: Rows) -> Rows:
        """The state with what the optimiser remembers of each node (velocity, moments); that is its own and never sent."""
        return {**state, **self.step.memory(state["x"])}

    def train(self, x: Tensor, state: Rows, learner: Learner, context: RoundContext) -> Tensor:
        """Do the local steps on the rows of x in place, and return the loss of each.   # (k, d) -> (k,)"""
        step = self.step
        if self.schedule is not None:
            step = with_rate(step, self.rate(context))
        memory = {name: state[name] for name in step.remembers}
        return learner.sgd(x, context.index, step, list(context.seeds), memory)
