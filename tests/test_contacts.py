"""Contacts: nobody can say of another where it is; what is not in order is refused, bounded and counted."""

import dataclasses
import time

import msgspec
import pytest

from epidemic.core.errors import BadInput
from epidemic.deploy.addresses import Addresses
from epidemic.deploy.contacts import CHECKED, LARGEST_EXCHANGE, SPARE, Book, Contact, seal_contact
from epidemic.deploy.keys import Authority, Identity
from epidemic.deploy.wire import Refused
from epidemic.peer_sampling import Cyclon, Jelasity, Spray

RUN = bytes(range(16))


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    root = tmp_path_factory.mktemp("keys")
    authority = Authority.create(root)
    return [Identity.load(authority.issue(f"node-{i}", ["127.0.0.1"])) for i in range(6)]


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    root = tmp_path_factory.mktemp("others")
    authority = Authority.create(root)
    return [Identity.load(authority.issue(f"node-{i}", ["127.0.0.1"])) for i in range(2)]


def where(identity, port=None, since=1):
    return seal_contact(identity, f"10.0.0.{identity.node_id}:{port or 7447}", since)


@pytest.fixture
def book(people):
    return Book(people[0], where(people[0]), 6)


def keys(people):
    return lambda node_id: people[node_id].key.public_key() if node_id < len(people) else None


def test_a_contact_says_where_its_own_place_is(book, people):
    assert book.learn(where(people[3])).address == "10.0.0.3:7447"
    assert book.get(3).address == "10.0.0.3:7447"
    assert book.get(2) is None


def test_the_newer_of_two_contacts_counts_whichever_comes_first(book, people):
    book.learn(where(people[3], 9001, since=5))
    book.learn(where(people[3], 9002, since=4))
    assert book.get(3).address.endswith(":9001")
    book.learn(where(people[3], 9003, since=6))
    assert book.get(3).address.endswith(":9003")


def test_nobody_speaks_for_another_place_or_authority(book, people, strangers):
    with pytest.raises(Refused, match="unknown-sender"):
        book.learn(where(strangers[1]))
    good = msgspec.msgpack.decode(where(people[3]))
    contact = msgspec.msgpack.decode(good[0])
    for changed in ([2, *contact[1:]], [3, "6.6.6.6:1", *contact[2:]], [*contact[:3], people[2].encoded]):
        content = msgspec.msgpack.encode(changed)
        for signature in (good[1], people[2].key.sign(b"epidemic contact\0" + content)):
            with pytest.raises(Refused, match="wrong-signature"):
                book.learn(msgspec.msgpack.encode([content, signature]))
    assert book.get(3) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x93" * 2000,
        b"\x00" * 5000,
        msgspec.msgpack.encode([b"x", b"y"]),
        msgspec.msgpack.encode([1, 2]),
    ],
    ids=["empty", "not-msgpack", "nested", "long", "no-contact", "numbers"],
)
def test_nonsense_is_refused(book, raw):
    with pytest.raises(Refused):
        book.learn(raw)
    with pytest.raises(Refused):
        book.open(raw, RUN, 0, lambda _: None)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nowhere",
        "host:0",
        "host:99999",
        "a b:1",
        "x" * 400 + ":1",
        "10.0.0.3\0:1",
        "10.0.0.3\t:1",
        "\x1b[2J:1",
        "[::2\n]:1",
    ],
)
def test_an_address_that_is_none_is_refused(book, people, address):
    with pytest.raises(Refused, match="malformed"):
        book.learn(seal_contact(people[3], address, 1))


def test_who_was_revoked_is_not_kept(people):
    me = people[0]
    book = Book(me, where(me), 6)
    book.learn(where(people[3]))
    revoked = me.revoked
    try:
        me.revoked = msgspec.structs.replace(revoked, names=["node-3"])
        assert book.get(3) is None
        with pytest.raises(Refused, match="revoked"):
            book.learn(where(people[3]))
    finally:
        me.revoked = revoked


