"""A task by submitit's local executor: pickled, started in another process, told to save as before a limit, started again."""

import json
import os
import signal
from pathlib import Path

import pytest
import submitit
from cluster import TO_LEARN, processes, until

from epidemic.cli import main
from epidemic.study.commands import resume_command
from epidemic.study.slurm.task import SlurmTask

EXPERIMENT = """
name = "tiny"
nodes = 4
rounds = 20
callbacks = ["slow:Slow"]
data = {kind = "digits"}
model = {kind = "logistic"}
topology = {kind = "el-local", s = 2}
algorithm = {local_steps = 1, batch_size = 4}
eval = {every = 1, samples = 50}
checkpoint = {rounds = 1}
"""
SLOW = """
import time
import epidemic as ep

class Slow(ep.Callback):
    def recorded(self, record):  # of all nodes, on whatever rank they are
        time.sleep(0.1)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_submitit_interrupts_goes_on_and_ends_with_the_same_bytes(tmp_path, monkeypatch, ranks):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2] / "src"))
    Path("slow.py").write_text(SLOW)
    Path("slow.toml").write_text(EXPERIMENT)
    assert main(["run", "slow.toml", "--out", "whole", "--set", "callbacks=[]", "--quiet"]) == 0
    assert main(["run", "slow.toml", "--out", "part", "--set", "callbacks=[]", "--set", "rounds=1", "--quiet"]) == 0
    command = resume_command(tmp_path / "part", ranks, ["rounds=20", 'callbacks=["slow:Slow"]'])
    executor = submitit.LocalExecutor(tmp_path / "folder")
    executor.update_parameters(timeout_min=5)
    job = executor.submit(SlurmTask(command, str(tmp_path / "part")))
    state = tmp_path / "part" / "seed-1" / "state.json"
    until("it runs", lambda: b"running" in state.read_bytes(), patience=TO_LEARN)
    [task] = processes("submitit.core._submit", str(tmp_path / "folder"))
    os.kill(task, signal.SIGUSR2)
    until("it is done", job.paths.result_pickle.exists, patience=TO_LEARN)  # submitit itself looks every half minute
    job.results()
    requeued = submitit.core.utils.DelayedSubmission.load(job.paths.submitted_pickle)
    assert requeued.function.before.startswith("130: error: interrupted at seed 1, after round")
    told = json.loads(Path("part/seed-1/run.json").read_text()).get("ranks", {"count": 1})
    assert told["count"] == ranks
    for file in ("records.jsonl", "models.safetensors", "nodes.json"):
        assert Path("part/seed-1", file).read_bytes() == Path("whole/seed-1", file).read_bytes()
