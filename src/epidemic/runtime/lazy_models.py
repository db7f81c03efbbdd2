"""Lazy models: models that are computed when a number is needed.

What nodes do under a clock is decided without looking at the numbers of any model. So decisions come first and computation later, in batches of
everything collected by then. A lazy model never changes; its value does not depend on how many are computed at once.

  GivenModel     known from the start
  LazyMixture    a weighted sum, added in the order of its terms
  LazyAggregate  the aggregate by a rule that is not an average
  LazyPatch      a model with some of its parts replaced by weighted sums
  LazyCut        one part of a model
  LazyTraining   the result of a node's local steps

Rounds under a clock add two kinds, in `simulator/clocked_rounds.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from epidemic.aggregation import Aggregator, Heard
from epidemic.core.workers import Workers, blocks
from epidemic.protocol.node import Message
from epidemic.runtime.aggregating import aggregate_one
from epidemic.runtime.mixing_arithmetic import add

AT_A_TIME = 250_000
"""Numbers added by a thread per piece of work."""

WeightedModels = Sequence[tuple[float, "LazyModel"]]


class LazyModel:
    """A value that is computed when it is needed."""

    __slots__ = ("__weakref__", "id", "value")

    def __init__(self) -> None:
        self.id = -1
        self.value: Any = None

    def needs(self) -> Iterable[LazyModel]:
        """The lazy models that it depends on."""
        return ()

    def forget_needs(self) -> None:
        """Drop the references to its dependencies, once it is computed."""

    @property
    def together(self) -> tuple[Any, ...]:
        """A key: lazy models of one key may be computed in one batch."""
        return (type(self).__name__,)


class GivenModel(LazyModel):
    """A row that is known already.   # (d,)"""

    __slots__ = ()

    def __init__(self, value: Tensor | None) -> None:
        super().__init__()
        self.value = value


class LazyMixture(LazyModel):
    """A weighted sum of models.   # (d,)"""

    __slots__ = ("terms",)

    def __init__(self, terms: WeightedModels) -> None:
        super().__init__()
        self.terms: WeightedModels = terms

    def needs(self) -> Iterable[LazyModel]:
        """The models of its terms."""
        return [row for _, row in self.terms]

    def forget_needs(self) -> None:
        """Drop the references to its terms."""
        self.terms = ()


class LazyAggregate(LazyModel):
    """The aggregate of a node's own model and those that it received.   # (d,)"""

    __slots__ = ("ages", "own", "rows", "rule", "senders", "weights")

    def __init__(
        self,
        rule: Aggregator,
        own: LazyModel,
        rows: Sequence[LazyModel],
        senders: Sequence[int],
        weights: Sequence[float],
        ages: Sequence[int],
    ) -> None:
        """Start; rows, senders and ages (microseconds) by message; `weights`: own weight first."""
        super().__init__()
        self.rule = rule
        self.own: LazyModel | None = own
        self.rows, self.senders, self.weights, self.ages = rows, senders, weights, ages

    def needs(self) -> Iterable[LazyModel]:
        """The own model and the received ones."""
        return () if self.own is None else (self.own, *self.rows)

    def forget_needs(self) -> None:
        """Drop the references to these models."""
        self.own, self.rows = None, ()

    def computed(self) -> Tensor:
        """Compute the aggregate from known models.   # (d,)"""
        assert self.own is not None
        own: Tensor = self.own.value
        out = torch.empty_like(own)
        senders, ages = (np.array(one, dtype=np.int64) for one in (self.senders, self.ages))
        heard = Heard(own, own, senders, np.array(self.weights, dtype=np.float64), ages)
        aggregate_one(self.rule, own, [row.value for row in self.rows], heard, out)
        return out


def aggregate_of(
    rule: Aggregator, own: LazyModel, messages: Sequence[Message], weights: Sequence[float], now: int
) -> LazyMixture | LazyAggregate:
    """The aggregate of an asynchronous node's own model and whole models in messages.

    Args:
        rule: The experiment's aggregator.
        own: The node's own model.
        messages: Messages in ascending order of senders.
        weights: Weights in an average, own model first; empty: all equal.
        now: Microseconds since the start of the run.
    """
    with_rows = [message for message in messages if message.row is not None]
    rows: list[Any] = [message.row for message in with_rows]
    by = list(weights) or [1 / (1 + len(rows))] * (1 + len(rows))
    if rule.linear:
        return LazyMixture([(share, row) for share, row in zip(by, [own, *rows], strict=True) if share])
    ages = [max(0, now - message.sent_at) for message in with_rows]
    return LazyAggregate(rule, own, rows, [message.sender for message in with_rows], by, ages)


class LazyPatch(LazyModel):
    """A row with some parts replaced by weighted sums.   # (d,)"""

    __slots__ = ("base", "parts")

    def __init__(self, base: LazyModel, parts: Mapping[int, WeightedModels]) -> None:
        super().__init__()
        self.base: LazyModel | None = base
        self.parts: Mapping[int, WeightedModels] = parts

    def needs(self) -> Iterable[LazyModel]:
        """The base and the models of all terms."""
        found = [row for terms in self.parts.values() for _, row in terms]
        return found if self.base is None else [self.base, *found]

    def forget_needs(self) -> None:
        """Drop the references to base and terms."""
        self.base, self.parts = None, {}


class LazyCut(LazyModel):
    """One part of a row.   # (d / parts,)"""

    __slots__ = ("part", "row")

    def __init__(self, row: LazyModel, part: int) -> None:
        super().__init__()
        self.row: LazyModel | None = row
        self.part = part

    def needs(self) -> Iterable[LazyModel]:
        """The row that it is cut from."""
        return () if self.row is None else (self.row,)

    def forget_needs(self) -> None:
        """Drop the reference to the whole row."""
        self.row = None


