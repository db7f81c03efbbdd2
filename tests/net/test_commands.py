"""The commands, as a user runs them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import epidemic as ep
from conftest import experiment
from epidemic.cli.app import main
from epidemic.clock import CloseBarrier
from epidemic.deploy.addresses import free_addresses, read_addresses
from epidemic.deploy.folders import make_cluster
from epidemic.experiment import to_toml

EPIDEMIC = [sys.executable, "-m", "epidemic"]
SMALL = {"nodes": 4, "topology": ep.ELLocal(2), "eval": ep.Eval(every=10, samples=200)}


STARTED = []


@pytest.fixture(autouse=True)
def nothing_goes_on():
    """What a test that fails has started would learn for hours, and take the processors from the tests that come after it."""
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()  # the nodes of a cluster end with who has started them
        process.wait()
        process.stdout.close()
        process.stderr.close()


def start(*words, **options):
    environment = {k: v for k, v in os.environ.items() if k != "EPIDEMIC_DEBUG"}
    process = subprocess.Popen(
        [*EPIDEMIC, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | options.pop("env", {}),
        **options,
    )
    STARTED.append(process)
    return process


def run(*words, timeout=120, **options):
    process = start(*words, **options)
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def one_line(err):
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("error: ")
    return err


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(to_toml(experiment(**SMALL)))
    return path


def until(condition, patience=60):
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


def until_under_way(out):
    """A node has done twenty rounds; on a busy machine it takes a while until all have imported PyTorch and found each other."""
    until(lambda: any("round 20:" in p.read_text() for p in out.glob("node-*/node.log")), patience=240)


def test_cluster_up_runs_gathers_and_reports(file, tmp_path, capsys):
    out = tmp_path / "up"
    code, said, err = run("cluster", "up", file, "--nodes", 5, "--out", out, "--set", "rounds=20", "--json")
    assert code == 0, err
    found = json.loads(said)
    assert found["summary"]["rounds"] == 20
    assert found["failed"] == {}
    assert len(json.loads((out / "together/seed-1/nodes.json").read_text())) == 5
    for words in (
        ("report", out / "together", out / "node-0/run", "-o", tmp_path / "page.html"),
        ("report", out / "node-1/run", "-o", tmp_path / "alone.html"),  # nothing is known of disagreement
        ("watch", "--once", out / "together"),
        ("export", out / "together", "--mean", "-o", tmp_path / "m.safetensors"),
    ):
        assert main([str(word) for word in words]) == 0
    assert main(["cluster", "up", str(file), "--out", str(out)]) == 2
    assert "exists already" in one_line(capsys.readouterr().err)


def test_cluster_up_is_stopped_cleanly_and_goes_on(file, tmp_path):
    out = tmp_path / "up"
    process = start("cluster", "up", file, "--out", out, "--set", "rounds=400", "--set", "algorithm.local_steps=30")
    until_under_way(out)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"resume with: epidemic cluster up --resume {out}" in err
    assert all((out / f"node-{i}/run/seed-1/checkpoint.safetensors").exists() for i in range(4))
    code, said, err = run("cluster", "up", "--resume", out)
    assert code == 0, err
    assert "4 nodes, 400 rounds" in said
    records = (out / "node-0/run/seed-1/records.jsonl").read_text().splitlines()
    rounds = [json.loads(line)["round"] for line in records]
    assert rounds[0] == 0
    assert rounds[-1] == 400
    assert rounds == sorted(set(rounds))


def test_when_the_starter_is_killed_its_nodes_save_and_end(file, tmp_path):
    out = tmp_path / "up"
    process = start("cluster", "up", file, "--out", out, "--set", "rounds=100000")
    until_under_way(out)
    process.kill()
    process.communicate()
    until(lambda: all("interrupted at seed 1, after round" in p.read_text() for p in out.glob("node-*/node.log")))


def test_a_node_that_dies_is_reported_and_the_others_finish(file, tmp_path):
    out = tmp_path / "up"
    process = start("cluster", "up", file, "--out", out, "--set", "rounds=300", "--set", "network.close.deadline=5")
    until_under_way(out)
    running = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]
    children = [pid for pid in running if _is_node(pid, process.pid)]
    os.kill(children[0], signal.SIGKILL)
    said, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "killed by signal 9" in err
    assert "3 nodes, 300 rounds" in said


def _is_node(pid, starter):
    """Whether a process is a grandchild of the starter: a node forked by its fork server."""

    def parent(p):
        return int(Path(f"/proc/{p}/stat").read_text().rpartition(")")[2].split()[1])

    try:
        return parent(parent(pid)) == starter
    except (OSError, ValueError):
        return False


def test_status_asks_the_running_nodes(file, tmp_path, capsys):
    out = tmp_path / "up"
    process = start("cluster", "up", file, "--out", out, "--set", "rounds=100000")
    until_under_way(out)
    assert main(["cluster", "status", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [s["node_id"] for s in found] == [0, 1, 2, 3]
    assert all(s["alive"] == 4 and s["round"] >= 20 for s in found)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 130
    capsys.readouterr()
    assert main(["cluster", "status", str(out), "--patience", "1"]) == 2
    assert "no node" in one_line(capsys.readouterr().err)


def test_single_nodes_by_command_with_private_data(tmp_path):
    """Each node has data of its own, which nobody else ever sees."""
    import numpy as np

    rng = np.random.default_rng(0)
    what = experiment(
        nodes=3,
        rounds=40,
        topology=ep.ELLocal(2),
        data=ep.Arrays(path="nowhere"),
        model=ep.Logistic(),
        eval=ep.Eval(every=20, samples="all"),
        network=ep.Network(data="own"),
    )
    root = tmp_path / "cluster"
    folders = make_cluster(what, free_addresses(3), root)
    processes = []
    for i, folder in enumerate(folders):
        labels = rng.integers(0, 3, 150)
        x = np.eye(3)[labels] @ np.eye(3, 5) * 3 + rng.normal(size=(150, 5))
        keep = labels[:100] != i  # one class is missing at each node
        np.savez(
            tmp_path / f"private-{i}.npz",
            train_x=x[:100][keep].astype("f4"),
            train_y=labels[:100][keep],
            test_x=x[100:].astype("f4"),
            test_y=labels[100:],
        )
        processes.append(start("node", folder, "--set", f"data.path={tmp_path / f'private-{i}.npz'}"))
    for process in processes:
        said, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        assert "done: 40 rounds" in said
    for folder in folders:
        assert json.loads((folder / "run/seed-1/summary.json").read_text())["final_accuracy"]["mean"] > 0.8
    code, said, err = run("node", folders[0], "--set", f"data.path={tmp_path / 'private-0.npz'}")
    assert code == 0, err
    assert "finished already" in err
    assert said == ""


def test_through_a_relay_nodes_that_cannot_reach_each_other_learn_together(tmp_path):
    what = experiment(nodes=3, rounds=30, topology=ep.ELLocal(2), network=ep.Network(close=CloseBarrier()))
    root = tmp_path / "cluster"
    address = free_addresses(1)[0]
    folders = make_cluster(what, ["10.1.1.1:1", "10.1.1.2:1", "10.1.1.3:1"], root, relay=address)
    relay = start("relay", root / "relay")
    nodes = [start("node", folder) for folder in folders]
    for process in nodes:
        said, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
    relay.send_signal(signal.SIGTERM)
    _, err = relay.communicate(timeout=20)
    assert relay.returncode == 0
    assert "3 connected" in err
    from conftest import Deployment, furthest

    there = object.__new__(Deployment)
    there.experiment, there.folders = what, folders
    assert furthest(there, ep.simulate(what)) < 1e-5


def test_a_port_in_use_is_one_clear_line(tmp_path):
    hosts = free_addresses(2)
    folders = make_cluster(experiment(nodes=2, topology=ep.ELLocal(1)), hosts, tmp_path / "c")
    with socket.create_server(("127.0.0.1", int(hosts[0].split(":")[1]))):
        code, _, err = run("node", folders[0], "-q")
    assert code == 2
    assert f"cannot listen on {hosts[0]}: the port is in use" in one_line(err)


def test_others_that_cannot_be_reached_are_looked_for_and_then_given_up(tmp_path):
    folders = make_cluster(experiment(nodes=2, topology=ep.ELLocal(1)), free_addresses(2), tmp_path / "c")
    code, _, err = run("node", folders[0], "--set", "network.patience=7")
    assert code == 2
    assert f"looking for the others at {read_addresses(folders[0] / 'node.toml').connect[0]}" in err
    assert "waiting for 1 of 1 others: node 1; nobody answers yet" in err
    said = [line[10:] for line in err.splitlines()]
    assert said[:2] == ["loading the data", "preparing the model"]
    assert said[2].startswith("opening the network on 127.0.0.1:")
    assert "no other node was found within 7 s (network.patience)" in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("error: ")


def test_a_full_disk_ends_a_node_with_its_checkpoint_kept(tmp_path):
    """The results are on a file system of a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1200k", "none", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here: a full disk is not tested")
    try:
        what = experiment(nodes=2, rounds=200_000, topology=ep.ELLocal(1), checkpoint=ep.Checkpoint(rounds=5))
        folders = make_cluster(what, free_addresses(2), tmp_path / "c")
        (folders[0] / "run").symlink_to(disk)
        nodes = [start("node", folder) for folder in folders]
        until(lambda: (disk / "seed-1/checkpoint.safetensors").exists())
        filler = disk / "filler"
        filler.write_bytes(b"x" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize))
        _, err = nodes[0].communicate(timeout=60)
        assert nodes[0].returncode == 1
        assert "the last checkpoint is kept" in err.splitlines()[-1]
        assert (disk / "seed-1/checkpoint.safetensors").exists()
        filler.unlink()
        records = (disk / "seed-1/records.jsonl").stat().st_size
        again = start("node", folders[0])
        until(lambda: (disk / "seed-1/records.jsonl").stat().st_size > records)
        for process in (again, nodes[1]):
            process.terminate()
            process.communicate(timeout=60)
            assert process.returncode == 130
    finally:
        subprocess.run(["umount", disk], check=False)


