"""docs/aggregation.md has every rule and every setting, and its numbers are what the formulas say."""

import re
from pathlib import Path

import msgspec
import pytest

from epidemic.aggregation import AGGREGATORS

PAGE = (Path(__file__).parents[1] / "docs" / "aggregation.md").read_text()


def table(first):
    """Rows of the table whose head begins so, without its head."""
    lines = PAGE[PAGE.index(f"| {first} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_rule_is_listed_with_its_settings():
    rows = {kind.strip("`"): settings for kind, _, settings in table("`kind`")}
    assert rows.keys() == AGGREGATORS.keys()
    for kind, cls in AGGREGATORS.items():
        fields = [f.encode_name for f in msgspec.structs.fields(cls)]
        if kind == "python":
            continue
        assert sorted(re.findall("`(.*?)`", rows[kind])) == sorted(fields), kind


def test_the_sources_are_those_of_all_rules():
    named = " ".join(row[0] for row in table("rule | source"))
    assert all(f"`{kind}`" in named for kind in AGGREGATORS if kind not in ("mean", "python"))


@pytest.mark.parametrize(("column", "f"), [(2, 1), (3, 2), (4, 3)])
def test_the_coefficients_of_eight_models(column, f):
    m = 8
    r = f / (m - 2 * f)
    expected = {
        "`trimmed-mean`": r,
        "`median`": (m - 2) / (m - 2 * f + 2),
        "`geometric-median`": 4 * (1 + r) ** 2,
        "`krum`": 6 * (1 + r),
        "`nnm` and `trimmed-mean`": 8 * f / (m - f) * (6 * r * (1 + r) + 1),
    }
    found = {row[0]: float(row[column]) for row in table("rule | kappa at most")}
    assert found == pytest.approx(expected, rel=0.03)
