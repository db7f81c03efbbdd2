"""Runs on Slurm without a Slurm: what is refused, what is submitted, and what a task does; tests/slurm has the real one."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import submitit

from epidemic.cli import main
from epidemic.core.errors import BadInput, RunFailed
from epidemic.study.slurm.status import status_of
from epidemic.study.slurm.submit import KNOWN, Submission, parse_options
from epidemic.study.slurm.task import ENDED, SlurmTask

EXPERIMENT = """
name = "tiny"
nodes = 4
rounds = 3
data = {kind = "digits"}
model = {kind = "logistic"}
topology = {kind = "el-local", s = 2}
algorithm = {local_steps = 1, batch_size = 4}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(EXPERIMENT)
    return tmp_path


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Commands that say what Slurm says, from files: `queue` what is queued, `machines`; sbatch gives the number 77."""
    bin, said = tmp_path / "bin", tmp_path / "said"
    bin.mkdir()
    said.mkdir()
    (said / "queue").write_text("")
    (said / "machines").write_text(socket.gethostname().partition(".")[0] + "\n")
    answers = {
        "sbatch": f'[ "$1" = --version ] || cp "$1" {said}/script; echo Submitted batch job 77',
        "squeue": f"cat {said}/queue",
        "sinfo": f"cat {said}/machines",
        "scontrol": "echo 'MaxArraySize            = 1001'",
        "srun": "exit 1",
    }
    for name, does in answers.items():
        (bin / name).write_text(f"#!/bin/sh\n{does}\n")
        (bin / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    return said


def sweep(*more):
    return main(["sweep", "tiny.toml", "--grid", "topology.s=1,2,3", "--out", "out", *more])


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time", "minutes"),
    [("8h", 480), ("1d12h", 2160), ("90", 90), ("150s", 3), ("45m", 45), ("1-12:00:00", 2160), ("02:30:00", 150)],
)
def test_times_are_read_in_units_and_as_slurm_writes_them(time, minutes):
    assert parse_options([f"time={time}"]).minutes == minutes


def test_options_become_parameters_of_submitit():
    options = parse_options(['partition=gpu,time=8h,mem=32G,array=50,nodelist="a,b"', "cpus-per-task=4,reservation=x"])
    found = options.parameters("name", 50)
    assert (found["timeout_min"], found["slurm_mem"], found["slurm_partition"]) == (480, "32G", "gpu")
    assert (found["slurm_array_parallelism"], found["cpus_per_task"], found["slurm_nodelist"]) == (50, 4, "a,b")
    assert found["slurm_additional_parameters"] == {"reservation": "x"}
    assert found["slurm_srun_args"] == ["--cpus-per-task=4"]


@pytest.mark.parametrize("key", sorted(KNOWN))
def test_submitit_takes_every_option(key, slurm, tmp_path):
    executor = submitit.AutoExecutor(tmp_path / "folder", cluster="slurm")
    executor.update_parameters(**parse_options([KNOWN[key][1]]).parameters("name", 1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("partitoin=gpu", "not an option that is passed on; did you mean 'partition'?"),
        ("time=soon", "must be a time like 8h"),
        ("time=1m", "must be at least 2 minutes"),
        ("time=5m,signal=5m", "must be at least 60 s less than the time"),
        ("mem=lots", "must be a size like 32G"),
        ("array=0", "must be a whole number of at least 1"),
        ("partition", "must have the form key=value, for example partition=gpu"),
        ("partition=a,partition=b", "given twice"),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(given, message, place, slurm, capsys):
    assert sweep("--on", "slurm", "--slurm", given) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--on", "moon"), "--on = 'moon' is not known"),
        (("--slurm", "time=8h"), "has no effect without --on slurm"),
        (("--on", "slurm", "--jobs", "3"), "--slurm array=3"),
        (("--status", "out"), "leave out everything else"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(words, message, place, slurm, capsys):
    assert sweep(*words) == 2
    assert message in capsys.readouterr().err


def test_without_slurm_or_submitit_one_line_says_what_is_missing(place, slurm, monkeypatch, capsys):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "submitit", None)
        assert sweep("--on", "slurm") == 2
        assert "pip install 'epidemic-learning[slurm]'" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/nowhere")
    assert sweep("--on", "slurm") == 2
    assert "sbatch is not found" in capsys.readouterr().err
    assert not Path("out").exists()


def test_a_directory_that_only_this_machine_sees_is_refused(place, slurm, monkeypatch, capsys):
    import epidemic.study.slurm.status as queue

    monkeypatch.setattr(queue, "_file_system", lambda directory: "tmpfs")
    (slurm / "machines").write_text("far-away\n" + (slurm / "machines").read_text())
    assert sweep("--on", "slurm") == 2
    assert "tmpfs file system, which only this machine sees, and not far-away" in capsys.readouterr().err
    (slurm / "machines").write_text(socket.gethostname().partition(".")[0] + "\n")
    assert sweep("--on", "slurm") == 0
    assert queue._file_system is not None
    assert "that cannot be checked" in " ".join(capsys.readouterr().out.split())


# -- submitting -------------------------------------------------------------------------------------------------------


def test_one_array_has_a_task_for_each_run_and_nothing_is_submitted_twice(place, slurm, capsys):
    assert sweep("--on", "slurm", "--slurm", "time=8h,cpus-per-task=2,array=2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["submitted"] == {"s=1": "77_0", "s=2": "77_1", "s=3": "77_2"}
    script = (slurm / "script").read_text()
    assert "#SBATCH --array=0-2%2" in script
    assert "#SBATCH --time=480" in script
    assert "#SBATCH --signal=USR2@90" in script
    delayed = submitit.core.utils.DelayedSubmission.load(Path("out/.slurm/77_1_submitted.pkl"))
    run = str(place / "out" / "s=2")
    assert delayed.function.command[1:] == ["-m", "epidemic", "run", "--resume", run, "--quiet", "--set", "runtime.threads=2"]  # fmt: skip
    assert delayed.args == ()

    (slurm / "queue").write_text("77|0|PENDING|Resources\n77|1|RUNNING|None\n77|2|PENDING|Resources\n")
    assert sweep("--on", "slurm", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["submitted"] == {}
    assert again["under_way"] == {"s=1": "queued", "s=2": "running", "s=3": "queued"}


def test_what_a_task_goes_on_with_gives_the_bytes_of_a_local_sweep(place, slurm, capsys):
    assert sweep("--on", "slurm") == 0
    for i in range(3):
        delayed = submitit.core.utils.DelayedSubmission.load(Path(f"out/.slurm/77_{i}_submitted.pkl"))
        assert main(delayed.function.command[3:]) == 0
    assert sweep("--on", "slurm") == 0  # nothing is missing: the results
    assert "accuracy" in capsys.readouterr().out
    assert main(["sweep", "tiny.toml", "--grid", "topology.s=1,2,3", "--out", "local", "--quiet"]) == 0
    for s in (1, 2, 3):
        records = [Path(where, f"s={s}", "seed-1", "records.jsonl").read_bytes() for where in ("out", "local")]
        assert records[0] == records[1]


def test_items_of_the_paper_and_methods_are_submitted_too(place, slurm, capsys):
    assert main(["reproduce", "table2", "--seeds", "1", "--out", "paper", "--on", "slurm", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["submitted"]) == 5
    assert main(["reproduce", "table1", "--on", "slurm"]) == 2
    assert "trains nothing" in capsys.readouterr().err
    assert main(["compare", "--out", "demo", "--on", "slurm", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["submitted"]) == 4


def test_the_data_of_the_paper_is_given_to_each_task(tmp_path):
    from epidemic.study import reproduce as reproducing

    (tmp_path / "cifar10").mkdir()
    jobs = reproducing.planned(reproducing.items_named("table2"), reproducing.Request("laptop", tmp_path / "out", 1))
    found = reproducing.data_settings(jobs, tmp_path)
    assert set(map(tuple, found.values())) == {(f'data.path="{tmp_path / "cifar10"}"',)}
    assert set(found) == {job.path for job in jobs}


# -- status -----------------------------------------------------------------------------------------------------------


def test_status_tells_queued_running_done_stopped_and_failed_with_the_reason(place, slurm, capsys):
    main(["sweep", "tiny.toml", "--grid", "topology.s=1", "--out", "out", "--quiet"])
    main(["sweep", "tiny.toml", "--grid", "topology.s=1,2,3", "--grid", "rounds=3", "--out", "out", "--on", "slurm"])
    capsys.readouterr()
    names = ("s=1,rounds=3", "s=2,rounds=3", "s=3,rounds=3")

    def found():
        return {one.run: (one.state, one.why) for one in status_of(Path("out"))}

    (slurm / "queue").write_text("77|0|PENDING|Priority\n77|1|RUNNING|None\n77|2|TIMEOUT|TimeLimit\n")
    by_name = found()
    assert by_name["s=1"] == ("done", "")
    assert by_name[names[0]] == ("queued", "Priority")
    assert by_name[names[1]] == ("running", "")
    assert by_name[names[2]][0] == "failed"
    assert "signal=5m" in by_name[names[2]][1]

    (slurm / "queue").write_text(
        "77|1|COMPLETED|None\n77|N/A|CANCELLED|Priority\n"
    )  # as Slurm lists those who never began
    by_name = found()
    assert by_name[names[0]] == by_name[names[2]] == ("stopped", "it was cancelled")

    (slurm / "queue").write_text("")  # Slurm has forgotten them
    Path("out", names[0], ENDED).write_text('{"why":"topology.s is too large"}')
    Path("out", names[1], ENDED).write_text('{"why":"interrupted","stopped":true}')
    by_name = found()
    assert by_name[names[0]] == ("failed", "topology.s is too large")
    assert by_name[names[1]] == ("stopped", "interrupted")
    assert "disk that all machines of the cluster share" in by_name[names[2]][1]
    log = Path("out/.slurm/77_2_0_log.err")
    log.touch()
    assert "full?" in found()[names[2]][1]
    log.write_text("srun: error: no such machine")
    assert found()[names[2]][1] == f"its task ended before it began; its log is {log}"
    assert main(["sweep", "--status", "out"]) == 0
    assert "1 done, 2 failed, 1 stopped" in capsys.readouterr().out


def test_status_of_a_local_sweep_needs_no_slurm(place, monkeypatch):
    main(["sweep", "tiny.toml", "--grid", "topology.s=1,2", "--out", "out", "--quiet"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert [one.state for one in status_of(Path("out"))] == ["done", "done"]
    Path("empty").mkdir()
    with pytest.raises(BadInput, match="holds no run"):
        status_of(place / "empty")
    with pytest.raises(BadInput, match="does not exist"):
        status_of(place / "nothing")


# -- tasks ------------------------------------------------------------------------------------------------------------


def task_of(tmp_path, code):
    return SlurmTask([sys.executable, "-c", code], str(tmp_path))


@pytest.mark.parametrize(
    ("code", "why", "stopped"),
    [
        ("import sys; print('error: no such data', file=sys.stderr); sys.exit(2)", "no such data", False),
        ("import sys; sys.exit('error: interrupted at seed 1') if 0 else sys.exit(130)", "exit code 130", True),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL, perhaps for lack of memory", False),
    ],
)
def test_a_task_writes_down_why_its_run_ended_early(tmp_path, code, why, stopped):
    with pytest.raises(RunFailed, match=why):
        task_of(tmp_path, code)()
    ended = msgspec.json.decode((tmp_path / ENDED).read_bytes())
    assert why in ended["why"]
    assert ended["stopped"] is stopped
    task_of(tmp_path, "pass")()
    assert not (tmp_path / ENDED).exists()


SAVES = """
import signal, sys, time
def save(*_):
    sys.exit(sys.stderr.write("error: interrupted after round 7\\n") and 130)