def test_a_node_is_refused_a_second_process(tmp_path):
    what = experiment(nodes=2, rounds=200_000, topology=ep.ELLocal(1))
    folders = make_cluster(what, free_addresses(2), tmp_path / "c")
    first = start("node", folders[0])
    until(lambda: (folders[0] / "run/seed-1/run.json").exists())
    code, _, err = run("node", folders[0])
    first.terminate()
    first.communicate(timeout=60)
    assert code == 2
    assert "is in use by another process" in one_line(err)


def test_a_node_started_before_its_relay_waits_for_it(tmp_path):
    what = experiment(nodes=2, rounds=10, topology=ep.ELLocal(1))
    root = tmp_path / "cluster"
    folders = make_cluster(what, ["10.1.1.1:1", "10.1.1.2:1"], root, relay=free_addresses(1)[0])
    nodes = [start("node", folder) for folder in folders]
    said = []
    for line in nodes[0].stderr:
        said.append(line)
        if "trying again" in line:
            break
    assert "no answer at 127.0.0.1" in said[-1]
    relay = start("relay", root / "relay")
    for process in nodes:
        process.communicate(timeout=100)
        assert process.returncode == 0
    relay.terminate()
    relay.communicate(timeout=20)
    assert relay.returncode == 0


def test_a_node_gives_up_on_a_relay_that_never_comes(tmp_path):
    folders = make_cluster(
        experiment(nodes=2, topology=ep.ELLocal(1)),
        ["10.1.1.1:1", "10.1.1.2:1"],
        tmp_path / "c",
        relay=free_addresses(1)[0],
    )
    code, _, err = run("node", folders[0], "--set", "network.patience=1", "-q")
    assert code == 2
    assert "no answer at 127.0.0.1" in one_line(err)


