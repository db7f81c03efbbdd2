"""A sweep of which each run is shared among ranks: the same bytes, what fails is named, and an interrupt saves."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from epidemic.cli import main
from epidemic.study.slurm.status import status_of

EXPERIMENT = """
name = "tiny"
nodes = 5
rounds = 60
callbacks = ["slow:Slow"]
data = {kind = "digits"}
model = {kind = "logistic"}
topology = {kind = "el-local", s = 2}
algorithm = {local_steps = 1, batch_size = 4}
eval = {every = 2, samples = 50}
"""
SLOW = """
import time
from pathlib import Path
import epidemic as ep

class Slow(ep.Callback):
    def recorded(self, record):
        time.sleep(0.3 if (Path(__file__).parent / "held").exists() else 0)
"""
SWEEP = ("sweep", "tiny.toml", "--grid", "algorithm.lr=0.1,1e38")
GOOD, BAD = "lr=0.1", "lr=1e38"
RESULTS = ("records.jsonl", "summary.json", "nodes.json", "models.safetensors")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(EXPERIMENT)
    Path("slow.py").write_text(SLOW)
    return tmp_path


def test_an_interrupted_sweep_on_ranks_goes_on_to_the_same_bytes_and_names_what_fails(place, capsys):
    Path("held").touch()
    command = [sys.executable, "-m", "epidemic", *SWEEP, "--out", "on", "--ranks", "2"]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stderr=subprocess.PIPE, text=True
    )
    records = Path("on", GOOD, "seed-1", "records.jsonl")
    end = time.monotonic() + 120
    while not records.is_file() or records.read_bytes().count(b"\n") < 2:
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    words = "epidemic sweep tiny.toml --grid algorithm.lr=0.1,1e38 --ranks 2 --out on"
    assert said.splitlines()[-1] == f"error: interrupted in {GOOD}, after 0 of 2 runs; resume with: {words}"
    assert {one.run: one.state for one in status_of(Path("on"))}[GOOD] == "stopped"
    before = records.read_bytes()

    Path("held").unlink()
    assert main(words.split()[1:]) == 1
    said = capsys.readouterr()
    assert f"1 of 2 runs failed; the first, {BAD}: " in said.err
    assert "lower algorithm.lr" in said.err
    assert GOOD in said.out
    assert [one.state for one in status_of(Path("on"))] == ["done", "failed"]
    assert records.read_bytes().startswith(before)  # it went on

    assert main([*SWEEP, "--out", "alone", "--quiet"]) == 1
    for file in RESULTS:
        assert Path("on", GOOD, "seed-1", file).read_bytes() == Path("alone", GOOD, "seed-1", file).read_bytes()
