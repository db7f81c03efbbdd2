"""Laws of the faults: what may happen to the messages of a round."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epidemic import theory
from epidemic.core.config import build
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.faults import Crash, Faults, RandomCrashes, Split
from epidemic.topology import Complete, ELLocal, ELOracle, Ring

STREAMS = Streams(1)
LOCAL = ELLocal(7)


def _rounds(faults, topology=LOCAL, n=96, rounds=120, streams=STREAMS):
    return [faults.deliver(topology.graph(n, t, streams), t, streams) for t in range(rounds)]


def _eta(deliveries):
    n = deliveries[0].graph.n
    return np.array([((1 / (d.graph.in_degree + 1)).sum() - 1) / (n - 1) for d in deliveries])


def test_without_faults_everything_arrives():
    for topology in (ELLocal(7), ELOracle(7), Complete()):
        graph = topology.graph(96, 3, STREAMS)
        d = Faults().deliver(graph, 3, STREAMS)
        assert d.graph is graph
        assert (d.models_sent == graph.out_degree).all()
        assert d.alive.all()
        assert d.offers_sent.sum() == d.refused.sum() == d.lost.sum() == 0


@st.composite
def fault_sets(draw):
    n = 16
    nodes = st.integers(0, n - 1)
    pairs = st.tuples(nodes, nodes).filter(lambda p: p[0] != p[1])
    return Faults(
        crashes=tuple(
            Crash(i, at=at, returns=at + 2) for i, at in draw(st.lists(st.tuples(nodes, st.integers(0, 5)), max_size=3))
        ),
        random_crashes=draw(
            st.sampled_from(
                [None, RandomCrashes(0.2), RandomCrashes(0.3, rounds_down=2), RandomCrashes(1.0, rounds_down=1)]
            )
        ),
        blocked=tuple(draw(st.lists(pairs, max_size=6))),
        partitions=draw(st.sampled_from([(), (Split(((0, 1, 2, 3),), start=1, end=4),)])),
        loss=draw(st.sampled_from([0.0, 0.3, 1.0])),
        cap=draw(st.sampled_from([None, 0, 1, 3, 15, 99])),
        max_retries=draw(st.sampled_from([0, 1, 3, "unlimited"])),
    )


@settings(max_examples=300)
@given(fault_sets(), st.sampled_from([ELLocal(4), ELOracle(3), Complete(), Ring()]), st.integers(0, 7))
def test_what_arrives_is_possible(faults, topology, round):
    """Nobody hears more than the cap, the dead are silent, no pair twice, nothing is sent that was not accounted for."""
    n = 16
    faults.check(n)
    intended = topology.graph(n, round, STREAMS)
    d = faults.deliver(intended, round, STREAMS)
    again = faults.deliver(intended, round, STREAMS)
    assert again.graph.digest() == d.graph.digest()
    assert (again.offers_sent == d.offers_sent).all()
    g = d.graph.explicit()
    assert (np.diff(g.edge_keys) > 0).all()
    assert (g.senders != g.receivers).all()
    assert d.alive[g.senders].all()
    assert d.alive[g.receivers].all()
    heard = set(zip(g.senders.tolist(), g.receivers.tolist(), strict=True))
    for a, b in faults.blocked:
        assert (a, b) not in heard
        assert (b, a) not in heard
    for split in faults.partitions:
        if split.active(round):
            group = split.group_of(n)
            assert (group[g.senders] == group[g.receivers]).all()
    capped = faults.cap is not None and faults.cap < n - 1
    if capped:
        assert g.in_degree.max(initial=0) <= faults.cap
        assert (d.models_sent == g.out_degree).all()  # a model is sent only when its offer was accepted
        assert (d.offers_sent == g.out_degree + d.refused + d.lost).all()
    else:
        assert (d.models_sent == g.out_degree + d.lost).all()
        assert d.offers_sent.sum() == d.refused.sum() == 0
        wanted = set(
            zip(*(e.tolist() for e in (intended.explicit().senders, intended.explicit().receivers)), strict=True)
        )
        assert heard <= wanted
    assert (g.out_degree <= intended.out_degree).all()
    if faults.loss == 1.0 or faults.cap == 0:
        assert g.messages == 0


@pytest.mark.parametrize(
    ("k", "eta", "lost"),
    [(4, 0.19882711, 0.443751), (7, 0.14352699, 0.143398), (8, 0.13789592, 0.086082), (10, 0.13342738, 0.025030), (14, 0.13226398, 0.000908)],
)  # fmt: skip
def test_the_cap_without_retry_has_its_exact_factor(k, eta, lost):
    """The published table, and simulation at 5 sigma."""
    exact = theory.cap(96, 7, k)
    assert exact.contraction == pytest.approx(eta, abs=5e-9)
    assert exact.lost == pytest.approx(lost, abs=5e-7)
    deliveries = _rounds(Faults(cap=k, max_retries=0), rounds=1500)
    measured = _eta(deliveries)
    assert abs(measured.mean() - eta) < 5 * measured.std() / math.sqrt(len(measured))
    gone = np.array([d.refused.sum() / 672 for d in deliveries])
    assert abs(gone.mean() - lost) < 5 * max(gone.std(), 1e-4) / math.sqrt(len(gone))


def test_a_cap_of_everyone_is_no_cap():
    assert theory.cap(96, 7, 95).contraction == pytest.approx(theory.beta(96, 7), abs=1e-12)
    d = _rounds(Faults(cap=95), rounds=1)[0]
    assert d.graph.messages == 672
    assert d.offers_sent.sum() == 0


@pytest.mark.parametrize(
    ("k", "retries", "eta", "attempts"),
    [(7, "unlimited", 0.1159, 1208), (8, "unlimited", 0.1227, None), (10, "unlimited", 0.1287, 691), (10, 1, 0.1300, None), (14, 1, 0.1317, 673)],
)  # fmt: skip
def test_retries_even_out_the_load(k, retries, eta, attempts):
    """The published simulation (120 rounds, SE about 4e-4 on each side), 5 sigma."""
    deliveries = _rounds(Faults(cap=k, max_retries=retries), rounds=240)
    measured = _eta(deliveries)
    assert abs(measured.mean() - eta) < 5 * math.hypot(4e-4, measured.std() / math.sqrt(len(measured)))
    if attempts is not None:
        assert np.mean([d.offers_sent.sum() for d in deliveries]) == pytest.approx(attempts, rel=0.03)


def test_mixing_slows_down_monotonically_in_the_cap_with_unlimited_retries():
    means = [_eta(_rounds(Faults(cap=k, max_retries="unlimited"), rounds=150)).mean() for k in (7, 8, 10, 14)]
    assert theory.alpha(96, 7) < means[0] < means[1] < means[2] < means[3] < theory.beta(96, 7) * 1.01


def test_a_cap_below_s_loses_at_least_the_difference():
    for d in _rounds(Faults(cap=4, max_retries="unlimited"), rounds=5):
        assert d.graph.messages <= 96 * 4
        assert 672 - d.graph.messages >= 96 * (7 - 4)


def test_unlimited_retries_deliver_almost_everything():
    for d in _rounds(Faults(cap=8, max_retries="unlimited"), rounds=20):
        assert d.graph.messages >= 670


def test_the_accepted_are_a_random_choice():
    """Everybody sends to everybody, k = 3: every pair gets through equally often."""
    n, rounds, k = 8, 4000, 3
    count = np.zeros((n, n))
    for t in range(rounds):
        g = Faults(cap=k, max_retries=0).deliver(Complete().graph(n, t, STREAMS), t, STREAMS).graph
        count[g.receivers, g.senders] += 1
    q = k / (n - 1)
    z = (count[~np.eye(n, dtype=bool)] - rounds * q) / math.sqrt(rounds * q * (1 - q))
    assert np.abs(z).max() < 5


def test_a_retry_goes_to_anyone_not_tried_equally_often():
    """Node 0 is full from the start for all but one; its refused senders spread evenly over the others."""
    n, rounds = 10, 3000
    from epidemic.core.graph import Graph

    everyone_to_0 = Graph.from_edges(n, np.arange(1, n), np.zeros(n - 1, dtype=int))
    count = np.zeros(n)
    for t in range(rounds):
        d = Faults(cap=1, max_retries=1).deliver(everyone_to_0, t, STREAMS)
        assert d.refused.sum() >= n - 2
        assert d.graph.into(0).size == 1
        count += d.graph.in_degree
    assert count[0] == rounds
    others = count[1:]
    assert np.abs(others - others.mean()).max() < 5 * math.sqrt(others.mean())


def test_a_lost_offer_counts_as_tried():
    """cap 1, loss 1/2: nobody is offered the same model twice in a round, so nobody accepts what was lost on the way."""
    faults = Faults(cap=1, max_retries="unlimited", loss=0.5)
    for t in range(200):
        intended = ELLocal(3).graph(12, t, STREAMS)
        kept = STREAMS("loss", t).uniforms(intended.messages) >= 0.5
        lost = set(intended.edge_keys[~kept].tolist())
        arrived = faults.deliver(intended, t, STREAMS).graph
        assert not lost & set(arrived.edge_keys.tolist())


def test_nobody_adopts_across_a_partition():
    split = Split(((0, 1, 2),), start=0, end=10)
    faults = Faults(
        crashes=(Crash(1, at=1, returns=3), Crash(4, at=1, returns=3)), partitions=(split,), blocked=((1, 0),)
    )
    returning, donors = faults.adoptions(6, 3, STREAMS)
    assert returning.tolist() == [1, 4]
    assert donors[0] == 2
    assert donors[1] in (3, 5)
    alone = Faults(crashes=(Crash(1, at=1, returns=3),), partitions=(Split(((1,),)),))
    assert alone.adoptions(6, 3, STREAMS)[0].size == 0


def test_loss_drops_each_message_independently():
    lost = sum(d.lost.sum() for d in _rounds(Faults(loss=0.1), rounds=100))
    messages = 672 * 100
    assert abs(lost - 0.1 * messages) < 5 * math.sqrt(messages * 0.1 * 0.9)


def test_scheduled_crashes_and_returns():
    faults = Faults(crashes=(Crash(3, at=2, returns=5), Crash(4, at=1)))
    down = [np.flatnonzero(~faults.alive(6, t, STREAMS)).tolist() for t in range(7)]
    assert down == [[], [4], [3, 4], [3, 4], [3, 4], [4], [4]]


def test_a_returning_node_adopts_from_a_live_peer_that_is_up_to_date():
    faults = Faults(crashes=(Crash(3, at=2, returns=5), Crash(1, at=0, returns=5), Crash(0, at=3)))
    for t in (0, 1, 2, 3, 4, 6):
        assert faults.adoptions(6, t, STREAMS)[0].size == 0
    returning, donors = faults.adoptions(6, 5, STREAMS)
    assert returning.tolist() == [1, 3]
    assert set(donors.tolist()) <= {2, 4, 5}
    keep = Faults(crashes=faults.crashes, on_return="keep")
    assert keep.adoptions(6, 5, STREAMS)[0].size == 0
    everyone = Faults(crashes=tuple(Crash(i, at=0, returns=2) for i in range(3)))
    assert everyone.adoptions(3, 2, STREAMS)[0].size == 0  # nobody to adopt from


def test_random_crashes_happen_at_their_rate_and_last_as_long_as_asked():
    n, rounds, p, down = 2000, 40, 0.05, 3
    faults = Faults(random_crashes=RandomCrashes(p, rounds_down=down))
    alive = np.array([faults.alive(n, t, STREAMS) for t in range(rounds)])
    crashes = (alive[:-1] & ~alive[1:]).sum()
    exposed = alive[:-1].sum()
    assert abs(crashes - p * exposed) < 5 * math.sqrt(p * (1 - p) * exposed)
    for i in range(200):
        edges = np.flatnonzero(np.diff(np.concatenate([[1], alive[:, i].astype(int)])))  # down, up, down, ...
        lengths = np.diff(edges)[::2]
        assert (lengths % down == 0).all()  # a node may crash again the moment it is back
    assert faults.alive(n, 7, STREAMS).tolist() == alive[7].tolist()  # no replay needed, any order


def test_random_crashes_for_good():
    faults = Faults(random_crashes=RandomCrashes(0.1))
    alive = np.array([faults.alive(500, t, STREAMS) for t in range(30)])
    assert (np.diff(alive.astype(int), axis=0) <= 0).all()
    share = 0.9**30
    assert abs(alive[-1].mean() - share) < 5 * math.sqrt(share * (1 - share) / 500)


def test_partitions_come_and_go():
    faults = Faults(partitions=(Split(((0, 1), (2, 3)), start=1, end=3),))
    crossing = []
    for t in range(5):
        g = faults.deliver(Complete().graph(6, t, STREAMS), t, STREAMS).graph.explicit()
        crossing.append(((g.senders < 2) != (g.receivers < 2)).any())
        if t in (1, 2):
            assert g.into(4).tolist() == [5]  # who is in no group is in one more
    assert crossing == [True, False, False, True, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Faults(cap=-1), "faults.cap = -1 must be at least 0"),
        (lambda: Faults(loss=-0.1), "faults.loss = -0.1 must be at least 0"),
        (lambda: Faults(loss=1.1), "faults.loss = 1.1 must be at most 1"),
        (lambda: Faults(loss=math.nan), "must be a finite number"),
        (lambda: Faults(max_retries=-1), "faults.max_retries = -1 must be at least 0"),
        (lambda: Faults(max_retries="all"), "faults.max_retries = 'all' must be a whole number"),
        (lambda: Faults(on_return="hide"), "faults.on_return = 'hide' is not known"),
        (lambda: Crash(1, at=5, returns=5), "returns = 5 must be later than at = 5"),
        (lambda: Crash(-1, at=5), "node = -1 must be at least 0"),
        (lambda: RandomCrashes(2), "probability = 2 must be at most 1"),
        (lambda: RandomCrashes(0.1, rounds_down=0), "rounds_down = 0 must be at least 1"),
        (lambda: Split(((0, 1), (1, 2))), "must not share nodes"),
        (lambda: Split((), start=5, end=4), "end = 4 must be later than start = 5"),
        (lambda: Faults(crashes=(Crash(10, at=1),)).check(10), "names node 10, but nodes are numbered 0 to 9"),
        (lambda: Faults(blocked=((1, 1),)).check(10), "pairs node 1 with itself"),
        (lambda: build({"los": 0.1}, Faults, "faults"), "faults.los is not a known key; did you mean 'loss'?"),
        (lambda: build({"cap": "many"}, Faults, "faults"), "faults.cap"),
        (lambda: build({"crashes": [{"node": 1}]}, Faults, "faults"), "faults.crashes[0].at is missing"),
        (lambda: build({"crashes": [{"node": 1, "att": 2}]}, Faults, "faults"), "faults.crashes[0].at"),
        (lambda: build({"loss": 2}, Faults, "faults"), "faults.loss = 2.0 must be at most 1"),
    ],
)
def test_the_impossible_is_refused(make, message):
    with pytest.raises(BadInput) as caught:
        make()
    assert message in str(caught.value)


def test_faults_from_a_table():
    table = {"loss": 0.1, "crashes": [{"node": 1, "at": 2, "returns": 4}], "blocked": [[0, 1]], "max_retries": "unlimited", "cap": 3,
             "partitions": [{"groups": [[0, 1], [2]], "start": 3}], "random_crashes": {"probability": 0.1}}  # fmt: skip
    faults = build(table, Faults, "faults")
    assert faults == Faults(
        crashes=(Crash(1, at=2, returns=4),), blocked=((0, 1),), max_retries="unlimited", cap=3, loss=0.1,
        partitions=(Split(((0, 1), (2,)), start=3),), random_crashes=RandomCrashes(0.1),
    )  # fmt: skip
