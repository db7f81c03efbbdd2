"""The inbox: what receivers get from a round's messages.

One noun, `InboxOfRows`, in three forms:

  MatrixInbox      for a host of all or many nodes: a row for each sender, and a matrix of weights; `ShardedInbox` fetches rows of other ranks first
  MessageInbox     for a few nodes that received messages one by one
  FragmentsInbox   for parts of models that go separate ways (topology/wrappers.py)

All sum in the same order, the own row first and then by ascending sender, so they agree to the last bit. Over complete graphs they sum all rows by
ascending node id, in double precision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from epidemic.aggregation import Aggregator, Coordinatewise, Heard
from epidemic.algorithms import Rows
from epidemic.compression import Said
from epidemic.core.errors import RunFailed
from epidemic.core.graph import FloatArray, IntArray
from epidemic.core.workers import Workers
from epidemic.mixing import Weights
from epidemic.runtime.aggregating import MEAN, Receiver, aggregate_all, aggregate_everybody, aggregate_one
from epidemic.runtime.message_coding import HEARD, SAID, SENT, Coder, Memory
from epidemic.runtime.mixing_arithmetic import add, mix, mix_member, mix_portions, mix_said, with_own


def no_sums() -> RunFailed:
    """The error for an algorithm that asks for sums of compressed messages."""
    return RunFailed("algorithm: messages that are compressed can be averaged, not added up; leave [compression] out")


class InboxOfRows(ABC):
    """The inboxes of receivers. Nothing is computed before it is asked for."""

    def __init__(self, message: Rows, workers: Workers, rule: Aggregator) -> None:
        """Start; `rule`: the aggregator of [aggregation]."""
        self._message = message  # (k, ...) each
        self._workers = workers
        self._rule = rule

    def own(self, column: str) -> Tensor:
        """Each node's own part.   # (k, d)"""
        return self._message[column]

    def aggregate(self, column: str) -> Tensor:
        """The aggregate of the own part and the messages, by the rule.   # (k, d)"""
        return self.mean(column) if self._rule.linear else self._aggregated(column)

    @abstractmethod
    def mean(self, column: str) -> Tensor:
        """The average by the round's weights.   # (k, d)"""

    @abstractmethod
    def sum(self, column: str) -> Tensor:
        """The sum of the own part and the messages.   # (k, d)"""

    @abstractmethod
    def each(self, column: str) -> Iterator[Heard]:
        """The single messages, receiver by receiver."""

    @abstractmethod
    def _aggregated(self, column: str) -> Tensor:
        """The aggregate by a rule that is not an average.   # (k, d)"""


class MatrixInbox(InboxOfRows):
    """The inboxes of all nodes, as one matrix; complete graphs stay implicit."""

    def __init__(
        self,
        message: Rows,
        weights: Weights,
        ids: IntArray,
        workers: Workers,
        memory: Memory,
        coder: Coder | None = None,
        rule: Aggregator = MEAN,
    ) -> None:
        """Start; `weights` are those of these rows, which belong to the nodes `ids`; `coder` reads compressed messages."""
        super().__init__(message, workers, rule)
        self._weights = weights
        self._ids = ids
        self._memory = memory
        self._coder = coder

    def mean(self, column: str) -> Tensor:
        """The average by the round's weights.   # (k, d)"""
        if self._coder is None:
            return self._apply(self._weights, column)
        own, said = self._message[column], self._said(column, self._coder)
        return mix_said(self._weights, own, said, self._coder.fill, self._workers, self._memory(column, own))

    def sum(self, column: str) -> Tensor:
        """The sum of the own part and the messages.   # (k, d)"""
        if self._coder is not None:
            raise no_sums()
        return self._apply(self._weights.ones, column)

    def each(self, column: str) -> Iterator[Heard]:
        """The single messages, receiver by receiver."""
        rows = self._message[column]
        said = (
            Said(rows) if self._coder is None else self._coder.decode_all(self._message[column + SENT], self._workers)
        )
        for own, one in zip(rows, receivers_of(self._weights, self._ids), strict=True):
            which = torch.from_numpy(one.at).to(rows.device)
            messages = said.rows[which]
            if said.mask is not None:
                messages = torch.where(said.mask[which] > 0, messages, own)
            yield Heard(own, messages, one.senders.astype(np.int64), one.weights, np.zeros(len(one.at), dtype=np.int64))

    def _apply(self, weights: Weights, column: str) -> Tensor:
        rows = self._message[column]
        return mix(weights, rows, self._workers, self._memory(column, rows))

    def _aggregated(self, column: str) -> Tensor:
        rows, rule = self._message[column], self._rule
        out = self._memory(column, rows)
        messages = rows if self._coder is None else self._said(column, self._coder).rows
        return aggregate_by(rule, self._weights, self._ids, rows, messages, self._workers, out)

    def _said(self, column: str, coder: Coder) -> Said:
        """The messages of a column, decoded."""
        said = coder.decode_all(self._message[column + SENT], self._workers, self._memory)
        self._message[column + SAID] = said.rows  # so that this memory is reused
        if said.mask is not None:
            self._message[column + HEARD] = said.mask
        return said


def receivers_of(weights: Weights, ids: IntArray, some: range | None = None) -> Iterator[Receiver]:
    """What all nodes, or some of them, receive by a matrix; `ids`: their node ids."""
    for at, share in weights.by_row(some):
        yield Receiver(at[1:], ids[at[1:]].astype(np.int64), share)


