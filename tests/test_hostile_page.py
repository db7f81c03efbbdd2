"""Every number in the tables of docs/hostile.md is what the theory says."""

import re
from pathlib import Path

import pytest

from epidemic import theory
from epidemic.theory.hostile import about, resolve

PAGE = (Path(__file__).parents[1] / "docs" / "hostile.md").read_text()
T, RISK = 3000, 0.01


def table(first):
    """Cells of the table whose head begins so, without its head."""
    lines = PAGE[PAGE.index(f"| {first} |") :].split("\n\n")[0].splitlines()[2:]
    return [
        [
            cell.strip().replace(",", "") if re.search(r"\d,\d{3}", cell) else cell.strip()
            for cell in line.strip("|").split("|")
        ]
        for line in lines
    ]


def numbers(cell):
    return [int(part) for part in cell.replace(",", " ").split()]


def pair(n, b, share):
    s = theory.smallest_s(n, b, T, RISK, share=share)
    return "none" if s is None else f"{s} ({theory.tolerate(n, b, s, T, RISK)})"


def test_smallest_s():
    rows = table("n, b")
    assert len(rows) == 11
    for cell, *shown in rows:
        n, b = numbers(cell)
        assert shown == [pair(n, b, share) for share in (1 / 2, 1 / 3, 1 / 5)]


def test_an_f_by_hand():
    for s, *shown in table("s, 5 liars of 96"):
        expected = [
            about(theory.expected_bad(96, 5, int(s), T, f)).replace(",", "") if 2 * f <= int(s) else "-"
            for f in range(1, 6)
        ]
        assert [x if x in "-0" else f"{float(x):.3g}" for x in shown] == [
            x if x in "-0" else f"{float(x):.3g}" for x in expected
        ]


def test_el_local():
    local = resolve(96, 5, T, RISK, "el-local", s=14)
    found = PAGE[PAGE.index("| f | 0 |") :].split("\n")[0]
    assert found == "| f | " + " | ".join(map(str, local.each(range(7)))) + " |"
    assert set(local.each(range(6, 96)).tolist()) == {5}
    shares = {s: theory.aggregating_local(96, 5, s, T, RISK) for s in (7, 10, 14, 20)}
    assert f"with `s = 7` only {shares[7]:.0%}".replace("%", " %") in PAGE
    assert f"with 10 {shares[10]:.0%}, with 14 {shares[14]:.0%}, with 20 {shares[20]:.1%}".replace("%", " %") in PAGE


def test_what_a_node_receives():
    for kind, _, more, majority in table("topology"):
        if kind.startswith("`"):
            name = kind.strip("`")
            assert float(more) == pytest.approx(theory.malicious_law(96, 5, 7, name).more_than(3), rel=0.01)
            assert float(majority) == pytest.approx(theory.no_majority(96, 5, 7, name), rel=0.01)
        else:
            assert float(majority) == pytest.approx(theory.no_majority(96, 5, 7, "flooding"), rel=0.01)


def test_liars_chosen_after_the_graphs():
    for cell, expected, pull, oracle, static in table("n, b, s, f, T = 3000"):
        n, b, s, f = numbers(cell)
        assert float(expected) == pytest.approx(theory.expected_bad(n, b, s, T, f), rel=0.005)
        assert int(pull) == theory.adaptive_bad(n, b, s, T, f)
        assert int(oracle) == theory.adaptive_bad(n, b, s, T, f, kind="el-oracle")
        assert int(static) == theory.most_bad_nodes(n, b, s, f) * T


def test_beside_rpel():
    text = PAGE[PAGE.index("## Beside the lemmas") :]
    rows = re.findall(r"^\| (\d+), (\d+) \| (\d+) \| (\d+) \| ([\d,]+) \|$", text, re.MULTILINE)
    assert len(rows) == 5
    for n, b, s, a4, lemma in rows:
        n, b = int(n), int(b)
        assert int(s) == theory.smallest_s(n, b, T, RISK)
        assert int(a4) == theory.rpel_lemma_a4(n, b, T, RISK)
        assert int(lemma.replace(",", "")) == theory.rpel_lemma_4_1(n, b, T, RISK)
    rows = re.findall(
        r"^\| (\d+), (\d+), (\d+), (\d+) \| (\d+) \| ([\d.]+) \| (\d+)[^|]*\| (\d+) \|$", text, re.MULTILINE
    )
    assert len(rows) == 4
    for row in rows:
        n, b, s, rounds, f, least, lemma = (int(row[i]) for i in (0, 1, 2, 3, 4, 6, 7))
        assert float(row[5]) == pytest.approx(theory.p_some_bad(n, b, s, rounds, f), abs=5e-4)
        assert least == theory.tolerate(n, b, s, rounds, RISK)
        assert lemma == theory.rpel_lemma_4_1(n, b, rounds, RISK)


def test_the_coefficient_of_the_trimmed_mean():
    assert "with f = 5 it is 5 for 11 models, 0.83 for 16, and 0.31 for 26" in PAGE
    assert [round(5 / (m - 10), 2) for m in (11, 16, 26)] == [5, 0.83, 0.31]
