"""Overwriting: what is there is replaced whole, comes back if the new one cannot begin, and nothing else is touched."""

import json
import os
import signal

import pytest

import epidemic as ep
from epidemic.cli.app import main
from epidemic.runtime.replace import ASIDE, MOVING, replacing


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(
        'nodes = 4\nrounds = 2\ndata = {kind = "digits"}\nmodel = {kind = "logistic"}\ntopology = {kind = "el-local", s = 1}\n'
    )
    return path


def contents(root):
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def refused(capsys, *words):
    assert main(list(map(str, words))) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_a_run_is_replaced_only_when_asked_to(capsys, file, tmp_path):
    out = tmp_path / "run"
    assert main(["run", str(file), "--out", str(out), "--quiet", "--seeds", "2"]) == 0
    (out / "notes.txt").write_text("mine")
    before = contents(out)
    refused(capsys, "run", file, "--out", out, "--set", "rounds=3")
    assert contents(out) == before
    assert main(["run", str(file), "--out", str(out), "--overwrite", "--set", "rounds=3", "--quiet"]) == 0
    assert json.loads((out / "seed-1" / "summary.json").read_text())["rounds"] == 3
    assert not (out / "seed-2").exists()
    assert (out / "notes.txt").read_text() == "mine"
    assert not (out / ASIDE).exists()
    assert "seeds = [1]" in (out / "experiment.toml").read_text()
    again = tmp_path / "again"
    assert main(["run", str(file), "--out", str(again), "--set", "rounds=3", "--quiet"]) == 0
    assert (again / "seed-1" / "records.jsonl").read_bytes() == (out / "seed-1" / "records.jsonl").read_bytes()


@pytest.mark.parametrize("setting", ["topology.s=9", 'data={kind="mnist", path="nowhere"}', "runtime.device=cuda:77"])
def test_what_cannot_begin_replaces_nothing(capsys, file, tmp_path, setting):
    out = tmp_path / "run"
    assert main(["run", str(file), "--out", str(out), "--quiet"]) == 0
    before = contents(out)
    refused(capsys, "run", file, "--out", out, "--overwrite", "--set", setting)
    assert contents(out) == before


