"""A user's own algorithm, named in a file: kind = "python"."""

from __future__ import annotations

from functools import cached_property
from types import CodeType
from typing import Any

import msgspec
from torch import Tensor

from epidemic.algorithms.asynchronous import AsynchronousMethod
from epidemic.algorithms.base import Algorithm, Column, Inbox, RoundContext, Rows, cautions, check_algorithm
from epidemic.compression import Codec
from epidemic.core.config import call_own, import_object
from epidemic.core.errors import BadInput
from epidemic.core.settings import Settings
from epidemic.learner import Learner


class PythonAlgorithm(Settings, frozen=True, dict=True, tag_field="kind", tag="python", forbid_unknown_fields=True):
    """`factory` = "module:name" is called with `options` and returns an algorithm."""

    factory: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    @cached_property
    def made(self) -> Algorithm:
        """Call the factory and return the user's algorithm."""
        where = f"algorithm.factory = {self.factory!r}"
        found = call_own(import_object(self.factory, "algorithm.factory"), self.options, where)
        if isinstance(found, type) or not isinstance(found, Algorithm):
            what = found.__name__ if isinstance(found, type) else type(found).__name__
            raise BadInput(f"{where} must return an algorithm, not {what}: {MISSING}")
        return found

    @property
    def local_steps(self) -> int:
        """The value of the user's object."""
        return self.made.local_steps

    @property
    def batch_size(self) -> int:
        """The value of the user's object."""
        return self.made.batch_size

    @property
    def sampling(self) -> str:
        """The value of the user's object."""
        return getattr(self.made, "sampling", "replacement")

    @property
    def natural_mixing(self) -> str | None:
        """The value of the user's object."""
        return getattr(self.made, "natural_mixing", None)

    @property
    def aggregates(self) -> bool:
        """The value of the user's object."""
        return bool(getattr(self.made, "aggregates", False))

    @property
    def exact_exchange(self) -> bool:
        """The value of the user's object."""
        return bool(getattr(self.made, "exact_exchange", False))

    @property
    def own_weights(self) -> bool:
        """The value of the user's object."""
        return bool(getattr(self.made, "own_weights", False))

    @property
    def same_neighbours(self) -> bool:
        """The value of the user's object."""
        return bool(getattr(self.made, "same_neighbours", False))

    @property
    def balanced(self) -> bool:
        """The value of the user's object."""
        return bool(getattr(self.made, "balanced", False))

    @property
    def symmetric_weights(self) -> bool:
        """As the user's object has it."""
        return bool(getattr(self.made, "symmetric_weights", False))

    @property
    def compressor(self) -> Codec | None:
        """The value of the user's object."""
        return getattr(self.made, "compressor", None)

    def check(self, topology: Any, mixing: str) -> None:
        """Raise BadInput unless the factory returns an algorithm that fits the topology and the mixing rule."""
        check_algorithm(self.made, topology, mixing)

    def cautions(self, topology: Any) -> list[str]:
        """The warnings of the user's object."""
        return cautions(self.made, topology)

    def columns(self, size: int, dtype: str) -> tuple[Column, ...]:
        """The columns of the user's object."""
        return self.made.columns(size, dtype)

    def init(self, x: Tensor) -> Rows:
        """Call the user's object."""
        return self.made.init(x)

    def local_update(self, state: Rows, learner: Learner, context: RoundContext) -> tuple[Rows, Rows, Tensor]:
        """Call the user's object."""
        return self.made.local_update(state, learner, context)

    def aggregate(self, state: Rows, inbox: Inbox) -> Rows:
        """Call the user's object."""
        return self.made.aggregate(state, inbox)

    def model(self, state: Rows) -> Tensor:
        """Call the user's object."""
        return self.made.model(state)

    def give(self, state: Rows) -> Rows:
        """Call the user's object."""
        return self.made.give(state)

    def adopt(self, state: Rows, given: Rows) -> Rows:
        """Call the user's object."""
        return self.made.adopt(state, given)


def asked_for(algorithm: Any) -> frozenset[str]:
    """The names of attributes that `aggregate` of a user's own algorithm uses, its helpers in the same module and class included.

    It shows before anything runs whether the algorithm asks its inbox for `each` or `sum`. Built-in algorithms, which declare what they need, give none.
    """
    own = type(algorithm.made if isinstance(algorithm, PythonAlgorithm) else algorithm)
    names: set[str] = set()
    waiting: list[Any] = [getattr(own, "aggregate", None)]
    seen: set[int] = set()
    while waiting:
        code = getattr(waiting[-1], "__code__", None)
        function = waiting.pop()
        if code is None or id(code) in seen or str(getattr(function, "__module__", "")).split(".")[0] == "epidemic":
            continue
        seen.add(id(code))
        used: set[str] = set()
        parts: list[CodeType] = [code]
        while parts:  # with what is written inside of it: generators, lambdas
            part = parts.pop()
            used.update(part.co_names)
            parts += [one for one in part.co_consts if isinstance(one, CodeType)]
        names |= used
        waiting += [found for name in used for found in (getattr(own, name, None), function.__globals__.get(name))]
    return frozenset(names)


def asynchronous_method(algorithm: Any) -> AsynchronousMethod | None:
    """The method without rounds that an algorithm is, a user's own by name included; None if it has rounds."""
    found = algorithm.made if isinstance(algorithm, PythonAlgorithm) else algorithm
    return found if isinstance(found, AsynchronousMethod) else None


MISSING = "it needs local_steps, batch_size, init, local_update and aggregate (and columns, model, give, adopt, which ep.Defaults has)"
"""What an object must have to be an algorithm, for people."""