def test_a_half_copied_list_of_revoked_certificates_does_not_end_a_relay(tmp_path):
    from epidemic.deploy.keys import Authority

    root = tmp_path / "cluster"
    make_cluster(
        experiment(nodes=2, topology=ep.ELLocal(1)), ["10.1.1.1:1", "10.1.1.2:1"], root, relay=free_addresses(1)[0]
    )
    relay = start("relay", root / "relay")
    lines = iter(relay.stderr)
    assert "listening on" in next(lines)
    (root / "relay" / "revoked.json").write_text("{")
    assert any("is damaged" in line and "the list read before counts" in line for line in lines)
    Authority.load(root).revoke("node-1")
    assert any("opening the network again" in line for line in lines)
    relay.terminate()
    relay.communicate(timeout=20)
    assert relay.returncode == 0


def test_a_relay_takes_no_message_that_is_larger_than_a_model(tmp_path):
    """A member sends four of a hundred megabytes through it."""
    import psutil_free as memory
    import zenoh

    from epidemic.deploy.access import configuration
    from epidemic.deploy.addresses import Addresses
    from epidemic.deploy.keys import Identity

    root, address = tmp_path / "cluster", free_addresses(1)[0]
    folders = make_cluster(
        experiment(nodes=2, topology=ep.ELLocal(1)), ["10.1.1.1:1", "10.1.1.2:1"], root, relay=address
    )
    relay = start("relay", root / "relay")
    lines = iter(relay.stderr)
    assert "listening on" in next(lines)
    sessions = []
    for folder in folders:
        config = configuration(
            Identity.load(folder), Addresses(None, (address,)), mode="client", nodes=2, largest=2**30, insecure=False
        )
        config.insert_json5("access_control", "{enabled: false}")
        sessions.append(zenoh.open(config))
    sender, receiver = sessions
    assert any("2 connected" in line for line in lines)
    weight, cluster = memory.resident(relay.pid), Identity.load(folders[0]).cluster
    heard = []
    receiver.declare_subscriber(f"epidemic/{cluster}/to/1/*", lambda sample: heard.append(len(sample.payload)))
    publisher = sender.declare_publisher(f"epidemic/{cluster}/to/1/0", congestion_control=zenoh.CongestionControl.BLOCK)
    until(lambda: publisher.matching_status.matching)
    for size in (100_000_000,) * 4:
        publisher.put(bytes(size))
    most = 0
    end = time.monotonic() + 5
    while time.monotonic() < end:
        most = max(most, memory.resident(relay.pid))
        time.sleep(0.02)
    assert heard == []
    assert most - weight < 60e6
    relay.terminate()
    relay.communicate(timeout=20)
