"""The topology and the aggregator of `examples/`: one file each, and they work wherever the built-in ones do (deployed: tests/net; on ranks: tests/ranks)."""

import shutil
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import epidemic as ep
from epidemic.aggregation import Heard
from epidemic.experiment import to_toml

EXAMPLES = Path(__file__).parents[1] / "examples"

SMALL = {
    "nodes": 9,
    "rounds": 4,
    "data": ep.Digits(),
    "model": ep.Logistic(),
    "partition": ep.IID(),
    "eval": ep.Eval(every=2, samples=50),
}
TOPOLOGY = ep.PythonTopology("own_topology:Remembering", options={"k": 3})
AGGREGATOR = ep.PythonAggregator("own_aggregator:NearestHalf")
CLOCK = ep.Clock(compute=ep.clock.PerNodeCompute(median=0.1, sigma=0.5), links=ep.clock.Links(uplink=10, latency=0.02))


@pytest.fixture(scope="module", autouse=True)
def found():
    """The examples can be imported by name."""
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


def topology(k):
    from own_topology import Remembering

    return Remembering(k)


def models(**changes):
    return ep.simulate(ep.Experiment(**{**SMALL, **changes}), progress=False).models.rows


@given(st.integers(3, 14).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1))), st.integers(0, 99))
def test_a_node_sends_to_k_others_forgets_the_oldest_and_meets_all_in_a_season(sizes, seed):
    n, k = sizes
    mine = topology(k)
    graphs = [mine.graph(n, t, ep.Streams(seed)) for t in range(n - 1)]
    sent = [{(int(a), int(b)) for a, b in zip(g.senders, g.receivers, strict=True)} for g in graphs]
    assert all((g.out_degree == k).all() for g in graphs)
    assert all(len(now & then) >= n * (k - 1) for now, then in pairwise(sent))
    assert len(set.union(*sent)) == n * (n - 1)
    assert graphs[-1].digest() == mine.graph(n, n - 2, ep.Streams(seed)).digest()  # asked alone, in any order


def test_its_targets_are_a_uniform_draw_in_every_round():
    """Of n = 6 nodes each of the other five is a target of node 0 with probability k / 5, at 5 sigma of 3,000 seeds."""
    n, k, seeds = 6, 2, 3000
    counts = np.zeros(n)
    for seed in range(seeds):
        graph = topology(k).graph(n, 3, ep.Streams(seed))
        counts += np.bincount(graph.receivers[graph.senders == 0], minlength=n)
    p = k / (n - 1)
    assert counts[0] == 0
    assert np.abs(counts[1:] - seeds * p).max() < 5 * np.sqrt(seeds * p * (1 - p))


def test_numbers_that_do_not_fit_are_refused():
    with pytest.raises(ep.BadInput, match=r"topology.options.k = 9 must be from 1 to nodes - 1 = 8"):
        ep.Experiment(**SMALL, topology=topology(9))


@given(st.integers(1, 7), st.integers(0, 99))
def test_the_nearest_half_is_what_its_name_says(h, seed):
    from own_aggregator import NearestHalf

    rows = torch.from_numpy(np.random.default_rng(seed).normal(size=(h + 1, 3)))
    own, received = rows[0], rows[1:]
    heard = Heard(own, received, np.arange(h), np.full(h + 1, 1 / (h + 1)), np.zeros(h, dtype=np.int64))
    by_distance = sorted(
        received.tolist(), key=lambda x: sum((a - b) ** 2 for a, b in zip(x, own.tolist(), strict=True))
    )
    kept = [own.tolist(), *by_distance[: (h + 1) // 2]]
    assert torch.allclose(NearestHalf()(heard), torch.tensor(kept, dtype=torch.float64).mean(0))


@pytest.mark.parametrize("changes", [{"topology": TOPOLOGY}, {"aggregation": AGGREGATOR, "topology": ep.ELLocal(5)}])
def test_by_name_they_run_in_rounds_and_to_the_bit_alike_under_the_clock(changes, tmp_path):
    in_rounds = models(**changes)
    assert torch.equal(models(**changes, clock=CLOCK), in_rounds)
    assert torch.equal(models(**changes, runtime=ep.Runtime(threads=3)), in_rounds)
    assert not torch.equal(models(), in_rounds)
    shutil.copy(EXAMPLES / "own_topology.py", tmp_path)
    (tmp_path / "e.toml").write_text(to_toml(ep.Experiment(**SMALL, **changes)))
    assert torch.equal(ep.simulate(tmp_path / "e.toml", progress=False).models.rows, in_rounds)


def test_objects_run_as_their_names_do_and_without_rounds():
    from own_aggregator import NearestHalf

    assert torch.equal(models(topology=topology(3)), models(topology=TOPOLOGY))
    free = {"topology": ep.ELLocal(4), "algorithm": ep.AsyncEL(lr=0.1), "clock": CLOCK}
    assert not torch.equal(models(**free, aggregation=NearestHalf()), models(**free))
