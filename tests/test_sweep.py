"""A sweep runs every point once, whatever happens to it on the way."""

import json
import signal
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest

from epidemic.cli import main
from epidemic.core.children import process_context
from epidemic.core.errors import BadInput, Interrupted
from epidemic.experiment import experiment_from, load
from epidemic.report.results import read_results
from epidemic.study.batch import BatchListener, Job, run_batch, run_batch_on_ranks
from epidemic.study.sweep import grid_jobs, parse_grid
from test_resume import start, wait_for

FILE = """
nodes = 8
rounds = {rounds}
seeds = [1]
data = {{kind = "digits"}}
model = {{kind = "logistic"}}
partition = {{kind = "iid"}}
topology = {{kind = "el-local", s = 3}}
algorithm = {{lr = 0.1, local_steps = 2}}
eval = {{every = {every}, samples = 60}}
checkpoint = {{rounds = 5, seconds = 0}}
runtime = {{strategy = "per-node"}}
"""
TABLE = {"nodes": 8, "rounds": 6, "topology": {"kind": "el-local", "s": 3}, "data": {"kind": "digits"}}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(FILE.format(rounds=8, every=4))
    return path


def records(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(Path(directory).rglob("records.jsonl"))}


def sweep(file, out, *more, grid=("algorithm.lr=0.05,0.1", "topology.s=2,3")):
    words = [word for text in grid for word in ("--grid", text)]
    return main(["sweep", str(file), *words, "--out", str(out), *more])


# -- the grid ---------------------------------------------------------------------------------------------------------


def test_every_combination_once_in_a_directory_named_by_what_differs(tmp_path):
    jobs = grid_jobs(TABLE, parse_grid(["algorithm.lr=0.1,0.5", "topology.s=2,4,7"]), tmp_path, seeds=3)
    assert [job.path.name for job in jobs] == [f"lr={lr},s={s}" for lr in (0.1, 0.5) for s in (2, 4, 7)]
    assert [(j.experiment.algorithm.lr, j.experiment.topology.s) for j in jobs][3] == (0.5, 2)
    assert all(job.experiment.seeds == (1, 2, 3) for job in jobs)
    assert jobs[0].rounds == 18


def test_keys_with_the_same_last_word_are_written_out(tmp_path):
    grid = parse_grid(["data.kind=digits,fashion", "topology.kind=ring,complete"])
    names = [job.path.name for job in grid_jobs(TABLE, grid, tmp_path)]
    assert names[0] == "data.kind=digits,topology.kind=ring"


def test_values_may_be_lists_tables_and_text():
    grid = parse_grid(
        ["model.hidden=[16],[32,32]", 'topology={kind="ring"},{kind="el-local", s=3}', "mixing=auto, uniform"]
    )
    assert grid["model.hidden"] == [[16], [32, 32]]
    assert grid["topology"][1] == {"kind": "el-local", "s": 3}
    assert grid["mixing"] == ["auto", "uniform"]


def test_values_that_look_alike_as_directories_are_told_apart(tmp_path):
    jobs = grid_jobs({**TABLE, "model": {"kind": "mlp"}}, {"model.hidden": [[3, 2], [3, 2, 2]]}, tmp_path)
    assert len({job.path for job in jobs}) == 2
    jobs = grid_jobs(TABLE, {"loss": ["a:b", "a/b"]}, tmp_path)
    assert len({job.path for job in jobs}) == 2
    alone = grid_jobs(TABLE, {"loss": ["a/b"]}, tmp_path)
    assert alone[0].path == jobs[1].path, "a name does not depend on the other values"
    long = grid_jobs(TABLE, {"loss": ["a:" + "b" * 400]}, tmp_path)
    assert len(long[0].path.name) < 200


