"""How far what one node knows has spread follows from the graphs of the rounds, against what must come out."""

import numpy as np
import pytest

from epidemic.core.rng import Streams
from epidemic.experiment import experiment_from
from epidemic.report.timeline import DRAWN_METHODS, DRAWN_NODES, ROUNDS, spread_of, spreading_figure, spreads_of
from epidemic.runtime.plan import plan_round
from epidemic.study import comparison as comparing

SPARSE = [{"kind": "el-oracle", "s": 2}, {"kind": "el-local", "s": 2}, {"kind": "pull", "s": 2}, {"kind": "ring"}]


def experiment(topology, nodes=40, **changes):
    return experiment_from({"nodes": nodes, "rounds": 20, "topology": topology, **changes})


def test_on_a_ring_two_more_nodes_are_reached_in_every_round():
    spread = spread_of("ring", experiment({"kind": "ring"}), 12)
    assert [spread.reached(t) for t in range(13)] == [2 * t + 1 for t in range(13)]
    np.testing.assert_allclose(spread.shares[2][[38, 39, 0, 1, 2]], np.array([1, 2, 3, 2, 1]) / 9)


@pytest.mark.parametrize("topology", SPARSE, ids=lambda t: t["kind"])
def test_shares_are_a_column_of_the_product_of_the_weights(topology):
    chosen = experiment(topology, faults={"loss": 0.2})
    spread, product = spread_of("x", chosen, 6), np.eye(40)
    for t in range(6):
        product = plan_round(chosen, Streams(chosen.seeds[0]), t, np.ones(40, dtype=np.int64)).weights.dense() @ product
        np.testing.assert_allclose(spread.shares[t + 1], product[:, 0], atol=1e-14)


@pytest.mark.parametrize("topology", SPARSE, ids=lambda t: t["kind"])
def test_links_lead_from_those_who_were_reached_to_those_who_are(topology):
    spread = spread_of("x", experiment(topology), 8)
    for t, (senders, receivers) in enumerate(spread.links):
        before, after = spread.shares[t] > 0, spread.shares[t + 1] > 0
        assert before[senders].all()
        assert set(np.flatnonzero(after)) == set(np.flatnonzero(before)) | set(receivers.tolist())


def test_nothing_spreads_from_a_node_that_is_down():
    spread = spread_of("x", experiment(SPARSE[0], faults={"crashes": [{"node": 0, "at": 0}]}), 5)
    assert [spread.reached(t) for t in range(6)] == [1] * 6


def test_only_what_can_be_seen_is_drawn():
    kinds = {
        "complete": experiment({"kind": "complete"}),
        "large": experiment({"kind": "ring"}, nodes=DRAWN_NODES + 1),
        "asynchronous": experiment({"kind": "el-local", "s": 2}, algorithm={"kind": "gossip-learning", "period": 1.0}, clock={"stop": 9.0}),
        "in parts": experiment({"kind": "fragments", "k": 2, "inner": {"kind": "el-local", "s": 2}}),
        **{f"ring {i}": experiment({"kind": "ring"}) for i in range(DRAWN_METHODS + 1)},
    }  # fmt: skip
    assert [spread.name for spread in spreads_of(kinds)] == [f"ring {i}" for i in range(DRAWN_METHODS)]
    assert spreads_of({"complete": kinds["complete"]}) == []


def test_the_picture_of_the_demo_says_how_many_nodes_were_reached():
    spreads = spreads_of(comparing.methods_from(comparing.DEMO))
    assert [spread.name for spread in spreads] == ["EL-Oracle", "EL-Local", "static ring"]
    figure = spreading_figure(spreads)
    panels = np.array(figure.axes).reshape(len(spreads), len(ROUNDS))
    for spread, row in zip(spreads, panels, strict=True):
        assert [axes.texts[0].get_text() for axes in row] == [str(spread.reached(t)) for t in ROUNDS]
    assert [spread.reached(ROUNDS[-1]) for spread in spreads] == [128, 128, 21]


def test_a_run_of_few_rounds_has_fewer_pictures():
    figure = spreading_figure(spreads_of({"short": experiment({"kind": "ring"}, rounds=3)}))
    assert [axes.get_title() for axes in figure.axes] == [
        "at the start",
        "after 1 round",
        "after 2 rounds",
        "after 3 rounds",
    ]
