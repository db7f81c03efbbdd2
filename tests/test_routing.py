"""How rows come to other ranks: what each way moves, and that the one that moves the least is taken."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers
from epidemic.mixing import Weights, weights
from epidemic.runtime.mixing_arithmetic import added, mix
from epidemic.sharding.routing import (
    COLUMNS,
    ROWS,
    SUM,
    UNIT,
    Needs,
    bounds_of,
    by_columns,
    by_rows,
    by_sum,
    choose,
    cuts_of,
    members_of,
    moved,
)
from epidemic.topology import ELLocal, Ring

D = 640


def counts_of(n, ranks):
    return np.diff(bounds_of(n, ranks)).tolist()


def of(topology, n):
    return weights("uniform", topology.graph(n, 0, Streams(1)))


@st.composite
def rounds(draw):
    """A sparse matrix, and how many of its nodes each rank has, which may be none."""
    counts = draw(st.lists(st.integers(0, 5), min_size=2, max_size=5).filter(lambda c: sum(c) > 1))
    n = sum(counts)
    edges = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40))
    edges = [(a, b) for a, b in edges if a != b]
    senders, receivers = (np.array([edge[i] for edge in edges], dtype=np.int64) for i in (0, 1))
    return weights("uniform", Graph.from_edges(n, senders, receivers)), counts


@given(rounds())
def test_a_rank_needs_the_rows_that_its_nodes_hear_from_elsewhere(case):
    w, counts = case
    needs, dense = Needs.of(w, counts), w.dense()
    home = np.repeat(np.arange(len(counts)), counts)
    for rank in range(len(counts)):
        heard = {j for i in np.flatnonzero(home == rank) for j in np.flatnonzero(dense[i]) if home[j] != rank}
        assert needs.which[rank].tolist() == sorted(heard)
        for other in range(len(counts)):
            assert needs.sizes[rank, other] == sum(home[j] == other for j in heard)
            theirs = needs.of_mine(other, rank) + needs.bounds[other]
            assert theirs.tolist() == sorted(j for j in heard if home[j] == other)


@given(rounds(), st.sampled_from([torch.float32, torch.float64]))
def test_the_rows_of_a_rank_are_mixed_from_what_it_needs_to_the_same_bits(case, dtype):
    w, counts = case
    workers = Workers(1)
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((w.n, 70))).to(dtype)
    whole = mix(w, x, workers, torch.empty_like(x))
    needs = Needs.of(w, counts)
    for rank, (first, last) in enumerate(zip(needs.bounds, needs.bounds[1:], strict=False)):
        table = torch.cat([x[first:last], x[torch.from_numpy(needs.which[rank])]])
        found = added(needs.matrix(w, rank), table, workers, torch.empty(last - first, 70, dtype=dtype))
        assert torch.equal(found, whole[first:last])
    workers.close()


def traffic(blocks):
    """What the busiest rank sends or receives; `blocks[p][q]`: numbers that go from p to q."""
    apart = np.array(blocks) * (1 - np.eye(len(blocks), dtype=int))
    return max(apart.sum(0).max(), apart.sum(1).max())


@given(rounds(), st.integers(1, 1000))
def test_costs_are_what_the_busiest_rank_sends_or_receives(case, d):
    w, counts = case
    ranks = range(len(counts))
    width = [part.stop - part.start for part in cuts_of(d, len(counts), UNIT)]
    needs = Needs.of(w, counts)
    assert by_rows(needs, d) == traffic([[len(needs.of_mine(p, q)) * d for q in ranks] for p in ranks])
    there = np.array([[counts[p] * width[q] for q in ranks] for p in ranks])
    assert by_columns(counts, d) == traffic(there + there.T)
    assert by_sum(counts, d) == traffic(there + np.array([[width[p] for _ in ranks] for p in ranks]))


@given(rounds(), st.integers(1, 1000))
def test_a_sparse_round_goes_by_the_way_that_moves_less(case, d):
    w, counts = case
    needs = Needs.of(w, counts)
    costs = {ROWS: by_rows(needs, d), COLUMNS: by_columns(counts, d)}
    assert costs[choose(needs, counts, d)] == min(costs.values())


@pytest.mark.parametrize(
    ("topology", "n", "ranks", "way"),
    [
        (Ring(), 96, 2, ROWS), (Ring(), 96, 16, ROWS), (ELLocal(7), 96, 2, ROWS), (ELLocal(1), 96, 8, ROWS),
        (ELLocal(2), 300, 3, ROWS), (ELLocal(4), 300, 3, COLUMNS), (ELLocal(7), 96, 4, COLUMNS), (ELLocal(7), 96, 16, COLUMNS),
    ],
)  # fmt: skip
def test_rows_for_near_neighbours_few_targets_or_two_ranks_and_columns_otherwise(topology, n, ranks, way):
    w, counts = of(topology, n), counts_of(n, ranks)
    assert choose(Needs.of(w, counts), counts, 64 * ranks) == way
    assert moved(w, n, ranks, D * ranks) == min(by_rows(Needs.of(w, counts), D * ranks), by_columns(counts, D * ranks))


def test_a_single_number_goes_to_those_who_need_it_instead_of_to_one_rank_and_back():
    w, counts = of(ELLocal(7), 96), counts_of(96, 4)
    assert choose(Needs.of(w, counts), counts, 1) == ROWS
    assert choose(Needs.of(w, counts), counts, D) == COLUMNS


@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
def test_a_complete_graph_moves_half_of_what_columns_do_and_never_all_rows_to_all(ranks):
    n, d = 96, 64 * 16 * 3
    w, counts = of(ELLocal(1), n), counts_of(n, ranks)
    w = Weights(n, None, np.arange(n), 1 / n)
    assert members_of(w, counts) == counts
    assert choose(None, counts, d) == SUM
    assert moved(w, n, ranks, d) == by_sum(counts, d) <= by_columns(counts, d) * (0.5 + ranks / n)
    assert by_sum(counts, d) < by_rows(Needs.of(w, counts), d)


def test_rows_of_a_complete_graph_are_needed_by_its_members_ranks_only():
    w = Weights(9, None, np.array([1, 2, 7]), 1 / 3)
    needs = Needs.of(w, [3, 3, 3])
    assert [which.tolist() for which in needs.which] == [[7], [], [1, 2]]
    assert members_of(w, [3, 3, 3]) == [2, 0, 1]
