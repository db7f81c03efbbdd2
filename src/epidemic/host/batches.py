"""Which samples nodes train on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from epidemic.rng import Streams


class Batches:
    """Which samples the hosted nodes train on: uniformly with replacement from their own.

    One array of uniforms for all nodes and index = floor(u * size): whoever hosts a node draws the same, without
    knowing the sizes of the others.
    """

    def __init__(
        self,
        parts: list[NDArray[np.int64]],
        local_steps: int,
        batch_size: int,
        *,
        nodes: int,
        hosted: slice | NDArray[np.int64],
    ) -> None:
        """`parts` has the samples of the hosted ones of all `nodes`."""
        self._size = np.array([len(part) for part in parts])
        self._start = np.cumsum(self._size) - self._size
        self._samples = np.concatenate(parts)
        self._shape = (nodes, local_steps, batch_size)
        self._hosted = hosted

    def index(self, streams: Streams, round: int) -> NDArray[np.int64]:
        """The sample numbers of round `round`.   # (k, r, b)"""
        u = streams("batches", round).uniforms(*self._shape)[self._hosted]
        own = (u * self._size[:, None, None]).astype(np.int64)
        return np.asarray(self._samples[own + self._start[:, None, None]])
