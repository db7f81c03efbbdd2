"""Graph: which node sends to which in one round.

A frozen value: n nodes and the directed edges sender -> receiver, stored by receiver (CSR): the in-neighbours of node i are
`senders[indptr[i]:indptr[i + 1]]`, in ascending order. "Edge e" is position e in that order.

A complete graph is never spelled out: `clique` then lists the nodes that all send to each other, and the graph costs O(n). Only functions that need single
edges (`explicit()`) list them, up to a limit.

Shapes: n nodes, m edges.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from epidemic.core.errors import BadInput
from epidemic.core.formatting import count, html_table

IntArray = NDArray[np.integer[Any]]
FloatArray = NDArray[np.float64]

EDGE_LIMIT = 200_000_000
"""The most edges into which an implicit complete graph may be expanded (about 2 GB)."""
EXCHANGES = ("messages", "requests", "all-reduce")
"""How models travel: each as a message; as the answer to a request of its receiver; cut into pieces, in an all-reduce."""
SMALL = 1 << 14
"""Up to this many edges, sorting is faster than SciPy's checks of its arguments."""


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """The messages of one round: who sends to whom.

    Example:
        >>> graph = ep.ELLocal(s=7).graph(96, 0, ep.Streams(1))
        >>> graph.in_degree, graph.connected   # (n,), and whether a model of anyone can reach everyone
    """

    n: int
    indptr: IntArray  # (n + 1,)
    senders: IntArray  # (m,) ascending within each receiver
    native: FloatArray | None = None  # (m,) weight of each edge, for topologies that bring their own
    clique: IntArray | None = None  # ids of the nodes that all send to each other; then there are no other edges
    exchange: str = "messages"  # one of EXCHANGES; an all-reduce is that of a clique

    # -- making -------------------------------------------------------------------------------------------------------

    @staticmethod
    def from_edges(n: int, senders: IntArray, receivers: IntArray, native: FloatArray | None = None) -> Graph:
        """Build from edge lists in any order. A repeated edge counts once, with its native weights added."""
        weights = np.ones(len(senders)) if native is None else native
        matrix = scipy.sparse.csr_array((weights, (receivers, senders)), shape=(n, n))
        matrix.sum_duplicates()
        return Graph(n, matrix.indptr, matrix.indices, None if native is None else matrix.data)

    @staticmethod
    def from_targets(targets: IntArray) -> Graph:
        """Build from an (n, s) table: row i lists the distinct targets of node i."""
        n, s = targets.shape
        if n * s <= SMALL and n < 2**15:
            order = np.argsort(
                targets.astype(np.int16).ravel(), kind="stable"
            )  # a radix sort: senders come out ascending
            senders = np.repeat(np.arange(n, dtype=np.int32), s)[order]
            heard = np.bincount(targets.ravel(), minlength=n)
            return Graph(n, np.concatenate([[0], np.cumsum(heard)]).astype(np.int32), senders)
        indptr = np.arange(0, n * s + 1, s, dtype=_index_type(n * s))
        outgoing = scipy.sparse.csr_array(
            (np.ones(n * s, dtype=np.int8), targets.ravel().astype(indptr.dtype, copy=False), indptr), shape=(n, n)
        )
        incoming = outgoing.tocsc()  # a counting sort by receiver, stable: senders come out ascending
        return Graph(n, incoming.indptr, incoming.indices)

    @staticmethod
    def from_heard(heard: IntArray, exchange: str = "messages") -> Graph:
        """Build from an (n, s) table: row i lists, ascending, the distinct in-neighbours of node i."""
        n, s = heard.shape
        return Graph(n, np.arange(0, n * s + 1, s, dtype=_index_type(n * s)), heard.ravel(), exchange=exchange)

    @staticmethod
    def circulant(n: int, offsets: IntArray, native: FloatArray | None = None) -> Graph:
        """Node i receives from i + o (mod n) for every offset o; equal offsets are one edge, with their native weights added."""
        offsets = np.asarray(offsets, dtype=np.int64) % n
        receivers = np.repeat(np.arange(n), len(offsets))
        senders = (receivers + np.tile(offsets, n)) % n
        return Graph.from_edges(n, senders, receivers, None if native is None else np.tile(native, n))

    @staticmethod
    def empty(n: int) -> Graph:
        """Return a graph of n nodes in which no node sends."""
        return Graph(n, np.zeros(n + 1, dtype=np.int32), np.zeros(0, dtype=np.int32))

    @staticmethod
    def complete(n: int, members: IntArray | None = None, exchange: str = "messages") -> Graph:
        """All nodes, or all members, send to each other, without storing n**2 edges."""
        clique = np.arange(n) if members is None else np.sort(members)
        nothing = np.zeros(0, dtype=np.int32)
        return Graph(n, np.zeros(n + 1, dtype=np.int32), nothing, clique=clique, exchange=exchange)

    def explicit(self) -> Graph:
        """The same graph with every edge listed."""
        if self.clique is None:
            return self
        size = len(self.clique)
        if size * (size - 1) > EDGE_LIMIT:
            raise BadInput(
                f"a complete graph of {size} nodes has {size * (size - 1)} edges, more than the {EDGE_LIMIT} that faults"
                " of single messages (loss, blocked, partitions, cap) can be drawn on; use fewer nodes or a sparse topology"
            )
        receivers = np.repeat(self.clique, size)
        senders = np.tile(self.clique, size)
        apart = senders != receivers
        return Graph.from_edges(self.n, senders[apart], receivers[apart])

    # -- reading ------------------------------------------------------------------------------------------------------

    @cached_property
    def receivers(self) -> IntArray:
        """The receiver of each edge.   # (m,)"""
        return np.repeat(np.arange(self.n, dtype=self.senders.dtype), np.diff(self.indptr))

    @property
    def messages(self) -> int:
        """The number of messages."""
        return len(self.senders) if self.clique is None else len(self.clique) * max(len(self.clique) - 1, 0)

    @property
    def in_degree(self) -> IntArray:
        """The number of models that each node receives.   # (n,)"""
        return np.diff(self.indptr).astype(np.int64) + self._clique_degree

    @property
    def out_degree(self) -> IntArray:
        """The number of models that each node sends.   # (n,)"""
        return np.bincount(self.senders, minlength=self.n) + self._clique_degree

    @property
    def pieces(self) -> int:
        """The number of pieces that a model is cut into, each of them a message: 1, or for an all-reduce the number of members."""
        return max(len(self.clique), 1) if self.exchange == "all-reduce" and self.clique is not None else 1

    @property
    def sent(self) -> IntArray:
        """The number of pieces that each node sends. In an all-reduce each goes round twice: while it is summed, and as the sum.   # (n,)"""
        return self.out_degree * (2 if self.exchange == "all-reduce" else 1)

    @property
    def _clique_degree(self) -> IntArray:
        degree = np.zeros(self.n, dtype=np.int64)
        if self.clique is not None:
            degree[self.clique] = max(len(self.clique) - 1, 0)
        return degree

    def into(self, i: int) -> IntArray:
        """The in-neighbours of node i, ascending."""
        if self.clique is not None:
            return self.clique[self.clique != i] if i in self.clique else self.clique[:0]
        return self.senders[self.indptr[i] : self.indptr[i + 1]]

    def out_of(self, i: int) -> IntArray:
        """The out-neighbours of node i, ascending."""
        return self.into(i) if self.clique is not None else self.receivers[self.senders == i]

    @property
    def undirected(self) -> bool:
        """Whether the in-neighbours of every node are its out-neighbours."""
        if self.clique is not None:
            return True
        adjacency = self._adjacency()
        return bool((adjacency != adjacency.T).nnz == 0)

    @property
    def connected(self) -> bool:
        """Whether the graph is strongly connected: a model of any node can reach every node."""
        if self.clique is not None:
            return len(self.clique) == self.n
        parts = scipy.sparse.csgraph.connected_components(self._adjacency(), connection="strong", return_labels=False)
        return bool(parts == 1)

    def closed_part(self) -> IntArray:
        """The smallest set of nodes with no edge leaving it, ascending; all nodes if the graph is connected."""
        if self.clique is not None and len(self.clique) < self.n:
            return np.setdiff1d(np.arange(self.n), self.clique)[:1]
        if self.clique is not None:
            return self.clique
        count, part = scipy.sparse.csgraph.connected_components(self._adjacency(), connection="strong")
        left = np.zeros(count, dtype=bool)  # components with an outgoing edge
        leaving = part[self.senders] != part[self.receivers]
        left[part[self.senders[leaving]]] = True
        sizes = np.where(left, self.n + 1, np.bincount(part, minlength=count))
        return np.flatnonzero(part == part[np.argmin(sizes[part])])

    def _adjacency(self) -> scipy.sparse.csr_array:
        ones = np.ones(len(self.senders), dtype=np.int8)
        return scipy.sparse.csr_array((ones, self.senders, self.indptr), shape=(self.n, self.n))

    @property
    def edge_keys(self) -> NDArray[np.int64]:
        """One integer per edge, receiver * n + sender, ascending; for searching edges.   # (m,)"""
        return self.receivers.astype(np.int64) * self.n + self.senders

    def digest(self) -> str:
        """16 hex digits by which two hosts check that they drew the same graph."""
        h = hashlib.blake2b(f"{self.n}\0{self.clique is not None}\0".encode(), digest_size=8)
        for part in (self.indptr, self.senders, self.clique):
            if part is not None:
                h.update(part.astype("<i8").tobytes())
        if self.native is not None:
            h.update(self.native.astype("<f8").tobytes())
        return h.hexdigest()

    def __repr__(self) -> str:
        kind = "complete, " if self.clique is not None and len(self.clique) == self.n else ""
        return f"Graph({kind}{count(self.n, 'node')}, {count(self.messages, 'message')}, received by each: {_span(self.in_degree)})"

    def _repr_html_(self) -> str:
        return html_table(
            "Graph",
            [
                ("nodes", f"{self.n:,}"),
                ("messages", f"{self.messages:,}"),
                ("sent by each node", _span(self.out_degree)),
                ("received by each node", _span(self.in_degree)),
                ("undirected", "yes" if self.undirected else "no"),
                ("connected", "yes" if self.connected else "no"),
            ],
        )

    # -- changing -----------------------------------------------------------------------------------------------------

    def keep(self, kept: NDArray[np.bool_]) -> Graph:
        """The graph with the edges that the (m,) mask keeps."""
        before = np.concatenate([[0], np.cumsum(kept)])
        return Graph(
            self.n,
            before[self.indptr].astype(self.indptr.dtype),
            self.senders[kept],
            None if self.native is None else self.native[kept],
            exchange=self.exchange,
        )

    def among(self, alive: NDArray[np.bool_]) -> Graph:
        """The graph of the edges whose sender and receiver are both in the (n,) mask."""
        if alive.all():
            return self
        if self.clique is not None:
            return Graph.complete(self.n, self.clique[alive[self.clique]], self.exchange)
        return self.keep(alive[self.senders] & alive[self.receivers])


def _span(degree: IntArray) -> str:
    low, high = (int(degree.min()), int(degree.max())) if len(degree) else (0, 0)
    return f"{low}" if low == high else f"{low} to {high}"


def _index_type(largest: int) -> type[np.signedinteger[Any]]:
    return np.int32 if largest < 2**31 - 1 else np.int64
