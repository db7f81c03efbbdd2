"""The peers that a node of an asynchronous method may choose: a function of (node, its own count) only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from epidemic.core.rng import Streams, distinct
from epidemic.topology import ELLocal

BLOCK = 64
"""Choices of a node drawn at once."""

MOST = 256
"""Most neighbours for which whole blocks are drawn."""

Draw = Callable[[int, int], list[list[int]]]


class ChanceDraws:
    """Numbers in [0, 1), each a function of (purpose, node, count)."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._blocks: dict[tuple[str, int], tuple[int, list[float]]] = {}

    def __call__(self, purpose: str, node: int, count: int) -> float:
        """The number for these keys."""
        block, at = divmod(count, BLOCK)
        found = self._blocks.get((purpose, node))
        if found is None or found[0] != block:
            found = (block, self._streams(f"chance-{purpose}", node, block).uniforms(BLOCK).tolist())
            self._blocks[purpose, node] = found
        return found[1][at]


class Peers:
    """Targets in random order: s peers for el-local, the neighbours for a static topology."""

    def __init__(self, topology: Any, nodes: int, streams: Streams) -> None:
        self._nodes = nodes
        self._streams = streams
        self._blocks: dict[int, tuple[int, list[list[int]]]] = {}
        self._s = topology.s if isinstance(topology, ELLocal) else None
        self._graph = None if self._s is not None else topology.graph(nodes, 0, streams)
        self._neighbours: dict[int, np.ndarray[Any, Any]] = {}

    def __call__(self, node: int, count: int) -> Sequence[int]:
        """The peers of the node's count-th choice."""
        if self._s is None and len(self.neighbours(node)) > MOST:
            order = self._streams("peers-once", node, count).permutation(len(self.neighbours(node)))
            one: list[int] = self.neighbours(node)[order].tolist()
            return one
        block, at = divmod(count, BLOCK)
        found = self._blocks.get(node)
        if found is None or found[0] != block:
            found = self._blocks[node] = (block, self._draw(node, block))
        return found[1][at]

    def neighbours(self, node: int) -> np.ndarray[Any, Any]:
        """All peers that a node may ever choose."""
        if node not in self._neighbours:
            everybody = np.delete(np.arange(self._nodes), node)
            self._neighbours[node] = everybody if self._graph is None else self._graph.out_of(node)
        return self._neighbours[node]

    def _draw(self, node: int, block: int) -> list[list[int]]:
        stream = self._streams("peers", node, block)
        if self._s is None:
            peers = np.tile(self.neighbours(node), (BLOCK, 1))
        else:
            drawn = distinct(stream, BLOCK, self._nodes - 1, self._s).astype(np.int64)
            peers = drawn + (drawn >= node)
        order = np.argsort(stream.uniforms(*peers.shape), axis=1, kind="stable")
        found: list[list[int]] = np.take_along_axis(peers, order, axis=1).tolist()
        return found
