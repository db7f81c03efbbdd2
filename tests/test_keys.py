"""Certificates, and the commands that make them: what is wrong is said in one line."""

import datetime as dt
import json
import os
import stat

import msgspec
import pytest

import epidemic as ep
from epidemic.cli.app import main
from epidemic.deploy.keys import Authority, Identity, names_of, node_id_of
from epidemic.deploy.wire import Refused


@pytest.fixture
def root(tmp_path):
    authority = Authority.create(tmp_path / "keys")
    for i in range(3):
        authority.issue(f"node-{i}", ["127.0.0.1"])
    authority.issue("observer", [])
    return tmp_path / "keys"


def problem(capsys, *words):
    """The error line of a command that must end with 2."""
    assert main([str(w) for w in words]) == 2
    out = capsys.readouterr()
    assert out.err.count("\n") == 1
    assert out.err.startswith("error: ")
    return out.err


def test_secret_files_are_for_their_owner_only(root):
    for folder in root.iterdir():
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for path in folder.iterdir():
            if path.suffix == ".key":
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (root / "node-0" / "authority.key").exists()


def test_members_recognise_each_other_and_nobody_else(root, tmp_path):
    one, two = Identity.load(root / "node-1"), Identity.load(root / "node-2")
    assert (one.node_id, one.cluster) == (1, two.cluster)
    name, key, _ = one.recognise(two.encoded)
    assert (name, key) == ("node-2", two.key.public_key())
    other = Identity.load(Authority.create(tmp_path / "other").issue("node-2", []))
    for encoded, why in ((other.encoded, "unknown-sender"), (b"junk", "malformed")):
        with pytest.raises(Refused) as refusal:
            one.recognise(encoded)
        assert refusal.value.reason == why


def test_a_revoked_name_counts_no_more_and_is_never_given_again(root):
    one, two = Identity.load(root / "node-1"), Identity.load(root / "node-2")
    authority = Authority.load(root)
    authority.revoke("node-2")
    assert one.refresh().changed
    assert not one.refresh().changed
    with pytest.raises(Refused) as refusal:
        one.recognise(two.encoded)
    assert refusal.value.reason == "revoked"
    with pytest.raises(ep.BadInput, match="was revoked"):
        Identity.load(root / "node-2")
    again = Identity.load(authority.issue("node-2", []))
    assert (again.name, again.node_id) == ("node-2.1", 2)
    assert one.recognise(again.encoded)[0] == "node-2.1"
    assert {"node-2", "node-2.1", "node-2.9", "observer", "relay"} <= set(names_of(3))


def test_a_list_of_revoked_names_that_was_tampered_with_or_is_older_is_not_followed(root):
    one = Identity.load(root / "node-1")
    path = root / "node-1" / "revoked.json"
    old = path.read_bytes()
    Authority.load(root).revoke("node-0")
    assert one.refresh().changed
    os.utime(path, ns=(1, 1))
    path.write_bytes(old)
    assert not one.refresh().changed
    assert one.revoked.names == ["node-0"]
    path.write_text(path.read_text().replace("[]", '["node-2"]'))
    assert "not signed by the authority" in one.refresh().problem
    assert one.revoked.names == ["node-0"]


def test_a_half_copied_list_of_revoked_names_ends_nobody_and_hides_no_expiry(root):
    """The list read before counts until the new one is whole; whether one's own certificate is good is another question."""
    one, other = Identity.load(root / "node-1"), Identity.load(root / "node-2")
    path = root / "node-1" / "revoked.json"
    Authority.load(root).revoke("node-2")
    whole = path.read_bytes()
    for part in (b"", whole[: len(whole) // 2], b"\xff\xfe", b"null"):
        path.write_bytes(part)
        found = one.refresh()
        assert not found.changed
        assert str(path) in found.problem
        assert one.recognise(other.encoded)[0] == "node-2"
        one.still_good()
        with pytest.raises(ep.BadInput, match="has expired"):
            one.still_good(one.certificate.not_valid_after_utc + dt.timedelta(seconds=1))
    path.unlink()
    assert "cannot be read" in one.refresh().problem
    path.write_bytes(whole)
    assert one.refresh().changed
    with pytest.raises(Refused):
        one.recognise(other.encoded)


def test_a_certificate_counts_until_its_end_by_the_clock_that_is_given(root):
    one, other = Identity.load(root / "node-1"), Identity.load(root / "node-2")
    _, _, end = one.recognise(other.encoded)
    one.recognise(other.encoded, end)
    with pytest.raises(Refused) as refusal:
        one.recognise(other.encoded, end + dt.timedelta(seconds=1))
    assert refusal.value.reason == "revoked"


def test_names_and_places():
    assert [node_id_of(n) for n in ("node-0", "node-17", "node-3.1")] == [0, 17, 3]
    assert [node_id_of(n) for n in ("node-", "node-x", "observer", "relay", "node-3.x", "nodes-3", "")] == [None] * 7


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "node.key").chmod(0o644), "can be read by others (mode 644); run 'chmod 600"),
        (lambda f: (f / "node.key").write_text("junk"), "is not a private key"),
        (lambda f: (f / "node.key").unlink(), "node.key cannot be read: No such file"),
        (lambda f: (f / "node.pem").write_text("junk"), "is not a certificate"),
        (lambda f: (f / "node.pem").write_bytes((f.parent / "node-0/node.pem").read_bytes()), "does not belong to"),
        (lambda f: (f / "authority.pem").write_bytes((f / "node.pem").read_bytes()), "was not issued by"),
        (lambda f: (f / "revoked.json").unlink(), "revoked.json cannot be read"),
        (lambda f: (f / "revoked.json").write_text("{"), "is damaged"),
    ],
)
def test_wrong_or_unreadable_keys_are_one_clear_line(root, capsys, damage, said):
    damage(root / "node-1")
    assert said in problem(capsys, "node", root / "node-1")