class LazyTraining(LazyModel):
    """The result of a node's count-th training; if the optimiser has memory, the previous training comes first.   # (d,)"""

    __slots__ = ("before", "count", "loss", "node", "start")

    def __init__(self, node: int, count: int, start: LazyModel, before: LazyTraining | None) -> None:
        super().__init__()
        self.node, self.count = node, count
        self.start: LazyModel | None = start
        self.before: LazyTraining | None = before
        self.loss: float | None = None

    def needs(self) -> Iterable[LazyModel]:
        """The row that it starts from, and the previous training."""
        return [one for one in (self.start, self.before) if one is not None]

    def forget_needs(self) -> None:
        """Drop the references to both."""
        self.start = self.before = None


Work = Callable[[list[Any]], None]
"""Computes lazy models of one kind, whose dependencies are known."""


class LazyModels:
    """All lazy models of a run: numbered as they are created, computed in batches."""

    def __init__(self, *, dry: bool = False) -> None:
        """Start empty; `dry`: nothing is ever computed."""
        self.dry = dry
        self.made = 0
        self.waiting = 0  # trainings not computed yet
        self._pending: list[LazyModel] = []
        self._live: weakref.WeakValueDictionary[int, LazyModel] = weakref.WeakValueDictionary()
        self._work: dict[str, Work] = {}

    def computes(self, kind: type[LazyModel], work: Work) -> None:
        """Register the function that computes a kind of lazy models."""
        self._work[kind.__name__] = work

    def new(self, lazy_model: Any) -> Any:
        """Register a new lazy model and return it."""
        self.made += 1
        if self.dry:
            lazy_model.forget_needs()
        else:
            lazy_model.id = self.made
            self._live[self.made] = lazy_model
            if lazy_model.value is None:
                self._pending.append(lazy_model)
        return lazy_model

    def settle(self) -> None:
        """Compute everything, in as few batches as the dependencies allow."""
        level: dict[int, int] = {}
        batches: dict[tuple[Any, ...], list[LazyModel]] = {}
        for lazy_model in self._pending:  # in order of creation: dependencies come first
            at = 1 + max((level.get(need.id, 0) for need in lazy_model.needs()), default=0)
            level[lazy_model.id] = at
            batches.setdefault((at, *lazy_model.together), []).append(lazy_model)
        for key in sorted(batches, key=lambda key: (key[0], *map(str, key[1:]))):
            self._work[key[1]](batches[key])
            for lazy_model in batches[key]:
                lazy_model.forget_needs()
        self._pending.clear()
        self.waiting = 0

    def known(self) -> Iterator[LazyModel]:
        """The lazy models still referenced, by number; all are computed after `settle`."""
        return iter(sorted(self._live.values(), key=lambda one: one.id))

    def forget_pending(self) -> None:
        """Skip everything not computed yet: the values come from elsewhere."""
        for lazy_model in self._pending:
            lazy_model.forget_needs()
        self._pending.clear()
        self.waiting = 0


class Arithmetic:
    """Computes mixtures, patches and cuts."""

    def __init__(self, lazy_models: LazyModels, workers: Workers, parts: Sequence[Tensor] = ()) -> None:
        """Register with `lazy_models`; `parts`: the coordinates of each part of a row."""
        self._workers = workers
        self._parts = parts
        lazy_models.computes(LazyMixture, self._mixtures)
        lazy_models.computes(LazyAggregate, self._aggregates)
        lazy_models.computes(LazyPatch, self._patches)
        lazy_models.computes(LazyCut, self._cuts)

    def _each(self, work: Callable[[Any], None], batch: list[Any], numbers: int) -> None:
        """Apply `work` to all items of `numbers` numbers each, several small ones per task."""

        def some(which: slice) -> None:
            for one in batch[which]:
                work(one)

        self._workers.map(some, blocks(len(batch), max(1, AT_A_TIME // max(1, numbers))), size=numbers * len(batch))

    def _mixtures(self, batch: list[LazyMixture]) -> None:
        def one(mixture: LazyMixture) -> None:
            mixture.value = weighted_sum(mixture.terms)

        self._each(one, batch, sum(row.value.numel() for _, row in batch[0].terms))

    def _aggregates(self, batch: list[LazyAggregate]) -> None:
        def one(aggregate: LazyAggregate) -> None:
            aggregate.value = aggregate.computed()

        sizes = [row.value.numel() for row in batch[0].needs()]
        self._each(one, batch, len(sizes) * sum(sizes))

    def _patches(self, batch: list[LazyPatch]) -> None:
        def one(patch: LazyPatch) -> None:
            assert patch.base is not None
            row = patch.base.value.clone()
            for part, terms in patch.parts.items():
                which = self._parts[part]
                row[which] = weighted_sum(terms, which, len(row))
            patch.value = row

        self._each(one, batch, 2 * batch[0].base.value.numel() if batch[0].base is not None else 1)

    def _cuts(self, batch: list[LazyCut]) -> None:
        for cut in batch:
            assert cut.row is not None
            cut.value = cut.row.value[self._parts[cut.part]]


def weighted_sum(terms: WeightedModels, which: Tensor | None = None, size: int = 0) -> Tensor:
    """The weighted sum of the terms in their order; for a part, whole rows of `size` numbers are cut.   # (d,)"""

    def numbers(row: LazyModel) -> Tensor:
        value: Tensor = row.value
        return value[which] if which is not None and len(value) == size else value

    (first, row), *rest = terms
    out = torch.mul(numbers(row), first)
    for weight, row in rest:
        add(out, numbers(row), weight)
    return out