def aggregate_by(
    rule: Aggregator, weights: Weights, ids: IntArray, own: Tensor, messages: Tensor, workers: Workers, out: Tensor
) -> Tensor:
    """Aggregate the rows of all nodes by a rule, into `out`; `messages` are the same rows as receivers see them.   # (n, d) -> (n, d)"""
    if isinstance(rule, Coordinatewise) and weights.clique is not None and messages is own:
        if len(weights.clique) == weights.n:
            return aggregate_everybody(rule, own, workers, out)
        who = torch.from_numpy(weights.clique).to(own.device)
        members = own[who]
        out.copy_(own)
        out[who] = aggregate_everybody(rule, members, workers, torch.empty_like(members))
        return out
    return aggregate_all(rule, list(receivers_of(weights, ids)), own, messages, workers, out)


@dataclass(frozen=True, eq=False)
class Received:
    """The messages of one receiver, by ascending sender, with their weights."""

    senders: Sequence[int]
    messages: Sequence[Mapping[str, Tensor]]  # a row for each column; bytes if compressed
    shares: FloatArray  # (1 + h,) own weight first
    at: int | None = None
    """In a complete graph: how many of the senders come before the receiver."""
    by_portions: bool = False
    """In a complete graph: whether each message has its own weight; otherwise all have the same."""
    ages: Sequence[int] = ()
    """How many rounds ago each message was sent; empty: all in this round."""

    def heard(self, own: Tensor, messages: Tensor) -> Heard:
        """The same messages with these rows.   # (d,), (h, d)"""
        ages = np.array(self.ages or [0] * len(self.senders), dtype=np.int64)
        return Heard(own, messages, np.array(self.senders, dtype=np.int64), self.shares, ages)


class MessageInbox(InboxOfRows):
    """The inboxes of a few nodes that received messages one by one."""

    def __init__(
        self,
        message: Rows,
        received: Sequence[Received],
        workers: Workers,
        coder: Coder | None = None,
        rule: Aggregator = MEAN,
    ) -> None:
        """Start; `coder` reads compressed messages."""
        super().__init__(message, workers, rule)
        self._received = received
        self._coder = coder

    def mean(self, column: str) -> Tensor:
        """The average by the round's weights.   # (k, d)"""
        if self._coder is not None:
            return self._said(column, self._coder)
        return self._added(column, lambda i: self._received[i].shares.tolist())

    def sum(self, column: str) -> Tensor:
        """The sum of the own part and the messages.   # (k, d)"""
        if self._coder is not None:
            raise no_sums()
        return self._added(column, lambda i: [1.0] * len(self._received[i].shares), 0.0)

    def each(self, column: str) -> Iterator[Heard]:
        """The single messages, receiver by receiver."""
        for own, one in zip(self._message[column], self._received, strict=True):
            messages = self._messages(column, own, one)
            yield one.heard(own, torch.stack(messages) if messages else own.new_empty((0, *own.shape)))

    def _aggregated(self, column: str) -> Tensor:
        rows = self._message[column]
        out = torch.empty_like(rows)

        def one(i: int) -> None:
            messages = self._messages(column, rows[i], self._received[i])
            aggregate_one(self._rule, rows[i], messages, self._received[i].heard(rows[i], rows[:0]), out[i])

        self._workers.map(one, range(len(rows)))
        return out

    def _added(self, column: str, shares: Callable[[int], list[float]], besides: float | None = None) -> Tensor:
        """The weighted sum of the rows. `besides`: the weight of the own row outside the sum of a complete graph; None: the rest to 1."""
        own = self._message[column]
        out = torch.empty_like(own)

        def one(i: int) -> None:
            at, (first, *rest) = self._received[i].at, shares(i)
            messages = [message[column].to(own.device) for message in self._received[i].messages]
            if at is not None and messages:
                members = torch.stack([*messages[:at], own[i], *messages[at:]])
                if besides is None and self._received[i].by_portions:
                    out[i] = mix_portions(members, np.array([*rest[:at], first, *rest[at:]]))
                    return
                left = 1 - rest[0] * len(members) if besides is None else besides
                out[i] = mix_member(members, at, rest[0], left)
                return
            row = out[i]
            torch.mul(own[i], first, out=row)
            for message, share in zip(messages, rest, strict=True):
                add(row, message, share)

        self._workers.map(one, range(len(own)))
        return out

    def _said(self, column: str, coder: Coder) -> Tensor:
        """The average of compressed messages, in the order of `mix_said`."""
        own = self._message[column]
        out = torch.empty_like(own)

        def one(i: int) -> None:
            first, *rest = self._received[i].shares.tolist()
            total, heard = torch.zeros_like(own[i]), None
            for message, share in zip(self._received[i].messages, rest, strict=True):
                said = coder.decode(message[column].to(own.device)[None])
                add(total, said.rows[0], share)
                if said.mask is not None and coder.fill != "zero":
                    heard = torch.zeros_like(own[i]) if heard is None else heard
                    add(heard, said.mask[0].to(own.dtype), share)
            with_own(total, heard, own[i], own.new_tensor(first), coder.fill, out[i])

        self._workers.map(one, range(len(own)))
        return out

    def _messages(self, column: str, own: Tensor, one: Received) -> list[Tensor]:
        """The messages of a receiver as rows; coordinates missing in a compressed one get the own value (differences: zero)."""
        found = [message[column].to(own.device) for message in one.messages]
        if self._coder is None:
            return found
        said = [self._coder.decode(raw[None]) for raw in found]
        whole = self._coder.differences
        return [s.rows[0] if whole or s.mask is None else torch.where(s.mask[0], s.rows[0], own) for s in said]
