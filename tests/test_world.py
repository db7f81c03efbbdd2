"""Laws of the modelled world: what takes how long, and who is there when."""

import math
from bisect import bisect_right
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from epidemic.clock import (
    CHURNS,
    CLOSES,
    COMPUTES,
    SECOND,
    Clock,
    CloseDeadline,
    CloseQuorum,
    ConstantCompute,
    ConstantCount,
    DiurnalChurn,
    ExponentialChurn,
    Links,
    LognormalChurn,
    LognormalLatency,
    MatrixLatency,
    PerNodeCompute,
    PerStepCompute,
    SlowedCompute,
    clock_from,
)
from epidemic.clock.churn import beta_2_5
from epidemic.clock.timelines import Cycle
from epidemic.core.config import to_table
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.runtime.plan import weights_by_age

HERE = Path()
CHURN = {
    "exponential": ExponentialChurn(30, mean_off=10),
    "lognormal": LognormalChurn(30, median_off=10, sigma=1.2),
    "constant-count": ConstantCount(5, median=20, sigma=1.0),
    "diurnal": DiurnalChurn(period=60),
}


def world(n=16, seed=1, batch_size=8, where=HERE, **parts):
    return Clock(**parts).world(n, Streams(seed), batch_size, where)


def churned(kind, n=16, seed=1):
    return world(n, seed, churn=CHURN[kind])


# -- compute time -----------------------------------------------------------------------------------------------------


def test_constant_steps_take_the_same_time():
    w = world(compute=ConstantCompute(0.25))
    assert {w.step_cost(i, c) for i in range(16) for c in (0, 1, 7000)} == {250_000}


SLOWEST = {  # sigma: the mean of the slowest of 8, 96, 1000, and the 99th percentile of one; the law has mean 1
    0.25: (1.40009, 1.81838, 2.18815, 1.73384),
    0.5: (1.88761, 3.14526, 4.53537, 2.82406),
    1.0: (3.08385, 8.13303, 16.6039, 6.21116),
}


