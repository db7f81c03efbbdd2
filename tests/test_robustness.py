"""Robustness in theory: coefficients, the floor that nothing can go below, momentum at the node; and what is measured beside them."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import epidemic as ep
from epidemic import theory
from epidemic.adversary import SignFlip
from epidemic.callbacks.progress import remarks
from epidemic.core.errors import BadInput
from epidemic.learner import SGDUpdate
from epidemic.runtime.setup import prepare

F = Fraction


@pytest.mark.parametrize(
    ("m", "f", "least", "median"),
    [(5, 1, F(1, 3), 1), (5, 2, 2, 2), (8, 1, F(1, 6), F(3, 4)), (8, 2, F(1, 2), 1), (8, 3, F(3, 2), F(3, 2)), (11, 3, F(3, 5), F(5, 3)), (16, 7, F(7, 2), F(7, 2))],
)  # fmt: skip
def test_exact_worst_cases(m, f, least, median):
    assert theory.kappa_least(m, f) == theory.kappa_trimmed_mean(m, f) == pytest.approx(float(least))
    assert theory.kappa_median(m, f) == pytest.approx(float(median))
    assert theory.kappa_median(m, f) >= theory.kappa_least(m, f) - 1e-12


@pytest.mark.parametrize(
    ("m", "f", "bounds"),
    [
        (5, 1, (2.667, 7.111, 8, 7.333, 16.22, 18)),
        (5, 2, (36, 36, 18, 197.3, 197.3, 101.3)),
        (8, 2, (4.5, 9, 9, 14.67, 26.67, 26.67)),
        (11, 3, (5.76, 10.24, 9.6, 20.28, 33.72, 31.8)),
        (16, 7, (94.5, 81, 27, 594.2, 510.2, 174.2)),
    ],
)
def test_published_bounds(m, f, bounds):
    rules = ("trimmed-mean", "median", "krum", "nnm+trimmed-mean", "nnm+median", "nnm+krum")
    for rule, bound in zip(rules, bounds, strict=True):
        assert theory.kappa_bound(rule, m, f) == pytest.approx(bound, rel=5e-4)


@given(st.integers(1, 40), st.integers(0, 19))
def test_what_is_exact_is_below_its_bound(m, f):
    if m <= 2 * f:
        with pytest.raises(BadInput, match="less than half of m"):
            theory.kappa_least(m, f)
        return
    assert theory.kappa_trimmed_mean(m, f) <= theory.kappa_bound("trimmed-mean", m, f)
    assert theory.kappa_median(m, f) <= theory.kappa_bound("median", m, f)


# -- the floor --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "f", "squared", "variance"),
    [(5, 1, F(1, 16), F(3, 16)), (8, 2, F(1, 9), F(2, 9)), (16, 5, F(25, 121), F(30, 121))],
)
def test_the_trimmed_mean_attains_the_floor_that_no_rule_can_go_below(n, f, squared, variance):
    """f zeros, f twos, ones between them; the twos are malicious."""
    values = [0] * f + [1] * (n - 2 * f) + [2] * f
    honest = [F(v) for v in values[: n - f]]
    mean = sum(honest) / len(honest)
    assert sum((v - mean) ** 2 for v in honest) / len(honest) == variance
    inputs = [torch.tensor([float(v)], dtype=torch.float64) for v in values]
    output = F(float(ep.TrimmedMean(f=f).reduce(inputs)))
    assert (output - mean) ** 2 == squared
    assert theory.impossible_floor(n, f, float(variance)) == pytest.approx(float(squared))


def test_breakdown_and_constants():
    assert theory.breakdown(0) == 0.5
    assert theory.breakdown(1) == pytest.approx(1 / 3)
    assert theory.monna_constants(26, 2) == pytest.approx((9.88 * 2 / 24, 18 / 24))
    with pytest.raises(BadInput, match="at most n / 11"):
        theory.monna_constants(26, 5)


# -- momentum at the node ---------------------------------------------------------------------------------------------


def quadratic(**changes):
    settings = {
        "nodes": 60, "rounds": 12, "topology": ep.Isolated(), "model": ep.Point(), "partition": ep.IID(),
        "data": ep.Synthetic(problem="quadratic", features=30, groups=1, samples=1200, noise=1.0),
        "eval": ep.Eval(every=100, samples=10), "runtime": ep.Runtime(threads=1),
    }  # fmt: skip
    return ep.Experiment(**{**settings, **changes})


@given(st.lists(st.integers(-8, 8), min_size=1, max_size=8))
def test_the_optimiser_makes_the_steps_of_averaged_momentum(gradients):
    """v = beta v + g with lr = eta (1 - beta) is m = beta m + (1 - beta) g with eta, exactly where all numbers are exact."""
    eta, beta = 0.5, 0.75
    step = SGDUpdate(theory.momentum_lr(eta, beta), beta)
    x = torch.zeros(1, 1, dtype=torch.float64)
    memory = step.memory(x)
    place, m = F(0), F(0)
    for g in gradients:
        step.update([(x, memory, torch.tensor([[float(g)]], dtype=torch.float64))])
        m = F(beta) * m + (1 - F(beta)) * g
        place -= F(eta) * m
    assert F(float(x)) == place


def test_what_nodes_send_is_made_with_their_momentum_which_stays_with_them():
    """A run against the equation: x_half = x - eta m, m never sent and never averaged."""
    eta, beta = 0.5, 0.9
    algorithm = ep.LocalSGD(lr=theory.momentum_lr(eta, beta), momentum=beta, batch_size=4)
    experiment = quadratic(nodes=6, topology=ep.Complete(), algorithm=algorithm, rounds=5)
    setup = prepare(experiment, 1)
    samples = torch.from_numpy(setup.data.train.inputs).double()
    x, m = setup.initial.double().repeat(6, 1), torch.zeros(6, len(setup.initial), dtype=torch.float64)
    for round in range(5):
        index = setup.batches.index(setup.streams, round)[:, 0]  # (6, b)
        m = beta * m + (1 - beta) * (x - samples[torch.from_numpy(index)].mean(1))
        x = (x - eta * m).mean(0).expand(6, -1)
    torch.testing.assert_close(ep.simulate(experiment).models.rows.double(), x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_momentum_reduces_the_spread_to_hide_in_as_predicted(beta):
    """The variance over nodes of one step, beside that of the node means and of batches; within 5 sigma."""
    eta, b, rounds = 1e-3, 2, 12
    algorithm = ep.LocalSGD(lr=theory.momentum_lr(eta, beta), momentum=beta, batch_size=b)
    late, before = (
        ep.simulate(quadratic(rounds=r, algorithm=algorithm)).models.rows.double() for r in (rounds, rounds - 1)
    )
    steps = (late - before) / eta
    setup = prepare(quadratic(algorithm=algorithm), 1)
    inputs = setup.data.train.inputs.astype(np.float64)
    means = np.stack([inputs[part].mean(0) for part in setup.parts])
    noise = np.mean([inputs[part].var(0).mean() for part in setup.parts]) / b
    unlike = ((means - means.mean(0)) ** 2).mean()
    expected = unlike * (1 - beta**rounds) ** 2 + noise * theory.momentum_variance(beta, rounds)
    measured = float(((steps - steps.mean(0)) ** 2).mean())
    assert abs(measured / expected - 1) < 5 * math.sqrt(2 / steps.numel()) + 0.02  # a little for the drift


def test_momentum_of_09_leaves_a_nineteenth():
    assert theory.momentum_variance(0.0) == 1
    assert theory.momentum_variance(0.9) == pytest.approx(1 / 19)
    assert theory.momentum_variance(0.9, 1) == pytest.approx(0.01)  # (1 - beta)^2
    assert theory.momentum_lr(0.5, 0.9) == pytest.approx(0.05)
    assert theory.momentum_lr(0.5, 0.99) == pytest.approx(0.005)
    assert theory.attacked_floor(20, 2, 1.0, 19.0) == pytest.approx(2.0)
    assert theory.attacked_floor(20, 2, 1.0, 19.0, beta=0.9) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("momentum", "rule", "adversary", "told"),
    [(0.0, ep.TrimmedMean(), SignFlip(), True), (0.9, ep.TrimmedMean(), SignFlip(), False), (0.0, ep.Mean(), SignFlip(), False), (0.0, ep.TrimmedMean(), None, False)],
)  # fmt: skip
def test_who_goes_without_momentum_under_attack_is_told(momentum, rule, adversary, told):
    experiment = quadratic(
        topology=ep.ELOracle(s=4), algorithm=ep.LocalSGD(momentum=momentum), aggregation=rule, adversary=adversary
    )
    lines = [line for _, line in remarks(prepare(experiment, 1), set())]
    assert any("a nineteenth" in line for line in lines) is told
