"""The exchange as a value: what receivers hold when a round's letters have come.

`Exchange` is that of a host of all (or many) nodes: one tensor a column with a row for each sender, and a matrix of weights.
`Post` is that of a few nodes to whom letters came one by one.
Both add up in the same order, the own row first and then by ascending sender, so they agree to the last bit. Over complete graphs both
add up all rows by ascending node, in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.algorithms import Heard, Rows
from epidemic.graph import FloatArray
from epidemic.host.mixture import add, mix, mix_member, mix_portions
from epidemic.mixing import Weights
from epidemic.workers import Workers

Memory = Callable[[str, Tensor], Tensor]
"""Gives memory for a result like this one of this column."""


class Exchange:
    """The inboxes of all nodes of a message, by one matrix; complete graphs stay implicit."""

    def __init__(
        self, message: Rows, weights: Weights, ids: NDArray[np.int64], workers: Workers, memory: Memory
    ) -> None:
        """`weights` are those of these rows, whose nodes are `ids`."""
        self._message = message
        self._weights = weights
        self._ids = ids
        self._workers = workers
        self._memory = memory

    def mean(self, column: str) -> Tensor:
        """The average by the round's weights.   # (k, d)"""
        return self._apply(self._weights, column)

    def sum(self, column: str) -> Tensor:
        """The own part plus the letters.   # (k, d)"""
        return self._apply(self._weights.ones, column)

    def _apply(self, weights: Weights, column: str) -> Tensor:
        rows = self._message[column]
        return mix(weights, rows, self._workers, self._memory(column, rows))

    def each(self, column: str) -> Iterator[Heard]:
        """The letters themselves, receiver by receiver."""
        rows = self._message[column]
        for i, (at, share) in enumerate(self._weights.by_row()):
            senders = self._ids[at[1:]]
            letters = rows[torch.from_numpy(at[1:]).to(rows.device)]
            yield Heard(rows[i], letters, senders, share, np.zeros(len(senders), dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Received:
    """The letters of one receiver, by ascending sender, and how much each voice counts."""

    senders: Sequence[int]
    letters: Sequence[Mapping[str, Tensor]]  # a row for each column
    shares: FloatArray  # (1 + h,) the own one first
    at: int | None = None
    """Of a complete graph: how many of the senders come before the receiver itself."""
    by_portions: bool = False
    """Of a complete graph: each voice has a portion of its own; otherwise all letters have the same share."""


class Post:
    """The inboxes of a few nodes to whom letters came one by one."""

    def __init__(self, message: Rows, received: Sequence[Received], workers: Workers) -> None:
        self._message = message  # (k, ...) each
        self._received = received
        self._workers = workers

    def mean(self, column: str) -> Tensor:
        """The average by the round's weights.   # (k, d)"""
        return self._added(column, lambda i: self._received[i].shares.tolist())

    def sum(self, column: str) -> Tensor:
        """The own part plus the letters.   # (k, d)"""
        return self._added(column, lambda i: [1.0] * len(self._received[i].shares), 0.0)

    def _added(self, column: str, shares: Callable[[int], list[float]], besides: float | None = None) -> Tensor:
        """The rows by their shares. `besides`: what `Weights.own` gives to the own row of a complete graph; None: what is left to 1."""
        own = self._message[column]
        out = torch.empty_like(own)

        def one(i: int) -> None:
            at, (first, *rest) = self._received[i].at, shares(i)
            letters = [letter[column].to(own.device) for letter in self._received[i].letters]
            if at is not None and letters:
                members = torch.stack([*letters[:at], own[i], *letters[at:]])
                if besides is None and self._received[i].by_portions:
                    out[i] = mix_portions(members, np.array([*rest[:at], first, *rest[at:]]))
                    return
                left = 1 - rest[0] * len(members) if besides is None else besides
                out[i] = mix_member(members, at, rest[0], left)
                return
            row = out[i]
            torch.mul(own[i], first, out=row)
            for letter, share in zip(letters, rest, strict=True):
                add(row, letter, share)

        self._workers.map(one, range(len(own)))
        return out

    def each(self, column: str) -> Iterator[Heard]:
        """The letters themselves, receiver by receiver."""
        for own, one in zip(self._message[column], self._received, strict=True):
            letters = [letter[column].to(own.device) for letter in one.letters]
            stacked = torch.stack(letters) if letters else own.new_empty((0, *own.shape))
            senders = np.array(one.senders, dtype=np.int64)
            yield Heard(own, stacked, senders, one.shares, np.zeros(len(senders), dtype=np.int64))
