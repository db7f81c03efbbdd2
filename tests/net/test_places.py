"""A place in the network: it ends with its certificate, and one process has it."""

import datetime as dt
import json
import shutil

import pytest
from safetensors import safe_open

import epidemic as ep
from conftest import experiment
from epidemic.clock import CloseAdaptive
from epidemic.deploy import keys
from epidemic.deploy.addresses import free_addresses, read_addresses
from epidemic.deploy.folders import take_over
from epidemic.deploy.keys import Authority
from epidemic.deploy.processes import LocalCluster

WHAT = experiment(
    nodes=3,
    rounds=100_000,
    topology=ep.ELLocal(2),
    model=ep.Logistic(),
    algorithm=ep.LocalSGD(local_steps=1),
    eval=ep.Eval(every=1000, samples=100),
    network=ep.Network(close=CloseAdaptive(deadline=5.0)),
    checkpoint=ep.Checkpoint(seconds=0),
)


def saved_round(there, node_id):
    """The round of a node's checkpoint."""
    with safe_open(there.run(node_id) / "checkpoint.safetensors", "pt") as file:
        return json.loads(file.metadata()["progress"])["round"]


def test_a_certificate_that_ends_in_mid_run_ends_its_node_saved_and_renewed_it_goes_on(deploy, monkeypatch):
    there = deploy(WHAT)
    authority, now = Authority.load(there.root), keys._now()
    monkeypatch.setattr(keys, "_now", lambda: now - dt.timedelta(days=1) + dt.timedelta(seconds=25))
    there.folders[2] = authority.issue("node-2", ["127.0.0.1"], days=1)  # which is over in 25 seconds
    monkeypatch.undo()
    take_over(there.root, "node-2", there.folders[2])
    there.start()
    reached = max(s.round for s in there.until_round(5, range(3)).values())
    child = there.cluster.children[2]
    child.process.join(90)
    assert child.process.exitcode == 2
    assert "the certificate here (node-2.1) has expired" in there.log(2)[-1]
    assert sum("expired" in line for line in there.log(2)) == 1
    before = saved_round(there, 2)
    assert before >= reached - 3
    assert json.loads((there.run(2) / "state.json").read_text())["state"] == "failed"
    there.until(lambda found: set(found) == {0, 1} and all(s.alive == 2 for s in found.values()))
    renewed = authority.issue("node-2", ["127.0.0.1"])
    for name in ("node.pem", "node.key"):
        shutil.copy(renewed / name, there.folders[2] / name)
    there.cluster.restart(2)
    there.until(lambda found: len(found) == 3 and all(s.alive == 3 for s in found.values()))
    assert any(f"resuming after round {before}" in line for line in there.log(2))
    assert all(child.running for child in there.cluster.children)


@pytest.fixture
def second():
    """Starts a further process, and ends it."""
    made = []

    def start(folder):
        made.append(LocalCluster([folder]))
        return made[-1]

    yield start
    for cluster in made:
        cluster.stop(5)


def test_a_folder_is_used_by_one_process_only(deploy, second):
    there = deploy(WHAT).start()
    there.until_round(5, range(3))
    again = second(there.folders[1])
    assert again.wait(60)
    assert again.children[0].process.exitcode == 2
    assert "is in use by another process" in again.problems()[0]
    there.until_round(there.statuses()[1].round + 20, range(3))
    assert all(child.running for child in there.cluster.children)


def test_a_copy_of_a_folder_elsewhere_is_refused_while_the_first_goes_on(deploy, second, tmp_path):
    there = deploy(WHAT).start()
    there.until_round(5, range(3))
    copy = tmp_path / "copy"
    shutil.copytree(there.folders[1], copy, ignore=shutil.ignore_patterns("run", "node.log"))
    toml = copy / "node.toml"
    toml.write_text(toml.read_text().replace(read_addresses(toml).listen, free_addresses(1)[0]))
    before = there.statuses()
    again = second(copy)
    assert again.wait(90)
    assert again.children[0].process.exitcode == 2
    assert "another process runs as node 1; stop it first" in again.problems()[0]
    after = there.until(lambda found: len(found) == 3 and all(s.alive == 3 for s in found.values()))
    assert all(after[i].round > before[i].round for i in range(3))
    there.until_round(after[1].round + 20, range(3))
    assert all(child.running for child in there.cluster.children)