def test_settings_hold_for_the_kinds_that_a_grid_brings(tmp_path):
    grid = parse_grid(["topology.kind=el-oracle,el-local,regular"])
    jobs = grid_jobs(TABLE, grid, tmp_path, settings=["topology.s=4"])
    assert [type(job.experiment.topology).__name__ for job in jobs] == ["ELOracle", "ELLocal", "Regular"]
    assert {job.experiment.topology.s for job in jobs} == {4}
    with pytest.raises(BadInput, match=r"--set topology\.kind has no effect"):
        grid_jobs(TABLE, grid, tmp_path, settings=["topology.kind=ring"])


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (["algorithm.lrr=1,2"], "did you mean 'lr'?"),
        (["nonsense=1"], "nonsense is not a known key"),
        (["algorithm.lr=0.1,0.10"], "has the value 0.10 twice"),
        (["algorithm.lr=0.1", "algorithm.lr=0.2"], "is given twice"),
        (["algorithm.lr"], "must have the form key=value,value"),
        (["algorithm.lr=0.1,"], "has an empty value"),
        (["topology.s=3,8"], "grid point s=8: topology.s = 8 must be at most nodes - 1 = 7"),
        (["algorithm.lr=fast"], "grid point lr=fast"),
        (["seeds=1,2"], "use --seeds N"),
        (
            [f"{key}={','.join(map(str, range(1, 30)))}" for key in ("rounds", "eval.every", "algorithm.batch_size")],
            "the limit is 10,000",
        ),
        (["name=a,b"], "cannot be used in a grid"),
        (
            ['callbacks=[],["EarlyStopping"]'],
            "--grid callbacks cannot be used in a grid: callbacks are no setting",
        ),
        (
            ["metrics.f1=auc,macro-f1"],
            "--grid metrics.f1 cannot be used in a grid: what is measured is no setting of a run",
        ),
        ([], "needs at least one --grid"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_before_anything_runs(file, tmp_path, grid, message, capsys):
    assert sweep(file, tmp_path / "out", grid=grid) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--jobs", "0"], "--jobs = 0 must be at least 1"),
        (["--seeds", "0"], "--seeds = 0 must be at least 1"),
        (["--set", "nodes=-1"], "nodes = -1"),
        (["--set", "seeds=[7]", "--seeds", "3"], "contradict each other"),
    ],
)
def test_bad_options(file, tmp_path, more, message, capsys):
    assert sweep(file, tmp_path / "out", *more) == 2
    assert message in capsys.readouterr().err


def test_places_that_are_taken(file, tmp_path, capsys):
    assert sweep(file, file) == 2
    assert "is a file" in capsys.readouterr().err
    assert sweep(file, ".") == 2
    assert main(["sweep", str(tmp_path / "no.toml"), "--grid", "rounds=1"]) == 2
    assert sweep(file, tmp_path / "out", grid=["topology.s=2"]) == 0
    file.write_text(FILE.format(rounds=8, every=3))
    capsys.readouterr()
    assert sweep(file, tmp_path / "out", grid=["topology.s=2"]) == 2
    assert "holds a different experiment (in eval.every)" in capsys.readouterr().err


