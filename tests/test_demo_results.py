"""What the documentation says of the demo is what the committed records say."""

import csv
import re
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from epidemic.core.files import directory_name
from epidemic.record import read_records
from epidemic.study import comparison as comparing

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "results" / "demo"


@pytest.fixture(scope="module")
def compared():
    """The table of the demo, made again from its records."""
    methods = comparing.methods_from(comparing.DEMO)
    records = {
        name: [read_records(DEMO / "runs" / directory_name(name) / f"seed-{seed}" / "records.jsonl")[0] for seed in (1, 2, 3)]
        for name in methods
    }  # fmt: skip
    return comparing.compare(methods, records, None)


def cells(text, name):
    line = next(line for line in text.splitlines() if re.match(rf"\| \**{re.escape(name)}\** \|", line))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def shown(value, factor=1.0, digits=1, sign=""):
    return f"{factor * value.mean:{sign}.{digits}f} ± {factor * value.half_width:.{digits}f}"


def test_the_committed_table_comes_from_the_records(compared):
    assert msgspec.json.decode((DEMO / "comparison.json").read_bytes(), type=comparing.ComparisonTable) == compared


def test_the_runs_are_those_of_the_demo():
    from epidemic.experiment import load

    for name, experiment in comparing.methods_from(comparing.DEMO).items():
        assert load(DEMO / "runs" / directory_name(name) / "experiment.toml").table() == experiment.table()


def test_the_quoted_table_is_right(compared):
    text = (ROOT / "docs" / "results.md").read_text()
    for row in compared.rows:
        best, ahead, loss, rounds, until, in_all = cells(text, row.name)
        assert best == shown(row.best_accuracy, 100)
        assert ahead == ("-" if row.name == compared.baseline else shown(row.ahead, 100, sign="+"))
        assert loss == shown(row.best_loss, digits=2)
        assert in_all == f"{row.bytes_in_all / 2**20:.1f}"
        if row.rounds_to_target is None or row.bytes_to_target is None:
            assert rounds == f"{row.seeds_reaching_target} of 3 seeds"
        else:
            assert rounds == shown(row.rounds_to_target, digits=0)
            assert until == shown(row.bytes_to_target, 1 / 2**20)
    assert f"rounds to {100 * compared.target:.1f} %" in text


def test_the_readme_quotes_the_lead(compared):
    lead = next(row.ahead for row in compared.rows if row.name == "EL-Oracle")
    assert f"EL-Oracle ends {shown(lead, 100)} points above the ring" in (ROOT / "README.md").read_text()


def test_the_settings_that_were_tried_are_told_with_what_came_out():
    text = (ROOT / "docs" / "results.md").read_text()
    found = defaultdict(dict)
    with (DEMO / "tried.csv").open() as file:
        for row in csv.DictReader(file):
            found[row["nodes"], row["s"], row["lr"], row["model"]][row["method"]] = float(
                row["accuracy_after_last_round"]
            )
    for (nodes, s, lr, model), of in found.items():
        static = "2, ring" if s == "2" else f"{s}, random {s}-regular"
        leads = [f"{100 * (of[method] - of['static']):+.1f}" for method in ("EL-Oracle", "EL-Local")]
        assert f"| {nodes} | {static} | {lr} | {model.replace('mlp', 'MLP')} | {leads[0]} | {leads[1]} |" in text
