"""Aggregators: the laws of the rules, exact values, and every host that uses them."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import epidemic as ep
from epidemic.aggregation import AGGREGATORS, Aggregator, Coordinatewise, Heard, aggregator_from, made
from epidemic.aggregation.ordering import network, smallest
from epidemic.core.errors import BadInput, RunFailed
from epidemic.core.graph import Graph
from epidemic.core.workers import Workers
from epidemic.experiment import experiment_from, to_toml
from epidemic.mixing import weights
from epidemic.runtime import aggregating
from epidemic.runtime.fragments import FragmentsInbox
from epidemic.runtime.inbox import MatrixInbox, MessageInbox, Received

WORKERS = Workers(1)


def heard(rows):
    """What a receiver holds whose inputs these are.   # (m, d)"""
    h = len(rows) - 1
    return Heard(rows[0], rows[1:], np.arange(h), np.full(h + 1, 1 / (h + 1)), np.zeros(h, dtype=np.int64))


def result(rule, rows):
    """What a host makes of these inputs.   # (m, d) -> (d,)"""
    rows = torch.as_tensor(rows)
    out = torch.empty_like(rows[0])
    aggregating.aggregate_one(rule, rows[0], list(rows[1:]), heard(rows), out)
    return out


# -- exact values -----------------------------------------------------------------------------------------------------

A = [[1], [2], [3], [4], [100]]
B = [[0, 0], [3, 4], [4, -3], [-6, 8], [5, 12], [-60, -80]]
D = [[0, 0], [3, 4], [-4, 3], [6, -8], [5, 12], [8, 6], [8, 6]]
F = Fraction


@pytest.mark.parametrize(
    ("rule", "inputs", "exact"),
    [
        (ep.Median(), A, [3]),
        (ep.Median(), B, [F(3, 2), 2]),
        (ep.Median(), D, [5, 4]),
        (ep.TrimmedMean(f=1), A, [3]),
        (ep.TrimmedMean(f=1), B, [F(1, 4), F(9, 4)]),
        (ep.TrimmedMean(f=2), D, [F(14, 3), F(13, 3)]),
    ],
)
def test_worked_examples_are_exact(rule, inputs, exact):
    found = result(rule, torch.tensor(inputs, dtype=torch.float64))
    assert found.tolist() == [float(value) for value in exact]  # the nearest numbers that there are
    assert torch.equal(rule(heard(torch.tensor(inputs, dtype=torch.float64))), found)


def test_the_network_has_as_few_comparators_as_batchers_and_fewer_where_less_is_asked():
    assert [len(network(m, 0, m - 1)) for m in (1, 2, 3, 4, 8, 16, 32)] == [0, 1, 3, 5, 19, 63, 191]
    assert (len(network(8, 3, 4)), len(network(16, 5, 10))) == (17, 57)


@pytest.mark.parametrize("m", range(1, 34))
def test_the_network_sorts_every_input_of_zeros_and_ones(m):
    """By the 0-1 principle a network that sorts these sorts all; beyond 12 inputs a sample of them."""
    bits = torch.arange(2**m) if m <= 12 else torch.from_numpy(np.random.default_rng(m).integers(0, 2**m, 4096))
    rows = ((bits[:, None] >> torch.arange(m)) & 1).float().T.contiguous()
    for first in range(m):
        last = m - 1 - first
        if first <= last:
            found = smallest(list(rows.clone().unbind()), first, last)
            assert torch.equal(torch.stack(found), rows.sort(0).values[first : last + 1])


# -- laws -------------------------------------------------------------------------------------------------------------

finite = st.integers(-1000, 1000).map(float)


