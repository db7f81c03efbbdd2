"""Peers: who the others are, from what they say of themselves; old, forged and foreign words change nothing."""

import datetime as dt

import msgspec
import pytest
from epidemic.net.peers import MOST_MISSED, Hello, Peers, seal_hello

from epidemic.net import keys, peers
from epidemic.net.keys import Authority, Identity
from epidemic.net.terms import Terms
from epidemic.net.wire import Refused

TERMS = Terms({"nodes": 4, "algorithm.lr": 0.1}, "graphs", "model", "data")


@pytest.fixture
def nodes(tmp_path):
    authority = Authority.create(tmp_path / "keys")
    return [Identity.load(authority.issue(f"node-{i}", [])) for i in range(4)]


@pytest.fixture
def table(nodes):
    return Peers(nodes[0], TERMS, 0, 4)


def hello(identity, token="a", round=-1, start=0, terms=TERMS, place=None):
    said = Hello(identity.place if place is None else place, token, identity.encoded, terms, round, start)
    return seal_hello(said, identity)


def test_a_peer_is_alive_while_its_token_is_shown_and_it_was_introduced(nodes, table):
    table.present(1, "a", True)
    assert table.strangers() == [1]
    assert table.alive == set()
    assert table.learn(hello(nodes[1])) is not None
    assert table.strangers() == []
    assert table.alive == {1}
    table.present(1, "b", True)  # it was started again ...
    table.present(1, "a", False)  # ... and the old start is noticed to be over
    assert table.alive == set()
    assert table.strangers() == [1]
    assert table.learn(hello(nodes[1], "b")) is not None
    assert table.alive == {1}


def test_an_old_hello_said_again_by_somebody_else_changes_nothing(nodes, table):
    old = hello(nodes[1], "old", terms=msgspec.structs.replace(TERMS, model="another"))
    table.present(1, "now", True)
    table.learn(hello(nodes[1], "now"))
    assert table.learn(old) is None
    assert table.learn(hello(nodes[1], "older")) is None
    assert table.alive == {1}
    assert table.differing == {}
    assert table.tally == {"unknown-sender": 2}


def test_who_does_something_else_is_told_what_and_counted(nodes, table):
    other = msgspec.structs.replace(TERMS, experiment={"nodes": 4, "algorithm.lr": 0.2})
    table.present(2, "a", True)
    assert table.learn(hello(nodes[2], terms=other)) is None
    assert table.differing == {2: ["algorithm.lr = 0.1 here, 0.2 there"]}
    assert table.alive == set()
    assert table.strangers() == []
    assert table.tally == {"wrong-run": 1}


def test_nobody_speaks_for_another_place(nodes, table):
    assert table.learn(hello(nodes[3], place=1)) is None
    assert table.tally == {"wrong-signature": 1}
    assert table.learn(hello(nodes[0])) is None  # oneself
    assert table.key_of(1) is None


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x92\xc4\x00\xc4\x00", b"\x80" * 10, b"x" * (peers.LARGEST_HELLO + 1)])
def test_what_is_not_a_hello_is_refused(table, raw):
    assert table.learn(raw) is None
    assert set(table.tally) <= {"malformed", "oversized"}


def test_strange_values_within_a_signed_hello_are_refused(nodes, table):
    strange = msgspec.structs.replace(TERMS, experiment={"x": msgspec.msgpack.Ext(5, b"data")})
    assert table.learn(hello(nodes[1], terms=strange)) is None
    assert table.alive == set()


def test_whose_letters_are_waited_for(nodes, table):
    for i in (1, 2, 3):
        table.present(i, "a", True)
    table.learn(hello(nodes[1]))  # met before the beginning
    table.learn(
        hello(nodes[2], round=7, start=0)
    )  # had begun without this node: its letters of rounds 7 and 8 may have left
    table.learn(hello(nodes[3], round=-1, start=5), here=20)  # came back, and has not said from when it takes part
    assert table.expected(0) == {1}
    assert table.expected(8) == {1}
    assert table.expected(9) == {1, 2}
    assert table.expected(30) == {1, 2}
    table.learn(hello(nodes[3], round=-1, start=24), here=21)
    assert table.expected(23) == {1, 2}
    assert table.expected(24) == {1, 2, 3}
    assert table.began_without_us
    assert table.front == 7


def test_who_lets_others_wait_in_vain_is_not_waited_for_until_it_is_heard(nodes, table):
    table.present(1, "a", True)
    table.learn(hello(nodes[1]))
    for _ in range(MOST_MISSED):
        assert table.expected(3) == {1}
        table.missed([1])
    assert table.expected(3) == set()
    assert table.alive == {1}
    table.heard_of(1, 4)
    assert table.expected(5) == {1}


def test_certificates_that_expire_or_are_revoked_count_no_more(nodes, table):
    for i in (1, 2):
        table.present(i, "a", True)
        table.learn(hello(nodes[i]))
    assert table.alive == {1, 2}
    nodes[0].revoked = keys.Revocations(1, ["node-1"])
    table.revocations_changed()
    assert table.alive == {2}
    with pytest.raises(Refused, match="revoked"):
        table.key_of(1)
    table._peers[2].expires = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    table.revocations_changed()
    assert table.alive == set()
    with pytest.raises(Refused, match="revoked"):
        table.key_of(2)
