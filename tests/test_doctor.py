"""`epidemic doctor`: what would keep a node from taking part is found before it is started, each in one line with its remedy."""

import json
import os
import socket
import ssl
import threading
from types import SimpleNamespace

import pytest

from epidemic.cli.app import main
from epidemic.deploy import doctor
from epidemic.deploy.addresses import free_addresses
from epidemic.deploy.doctor import examine
from epidemic.deploy.folders import make_cluster
from epidemic.experiment import experiment_from

TABLE = {
    "nodes": 3,
    "rounds": 2,
    "topology": {"kind": "el-local", "s": 1},
    "data": {"kind": "synthetic", "samples": 80, "classes": 3},
    "partition": {"kind": "iid"},
}


@pytest.fixture
def cluster(tmp_path):
    make_cluster(experiment_from(TABLE), free_addresses(3), tmp_path / "c")
    return tmp_path / "c"


def found(folder, **options):
    return {one.check: one for one in examine(folder, patience=1.0, **options)}


def states(folder, **options):
    return {name: one.state for name, one in found(folder, **options).items() if one.state != "ok"}


class Listening:
    """A TLS server with the certificate of a folder, which says nothing."""

    def __init__(self, address, folder, authority):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "node.pem", folder / "node.key")
        context.load_verify_locations(authority / "authority.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        host, _, port = address.rpartition(":")
        self.server = socket.create_server((host, int(port)))
        self.context = context
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            try:
                with self.context.wrap_socket(connection, server_side=True) as tls:
                    tls.recv(1)
            except OSError:
                connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join()


def address_of(folder):
    line = next(x for x in (folder / "node.toml").read_text().splitlines() if x.startswith("listen"))
    return json.loads(line.partition("=")[2])


def test_a_sound_folder_has_no_problem_and_the_first_node_only_hears_that_nobody_answers(cluster):
    seen = found(cluster / "node-0")
    assert {one.state for one in seen.values()} == {"ok", "warning"}
    assert {name for name, one in seen.items() if one.state == "warning"} == {
        "connections",
        f"connection to {address_of(cluster / 'node-1')}",
        f"connection to {address_of(cluster / 'node-2')}",
    }
    assert seen["connections"].found == "none of 2 answers"
    assert seen["data"].found.startswith("80 training and 16 test samples; inputs ")
    assert seen["run"].found == "not begun"
    assert not (cluster / "node-0" / "run").exists(), "a check writes nothing"


def test_a_peer_with_a_certificate_of_the_same_authority_is_named(cluster):
    there = address_of(cluster / "node-1")
    with Listening(there, cluster / "node-1", cluster / "node-0"):
        seen = found(cluster / "node-0")
    assert seen[f"connection to {there}"].state == "ok"
    assert seen[f"connection to {there}"].found.startswith("node-1, certificate good until ")
    assert "connections" not in seen


def test_who_has_a_certificate_of_another_authority_is_a_problem_at_either_end(cluster, tmp_path):
    make_cluster(experiment_from(TABLE), free_addresses(3), tmp_path / "other")
    there = address_of(cluster / "node-1")
    with Listening(there, tmp_path / "other" / "node-1", tmp_path / "other" / "node-0"):
        one = found(cluster / "node-0")[f"connection to {there}"]
    assert (one.state, one.found.partition(":")[0]) == ("problem", "its certificate is refused")
    with Listening(there, cluster / "node-1", tmp_path / "other" / "node-0"):
        one = found(cluster / "node-0")[f"connection to {there}"]
    assert one.state == "problem", "the other end refuses ours"


def test_an_address_that_leads_back_to_the_node_is_a_problem(cluster):
    there = address_of(cluster / "node-1")
    with Listening(there, cluster / "node-0", cluster / "node-0"):
        one = found(cluster / "node-0")[f"connection to {there}"]
    assert (one.state, one.found) == ("problem", "leads to node-0, which is this node itself")


def test_a_port_that_is_taken_is_a_problem(cluster):
    host, _, port = address_of(cluster / "node-0").rpartition(":")
    with socket.create_server((host, int(port))):
        assert states(cluster / "node-0")["listening"] == "problem"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_permissions_are_mended_only_if_asked_to(cluster):
    key = cluster / "node-0" / "node.key"
    key.chmod(0o644)
    (cluster / "node-0").chmod(0o777)
    seen = states(cluster / "node-0")
    assert seen["permissions of node.key"] == seen["permissions of node-0"] == seen["certificate"] == "problem"
    assert key.stat().st_mode & 0o777 == 0o644
    assert "problem" not in states(cluster / "node-0", fix=True).values()
    assert (key.stat().st_mode & 0o777, (cluster / "node-0").stat().st_mode & 0o777) == (0o600, 0o700)


def test_whatever_is_missing_damaged_or_wrong_is_one_finding_with_its_remedy(cluster):
    folder = cluster / "node-0"
    (folder / "revoked.json").write_text("{}")
    assert "damaged" in found(folder)["certificate"].found
    (folder / "node.toml").write_text('listen = "nowhere"\n')
    assert found(folder)["addresses"].state == "problem"
    (folder / "node.pem").unlink()
    one = found(folder)["files"]
    assert (one.state, one.found) == ("problem", "node.pem missing")
    assert one.remedy


def test_data_that_cannot_be_read_and_code_that_fails_are_findings(cluster):
    experiment = cluster / "node-0" / "experiment.toml"
    seen = found(cluster / "node-0", settings=["data.kind=npz", "data.path=/nowhere.npz"])
    assert {one.state for name, one in seen.items() if name in ("experiment", "data")} & {"problem"}
    experiment.write_text(experiment.read_text().replace("nodes = 3", "nodes = 0"))
    assert found(cluster / "node-0")["experiment"].state == "problem"


def test_a_disk_that_is_nearly_full_is_said(cluster, monkeypatch):
    for free, state in ((2**31, "ok"), (2**29, "warning"), (2**20, "problem")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert doctor._disk(cluster).state == state


def test_the_command_ends_with_1_if_there_is_a_problem_and_0_otherwise(cluster, capsys):
    assert main(["doctor", str(cluster / "node-0"), "--quiet", "--patience", "1"]) == 0
    assert "no problem found, 3 warnings" in capsys.readouterr().out
    (cluster / "node-0" / "node.toml").unlink()
    assert main(["doctor", str(cluster / "node-0"), "--json"]) == 1
    out, err = capsys.readouterr()
    (about,) = json.loads(out)
    assert [one["check"] for one in about["findings"] if one["state"] == "problem"] == ["files"]
    assert err == "error: 1 problem\n"


def test_a_folder_that_is_none_is_bad_input(tmp_path, capsys):
    assert main(["doctor", str(tmp_path / "none"), "-q"]) == 2
    assert "is not a directory" in capsys.readouterr().err