@st.composite
def inputs(draw, rules=("trimmed", "median"), fewest=1):
    """A rule, how many inputs it bears that are anything, and inputs enough for it.   # (m, d)"""
    m, d = draw(st.integers(fewest, 12)), draw(st.integers(1, 4))
    rows = torch.tensor(
        draw(st.lists(st.lists(finite, min_size=d, max_size=d), min_size=m, max_size=m)), dtype=torch.float64
    )
    if draw(st.sampled_from(rules)) == "median":
        return ep.Median(), (m - 1) // 2, rows
    f = draw(st.integers(0, (m - 1) // 2))
    return ep.TrimmedMean(f=f), f, rows


def by_definition(rule, rows):
    """The slow twin, as the definition has it, in fractions.   # (m, d) -> (d,)"""
    found = []
    for column in rows.T.tolist():
        ordered, m = sorted(map(Fraction, column)), len(column)
        f = rule.f if isinstance(rule, ep.TrimmedMean) else (m - 1) // 2
        kept = ordered[f : m - f]
        found.append(float(sum(kept) / len(kept)))
    return found


@given(inputs())
def test_rules_do_what_their_definitions_say(case):
    rule, _, rows = case
    np.testing.assert_allclose(rule.reduce(list(rows.clone().unbind())), by_definition(rule, rows), rtol=1e-14)


@given(inputs(), st.randoms(use_true_random=False))
def test_the_order_of_the_inputs_changes_nothing(case, random):
    rule, _, rows = case
    order = list(range(len(rows)))
    random.shuffle(order)
    assert torch.equal(result(rule, rows), result(rule, rows[order]))


@given(inputs(), finite, st.integers(1, 9).map(lambda k: 2.0 ** (k - 5)))
def test_rules_move_and_grow_with_their_inputs(case, shift, scale):
    rule, _, rows = case
    moved = result(rule, rows * scale + shift)
    torch.testing.assert_close(moved, result(rule, rows) * scale + shift, rtol=1e-12, atol=1e-9)


@given(inputs())
def test_equal_inputs_give_that_input(case):
    rule, _, rows = case
    alike = rows[:1].expand(len(rows), -1)
    torch.testing.assert_close(result(rule, alike), rows[0], rtol=1e-15, atol=0)


@given(inputs(fewest=3), st.sampled_from([1e30, -1e30, float("inf"), float("-inf")]), st.data())
def test_the_result_stays_among_the_honest_values_whatever_the_others_say(case, wild, data):
    rule, f, rows = case
    bad = data.draw(st.lists(st.integers(1, len(rows) - 1), max_size=f, unique=True))
    honest = np.setdiff1d(np.arange(len(rows)), bad)
    attacked = rows.clone()
    attacked[bad] = wild
    found = result(rule, attacked)
    slack = 1e-9
    assert (found >= rows[honest].min(0).values - slack).all()
    assert (found <= rows[honest].max(0).values + slack).all()


@given(inputs(fewest=3))
def test_the_result_lies_between_the_order_statistics_that_are_kept(case):
    rule, f, rows = case
    ordered, found = rows.sort(0).values, result(rule, rows)
    assert (found >= ordered[f] - 1e-9).all()
    assert (found <= ordered[len(rows) - 1 - f] + 1e-9).all()


@pytest.mark.parametrize("f", [1, 2, 3])
@pytest.mark.parametrize("kind", ["trimmed", "median"])
def test_one_more_than_f_liars_of_2f_plus_1_move_the_result_without_bound(f, kind):
    rule = ep.TrimmedMean(f=f) if kind == "trimmed" else ep.Median()
    rows = torch.zeros(2 * f + 1, 3)
    rows[1 : 1 + f] = 1e6
    assert result(rule, rows).abs().max() == 0
    rows[1 + f] = 1e6
    assert result(rule, rows).abs().min() == 1e6


@pytest.mark.parametrize(("m", "f"), [(5, 1), (5, 2), (8, 1), (8, 2), (8, 3), (11, 3), (16, 7)])
def test_the_worst_case_of_the_trimmed_mean_is_reached_and_never_exceeded(m, f):
    """(f, kappa)-robust with kappa = f / (m - 2f) exactly."""
    kappa = f / (m - 2 * f)
    rows = torch.zeros(m, 1, dtype=torch.float64)
    rows[f:] = 1  # f zeros, all others one, the f liars among them
    honest = rows[: m - f]
    error = (result(ep.TrimmedMean(f=f), rows) - honest.mean(0)) ** 2
    assert float(error / honest.var(0, unbiased=False)) == pytest.approx(kappa)
    rng = np.random.default_rng(m)
    for _ in range(300):
        rows = torch.from_numpy(rng.standard_normal((m, 2)) * 10 ** rng.uniform(-2, 2, (m, 1)))
        found = result(ep.TrimmedMean(f=f), rows)
        for _ in range(5):
            some = rows[rng.permutation(m)[: m - f]]
            error, spread = ((found - some.mean(0)) ** 2).sum(), ((some - some.mean(0)) ** 2).sum() / (m - f)
            assert error <= kappa * spread * (1 + 1e-9)


@pytest.mark.parametrize(
    ("m", "few", "expected"),
    [(1, "own", 0), (4, "own", 0), (5, "own", 2), (4, "less", 1.5), (2, "less", 0.5), (1, "less", 0)],
)
def test_a_node_with_too_few_inputs_keeps_its_own_or_leaves_fewer_out(m, few, expected):
    rows = torch.arange(m, dtype=torch.float64)[:, None]
    assert result(ep.TrimmedMean(f=2, few=few), rows).item() == expected


# -- hosts give the same bits -----------------------------------------------------------------------------------------

RULES = [ep.TrimmedMean(f=1), ep.TrimmedMean(f=2, few="less"), ep.Median()]

FORMS = [ep.Nearest(f=1), ep.GTS(f=1), ep.MultiKrum(f=1), ep.WMSR(f=1), ep.TrimmedMean(f=1, before="nnm")]
"""One of each form: by distances to the own model, with weights, by all distances, around the own value, after mixing."""


class Nearest(Aggregator):
    """Of one's own: half of the own model and half of the nearest one, by its weight."""

    weighted = True
    fewest = 2

    def __call__(self, heard):
        at = (heard.received - heard.own).reshape(len(heard.received), -1).norm(dim=1).argmin()
        share = float(heard.weights[1 + at]) / (1 + int(heard.senders[at]))
        return heard.own + share * (heard.received[at] - heard.own)


@st.composite
def rounds(draw):
    n = draw(st.integers(1, 12))
    alive = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    alive[draw(st.integers(0, n - 1))] = True
    if draw(st.booleans()):
        return Graph.complete(n), alive
    linked = np.array(draw(st.lists(st.booleans(), min_size=n * n, max_size=n * n))).reshape(n, n)
    np.fill_diagonal(linked, False)
    return Graph.from_edges(n, *np.nonzero(linked)), alive


def both(graph, alive, rows, rule):
    """A host of all nodes, and one to which messages came one by one."""
    rule = made(rule)
    arrived, who = graph.among(alive), np.flatnonzero(alive)
    w = weights("uniform", graph, arrived).among(who)
    own = {"x": rows[torch.from_numpy(who)]}
    exchange = MatrixInbox(own, w, who, WORKERS, lambda _, like: torch.empty_like(like), rule=rule)
    received = []
    for i, (_, share) in zip(who, w.by_row(), strict=True):
        senders = arrived.into(i).tolist()
        received.append(Received(senders, [{"x": rows[j]} for j in senders], share))
    return exchange, MessageInbox(own, received, WORKERS, rule=rule)


shapes = st.sampled_from([(), (1,), (7,), (64,), (100,)])


@settings(max_examples=150)
@given(
    rounds(),
    shapes,
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 2**31),
    st.sampled_from([*RULES, *FORMS, Nearest()]),
)
def test_both_inboxes_aggregate_to_the_same_bits(round, shape, dtype, seed, rule):
    rows = torch.from_numpy(np.random.default_rng(seed).standard_normal((round[0].n, *shape))).to(dtype)
    exchange, post = both(*round, rows, rule)
    rule = made(rule)
    found = exchange.aggregate("x")
    assert torch.equal(found, post.aggregate("x"))
    assert found.dtype == dtype
    for i, one in enumerate(exchange.each("x")):
        alone = one.own if 1 + len(one.senders) < rule.fewest else rule(one)
        assert torch.equal(found[i], alone)


@pytest.mark.parametrize(
    "graph", [Graph.complete(9), ep.ELLocal(4).graph(9, 0, ep.Streams(1))], ids=["complete", "el-local"]
)
@pytest.mark.parametrize("numbers", [1 << 8, 1 << 12, aggregating.NUMBERS])
def test_the_pieces_of_the_work_change_no_bit(monkeypatch, graph, numbers):
    rows = torch.randn(9, 40_000, generator=torch.Generator().manual_seed(1))
    whole = both(graph, np.ones(9, dtype=bool), rows, ep.TrimmedMean(f=1))[0].aggregate("x")
    monkeypatch.setattr(aggregating, "NUMBERS", numbers)
    for found in both(graph, np.ones(9, dtype=bool), rows, ep.TrimmedMean(f=1)):
        assert torch.equal(found.aggregate("x"), whole)


@given(rounds(), st.integers(0, 2**31))
def test_f_of_0_is_the_mean_to_the_last_bit(round, seed):
    rows = torch.from_numpy(np.random.default_rng(seed).standard_normal((round[0].n, 40))).float()
    for inbox in both(*round, rows, ep.TrimmedMean(f=0)):
        assert torch.equal(inbox.aggregate("x"), inbox.mean("x"))


@given(rounds(), st.integers(0, 2**31), st.sampled_from([*RULES, *FORMS, Nearest()]), st.data())
def test_a_row_that_is_not_finite_is_as_if_it_had_not_come(round, seed, rule, data):
    (graph, alive), rng = round, np.random.default_rng(seed)
    rows = torch.from_numpy(rng.standard_normal((graph.n, 70))).float()
    bad = np.array(data.draw(st.lists(st.booleans(), min_size=graph.n, max_size=graph.n))) & alive
    rows[torch.from_numpy(bad), 3] = float("nan")
    who = np.flatnonzero(alive)
    whole = graph.explicit()
    heard = ~bad[whole.senders]
    clean = both(Graph.from_edges(graph.n, whole.senders[heard], whole.receivers[heard]), alive, rows, rule)
    for inbox, expected in zip(both(graph, alive, rows, rule), clean, strict=True):
        good = torch.from_numpy(~bad[who])
        assert torch.equal(inbox.aggregate("x")[good], expected.aggregate("x")[good])


def test_parts_of_models_are_aggregated_by_their_own_graphs():
    rows = torch.randn(8, 30, generator=torch.Generator().manual_seed(3))
    graphs = [ep.ELOracle(4).graph(8, round, ep.Streams(1)) for round in range(2)]
    parts = [torch.arange(0, 30, 2), torch.arange(1, 30, 2)]
    memory = lambda _, like: torch.empty_like(like)  # noqa: E731
    mosaic = FragmentsInbox({"x": rows}, [weights("uniform", g) for g in graphs], parts, WORKERS, memory, ep.Median())
    found = mosaic.aggregate("x")
    for graph, part in zip(graphs, parts, strict=True):
        whole = both(graph, np.ones(8, dtype=bool), rows, ep.Median())[0].aggregate("x")
        assert torch.equal(found[:, part], whole[:, part])


# -- experiments ------------------------------------------------------------------------------------------------------


def small(**changes):
    settings = {"nodes": 10, "rounds": 4, "topology": ep.ELOracle(s=4), "data": ep.Digits(), "model": ep.Logistic()}
    return ep.Experiment(**{**settings, "eval": ep.Eval(every=2, samples=100), **changes})


def models(experiment):
    """Of all nodes, in the end.   # (n, d)"""
    return ep.simulate(experiment).models.rows


def test_a_file_names_it_and_a_file_without_it_means_the_mean():
    assert "aggregation" not in small().table()
    assert "aggregation" not in to_toml(small(aggregation=ep.Mean()))
    for rule in (
        ep.TrimmedMean(f=2, few="less"),
        ep.Median(),
        *FORMS,
        ep.Clipped(tau=2.0),
        ep.Clipped(tau="adaptive", f=2),
    ):
        given = small(aggregation=rule)
        assert experiment_from(given.table()) == given
        assert "[aggregation]" in to_toml(given)
    assert aggregator_from({"kind": "trimmed-mean"}) == ep.TrimmedMean(f=1)


@pytest.mark.parametrize("kind", [kind for kind in AGGREGATORS if kind != "python"])
def test_every_kind_is_found_at_the_top_and_in_its_room(kind):
    rule = aggregator_from({"kind": kind})
    assert getattr(ep, type(rule).__name__) is getattr(ep.aggregation, type(rule).__name__) is type(rule)


@pytest.mark.parametrize("rule", RULES)
def test_a_run_is_what_its_definition_gives_round_by_round(rule):
    """Local SGD whose absorb sorts what it heard, against [aggregation]."""

    class Sorted(ep.LocalSGD, frozen=True):
        def aggregate(self, state, inbox):
            rows = []
            for one in inbox.each("x"):
                ordered, m = one.inputs.sort(0).values, 1 + len(one.senders)
                f = (m - 1) // 2 if isinstance(rule, ep.Median) else min(rule.f, (m - 1) // 2)
                enough = m >= rule.fewest
                total = ordered[f]
                for row in ordered[f + 1 : m - f]:
                    total = total + row
                rows.append(total / (m - 2 * f) if enough else one.own)
            return {**state, "x": torch.stack(rows)}

    faults = ep.Faults(loss=0.3)
    assert torch.equal(models(small(aggregation=rule, faults=faults)), models(small(algorithm=Sorted(), faults=faults)))


def test_threads_change_no_bit():
    for rule in (*RULES, FORMS[0], FORMS[-1], Nearest()):
        one, four = (
            small(nodes=24, aggregation=rule, runtime=ep.Runtime(threads=k), model=ep.MLP(hidden=(300,)))
            for k in (1, 4)
        )
        assert torch.equal(models(one), models(four))


@pytest.mark.parametrize("rule", [ep.TrimmedMean(f=1), ep.Median(), *FORMS, Nearest()])
@pytest.mark.parametrize("close", ["barrier", "global"])
def test_under_the_clock_it_is_the_round_engine_to_the_bit(rule, close):
    made = {"barrier": ep.clock.CloseBarrier(), "global": ep.clock.CloseGlobal()}[close]
    plain = small(aggregation=rule)
    assert torch.equal(models(small(aggregation=rule, clock=ep.Clock(close=made))), models(plain))


class Told(Aggregator):
    """Notes the ages and senders that it is told; the mean."""

    def __init__(self):
        self.ages = []

    def __call__(self, heard):
        self.ages.append(heard.ages.tolist())
        assert len(heard.senders) == len(heard.received) == len(heard.ages) == len(heard.weights) - 1
        return heard.inputs.mean(0)


CLOSES = {
    "deadline": lambda late: ep.clock.CloseDeadline(seconds=0.05, late=late),
    "quorum": lambda late: ep.clock.CloseQuorum(q=0.5, late=late),
    "schedule": lambda late: ep.clock.CloseSchedule(seconds=0.12, late=late),
}


@pytest.mark.parametrize("late", ["drop", "carry"])
@pytest.mark.parametrize("close", CLOSES)
def test_every_closing_rule_hands_over_what_arrived_with_its_age(close, late):

    clock = ep.Clock(close=CLOSES[close](late), links=ep.clock.Links(uplink=1.0, latency=0.02))
    told = Told()
    run = ep.simulate(small(aggregation=told, rounds=8, clock=clock))

    assert run.summary is not None
    assert told.ages
    assert any(age for ages in told.ages for age in ages) == (late == "carry")
    for rule in (ep.TrimmedMean(f=1), ep.Median()):
        assert torch.isfinite(models(small(aggregation=rule, rounds=8, clock=clock))).all()


def free(**changes):
    return small(topology=ep.ELLocal(s=4), rounds=6, clock=ep.Clock(), **changes)


@pytest.mark.parametrize("order", ["send-first", "mix-first"])
def test_asynchronous_el_aggregates_the_newest_of_each_sender(order):
    class Average(Aggregator):
        """As the mean does it, but asked for each receiver."""

        def __call__(self, heard):
            out = heard.own * (1 / len(heard.weights))
            for row in heard.received:
                out = out.add(row, alpha=1 / len(heard.weights))
            return out

    algorithm = ep.AsyncEL(order=order)
    plain = models(free(algorithm=algorithm))
    assert torch.equal(models(free(algorithm=algorithm, aggregation=Average())), plain)
    told = Told()
    ep.simulate(free(algorithm=algorithm, aggregation=told))
    assert any(age > 0 for ages in told.ages for age in ages)  # microseconds
    for rule in (*RULES, *FORMS):
        assert not torch.equal(models(free(algorithm=algorithm, aggregation=rule)), plain)


def test_a_stopped_asynchronous_run_goes_on_to_the_same_bits(tmp_path):
    what = free(algorithm=ep.AsyncEL(), aggregation=ep.TrimmedMean(f=1), seeds=[3])
    whole = models(what)

    class Stop(ep.Callback):
        def recorded(self, record):
            if record.round >= 2:
                raise KeyboardInterrupt

    with pytest.raises(ep.Interrupted):
        ep.simulate(what, tmp_path / "run", callbacks=[Stop()])
    run = ep.simulate(what, tmp_path / "run", resume=True)
    assert torch.equal(run.models.rows, whole)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"kind": "nearest", "f": -1}, "aggregation.f = -1"),
        ({"kind": "nearest", "few": "none"}, "few"),
        ({"kind": "krum", "before": "nmm"}, "before"),
        ({"kind": "nearest", "before": "nnm"}, "aggregation.before is not a known key"),
        (
            {"kind": "median", "f": 2},
            'aggregation.f = 2 has no meaning here, because a median leaves nothing out: give aggregation.before = "nnm"',
        ),
        ({"kind": "clipped", "tau": 1.0, "f": 2}, "aggregation.f = 2 has no meaning with aggregation.tau = 1"),
        ({"kind": "clipped", "tau": 1.0, "few": "less"}, "has no meaning with aggregation.tau = 1"),
        ({"kind": "clipped", "tau": "cs"}, "aggregation.tau"),
        ({"kind": "clipped", "tau": -1.0}, "aggregation.tau = -1"),
        ({"kind": "centred", "steps": 0}, "aggregation.steps = 0"),
        ({"kind": "w-msr", "f": 1.5}, "aggregation.f"),
    ],
)
def test_settings_that_mean_nothing_are_refused_with_a_line(table, said):
    with pytest.raises(BadInput) as problem:
        aggregator_from(table)
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


