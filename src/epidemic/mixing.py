"""Mixing weights: from the graph of a round to the weights of an average.

Row i of W has the weights of node i for the models that it receives and for its own; rows sum to 1.
  uniform               all received models and the own one count equally, 1 / (number received + 1)   (Epidemic Learning)
  samples               all received models and the own one count by the number of training samples
  metropolis-hastings   1 / (1 + the larger degree of the two), undirected graphs only             (D-PSGD)
  native                the weights that the topology provides                      (EquiTopo, Base-(k+1), MATCHA)

Weights of others are never negative. That of a node's own model is the rest to 1, which in MATCHA may be less than 0.

If messages are missing, the first two rules apply to what arrived. The other two apply to the intended graph: weights stay, and the weight of what did not
arrive goes to the node itself.

Shapes: n nodes, d model size, X is (n, d).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import NDArray

from epidemic.core.errors import BadInput, RunFailed, require_choice
from epidemic.core.graph import EDGE_LIMIT, FloatArray, Graph, IntArray

Rule = Literal["uniform", "samples", "metropolis-hastings", "native"]
RULES = ("uniform", "samples", "metropolis-hastings", "native")

OF_WHAT_ARRIVED = ("uniform", "samples")
"""The rules that go by what arrived alone, so that a message may be redirected."""

NEEDS_NATIVE = (
    'mixing = "native" needs a topology with weights of its own (an EquiTopo, base or matcha)',
    'use "uniform"',
)
NEEDS_BOTH_WAYS = ('mixing = "metropolis-hastings" needs links that go both ways', 'use mixing = "uniform"')
"""Why rules and graphs do not go together, and what to do instead."""

DENSE_LIMIT = 1000
"""Up to this many nodes spectra are computed densely."""

ITERATIVE_LIMIT = 100_000
"""Beyond this many nodes an iterative spectrum takes minutes and gigabytes; see `affordable`."""


@dataclass(frozen=True, eq=False)
class Weights:
    """A matrix whose rows sum to 1: sparse, or (for a complete graph) a shared sum over the members of a clique."""

    n: int
    matrix: scipy.sparse.csr_array | None  # (n, n), each row its own weight first, then the senders ascending
    clique: IntArray | None = None
    share: float = 0.0  # a member i takes share * (sum over the clique) + own * its own
    besides: float | None = None  # that `own`; None: what is left to 1
    portions: FloatArray | None = (
        None  # (m,) instead of a share: how much each member of the clique counts, for all of them
    )

    def __matmul__(self, x: Any) -> Any:
        """W @ X for a NumPy array, (n, d) -> (n, d), in its precision. Models are mixed by `host.mixture`, on all threads."""
        if self.matrix is not None:
            return self.matrix.astype(x.dtype) @ x
        assert self.clique is not None
        members = x[self.clique]
        mixed = x.copy()
        if self.portions is not None:
            mixed[self.clique] = self.portions.astype(x.dtype) @ members
            return mixed
        mixed[self.clique] = self.share * members.sum(axis=0) + self.own * members
        return mixed

    @property
    def own(self) -> float:
        """A clique member's weight of its own model besides the share."""
        assert self.clique is not None
        return 1 - self.share * len(self.clique) if self.besides is None else self.besides

    @property
    def ones(self) -> Weights:
        """The same messages, each counted whole: sums instead of means."""
        if self.matrix is None:
            return Weights(self.n, None, self.clique, 1.0, 0.0)
        m = self.matrix
        return Weights(self.n, scipy.sparse.csr_array((np.ones(len(m.data)), m.indices, m.indptr), shape=m.shape))

    @property
    def spelled_out(self) -> scipy.sparse.csr_array:
        """The matrix, also of a complete graph; each row its own weight first, then the senders ascending."""
        if self.matrix is not None:
            return self.matrix
        assert self.clique is not None
        size = len(self.clique)
        if size * size > EDGE_LIMIT:
            raise BadInput(
                f"a complete graph of {size} nodes has {size * (size - 1)} edges, too many to average compressed messages over;"
                " use fewer nodes, a sparse topology, or no [compression]"
            )
        if not self.n:
            return scipy.sparse.csr_array((0, 0))
        rows = list(self.by_row())
        indptr = np.concatenate([[0], np.cumsum([len(at) for at, _ in rows])])
        indices, data = (np.concatenate(parts) for parts in zip(*rows, strict=True))
        return scipy.sparse.csr_array((data, indices, indptr), shape=(self.n, self.n))

    def among(self, who: IntArray) -> Weights:
        """The weights of these nodes alone, which receive only from each other; renumbered in this order."""
        if self.matrix is None:
            assert self.clique is not None
            return Weights(len(who), None, np.searchsorted(who, self.clique), self.share, self.besides, self.portions)
        number = np.zeros(self.n, dtype=self.matrix.indices.dtype)
        number[who] = np.arange(len(who))
        lengths = np.diff(self.matrix.indptr)[who]
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(self.matrix.indptr.dtype)
        at = np.arange(indptr[-1]) + np.repeat(self.matrix.indptr[who] - indptr[:-1], lengths)
        parts = (self.matrix.data[at], number[self.matrix.indices[at]], indptr)
        return Weights(len(who), scipy.sparse.csr_array(parts, shape=(len(who), len(who))))

    def by_row(self, rows: range | None = None) -> Iterator[tuple[IntArray, FloatArray]]:
        """For each node (or each of some), its in-neighbours with itself first, and their weights."""
        for i in range(self.n) if rows is None else rows:
            if self.matrix is not None:
                part = slice(self.matrix.indptr[i], self.matrix.indptr[i + 1])
                yield self.matrix.indices[part].astype(np.int64), self.matrix.data[part]
            elif self.clique is not None and i in self.clique:
                others = self.clique[self.clique != i]
                if self.portions is not None:
                    mine = self.clique == i
                    yield np.concatenate([[i], others]), np.concatenate([self.portions[mine], self.portions[~mine]])
                    continue
                yield np.concatenate([[i], others]), np.array([self.share + self.own, *[self.share] * len(others)])
            else:
                yield np.array([i]), np.ones(1)

    def dense(self) -> FloatArray:
        """The whole (n, n) matrix, for small n."""
        mixed: FloatArray = self @ np.eye(self.n)
        return mixed

    @property
    def transpose(self) -> Weights:
        """W^T; of a clique that shares alike it is W itself."""
        if self.matrix is not None:
            return Weights(self.n, self.matrix.T.tocsr())
        return self if self.portions is None else Weights(self.n, scipy.sparse.csr_array(self.dense().T))