def test_a_certificate_that_was_taken_back_makes_room_for_its_successor(people):
    """Also if the old one has signed the latest time there is."""
    me = people[0]
    book = Book(me, where(me), 6)
    book.learn(where(people[3], 9001, since=int(time.time()) + 80_000))
    before = me.revoked
    try:
        me.revoked = msgspec.structs.replace(before, names=["node-3"])
        old = book._known[3]
        book._checked[b"new"] = dataclasses.replace(old, name="node-3.1", since=5, address="10.0.0.3:9002", raw=b"new")
        book.learn(b"new")
        assert book.get(3).address == "10.0.0.3:9002"
    finally:
        me.revoked = before


def test_nobody_is_from_the_future_or_at_others_own_doors(book, people):
    with pytest.raises(Refused, match="implausible"):
        book.learn(where(people[3], since=2**52))
    with pytest.raises(Refused, match="malformed"):
        book.learn(seal_contact(people[3], "127.0.0.1:22", 1))
    here = Book(people[0], seal_contact(people[0], "127.0.0.1:7447", 1), 6)
    assert here.learn(seal_contact(people[3], "127.0.0.1:7448", 1)).node_id == 3


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "0.0.0.0", "0", "[::]", "[::1]", "[::ffff:127.0.0.1]", "LOCALHOST", "localhost.", "2130706433", "0x7f.1", "0177.0.0.1"],
)  # fmt: skip
def test_an_address_of_the_receivers_own_machine_is_refused_in_every_form(book, people, host):
    with pytest.raises(Refused, match="malformed"):
        book.learn(seal_contact(people[3], f"{host}:22", 1))
    assert book.get(3) is None


def test_nobody_is_at_the_receivers_own_address(book, people):
    for address in ("10.0.0.0:7447", "[::ffff:10.0.0.0]:7447"):
        with pytest.raises(Refused, match="malformed"):
            book.learn(seal_contact(people[3], address, 1))
    assert book.learn(seal_contact(people[3], "10.0.0.0:7448", 1)).node_id == 3  # another node of the same machine


def test_nobody_can_be_reached_anywhere_even_where_all_nodes_are_on_one_machine(people):
    here = Book(people[0], seal_contact(people[0], "127.0.0.1:7447", 1), 6)
    with pytest.raises(Refused, match="malformed"):
        here.learn(seal_contact(people[3], "0.0.0.0:7448", 1))


def test_a_sample_is_kept_over_a_restart_but_for_those_revoked(book, people):
    for i in (2, 3, 4):
        book.learn(where(people[i]))
    saved = book.saved_sample([(b"a" * 16, 2, 0), (b"b" * 16, 4, 1), (b"c" * 16, 3, 2), (b"d" * 16, 5, 0)])
    again = Book(people[0], where(people[0]), 6)
    before = people[0].revoked
    try:
        people[0].revoked = msgspec.structs.replace(before, names=["node-4"])
        assert again.restored_sample(saved) == ((b"a" * 16, 2, 0), (b"c" * 16, 3, 2))
        assert again.get(3) is not None
    finally:
        people[0].revoked = before


def test_ages_as_large_as_anybody_says_pass_through_honest_nodes(people):
    """A member that sends huge ages must not make honest nodes' exchanges be refused."""
    for service in (Cyclon(size=4, shuffle=2), Jelasity(size=4), Spray(a=3)):
        sampler = service.sampler(6, 1, lambda _: 0)
        sampler.reply(4, ((2, 2**31), (3, 2**31)))
        for _ in range(3):
            sampler.age()
        mine, other = (Book(people[i], where(people[i]), 6) for i in (0, 1))
        for i in (2, 3):
            other.learn(where(people[i]))
        raw = other.seal(RUN, 1, 0, tuple(sampler.entries), people[1].key)
        assert {node_id for node_id, _ in mine.open(raw, RUN, 0, keys(people))[1]} >= {2, 3}


def test_one_entry_that_was_revoked_does_not_cost_the_others(people):
    other = Book(people[1], where(people[1]), 6)
    for i in (2, 3):
        other.learn(where(people[i]))
    raw = other.seal(RUN, 1, 0, ((2, 0), (3, 0)), people[1].key)
    me = people[0]
    before = me.revoked
    try:
        me.revoked = msgspec.structs.replace(before, names=["node-2"])
        book = Book(me, where(me), 6)
        assert book.open(raw, RUN, 0, keys(people)) == (1, ((3, 0),))
        assert book.refused == {"revoked": 1}
    finally:
        me.revoked = before


