"""Benchmarks run: those that need no process of their own here, all of them by `make bench-smallest`."""

import ast
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
    assert models < whole <= 32