def test_gossip_learning_merges_two_models_by_clipping_at_a_given_length():
    plain = models(free(algorithm=ep.GossipLearning(merge="average")))
    clipped = models(free(algorithm=ep.GossipLearning(merge="average"), aggregation=ep.Clipped(tau=0.01)))
    assert torch.isfinite(clipped).all()
    assert not torch.equal(clipped, plain)


def test_gossip_learning_merges_two_models_by_a_rule_of_ones_own():
    class Half(Aggregator):
        weighted = True

        def __call__(self, heard):
            assert heard.weights.sum() == pytest.approx(1)
            return (heard.own + heard.received[0]) / 2

    average = models(free(algorithm=ep.GossipLearning(merge="average")))
    torch.testing.assert_close(
        models(free(algorithm=ep.GossipLearning(merge="average"), aggregation=Half())), average, rtol=1e-4, atol=1e-6
    )


def test_it_learns_among_liars_where_the_mean_does_not():
    """A fifth of the nodes send ten times the opposite of their model."""

    class Lying(ep.LocalSGD, frozen=True):
        def local_update(self, state, learner, context):
            state, message, loss = super().local_update(state, learner, context)
            message["x"][:2] *= -10
            return state, message, loss

    what = {"nodes": 10, "rounds": 30, "topology": ep.Complete(), "partition": ep.IID(), "algorithm": Lying(lr=0.2)}
    rules = [ep.TrimmedMean(f=2), ep.Median(), ep.Nearest(f=2), ep.TrimmedMean(f=2, before="nnm"), ep.Clipped(f=2)]
    rules += [ep.GTS(f=2), ep.Krum(f=2), ep.MultiKrum(f=2), ep.MeaMed(f=2), ep.IOS(f=2), ep.WMSR(f=2)]
    best = []
    for rule in (ep.Mean(), *rules, ep.GeometricMedian(), ep.Centred(tau=0.3), ep.Clipped(tau="adaptive", f=2)):
        run = ep.simulate(small(**what, aggregation=rule, eval=ep.Eval(every=30, samples="all")))
        best.append(run.seeds[0].summary.final_accuracy.max)
    mean, *robust = best
    assert mean < 0.5 < 0.8 < min(robust), best


