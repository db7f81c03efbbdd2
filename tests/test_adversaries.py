"""Adversaries: worked examples of every attack, exactly; what each looks at; the line search."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import epidemic as ep
from epidemic.adversary import (
    ADVERSARIES,
    Alie,
    Backdoor,
    Dissensus,
    FlipOwn,
    Foe,
    Gaussian,
    Huge,
    LabelFlip,
    Mimic,
    MinMax,
    NotANumber,
    Reflect,
    ScaledFlip,
    Scene,
    Sight,
    SignFlip,
    Silent,
    Spectral,
    adversary_from,
    alie_factor,
    fiedler_vector,
    worst_factor,
)
from epidemic.adversary.mimic import unit
from epidemic.core.errors import BadInput
from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.data import Dataset, Samples


def rows(values):
    return torch.tensor(values, dtype=torch.float64)


def scene(honest, k=1, before=None, aggregate=lambda inputs: inputs.mean(0), graph=None, round=0, **more):
    """A receiver with these honest models, its own the first, and k malicious messages."""
    honest = rows(honest)
    h = len(honest)
    graph = Graph.complete(h + k) if graph is None else graph
    sight = Sight(
        round, graph, np.arange(h, h + k), np.arange(h), honest, None if before is None else rows(before), Streams(1)
    )
    uniform = {
        "own": honest[0],
        "received": honest[1:],
        "weights": np.full(h, 1 / (h + k)),
        "malicious_weight": k / (h + k),
        "receiver": 0,
    }
    return Scene(sight, np.arange(h, h + k), honest, aggregate, **{**uniform, **more})


THREE = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize(
    ("adversary", "expected"),
    [
        (SignFlip(), [-4, -5, -6]),
        (Foe(), [-8, -10, -12]),
        (Foe(factor=1.1), [-0.4, -0.5, -0.6]),
        (Alie(), [8.5, 9.5, 10.5]),
        (Alie(factor=-1.5), [-0.5, 0.5, 1.5]),
        (ScaledFlip(), [-12, -15, -18]),
        (Huge(magnitude=7.0), [7, 7, 7]),
    ],
)
def test_worked_examples(adversary, expected):
    torch.testing.assert_close(adversary.message(scene(THREE)), rows(expected), rtol=1e-15, atol=1e-15)


def test_scaled_flip_makes_the_plain_mean_0():
    found = scene([[0], [1], [2]])
    lie = ScaledFlip().message(found)
    assert lie.tolist() == [-3]
    assert torch.cat([found.honest, lie[None]]).mean() == 0
    two = scene([[0], [1], [2]], k=2)
    lie = ScaledFlip().message(two)
    assert torch.cat([two.honest, lie[None], lie[None]]).mean() == 0


def test_dissensus_of_1_leaves_plain_averaging_where_it_is():
    found = scene([[1], [3], [5]])
    lie = Dissensus().message(found)
    assert lie.tolist() == [-5]
    assert torch.cat([found.honest, lie[None]]).mean() == 1
    assert Dissensus(factor=1.5).message(found).tolist() == [-8]


@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=6),
    st.integers(1, 3),
    st.lists(st.integers(1, 9), min_size=9, max_size=9),
)
def test_dissensus_of_1_freezes_every_weighted_average(values, k, parts):
    """Exactly, in fractions: own weight and all others arbitrary."""
    shares = [Fraction(p, sum(parts[: len(values) + k])) for p in parts[: len(values) + k]]
    own, honest, false = shares[0], shares[1 : len(values)], shares[len(values) :]
    pull = sum(w * (v - values[0]) for w, v in zip(honest, values[1:], strict=True))
    exact = values[0] - pull / sum(false)
    assert (
        own * values[0] + sum(w * v for w, v in zip(honest, values[1:], strict=True)) + sum(false) * exact == values[0]
    )
    found = scene(
        [[v] for v in values],
        k,
        weights=np.array([float(own), *map(float, honest)]),
        malicious_weight=float(sum(false)),
    )
    assert float(Dissensus().message(found)[0]) == pytest.approx(float(exact), abs=1e-9)


def test_reflect_undoes_what_was_learnt():
    found = scene(THREE, before=[3, 3, 3])
    assert Reflect(factor=1.0).message(found).tolist() == [2, 1, 0]  # as far behind as the mean is ahead
    assert Reflect().message(found).tolist() == [0, -3, -6]


def test_flip_own_and_backdoor_speak_of_their_own_models():
    mine = {"trained": rows([[1, 2], [3, 4]]), "untrained": rows([[0, 0], [1, 1]])}
    found = scene([[0, 0], [1, 1]], k=2, **mine)
    assert FlipOwn().message(found).tolist() == [[-1, -2], [-3, -4]]
    assert Backdoor(boost=1.0).message(found).tolist() == [[1, 2], [3, 4]]
    boosted = Backdoor().message(found)  # four models, two of them malicious: twice as far
    assert boosted.tolist() == [[2, 4], [5, 7]]


@given(st.integers(1, 6), st.integers(1, 4))
def test_a_boosted_model_replaces_the_mean_of_honest_ones_that_have_not_moved(g, k):
    before, trained = rows([[2.0, -1.0]]), rows([[4.0, 3.0]])
    found = scene(before.expand(g, -1).tolist(), k, trained=trained.expand(k, -1), untrained=before.expand(k, -1))
    mean = torch.cat([found.honest, Backdoor().message(found)]).mean(0)
    torch.testing.assert_close(mean, trained[0])


def test_silence_nan_and_noise():
    found = scene(THREE, k=2)
    assert Silent().message(found) is None
    assert NotANumber().message(found).isnan().all()
    noise = Gaussian(sigma=2.0).message(scene([[0.0] * 4000], k=2))
    assert noise.shape == (2, 4000)
    assert not torch.equal(noise[0], noise[1])
    assert abs(float(noise.mean())) < 5 * 2 / math.sqrt(8000)
    assert float(noise.var()) == pytest.approx(4, abs=5 * 4 * math.sqrt(2 / 8000))
    again = Gaussian(sigma=2.0).message(scene([[0.0] * 4000], k=2))
    assert torch.equal(noise, again)  # by round and node, not by the order of calls
    assert not torch.equal(noise, Gaussian(sigma=2.0).message(scene([[0.0] * 4000], k=2, round=1)))


def test_min_max_goes_as_far_as_honest_models_are_apart_and_no_farther():
    generator = torch.Generator().manual_seed(1)
    honest = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    lie = MinMax().message(scene(honest.tolist()))
    limit = float(torch.cdist(honest, honest).max())
    assert limit * (1 - 1e-3) <= float((honest - lie).norm(dim=1).max()) <= limit * (1 + 1e-12)
    direction = (lie - honest.mean(0)) / honest.std(0)
    torch.testing.assert_close(direction, direction[0].expand(5))
    assert float(direction[0]) < 0


def test_of_a_single_model_the_deviation_is_0():
    assert Alie().message(scene([[1, 2, 3]])).tolist() == [1, 2, 3]


# -- alie's own factor ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "b", "z"),
    [
        (96, 5, 0.041330), (96, 10, 0.116853), (96, 19, 0.280335), (100, 10, 0.111637),
        (30, 6, 0.210428), (16, 3, 0.096559), (8, 3, 0.253347), (8, 2, 0.0),
    ],
)  # fmt: skip
def test_the_factor_of_the_original_attack(n, b, z):
    assert alie_factor(n, b) == pytest.approx(z, abs=1e-6)
    honest = np.random.default_rng(n).normal(size=(n - b, 2)).tolist()
    found = scene(honest, k=b)
    torch.testing.assert_close(Alie(factor="formula").message(found), found.mean + alie_factor(n, b) * found.deviation)


# -- the line search --------------------------------------------------------------------------------------------------


def searched(harm):
    tried = []

    def noted(z):
        tried.append(z)
        return harm(z)

    return worst_factor(noted), tried


def test_the_line_search_tries_what_the_published_program_tries():
    best, tried = searched(lambda z: -abs(z - 5))
    assert tried[:9] == pytest.approx([0, 1, 3, 7, 3.8, 1.24, 3.288, 4.9264, 3.6157], abs=1e-4)
    assert best == pytest.approx(4.9394023424, abs=1e-10)
    assert len(tried) == 16
    assert searched(lambda z: -((z - 1.3) ** 2))[0] == pytest.approx(1.30784, abs=1e-9)


@given(st.floats(0, 40), st.floats(0.1, 3))
def test_the_line_search_never_goes_below_0_and_returns_the_best_that_it_tried(peak, power):
    harm = lambda z: -(abs(z - peak) ** power)  # noqa: E731
    best, tried = searched(harm)
    assert min(tried) >= 0
    assert harm(best) == max(map(harm, tried))


@pytest.mark.parametrize("adversary", [Foe, Alie])
def test_the_worst_factor_does_at_least_the_harm_of_the_fixed_ones(adversary):
    generator = torch.Generator().manual_seed(3)
    honest = torch.randn(7, 20, generator=generator, dtype=torch.float64).tolist()
    found = scene(honest, k=2, aggregate=lambda inputs: inputs.sort(0).values[2:-2].mean(0))

    def harm(lie):
        inputs = torch.cat([found.honest, lie.expand(2, -1)])
        return float((found.aggregate(inputs) - found.mean).norm())

    worst = harm(adversary(factor="worst").message(found))
    assert worst >= max(harm(adversary(factor=z).message(found)) for z in (0.0, 1.0, 3.0)) * (1 - 1e-12)
    assert worst > 0


# -- mimicry ----------------------------------------------------------------------------------------------------------


def test_mimicry_copies_an_honest_model_to_the_bit():
    found = scene(THREE)
    for whom in ("first", "outlier"):
        notes = Mimic(whom=whom).prepare(found.sight, {})
        assert Mimic().message(replace(found, notes=notes)).tolist() == [1, 2, 3]


def test_the_outlier_is_found_in_the_direction_in_which_models_differ():
    generator = torch.Generator().manual_seed(2)
    honest = 0.01 * torch.randn(9, 30, generator=generator, dtype=torch.float64)
    axis = unit(torch.randn(30, generator=generator, dtype=torch.float64))
    honest += torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None] * axis
    honest[4] += 3 * axis
    adversary, memory = Mimic(whom="outlier", warmup=10), {}
    for round in range(11):
        notes = adversary.prepare(scene(honest.tolist(), round=round).sight, memory)
        assert torch.equal(notes["copied"], honest[0] if round < 10 else honest[4])
    assert abs(float(memory["direction"] @ axis)) > 0.99
    assert float(memory["direction"].norm()) == pytest.approx(1)


# -- the spectral attack ----------------------------------------------------------------------------------------------


def test_the_fiedler_vector_of_a_path_and_the_message_along_it():
    """Three honest nodes in a row, a malicious one beside: v = (1, 0, -1) / sqrt(2)."""
    edges = np.array([(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (3, 0), (0, 3)])
    graph = Graph.from_edges(4, edges[:, 0], edges[:, 1])
    v = fiedler_vector(graph, np.arange(3))
    np.testing.assert_allclose(np.abs(v), [math.sqrt(0.5), 0, math.sqrt(0.5), 0], atol=1e-12)
    found = scene([[1.0], [2.0], [6.0]], graph=graph)
    notes = Spectral().prepare(found.sight, {})
    # the component of the models along v is (1 - 6) / sqrt(2); at node 0 it is -2.5
    lie = Spectral(factor=2.0).message(replace(found, notes=notes))
    assert lie.tolist() == pytest.approx([1 + 2 * -2.5])


def test_the_spectral_attack_enlarges_the_slowest_difference_and_nothing_else():
    graph = ep.Ring().graph(8, 0, Streams(1))
    honest = np.arange(7)
    v = fiedler_vector(graph, honest)
    linked = np.zeros((8, 8))
    linked[graph.receivers, graph.senders] = 1
    laplacian = (np.diag(linked[:7, :7].sum(1)) - linked[:7, :7]) @ v[:7]
    second = np.sort(np.linalg.eigvalsh(np.diag(linked[:7, :7].sum(1)) - linked[:7, :7]))[1]
    np.testing.assert_allclose(laplacian, second * v[:7], atol=1e-12)
    assert np.linalg.norm(v) == pytest.approx(1)
    assert v.sum() == pytest.approx(0, abs=1e-12)


# -- poisoned data ----------------------------------------------------------------------------------------------------


def pictures(dtype=np.uint8, scale=1 / 255, shift=0.0):
    rng = np.random.default_rng(1)
    inputs = rng.integers(0, 200, (12, 5, 6)).astype(dtype)
    samples = Samples(inputs, np.arange(12) % 4)
    return Dataset(samples, samples, classes=("a", "b", "c", "d"), scale=scale, shift=shift)


def test_labels_are_flipped_and_inputs_are_not():
    data = pictures()
    found = LabelFlip().poisoned(data.train, data)
    assert found.targets.tolist() == (3 - data.train.targets).tolist()
    assert np.array_equal(found.inputs, data.train.inputs)
    assert LabelFlip(where="rows").poisoned(data.train, data) is None


@pytest.mark.parametrize(
    ("dtype", "scale", "shift", "white"), [(np.uint8, 1 / 255, 0.0, 255), (np.float32, 2.0, -1.0, 1.0)]
)
def test_the_stamp_is_white_in_the_lower_right_corner_and_its_pictures_have_the_wanted_class(
    dtype, scale, shift, white
):
    data = pictures(dtype, scale, shift)
    found = Backdoor(target=2, side=2).poisoned(data.train, data)
    assert (found.inputs[:, -2:, -2:] == white).all()
    rest = np.ones((5, 6), dtype=bool)
    rest[-2:, -2:] = False
    assert np.array_equal(found.inputs[:, rest], data.train.inputs[:, rest])
    assert (found.targets == 2).all()
    aimed = Backdoor(target=2).triggered(data.test, data)
    assert len(aimed) == 9  # those of other classes


# -- settings ---------------------------------------------------------------------------------------------------------


def test_malicious_nodes_are_drawn_by_the_seed_or_listed():
    drawn = SignFlip(nodes=5).members(96, Streams(1))
    assert len(set(drawn.tolist())) == 5
    assert drawn.tolist() == sorted(drawn.tolist())
    assert drawn.tolist() == Foe(nodes=5).members(96, Streams(1)).tolist()  # whatever they do
    assert drawn.tolist() != SignFlip(nodes=5).members(96, Streams(2)).tolist()
    assert SignFlip(nodes=[7, 3]).members(96, Streams(1)).tolist() == [3, 7]


def test_every_node_is_malicious_equally_often():
    """5 of 20 in 2,000 seeds: each in a quarter of them, within 5 sigma."""
    counts = np.zeros(20)
    for seed in range(2000):
        counts[SignFlip(nodes=5).members(20, Streams(seed))] += 1
    assert np.abs(counts - 500).max() <= 5 * math.sqrt(2000 * 0.25 * 0.75)


@pytest.mark.parametrize("kind", [kind for kind in ADVERSARIES if kind != "python"])
def test_every_kind_can_be_had_by_a_table_and_in_its_room(kind):
    found = adversary_from({"kind": kind, "nodes": 2})
    assert found.called == kind
    assert getattr(ep.adversary, type(found).__name__) is type(found)
    assert isinstance(found, ep.Adversary)
    assert type(found).__doc__


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"kind": "sign-flop"}, r"adversary\.kind = 'sign-flop' is not known.*sign-flip"),
        ({"kind": "foe", "factor": "best"}, r"adversary\.factor"),
        ({"kind": "alie", "knows": "letters"}, r"adversary\.knows"),
        ({"kind": "sign-flip", "nodes": [1, 1]}, r"must be different"),
        ({"kind": "sign-flip", "nodes": -1}, r"adversary\.nodes = -1"),
        ({"kind": "sign-flip", "start": 3, "data": "honest"}, r"adversary\.start = 3 needs it"),
        ({"kind": "flip-own", "data": "honest"}, r'"flip-own" needs it; use "all"'),
        ({"kind": "gaussian", "sigma": 0}, r"adversary\.sigma"),
        ({"kind": "mimic", "whom": "last"}, r"adversary\.whom"),
        ({"kind": "backdoor", "share": 1.5}, r"adversary\.share"),
        ({"kind": "backdoor", "boost": "more"}, r"adversary\.boost"),
        ({"kind": "label-flip", "knows": "all"}, r'use where = "rows"'),
    ],
)
def test_wrong_settings_get_one_line(table, says):
    with pytest.raises(BadInput, match=says) as found:
        adversary_from(table)
    assert "\n" not in str(found.value)
