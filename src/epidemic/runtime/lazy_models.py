"""Promises: models that will be known when somebody has to know them.

What nodes do under a clock is decided without looking at a number of any model, so that it can be decided first and computed later:
everything that has come together by then, in batches. A promise never changes; what it stands for is the same however many are computed
at once.

  Given        known from the start
  Mixture      a weighted sum of promises, added in the order of its terms
  Aggregate    what an aggregator that is no average makes of promises
  Patch        a promise with some of its parts replaced by weighted sums
  Cut          one part of a promise
  Training     what the local steps of a node make of a promise

Rounds under a clock have two more kinds, in `simulator/round_promises.py`.
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
"""Numbers that a thread is given to add before it is asked again."""

WeightedModels = Sequence[tuple[float, "LazyModel"]]


class LazyModel:
    """Something that is computed when it is needed."""

    __slots__ = ("__weakref__", "id", "value")

    def __init__(self) -> None:
        self.id = -1
        self.value: Any = None

    def needs(self) -> Iterable[LazyModel]:
        """What must be known before."""
        return ()

    def forget_needs(self) -> None:
        """It is known now: nothing else is held any more for its sake."""

    @property
    def together(self) -> tuple[Any, ...]:
        """Promises that have this in common may be computed in one batch."""
        return (type(self).__name__,)


class GivenModel(LazyModel):
    """A row that is known.   # (d,)"""

    __slots__ = ()

    def __init__(self, value: Tensor | None) -> None:
        super().__init__()
        self.value = value


class LazyMixture(LazyModel):
    """A weighted sum.   # (d,)"""

    __slots__ = ("terms",)

    def __init__(self, terms: WeightedModels) -> None:
        super().__init__()
        self.terms: WeightedModels = terms

    def needs(self) -> Iterable[LazyModel]:
        """Its terms."""
        return [row for _, row in self.terms]

    def forget_needs(self) -> None:
        """The terms are not needed any more."""
        self.terms = ()


class LazyAggregate(LazyModel):
    """What a node's aggregator makes of its own model and those that it received.   # (d,)"""

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
        """Rows, senders and ages (microseconds) by message; `weights`: the own one first."""
        super().__init__()
        self.rule = rule
        self.own: LazyModel | None = own
        self.rows, self.senders, self.weights, self.ages = rows, senders, weights, ages

    def needs(self) -> Iterable[LazyModel]:
        """The own model and those received."""
        return () if self.own is None else (self.own, *self.rows)

    def forget_needs(self) -> None:
        """The models are not needed any more."""
        self.own, self.rows = None, ()

    def computed(self) -> Tensor:
        """The numbers, of models that are known.   # (d,)"""
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
    """What a node without rounds makes of its own model and of messages that carry whole ones.

    Args:
        rule: The experiment's aggregator.
        own: Its own model.
        messages: By ascending sender.
        weights: How much each counts, its own first; none: all alike.
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
    """A row of which some parts are replaced by weighted sums.   # (d,)"""

    __slots__ = ("base", "parts")

    def __init__(self, base: LazyModel, parts: Mapping[int, WeightedModels]) -> None:
        super().__init__()
        self.base: LazyModel | None = base
        self.parts: Mapping[int, WeightedModels] = parts

    def needs(self) -> Iterable[LazyModel]:
        """The base and all terms."""
        found = [row for terms in self.parts.values() for _, row in terms]
        return found if self.base is None else [self.base, *found]

    def forget_needs(self) -> None:
        """Base and terms are not needed any more."""
        self.base, self.parts = None, {}


class LazyCut(LazyModel):
    """One part of a row.   # (d / parts,)"""

    __slots__ = ("part", "row")

    def __init__(self, row: LazyModel, part: int) -> None:
        super().__init__()
        self.row: LazyModel | None = row
        self.part = part

    def needs(self) -> Iterable[LazyModel]:
        """The whole row."""
        return () if self.row is None else (self.row,)

    def forget_needs(self) -> None:
        """The whole row is not needed any more."""
        self.row = None


