"""What nodes do in a round: two pure steps around one exchange.

An algorithm is a frozen value with three methods over the rows of the hosted nodes; nothing in it asks where it runs.
  init(x)                               -> state
  emit(state, learner, index, seeds)    -> state, message, loss      train locally, say what to send
  absorb(state, mixed)                  -> state                     take the mixture of what arrived

State and message are mappings of named (k, d) tensors; `state["x"]` are the models. `emit` and `absorb` may reuse the memory of
what they are given. A user's own class with these methods works everywhere.

EL-Oracle, EL-Local and D-PSGD on every topology are one algorithm, `LocalSGD`, with different topologies.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import msgspec
import torch
from torch import Tensor

from epidemic.errors import require_choice, require_int, require_real
from epidemic.learner import SGD, Learner

Rows = dict[str, Tensor]
"""Named tensors, one row per hosted node.   # (k, d) each"""

ORDERS = ("adapt-then-combine", "combine-then-adapt")


@runtime_checkable
class Algorithm(Protocol):
    """What the engine and a deployed node ask of an algorithm."""

    local_steps: int
    batch_size: int

    def init(self, x: Tensor) -> Rows:
        """The state of nodes with these initial models.   # (k, d)"""
        ...

    def emit(self, state: Rows, learner: Learner, index: Tensor, seeds: list[int]) -> tuple[Rows, Rows, Tensor]:
        """Train on these samples: the new state, the message, the training loss.   # index (k, r, b), loss (k,)"""
        ...

    def absorb(self, state: Rows, mixed: Rows) -> Rows:
        """Take the mixture of the messages that arrived, one's own included."""
        ...


class LocalSGD(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`local_steps` mini-batch SGD steps, then the average.

    adapt-then-combine: train, then average the trained models (the paper). combine-then-adapt: average the models as they
    were, and add what was learnt from one's own (the original D-PSGD).
    """

    lr: float = 0.05
    local_steps: int = 1
    batch_size: int = 8
    momentum: float = 0.0
    weight_decay: float = 0.0
    order: Literal["adapt-then-combine", "combine-then-adapt"] = "adapt-then-combine"

    def __post_init__(self) -> None:
        require_real("algorithm.lr", self.lr, above=0)
        require_int("algorithm.local_steps", self.local_steps, 1)
        require_int("algorithm.batch_size", self.batch_size, 1)
        require_real("algorithm.momentum", self.momentum, 0, 1)
        require_real("algorithm.weight_decay", self.weight_decay, 0)
        require_choice("algorithm.order", self.order, ORDERS)

    @property
    def step(self) -> SGD:
        """One step of the optimiser."""
        return SGD(self.lr, self.momentum, self.weight_decay)

    def init(self, x: Tensor) -> Rows:
        """No velocity yet; it is each node's own and never sent."""
        return {"x": x, "velocity": torch.zeros_like(x)} if self.momentum else {"x": x}

    def emit(self, state: Rows, learner: Learner, index: Tensor, seeds: list[int]) -> tuple[Rows, Rows, Tensor]:
        """Local SGD."""
        x = state["x"]
        before = x.clone() if self.order == "combine-then-adapt" else None
        loss = learner.sgd(x, index, self.step, seeds, state.get("velocity"))
        if before is None:
            return state, {"x": x}, loss
        return {**state, "learnt": x - before}, {"x": before}, loss

    def absorb(self, state: Rows, mixed: Rows) -> Rows:
        """The mixture is the new model, plus what was learnt where that was not part of it."""
        rest = {name: rows for name, rows in state.items() if name != "learnt"}
        x = mixed["x"]
        return {**rest, "x": x + state["learnt"] if "learnt" in state else x}
