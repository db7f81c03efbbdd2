"""Lazy models of a deployed process: decided, but perhaps not computed yet. Thread-safe.

They are those of `runtime/lazy_models.py`, computed one by one when a number is needed, by the main thread, which trains and evaluates, or by the thread
that sends. A computed model holds no reference to others, so messages are freed as soon as they are part of a model.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from epidemic.aggregation import Aggregator
from epidemic.protocol.node import Message
from epidemic.runtime.aggregating import MEAN
from epidemic.runtime.lazy_models import (
    GivenModel,
    LazyAggregate,
    LazyCut,
    LazyMixture,
    LazyModel,
    LazyPatch,
    aggregate_of,
    weighted_sum,
)


class HostedModels:
    """Makes lazy models from others, and computes them."""

    def __init__(self, parts: Sequence[Tensor] = (), rule: Aggregator = MEAN) -> None:
        """Start; `parts`: coordinates of each part of a model; `rule`: the experiment's aggregator."""
        self._parts = parts
        self._rule = rule
        self._lock = threading.Lock()

    def mix(self, terms: Sequence[tuple[float, Any]]) -> LazyModel:
        """The weighted sum of these models, added in this order."""
        return LazyMixture(terms)

    def aggregate(self, own: Any, messages: Sequence[Message], weights: Sequence[float], now: int) -> LazyModel:
        """The aggregate of a model and these messages."""
        return aggregate_of(self._rule, own, messages, weights, now)

    def patch(self, base: Any, parts: Mapping[int, Sequence[tuple[float, Any]]]) -> LazyModel:
        """The base with some parts replaced by weighted sums."""
        return LazyPatch(base, parts)

    def cut(self, row: LazyModel, part: int) -> LazyModel:
        """One part of a model, lazily."""
        return LazyCut(row, part)

    def value(self, wanted: LazyModel) -> Tensor:
        """Compute a lazy model.   # (d,), or the length of a part"""
        if wanted.value is None:
            with self._lock:
                waiting = [wanted]
                while waiting:  # a chain of mixtures may be deeper than Python's recursion limit
                    one = waiting[-1]
                    missing = [need for need in one.needs() if need.value is None] if one.value is None else []
                    if missing:
                        waiting += missing
                        continue
                    waiting.pop()
                    if one.value is None:
                        one.value = self._computed(one)
                        one.forget_needs()
        found: Tensor = wanted.value
        return found

    def _computed(self, one: LazyModel) -> Tensor:
        if isinstance(one, LazyMixture):
            return weighted_sum(one.terms)
        if isinstance(one, LazyAggregate):
            return one.computed()
        if isinstance(one, LazyCut):
            assert one.row is not None
            return _numbers(one.row)[self._parts[one.part]]
        assert isinstance(one, LazyPatch)
        assert one.base is not None
        row = _numbers(one.base).clone()
        for part, terms in one.parts.items():
            which = self._parts[part]
            row[which] = weighted_sum(terms, which, len(row))
        return row


def _numbers(lazy_model: LazyModel) -> Tensor:
    value: Tensor = lazy_model.value
    return value


class Holding:
    """Which messages of each sender are still held, in mailboxes or lazy models that are not computed; at most `most` per sender."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[int, set[weakref.ref[GivenModel]]] = {}

    def take(self, sender: int, value: Tensor) -> GivenModel | None:
        """A lazy model of a message's numbers; None if too many of its sender are held."""
        held = self._held.setdefault(sender, set())
        if len(held) >= self._most:
            return None
        row = GivenModel(value)
        held.add(weakref.ref(row, held.discard))  # any thread may release it
        return row

    def of(self, sender: int) -> int:
        """How many messages of this sender are held."""
        return len(self._held.get(sender, ()))


def sane(row: Tensor, most: float) -> bool:
    """Whether all numbers of a row are finite and at most `most` in magnitude.   # (d,)"""
    if float(torch.linalg.vector_norm(row)) <= most:  # no number exceeds the norm, which is ten times faster to compute
        return True
    return float(torch.linalg.vector_norm(row, float("inf"))) <= most  # False for NaN
