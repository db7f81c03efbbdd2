"""Numbers in the tables and sentences of the documentation are those that the program gives."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import epidemic as ep
from epidemic import theory
from epidemic.core.rng import Streams
from epidemic.mixing import disagreement, weights
from epidemic.peer_sampling import Cyclon, Jelasity, Spray
from epidemic.record import HEADER_BYTES
from epidemic.runtime.counters import control_bytes

DOCS = Path(__file__).parents[1] / "docs"
N, S = 96, 7


@cache
def page(name):
    return (DOCS / f"{name}.md").read_text()


def sentences(name):
    """The text of a page on one line."""
    return " ".join(page(name).split())


def cells(name, start):
    """The cells of the row that begins so, without the first."""
    line = next(line for line in page(name).splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip().strip("|").split("|")][1:]


# -- docs/participation.md -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "m"), [("all", 96), ("0.9 (m = 86)", 86), ("0.5 (m = 48)", 48), ("0.1 (m = 10)", 10)]
)
def test_factors_of_participation(start, m):
    factors = theory.alpha_aware(N, S, m), theory.beta_aware(N, S, m), theory.beta_blind_of(N, S, m)
    *shown, lost = cells("participation", start)
    assert shown == [f"{factor:.4f}" for factor in factors]
    assert lost == f"{100 * (N - m) / (N - 1):.3g}" + (" %" if m < N else "")


def test_factors_of_participation_by_chance():
    shown = re.search(r"blind EL-Local has ([\d.]+), ([\d.]+) and ([\d.]+)", sentences("participation")).groups()
    assert list(shown) == [f"{theory.beta_blind(N, S, p):.4f}" for p in (0.9, 0.5, 0.1)]


# -- docs/theory.md, docs/compression.md, docs/guide.md ------------------------------------------------------------------


def test_factors_of_masks():
    quarter, half, tenth = (theory.beta_masked(N, S, share) for share in (0.25, 0.5, 0.1))
    own = theory.beta_masked(N, S, 0.25, "own")
    common = theory.beta_common_mask(N, S, 0.25), theory.beta_common_mask(N, S, 0.5)
    assert f"a factor of {quarter:.3f}" in sentences("theory")
    assert f"the same coordinates in a round, {common[0]:.3f}." in sentences("theory")
    assert f"replaces what is missing, {own:.3f}." in sentences("theory")
    text = sentences("compression")
    assert (
        f"gives {half:.3f} for half of the coordinates (and {quarter:.3f} for a quarter, {tenth:.3f} for a tenth)"
        in text
    )
    assert f"against {theory.beta(N, S):.3f} for all of them" in text
    assert f"would give {common[1]:.3f} for half" in text
    assert f"a quarter gives {own:.3f}." in text


def test_factors_of_loss():
    for factor in (theory.beta_with_loss(N, S, 0.1), theory.beta(N, S)):
        assert f"{factor:.4f}" in next(line for line in page("theory").splitlines() if line.startswith("- **Loss**"))


def test_how_much_randomisation_helps_in_the_worst_direction():
    """By the table of floors: the worst of static graphs of degree 7 against EL-Oracle, whose directions are alike."""
    noise, mean, worst = cells("theory", "`regular`, s = 7")[1:]
    low, high = (float(word) for word in worst.split(" to "))
    bias = theory.floors_oracle(N, S).bias
    times = f"{low / bias:.0f} to {high / bias:.0f}"
    assert f"and {times} times in the worst direction" in sentences("theory")
    assert f"of {times} in the worst direction" in sentences("guide")


@pytest.mark.parametrize(("start", "s", "floors"), [
    ("EL-Oracle, s = 1", 1, "floors_oracle"), ("EL-Oracle, s = 4", 4, "floors_oracle"), ("**EL-Oracle, s = 7**", 7, "floors_oracle"),
    ("**EL-Local, s = 7**", 7, "floors_local"),
])  # fmt: skip
def test_floors_of_el(start, s, floors):
    found = getattr(theory, floors)(N, s)
    assert cells("theory", start)[1:] == [f"{value:.3f}" for value in (found.noise, found.bias, found.bias)]


# -- docs/peer-sampling.md -----------------------------------------------------------------------------------------------


def test_control_bytes_of_spray_are_the_mean_of_the_three_seeds():
    topology = ep.ELLocal(S, view=Spray(a=3))
    control = np.mean(
        [control_bytes(topology.control(N, t, Streams(seed), None)).mean() for seed in (1, 2, 3) for t in range(100)]
    )
    *_, in_all, share = cells("peer-sampling", "`spray`, a = 3")
    models = S * (4 * 10 * 65 + HEADER_BYTES)  # logistic regression of 64 pixels
    assert in_all == f"{100 * control:,.0f}"
    assert share == f"{100 * control / (control + models):.1f} %"


def chained(service, seed, first=30, last=60):
    """Geometric mean of the factors of rounds of averaging."""
    x, topology = np.random.default_rng(seed).standard_normal((N, 128)), ep.ELLocal(S, view=service)
    factors = []
    for t in range(first, last):
        mixed = weights("uniform", topology.graph(N, t, Streams(seed))) @ x
        factors.append(disagreement(mixed) / disagreement(x))
        x = (mixed - mixed.mean(0)) / np.sqrt(disagreement(mixed))
    return float(np.exp(np.mean(np.log(factors))))


def test_chained_contraction_of_services():
    text = sentences("peer-sampling")
    for service, start in ((None, "full knowledge"), (Cyclon(), "`cyclon`"), (Jelasity(), "`jelasity`, swapper")):
        shown = float(
            next(line for line in page("peer-sampling").splitlines() if line.startswith(f"| 96 | {start} |")).split(
                "|"
            )[6]
        )
        assert chained(service, 1) == pytest.approx(shown, rel=0.03)
    assert "Cyclon is 7 % above it (0.142 against 0.133)" in text
    low, high = re.search(r"five seeds gave ([\d.]+) to ([\d.]+) of chained", text).groups()
    assert f"{chained(Jelasity(discard='blind'), 2):.2f}" == low
    assert f"{chained(Jelasity(discard='blind'), 3):.2f}" == high