@pytest.mark.parametrize("sigma", SLOWEST)
def test_the_slowest_of_m_takes_as_long_as_the_law_says(sigma):
    law = stats.lognorm(s=sigma, scale=math.exp(-(sigma**2) / 2))
    *means, high = SLOWEST[sigma]
    for m, mean in zip((8, 96, 1000), means, strict=True):
        found = integrate.quad(lambda x, m=m: 1 - law.cdf(x) ** m, 0, 20, limit=400)[0]
        found += integrate.quad(lambda x, m=m: 1 - law.cdf(x) ** m, 20, np.inf, limit=400)[0]
        assert found == pytest.approx(mean, rel=1e-5)
    assert law.ppf(0.99) == pytest.approx(high, rel=1e-5)
    # and as often as the clock draws: rounds of 96 nodes that wait for the slowest
    w = world(96, compute=PerStepCompute(1.0, sigma=sigma, mean_one=True))
    drawn = np.array([[w.step_cost(i, c) for c in range(512)] for i in range(96)]) / SECOND
    for m, mean in zip((8, 96, 1000), means, strict=True):
        slowest = drawn.T.ravel()[: drawn.size // m * m].reshape(-1, m).max(axis=1)
        assert abs(slowest.mean() - mean) < 5 * slowest.std() / math.sqrt(slowest.size)
    assert abs(drawn.mean() - 1) < 5 * drawn.std() / math.sqrt(drawn.size)


def test_per_node_steps_differ_between_nodes_and_not_between_trainings():
    w = world(4000, compute=PerNodeCompute(0.1, sigma=0.5))
    cost = np.array([w.step_cost(i, 0) for i in range(4000)])
    assert [w.step_cost(i, 999) for i in range(4000)] == cost.tolist()
    z = np.log(cost / 100_000) / 0.5
    assert stats.kstest(z, "norm").pvalue > 1e-4
    of_mean_one = world(4000, compute=PerNodeCompute(0.1, sigma=0.5, mean_one=True))
    ratio = cost / [of_mean_one.step_cost(i, 0) for i in range(4000)]
    assert np.allclose(ratio, math.exp(0.125), rtol=1e-3)


@pytest.mark.parametrize("inner", [ConstantCompute(0.1), PerNodeCompute(0.1, sigma=0.5)])
@pytest.mark.parametrize(
    ("n", "fraction", "slowed"), [(30, 0.1, 3), (60, 7 / 60, 7), (10, 0.25, 3), (8, 0, 0), (8, 1, 8)]
)
def test_exactly_the_slowest_fraction_is_slowed(inner, n, fraction, slowed):
    plain = world(n, compute=inner)
    w = world(n, compute=SlowedCompute(inner, fraction=fraction, factor=5))
    ratio = np.array([w.step_cost(i, 0) / plain.step_cost(i, 0) for i in range(n)])
    assert np.isclose(ratio, 5, rtol=1e-4).sum() == slowed
    assert np.isclose(ratio, 1, rtol=1e-4).sum() == n - slowed
    if 0 < slowed < n:
        before = np.array([plain.step_cost(i, 0) for i in range(n)])
        assert before[ratio > 2].min() >= before[ratio < 2].max()


def test_which_of_equals_are_slowed_is_chance():
    chosen = [
        tuple(
            world(20, seed, compute=SlowedCompute(ConstantCompute(), fraction=0.2, factor=3)).step_cost(i, 0) > 100_000
            for i in range(20)
        )
        for seed in range(200)
    ]
    assert len(set(chosen)) > 150
    often = np.sum(chosen, axis=0)
    assert (np.abs(often - 40) < 5 * math.sqrt(200 * 0.2 * 0.8)).all()


# -- links ------------------------------------------------------------------------------------------------------------


def test_rates_are_bytes_per_microsecond():
    w = world(links=Links(uplink=10, downlink=100, latency=0.05, model="duplex"))
    assert round(359_336 / w.uplink[0]) == 287_469  # GN-LeNet at 10 Mbit/s: 0.2874688 s
    assert w.downlink.tolist() == [12.5] * 16
    assert w.latency(3, 4) == 50_000
    assert np.isinf(world().uplink).all()
    assert np.isinf(world().downlink).all()


def test_lognormal_latency_belongs_to_the_pair():
    w = world(links=Links(latency=LognormalLatency(0.02, sigma=0.5)))
    assert w.latency(3, 9) == w.latency(9, 3) != w.latency(3, 10)
    drawn = np.array([w.latency(i, j) for i in range(100) for j in range(i)])
    assert stats.kstest(np.log(drawn / 20_000) / 0.5, "norm").pvalue > 1e-4


def test_matrix_latency(tmp_path):
    (tmp_path / "ms.csv").write_text("0, 10, 20\n11, 0, 30.5\n\n21, 31, 1\n")
    w = world(7, where=tmp_path, links=Links(latency=MatrixLatency("ms.csv")))
    assert (w.latency(0, 1), w.latency(1, 0), w.latency(1, 2)) == (10_000, 11_000, 30_500)
    assert w.latency(5, 2) == 1_000  # both at site 2
    assert w.latency(6, 4) == w.latency(0, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0, 1\n2", "row 2 has 1 numbers, but there are 2 rows"),
        ("0, 1\n-0.5, 0", "line 2, column 1: -0.5 ms must be at least 0"),
        ("0, x\n1, 0", "line 1, column 2: 'x' is not a number"),
        ("0, nan\n1, 0", "column 2: nan"),
        ("\n", "has 0 rows"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_bad_matrix_is_refused(tmp_path, text, says):
    if text is not None:
        (tmp_path / "ms.csv").write_text(text)
    with pytest.raises(BadInput, match=says):
        world(where=tmp_path, links=Links(latency=MatrixLatency("ms.csv")))


# -- churn ------------------------------------------------------------------------------------------------------------


def naive_on(sessions, period, time):
    place = time if period is None else time % period
    return any(a <= place < b for a, b in sessions)


@st.composite
def cycles(draw):
    edges = draw(st.lists(st.integers(0, 30), max_size=10).map(sorted))
    if len(edges) % 2:
        edges.pop()
    sessions = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
    last = max((b for _, b in sessions), default=0)
    return sessions, draw(st.one_of(st.none(), st.integers(max(last, 1), max(last, 1) + 5), st.just(max(last, 1))))


@settings(max_examples=250)
@given(cycles(), st.integers(0, 200))
def test_sessions_are_found_as_a_naive_search_finds_them(cycle, time):
    """On and the next change agree with looking at every microsecond, over several periods."""
    sessions, period = cycle
    found = Cycle(sessions, period)
    assert found.on_at(time) == naive_on(sessions, period, time)
    horizon = time + 2 * (period or 40) + 1
    changes = (
        t for t in range(time + 1, horizon) if naive_on(sessions, period, t) != naive_on(sessions, period, t - 1)
    )
    assert found.next_change(time) == next(changes, None)


def test_sessions_answer_far_ahead_like_fedscales_own_test():
    """Its example with period 10, and the same a thousand periods later, where its own index would be lost."""
    cycle = Cycle([(3, 4), (6, 7), (9, 10)], 10)
    for later in (0, 10_000, 10**15):
        assert [cycle.on_at(later + t) for t in (2, 6, 8, 9, 10, 15)] == [False, True, False, True, False, False]
        assert cycle.next_change(later + 9) == later + 10
        assert cycle.next_change(later + 10) == later + 13


def test_always_on_or_off_never_changes():
    assert Cycle([(0, 10)], 10).next_change(3) is None
    assert Cycle([(0, 4), (4, 10)], 10).next_change(3) is None
    assert Cycle([], 10).next_change(3) is None
    assert not Cycle([], None).on_at(0)
    assert world().next_change(3, 0) is None
    assert world().on_at_start(3)


def changes_of(w, node, until):
    found, time = [], 0
    while (time := w.next_change(node, time)) is not None and time <= until:
        found.append(time)
    return found


@pytest.mark.parametrize("kind", CHURN)
def test_answers_do_not_depend_on_the_order_of_questions(kind):
    """Asked in order, backwards, about one node only, or with long jumps: the same."""
    until = 3000 * SECOND
    w = churned(kind)
    forward = {i: changes_of(w, i, until) for i in range(16)}
    assert sum(map(len, forward.values())) > 500
    other = churned(kind)
    rng = np.random.default_rng(3)
    times = [0, *rng.integers(0, until, 60).tolist()]
    for i in (11, 2, 11):
        for time in times:
            on = w.on_at_start(i) ^ (bisect_right(forward[i], time) % 2 == 1)
            assert other.on_at(i, time) == on
            if time < forward[i][-1]:
                assert other.next_change(i, time) == forward[i][bisect_right(forward[i], time)]
    assert changes_of(churned(kind), 7, until) == forward[7]
    assert changes_of(churned(kind, seed=2), 7, until) != forward[7]


@pytest.mark.parametrize("kind", CHURN)
def test_at_each_change_a_node_goes_on_or_off(kind):
    w = churned(kind)
    for i in range(16):
        on = w.on_at_start(i)
        for time in changes_of(w, i, 500 * SECOND):
            assert w.on_at(i, time - 1) == on
            on = not on
            assert w.on_at(i, time) == on


@pytest.mark.parametrize(
    "churn",
    [
        ExponentialChurn(30, mean_off=10),
        LognormalChurn(30, median_off=10, sigma=1.0),
        LognormalChurn(3, median_off=9, sigma=0),
    ],
)
def test_the_share_of_nodes_that_are_on_is_the_same_at_all_times(churn):
    """mean_on / (mean_on + mean_off), from the very start on."""
    n = 2000
    w = world(n, churn=churn)
    share = churn.share
    for seconds in (0, 1, 5, 40):
        on = sum(w.on_at(i, seconds * SECOND) for i in range(n))
        assert abs(on - n * share) < 5 * math.sqrt(n * share * (1 - share)), seconds
    assert w.describe()["availability"]["mean"] == pytest.approx(share)


@pytest.mark.parametrize("churn", [ExponentialChurn(30, mean_off=10), LognormalChurn(30, median_off=10, sigma=0.8)])
def test_sessions_have_the_lengths_that_were_asked_for(churn):
    w = world(60, churn=churn)
    on, off = [], []
    for i in range(60):
        changes = changes_of(w, i, 8000 * SECOND)
        lengths = np.diff(changes) / SECOND
        first, second = (off, on) if w.on_at_start(i) else (on, off)  # after the first change
        first.extend(lengths[::2])
        second.extend(lengths[1::2])
    for lengths, mean in ((on, 30), (off, 10)):
        if isinstance(churn, LognormalChurn):
            lengths, mean = np.log(lengths), math.log(mean)
        assert abs(np.mean(lengths) - mean) < 5 * np.std(lengths) / math.sqrt(len(lengths))


def test_constant_count_keeps_the_count():
    n = 40
    w = world(n, churn=ConstantCount(7, median=20, sigma=1.5))
    changes = sorted({t for i in range(n) for t in changes_of(w, i, 400 * SECOND)})
    assert len(changes) > 30
    for time in [0, *changes]:
        assert sum(w.on_at(i, time) for i in range(n)) == 7
    later = [w.next_change(i, 0) for i in range(n) if not w.on_at_start(i)]
    assert max(later) < 4000 * SECOND  # everybody gets a turn


def test_diurnal_counts_swing_between_low_and_high():
    n, churn = 200, DiurnalChurn(period=3600, low=0.1, high=0.8)
    w = world(n, churn=churn)
    counts = churn.counts(n)
    assert (counts.min(), counts.max()) == (20, 160)
    for part in range(0, 360, 7):
        for day in (0, 5):
            time = day * 3600 * SECOND + part * 10 * SECOND
            assert sum(w.on_at(i, time) for i in range(n)) == counts[part]
    assert w.describe()["availability"]["mean"] == pytest.approx(counts.mean() / n)
    assert w.describe()["on_at_start"] == counts[0]
    assert stats.kstest(beta_2_5(Streams(1)("mine").uniforms(4000, 6)), stats.beta(2, 5).cdf).pvalue > 1e-4


def test_costs_do_not_depend_on_the_order_of_questions_nor_on_other_nodes():
    a, b = (world(n, compute=PerStepCompute(0.1, sigma=0.5)) for n in (8, 30))
    forward = {(i, c): a.step_cost(i, c) for i in range(8) for c in range(600)}
    for i, c in [(3, 599), (0, 0), (3, 10), (7, 300), (3, 599), (1, 255), (1, 256)]:
        assert b.step_cost(i, c) == forward[i, c]
    assert len(set(forward.values())) > 4700
    few, many = (world(n, compute=PerNodeCompute(0.1, sigma=0.5)) for n in (8, 31))
    assert [few.step_cost(i, 0) for i in range(8)] == [many.step_cost(i, 0) for i in range(8)]


# -- the table --------------------------------------------------------------------------------------------------------

TABLES = [
    {},
    {"compute": {"seconds": 0.2}, "stop": 60, "megabytes": 1.5, "evaluate": 10},
    {"compute": {"kind": "per-node", "median": 0.1, "sigma": 0.5, "mean_one": True}},
    {
        "compute": {
            "kind": "slowed",
            "inner": {"kind": "per-step", "median": 1, "sigma": 1},
            "fraction": 0.1,
            "factor": 4,
        }
    },
    {"compute": {"kind": "devices"}, "churn": {"kind": "devices"}, "devices": "a.jsonl", "reuse": True},
    {"compute": {"kind": "per-step", "median": 0.1, "sigma": 0.5}},
    {"links": {"uplink": 10, "downlink": 20, "model": "fair", "order": "ascending", "latency": 1}},
    {"links": {"latency": {"kind": "lognormal", "median": 0.05, "sigma": 0.3}}},
    {"links": {"latency": {"kind": "matrix", "path": "ms.csv"}}},
    {"churn": {"kind": "exponential", "mean_on": 60, "mean_off": 20, "training": "abort", "transfers": "finish"}},
    {"churn": {"kind": "lognormal", "median_on": 60, "median_off": 20, "sigma": 1}},
    {"churn": {"kind": "constant-count", "online": 5, "median": 60, "sigma": 1}},
    {"churn": {"kind": "diurnal"}},
    *({"close": {"kind": kind}} for kind in ("global", "barrier", "adaptive")),
    {"close": {"kind": "quorum", "q": 0.5, "deadline": 2, "late": "carry", "weight": "age", "catch_up": True}},
    *({"close": {"kind": kind, "seconds": 2}} for kind in ("deadline", "schedule")),
]


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_tables_become_values_and_tables_again(table):
    clock = clock_from(table)
    assert clock_from(to_table(clock)) == clock
    assert clock_from(clock) is clock
    hash(clock)


def test_every_kind_is_tried():
    for key, kinds in (("compute", COMPUTES), ("churn", CHURNS), ("close", CLOSES)):
        tried = {table.get(key, {}).get("kind", "constant") for table in TABLES}
        assert set(kinds) <= tried


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"compute": {"kind": "constnt"}}, "clock.compute.kind = 'constnt' is not known; did you mean 'constant'"),
        ({"compute": {"seconds": 0}}, "clock.compute.seconds = 0.0 must be at least 1e-06"),
        ({"compute": {"kind": "per-step", "median": 1, "sigma": 3}}, "clock.compute.sigma = 3.0 must be at most 2"),
        ({"compute": {"kind": "per-step", "median": 1}}, "clock.compute.sigma is missing"),
        (
            {"compute": {"kind": "slowed", "inner": {"kind": "slowed"}}},
            "clock.compute.inner.kind = 'slowed' is not known",
        ),
        ({"compute": {"kind": "slowed", "inner": {"kind": "constant"}, "fraction": 2, "factor": 2}}, "fraction = 2.0"),
        ({"compute": {"kind": "slowed", "inner": {"kind": "constant"}, "fraction": 0, "factor": 0.5}}, "at least 1"),
        ({"compute": {"kind": "devices"}}, 'clock.compute.kind = "devices" needs clock.devices'),
        ({"churn": {"kind": "devices"}}, 'clock.churn.kind = "devices" needs clock.devices'),
        (
            {"churn": {"kind": "exponential", "mean_on": -1, "mean_off": 1}},
            "clock.churn.mean_on = -1.0 must be at least",
        ),
        ({"churn": {"kind": "diurnal", "low": 0.9}}, "clock.churn.low = 0.9 must be at most high = 0.8"),
        ({"churn": {"kind": "diurnal", "training": "stop"}}, "clock.churn.training = 'stop' must be one of 'pause'"),
        ({"links": {"uplink": -1}}, "clock.links.uplink = -1.0 must be at least 0"),
        ({"links": {"downlink": 5}}, 'downlink = 5 has no part in model = "uplink"'),
        ({"links": {"latency": "fast"}}, "clock.links.latency = 'fast' must be a number of seconds"),
        ({"links": {"latency": {"kind": "normal"}}}, "clock.links.latency.kind = 'normal' is not known"),
        ({"links": {"bandwidth": 5}}, "clock.links.bandwidth is not a known key"),
        ({"close": {"kind": "quorum", "q": 0}}, "clock.close.q = 0.0 must be greater than 0"),
        ({"close": {"kind": "quorum", "q": 1.5}}, "clock.close.q = 1.5 must be at most 1"),
        ({"close": {"kind": "global", "late": "carry"}}, "clock.close.late is not a known key"),
        ({"close": {"kind": "deadline", "seconds": 1, "weight": "age"}}, 'use late = "carry"'),
        ({"close": {"kind": "neighbours"}}, 'clock.close.kind = "neighbours" is called "barrier"'),
        ({"close": {"kind": "adaptive", "deadline": 0}}, "clock.close.deadline = 0.0 must be greater than 0"),
        ({"close": "global"}, "clock.close = 'global' must be a table with a kind; use clock.close = {kind = "),
        ({"stop": -1}, "clock.stop = -1.0 must be at least 0"),
        ({"reuse": True}, "clock.reuse = true needs clock.devices"),
        ({"speed": 1}, "clock.speed is not a known key"),
        (3, "clock = 3 must be a table"),
    ],
    ids=str,
)
def test_a_bad_table_gets_one_line(table, says):
    with pytest.raises(BadInput) as problem:
        clock_from(table)
    assert says in str(problem.value)
    assert "\n" not in str(problem.value)