# -- refused before anything runs -------------------------------------------------------------------------------------

TRIMMED = ep.TrimmedMean(f=1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"aggregation": 3}, "aggregation = 3 is not an aggregator: derive it from ep.Aggregator"),
        ({"mixing": "samples"}, 'mixing = "samples" gives each its own weight; use mixing = "uniform"'),
        ({"topology": ep.Geometric(radius=1.0)}, 'topology.kind = "geometric" has weights of its own'),
        ({"algorithm": ep.PushSum()}, 'algorithm.kind = "push-sum" needs its weighted sums as they are'),
        ({"algorithm": ep.GradientTracking()}, 'algorithm.kind = "gradient-tracking" needs its weighted sums'),
        (
            {"algorithm": ep.ExactDiffusion(), "mixing": "uniform"},
            'algorithm.kind = "exact-diffusion" needs its weighted sums',
        ),
        (
            {"compression": ep.compression.RandomK(share=0.5)},
            'compression.kind = "random-k" sends some of them; use "int8"',
        ),
        ({"compression": ep.compression.TopK(share=0.5)}, 'compression.kind = "top-k" sends some of them'),
        ({"topology": ep.Complete(cost="all-reduce")}, 'topology.cost = "all-reduce" sums them on their way'),
        (
            {"topology": ep.Fragments(inner=ep.ELOracle(s=4), k=2), "aggregation": ep.TrimmedMean(before="nnm")},
            'topology.kind = "fragments" sends their parts',
        ),
        ({"topology": ep.ELLocal(s=4), "faults": ep.Faults(cap=2)}, "use faults.max_retries = 0"),
        ({"aggregation": ep.Krum(), "nodes": 1001, "topology": ep.Complete()}, "are more than 1000; use topology.kind"),
        ({"aggregation": ep.Nearest(f=5)}, "needs 11 models, and nodes = 10 is all there are"),
        ({"aggregation": ep.Krum(), "mixing": "samples"}, 'mixing = "samples" gives each its own weight'),
        ({"aggregation": ep.TrimmedMean(f=5)}, "needs 11 models, and nodes = 10 is all there are"),
        (
            {"topology": ep.Fragments(inner=ep.ELOracle(s=4), k=2), "aggregation": Nearest()},
            'topology.kind = "fragments" sends their parts',
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(changes, said):
    with pytest.raises(BadInput) as problem:
        small(**{"aggregation": TRIMMED, **changes})
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("algorithm", "rule", "said"),
    [
        (ep.GossipLearning(merge="average"), TRIMMED, "says nothing of two models"),
        (ep.GossipLearning(merge="average"), ep.Median(), "says nothing of two models"),
        (
            ep.GossipLearning(variant="rw"),
            Nearest(),
            'has none of whole models; leave it out, or use algorithm.kind = "async-el"',
        ),
        (ep.GossipLearning(parts=4), TRIMMED, "has none of whole models"),
        (ep.DivShare(fragments=4), TRIMMED, "has none of whole models"),
    ],
)
def test_asynchronous_methods_that_do_not_merge_several_models_refuse_it(algorithm, rule, said):
    with pytest.raises(BadInput) as problem:
        free(algorithm=algorithm, aggregation=rule)
    assert said in str(problem.value)