def test_a_sweep_is_not_put_into_a_run(file, tmp_path, capsys):
    assert main(["run", str(file), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    for place in ("run", "run/seed-1"):
        capsys.readouterr()
        assert sweep(file, tmp_path / place) == 2
        assert "is the directory of a run" in capsys.readouterr().err


def test_a_file_of_methods_is_not_swept(tmp_path, capsys):
    path = tmp_path / "m.toml"
    path.write_text('[[methods]]\nname = "a"\n')
    assert main(["sweep", str(path), "--grid", "rounds=1,2"]) == 2
    assert "without [[methods]]" in capsys.readouterr().err


# -- running ----------------------------------------------------------------------------------------------------------


def test_several_processes_give_the_same_bytes_as_one(file, tmp_path, capsys):
    assert sweep(file, tmp_path / "one", "--seeds", "2", "--quiet") == 0
    assert sweep(file, tmp_path / "two", "--seeds", "2", "--jobs", "2", "--quiet") == 0
    found = records(tmp_path / "one")
    assert len(found) == 8
    assert found == records(tmp_path / "two")
    rows = read_results(tmp_path / "one").rows()
    assert {(row["algorithm.lr"], row["topology.s"]) for row in rows} == {(lr, s) for lr in (0.05, 0.1) for s in (2, 3)}
    assert "lr=0.05,s=2" in capsys.readouterr().out


def test_what_is_finished_is_not_run_again_and_a_grid_may_grow(file, tmp_path, capsys):
    out = tmp_path / "out"
    assert sweep(file, out, grid=["topology.s=2,3"]) == 0
    before = {p: p.stat().st_mtime_ns for p in out.rglob("records.jsonl")}
    capsys.readouterr()
    assert sweep(file, out, "--json", grid=["topology.s=2,3,4"]) == 0
    captured = capsys.readouterr()
    assert "2 of 3 runs are finished already" in captured.err
    found = json.loads(captured.out)
    assert found["skipped"] == 2
    assert [run["run"] for run in found["runs"]] == ["s=2", "s=3", "s=4"]
    assert all(p.stat().st_mtime_ns == time for p, time in before.items())


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_failing_run_is_reported_at_the_end_and_stops_nobody(tmp_path, jobs, capsys):
    path = tmp_path / "e.toml"
    text = FILE.format(rounds=8, every=4).replace('"logistic"', '"mlp"')
    path.write_text(text)
    assert sweep(path, tmp_path / "out", "--jobs", jobs, grid=["algorithm.lr=1e30,0.1,0.05"]) == 1
    captured = capsys.readouterr()
    assert "1 of 3 runs failed; the first, lr=1e30:" in captured.err
    assert "is no longer a finite number" in captured.err
    assert "failed" in captured.out
    assert "Traceback" not in captured.err
    assert len(list((tmp_path / "out").rglob("summary.json"))) == 2


def test_a_process_that_dies_stops_nobody(file, tmp_path, monkeypatch):
    """It sees the environment as it is when the batch begins, although it is forked from a process that is older."""
    process_context("epidemic.study.batch")
    forkserver.ensure_running()
    monkeypatch.setenv("FATAL", "9")
    (tmp_path / "fatal.py").write_text("import os\ndef make():\n    os._exit(int(os.environ['FATAL']))\n")
    monkeypatch.chdir(tmp_path)
    base = load(file)
    table = base.table()
    jobs = [
        Job(tmp_path / "a", experiment_from({**table, "name": "a"})),
        Job(
            tmp_path / "b",
            experiment_from({**table, "name": "b", "model": {"kind": "python", "factory": "fatal:make"}}),
        ),
        Job(tmp_path / "c", experiment_from({**table, "name": "c"})),
    ]
    outcome = run_batch(jobs, workers=2)
    assert [job.name for job in outcome.ran] == ["a", "c"]
    assert list(outcome.failed) == ["b"]
    assert "its process died (exit code 9)" in outcome.failed["b"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_data_that_is_missing_is_said_once(file, tmp_path, monkeypatch, jobs, capsys):
    monkeypatch.setenv("EPIDEMIC_DATA", str(tmp_path))
    more = ["--set", "data={kind='cifar10'}", "--set", "model={kind='gn-lenet'}", "--jobs", jobs, "--quiet"]
    assert sweep(file, tmp_path / "all" / "out", *more) == 2
    assert "epidemic data fetch cifar10" in capsys.readouterr().err
    assert not (tmp_path / "all").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A file, and the records of its sweep that nothing disturbed."""
    place = tmp_path_factory.mktemp("whole")
    path = place / "e.toml"
    path.write_text(FILE.format(rounds=60, every=4))
    assert sweep(path, place / "out", "--quiet") == 0
    return path, records(place / "out")


@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_at_any_moment_and_run_again_it_gives_the_same_bytes(whole, tmp_path, jobs):
    path, undisturbed = whole
    words = [
        "sweep",
        path,
        "--grid",
        "algorithm.lr=0.05,0.1",
        "--grid",
        "topology.s=2,3",
        "--out",
        tmp_path / "out",
        "--jobs",
        jobs,
    ]
    process = start(*words)
    wait_for(lambda: sum(len(text.splitlines()) for text in records(tmp_path / "out").values()) > 8, 120)
    process.kill()
    process.communicate()
    again = start(*words)
    _, error = again.communicate(timeout=240)
    assert again.returncode == 0, error
    assert records(tmp_path / "out") == undisturbed


@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupted_it_saves_and_says_how_to_go_on(tmp_path, jobs):
    path = tmp_path / "e.toml"
    path.write_text(FILE.format(rounds=100_000, every=10))
    words = ["sweep", path, "--grid", "topology.s=2,3", "--out", tmp_path / "out", "--jobs", jobs]
    process = start(*words)
    wait_for(lambda: sum(len(text.splitlines()) for text in records(tmp_path / "out").values()) > 3, 120)
    process.send_signal(signal.SIGTERM if jobs == 2 else signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "resume with: epidemic sweep" in error.splitlines()[-1]
    assert "--out" in error
    assert list((tmp_path / "out").rglob("checkpoint.safetensors"))


def test_watchers_hear_everything_in_order(file, tmp_path):
    heard = []

    class Listener(BatchListener):
        def began(self, job):
            heard.append(("began", job.name))

        def advanced(self, job, rounds_done, found):
            heard.append((rounds_done, found))

        def ended(self, job, problem):
            heard.append(("ended", problem))

    job = Job(tmp_path / "out", load(file))
    run_batch([job], watcher=Listener())
    assert heard[0] == ("began", "experiment")
    assert heard[-1] == ("ended", None)
    done = [rounds for rounds, _ in heard[1:-1]]
    assert done == sorted(done)
    assert done[-1] == 8
    assert heard[-2][1].startswith("accuracy")
    assert run_batch([job], watcher=Listener()).skipped == [job]


def test_an_interrupt_before_the_first_round_is_one(file, tmp_path):
    class Impatient(BatchListener):
        def advanced(self, job, rounds_done, found):
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="interrupted in experiment, after 0 of 1 runs"):
        run_batch([Job(tmp_path / "out", load(file))], watcher=Impatient())


def test_only_the_seeds_that_were_asked_for_are_in_the_table(file, tmp_path, capsys):
    assert sweep(file, tmp_path / "out", "--seeds", "3", grid=["topology.s=3"]) == 0
    capsys.readouterr()
    assert sweep(file, tmp_path / "out", "--seeds", "2", "--json", grid=["topology.s=3"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["best_accuracy"]["seeds"] == 2


OWN = """
import numpy as np
import epidemic as ep

class Shift:
    def __init__(self, by):
        self.by = by

    def graph(self, n, round, streams):
        return ep.Graph.from_edges(n, np.arange(n), (np.arange(n) + self.by) % n)

def loss(outputs, targets):
    return -outputs.log_softmax(-1).gather(-1, targets[:, None]).mean()

class Forgetful(Shift):
    def __reduce__(self):
        return Forgetful, (1,)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    import importlib

    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("own_parts")
    del sys.modules["own_parts"]


def test_importable_objects_of_ones_own_run_in_processes(own, tmp_path):
    import epidemic as ep

    experiment = ep.Experiment(
        nodes=6, rounds=2, data=ep.Digits(), model=ep.Logistic(), topology=ep.Ring(), loss=own.loss
    )
    grid = {"topology": [own.Shift(1), own.Shift(2), ep.Ring()]}
    alone, beside = (ep.sweep(experiment, grid, tmp_path / f"jobs-{jobs}", jobs=jobs) for jobs in (1, 2))
    assert not beside.failed
    assert list(alone) == list(beside)
    for name, run in alone.items():
        assert [vars_of(r) for r in run.records] == [vars_of(r) for r in beside[name].records]
    assert len(ep.sweep(experiment, grid, tmp_path / "jobs-2", jobs=2)) == 3  # read back


def vars_of(record):
    import msgspec

    return msgspec.json.encode(record)


class Here:
    def graph(self, n, round, streams):
        raise AssertionError


def test_objects_that_other_processes_cannot_import_are_refused_in_one_line(own, file, tmp_path, monkeypatch):
    import msgspec

    def jobs(**changes):
        return [Job(tmp_path / "out" / n, msgspec.structs.replace(load(file), name=n, **changes)) for n in "ab"]

    monkeypatch.setattr(Here, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Here", Here, raising=False)
    for changes, said in (
        ({"loss": lambda a, b: a.mean()}, "loss: an object of your own that other processes cannot import"),
        ({"topology": Here()}, "topology: .*Here is defined in the script or notebook itself"),
        ({"topology": own.Forgetful(3)}, "not the same in another process"),
    ):
        with pytest.raises(BadInput, match=said) as problem:
            run_batch(jobs(**changes), workers=2)
        assert "\n" not in str(problem.value)
        assert "use jobs = 1" in str(problem.value)
        assert not (tmp_path / "out").exists()
    same = jobs(topology=own.Shift(1))[0]
    with pytest.raises(BadInput, match="have the same name"):
        run_batch([same, same])


@pytest.mark.parametrize("runs", [run_batch, lambda jobs: run_batch_on_ranks(jobs, 2)])
def test_two_runs_of_a_name_or_of_a_directory_are_refused_before_anything_runs(file, tmp_path, runs):
    experiment = load(file)
    with pytest.raises(BadInput, match="have the same name, one; give each a name of its own"):
        runs([Job(tmp_path / name, experiment, "one") for name in "ab"])
    with pytest.raises(BadInput, match=r"have the same directory, .*a; give each a directory of its own"):
        runs([Job(tmp_path / "a", experiment, name) for name in ("one", "two")])
    with pytest.raises(BadInput, match=r"cannot be used: File name too long; choose another directory"):
        runs([Job(tmp_path / ("x" * 300), experiment)])
    assert list(tmp_path.iterdir()) == [file]


def test_a_directory_that_goes_away_fails_its_own_run_on_ranks(file, tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(116, "Stale file handle", "somewhere")

    monkeypatch.setattr("epidemic.study.batch.execute", broken)
    outcome = run_batch_on_ranks([Job(tmp_path / name, load(file), name) for name in "ab"], 2)
    assert outcome.failed == dict.fromkeys("ab", "[Errno 116] Stale file handle: 'somewhere'")


def test_a_taken_directory_is_refused(file, tmp_path):
    (tmp_path / "out" / "seed-1").mkdir(parents=True)
    (tmp_path / "out" / "seed-1" / "thesis.txt").write_text("x")
    with pytest.raises(BadInput, match="has files that are not of a run"):
        run_batch([Job(tmp_path / "out", load(file))])