def weights(rule: str, intended: Graph, arrived: Graph | None = None, samples: IntArray | None = None) -> Weights:
    """The weights of a round: `intended` is the topology's graph, `arrived` what was received (default: all).

    The rule "samples" needs the number of training samples of each node.   # (n,)
    """
    require_choice("mixing", rule, RULES)
    arrived = intended if arrived is None else arrived
    if rule == "samples":
        return _by_samples(arrived, samples)
    if arrived.clique is not None:
        whole = arrived if rule == "uniform" else intended
        size = arrived.n if whole.clique is None else max(len(whole.clique), 1)
        return Weights(arrived.n, None, arrived.clique, 1 / size)
    if rule == "uniform":
        return _with_own(arrived, np.repeat(1 / (1 + arrived.in_degree), np.diff(arrived.indptr)))
    if not intended.messages and intended.clique is None:  # of one node, or none, where few take part
        return _with_own(arrived, np.zeros(0))
    if rule == "native" and intended.native is None and intended.clique is None:
        raise BadInput("; ".join(NEEDS_NATIVE))
    if intended.clique is not None:
        return _with_own(arrived, np.full(arrived.messages, 1 / max(len(intended.clique), 1)))
    edge = intended.native if rule == "native" else _metropolis_hastings(intended)
    assert edge is not None
    return _with_own(arrived, edge if arrived is intended else edge[_positions(arrived, intended, rule)])


def _by_samples(arrived: Graph, samples: IntArray | None) -> Weights:
    """Weights by samples. Sums of integers are exact here, so equal numbers give the uniform weights to the last bit."""
    if samples is None or len(samples) != arrived.n or (samples < 1).any():
        raise BadInput(f'mixing = "samples" needs a number of samples, at least 1, for each of {arrived.n} nodes')
    if arrived.clique is not None:
        members = samples[arrived.clique]
        return Weights(arrived.n, None, arrived.clique, portions=members / max(members.sum(), 1))
    said = samples[arrived.senders].astype(np.float64)
    total = samples + np.bincount(arrived.receivers, weights=said, minlength=arrived.n)
    return _with_own(arrived, said / total[arrived.receivers])


def _metropolis_hastings(graph: Graph) -> FloatArray:
    if not graph.undirected:
        raise BadInput("; ".join(NEEDS_BOTH_WAYS))
    degree = graph.in_degree
    return 1 / (1 + np.maximum(degree[graph.senders], degree[graph.receivers]))


def _positions(arrived: Graph, intended: Graph, rule: str) -> NDArray[np.intp]:
    """The position of each edge that arrived among the intended ones."""
    wanted, keys = intended.edge_keys, arrived.edge_keys
    at = np.searchsorted(wanted, keys)
    if len(keys) and (len(wanted) == 0 or (wanted[np.minimum(at, len(wanted) - 1)] != keys).any()):
        raise BadInput(
            f'mixing = "{rule}" has no weight for a redirected message; use faults.max_retries = 0 or "uniform"'
        )
    return at


