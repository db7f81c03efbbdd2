"""Code that an experiment file names is executed only where that is said, and never with --no-code."""

import os
import subprocess
import sys

import pytest

from epidemic.cli import main
from epidemic.core.config import NO_CODE

CODE = """
from pathlib import Path
import torch
Path(__file__).with_name("executed").touch()


def make(**options):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


loss = torch.nn.functional.cross_entropy
"""

FILE = """
nodes = 8
rounds = 1
data = {kind = "digits"}
runtime = {strategy = "per-node"}
"""

NAMED = {
    "model.factory": '[model]\nkind = "python"\nfactory = "sent_by_somebody:make"',
    "data.function": '[data]\nkind = "python"\nfunction = "sent_by_somebody:make"',
    "topology.factory": '[topology]\nkind = "python"\nfactory = "sent_by_somebody:make"',
    "algorithm.factory": '[algorithm]\nkind = "python"\nfactory = "sent_by_somebody:make"',
    "loss": 'loss = "sent_by_somebody:loss"',
    "metrics.f": 'metrics = {f = "sent_by_somebody:loss"}',
    "callbacks[0]": 'callbacks = ["sent_by_somebody:make"]',
}


@pytest.fixture
def sent(tmp_path):
    """What somebody sent: an experiment file, and code beside it."""

    def write(named):
        text = NAMED[named]
        head = FILE.replace('data = {kind = "digits"}\n', "") if named.startswith("data") else FILE
        (tmp_path / "sent.toml").write_text(f"{text}\n{head}" if not text.startswith("[") else f"{head}\n{text}\n")
        (tmp_path / "sent_by_somebody.py").write_text(CODE)
        return tmp_path / "sent.toml"

    return write


def refused(capsys, arguments):
    assert main(list(map(str, arguments))) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("named", NAMED)
def test_no_code_refuses_whatever_names_it_in_one_line(sent, capsys, named, tmp_path):
    path = list(sys.path)
    err = refused(capsys, ["run", sent(named), "--no-code", "--out", tmp_path / "out"])
    assert named.partition(".")[0] in err
    assert "'sent_by_somebody:" in err
    assert "--no-code" in err
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "out").exists()
    assert sys.path == path  # nothing beside the file is found by anybody else, either
    assert "sent_by_somebody" not in sys.modules


@pytest.mark.parametrize(
    "command",
    [
        ["plan"], ["sweep", "--grid", "topology.s=1,2", "--out", "OUT"], ["data", "show"], ["timeline", "-o", "OUT.svg"],
        ["cluster", "init", "--hosts", "127.0.0.1:7001", "--out", "OUT"], ["cluster", "up", "--out", "OUT"],
    ],
)  # fmt: skip
def test_every_command_that_reads_a_file_can_be_told_so(sent, capsys, tmp_path, command):
    words = [word.replace("OUT", str(tmp_path / "out")) for word in command]
    err = refused(capsys, [*words, sent("model.factory"), "--no-code"])
    assert "model.factory = 'sent_by_somebody:make' names code to be executed, which --no-code" in err
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "out").exists()


def test_the_methods_of_a_comparison_are_looked_at_too(sent, capsys, tmp_path):
    file = sent("loss")
    text = file.read_text().replace('loss = "sent_by_somebody:loss"\n', "")
    file.write_text(text + '\n[[methods]]\nname = "a"\nmodel = {kind = "python", factory = "sent_by_somebody:make"}\n')
    assert "names code" in refused(capsys, ["compare", file, "--no-code", "--out", tmp_path / "out"])
    assert not (tmp_path / "executed").exists()


def test_the_environment_says_the_same_and_a_command_leaves_it_as_it_was(sent, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(NO_CODE, "1")
    assert NO_CODE in refused(capsys, ["plan", sent("loss")])
    monkeypatch.delenv(NO_CODE)
    refused(capsys, ["plan", sent("loss"), "--no-code"])
    assert NO_CODE not in os.environ


def test_a_file_without_code_is_run(sent, capsys, tmp_path):
    file = sent("loss")
    file.write_text(FILE + 'model = {kind = "logistic"}\n')
    assert main(["run", str(file), "--no-code", "--out", str(tmp_path / "out"), "--quiet"]) == 0


def test_the_first_time_that_a_module_is_executed_is_said_on_standard_error(sent, tmp_path):
    file = sent("model.factory")
    called = [sys.executable, "-m", "epidemic", "run", str(file), "--out", str(tmp_path / "out"), "--json"]
    done = subprocess.run(called, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "executing" in line]
    source = tmp_path / "sent_by_somebody.py"
    assert told == [f"executing the code of {source}, named by model.factory = 'sent_by_somebody:make'"]
    assert "executing" not in done.stdout
    assert (tmp_path / "executed").exists()


def test_what_is_installed_is_not_said(sent, tmp_path):
    file = sent("loss")
    file.write_text('loss = "torch.nn.functional:cross_entropy"\n' + FILE)
    called = [sys.executable, "-m", "epidemic", "run", str(file), "--out", str(tmp_path / "out"), "--json"]
    done = subprocess.run(called, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "executing" not in done.stderr
