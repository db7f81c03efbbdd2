"""f of the receivers of a topology: what it declares decides, and on graphs that are really drawn the promise holds."""

import math

import numpy as np
import pytest

from epidemic import theory
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.theory.hostile import caution, resolve
from epidemic.topology import (
    TOPOLOGIES,
    Complete,
    ELLocal,
    ELOracle,
    Every,
    Matcha,
    Pull,
    Regular,
    Ring,
    tolerance,
    tolerance_caution,
)

STREAMS = Streams(1)


@pytest.mark.parametrize(
    ("topology", "kind", "how"),
    [
        (ELOracle(18), "el-oracle", {"s": 18}),
        (Pull(18), "pull", {"s": 18}),
        (ELLocal(24), "el-local", {"s": 24}),
        (Every(inner=ELOracle(16), period=15), "el-oracle", {"s": 16, "held": 15}),
        (Every(inner=Every(inner=Pull(16), period=5), period=3), "pull", {"s": 16, "held": 15}),
        (Regular(16), "static", {"in_degrees": [16] * 96}),
        (Every(inner=Regular(16), period=3), "static", {"in_degrees": [16] * 96}),
        (Complete(), "static", {"in_degrees": [95] * 96}),
    ],
)
def test_what_a_topology_declares_decides(topology, kind, how):
    found, expected = tolerance(topology, 96, 10, 3000, 0.01, STREAMS), resolve(96, 10, 3000, 0.01, kind, **how)
    assert found == expected
    degrees = topology.graph(96, 0, STREAMS).in_degree
    assert found.each(degrees).tolist() == expected.each(degrees).tolist()
    assert tolerance_caution(topology, 96, 10, 3000, 2, STREAMS) == caution(96, 10, 3000, 2, kind, **how)


def test_graphs_that_are_held_are_fewer_chances():
    with pytest.raises(BadInput, match=r"use s = 18,"):
        tolerance(ELOracle(16), 96, 10, 3000, 0.01, STREAMS)
    held = tolerance(Every(inner=ELOracle(16), period=15), 96, 10, 3000, 0.01, STREAMS)
    assert held.f == theory.tolerate(96, 10, 16, 200, 0.01, "el-oracle") == 8
    assert held.expected == theory.expected_bad(96, 10, 16, 3000, 8)


@pytest.mark.parametrize(
    "topology",
    [
        ELLocal(7, view={"kind": "cyclon"}),
        Matcha(inner=Ring()),
        TOPOLOGIES["one-peer-exponential"](),
        TOPOLOGIES["fragments"](inner=Pull(18)),
    ],
)
def test_where_nobody_knows_the_law_f_is_given_by_hand(topology):
    with pytest.raises(BadInput, match=r"has no known law of malicious models; give aggregation\.f"):
        tolerance(topology, 96, 10, 3000, 0.01, STREAMS)
    assert tolerance_caution(topology, 96, 10, 3000, 1, STREAMS) is None


@pytest.mark.parametrize("topology", [ELLocal(12), ELOracle(10), Pull(10), Regular(10)])
def test_runs_with_a_bad_node_round_are_no_more_frequent_than_the_risk(topology):
    n, b, rounds, risk, runs = 30, 5, 4, 0.25, 240
    malicious = np.random.default_rng(5)
    some = 0
    for seed in range(runs):
        streams, liars = Streams(seed), np.zeros(n)
        liars[malicious.choice(n, b, replace=False)] = 1
        found = tolerance(topology, n, b, rounds, risk, streams)
        bad = False
        for t in range(rounds):
            graph = topology.graph(n, t, streams)
            heard = np.bincount(graph.receivers, weights=liars[graph.senders], minlength=n)
            bad |= bool(((heard > found.each(graph.in_degree)) & (liars == 0)).any())
        some += bad
    assert 0 < found.risk <= risk
    assert some / runs < found.risk + 5 * math.sqrt(risk * (1 - risk) / runs)
