"""Laws of the partitions: disjoint, complete, as heterogeneous as published, and never silently another one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epidemic.core.config import build_kind
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.data import IID, PARTITIONS, Dirichlet, DirichletHsu, Explicit, Natural, Samples, Shards


def _samples(size, classes=10, groups=None):
    targets = np.arange(size) % classes
    return Samples(np.zeros((size, 1), np.float32), targets, None if groups is None else np.arange(size) % groups)


@settings(max_examples=150)
@given(
    st.sampled_from([IID(), Dirichlet(min_samples=1), Dirichlet(alpha=5.0, min_samples=2), DirichletHsu(), Shards(), Shards(shards=3), Natural()]),
    st.integers(1, 12),
    st.integers(100, 300),
    st.integers(0, 99),
)  # fmt: skip
def test_every_sample_goes_to_exactly_one_node(partition, n, size, seed):
    samples = _samples(size, groups=30)
    parts = partition.split(samples, n, Streams(seed)("partition"))
    assert len(parts) == n
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(size))
    assert min(map(len, parts)) >= partition.min_samples
    again = partition.split(samples, n, Streams(seed)("partition"))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_iid_sizes_are_equal_up_to_one():
    sizes = [len(p) for p in IID().split(_samples(50_000), 96, Streams(1)("partition"))]
    assert sorted(set(sizes)) == [520, 521]
    assert sizes.count(521) == 80


def _statistics(partition, seeds, samples):
    found = []
    for seed in seeds:
        parts = partition.split(samples, 96, Streams(seed)("partition"))
        counts = np.stack([np.bincount(samples.targets[p], minlength=10) for p in parts])
        sizes = counts.sum(1)
        found.append(
            [
                sizes.min(),
                np.median(sizes),
                sizes.max(),
                sizes.std(),
                (counts > 0).sum(1).mean(),
                (counts.max(1) / sizes).mean(),
            ]
        )
    return np.array(found)


def test_the_authors_dirichlet_is_as_uneven_as_published():
    """n = 96, N = 50,000: over 20 seeds, alpha 0.1 and alpha 1.0."""
    samples = _samples(50_000)
    low = _statistics(Dirichlet(), range(20), samples)
    assert low[:, 0].min() >= 10
    assert low[:, 0].max() <= 40
    assert abs(low[:, 1].mean() - 462) < 30
    assert low[:, 2].min() > 1200
    assert low[:, 2].max() < 3500
    assert abs(low[:, 3].mean() - 406) < 40
    assert abs(low[:, 4].mean() - 4.2) < 0.15
    assert abs(low[:, 5].mean() - 0.72) < 0.02
    high = _statistics(Dirichlet(alpha=1.0), range(20), samples)
    assert abs(high[:, 1].mean() - 535) < 15
    assert abs(high[:, 3].mean() - 114) < 15
    assert abs(high[:, 4].mean() - 9.0) < 0.15
    assert abs(high[:, 5].mean() - 0.32) < 0.02


def test_hsus_dirichlet_gives_everybody_the_same_number():
    samples = _samples(9_600)
    parts = DirichletHsu(alpha=0.1).split(samples, 96, Streams(1)("partition"))
    assert {len(p) for p in parts} == {100}
    held = np.array([len(np.unique(samples.targets[p])) for p in parts])
    assert held.mean() < 5
    flat = DirichletHsu(alpha=1000.0).split(samples, 96, Streams(1)("partition"))
    assert np.mean([len(np.unique(samples.targets[p])) for p in flat]) > 9.8


def test_one_node_gets_everything():
    for partition in (IID(), Dirichlet(), DirichletHsu(), Shards(), Natural()):
        parts = partition.split(_samples(50, groups=5), 1, Streams(1)("partition"))
        assert np.array_equal(np.sort(parts[0]), np.arange(50))


def test_shards_give_few_classes():
    samples = _samples(2000)
    parts = Shards(shards=2).split(samples, 20, Streams(1)("partition"))
    assert max(len(np.unique(samples.targets[p])) for p in parts) <= 4
    assert {len(p) for p in parts} == {100}


def test_natural_keeps_writers_together_and_spreads_the_remainder():
    samples = _samples(359, groups=37)
    parts = Natural().split(samples, 10, Streams(1)("partition"))
    owners = [set(samples.groups[p].tolist()) for p in parts]
    assert sum(map(len, owners)) == 37
    assert {len(o) for o in owners} == {3, 4}
    exact = Natural().split(_samples(40, groups=8), 8, Streams(1)("partition"))
    assert [set((p % 8).tolist()) for p in exact] == [{i} for i in range(8)]


def test_explicit_sizes_and_weights():
    samples = _samples(100)
    parts = Explicit(sizes=(10, 20, 30)).split(samples, 3, Streams(1)("partition"))
    assert [len(p) for p in parts] == [10, 20, 30]
    assert len(np.unique(np.concatenate(parts))) == 60
    parts = Explicit(weights=(1.0, 1.0, 2.0)).split(samples, 3, Streams(1)("partition"))
    assert [len(p) for p in parts] == [25, 25, 50]


@pytest.mark.parametrize(
    ("partition", "samples", "n", "message"),
    [
        (IID(), _samples(5), 6, "6 nodes of at least 1 samples need 6, but there are 5"),
        (Dirichlet(), _samples(500), 60, "60 nodes of at least 10 samples need 600"),
        (Dirichlet(alpha=0.01), _samples(500), 49, "in 500 attempts some node always had fewer than partition.min_samples = 10"),
        (DirichletHsu(min_samples=20), _samples(100), 6, "need 120"),
        (Natural(), _samples(100), 5, "who produced each sample"),
        (Natural(), _samples(100, groups=3), 5, "3 groups cannot be dealt to 5 nodes"),
        (Shards(shards=30), _samples(100), 5, "needs 150 samples"),
        (Explicit(sizes=(5, 5)), _samples(100), 3, "partition.sizes has 2 entries, but there are 3 nodes"),
        (Explicit(sizes=(90, 20)), _samples(100), 2, "ask for 110 samples"),
        (Explicit(weights=(1.0, 1e-9)), _samples(100), 2, "node 1 gets 0 samples"),
        (Dirichlet(), Samples(np.zeros((50, 1)), np.zeros((50, 2))), 2, "needs class labels"),
        (Shards(), Samples(np.zeros((50, 1)), np.zeros((50, 2))), 2, "needs class labels"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_an_error(partition, samples, n, message):
    with pytest.raises(BadInput) as caught:
        partition.split(samples, n, Streams(1)("partition"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "dirichlet", "alpha": 0}, "partition.alpha = 0.0 must be greater than 0"),
        ({"kind": "dirichlet", "alfa": 1}, "did you mean 'alpha'?"),
        ({"kind": "iid", "min_samples": 0}, "partition.min_samples = 0 must be at least 1"),
        ({"kind": "explicit"}, "either sizes or weights"),
        ({"kind": "explicit", "sizes": [0]}, "partition.sizes = 0 must be at least 1"),
        ({"kind": "shards", "shards": 0}, "partition.shards = 0 must be at least 1"),
        ({"kind": "dirichlet_hsu"}, "did you mean 'dirichlet-hsu'?"),
    ],
)
def test_wrong_tables(table, message):
    with pytest.raises(BadInput) as caught:
        build_kind(table, PARTITIONS, "partition")
    assert message in str(caught.value)
