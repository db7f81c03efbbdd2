"""The samples that the hosted nodes train on in a round.

  replacement   every sample is drawn uniformly from the node's own, with replacement
  epoch         a node goes through all its own samples in random order, then again in a new order, and so on

Either way the samples of round t are a function of the run's streams and t: any host can draw those of any node without knowing the sizes of the others,
and resuming needs no replay.

Shapes: k hosted nodes, r local steps, b batch size.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from epidemic.algorithms import SAMPLINGS
from epidemic.core.errors import require_choice
from epidemic.core.graph import IntArray
from epidemic.core.rng import Streams


class Batches:
    """The samples of every batch of the hosted nodes."""

    def __init__(
        self,
        parts: list[NDArray[np.int64]],
        local_steps: int,
        batch_size: int,
        *,
        nodes: int,
        hosted: slice | IntArray,
        sampling: str = "replacement",
    ) -> None:
        """Prepare; `parts` has the samples of the hosted ones of all `nodes`, in the order of `hosted`: a slice of them, or their ids."""
        require_choice("sampling", sampling, SAMPLINGS)
        size = np.array([len(part) for part in parts])
        self._start = np.cumsum(size) - size
        self._samples = np.concatenate(parts)
        self._sampling: _Sampling = (
            _Replacement(size, (nodes, local_steps, batch_size), hosted)
            if sampling == "replacement"
            else _Epochs(size, (local_steps, batch_size), np.arange(nodes)[hosted])
        )

    def index(self, streams: Streams, round: int) -> NDArray[np.int64]:
        """The sample numbers of a round.   # (k, r, b)"""
        return np.asarray(self._samples[self._sampling.positions(streams, round) + self._start[:, None, None]])

    def of(self, streams: Streams, position: int, count: int) -> NDArray[np.int64]:
        """For asynchronous methods: the sample numbers of the count-th training of the hosted node at `position`.   # (r, b)"""
        return np.asarray(self._samples[self._sampling.positions_of(streams, position, count) + self._start[position]])


class _Sampling(Protocol):
    """Interface of the ways to draw a node's samples."""

    def positions(self, streams: Streams, round: int) -> NDArray[np.int64]:
        """Positions of the samples of a round among each node's own.   # (k, r, b)"""
        ...

    def positions_of(self, streams: Streams, position: int, count: int) -> NDArray[np.int64]:
        """Positions of the samples of one node's count-th training.   # (r, b)"""
        ...


class _Replacement:
    """Draws one array of uniforms for all nodes; a hosted node uses floor(u * size) of its row."""

    def __init__(self, size: NDArray[np.int64], shape: tuple[int, int, int], hosted: slice | IntArray) -> None:
        self._size, self._shape, self._hosted = size[:, None, None], shape, hosted
        self._ids = np.arange(shape[0])[hosted]

    def positions(self, streams: Streams, round: int) -> NDArray[np.int64]:
        u = streams("batches", round).uniforms(*self._shape)[self._hosted]
        return np.asarray((u * self._size).astype(np.int64))

    def positions_of(self, streams: Streams, position: int, count: int) -> NDArray[np.int64]:
        u = streams("batches-of", int(self._ids[position]), count).uniforms(*self._shape[1:])
        return np.asarray((u * self._size[position]).astype(np.int64))


class _Epochs:
    """Sample number c of a node, counted over all rounds, is in epoch c // size; each epoch of each node has its own stream.

    Batches continue across the boundary of epochs. The order of each node's current epoch is cached and redrawn when another one is needed, which affects
    speed only.
    """

    def __init__(self, size: NDArray[np.int64], shape: tuple[int, int], ids: IntArray) -> None:
        self._size, self._shape, self._ids = size, shape, ids
        self._start = np.cumsum(size) - size
        self._order = np.zeros(int(size.sum()), dtype=np.int64)  # of all hosted nodes, one after the other
        self._epoch = np.full(len(size), -1)  # the epoch that the order belongs to
        self._streams: Streams | None = None

    def positions(self, streams: Streams, round: int) -> NDArray[np.int64]:
        if streams != self._streams:
            self._streams, self._epoch[:] = streams, -1
        steps, batch = self._shape
        count = np.arange(steps * batch) + round * steps * batch  # (r b,)
        epoch, at = np.divmod(count, self._size[:, None])  # (k, r b)
        node_id = np.empty_like(at)
        who = np.arange(len(self._size))
        wanted = epoch[:, 0]
        while len(who):  # once, and again for nodes whose batches reach into the next epoch
            self._set_order(streams, who, wanted[who])
            row, column = np.nonzero(epoch[who] == wanted[who, None])
            row = who[row]
            node_id[row, column] = self._order[self._start[row] + at[row, column]]
            wanted = wanted + 1
            who = who[wanted[who] <= epoch[who, -1]]
        return node_id.reshape(-1, steps, batch)

    def positions_of(self, streams: Streams, position: int, count: int) -> NDArray[np.int64]:
        steps, batch = self._shape
        size, start = int(self._size[position]), self._start[position]
        if streams != self._streams:
            self._streams, self._epoch[:] = streams, -1
        node_id = np.zeros(steps * batch, dtype=np.int64)
        epochs, at = np.divmod(np.arange(steps * batch) + count * steps * batch, size)
        for epoch in np.unique(epochs):
            self._set_order(streams, np.array([position]), np.array([epoch]))
            node_id[epochs == epoch] = self._order[start + at[epochs == epoch]]
        return node_id.reshape(steps, batch)

    def _set_order(self, streams: Streams, who: NDArray[np.int64], epoch: NDArray[np.int64]) -> None:
        """Set the order of these nodes' samples to that of an epoch."""
        # A single sample has only one order, and would need a new one for every position of a batch.
        other = (self._epoch[who] != epoch) & (self._size[who] > 1)
        for i, e in zip(who[other].tolist(), epoch[other].tolist(), strict=True):
            start, size = self._start[i], self._size[i]
            self._order[start : start + size] = streams("order", int(self._ids[i]), e).permutation(int(size))
        self._epoch[who] = epoch
