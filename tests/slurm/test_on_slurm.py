"""Runs on a real Slurm: tasks that are killed, tasks over their time limit, and the same bytes as on one machine in the end."""

import json
import os
import signal
from pathlib import Path

import pytest
from cluster import TO_LEARN, children, clear, cluster, processes, says, until

from epidemic.cli import main

EXPERIMENT = """
name = "held"
nodes = 8
rounds = 120
callbacks = ["holding:Hold"]
data = {kind = "digits"}
model = {kind = "logistic"}
topology = {kind = "el-local", s = 2}
algorithm = {local_steps = 1, batch_size = 4}
eval = {every = 2, samples = 50}
checkpoint = {rounds = 5}
"""
HOLDING = """
import time
from pathlib import Path
import epidemic as ep

class Hold(ep.Callback):
    '''Runs whose names are in the directory `held` take over a minute: the first evaluations little of it, the others 1.5 s each.'''
    def started(self, setup, learner, rounds_done):
        self.name = setup.experiment.name
    def recorded(self, record):
        if (Path(__file__).parent / "held" / self.name).exists():
            time.sleep(min(0.1 * record.round, 1.5))
"""
GRID = ("--grid", "topology.s=2,3,4", "--grid", "algorithm.lr=0.05,0.1,0.2,0.4")
KILLED, LOST, LATE = "s=2,lr=0.1", "s=3,lr=0.05", "s=4,lr=0.4"
WHAT_COMES_OUT = ("records.jsonl", "nodes.json", "summary.json", "models.safetensors")


@pytest.fixture(scope="module", autouse=True)
def slurm(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("slurm")):
        yield


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # where tasks find the package that is tested
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2] / "src"))
    Path("held.toml").write_text(EXPERIMENT)
    Path("holding.py").write_text(HOLDING)
    Path("held").mkdir()
    yield tmp_path
    clear()  # what a test that fails has left behind is not in the way of the next one


def epidemic(capsys, *words):
    """The exit code of a command and what it says; with --json, the object."""
    capsys.readouterr()
    code = main(list(words))
    said = capsys.readouterr()
    return code, json.loads(said.out) if "--json" in words and code == 0 else said.out + said.err


def states(capsys, out):
    found = epidemic(capsys, "sweep", "--status", out, "--json")[1]["runs"]
    return {one["run"]: one for one in found}


def test_a_sweep_with_tasks_killed_and_one_over_its_time_limit_ends_with_the_bytes_of_a_local_one(place, capsys):
    assert epidemic(capsys, "sweep", "held.toml", *GRID, "--out", "local", "--quiet")[0] == 0
    names = sorted(path.name for path in Path("local").iterdir())
    assert len(names) == 12
    assert {KILLED, LOST, LATE} < set(names)

    for name in (KILLED, LOST, LATE):
        Path("held", name).touch()
    command = ("sweep", "held.toml", *GRID, "--out", "out", "--on", "slurm", "--slurm", "time=10m,array=12")
    code, first = epidemic(capsys, *command, "--json")
    assert code == 0
    assert sorted(first["submitted"]) == names
    assert len({task.partition("_")[0] for task in first["submitted"].values()}) == 1

    for name in (KILLED, LOST):
        run = place / "out" / name
        until(f"{name} has saved", (run / "seed-1" / "checkpoint.safetensors").exists, patience=TO_LEARN)
        [child] = processes("--resume", str(run))
        parent = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        if name == LOST:  # its task can say nothing: it stands still, and is killed after its run
            os.kill(parent, signal.SIGSTOP)
        os.kill(child, signal.SIGKILL)
        if name == LOST:
            os.kill(parent, signal.SIGKILL)

    late, task = place / "out" / LATE / "seed-1", first["submitted"][LATE]
    until("the late one has begun", (late / "checkpoint.safetensors").exists, patience=TO_LEARN)
    nearly_over(task)
    until("the late one has saved before its limit", lambda: stopped(late), patience=TO_LEARN)
    until("it is requeued", lambda: says("squeue", "-h", "-j", task, "-o", "%T") == "PENDING")
    assert states(capsys, "out")[LATE]["state"] == "queued"
    for name in (KILLED, LOST, LATE):
        Path("held", name).unlink()
    soon(task)

    left = {KILLED, LOST}
    until(
        "the others are done",
        lambda: sum(one["state"] == "done" for one in states(capsys, "out").values()) == 10,
        patience=TO_LEARN,
    )
    found = states(capsys, "out")
    assert {name for name, one in found.items() if one["state"] == "failed"} == left
    assert found[KILLED]["why"] == "its process was killed by SIGKILL, perhaps for lack of memory"
    assert "without notice" in found[LOST]["why"]
    assert epidemic(capsys, "report", "out", "-o", "report.html")[0] == 0

    code, again = epidemic(capsys, *command, "--json")
    assert (code, set(again["submitted"]), len(again["finished"])) == (0, left, 10)
    assert set(epidemic(capsys, *command, "--json")[1]["under_way"]) <= left  # nothing is submitted twice
    until(
        "all are done", lambda: all(one["state"] == "done" for one in states(capsys, "out").values()), patience=TO_LEARN
    )
    code, results = epidemic(capsys, *command, "--json")
    assert (code, len(results["runs"])) == (0, 12)
    for name in names:
        for file in WHAT_COMES_OUT:
            assert Path("out", name, "seed-1", file).read_bytes() == Path("local", name, "seed-1", file).read_bytes()