class OwnTrimmed(ep.Defaults):
    """A rule as an algorithm of one's own: it knows neither weights nor parts."""

    local_steps, batch_size = 1, 4

    def init(self, x):
        return {"x": x}

    def local_update(self, state, learner, context):
        return state, {"x": state["x"]}, torch.zeros(len(state["x"]))

    def aggregate(self, state, inbox):
        return {"x": torch.stack([self.middle(heard) for heard in inbox.each("x")])}

    def middle(self, heard):
        return heard.inputs.median(0).values


class OwnWeighted(OwnTrimmed):
    def middle(self, heard):
        return (torch.from_numpy(heard.weights).float()[:, None] * heard.inputs).sum(0)


def test_an_algorithm_of_ones_own_that_ignores_weights_or_needs_whole_models_is_refused_before_anything_runs():
    with pytest.raises(BadInput, match='mixing = "samples" would have no effect'):
        small(algorithm=OwnTrimmed(), mixing="samples")
    small(algorithm=OwnWeighted(), mixing="samples")
    small(algorithm=OwnTrimmed(), mixing="uniform")
    for own in (OwnTrimmed(), OwnWeighted()):
        with pytest.raises(BadInput, match=r"asks for messages as a whole \(inbox\.each\)"):
            small(algorithm=own, topology=ep.Fragments(inner=ep.ELOracle(s=4), k=2))
    with pytest.raises(BadInput, match=r"does not ask inbox\.aggregate"):
        small(algorithm=OwnTrimmed(), aggregation=TRIMMED)


