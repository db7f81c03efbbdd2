"""Addresses: what node.toml may say."""

import pytest

import epidemic as ep
from epidemic.deploy.addresses import (
    Addresses,
    elsewhere,
    free_addresses,
    is_anywhere,
    is_loopback,
    read_addresses,
    same_address,
    split_address,
    to_toml,
)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("10.0.0.5:7447", ("10.0.0.5", 7447)),
        ("[fd00::5]:1", ("fd00::5", 1)),
        ("beta.example:65535", ("beta.example", 65535)),
    ],
)
def test_an_address_is_a_host_and_a_port(address, parts):
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", ":1", "x", "x:", "x:0", "x:65536", "x:-1", "x:1e3", "x:²", "x:" + "9" * 5000, "fd00::5:1", "a b:1", "a/b:1", "[]:1",
                "127.0.0.1\0:1", "a\n:1", "\x1b[2J:1", "[::1\t]:1"]
)  # fmt: skip
def test_what_is_not_an_address_is_refused_by_name(address):
    with pytest.raises(ep.BadInput, match="is not an address"):
        split_address(address)


def test_loopback_never_leaves_the_machine():
    assert [is_loopback(a) for a in ("127.0.0.1:1", "[::1]:1", "localhost:1", "127.9.9.9:1")] == [True] * 4
    assert [is_loopback(a) for a in ("10.0.0.1:1", "localhost.example:1", "0.0.0.0:1")] == [False] * 3


@pytest.mark.parametrize(
    "host",
    ["127.1", "2130706433", "0x7f.0.0.1", "0x7f000001", "0177.0.0.1", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]",
     "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "[::1%lo]", "LOCALHOST", "localhost.", "a.LocalHost"],
)  # fmt: skip
def test_loopback_is_known_however_it_is_written(host):
    assert is_loopback(f"{host}:1")
    with pytest.raises(ep.BadInput, match="leads to this machine itself"):
        elsewhere(f"{host}:1")


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "0x0", "00.0", "[::]", "[::ffff:0.0.0.0]", "0.0.0.7"])
def test_any_address_of_a_machine_is_known_however_it_is_written(host):
    assert is_anywhere(f"{host}:1")
    assert not is_loopback(f"{host}:1")  # --insecure must not listen there
    with pytest.raises(ep.BadInput, match="leads to this machine itself"):
        elsewhere(f"{host}:1")


def test_addresses_of_other_machines_are_left_as_they_are():
    for address in ("10.0.0.1:1", "[fd00::5]:1", "128.0.0.1:1", "1.0.0.127:1"):
        assert not is_loopback(address)
        assert not is_anywhere(address)
        assert elsewhere(address) == address


def test_a_name_is_resolved_and_what_it_leads_to_is_looked_at(monkeypatch):
    """Some resolvers are asked once only: what was looked at is what is connected to."""
    found = {
        "good.example": ["10.0.0.9"],
        "six.example": ["fd00::9"],
        "bad.example": ["10.0.0.9", "127.0.0.1"],
        "any.example": ["::"],
    }

    def ask(host, port, type):
        return [(2, 1, 6, "", (ip, port)) for ip in found[host]]

    monkeypatch.setattr("epidemic.deploy.addresses.socket.getaddrinfo", ask)
    assert elsewhere("good.example:5") == "10.0.0.9:5"
    assert elsewhere("six.example:5") == "[fd00::9]:5"
    for name in ("bad.example", "any.example"):
        with pytest.raises(ep.BadInput, match=f"'{name}:5' leads to this machine itself"):
            elsewhere(f"{name}:5")


def test_the_same_address_is_the_same_in_every_form():
    assert same_address("10.0.0.1:7", "[::ffff:10.0.0.1]:7")
    assert same_address("10.1:7", "10.0.0.1:7")
    assert same_address("Beta.example:7", "beta.EXAMPLE.:7")
    assert not same_address("10.0.0.1:7", "10.0.0.1:8")
    assert not same_address("10.0.0.1:7", "10.0.0.2:7")


@pytest.mark.parametrize(
    "where",
    [
        Addresses("127.0.0.1:7000"),
        Addresses("0.0.0.0:7447", ("10.0.0.5:7447", "[fd00::5]:1"), False, (0, 1)),
        Addresses(None, ("relay.example:7447",), True, (0, 1, 2)),
        Addresses("0.0.0.0:7447", largest=360_000),
    ],
)
def test_what_is_written_is_what_is_read(where, tmp_path):
    path = tmp_path / "node.toml"
    path.write_text(to_toml(where, ["A comment."]))
    assert read_addresses(path) == where


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "neither an address to listen on nor one to connect to"),
        ('listen = "x:1"\nconnect = ["y:1"]\nrelay = true', "does not listen"),
        ('listen = "x"', "is not an address"),
        ('listen = "x:1"\nlargest = 0', "largest = 0 must be at least 1"),
        ('listen = "x:1"\ncolour = "red"', "colour"),
    ],
)
def test_a_wrong_file_is_one_clear_line(text, said, tmp_path):
    path = tmp_path / "node.toml"
    path.write_text(text)
    with pytest.raises(ep.BadInput, match=said):
        read_addresses(path)


def test_free_addresses_are_as_many_different_ones_as_asked_for():
    found = free_addresses(20)
    assert len(set(found)) == 20
    assert all(is_loopback(address) for address in found)
