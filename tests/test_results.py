"""Runs are read back as they are, finished or not, and as one tidy table."""

import csv
import json
import os
import shutil
import subprocess
import sys

import pytest

import epidemic as ep
from epidemic.cli import main
from epidemic.core.errors import BadInput
from epidemic.report.results import read_results, to_csv

BASE = {
    "nodes": 8, "rounds": 6, "seeds": [1, 2], "data": ep.Digits(), "model": ep.Logistic(), "partition": ep.IID(),
    "algorithm": ep.LocalSGD(lr=0.1, local_steps=2), "eval": ep.Eval(every=2, samples=60),
    "runtime": ep.Runtime(strategy="per-node"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    ep.simulate(ep.Experiment(**BASE, name="local", topology=ep.ELLocal(3)), directory / "local")
    ep.simulate(ep.Experiment(**BASE, name="ring", topology=ep.Ring()), directory / "ring")
    return directory


@pytest.fixture
def copy(runs, tmp_path):
    return shutil.copytree(runs, tmp_path / "runs")


def test_every_record_of_every_seed_is_read(runs):
    found = read_results(runs)
    assert [run.label for run in found.runs] == ["local", "ring"]
    assert [run.kind for run in found.runs] == ["el-local", "ring"]
    assert [[s.seed for s in run.seeds] for run in found.runs] == [[1, 2], [1, 2]]
    assert found.notes == []
    assert found.runs[0].seeds[0].info.classes == [str(k) for k in range(10)]
    again = ep.simulate(ep.Experiment(**BASE, name="local", topology=ep.ELLocal(3)), runs / "local", resume=True)
    assert found.runs[0].by_seed == [seed.records for seed in again.seeds]
    assert found.runs[0].seeds[0].nodes[3].received == sum(
        int(k) * v for k, v in json.loads((runs / "local/seed-1/nodes.json").read_text())[3]["in_degree"].items()
    )


def put_fifo(path):
    path.unlink()
    os.mkfifo(path)


def put_zeros(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def put_hole(path):
    with path.open("r+b") as file:
        file.truncate(20 * 2**30)  # takes no room on the disk


NOT_A_FILE = "it is not a regular file; put the one there that the run wrote"
TOO_LARGE = "it has more than {} MiB, more than any that a run writes; move it away"


@pytest.mark.parametrize("command", [["report"], ["watch", "--once"]])
@pytest.mark.parametrize(
    ("name", "put", "why"),
    [
        ("records.jsonl", put_fifo, NOT_A_FILE),
        ("records.jsonl", put_zeros, NOT_A_FILE),
        ("records.jsonl", put_hole, TOO_LARGE.format(1024)),
        ("run.json", put_fifo, NOT_A_FILE),
        ("run.json", put_hole, TOO_LARGE.format(256)),
        ("summary.json", put_fifo, NOT_A_FILE),
        ("nodes.json", put_zeros, NOT_A_FILE),
    ],
)
def test_what_is_not_a_regular_file_or_too_large_is_refused_in_one_line_and_never_waited_for(
    copy, command, name, put, why
):
    path = copy / "ring" / "seed-1" / name
    put(path)
    called = [sys.executable, "-m", "epidemic", *command, str(copy)]
    done = subprocess.run(called, capture_output=True, text=True, timeout=120, cwd=copy)
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert f"{path} cannot be read: {why}" in done.stderr
    assert not (copy / "report.html").exists()


def test_a_lock_or_timings_that_are_pipes_are_not_waited_for(copy):
    seed = copy / "ring" / "seed-1"
    (seed / "summary.json").unlink()
    (seed / "state.json").write_text('{"state": "running"}')
    put_fifo(seed / ".lock")
    put_fifo(seed / "timings.jsonl")
    called = [sys.executable, "-m", "epidemic", "watch", "--once", str(copy)]
    done = subprocess.run(called, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_seed_alone_and_directories_twice(runs):
    found = read_results(runs / "ring" / "seed-2", runs / "ring", runs / "ring")
    assert [(run.label, [s.seed for s in run.seeds]) for run in found.runs] == [("ring", [2, 1])]


def test_only_what_differs_is_named(runs):
    found = read_results(runs)
    assert set(found.differing) == {"topology.kind", "topology.s"}
    assert found.setting(found.runs[1], "topology.s") is None
    assert found.common()["nodes"] == 8
    assert "topology.kind" not in found.common()


def test_the_table_has_one_row_for_each_run_seed_and_round(runs):
    rows = read_results(runs).rows()
    assert len(rows) == 2 * 2 * 4  # rounds 0, 2, 4, 6
    first = json.loads((runs / "local/seed-1/records.jsonl").read_text().splitlines()[-1])
    row = next(r for r in rows if (r["run"], r["seed"], r["round"]) == ("local", 1, 6))
    assert row["accuracy_mean"] == first["accuracy"]["mean"]
    assert row["bytes_total_max"] == first["bytes"]["total"]["max"]
    assert row["topology.s"] == 3
    assert next(r for r in rows if r["run"] == "ring")["topology.s"] is None


def test_csv_and_parquet_hold_the_same_table(runs, tmp_path, capsys):
    pq = pytest.importorskip("pyarrow.parquet")
    files = [tmp_path / "t.csv", tmp_path / "t.parquet", tmp_path / "t.html"]
    assert main(["report", str(runs), *(word for f in files for word in ("-o", str(f)))]) == 0
    rows = read_results(runs).rows()
    assert pq.read_table(files[1]).to_pylist() == rows
    with files[0].open() as file:
        read = list(csv.DictReader(file))
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows] == read
    assert "wrote" in capsys.readouterr().out


def test_a_data_frame_if_pandas_is_there(runs):
    found = ep.read_results(runs)
    try:
        import pandas  # noqa: F401
    except ImportError:
        with pytest.raises(BadInput, match="need the package pandas; install it with"):
            found.dataframe()
    else:
        assert len(found.dataframe()) == len(found.rows())


def test_one_directory_spelled_in_two_ways_is_one(runs, monkeypatch):
    monkeypatch.chdir(runs)
    assert len(read_results("ring", runs / "ring", "./ring/../ring").runs) == 1
    monkeypatch.chdir(runs / "ring" / "seed-1")
    assert [s.seed for s in read_results(".").runs[0].seeds] == [1]


def test_directories_are_sorted_as_numbers_and_any_name_will_do(runs, tmp_path):
    for name in ("lr=0.1", "lr=0.05", "lr=0.5", "lr=0.01", "x²[b]"):
        shutil.copytree(runs / "ring", tmp_path / name)
    found = [run.path.name for run in read_results(tmp_path).runs]
    assert found == ["lr=0.01", "lr=0.05", "lr=0.1", "lr=0.5", "x²[b]"]


def test_seeds_that_are_behind_are_left_out_of_means(copy, capsys):
    path = copy / "local/seed-2"
    (path / "summary.json").unlink()
    lines = (path / "records.jsonl").read_bytes().splitlines(keepends=True)
    (path / "records.jsonl").write_bytes(b"".join(lines[:2]))
    run = read_results(copy).runs[0]
    settled, left = run.settled()
    assert [s.seed for s in settled.seeds] == [1]
    assert left == ["seed 2 of local is at round 2 of 6 and left out of the means"]
    assert main(["report", str(copy)]) == 0
    assert left[0] in (copy / "report.html").read_text()


def test_own_metrics_have_columns_of_their_own(tmp_path):
    table = {**BASE, "metrics": {"loss": lambda out, y: out.sum(-1) * 0 + 7.0}}
    ep.simulate(ep.Experiment(**table, topology=ep.Ring()), tmp_path / "run")
    row = read_results(tmp_path).rows()[0]
    assert row["metric.loss_mean"] == pytest.approx(7.0)
    assert row["loss_mean"] < 7


def test_names_that_occur_twice_are_told_apart_by_their_directories(runs, tmp_path):
    shutil.copytree(runs / "ring", tmp_path / "other")
    found = read_results(runs, tmp_path / "other")
    assert [run.label for run in found.runs] == ["local", "ring (ring)", "ring (other)"]


def test_a_cut_last_line_is_left_out_and_mentioned(copy, capsys):
    path = copy / "local/seed-1/records.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    found = read_results(copy)
    assert len(found.runs[0].seeds[0].records) == 3
    assert found.notes == [f"the last line of {path} is cut off and was left out"]
    assert main(["report", str(copy)]) == 0
    assert "is cut off and was left out" in capsys.readouterr().err
    assert "is cut off and was left out" in (copy / "report.html").read_text()


def test_unfinished_runs_are_read_as_far_as_they_are(copy):
    path = copy / "local/seed-2"
    for name in ("summary.json", "nodes.json", "models.safetensors"):
        (path / name).unlink()
    lines = (path / "records.jsonl").read_bytes().splitlines(keepends=True)
    (path / "records.jsonl").write_bytes(b"".join(lines[:2]))
    found = read_results(copy)
    assert not found.runs[0].finished
    assert found.notes == [f"{path} is not finished: round 2 of 6"]
    (path / "records.jsonl").write_bytes(b"")
    assert [s.seed for s in read_results(copy).runs[0].seeds] == [1]


def _twice(path):
    path.write_bytes(path.read_bytes() * 2)


def _begin(path):
    """As it is before the first evaluation."""
    for name in ("records.jsonl", "summary.json"):
        (path / name).unlink()


def test_a_half_written_neighbour_is_mentioned(copy):
    (copy / "local/seed-2/run.json").unlink()
    found = read_results(copy)
    assert [s.seed for s in found.runs[0].seeds] == [1]
    assert found.notes == [f"{copy / 'local/seed-2'} is half-written (records but no run.json) and was left out"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: shutil.rmtree(d), "does not exist"),
        (lambda d: [shutil.rmtree(p) for p in d.iterdir()], "is empty; give the directory of a run"),
        (lambda d: [p.unlink() for p in d.rglob("run.json")], "is half-written: it has records but no run.json"),
        (lambda d: [(p.unlink(), (p.parent / "records.jsonl").unlink()) for p in d.rglob("run.json")], "holds no run"),
        (lambda d: [p.write_bytes(b"") for p in d.rglob("records.jsonl")], "is empty although the run is finished"),
        (lambda d: [_begin(p) for p in d.rglob("seed-*")], "holds only runs without a record yet"),
        (lambda d: (d / "ring/seed-1/run.json").write_text("{}"), "run.json is not that of a run"),
        (lambda d: (d / "ring/seed-1/run.json").write_text("{"), "run.json cannot be read"),
        (lambda d: (d / "ring/seed-1/summary.json").write_text("{}"), "summary.json cannot be read"),
        (lambda d: (d / "ring/seed-1/nodes.json").write_text("[1]"), "nodes.json cannot be read"),
        (lambda d: (d / "ring/seed-1/records.jsonl").write_text("hello\n"), "is not a file of records"),
        (lambda d: _twice(d / "ring/seed-1/records.jsonl"), "has rounds twice or out of order"),
    ],
)
def test_directories_that_cannot_be_read(copy, spoil, message, capsys):
    spoil(copy)
    assert main(["report", str(copy)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(copy.glob("*.html")) if copy.exists() else True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "page.txt"], "page.txt must end in .html, .csv, .parquet"),
        (["-o", "nowhere/page.html"], "does not exist"),
        (["--target", "70"], "--target = 70"),
    ],
)
def test_bad_options_of_report(runs, arguments, message, capsys):
    assert main(["report", str(runs), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_file_is_not_a_directory_of_runs(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert main(["report", str(tmp_path / "file")]) == 2
    assert "is a file" in capsys.readouterr().err


def test_report_as_json(runs, tmp_path, capsys):
    assert main(["report", str(runs), "-o", str(tmp_path / "r.html"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in found["runs"]] == ["local", "ring"]
    assert found["runs"][0]["best_accuracy"]["seeds"] == 2


def test_csv_of_rows_with_different_columns():
    assert to_csv([{"a": 1}, {"b": 2}]) == "a,b\n1,\n,2\n"


# -- watching ---------------------------------------------------------------------------------------------------------


def test_watch_shows_curves_and_where_each_run_stands(runs, capsys):
    assert main(["watch", str(runs), "--once"]) == 0
    text = capsys.readouterr().out
    assert "accuracy over nodes (%) against rounds" in text
    assert "6/6" in text
    assert text.count("finished") == 2
    assert any("⠀" < c <= "⣿" for c in text), "a curve is drawn in braille"


def test_watch_of_nothing(tmp_path, capsys):
    assert main(["watch", str(tmp_path / "no")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--once"]) == 2
    assert "is empty" in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--every", "0"]) == 2


def test_a_plotted_line_goes_from_corner_to_corner():
    from epidemic.cli.plot import plot

    rows = plot([([0.0, 10.0], [0.0, 1.0], "red")], width=40, rows=8).plain.split("\n")
    assert len(rows) == 10
    assert rows[7][9] > "⠀", "starts at the bottom left"
    assert rows[0].rstrip()[-1] > "⠀", "ends at the top"
    assert len(rows[0].rstrip()) == 40, "on the right"
    columns = [{r for r in range(8) if rows[r].ljust(40)[c] > "⠀"} for c in range(9, 40)]
    assert all(columns), "no gaps"
    flat = plot([([0.0], [3.0], "red")], width=30, rows=6).plain
    assert "3.5" in flat


# -- how a run is -----------------------------------------------------------------------------------------------------


def test_a_directory_says_whether_its_run_is_finished_stopped_failed_or_killed(tmp_path):
    from epidemic.callbacks import Callback
    from epidemic.runtime.run_directory import read_state

    experiment = ep.Experiment(
        nodes=4,
        rounds=6,
        topology=ep.ELLocal(2),
        data=ep.Synthetic(samples=80),
        model=ep.Logistic(),
        eval=ep.Eval(every=1),
    )

    class At(Callback):
        def __init__(self, round, do):
            self.round, self.do = round, do

        def advanced(self, rounds_done, x):
            if rounds_done == self.round:
                self.do()

    def stop():
        raise KeyboardInterrupt

    seen = []
    with pytest.raises(ep.Interrupted):
        ep.simulate(experiment, tmp_path / "a", callbacks=At(3, stop))
    stopped = read_state(tmp_path / "a" / "seed-1")
    assert (stopped.state, stopped.over) == ("stopped", True)
    ep.simulate(
        experiment,
        tmp_path / "a",
        resume=True,
        callbacks=At(5, lambda: seen.append(read_state(tmp_path / "a" / "seed-1"))),
    )
    assert [state.state for state in seen] == ["running"]
    assert read_state(tmp_path / "a" / "seed-1").state == "finished"
    with pytest.raises(ep.RunFailed):
        ep.simulate(
            ep.Experiment(**{**{f: getattr(experiment, f) for f in experiment.__struct_fields__}, "algorithm": ep.LocalSGD(lr=1e30), "model": ep.MLP(hidden=(8,))}),
            tmp_path / "b",
        )  # fmt: skip
    failed = read_state(tmp_path / "b" / "seed-1")
    assert failed.state == "failed"
    assert "no longer a finite number" in failed.why
    (tmp_path / "a" / "seed-1" / "state.json").write_bytes((tmp_path / "b" / "seed-1" / "state.json").read_bytes())
    (tmp_path / "b" / "seed-1" / "state.json").write_text('{"state": "running"}')  # as kill -9 leaves it
    assert read_state(tmp_path / "b" / "seed-1").state == "gone"
    (tmp_path / "b" / "seed-1" / "state.json").unlink()
    assert read_state(tmp_path / "b" / "seed-1").state == "unknown"
    assert any("failed" in note or "not finished" in note for note in ep.read_results(tmp_path / "b").notes)