def test_runs_on_two_ranks_killed_cancelled_and_over_their_limit_end_with_the_bytes_of_one_process(place, capsys):
    grid = ("--grid", "topology.s=2,3,4")
    assert epidemic(capsys, "sweep", "held.toml", *grid, "--out", "local", "--quiet")[0] == 0
    killed, cancelled, late = names = ["s=2", "s=3", "s=4"]
    for name in names:
        Path("held", name).touch()
    command = (
        "sweep",
        "held.toml",
        *grid,
        "--out",
        "out",
        "--ranks",
        "2",
        "--on",
        "slurm",
        "--slurm",
        "time=10m",
        "--json",
    )
    tasks = epidemic(capsys, *command)[1]["submitted"]
    assert says("squeue", "-h", "-r", "-o", "%C %D").split("\n") == ["2 1"] * 3  # two processors each, on one machine
    for name in names:
        until(
            f"{name} has saved", (place / "out" / name / "seed-1" / "checkpoint.safetensors").exists, patience=TO_LEARN
        )

    nearly_over(tasks[late])
    says("scancel", tasks[cancelled])
    [run] = processes("--resume", str(place / "out" / killed))
    os.kill(max(children(run)), signal.SIGKILL)
    over = {killed, cancelled}
    until("two are over", lambda: all(states(capsys, "out")[name]["state"] in ("failed", "stopped") for name in over))
    found = states(capsys, "out")
    assert (found[killed]["state"], found[cancelled]["state"]) == ("failed", "stopped")
    assert "ended without a word (signal 9)" in found[killed]["why"]
    assert "interrupted at seed 1, after round" in found[cancelled]["why"]
    until(
        "the late one has saved before its limit", lambda: stopped(place / "out" / late / "seed-1"), patience=TO_LEARN
    )
    until("it is requeued", lambda: says("squeue", "-h", "-j", tasks[late], "-o", "%T") == "PENDING")
    for name in names:
        Path("held", name).unlink()
    soon(tasks[late])

    assert set(epidemic(capsys, *command)[1]["submitted"]) == over
    until(
        "all are done", lambda: all(one["state"] == "done" for one in states(capsys, "out").values()), patience=TO_LEARN
    )
    assert len(epidemic(capsys, *command)[1]["runs"]) == 3
    for name in names:
        assert json.loads(Path("out", name, "seed-1", "run.json").read_text())["ranks"]["count"] == 2
        for file in WHAT_COMES_OUT:
            assert Path("out", name, "seed-1", file).read_bytes() == Path("local", name, "seed-1", file).read_bytes()


def nearly_over(task):
    """Lower the limit of a task, so that it is within the last 90 seconds, before which it is warned, when Slurm looks next.

    That is within half a minute, and the limit must not be over by then, however long the task has taken to begin.
    """
    minutes, seconds = says("squeue", "-h", "-j", task, "-o", "%M").split(":")  # that it has run
    limit = (60 * int(minutes) + int(seconds) + 45) // 60 + 1
    says("scontrol", "update", f"JobId={task}", f"TimeLimit={limit}")


def soon(task):
    """Have a task that was requeued begin, with time enough; Slurm lets such tasks wait for two minutes.

    A few seconds it must wait: what begins in the second in which it ended is killed ("Job credential revoked").
    """
    until("it waits", lambda: says("squeue", "-h", "-j", task, "-o", "%r") == "BeginTime")
    says("scontrol", "update", f"JobId={task}", "TimeLimit=10", "StartTime=now+5")


def stopped(seed):
    with_state = seed / "state.json"
    return with_state.exists() and b"stopped" in with_state.read_bytes()


def test_methods_are_compared_when_the_same_command_finds_them_done(place, capsys):
    Path("two.toml").write_text(
        EXPERIMENT.replace("rounds = 120", "rounds = 10").replace("topology =", "#")
        + '[[methods]]\nname = "EL"\ntopology = {kind = "el-local", s = 2}\n'
        + '[[methods]]\nname = "ring"\ntopology = {kind = "ring"}\n'
    )
    command = ("compare", "two.toml", "--out", "both", "--on", "slurm", "--json")
    assert set(epidemic(capsys, *command)[1]["submitted"]) == {"EL", "ring"}
    until(
        "both are done",
        lambda: all(one["state"] == "done" for one in states(capsys, "both").values()),
        patience=TO_LEARN,
    )
    assert [row["name"] for row in epidemic(capsys, *command)[1]["rows"]] == ["EL", "ring"]


def test_what_slurm_refuses_is_one_line_and_leaves_nothing(place, capsys):
    code, said = epidemic(
        capsys,
        "sweep",
        "held.toml",
        "--grid",
        "topology.s=2,3",
        "--out",
        "no",
        "--on",
        "slurm",
        "--slurm",
        "partition=nowhere",
    )
    assert code == 2
    assert said.startswith("error: Slurm refuses:")
    assert "nvalid partition" in said
    assert said.count("\n") == 1
    assert not Path("no").exists()


def test_a_cancelled_run_is_stopped_and_goes_on(place, capsys):
    Path("held", "s=2").touch()
    command = ("sweep", "held.toml", "--grid", "topology.s=2", "--out", "one", "--on", "slurm", "--json")
    task = epidemic(capsys, *command)[1]["submitted"]["s=2"]
    until("it has saved", Path("one/s=2/seed-1/checkpoint.safetensors").exists, patience=TO_LEARN)
    assert states(capsys, "one")["s=2"]["state"] == "running"
    says("scancel", task)
    until("it is over", lambda: states(capsys, "one")["s=2"]["state"] == "stopped")
    assert "interrupted at seed 1, after round" in states(capsys, "one")["s=2"]["why"]
    Path("held", "s=2").unlink()
    epidemic(capsys, *command)
    until("it is done", lambda: states(capsys, "one")["s=2"]["state"] == "done", patience=TO_LEARN)
