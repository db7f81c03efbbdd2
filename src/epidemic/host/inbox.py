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
from epidemic.compression import Said
from epidemic.errors import RunFailed
from epidemic.graph import FloatArray
from epidemic.host.coding import HEARD, SAID, SENT, Coder, Memory
from epidemic.host.mixture import add, mix, mix_member, mix_portions, mix_said, with_own
from epidemic.mixing import Weights
from epidemic.workers import Workers


def no_sums() -> RunFailed:
    """What is said to an algorithm that asks for sums of compressed letters."""
    return RunFailed("algorithm: letters that are compressed can be averaged, not added up; leave [compression] out")


class Exchange:
    """The inboxes of all nodes of a message, by one matrix; complete graphs stay implicit."""

    def __init__(
        self,
        message: Rows,
        weights: Weights,
        ids: NDArray[np.int64],
        workers: Workers,
        memory: Memory,
        coder: Coder | None = None,
    ) -> None:
        """`weights` are those of these rows, whose nodes are `ids`. `coder`: reads letters that are compressed."""
        self._message = message
        self._weights = weights
        self._ids = ids
        self._workers = workers
        self._memory = memory
        self._coder = coder

    def own(self, column: str) -> Tensor:
        """Everybody's own part.   # (k, d)"""
        return self._message[column]

    def mean(self, column: str) -> Tensor:
        """The average by the round's weights.   # (k, d)"""
        if self._coder is None:
            return self._apply(self._weights, column)
        own = self._message[column]
        said = self._coder.decode_all(self._message[column + SENT], self._workers, self._memory)
        self._message[column + SAID] = said.rows  # so that this memory is used again
        if said.mask is not None:
            self._message[column + HEARD] = said.mask
        return mix_said(self._weights, own, said, self._coder.fill, self._workers, self._memory(column, own))

    def sum(self, column: str) -> Tensor:
        """The own part plus the letters.   # (k, d)"""
        if self._coder is not None:
            raise no_sums()
        return self._apply(self._weights.ones, column)

    def _apply(self, weights: Weights, column: str) -> Tensor:
        rows = self._message[column]
        return mix(weights, rows, self._workers, self._memory(column, rows))

    def each(self, column: str) -> Iterator[Heard]:
        """The letters themselves, receiver by receiver."""
        rows = self._message[column]
        said = (
            Said(rows) if self._coder is None else self._coder.decode_all(self._message[column + SENT], self._workers)
        )
        for i, (at, share) in enumerate(self._weights.by_row()):
            senders = self._ids[at[1:]]
            which = torch.from_numpy(at[1:]).to(rows.device)
            letters = said.rows[which]
            if said.mask is not None:
                letters = torch.where(said.mask[which] > 0, letters, rows[i])
            yield Heard(rows[i], letters, senders, share, np.zeros(len(senders), dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Received:
    """The letters of one receiver, by ascending sender, and how much each voice counts."""

    senders: Sequence[int]
    letters: Sequence[Mapping[str, Tensor]]  # a row for each column, or its bytes where it is compressed
    shares: FloatArray  # (1 + h,) the own one first
    at: int | None = None
    """Of a complete graph: how many of the senders come before the receiver itself."""
    by_portions: bool = False
    """Of a complete graph: each voice has a portion of its own; otherwise all letters have the same share."""


class Post:
    """The inboxes of a few nodes to whom letters came one by one."""

    def __init__(
        self, message: Rows, received: Sequence[Received], workers: Workers, coder: Coder | None = None
    ) -> None:
        """`coder`: reads letters that are compressed."""
        self._message = message  # (k, ...) each
        self._received = received
        self._workers = workers
        self._coder = coder

    def own(self, column: str) -> Tensor:
        """Everybody's own part.   # (k, d)"""
        return self._message[column]

    def mean(self, column: str) -> Tensor:
        """The average by the round's weights.   # (k, d)"""
        if self._coder is not None:
            return self._said(column, self._coder)
        return self._added(column, lambda i: self._received[i].shares.tolist())

    def sum(self, column: str) -> Tensor:
        """The own part plus the letters.   # (k, d)"""
        if self._coder is not None:
            raise no_sums()
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

    def _said(self, column: str, coder: Coder) -> Tensor:
        """The average of compressed letters, in the order of `mix_said`."""
        own = self._message[column]
        out = torch.empty_like(own)

        def one(i: int) -> None:
            first, *rest = self._received[i].shares.tolist()
            total, heard = torch.zeros_like(own[i]), None
            for letter, share in zip(self._received[i].letters, rest, strict=True):
                said = coder.decode(letter[column].to(own.device)[None])
                add(total, said.rows[0], share)
                if said.mask is not None and coder.fill != "zero":
                    heard = torch.zeros_like(own[i]) if heard is None else heard
                    add(heard, said.mask[0].to(own.dtype), share)
            with_own(total, heard, own[i], own.new_tensor(first), coder.fill, out[i])

        self._workers.map(one, range(len(own)))
        return out

    def _letters(self, column: str, own: Tensor, one: Received) -> list[Tensor]:
        """The letters of a receiver as rows; of what a compressed one does not say, the own value (of differences: none)."""
        found = [letter[column].to(own.device) for letter in one.letters]
        if self._coder is None:
            return found
        said = [self._coder.decode(raw[None]) for raw in found]
        whole = self._coder.differences
        return [s.rows[0] if whole or s.mask is None else torch.where(s.mask[0], s.rows[0], own) for s in said]

    def each(self, column: str) -> Iterator[Heard]:
        """The letters themselves, receiver by receiver."""
        for own, one in zip(self._message[column], self._received, strict=True):
            letters = self._letters(column, own, one)
            stacked = torch.stack(letters) if letters else own.new_empty((0, *own.shape))
            senders = np.array(one.senders, dtype=np.int64)
            yield Heard(own, stacked, senders, one.shares, np.zeros(len(senders), dtype=np.int64))
