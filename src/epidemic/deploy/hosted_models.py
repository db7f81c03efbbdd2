"""Lazy models of a deployed process: models that were decided and perhaps not computed yet. Asked by all threads.

They are the promises of `host.lazy_models`, computed one by one when a number is needed: by the main thread, which trains and evaluates, or by
the one that sends. What is computed holds nothing else any more, so that messages are given back as soon as they are in a model.
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
    """Makes models of others, and computes them."""

    def __init__(self, parts: Sequence[Tensor] = (), rule: Aggregator = MEAN) -> None:
        """`parts`: which numbers of a model belong to each part. `rule`: the experiment's aggregator."""
        self._parts = parts
        self._rule = rule
        self._lock = threading.Lock()

    def mix(self, terms: Sequence[tuple[float, Any]]) -> LazyModel:
        """The weighted sum of these, added in this order."""
        return LazyMixture(terms)

    def aggregate(self, own: Any, messages: Sequence[Message], weights: Sequence[float], now: int) -> LazyModel:
        """What the aggregator makes of a model and of these messages."""
        return aggregate_of(self._rule, own, messages, weights, now)

    def patch(self, base: Any, parts: Mapping[int, Sequence[tuple[float, Any]]]) -> LazyModel:
        """The base with some parts replaced by weighted sums."""
        return LazyPatch(base, parts)

    def cut(self, row: LazyModel, part: int) -> LazyModel:
        """One part of a model."""
        return LazyCut(row, part)

    def value(self, wanted: LazyModel) -> Tensor:
        """The numbers.   # (d,), or those of a part"""
        if wanted.value is None:
            with self._lock:
                waiting = [wanted]
                while waiting:  # a chain of mixtures may be longer than Python would call itself
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
    """Which rows of each sender's messages are held, in inboxes or mixtures that are not computed yet; never more than `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[int, set[weakref.ref[GivenModel]]] = {}

    def take(self, sender: int, value: Tensor) -> GivenModel | None:
        """A handle of a message's numbers; None if too many of its sender are held."""
        held = self._held.setdefault(sender, set())
        if len(held) >= self._most:
            return None
        row = GivenModel(value)
        held.add(weakref.ref(row, held.discard))  # whichever thread lets it go
        return row

    def of(self, sender: int) -> int:
        """How many are held."""
        return len(self._held.get(sender, ()))


def sane(row: Tensor, most: float) -> bool:
    """Whether a row has the numbers that a sane model has."""
    if (
        float(torch.linalg.vector_norm(row)) <= most
    ):  # no number is larger than all together, and this is ten times faster
        return True
    return float(torch.linalg.vector_norm(row, float("inf"))) <= most  # false for what is not a number
