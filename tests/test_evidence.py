"""The committed CIFAR-10 results are what the code makes of the committed records, and the documentation quotes them rightly."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from epidemic.cli import main
from epidemic.report.results import read_results

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "cifar10"
METHODS = ["complete", "7-regular static", "8-U-EquiStatic", "EL-Oracle", "EL-Local"]


def table():
    with (RESULTS / "table2" / "table2.csv").open() as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def test_all_five_methods_ran_to_the_end():
    found = read_results(RESULTS)
    assert found.notes == []
    assert {run.label for run in found.runs} == set(METHODS)
    for run in found.runs:
        assert [r.round for r in run.by_seed[0]] == list(range(0, 1001, 50))
        assert run.experiment["nodes"] == 96
        assert run.experiment["partition"] == {"kind": "dirichlet", "alpha": 0.1, "min_samples": 10}
        assert run.seeds[0].summary.test_samples == 10_000
        assert run.seeds[0].info.data == "a JPEG copy of CIFAR-10, which has lost details"


@pytest.mark.parametrize("item", ["table2", "fig4"])
def test_tables_come_from_the_records(item, tmp_path):
    shutil.copytree(RESULTS / "runs", tmp_path / "runs")
    assert main(["reproduce", item, "--scale", "laptop", "--out", str(tmp_path), "--quiet"]) == 0, "no data is needed"
    for name in (f"{item}.csv", "checks.json"):
        assert (tmp_path / item / name).read_bytes() == (RESULTS / item / name).read_bytes()
    checks = json.loads((tmp_path / item / "checks.json").read_text())["checks"]
    assert all("JPEG" in c["reason"] for c in checks if c["verdict"] == "not comparable")
    assert "agrees" not in {c["verdict"] for c in checks if "ahead" in c["what"]}, "one seed settles nothing"


@pytest.mark.parametrize("file", [ROOT / "docs/results.md", RESULTS / "README.md"])
@pytest.mark.parametrize("method", METHODS)
def test_the_quoted_numbers_are_those_of_the_table(file, method):
    section = file.read_text().partition("JPEG")[2]
    line = next(line for line in section.splitlines() if re.match(rf"\| \**{re.escape(method)}\** \|", line))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    row = table()[method]
    assert cells[1] == f"{100 * float(row['best_accuracy']):.2f}"
    assert cells[3] == f"{float(row['best_loss']):.2f}"
    assert cells[5] == f"{100 * float(row['final_accuracy_full_test']):.2f}"
    assert cells[6] == (row["rounds_to_target"] or "-")
    assert cells[7] == (f"{float(row['gib_to_target']):.2f}" if row["gib_to_target"] else "-")
    paper = f"{100 * float(row['paper_best_accuracy']):.2f}"
    assert cells[2] == paper
    assert cells[4] == f"{float(row['paper_best_loss']):.2f}"
