"""Partitions: frozen values that split the training samples among the nodes.

Every sample goes to exactly one node (but explicit sizes may leave some out). A split that is impossible is an error, never silently replaced by another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special
from numpy.typing import NDArray

from epidemic.core.errors import BadInput, require_int, require_real
from epidemic.core.rng import Stream
from epidemic.core.settings import Settings
from epidemic.data.base import Samples

Parts = list[NDArray[np.int64]]

ATTEMPTS = 500
"""How often a Dirichlet split is drawn again when a node falls short, before giving up."""


class Partition(Settings, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the partitions: how the training samples are divided among the nodes."""

    min_samples: int = 1
    """The fewest samples that a node may end up with."""

    def __post_init__(self) -> None:
        require_int("partition.min_samples", self.min_samples, 1)

    def split(self, samples: Samples, n: int, stream: Stream) -> Parts:
        """The sample numbers of each node: disjoint, complete, and each of at least `min_samples`."""
        require_int("nodes", n, 1)
        if n * self.min_samples > len(samples):
            raise BadInput(
                f"{n} nodes of at least {self.min_samples} samples need {n * self.min_samples}, but there are {len(samples)};"
                " use fewer nodes, a smaller partition.min_samples or more data"
            )
        parts = [np.asarray(part, dtype=np.int64) for part in self.divide(samples, n, stream)]
        smallest = int(np.argmin([len(part) for part in parts]))
        if len(parts[smallest]) < self.min_samples:
            raise BadInput(
                f"node {smallest} gets {len(parts[smallest])} samples, fewer than partition.min_samples = {self.min_samples};"
                " use fewer nodes or more data"
            )
        return parts

    def divide(self, samples: Samples, n: int, stream: Stream) -> Parts:
        """Return the positions of each node's samples. Each kind of partition implements this; `split` checks the result."""
        raise NotImplementedError


class IID(Partition, frozen=True, tag="iid"):
    """Every node gets a random share of nearly equal size."""

    def divide(self, samples: Samples, n: int, stream: Stream) -> Parts:
        return list(np.array_split(stream.permutation(len(samples)), n))


class Dirichlet(Partition, frozen=True, tag="dirichlet"):
    """Class by class, in Dirichlet(alpha) shares, skipping nodes that already hold their fair share.

    The variant that the paper's code uses. Drawn again until every node has `min_samples`.
    """

    alpha: float = 0.1
    min_samples: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("partition.alpha", self.alpha, above=0)

    def divide(self, samples: Samples, n: int, stream: Stream) -> Parts:
        by_class = _by_class(samples, "dirichlet")
        fewest = 0
        for _ in range(ATTEMPTS):
            parts = self._attempt(by_class, len(samples), n, stream)
            fewest = max(fewest, min(len(part) for part in parts))
            if fewest >= self.min_samples:
                return [part[stream.permutation(len(part))] for part in parts]
        raise BadInput(
            f"partition.alpha = {self.alpha:g} with {n} nodes: in {ATTEMPTS} attempts some node always had fewer than"
            f" partition.min_samples = {self.min_samples} samples (best {fewest}); lower it, raise alpha or use fewer nodes"
        )

    def _attempt(self, by_class: Parts, total: int, n: int, stream: Stream) -> Parts:
        held = np.zeros(n)
        pieces: list[Parts] = [[] for _ in range(n)]
        for members in by_class:
            order = members[stream.permutation(len(members))]
            share = dirichlet(self.alpha, n, stream)
            open_share = np.where(held < total / n, share, 0.0)
            if open_share.sum() > 0:  # otherwise all nodes are full (or there is only one)
                share = open_share / open_share.sum()
            cuts = (np.cumsum(share)[:-1] * len(order)).astype(np.int64)
            for i, piece in enumerate(np.split(order, cuts)):
                pieces[i].append(piece)
                held[i] += len(piece)
        return [np.concatenate(piece) for piece in pieces]


class DirichletHsu(Partition, frozen=True, tag="dirichlet-hsu"):
    """Every node gets the same number of samples, in its own class mixture drawn from Dirichlet(alpha * prior).

    Hsu, Qi and Brown (2019). When a class runs out, the others take its place.
    """

    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("partition.alpha", self.alpha, above=0)

    def divide(self, samples: Samples, n: int, stream: Stream) -> Parts:
        by_class = _by_class(samples, "dirichlet-hsu")
        left = [list(members[stream.permutation(len(members))]) for members in by_class]
        prior = np.array([len(members) for members in by_class]) / len(samples)
        sizes = [len(part) for part in np.array_split(np.arange(len(samples)), n)]
        mixtures = [_gammas(self.alpha * prior, stream) for _ in range(n)]
        parts: Parts = []
        for size, mixture in zip(sizes, mixtures, strict=True):
            taken = []
            for u in stream.uniforms(size):
                available = np.array([bool(pool) for pool in left])
                weight = np.where(available, mixture, 0.0)
                if weight.sum() <= 0:  # the preferred classes are used up: take what is left
                    weight = available * prior
                cumulative = np.cumsum(weight)
                chosen = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
                taken.append(left[min(chosen, len(left) - 1)].pop())
            parts.append(np.array(taken, dtype=np.int64))
        return parts


