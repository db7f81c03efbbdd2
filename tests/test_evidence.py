"""The committed results are what the code makes of the committed records, and the documentation quotes them rightly."""

import csv
import importlib.util
import json
import re
import shutil
from itertools import product
from pathlib import Path

import pytest

from epidemic.cli import main
from epidemic.core.files import directory_name
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


# -- studies: methods x learning rates x seeds ------------------------------------------------------------------------


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "results" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("study", "seeds"), [("fashion-mnist", [1, 2, 3, 4, 5]), ("mnist", [1, 2, 3, 4, 5])])
def test_a_study_is_whole_and_its_tables_come_from_its_records(study, seeds):
    studies, where = load_script("studies"), ROOT / "results" / study
    found = studies.accuracies(where)
    assert list(found) == ["0.05", "0.1", "0.2"]
    for rate, of_rate in found.items():
        assert {method: sorted(by_seed) for method, by_seed in of_rate.items()} == dict.fromkeys(METHODS, seeds)
        for method in METHODS:
            for seed, accuracy in of_rate[method].items():
                place = where / f"lr-{rate}" / directory_name(method) / f"seed-{seed}"
                summary = json.loads((place / "summary.json").read_text())
                assert (summary["rounds"], summary["test_samples"]) == (100, 10_000)
                nodes = json.loads((place / "nodes.json").read_text())
                assert 100 * sum(node["final_accuracy"] for node in nodes) / 96 == pytest.approx(accuracy)
    text = (where / "README.md").read_text().splitlines()
    for line in [*studies.table_of_accuracies(found), *studies.table_of_leads(found)]:
        assert line in text


def test_leads_of_a_study_are_paired_and_called_so_when_zero_is_outside():
    studies = load_script("studies")
    found = {"0.1": {"a": {1: 71.0, 2: 62.0, 3: 83.0}, "b": {1: 70.0, 2: 60.0, 3: 80.0}}}
    lead = studies.ahead(found, "0.1", "a", "b")
    assert (lead.mean, lead.seeds) == (2.0, 3)
    assert lead.half_width == pytest.approx(4.302653 / 3**0.5)  # differences 1, 2, 3: their standard deviation is 1
    assert not studies.is_lead(lead)
    found["0.1"]["a"] = {1: 71.0, 2: 61.0, 3: 81.1}
    assert studies.is_lead(studies.ahead(found, "0.1", "a", "b"))
    del found["0.1"]["a"][3]
    assert not studies.is_lead(studies.ahead(found, "0.1", "a", "b")), "two seeds are too few"


def test_a_study_compares_on_the_seeds_that_are_whole(tmp_path):
    studies = load_script("studies")
    for rate, method, seed in product(("0.1", "0.2"), METHODS, (1, 2, 3)):
        if (rate, method, seed) != ("0.2", "complete", 3):  # this one has diverged
            place = tmp_path / f"lr-{rate}" / directory_name(method) / f"seed-{seed}"
            place.mkdir(parents=True)
            accuracy = 0.5 + float(rate) if seed < 3 else 0.9
            (place / "summary.json").write_text(
                json.dumps({"name": method, "seed": seed, "final_accuracy": {"mean": accuracy}})
            )
    found = studies.accuracies(tmp_path)
    assert found == {
        rate: {method: {1: percent, 2: percent} for method in METHODS}
        for rate, percent in (("0.1", 60.0), ("0.2", 70.0))
    }
    assert studies.best_rates(found) == dict.fromkeys(METHODS, "0.2")
    (tmp_path / "lr-0.2").rename(tmp_path / "other")
    for left in (tmp_path / "lr-0.1" / "complete").glob("seed-*/summary.json"):
        left.unlink()
    with pytest.raises(SystemExit, match="no seed with which all methods"):
        studies.accuracies(tmp_path)


def test_the_table_of_three_seeds_comes_from_their_records():
    text = (RESULTS / "README.md").read_text().replace("**", "").splitlines()
    lines = load_script("paired").lines(ROOT / "results" / "cifar10-seeds")
    assert len(lines) == 2 + 8
    for line in lines:
        assert line in text
