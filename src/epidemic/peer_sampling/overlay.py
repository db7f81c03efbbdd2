"""The views of all nodes, round after round: a function of service, nodes, seed and reachability only.

Each round's views follow from the round before, so the last ones are kept and advanced. For an earlier round, or after a resume, everything is computed
again from the start, to the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from epidemic.core.graph import Graph, IntArray
from epidemic.core.rng import Stream, Streams, distinct
from epidemic.peer_sampling.base import FREE, Control, PeerSampling, ReachableLinks, distinct_entries

Reach = Callable[[int], ReachableLinks]
"""Returns which nodes can reach each other in a round. Comparable and hashable, so that equal ones share their views."""


class Overlay:
    """The sequence of views of one run."""

    def __init__(self, service: PeerSampling, n: int, streams: Streams, reach: Reach | None) -> None:
        self._service, self._n, self._streams, self._reach = service, n, streams, reach
        self._lock = threading.Lock()
        self._restart()

    def _restart(self) -> None:
        self._round = -1
        self._views = self._service.start(self._n, self._streams("views-start"))
        self._control = Control(np.zeros(self._n, dtype=np.int64), np.zeros(self._n, dtype=np.int64))

    def at(self, round: int) -> tuple[IntArray, Control]:
        """The views of this round, -1 in free slots, and what each node sent to get them.   # (n, w), (n,) each"""
        with self._lock:
            if round < self._round:
                self._restart()
            while self._round < round:
                self._advance(self._round + 1)
            return self._views.ids.copy(), self._control

    def _advance(self, round: int) -> None:
        links = None if self._reach is None else self._reach(round)
        done = [
            self._service.cycle(self._views, self._streams("views", round, cycle), links)
            for cycle in range(self._service.cycles)
        ]
        messages, entries = (np.sum([one[i] for one in done], axis=0) for i in (0, 1))
        self._control = Control(messages, entries)
        self._round = round


@lru_cache(maxsize=8)
def overlay(service: PeerSampling, n: int, streams: Streams, reach: Reach | None = None) -> Overlay:
    """The overlay of a run; callers with the same arguments share it."""
    return Overlay(service, n, streams, reach)


def draw_targets(ids: IntArray, s: int, stream: Stream) -> Graph:
    """Every node sends to s different peers of its view, uniformly; one that knows fewer sends to all of them."""
    n = len(ids)
    known, sizes = distinct_entries(ids)
    least, most = int(sizes.min()), int(sizes.max())
    known = known[:, known.shape[1] - most :]
    if s <= least == most:  # the draw of full knowledge, to the bit if views contain everybody
        return Graph.from_targets(np.take_along_axis(known, distinct(stream, n, most, s), axis=1))
    key = stream.uniforms(*known.shape)
    key[known == FREE] = 2.0
    chosen = np.take_along_axis(known, np.argsort(key, axis=1, kind="stable")[:, :s], axis=1)
    senders, at = np.nonzero(chosen != FREE)
    return Graph.from_edges(n, senders, chosen[senders, at])