class Shards(Partition, frozen=True, tag="shards"):
    """Sorted by label, cut into n * shards pieces, `shards` random pieces for each node (McMahan et al. 2017)."""

    shards: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("partition.shards", self.shards, 1)

    def divide(self, samples: Samples, n: int, stream: Stream) -> Parts:
        _by_class(samples, "shards")
        if n * self.shards > len(samples):
            raise BadInput(
                f"partition.shards = {self.shards} with {n} nodes needs {n * self.shards} samples, there are {len(samples)}"
            )
        order = stream.permutation(len(samples))
        order = order[np.argsort(samples.targets[order], kind="stable")]
        pieces = np.array_split(order, n * self.shards)
        dealt = stream.permutation(n * self.shards).reshape(n, self.shards)
        return [np.concatenate([pieces[j] for j in row]) for row in dealt]


class Natural(Partition, frozen=True, tag="natural"):
    """By the producer of the samples (FEMNIST: the writer); the groups are shuffled and dealt out evenly."""

    def divide(self, samples: Samples, n: int, stream: Stream) -> Parts:
        if samples.groups is None:
            raise BadInput(
                'partition.kind = "natural" needs data that says who produced each sample (femnist, or train_groups)'
            )
        groups = np.unique(samples.groups)
        if len(groups) < n:
            raise BadInput(
                f'partition.kind = "natural": {len(groups)} groups cannot be dealt to {n} nodes; use at most {len(groups)}'
            )
        # As many groups as nodes: node i gets group i, so that what a node holds is known beforehand.
        order = groups if len(groups) == n else groups[stream.permutation(len(groups))]
        return [np.flatnonzero(np.isin(samples.groups, own)) for own in np.array_split(order, n)]


class Explicit(Partition, frozen=True, tag="explicit"):
    """Random shares of given `sizes` (samples per node) or `weights` (relative)."""

    sizes: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.sizes) == bool(self.weights):
            raise BadInput('partition.kind = "explicit" needs either sizes or weights')
        for size in self.sizes:
            require_int("partition.sizes", size, 1)
        for weight in self.weights:
            require_real("partition.weights", weight, above=0)

    def divide(self, samples: Samples, n: int, stream: Stream) -> Parts:
        given = self.sizes or self.weights
        name = "sizes" if self.sizes else "weights"
        if len(given) != n:
            raise BadInput(f"partition.{name} has {len(given)} entries, but there are {n} nodes")
        if self.sizes and sum(self.sizes) > len(samples):
            raise BadInput(f"partition.sizes ask for {sum(self.sizes)} samples, but there are {len(samples)}")
        ends = np.cumsum(self.sizes) if self.sizes else _ends(self.weights, len(samples))
        order = stream.permutation(len(samples))
        return np.split(order[: int(ends[-1])], ends[:-1])


PARTITIONS: dict[str, type[Partition]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "dirichlet-hsu": DirichletHsu,
    "shards": Shards,
    "natural": Natural,
    "explicit": Explicit,
}


def dirichlet(alpha: float, size: int, stream: Stream) -> NDArray[Any]:
    """One draw from the distribution Dirichlet(alpha, ..., alpha)."""
    drawn = _gammas(np.full(size, alpha), stream)
    return np.asarray(drawn / drawn.sum())


def _gammas(shapes: NDArray[np.float64], stream: Stream) -> NDArray[Any]:
    """Gamma variables up to a common factor, through the inverse of their law; never all zero."""
    drawn = scipy.special.gammaincinv(shapes, stream.uniforms(len(shapes)))
    if drawn.sum() == 0:  # all below the smallest float: the largest takes everything
        drawn[int(stream.integers(len(shapes), 1)[0])] = 1.0
    return np.asarray(drawn)


def _ends(weights: tuple[float, ...], total: int) -> NDArray[Any]:
    share = np.cumsum(weights) / np.sum(weights)
    return np.asarray(np.round(share * total).astype(np.int64))


def _by_class(samples: Samples, kind: str) -> Parts:
    """The numbers of the samples of each class."""
    if samples.targets.ndim != 1 or not np.issubdtype(samples.targets.dtype, np.integer):
        raise BadInput(f'partition.kind = "{kind}" needs class labels; use "iid" or "natural"')
    return [np.flatnonzero(samples.targets == label) for label in np.unique(samples.targets)]