class LazyTraining(LazyModel):
    """What a node's count-th training makes of a row; where the optimiser remembers, the one before goes first.   # (d,)"""

    __slots__ = ("before", "count", "loss", "node", "start")

    def __init__(self, node: int, count: int, start: LazyModel, before: LazyTraining | None) -> None:
        super().__init__()
        self.node, self.count = node, count
        self.start: LazyModel | None = start
        self.before: LazyTraining | None = before
        self.loss: float | None = None

    def needs(self) -> Iterable[LazyModel]:
        """The row that it starts from, and the training before."""
        return [one for one in (self.start, self.before) if one is not None]

    def forget_needs(self) -> None:
        """Neither is needed any more."""
        self.start = self.before = None


Work = Callable[[list[Any]], None]
"""Computes promises of one kind, whose needs are known."""


class LazyModels:
    """All promises of a run: numbered as they are made, computed in batches."""

    def __init__(self, *, dry: bool = False) -> None:
        """`dry`: nothing is ever computed."""
        self.dry = dry
        self.made = 0
        self.waiting = 0  # trainings that are not computed yet
        self._pending: list[LazyModel] = []
        self._live: weakref.WeakValueDictionary[int, LazyModel] = weakref.WeakValueDictionary()
        self._work: dict[str, Work] = {}

    def computes(self, kind: type[LazyModel], work: Work) -> None:
        """Say who computes a kind."""
        self._work[kind.__name__] = work

    def new(self, lazy_model: Any) -> Any:
        """Take a promise in."""
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
        """Compute everything, in as few batches as there are steps from one promise to the next."""
        level: dict[int, int] = {}
        batches: dict[tuple[Any, ...], list[LazyModel]] = {}
        for lazy_model in self._pending:  # in the order in which they were made: needs come first
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
        """Those that somebody still holds, by number; all are known after `settle`."""
        return iter(sorted(self._live.values(), key=lambda one: one.id))

    def forget_pending(self) -> None:
        """What was promised so far is known from elsewhere."""
        for lazy_model in self._pending:
            lazy_model.forget_needs()
        self._pending.clear()
        self.waiting = 0


class Arithmetic:
    """Mixtures, patches and cuts."""

    def __init__(self, lazy_models: LazyModels, workers: Workers, parts: Sequence[Tensor] = ()) -> None:
        """`parts`: which numbers of a row belong to each part."""
        self._workers = workers
        self._parts = parts
        lazy_models.computes(LazyMixture, self._mixtures)
        lazy_models.computes(LazyAggregate, self._aggregates)
        lazy_models.computes(LazyPatch, self._patches)
        lazy_models.computes(LazyCut, self._cuts)

    def _each(self, work: Callable[[Any], None], those: list[Any], numbers: int) -> None:
        """Do all of them, each of so many numbers; small ones several at a time, because handing over one would take longer."""

        def some(which: slice) -> None:
            for one in those[which]:
                work(one)

        self._workers.map(some, blocks(len(those), max(1, AT_A_TIME // max(1, numbers))), size=numbers * len(those))

    def _mixtures(self, those: list[LazyMixture]) -> None:
        def one(mixture: LazyMixture) -> None:
            mixture.value = weighted_sum(mixture.terms)

        self._each(one, those, sum(row.value.numel() for _, row in those[0].terms))

    def _aggregates(self, those: list[LazyAggregate]) -> None:
        def one(aggregate: LazyAggregate) -> None:
            aggregate.value = aggregate.computed()

        sizes = [row.value.numel() for row in those[0].needs()]
        self._each(one, those, len(sizes) * sum(sizes))

    def _patches(self, those: list[LazyPatch]) -> None:
        def one(patch: LazyPatch) -> None:
            assert patch.base is not None
            row = patch.base.value.clone()
            for part, terms in patch.parts.items():
                which = self._parts[part]
                row[which] = weighted_sum(terms, which, len(row))
            patch.value = row

        self._each(one, those, 2 * those[0].base.value.numel() if those[0].base is not None else 1)

    def _cuts(self, those: list[LazyCut]) -> None:
        for cut in those:
            assert cut.row is not None
            cut.value = cut.row.value[self._parts[cut.part]]


def weighted_sum(terms: WeightedModels, which: Tensor | None = None, size: int = 0) -> Tensor:
    """The terms by their weights, in their order; of a part, whole rows of `size` numbers are cut.   # (d,)"""

    def numbers(row: LazyModel) -> Tensor:
        value: Tensor = row.value
        return value[which] if which is not None and len(value) == size else value

    (first, row), *rest = terms
    out = torch.mul(numbers(row), first)
    for weight, row in rest:
        add(out, numbers(row), weight)
    return out