def test_an_interrupt_before_it_begins_replaces_nothing(file, tmp_path, monkeypatch):
    out = tmp_path / "run"
    assert main(["run", str(file), "--out", str(out), "--quiet"]) == 0
    before = contents(out)
    monkeypatch.setattr(ep.Digits, "load", lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert main(["run", str(file), "--out", str(out), "--overwrite", "--quiet"]) == 130
    assert contents(out) == before


@pytest.mark.parametrize("moment", range(7))
def test_a_process_that_was_killed_loses_neither_run(file, tmp_path, monkeypatch, moment):
    """After any number of renamings: the next one that overwrites finds the earlier run whole."""
    out = tmp_path / "run"
    assert main(["run", str(file), "--out", str(out), "--quiet", "--seeds", "2"]) == 0
    before = contents(out)
    path, renamed = type(out), []
    rename = path.rename

    def counted(self, target):
        if len(renamed) == moment:
            raise SystemExit  # not an error that anybody mends
        renamed.append(target)
        return rename(self, target)

    def overwrite():
        with replacing([out]):
            assert (out / ASIDE).is_dir()
            raise LookupError

    with monkeypatch.context() as patch:
        patch.setattr(path, "rename", counted)
        with pytest.raises((SystemExit, LookupError)):
            overwrite()
    with pytest.raises(LookupError):
        overwrite()
    assert contents(out) == before
    assert not (out / MOVING).exists()


def test_what_is_not_of_a_run_is_not_overwritten(capsys, file, tmp_path):
    out = tmp_path / "run"
    assert main(["run", str(file), "--out", str(out), "--quiet"]) == 0
    (out / "seed-1" / "analysis.ipynb").write_text("hours of work")
    before = contents(out)
    assert "analysis.ipynb" in refused(capsys, "run", file, "--out", out, "--overwrite")
    assert contents(out) == before
    assert "choose one" in refused(capsys, "run", "--resume", out, "--overwrite")


def test_a_run_in_use_is_not_overwritten(capsys, file, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    out = tmp_path / "run"
    assert main(["run", str(file), "--out", str(out), "--quiet"]) == 0
    with (out / "seed-1" / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "in use" in refused(capsys, "run", file, "--out", out, "--overwrite")


def methods(tmp_path, *kinds):
    path = tmp_path / "methods.toml"
    path.write_text(
        'nodes = 4\nrounds = 2\ndata = {kind = "digits"}\nmodel = {kind = "logistic"}\n'
        + "".join(f'[[methods]]\nname = "{kind}"\ntopology = {{kind = "{kind}"}}\n' for kind in kinds)
    )
    return path


def test_a_comparison_is_replaced_with_all_its_methods_and_nothing_else(capsys, file, tmp_path):
    out = tmp_path / "methods"
    assert main(["compare", str(methods(tmp_path, "ring", "complete")), "--out", str(out), "--quiet"]) == 0
    assert main(["run", str(file), "--out", str(out / "other"), "--quiet"]) == 0
    kept = contents(out / "other")
    new = methods(tmp_path, "ring", "none")
    assert "--resume" in refused(capsys, "compare", new, "--out", out)
    assert main(["compare", str(new), "--out", str(out), "--quiet", "--overwrite"]) == 0
    assert sorted(path.name for path in out.iterdir() if any(path.glob("seed-*"))) == ["none", "other", "ring"]
    assert contents(out / "other") == kept
    assert not (out / "complete").exists()
    assert "choose one" in refused(capsys, "compare", new, "--out", out, "--overwrite", "--resume")


def test_overwriting_in_python(tmp_path):
    experiment = ep.Experiment(nodes=4, rounds=1, data=ep.Digits(), model=ep.Logistic(), topology=ep.Ring())
    out = tmp_path / "run"
    ep.simulate(experiment, out)
    with pytest.raises(ep.BadInput, match="finished run"):
        ep.simulate(experiment, out)
    assert ep.simulate(experiment, out, overwrite=True).summary.rounds == (1,)
    with pytest.raises(ep.BadInput, match="choose one"):
        ep.simulate(experiment, out, overwrite=True, resume=True)
    with pytest.raises(ep.BadInput, match="needs a directory"):
        ep.simulate(experiment, overwrite=True)
    ep.compare({"a": experiment}, tmp_path / "two")
    assert len(ep.compare({"b": experiment}, tmp_path / "two", overwrite=True)) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["init", "made.toml"],
        ["devices", "make", "made.jsonl", "--nodes", "3"],
        ["devices", "convert", "capacity.json", "made.jsonl", "--from", "fedscale-capacity"],
    ],
)
def test_files_are_replaced_only_when_asked_to(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "capacity.json").write_text('{"1": {"computation": 20.0, "communication": 5000.0}}')
    made = tmp_path / next(word for word in words if word.startswith("made"))
    made.write_text("mine")
    assert "--overwrite" in refused(capsys, *words)
    assert made.read_text() == "mine"
    assert main([*words, "--overwrite"]) == 0
    assert made.read_text() != "mine"
    assert {path.name for path in tmp_path.iterdir()} == {made.name, "capacity.json"}
    made.unlink()
    made.mkdir()
    assert "is a directory" in refused(capsys, *words, "--overwrite")


# -- JSON -------------------------------------------------------------------------------------------------------------


def found(capsys, *words):
    assert main(list(map(str, words))) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert not err
    return json.loads(out)


def test_data_as_json(capsys, file, tmp_path):
    kinds = {one["kind"]: one["here"] for one in found(capsys, "data", "list", "--json")["kinds"]}
    assert kinds["digits"] == "built in"
    checked = found(capsys, "data", "check", "digits", "--json")
    assert (checked["train"], checked["test"], checked["shape"]) == (1437, 360, [1, 8, 8])
    assert checked["classes"] == [str(k) for k in range(10)]
    table = tmp_path / "table.csv"
    table.write_text("a,b\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    checked = found(capsys, "data", "check", "table", "--path", table, "--set", "target=b", "--json")
    assert checked["scale"]
    shown = found(capsys, "data", "show", file, "--json", "--plot", tmp_path / "classes.png")
    assert sum(map(sum, shown["counts"])) == 1437
    assert len(shown["counts"]) == shown["nodes"] == 4
    assert (tmp_path / "classes.png").is_file()


def test_export_as_json(capsys, file, tmp_path):
    assert main(["run", str(file), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    capsys.readouterr()
    model = tmp_path / "model.safetensors"
    said = found(capsys, "export", tmp_path / "run", "--node", "2", "-o", model, "--json")
    assert said["file"] == str(model)
    assert (said["node"], said["round"]) == (2, 2)
    assert sum(len(shape) for shape in said["tensors"].values()) == 3  # a weight and a bias
    assert "--overwrite" in refused(capsys, "export", tmp_path / "run", "--mean", "-o", model)
    assert found(capsys, "export", tmp_path / "run", "--mean", "-o", model, "--json", "--overwrite")["node"] is None
