"""Metrics, losses and callbacks of a user's own in deployed nodes."""

import json
import sys

import msgspec

import epidemic as ep
from conftest import experiment
from epidemic.clock import CloseAdaptive
from epidemic.deploy.gather import gather
from epidemic.experiment import to_toml

MODULE = """
import epidemic as ep

def hinge(outputs, targets):
    right = outputs.gather(-1, targets[:, None])
    return (1 - right + outputs).clamp(min=0).mean()

def top3(outputs, targets):
    return (outputs.topk(3).indices == targets[:, None]).any(1).float()

class Log(ep.Callback):
    def __init__(self, path, fails=-1):
        self.path, self.fails = path, fails

    def write(self, what):
        with open(self.path, "a") as file:
            file.write(what + "\\n")

    def started(self, setup, learner, rounds_done):
        self.write(f"started {setup.hosted.tolist()}")

    def recorded(self, record):
        if record.round == self.fails:
            raise ValueError("disk\\nfull")
        self.write(f"recorded {record.round}")

    def evaluating(self, what):
        self.write(f"evaluating {what}")

    def finished(self, summary):
        self.write(f"finished {summary.rounds}")
"""


def test_they_are_used_and_told_and_one_that_fails_ends_its_own_node_alone(deploy, tmp_path, monkeypatch):
    use = {"use": "my_deployed:Log", "options": {"path": str(tmp_path / "log")}}
    what = experiment(
        nodes=2,
        rounds=4,
        topology=ep.ELLocal(1),
        data=ep.Digits(),
        model=ep.Logistic(),
        eval=ep.Eval(every=1, samples=100),
        loss="my_deployed:hinge",
        metrics={"top3": "my_deployed:top3", "f1": "macro-f1"},
        callbacks=[use],
        network=ep.Network(close=CloseAdaptive(deadline=5.0)),
    )
    there = deploy(what)
    for folder in there.folders:
        (folder / "my_deployed.py").write_text(MODULE)
    failing = [{**use, "options": {"path": str(tmp_path / "other"), "fails": 2}}]
    (there.folders[1] / "experiment.toml").write_text(to_toml(msgspec.structs.replace(what, callbacks=failing)))
    there.start()
    for child in there.cluster.children:
        child.process.join(120)
    assert [child.process.exitcode for child in there.cluster.children] == [0, 1]
    told = [*(f"recorded {i}" for i in range(5)), "evaluating the full test set", "finished 4"]
    assert (tmp_path / "log").read_text().splitlines() == ["started [0]", *told]
    assert (tmp_path / "other").read_text().splitlines() == ["started [1]", "recorded 0", "recorded 1"]
    assert sum("callback Log failed in recorded(): ValueError: disk full" in line for line in there.log(1)) == 1
    assert json.loads((there.run(1) / "state.json").read_text())["state"] == "failed"
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        found = gather(there.folders, tmp_path / "gathered").final_metrics
    finally:
        sys.modules.pop("my_deployed", None)
    assert list(found) == ["top3", "f1"]
    assert found["top3"].mean == there.summary(0)["final_metrics"]["top3"]["mean"] > found["f1"].mean > 0
    records = [json.loads(line) for line in (tmp_path / "gathered/seed-1/records.jsonl").read_text().splitlines()]
    assert records[-1]["metrics"]["f1"]["mean"] > 0