def test_keys_by_command(tmp_path, capsys):
    where = tmp_path / "keys"
    assert (
        main(["keys", "init", str(where), "--hosts", "alpha.example,10.0.0.7:7447", "--spare", "1", "--days", "20"])
        == 0
    )
    assert sorted(p.name for p in where.iterdir()) == ["authority", "node-0", "node-1", "node-2", "observer"]
    assert main(["keys", "add", str(where), "--node", "1", "--host", "beta.example"]) == 0
    assert main(["keys", "add", str(where), "--relay"]) == 0
    assert main(["keys", "revoke", str(where), "node-1"]) == 0
    capsys.readouterr()
    assert main(["keys", "show", str(where), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name: row["state"] for name, row in rows.items()} == {
        "node-0": "expires soon", "node-1": "revoked", "node-2": "expires soon", "observer": "expires soon",
        "node-1.1": "good", "relay": "good",
    }  # fmt: skip
    assert rows["node-1"]["hosts"] == ["10.0.0.7"]
    assert main(["keys", "show", str(where)]) == 0
    assert "alpha.example" in capsys.readouterr().out


def test_bad_input_of_keys(root, tmp_path, capsys):
    assert "exists already" in problem(capsys, "keys", "init", root, "--hosts", "a")
    assert "--hosts is empty" in problem(capsys, "keys", "init", tmp_path / "x", "--hosts", ",")
    assert "--days = 0 must be at least 1" in problem(
        capsys, "keys", "init", tmp_path / "x", "--hosts", "a", "--days", 0
    )
    assert not (tmp_path / "x").exists()
    assert "has no authority" in problem(capsys, "keys", "show", tmp_path)
    assert "never issued" in problem(capsys, "keys", "revoke", root, "node-9")
    assert main(["keys", "revoke", str(root), "node-1"]) == 0
    capsys.readouterr()
    assert "revoked already" in problem(capsys, "keys", "revoke", root, "node-1")
    assert "give one of --node I, --relay and --observer" in problem(capsys, "keys", "add", root)


def test_cluster_init_makes_a_folder_for_each_place(tmp_path, capsys):
    from epidemic.deploy.addresses import read_addresses

    file = tmp_path / "e.toml"
    file.write_text('nodes = 4\nrounds = 5\n[topology]\nkind = "el-local"\ns = 2\n')
    out = tmp_path / "cluster"
    hosts = "10.0.0.5:7447,10.0.0.6:7447,beta.example:9000"
    assert main(["cluster", "init", str(file), "--hosts", hosts, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "3 nodes and 1 spare places" in said
    where = read_addresses(out / "node-2" / "node.toml")
    assert where.listen == "0.0.0.0:9000"
    assert where.connect == ("10.0.0.5:7447", "10.0.0.6:7447")
    assert where.founders == (0, 1, 2)
    assert read_addresses(out / "node-3" / "node.toml").connect == tuple(hosts.split(","))
    assert ep.load(out / "node-3" / "experiment.toml").nodes == 4
    assert "exists already" in problem(capsys, "cluster", "init", file, "--hosts", hosts, "--out", out)


@pytest.mark.parametrize(
    ("hosts", "settings", "said"),
    [
        ("10.0.0.5", [], "is not an address; use host:port"),
        ("a b:1", [], "is not the name of a host"),
        ("x:99999", [], "is not an address"),
        ("x:1,x:1", [], "names an address twice"),
        ("a:1,b:1,c:1,d:1,e:1", [], "names 5 hosts, but the experiment has nodes = 4"),
        ("a:1", ["network.close.kind=barrier"], "needs all 4 nodes from the start"),
        ("a:1", ["faults.loss=0.1"], "faults.loss is drawn by the simulator only"),
        ("a:1", ["faults.cap=2", "network.close.kind=barrier"], "cannot wait for models that faults.cap turns away"),
        ("a:1", ["network.coin=private", "topology.kind=ring"], 'needs topology.kind = "el-local"'),
        ("a:1", ["network.coin=private", "network.close.kind=barrier"], 'needs coin = "shared"'),
        (
            "a:1",
            ["network.coin=committed", "topology.kind=ring"],
            'coin = "committed" needs topology.kind = "el-local"',
        ),
        (
            "a:1",
            ["network.coin=committed", "network.close.kind=barrier"],
            'with "committed" in-neighbours are unknown',
        ),
        ("a:1", ["network.coin=committed", "faults.cap=2"], 'coin = "committed" does not go with faults.cap'),
        (
            "a:1",
            ["network.coin=committed", "rounds=10000001"],
            "at most 10000000 links, one for each round; rounds = 10000001",
        ),
        (
            "a:1",
            ["network.coin=committed", "algorithm.kind=async-el", "clock.stop=9"],
            '"async-el" has no rounds; use --set network.coin=private',
        ),
        (
            "a:1",
            ["network.coin=committed", "topology.view={kind='cyclon', size=2, shuffle=1}"],
            "use --set network.coin=private",
        ),
        ("a:1", ["network.coin=fair"], "network.coin"),
        ("a:1", ["network.close.deadline=0"], "network.close.deadline = 0.0 must be greater than 0"),
        ("a:1", ["network.close=barrier"], 'use network.close = {kind = "barrier"}'),
        ("a:1", ["network.close=deadline"], 'use network.close = {kind = "adaptive", deadline = 30.0}'),
        ("a:1", ["network.deadline=5"], "network.deadline is called network.close.deadline"),
        ("a:1", ["network.close.kind=quorum", "network.close.q=0.5"], "give it a network.close.deadline in seconds"),
        ("a:1", ["network.close.kind=global"], 'network.close.kind = "global" needs a view of all nodes'),
        (
            "a:1",
            ["network.close.kind=schedule", "network.close.seconds=1"],
            'network.close.kind = "schedule" needs one clock',
        ),
        ("a:1", ["network.close.catch_up=true"], "network.close.catch_up = true goes by a single message"),
        (
            "a:1",
            ["network.close.late=carry", "mixing=metropolis-hastings", "topology.kind=ring"],
            "needs uniform weights",
        ),
        ("a:1", ["network.colour=red"], "colour"),
        ("a:1", ["seeds=[1,2]"], "a deployed run has one seed"),
    ],
)
def test_bad_input_of_cluster_init(tmp_path, capsys, hosts, settings, said):
    file = tmp_path / "e.toml"
    file.write_text('nodes = 4\n[topology]\nkind = "el-local"\ns = 2\n')
    words = [w for s in settings for w in ("--set", s)]
    assert said in problem(capsys, "cluster", "init", file, "--hosts", hosts, "--out", tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("setting", ["algorithm.lr=1", "data.validation=0.2", "partition.kind=iid"])
def test_a_node_takes_settings_of_its_own_only_where_nodes_may_differ(tmp_path, capsys, setting):
    file = tmp_path / "e.toml"
    file.write_text('nodes = 3\n[topology]\nkind = "el-local"\ns = 2\n')
    assert main(["cluster", "init", str(file), "--hosts", "a:1,b:1,c:1", "--out", str(tmp_path / "out")]) == 0
    assert "all nodes must have the same experiment" in problem(
        capsys, "node", tmp_path / "out/node-1", "--set", setting
    )


def test_plaintext_is_for_loopback_only(root):
    from epidemic.deploy.access import configuration
    from epidemic.deploy.addresses import Addresses

    identity = Identity.load(root / "node-1")
    good = Addresses("127.0.0.1:7000", ("localhost:7001", "[::1]:7002"))
    configuration(identity, good, mode="peer", nodes=3, largest=1000, insecure=True)
    bad = Addresses("127.0.0.1:7000", ("10.0.0.1:7001",))
    with pytest.raises(ep.BadInput, match="loopback addresses only, not 10"):
        configuration(identity, bad, mode="peer", nodes=3, largest=1000, insecure=True)
    secure = configuration(identity, good, mode="peer", nodes=3, largest=1000, insecure=False)
    assert json.loads(secure.get_json("transport/link/tls"))["enable_mtls"] is True
    assert json.loads(secure.get_json("transport/link/protocols")) == ["tls"]
    assert json.loads(secure.get_json("transport/shared_memory/enabled")) is False


def test_a_list_that_somebody_gives_is_taken_over_only_if_the_authority_signed_it_and_it_is_newer(tmp_path):
    authority = Authority.create(tmp_path / "keys")
    identity = Identity.load(authority.issue("node-0", []))
    authority.issue("node-1", [])
    old = (identity.folder / "revoked.json").read_bytes()
    given = msgspec.json.encode(authority.revoke("node-0"))
    other = Authority.create(tmp_path / "other")
    other.issue("node-0", [])
    forged = msgspec.json.encode(other.revoke("node-0"))
    (identity.folder / "revoked.json").write_bytes(old)
    for bad in (b"", b"{}", forged, given[:-1], given.replace(b"node-0", b"node-1"), old, b"[" * 10_000):
        assert not identity.told(bad)
    assert (identity.folder / "revoked.json").read_bytes() == old
    identity.still_good()
    assert identity.told(given)
    assert identity.refresh().changed
    with pytest.raises(ep.BadInput, match="was revoked"):
        identity.still_good()
    assert not identity.told(given)
