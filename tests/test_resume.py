"""Whatever stops a run, going on gives the same bytes. Real processes, really killed."""

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import epidemic as ep
from epidemic.callbacks.progress import Display
from epidemic.cli import main
from epidemic.core.errors import BadInput, Interrupted, RunFailed
from epidemic.experiment import to_toml
from epidemic.runtime.run_directory import RunDirectory
from epidemic.runtime.saved_models import export_model

EXPERIMENT = ep.Experiment(
    name="resume", nodes=16, rounds=72, seeds=[3], topology=ep.ELLocal(4), data=ep.Digits(), partition=ep.IID(), model=ep.Logistic(),
    algorithm=ep.LocalSGD(lr=0.1, local_steps=2, momentum=0.5), eval=ep.Eval(every=7, samples=100),
    faults=ep.Faults(cap=5, loss=0.05, crashes=(ep.Crash(1, at=20, returns=60),)), checkpoint=ep.Checkpoint(rounds=5, seconds=0),
    runtime=ep.Runtime(strategy="per-node"),  # not whichever is the faster: the same bytes must not depend on the clock
)  # fmt: skip


def outcome(directory, seed=3):
    path = Path(directory) / f"seed-{seed}"
    return {
        name: (path / name).read_bytes()
        for name in ("records.jsonl", "models.safetensors", "summary.json", "nodes.json")
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    file = directory / "e.toml"
    file.write_text(to_toml(EXPERIMENT))
    assert main(["run", str(file), "--out", str(directory / "run"), "--quiet"]) == 0
    return file, outcome(directory / "run")


def start(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "epidemic", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


@pytest.mark.parametrize("kills", [[12], [30, 44], [1, 7, 60]])
def test_kill_minus_9_and_resume_gives_the_same_bytes(uninterrupted, tmp_path, kills):
    file, whole = uninterrupted
    out = tmp_path / "run"
    records = out / "seed-3" / "records.jsonl"
    command = ["run", file, "--out", out]
    for lines in kills:
        process = start(*command)
        wait_for(
            lambda p=process, n=lines: (
                p.poll() is not None or (records.exists() and records.read_bytes().count(b"\n") > n // 7)
            )
        )
        process.send_signal(signal.SIGKILL)
        process.communicate()
        command = ["run", "--resume", out]
    if not (out / "experiment.toml").exists():
        pytest.fail("the run did not start")
    assert main(["run", "--resume", str(out), "--quiet"]) == 0
    assert outcome(out) == whole


def test_ctrl_c_saves_and_says_how_to_go_on(uninterrupted, tmp_path):
    file, whole = uninterrupted
    out = tmp_path / "run"
    process = start("run", file, "--out", out, "--set", "checkpoint.rounds=0")
    records = out / "seed-3" / "records.jsonl"
    wait_for(lambda: records.exists() and records.read_bytes().count(b"\n") > 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: interrupted at seed 3, after round ")
    assert f"epidemic run --resume {out}" in last
    assert (out / "seed-3" / "checkpoint.safetensors").exists()
    assert main(["run", "--resume", str(out), "--quiet"]) == 0
    assert outcome(out) == whole


class _StopAt(ep.Callback):
    """A callback that interrupts, as Ctrl-C would, at a chosen moment."""

    def __init__(self, what, when):
        self.what, self.when = what, when

    def _maybe(self, what, when):
        if (what, when) == (self.what, self.when):
            os.kill(os.getpid(), signal.SIGINT)

    def started(self, setup, learner, rounds_done):
        self._maybe("started", rounds_done)

    def planned(self, plan, index):
        self._maybe("planned", plan.round)

    def advanced(self, rounds_done, x):
        self._maybe("advanced", rounds_done)

    def recorded(self, record):
        self._maybe("recorded", record.round)

    def finished(self, summary):
        pass

    def evaluating(self, what):
        self._maybe("evaluating", 0)


@pytest.mark.parametrize(("what", "when"), [("planned", 0), ("planned", 50), ("advanced", 21), ("recorded", 21), ("recorded", 72), ("evaluating", 0)])  # fmt: skip
def test_an_interrupt_at_any_moment_loses_nothing(uninterrupted, tmp_path, what, when):
    _, whole = uninterrupted
    with pytest.raises(Interrupted):
        ep.simulate(EXPERIMENT, tmp_path, callbacks=_StopAt(what, when))
    ep.simulate(EXPERIMENT, tmp_path, resume=True)
    assert outcome(tmp_path) == whole


def test_stacked_models_go_on_with_the_same_bytes(tmp_path):
    stacked = msgspec.structs.replace(EXPERIMENT, rounds=30, runtime=ep.Runtime(strategy="stacked"))
    ep.simulate(stacked, tmp_path / "whole")
    with pytest.raises(Interrupted):
        ep.simulate(stacked, tmp_path / "parts", callbacks=_StopAt("planned", 23))
    ep.simulate(stacked, tmp_path / "parts", resume=True)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def test_without_a_directory_an_interrupt_says_that_nothing_was_saved():
    with pytest.raises(Interrupted, match="nothing was saved"):
        ep.simulate(EXPERIMENT, callbacks=_StopAt("recorded", 7))


def test_threads_and_checkpoints_have_no_influence(uninterrupted, tmp_path):
    file, whole = uninterrupted
    changed = ["--set", "runtime.threads=1", "--set", "checkpoint.rounds=1"]
    assert main(["run", str(file), "--out", str(tmp_path / "run"), "--quiet", *changed]) == 0
    assert outcome(tmp_path / "run") == whole


def test_a_directory_is_never_overwritten_silently(uninterrupted, tmp_path, capsys):
    file, _ = uninterrupted
    out = tmp_path / "run"
    quick = ["--quiet", "--set", "rounds=3"]
    assert main(["run", str(file), "--out", str(out), *quick]) == 0
    capsys.readouterr()
    before = outcome(out)
    for arguments, message in (
        (["run", str(file), "--out", str(out), *quick], "holds a finished run of this experiment"),
        (
            ["run", str(file), "--out", str(out), *quick, "--set", "nodes=12"],
            "holds a different experiment (in nodes)",
        ),
        (["run", "--resume", str(tmp_path)], "is not the directory of a run"),
        (["run", "--resume", str(out), "--set", "nodes=9"], "continues the existing experiment"),
        (["run", "--resume", str(out), "--set", "runtime.strategy=stacked"], "but not runtime.strategy"),
        (["run", "--resume", str(out), "--out", str(out)], "leave out --out"),
        (["run"], "give either an experiment FILE or --resume DIR"),
        (["run", str(file), "--resume", str(out)], "give either an experiment FILE or --resume DIR"),
    ):
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
    assert outcome(out) == before
    assert main(["run", "--resume", str(out), "--quiet"]) == 0  # finished: nothing to do
    assert outcome(out) == before


@pytest.fixture
def own_data(tmp_path, monkeypatch):
    """A current directory with data of one's own in it and an experiment that does not say where."""
    monkeypatch.chdir(tmp_path)
    x, y = np.random.default_rng(1).normal(size=(64, 3)), np.arange(64) % 2
    for place in (tmp_path / "data.npz", tmp_path / "moved here.npz"):
        np.savez(place, train_x=x, train_y=y, test_x=x, test_y=y)
    given = ep.Experiment(
        nodes=4, rounds=8, topology=ep.Ring(), data=ep.Arrays(path="nowhere.npz"), partition=ep.IID(), model=ep.Logistic(),
        eval=ep.Eval(every=1), checkpoint=ep.Checkpoint(rounds=2),
    )  # fmt: skip
    (tmp_path / "e.toml").write_text(to_toml(given))
    return tmp_path


def _how_to_resume(err):
    """The words of the command that an error line says goes on."""
    program, *words = shlex.split(err.strip().splitlines()[-1].partition("resume with: ")[2])
    assert program == "epidemic"
    return words


def _stopped(words, monkeypatch, after):
    """The line that a run ends with when it is interrupted after so many rounds."""
    with monkeypatch.context() as patch:
        patch.setattr(Display, "recorded", lambda _, record: _StopAt("round", after)._maybe("round", record.round))
        assert main([*words, "--quiet"]) == 130


@pytest.mark.parametrize("path", ["data.npz", "moved here.npz"])
def test_what_is_printed_goes_on_with_data_from_elsewhere(own_data, monkeypatch, capsys, path):
    _stopped(["run", "e.toml", "--set", f"data.path={path}", "--out", "my runs"], monkeypatch, 4)
    words = _how_to_resume(capsys.readouterr().err)
    assert words == ["run", "--resume", "my runs"]
    assert main([*words, "--quiet"]) == 0
    assert Path("my runs/seed-1/summary.json").is_file()


def test_data_that_was_moved_is_still_the_same_experiment(own_data, monkeypatch, capsys):
    _stopped(["run", "e.toml", "--set", "data.path=data.npz", "--out", "runs"], monkeypatch, 4)
    capsys.readouterr()
    Path("data.npz").unlink()
    assert main(["run", "e.toml", "--set", f"data.path={own_data / 'moved here.npz'}", "--out", "runs"]) == 2
    words = _how_to_resume(capsys.readouterr().err)
    assert words[:3] == ["run", "--resume", "runs"]
    _stopped(words, monkeypatch, 6)
    assert _how_to_resume(capsys.readouterr().err) == words
    assert main([*words, "--quiet"]) == 0
    assert Path("runs/seed-1/summary.json").is_file()


def test_an_interrupt_before_anything_is_written_says_the_whole_command(own_data, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(ep.Arrays, "read", lambda _: os.kill(os.getpid(), signal.SIGINT))
        assert main(["run", "e.toml", "--set", "data.path=data.npz", "--out", "runs"]) == 130
    words = _how_to_resume(capsys.readouterr().err)
    assert main([*words, "--quiet"]) == 0
    assert Path("runs/seed-1/summary.json").is_file()


def test_data_by_a_relative_path_is_found_from_another_directory(own_data, tmp_path, monkeypatch, capsys):
    assert main(["run", "e.toml", "--set", "data.path=data.npz", "--out", "runs", "--quiet"]) == 0
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    for rounds in (9, 10):  # the second time, what was remembered is remembered again
        assert main(["run", "--resume", "../runs", "--quiet", "--set", f"rounds={rounds}"]) == 0
    assert ep.load("../runs/experiment.toml").data.path == str(tmp_path / "data.npz")
    capsys.readouterr()
    assert main(["run", "--resume", "../runs", "--set", "rounds=11", "--set", "data.path=data.npz"]) == 2
    assert "data.path = 'data.npz' does not exist" in capsys.readouterr().err  # what is set now is meant from here


def test_an_interrupt_before_the_first_round_can_be_gone_on_from(uninterrupted, tmp_path, monkeypatch):
    from epidemic.runtime import setup

    _, whole = uninterrupted

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(setup, "choose", interrupted)
        with pytest.raises(
            Interrupted, match=r"interrupted before seed 3 began; resume with: simulate\(\.\.\., resume=True\)"
        ):
            ep.simulate(EXPERIMENT, tmp_path / "run")
    assert main(["run", "--resume", str(tmp_path / "run"), "--quiet"]) == 0
    assert outcome(tmp_path / "run") == whole


def test_a_damaged_summary_is_named(tmp_path):
    quick = ep.Experiment(
        **{f: getattr(EXPERIMENT, f) for f in ("nodes", "data", "partition", "model", "topology", "runtime")}, rounds=1
    )
    ep.simulate(quick, tmp_path)
    (tmp_path / "seed-1" / "summary.json").write_text("{")
    with pytest.raises(BadInput, match="to run this seed again"):
        ep.simulate(quick, tmp_path, resume=True)


def test_seeds_are_checked_before_the_first_one_starts(tmp_path):
    quick = {f: getattr(EXPERIMENT, f) for f in ("nodes", "data", "partition", "model", "topology", "runtime")}
    ep.simulate(ep.Experiment(**quick, rounds=1, seeds=[1]), tmp_path)
    with pytest.raises(BadInput, match="holds a finished run"):
        ep.simulate(ep.Experiment(**quick, rounds=1, seeds=[3, 1]), tmp_path)
    assert not (tmp_path / "seed-3").exists()
    ep.simulate(ep.Experiment(**quick, rounds=1, seeds=[3]), tmp_path)  # another seed of the same experiment joins
    assert ep.load(tmp_path / "experiment.toml").seeds == (1, 3)


def test_a_users_experiment_file_is_not_overwritten(tmp_path, capsys):
    file = tmp_path / "experiment.toml"
    file.write_text("# precious comments\n" + to_toml(EXPERIMENT))
    assert main(["run", str(file), "--out", str(tmp_path), "--quiet"]) == 2
    assert "has an experiment.toml that is not of a run" in capsys.readouterr().err
    assert file.read_text().startswith("# precious comments")


def test_what_a_killed_process_left_half_written_does_not_matter(uninterrupted, tmp_path):
    _, whole = uninterrupted
    (tmp_path / "seed-3").mkdir()
    (tmp_path / "seed-3" / "run.json.part").write_text("{")
    ep.simulate(EXPERIMENT, tmp_path)
    assert outcome(tmp_path) == whole


def test_a_full_disk_while_appending_is_one_line(tmp_path, monkeypatch):
    import errno

    class Full:
        def __init__(self, file):
            self._file = file

        def write(self, content):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            self._file.close()
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name):
            return getattr(self._file, name)

    original = RunDirectory._appending
    monkeypatch.setattr(RunDirectory, "_appending", lambda self, name, size: Full(original(self, name, size)))
    with pytest.raises(RunFailed, match="No space left on device"):
        ep.simulate(EXPERIMENT, tmp_path)


def test_foreign_files_and_locked_directories_are_left_alone(tmp_path, capsys):
    quick = EXPERIMENT.__class__(
        **{f: getattr(EXPERIMENT, f) for f in ("nodes", "data", "partition", "model", "topology", "runtime")}, rounds=1
    )
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-1" / "thesis.tex").write_text("precious")
    with pytest.raises(BadInput, match="has files that are not of a run"):
        ep.simulate(quick, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a file; choose a directory"):
        ep.simulate(quick, tmp_path / "file")
    holder = RunDirectory(tmp_path / "busy", quick, 1)
    holder.open()
    with pytest.raises(BadInput, match="in use by another process"):
        ep.simulate(quick, tmp_path / "busy")
    holder.close()


def test_a_damaged_checkpoint_is_named(tmp_path):
    with pytest.raises(Interrupted):
        ep.simulate(EXPERIMENT, tmp_path, callbacks=_StopAt("advanced", 10))
    path = tmp_path / "seed-3" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BadInput, match="is damaged"):
        ep.simulate(EXPERIMENT, tmp_path, resume=True)


@contextmanager
def files_of_at_most(size):
    """As if the disk were full once a file has so many bytes."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_the_run_and_keeps_the_last_checkpoint(uninterrupted, tmp_path):
    _, whole = uninterrupted
    with pytest.raises(Interrupted):
        ep.simulate(EXPERIMENT, tmp_path, callbacks=_StopAt("advanced", 10))
    checkpoint = tmp_path / "seed-3" / "checkpoint.safetensors"
    kept = checkpoint.read_bytes()
    with (
        files_of_at_most(len(kept) - 1000),
        pytest.raises(RunFailed, match="File too large; the last checkpoint is kept"),
    ):
        ep.simulate(EXPERIMENT, tmp_path, resume=True)
    assert checkpoint.read_bytes() == kept
    assert not list((tmp_path / "seed-3").glob("*.part"))
    ep.simulate(EXPERIMENT, tmp_path, resume=True)
    assert outcome(tmp_path) == whole


def test_an_unwritable_directory_is_refused(tmp_path, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(BadInput, match="cannot be written: Permission denied"):
        ep.simulate(EXPERIMENT, tmp_path / "run")


def test_exported_models_load_into_plain_pytorch(tmp_path, capsys):
    run = ep.simulate(
        ep.Experiment(nodes=4, rounds=3, topology=ep.Ring(), data=ep.Digits(), model=ep.MLP((8,))), tmp_path / "run"
    )
    import safetensors.torch

    for arguments, expected in ((["--node", "3"], run.models[3]), (["--mean"], run.models.mean)):
        file = tmp_path / f"{arguments[0]}.safetensors"
        assert main(["export", str(tmp_path / "run"), *arguments, "-o", str(file)]) == 0
        module = ep.MLP((8,)).build((1, 8, 8), 10)
        module.load_state_dict(safetensors.torch.load_file(file))
        for name, tensor in module.state_dict().items():
            torch.testing.assert_close(tensor, expected[name])
    capsys.readouterr()
    for arguments, message in (
        (["--node", "4", "-o", "x.safetensors"], "--node 4 does not exist; the nodes are 0 to 3"),
        (["-o", "x.safetensors"], "give either --node I or --mean"),
        (["--mean", "-o", "x.pt"], "must end in .safetensors"),
        (["--mean", "-o", str(file)], "exists already"),
    ):
        assert main(["export", str(tmp_path / "run"), *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--mean", "-o", "x.safetensors"]) == 2
    assert "has no models.safetensors" in capsys.readouterr().err
    assert set(export_model(tmp_path / "run" / "seed-1", None)) == set(run.models.mean)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_ignores_is_heeded_before_the_next_round(own_data):
    """What is raised while an object is cleared away gets lost."""

    class Clumsy:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):  # the handler runs here, where nobody hears of it
                pass

    class Once(ep.Callback):
        def recorded(self, record):
            if record.round == 1:
                Clumsy()

    experiment = ep.load("e.toml", ["data.path=data.npz", "rounds=50", "eval.every=1"])
    with pytest.raises(ep.Interrupted, match="after round 1 of 50"):
        ep.simulate(experiment, "runs", callbacks=Once())
