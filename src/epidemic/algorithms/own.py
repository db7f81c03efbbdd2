"""A user's own algorithm, named in a file: kind = "python"."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec
from torch import Tensor

from epidemic.algorithms.base import Algorithm, Column, Inbox, Rows, Turn
from epidemic.config import call_own, import_object
from epidemic.errors import BadInput
from epidemic.learner import Learner


class PythonAlgorithm(
    msgspec.Struct, frozen=True, dict=True, tag_field="kind", tag="python", forbid_unknown_fields=True
):
    """`factory` = "module:name" is called with `options` and returns an algorithm."""

    factory: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    @cached_property
    def made(self) -> Algorithm:
        """The user's object."""
        where = f"algorithm.factory = {self.factory!r}"
        found = call_own(import_object(self.factory, "algorithm.factory"), self.options, where)
        if not isinstance(found, Algorithm):
            raise BadInput(f"{where} must return an algorithm, not {type(found).__name__}: {MISSING}")
        return found

    @property
    def local_steps(self) -> int:
        """As the user's object has it."""
        return self.made.local_steps

    @property
    def batch_size(self) -> int:
        """As the user's object has it."""
        return self.made.batch_size

    @property
    def sampling(self) -> str:
        """As the user's object has it."""
        return getattr(self.made, "sampling", "replacement")

    @property
    def exact_exchange(self) -> bool:
        """As the user's object has it."""
        return bool(getattr(self.made, "exact_exchange", False))

    def columns(self, size: int, dtype: str) -> tuple[Column, ...]:
        """As the user's object has it."""
        return self.made.columns(size, dtype)

    def init(self, x: Tensor) -> Rows:
        """As the user's object has it."""
        return self.made.init(x)

    def emit(self, state: Rows, learner: Learner, turn: Turn) -> tuple[Rows, Rows, Tensor]:
        """As the user's object has it."""
        return self.made.emit(state, learner, turn)

    def absorb(self, state: Rows, inbox: Inbox) -> Rows:
        """As the user's object has it."""
        return self.made.absorb(state, inbox)

    def model(self, state: Rows) -> Tensor:
        """As the user's object has it."""
        return self.made.model(state)

    def give(self, state: Rows) -> Rows:
        """As the user's object has it."""
        return self.made.give(state)

    def adopt(self, state: Rows, given: Rows) -> Rows:
        """As the user's object has it."""
        return self.made.adopt(state, given)


MISSING = "it needs local_steps, batch_size, init, emit and absorb (and columns, model, give, adopt, which ep.algorithms.Defaults has)"
"""What an object must have to be an algorithm, for people."""