signal.signal(signal.SIGTERM, save)
open("begun", "w").close()
time.sleep(60)
"""


def test_a_task_told_to_save_is_requeued_unless_it_came_no_further(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def told_to_save(task):
        Path("begun").unlink(missing_ok=True)
        task._start()
        while not Path("begun").exists():
            time.sleep(0.01)
        try:
            return task.checkpoint()
        finally:
            os.close(task._pipe)

    again = told_to_save(task_of(tmp_path, SAVES))
    assert isinstance(again.function, SlurmTask)
    assert again.function.before == "130: error: interrupted after round 7"
    assert told_to_save(again.function) is None
    assert "came no further" in (tmp_path / ENDED).read_text()


def test_a_run_does_not_hear_the_signal_that_is_for_its_task(tmp_path, capfd):
    task = task_of(tmp_path, "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)")
    task._start()
    assert task._wait() == 0
    os.close(task._pipe)
    assert "SIGUSR2" in capfd.readouterr().out
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_run_ends_with_its_task(tmp_path):
    code = (
        "import os, subprocess, sys\nfrom epidemic.study.slurm.task import SlurmTask\n"
        f"task = SlurmTask([sys.executable, '-c', 'import time; time.sleep(60)'], {str(tmp_path)!r})\n"
        "task._start(); print(task._process.pid, flush=True); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    child = Path(f"/proc/{int(done.stdout)}/cmdline")
    end = time.monotonic() + 20
    while child.exists() and child.read_bytes() and time.monotonic() < end:
        time.sleep(0.05)
    assert not child.exists() or not child.read_bytes()


# -- runs on ranks ----------------------------------------------------------------------------------------------------


def test_a_run_on_ranks_gets_a_processor_for_each_and_is_the_same_command(place, slurm, capsys):
    assert sweep("--on", "slurm", "--ranks", "2", "--json") == 0
    assert list(json.loads(capsys.readouterr().out)["submitted"]) == ["s=1", "s=2", "s=3"]
    assert "#SBATCH --cpus-per-task=2" in (slurm / "script").read_text()
    task = submitit.core.utils.DelayedSubmission.load(Path("out/.slurm/77_1_submitted.pkl")).function
    run = str(place / "out" / "s=2")
    assert task.command == [sys.executable, "-m", "epidemic", "run", "--resume", run, "--quiet", "--ranks", "2", "--set", "runtime.threads=1"]  # fmt: skip
    assert parse_options(["cpus-per-task=8"], ranks=4).parameters("name", 1)["cpus_per_task"] == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ranks", "5"), "s=1: --ranks 5 must be at most nodes = 4"),
        (("--ranks", "0"), "--ranks = 0 must be at least 1"),
        (("--ranks", "2", "--set", "compression.kind=int8"), "s=1: [compression]: compressed messages cannot be mixed"),
        (("--ranks", "2", "--set", "model.kind=small-cnn"), 'use --set runtime.strategy="per-node"'),
        (("--ranks", "2", "--set", 'callbacks=["mine:Mine"]'), "callback Mine needs all nodes' models"),
        (("--ranks", "2", "--slurm", "cpus-per-task=3"), "must be a multiple of --ranks 2, for example 4"),
        (("--ranks", "2", "--slurm", "gpus-per-node=1"), "gpus-per-node=1 must be --ranks 2"),
        (("--jobs", "2", "--ranks", "2"), "on Slurm, 2 at once are --slurm array=2"),
    ],
)
def test_what_ranks_cannot_do_is_refused_before_anything_is_submitted(
    words, message, place, slurm, monkeypatch, capsys
):
    Path("mine.py").write_text(
        "import epidemic as ep\nclass Mine(ep.Callback):\n    def advanced(self, rounds_done, x): pass\n"
    )
    monkeypatch.syspath_prepend(str(place))
    assert sweep("--on", "slurm", *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert sum(not line.startswith("executing the code of") for line in error.splitlines()) == 1
    assert not Path("out").exists()
    assert not (slurm / "script").exists()


def test_what_ranks_cannot_do_is_refused_here_too(place, capsys):
    assert sweep("--ranks", "2", "--jobs", "2") == 2
    assert "leave out --jobs" in capsys.readouterr().err
    assert sweep("--ranks", "2", "--set", 'topology.kind="fragments"', "--set", "topology.count=2") == 2
    capsys.readouterr()
    assert main(["reproduce", "async", "--out", "out", "--ranks", "2"]) == 2
    assert "simulated clock cannot run on 2 ranks" in capsys.readouterr().err
    assert main(["reproduce", "table1", "--out", "out", "--ranks", "2"]) == 2
    assert "leave out --ranks" in capsys.readouterr().err
    assert not Path("out").exists()


def test_items_and_methods_on_ranks_are_submitted_too(place, slurm, capsys):
    assert (
        main(["reproduce", "table2", "--seeds", "1", "--out", "paper", "--ranks", "2", "--on", "slurm", "--json"]) == 0
    )
    assert len(json.loads(capsys.readouterr().out)["submitted"]) == 5
    assert main(["compare", "--out", "demo", "--ranks", "3", "--on", "slurm", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["submitted"]) == 4
    task = submitit.core.utils.DelayedSubmission.load(Path("demo/.slurm/77_0_submitted.pkl")).function
    assert task.command[7:9] == ["--ranks", "3"]


# -- a full disk ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["experiment.toml", "tasks.json"])
def test_a_full_disk_leaves_neither_directories_nor_tasks_behind(name, place, slurm, monkeypatch, capsys):
    cancelled = slurm.parent / "cancelled"
    (slurm.parent / "bin" / "scancel").write_text(f'#!/bin/sh\necho "$@" > {cancelled}\n')
    (slurm.parent / "bin" / "scancel").chmod(stat.S_IRWXU)
    write = Path.write_bytes

    def fails(path, content):
        if path.name == f"{name}.part":
            raise OSError(28, "No space left on device", str(path))
        return write(path, content)

    with monkeypatch.context() as while_full:
        while_full.setattr(Path, "write_bytes", fails)
        assert sweep("--on", "slurm") == 1
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert error.count("\n") == 1
    assert cancelled.exists() == (name == "tasks.json")
    assert not cancelled.exists() or cancelled.read_text() == "77\n"
    assert Path("out").exists() == (name == "tasks.json")  # what the cancelled ones have
    assert sweep("--on", "slurm", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["submitted"]) == 3


def test_a_task_ends_with_the_reason_even_if_that_cannot_be_written_down(tmp_path):
    task = task_of(tmp_path / "gone", "import sys; sys.exit('error: records.jsonl cannot be written')")
    with pytest.raises(RunFailed, match=r"records\.jsonl cannot be written"):
        task()


def test_on_slurm_methods_run_at_rates_that_were_tried(place, monkeypatch):
    """What decides the settings of others runs first; a rate at which numbers explode is a result."""
    from epidemic.study import reproduce as reproducing

    handed = []

    def submit(jobs, *_):
        handed.append([job.name for job in jobs if not job.finished])
        return Submission(dict.fromkeys(handed[-1], "77"), {}, [], {})

    monkeypatch.setattr("epidemic.study.slurm.submit.submit", submit)
    monkeypatch.setattr(reproducing, "check_data", lambda *_: None)
    words = ["reproduce", "rivals", "--scale", "laptop", "--out", "paper", "--on", "slurm", "--json"]
    assert main(words) == 0
    assert handed[0]
    assert all("tuning" in name for name in handed[0])
    request = reproducing.Request("laptop", Path("paper"), None)
    tuning = next(reproducing.stages(reproducing.items_named("rivals"), request))
    bad = tuning[0]
    seed = bad.path / f"seed-{bad.experiment.seeds[0]}"
    seed.mkdir(parents=True)
    (seed / "state.json").write_text('{"state": "failed", "why": "the loss is no longer a finite number"}')
    assert reproducing.diverged(tuning) == {bad.name: "the loss is no longer a finite number"}
    shutil.rmtree("paper")
    monkeypatch.setattr(
        "epidemic.study.batch.diverged", lambda jobs: {job.name: "diverged" for job in jobs if job.name == bad.name}
    )
    assert main(words) == 0
    assert bad.name not in handed[1]
    assert len(handed[1]) == len(handed[0]) - 1


def test_a_run_that_diverged_is_listed_and_not_submitted_again(place, slurm, capsys):
    words = ["sweep", "tiny.toml", "--grid", "algorithm.lr=0.1,1e38", "--out", "out", "--set", "rounds=20"]
    assert main([*words, "--quiet"]) == 1  # as its tasks would leave it
    capsys.readouterr()
    assert main([*words, "--on", "slurm", "--json"]) == 1  # nothing is missing: the results, and what failed
    said = capsys.readouterr()
    assert "1 of 2 runs failed; the first, lr=1e38: " in said.err
    assert [row["run"] for row in json.loads(said.out)["runs"] if "failed" in row] == ["lr=1e38"]
    assert not (slurm / "script").exists()
    more = [*words[:3], "algorithm.lr=0.1,1e38,0.2", *words[4:], "--on", "slurm"]
    assert main([*more, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said["submitted"]) == {"lr=0.2"}
    assert "no longer a finite number" in said["failed"]["lr=1e38"]
    (slurm / "queue").write_text("")
    shutil.rmtree("out/lr=1e38")  # it is asked for
    assert main(more) == 0
    assert "submitted to Slurm: 2 runs" in capsys.readouterr().out


def test_methods_of_which_one_diverged_are_not_compared(place, slurm, capsys):
    table = Path("tiny.toml").read_text().replace("algorithm = {local_steps = 1, batch_size = 4}", "")
    method = '[[methods]]\nname = "{0}"\nalgorithm = {{local_steps = 1, batch_size = 4, lr = {1}}}\n'
    Path("methods.toml").write_text(table + method.format("calm", 0.1) + method.format("wild", 1e38))
    words = ["compare", "methods.toml", "--out", "out"]
    assert main([*words, "--quiet"]) == 1
    capsys.readouterr()
    assert main([*words, "--on", "slurm"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: method 'wild' failed for good: ")
    assert said.count("\n") == 1
    assert not (slurm / "script").exists()


@pytest.mark.parametrize(("before", "then"), [("0.1", "0.2"), ("1e38", "0.1")])
def test_what_lies_there_of_another_experiment_is_no_result_of_this_one(before, then, place, slurm, capsys):
    words = ["sweep", "tiny.toml", "--grid", "topology.s=1,2", "--out", "out"]
    main([*words, "--set", f"algorithm.lr={before}", "--quiet"])
    capsys.readouterr()
    assert main([*words, "--set", f"algorithm.lr={then}", "--on", "slurm"]) == 2
    assert "holds a different experiment (in algorithm.lr)" in capsys.readouterr().err
    assert not (slurm / "script").exists()


def test_a_dry_run_does_not_pretend_to_be_elsewhere(place, capsys):
    assert main(["reproduce", "table2", "--dry-run", "--on", "slurm"]) == 2
    assert "leave out --on slurm" in capsys.readouterr().err