def test_an_exchange_of_more_entries_than_the_service_has_is_refused_unread(people):
    other = Book(people[1], where(people[1]), 6)
    for i in (2, 3):
        other.learn(where(people[i]))
    raw = other.seal(RUN, 1, 0, ((1, 0), (2, 0), (3, 0)), people[1].key)
    with pytest.raises(Refused, match="oversized"):
        Book(people[0], where(people[0]), 6, most=2).open(raw, RUN, 0, keys(people))


def test_an_exchange_arrives_with_its_contacts(book, people):
    other = Book(people[1], where(people[1]), 6)
    for i in (2, 3):
        other.learn(where(people[i]))
    raw = other.seal(RUN, 1, 0, ((1, 0), (2, 4), (3, 7), (5, 1)), people[1].key)  # nobody knows where 5 is
    assert book.open(raw, RUN, 0, keys(people)) == (1, ((1, 0), (2, 4), (3, 7)))
    assert {book.get(i).address for i in (1, 2, 3)} == {f"10.0.0.{i}:7447" for i in (1, 2, 3)}
    assert not book.refused


def test_an_exchange_for_somebody_else_or_by_somebody_else_is_refused(book, people):
    other = Book(people[1], where(people[1]), 6)
    good = other.seal(RUN, 1, 0, ((1, 0),), people[1].key)
    for raw, run, receiver, reason in (
        (good, bytes(16), 0, "wrong-run"),
        (good, RUN, 2, "malformed"),
        (other.seal(RUN, 1, 0, ((1, 0),), people[2].key), RUN, 0, "wrong-signature"),
        (other.seal(RUN, 9, 0, (), people[1].key), RUN, 0, "unknown-sender"),
        (good + b"\0" * LARGEST_EXCHANGE, RUN, 0, "oversized"),
    ):
        with pytest.raises(Refused, match=reason):
            book.open(raw, run, receiver, keys(people))


def test_a_contact_for_another_entry_is_left_out_and_counted(book, people):
    """Who passes on node 3's contact as node 4's gains nothing."""
    content = msgspec.msgpack.encode([RUN, 1, 0, [[4, 0], [1, 0]], [where(people[3]), where(people[1])]])
    raw = msgspec.msgpack.encode([content, people[1].key.sign(b"epidemic exchange\0" + content)])
    assert book.open(raw, RUN, 0, keys(people)) == (1, ())
    assert book.refused == {"wrong-signature": 1}
    assert book.get(4) is None


def test_nobody_keeps_a_list_of_everybody(tmp_path):
    authority = Authority.create(tmp_path)
    me, other = (Identity.load(authority.issue(f"node-{i}", ["127.0.0.1"])) for i in (0, 1))
    book = Book(me, where(me), 10**6)
    book.pinned = lambda: {1}
    book.learn(where(other))
    # certificates of a thousand places take a while to make
    book._check = lambda raw: Contact(int(raw), "10.0.0.1:1", 1, f"node-{int(raw)}", 2e18, raw)
    for node_id in range(2, 2 + 2 * CHECKED):
        book.learn(str(node_id).encode())
    assert len(book._known) == 1 + SPARE
    assert len(book._checked) <= CHECKED
    assert book.get(1) is not None


def test_a_view_is_kept_over_a_restart_but_for_those_revoked(book, people):
    for i in (2, 3, 4):
        book.learn(where(people[i]))
    saved = book.saved([(2, 0), (3, 5), (4, 1), (5, 1)])
    again = Book(people[0], where(people[0]), 6)
    before = people[0].revoked
    try:
        people[0].revoked = msgspec.structs.replace(before, names=["node-4"])
        assert again.restored(saved) == [(2, 0), (3, 5)]
    finally:
        people[0].revoked = before


def test_where_others_are_told_to_find_a_node():
    assert Addresses("127.0.0.1:7447").told == "127.0.0.1:7447"
    assert Addresses("0.0.0.0:7447", reach="hospital.example:7447").told == "hospital.example:7447"
    for address in ("0.0.0.0:7447", "[::]:7447"):
        with pytest.raises(BadInput, match='reach = "HOST:PORT"'):
            _ = Addresses(address).told
