"""Laws of the batches: who hosts what, and what was asked before, has no influence on which samples a node trains on."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import epidemic as ep
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.runtime.batches import SAMPLINGS, Batches
from epidemic.runtime.evaluations import held_of
from epidemic.runtime.setup import prepare


@st.composite
def populations(draw):
    """The samples of each node, local steps and batch size; from a single sample to many more than a round takes."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    everything = np.random.default_rng(draw(st.integers(0, 99))).permutation(sum(sizes))
    return np.split(everything, np.cumsum(sizes)[:-1]), draw(st.integers(1, 3)), draw(st.integers(1, 9))


def _batches(population, sampling, hosted=slice(None)):
    parts, steps, batch = population
    own = [parts[i] for i in np.arange(len(parts))[hosted]]
    return Batches(own, steps, batch, nodes=len(parts), hosted=hosted, sampling=sampling)


@given(population=populations(), seed=st.integers(0, 2**40))
def test_every_epoch_uses_each_sample_exactly_once(population, seed):
    parts, steps, batch = population
    batches, streams = _batches(population, "epoch"), Streams(seed)
    rounds = -(-3 * max(map(len, parts)) // (steps * batch))  # three epochs of the largest
    drawn = np.stack([batches.index(streams, t) for t in range(rounds)], axis=1).reshape(len(parts), -1)
    for part, sequence in zip(parts, drawn, strict=True):
        epochs = len(sequence) // len(part)
        assert epochs >= 3
        assert (np.sort(sequence[: epochs * len(part)].reshape(epochs, -1), axis=1) == np.sort(part)).all()
        rest = sequence[epochs * len(part) :]
        assert len(set(rest)) == len(rest)
        assert set(rest) <= set(part)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@given(population=populations(), seed=st.integers(0, 2**40), draws=st.data())
def test_a_node_trains_on_the_same_samples_whoever_hosts_it(sampling, population, seed, draws):
    n, streams = len(population[0]), Streams(seed)
    ids = np.array(draws.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True)))
    first = draws.draw(st.integers(0, n - 1))
    everyone = _batches(population, sampling)
    some, one = _batches(population, sampling, ids), _batches(population, sampling, slice(first, first + 1))
    for t in range(12):
        index = everyone.index(streams, t)
        assert (some.index(streams, t) == index[ids]).all()
        assert (one.index(streams, t) == index[[first]]).all()


@pytest.mark.parametrize("sampling", SAMPLINGS)
@given(population=populations(), asked=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=12))
def test_what_was_asked_before_has_no_influence(sampling, population, asked):
    used = _batches(population, sampling)
    for seed, t in asked:
        fresh = _batches(population, sampling)
        assert (used.index(Streams(seed), t) == fresh.index(Streams(seed), t)).all()


@given(population=populations(), seed=st.integers(0, 2**40), t=st.integers(0, 10**6))
def test_replacement_is_the_floor_of_the_round_s_uniforms(population, seed, t):
    parts, steps, batch = population
    u = Streams(seed)("batches", t).uniforms(len(parts), steps, batch)
    index = _batches(population, "replacement").index(Streams(seed), t)
    assert index.shape == u.shape
    for i, part in enumerate(parts):
        assert (index[i] == part[np.floor(u[i] * len(part)).astype(int)]).all()


def test_orders_differ_from_epoch_to_epoch_and_from_node_to_node():
    parts = [np.arange(50), np.arange(50)]
    batches = Batches(parts, 1, 50, nodes=2, hosted=slice(None), sampling="epoch")
    first, second = (batches.index(Streams(1), t)[:, 0] for t in (0, 1))
    assert (first != second).any(axis=1).all()
    assert (first[0] != first[1]).any()


def test_the_order_is_that_of_a_stream_of_its_own():
    """Pinned, because hosts of different versions must agree: a node's epoch is one permutation, from purpose, node, epoch."""
    batches = Batches([np.arange(100, 107)], 1, 4, nodes=5, hosted=slice(3, 4), sampling="epoch")
    drawn = np.concatenate([batches.index(Streams(7), t).ravel() for t in range(7)])
    expected = np.concatenate([100 + Streams(7)("order", 3, epoch).permutation(7) for epoch in range(4)])
    assert (drawn == expected).all()


def test_an_unknown_way_of_sampling_is_refused():
    with pytest.raises(BadInput, match="sampling"):
        Batches([np.arange(3)], 1, 1, nodes=1, hosted=slice(None), sampling="epochs")


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("partition", [ep.IID(), ep.Dirichlet(alpha=0.3)], ids=["iid", "dirichlet"])
def test_a_host_that_keeps_the_samples_of_its_own_nodes_only_trains_on_the_same(sampling, partition):
    experiment = ep.Experiment(
        nodes=12, rounds=3, topology=ep.ELLocal(3), data=ep.Digits(), partition=partition, model=ep.Logistic(),
        algorithm=ep.LocalSGD(local_steps=2, batch_size=5, sampling=sampling),
    )  # fmt: skip
    node_ids = [4, 5, 6, 7]
    data = experiment.load_data()
    whole, own = (prepare(experiment, 1, data, node_ids, cut=cut) for cut in (False, True))
    assert (whole.samples == own.samples).all()
    assert (whole.sizes == own.sizes).all()
    assert len(own.task.train[0]) == len(own.data.train) == own.samples.sum() < len(whole.task.train[0])
    for t in range(40):
        batches = [setup.task.batch(torch.from_numpy(setup.batches.index(setup.streams, t))) for setup in (whole, own)]
        assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))
    for a, b in ((whole.test, own.test), (whole.evaluated, own.evaluated), ([held_of(whole)], [held_of(own)])):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