def test_weights_by_age_need_a_rule_that_has_weights():
    close = ep.clock.CloseDeadline(seconds=1.0, late="carry", weight="age")
    with pytest.raises(BadInput, match='use weight = "fresh"'):
        small(aggregation=TRIMMED, clock=ep.Clock(close=close))
    small(aggregation=Nearest(), clock=ep.Clock(close=close))


def test_a_rule_for_which_nobody_ever_hears_enough_is_refused_before_anything_runs():
    with pytest.raises(BadInput, match="needs 7 models, and no node has more than 5 here"):
        ep.simulate(small(aggregation=ep.TrimmedMean(f=3)))


@pytest.mark.parametrize(
    "broken",
    [lambda heard: heard.own[:3], lambda heard: heard.own.double(), lambda heard: 3, lambda heard: heard.nothing],
)
def test_a_rule_of_ones_own_that_is_wrong_ends_the_run_with_a_line(broken):
    class Broken(Aggregator):
        def __call__(self, heard):
            return broken(heard)

    with pytest.raises(RunFailed, match=r"aggregation: Broken (gave|failed)") as problem:
        ep.simulate(small(aggregation=Broken()))
    assert "\n" not in str(problem.value)


OWN = """
import epidemic as ep


class Toward(ep.Aggregator):
    weighted, fewest = True, 2

    def __init__(self, trust):
        self.trust = trust

    def __call__(self, heard):
        return heard.own + self.trust * (heard.received.mean(0) - heard.own)


def wrong():
    return lambda heard: heard.own
"""


