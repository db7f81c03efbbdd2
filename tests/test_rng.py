"""Laws of the keyed streams."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epidemic.core.errors import BadInput
from epidemic.core.rng import Stream, Streams, distinct, words_of


def test_the_generator_is_philox_4x64_10_as_published():
    """Known-answer vectors of Random123: key and counter all zeros, and all ones."""
    # NumPy steps the counter before the first block, so the published counter 0 is reached from 2**256 - 1.
    zero = np.random.Philox(key=0, counter=2**256 - 1)
    assert [hex(int(w)) for w in zero.random_raw(4)] == [
        "0x16554d9eca36314c",
        "0xdb20fe9d672d0fdc",
        "0xd7e772cee186176b",
        "0x7e68b68aec7ba23b",
    ]
    ones = np.random.Philox(key=2**128 - 1, counter=2**256 - 2)
    assert [hex(int(w)) for w in ones.random_raw(4)] == [
        "0x87b092c3013fe90b",
        "0x438c3c67be8d0224",
        "0x9cc7d7c69cd777b6",
        "0xa09caebf594f0ba0",
    ]


def test_golden_draws():
    """What hosts must agree on never changes: not with NumPy, not with the platform, not by accident."""
    streams = Streams(1)
    assert streams.key("topology", 7) == GOLDEN["key"]
    assert streams("topology", 7).words(2).tolist() == GOLDEN["words"]
    assert streams("topology", 7).uniforms(2).tolist() == GOLDEN["uniforms"]
    assert streams("topology", 7).integers(1000, 6).tolist() == GOLDEN["integers"]
    assert streams("topology", 7).permutation(8).tolist() == GOLDEN["permutation"]
    assert distinct(streams("topology", 7), 2, 10, 4).tolist() == GOLDEN["distinct"]


GOLDEN = {
    "key": 49325608941503427289631789615567072247,
    "words": [9641381225113340937, 6819912077935383712],
    "uniforms": [0.5226603235014419, 0.36970817455288363],
    "integers": [522, 369, 789, 857, 478, 228],
    "permutation": [6, 5, 1, 4, 0, 7, 2, 3],
    "distinct": [[3, 5, 7, 8], [1, 2, 4, 6]],
}


def test_numpys_generator_draws_from_the_same_words():
    """So that it is the same on every host: its words are the golden ones, and `random` maps them as we do."""
    streams = Streams(1)
    assert streams.generator("topology", 7).bit_generator.random_raw(2).tolist() == GOLDEN["words"]
    assert streams.generator("topology", 7).random(2).tolist() == GOLDEN["uniforms"]


def test_numpys_generator_depends_on_its_key_alone():
    streams = Streams(3)
    drawn = streams.generator("topology", 7).choice(96, size=5, replace=False).tolist()
    streams.generator("topology", 8).random(100)
    assert streams.generator("topology", 7).choice(96, size=5, replace=False).tolist() == drawn
    others = [Streams(4).generator("topology", 7), streams.generator("other", 7), streams.generator("topology", 8)]
    assert all(
        one.choice(96, size=5, replace=False).tolist() != drawn
        for one in [*others, streams.of_part(1).generator("topology", 7)]
    )


@given(st.integers(0, 2**63 - 1), st.text(max_size=8), st.integers(0, 10**6))
def test_a_stream_depends_on_its_key_alone(seed, purpose, index):
    streams = Streams(seed)
    first = streams(purpose, index).words(4)
    streams(purpose, index + 1).words(100)
    assert (streams(purpose, index).words(4) == first).all()


def test_streams_of_different_keys_are_different():
    keys = {
        Streams(seed).key(purpose, *index)
        for seed, purpose, index in itertools.product((0, 1, 11), ("a", "b"), ((), (0,), (1,), (11,), (1, 1)))
    }
    assert len(keys) == 3 * 2 * 5


def test_streams_of_different_keys_are_uncorrelated():
    """5 sigma on the correlation of neighbouring rounds, purposes and seeds."""
    size = 100_000
    base = Streams(1)("batches", 1).uniforms(size)
    for other in (Streams(1)("batches", 2), Streams(1)("topology", 1), Streams(2)("batches", 1)):
        r = np.corrcoef(base, other.uniforms(size))[0, 1]
        assert abs(r) < 5 / math.sqrt(size)


def test_integers_are_uniform():
    high, size = 7, 70_000
    count = np.bincount(Streams(3)("x").integers(high, size), minlength=high)
    assert np.abs(count - size / high).max() < 5 * math.sqrt(size / high * (1 - 1 / high))


def test_normals_have_the_moments_of_the_normal_law():
    x = Streams(3)("x").normals(200_001)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean() - moment) < 5 * math.sqrt(variance / x.size)


@given(st.integers(0, 9), st.integers(1, 40), st.data())
def test_distinct_gives_sorted_distinct_numbers_in_range(rows, population, data):
    size = data.draw(st.integers(0, population))
    drawn = distinct(Stream(5), rows, population, size)
    assert drawn.shape == (rows, size)
    assert (np.diff(drawn, axis=1) > 0).all()
    assert drawn.size == 0 or (drawn.min() >= 0 and drawn.max() < population)


@pytest.mark.parametrize(("population", "size"), [(5, 2), (5, 3), (6, 3)])
def test_distinct_gives_every_subset_equally_often(population, size):
    rows = 60_000
    drawn = distinct(Streams(2)("x"), rows, population, size)
    subsets, counts = np.unique(drawn, axis=0, return_counts=True)
    expected = rows / math.comb(population, size)
    assert len(subsets) == math.comb(population, size)
    assert np.abs(counts - expected).max() < 5 * math.sqrt(expected)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, True, "1"])
def test_a_bad_seed_is_refused(seed):
    with pytest.raises(BadInput, match="seed"):
        Streams(seed)


@given(st.lists(st.integers(0, 2**128 - 1), max_size=5), st.integers(0, 40))
def test_words_of_many_keys_are_those_of_each_stream(keys, size):
    found = words_of(keys, size)
    assert found.shape == (len(keys), size)
    for row, key in zip(found, keys, strict=True):
        assert (row == Stream(key).words(size)).all()


@given(st.integers(0, 2**40), st.lists(st.integers(0, 2**40), max_size=5), st.integers(0, 3))
def test_keys_at_once_are_those_one_by_one(seed, last, part):
    streams = Streams(seed).of_part(part)
    assert streams.keys("x", 3, last=last) == [streams.key("x", 3, i) for i in last]
