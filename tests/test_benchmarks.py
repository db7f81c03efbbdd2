"""Benchmarks run: those that need no process of their own here, all of them by `make bench-smallest`."""

import ast
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUICK = ["drawing", "scaling", "views"]


def bench(*words):
    return subprocess.run([sys.executable, "-m", "benchmarks", *words], cwd=ROOT, capture_output=True, text=True)


def test_quick_benchmarks_run_in_their_smallest_form():
    done = bench("--smallest", *QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" took ") == len(QUICK) + 1
    assert "target" not in done.stdout  # such ratios say nothing


def test_an_unknown_benchmark_is_one_line():
    done = bench("nope")
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown benchmark 'nope'; known: --smallest, drawing")
    assert done.stderr.count("\n") == 1


def test_parts_and_ratios_in_a_file(tmp_path):
    done = bench("--smallest", "drawing", "--json", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert "torch" in found["machine"]
    assert all(one["ratio"] > 0 for one in found["ratios"])
    done = bench("models/nope")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: models has no part 'nope'; known: transformer, ")


def test_what_differs_from_before_is_said_and_noise_is_not():
    found = [
        {"what": "a", "ratio": 2.0, "at_most": False},
        {"what": "b", "ratio": 2.0, "at_most": True},
        {"what": "c", "ratio": 1.1},
    ]
    work = f"from benchmarks import results; results.FOUND[:] = {found}; print(*results.differences({{'a': 1.0, 'b': 1.0, 'c': 1.0}}), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", work], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "a: 2.00, better than the committed 1.00",
        "b: 2.00, WORSE than the committed 1.00",
    ], done.stderr


def test_every_module_that_measures_is_listed():
    measuring = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if any(isinstance(one, ast.FunctionDef) and one.name == "run" for one in ast.parse(path.read_text()).body)
    }
    listed = ast.parse((ROOT / "benchmarks/__main__.py").read_text()).body
    names = next(one.value for one in listed if isinstance(one, ast.Assign) and one.targets[0].id == "ALL")
    assert measuring == set(ast.literal_eval(names))


def test_a_simulated_round_is_read_in_few_files(tmp_path):
    """As many as there were when this was written: who adds one adds it here, too, and says why."""
    count = "import sys; from pathlib import Path; from benchmarks import walk; print(*map(len, walk.simulated(Path(sys.argv[1]))))"
    done = subprocess.run([sys.executable, "-c", count, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True)
    models, whole = map(int, done.stdout.split())
    assert 0 < models <= 10
    assert (
        models < whole <= 33
    )  # learner/script.py hands all operations of a step over at once, which is what makes threads pay