def test_a_file_names_a_rule_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    own = ep.PythonAggregator(factory="my_rules:Toward", options={"trust": 0.5})
    what = small(aggregation=own)
    assert experiment_from(what.table()) == what
    assert what.portable
    from my_rules import Toward

    assert torch.equal(models(what), models(small(aggregation=Toward(0.5))))
    assert not small(aggregation=Toward(0.5)).portable
    for factory, said in {
        "my_rules:wrong": "must return an aggregator, not function: derive it from ep.Aggregator",
        "my_rules:nothing": "my_rules has no nothing",
    }.items():
        with pytest.raises(BadInput, match=said):
            small(aggregation=ep.PythonAggregator(factory=factory))


def test_a_whole_rule_is_one_class_with_one_method():
    class Middle(Coordinatewise):
        def reduce(self, inputs):
            return (smallest(inputs, 0, len(inputs) - 1)[0] + inputs[-1] * 0).clone()

    assert torch.isfinite(models(small(aggregation=Middle()))).all()


@pytest.mark.parametrize(
    "what", [small(aggregation=TRIMMED), free(algorithm=ep.AsyncEL(), aggregation=TRIMMED)], ids=["rounds", "async-el"]
)
def test_what_it_costs_can_be_estimated(what):
    from epidemic.estimate.measuring import exchange_of, in_rounds, learning_of

    assert in_rounds(what).aggregation == TRIMMED
    learning = learning_of(what, what.load_data())
    found = exchange_of(what, learning)
    assert (found is None) == (what.free is not None)