def _with_own(graph: Graph, edge: FloatArray) -> Weights:
    """CSR of the edge weights, each row opened by the weight of the node's own model."""
    n = graph.n
    indptr = graph.indptr + np.arange(n + 1, dtype=graph.indptr.dtype)
    first = indptr[:-1]
    rest = np.arange(len(edge)) + graph.receivers + 1
    indices = np.empty(len(edge) + n, dtype=indptr.dtype)
    indices[first], indices[rest] = np.arange(n), graph.senders
    data = np.empty(len(edge) + n)
    data[first], data[rest] = 1 - np.bincount(graph.receivers, weights=edge, minlength=n), edge
    return Weights(n, scipy.sparse.csr_array((data, indices, indptr), shape=(n, n)))


# -- how fast it mixes ------------------------------------------------------------------------------------------------


class Spectrum(msgspec.Struct, frozen=True):
    """sigma = ||W - J||_2, gap = 1 - sigma, p = 1 - sigma^2 (the parameter of D-SGD's convergence theory)."""

    sigma: float
    gap: float
    p: float


def spectrum(w: Weights) -> Spectrum:
    """Largest singular value of W - J; for large n by FFT if all rows are alike, else iterative (ARPACK)."""
    n = w.n
    if n == 1:
        sigma = 0.0
    elif w.matrix is None and w.clique is not None:
        sigma = _clique_sigma(w, w.clique)
    elif n <= DENSE_LIMIT:
        sigma = float(np.linalg.norm(w.dense() - 1 / n, ord=2))
    else:
        row = _circulant(w)
        sigma = _largest_singular_value(w) if row is None else float(np.abs(np.fft.fft(row)[1:]).max())
    sigma = 1.0 if abs(sigma - 1) < 1e-12 else sigma  # rounding
    return Spectrum(sigma, 1 - sigma, 1 - sigma**2)


def _clique_sigma(w: Weights, clique: IntArray) -> float:
    """The same for a clique from which the others receive nothing.

    W - J keeps what the others have if it sums to nothing; the rest of the result is the same for all members, and for all others.
    """
    n, m = w.n, len(clique)
    if w.portions is None:
        return 1.0 if m < n else abs(1 - w.share * n)
    members = np.zeros(n)
    members[clique] = w.portions * np.sqrt(m)
    sides = [members - np.sqrt(m) / n]
    if m < n:
        others = np.full(n, 1 / np.sqrt(n - m))
        others[clique] = 0
        sides.append(others - np.sqrt(n - m) / n)
    return max(float(n - m >= 2), float(np.linalg.norm(np.stack(sides), ord=2)))


def affordable(w: Weights) -> bool:
    """Whether the spectrum takes seconds at most: the graph is not too large, or there is a closed form."""
    return w.n <= ITERATIVE_LIMIT or w.matrix is None or _circulant(w) is not None


def _circulant(w: Weights) -> FloatArray | None:
    """The first row of W if every row is the one above moved on by one (then W is normal, with eigenvalues by FFT); else None."""
    n, matrix = w.n, w.matrix
    if matrix is None or (np.diff(matrix.indptr) != matrix.indptr[1]).any():
        return None
    width = int(matrix.indptr[1])
    columns, data = matrix.indices.reshape(n, width), matrix.data.reshape(n, width)

    def ahead(rows: slice) -> tuple[IntArray, FloatArray]:
        """How far ahead each entry stands, ascending, and its value."""
        far = (columns[rows] - np.arange(n)[rows, None]) % n
        order = np.argsort(far, axis=1)
        return np.take_along_axis(far, order, 1), np.take_along_axis(data[rows], order, 1)

    far, value = ahead(slice(0, 1))
    for rows in (slice(0, 2), slice(0, n)):  # two rows tell most graphs apart
        distance, weight = ahead(rows)
        if (distance != far).any() or np.abs(weight - value).max() > 1e-14:  # sums in another order differ by rounding
            return None
    row = np.zeros(n)
    row[far[0]] = value[0]
    return row


def _largest_singular_value(w: Weights) -> float:
    n, back = w.n, w.transpose

    def squared(x: FloatArray) -> FloatArray:  # (W - J)^T (W - J) x
        y = w @ x - x.mean()
        z: FloatArray = back @ y - y.mean()
        return z

    operator = scipy.sparse.linalg.LinearOperator((n, n), matvec=squared, dtype=np.float64)
    start = np.cos(np.arange(n) * 0.7) + np.linspace(-1, 1, n)
    try:
        largest = scipy.sparse.linalg.eigsh(
            operator, k=1, which="LA", ncv=min(n, 96), v0=start, return_eigenvectors=False, maxiter=400
        )
    except scipy.sparse.linalg.ArpackNoConvergence:
        raise RunFailed(
            f"the spectrum of a graph of {n} nodes did not converge (its gap is too small to resolve); use fewer nodes"
        ) from None
    return float(np.sqrt(max(largest[0], 0.0)))


def disagreement(x: Any) -> float:
    """D(X): the mean squared distance of the rows of X to their mean."""
    centred = x - x.mean(0)
    return float((centred**2).sum() / x.shape[0])