def test_more_online_than_there_are_is_refused():
    with pytest.raises(BadInput, match=r"clock.churn.online = 16 must be at most nodes - 1 = 15"):
        world(churn=ConstantCount(16, median=60, sigma=1))


def test_a_quorum_is_rounded_up_and_not_by_rounding_errors():
    assert [CloseQuorum(q=0.7).needed(k) for k in (0, 1, 3, 10)] == [0, 1, 3, 7]
    assert CloseQuorum(q=0.28).needed(25) == 7
    assert CloseQuorum(q=1).needed(7) == 7
    carried = CloseDeadline(seconds=1, late="carry", weight="age")
    assert weights_by_age(carried, [0, 1]).tolist() == pytest.approx([0.4, 0.4, 0.2])
    assert weights_by_age(CloseDeadline(seconds=1, late="carry"), [0, 4, 2]).tolist() == [0.25] * 4
    assert [carried.weight_at(age) for age in (0, 1, 3)] == [1, 0.5, 0.25]
    assert CloseDeadline(seconds=1, late="carry").weight_at(3) == 1


def test_the_world_says_what_it_is():
    w = world(compute=PerStepCompute(0.1, sigma=0.5), links=Links(uplink=10, latency=0.05))
    assert w.describe() == {
        "step_s": {"min": 0.1, "median": 0.1, "max": 0.1, "sigma": 0.5},
        "latency_s": {"median": 0.05},
        "uplink_mbit": {"min": 10.0, "median": 10.0, "max": 10.0},
        "availability": {"min": 1.0, "median": 1.0, "max": 1.0, "mean": 1.0},
        "on_at_start": 16,
    }
