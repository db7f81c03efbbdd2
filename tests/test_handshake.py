"""Hellos and the keyring: who the others are, by their certificates; old, forged and foreign words change nothing."""

import datetime as dt

import msgspec
import pytest

from epidemic.core.errors import plain
from epidemic.deploy import handshake as handshakes
from epidemic.deploy import keys
from epidemic.deploy.agreement import Agreement
from epidemic.deploy.handshake import (
    LARGEST_AGREEMENT,
    LARGEST_BUNDLE,
    LARGEST_HANDSHAKE,
    Handshake,
    open_handshakes,
    seal_handshakes,
)
from epidemic.deploy.keyring import Keyring
from epidemic.deploy.keys import Authority, Identity
from epidemic.deploy.wire import Refused

NODES = 4
TERMS = Agreement({"nodes": NODES, "algorithm.lr": 0.1}, "graphs", "model", "data")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("handshake") / "keys"
    authority = Authority.create(root)
    for i in range(NODES):
        authority.issue(f"node-{i}", [])
    authority.issue("observer", [])
    authority.issue("node-1", [])  # a second certificate for the same place
    return root


@pytest.fixture
def nodes(root):
    return [Identity.load(root / f"node-{i}") for i in range(NODES)]


@pytest.fixture
def keyring(nodes):
    return Keyring(nodes[0], TERMS, NODES)


def said(identity, node_id=None, token="a", **changed):
    node_id = identity.node_id if node_id is None else node_id
    values = {
        "carrier": node_id,
        "run": TERMS.run,
        "round": -1,
        "start": 0,
        "finished": False,
        "gone": False,
        **changed,
    }
    return Handshake(node_id=node_id, token=token, certificate=identity.encoded, **values)


def bundle(*identities, agreement=TERMS, **changed):
    return seal_handshakes([(said(identity, **changed), identity) for identity in identities], agreement)


def test_hellos_of_a_process_are_understood_all_at_once(nodes, keyring):
    heard = keyring.introduce(bundle(nodes[1], nodes[2], carrier=1, round=5, start=2))
    assert [(h.node_id, h.carrier, h.token, h.round, h.start, h.differs) for h in heard] == [
        (1, 1, "a", 5, 2, ()),
        (2, 1, "a", 5, 2, ()),
    ]
    assert keyring.key_of(2).public_bytes_raw() == nodes[2].key.public_key().public_bytes_raw()
    assert keyring.carrier_of(2) == 1
    assert keyring.key_of(3) is None
    assert not keyring.refused


def test_a_commitment_is_signed_and_told(nodes, keyring):
    (heard,) = keyring.introduce(bundle(nodes[1], commitment=b"c" * 32))
    assert heard.commitment == b"c" * 32
    assert keyring.introduce(bundle(nodes[2]))[0].commitment == b""
    raw = bundle(nodes[1], commitment=b"c" * 32)
    assert keyring.introduce(raw.replace(b"c" * 32, b"d" * 32)) == []
    assert keyring.introduce(bundle(nodes[1], commitment=b"c" * 33)) == []
    assert keyring.refused == {"wrong-signature": 1, "malformed": 1}


def test_nobody_speaks_for_another_place(nodes, keyring):
    assert keyring.introduce(bundle(nodes[3], node_id=1)) == []
    assert keyring.refused == {"wrong-signature": 1}
    assert keyring.key_of(1) is None


def test_who_has_no_place_cannot_introduce_itself(root, keyring):
    observer = Identity.load(root / "observer")
    assert keyring.introduce(bundle(observer, node_id=3)) == []
    assert keyring.refused == {"wrong-signature": 1}


def test_a_hello_that_was_changed_is_refused_and_what_follows_it_is_not_looked_at(nodes, keyring):
    content = msgspec.msgpack.encode(said(nodes[1]))
    forged = msgspec.msgpack.encode(said(nodes[2], round=9))
    signed = [
        handshakes._SignedHandshake(content, nodes[1].key.sign(handshakes._DOMAIN + content)),
        handshakes._SignedHandshake(forged, nodes[2].key.sign(handshakes._DOMAIN + content)),
        handshakes._SignedHandshake(b"\xc1", b""),
    ]
    raw = msgspec.msgpack.encode(handshakes._Bundle(signed, msgspec.json.encode(TERMS)))
    assert [h.node_id for h in keyring.introduce(raw)] == [1]
    assert keyring.refused == {"wrong-signature": 1}


def test_a_signature_of_something_else_is_no_hello(nodes, keyring):
    """What a node signs as a hello, it signs as nothing else: a message, an offer or a status cannot be passed off as one."""
    content = msgspec.msgpack.encode(said(nodes[1]))
    raw = msgspec.msgpack.encode(
        handshakes._Bundle(
            [handshakes._SignedHandshake(content, nodes[1].key.sign(content))], msgspec.json.encode(TERMS)
        )
    )
    assert keyring.introduce(raw) == []
    assert keyring.refused == {"wrong-signature": 1}


def test_what_is_too_large_is_refused_unread(nodes, keyring):
    for raw in (
        b"x" * (LARGEST_BUNDLE + 1),
        bundle(*nodes, nodes[1]),  # more hellos than there are places
        bundle(nodes[1], agreement=msgspec.structs.replace(TERMS, experiment={"k" * LARGEST_AGREEMENT: 1})),
        bundle(nodes[1], token="t" * LARGEST_HANDSHAKE),
    ):
        assert keyring.introduce(raw) == []
    assert keyring.refused == {"oversized": 4}


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", b"\x92\xc4\x00\xc4\x00", b"\x80" * 10, b"\x92" * 4000, b"\x91" * LARGEST_BUNDLE]
)
def test_what_is_not_a_hello_is_refused(keyring, raw):
    assert keyring.introduce(raw) == []
    assert keyring.refused == {"malformed": 1}


@pytest.mark.parametrize("strange", [{"token": "t" * 65}, {"run": b""}, {"run": b"r" * 17}])
def test_strange_values_within_a_signed_hello_are_refused(nodes, keyring, strange):
    assert keyring.introduce(bundle(nodes[1], **strange)) == []
    assert keyring.refused == {"malformed": 1}


def test_who_does_something_else_is_told_what_and_its_key_is_not_taken(nodes, keyring):
    other = msgspec.structs.replace(TERMS, experiment={"nodes": NODES, "algorithm.lr": 0.2})
    (heard,) = keyring.introduce(bundle(nodes[2], agreement=other, run=other.run))
    assert heard.differs == ("algorithm.lr = 0.1 here, 0.2 there",)
    assert keyring.refused == {"wrong-run": 1}
    assert keyring.key_of(2) is None


def test_terms_that_are_not_those_of_the_signed_run_are_not_believed(nodes, keyring):
    """Somebody passes a hello on beside terms of its own making: neither agreement nor differences follow from them."""
    other = msgspec.structs.replace(TERMS, experiment={"algorithm.lr": 0.2})
    (heard,) = keyring.introduce(bundle(nodes[1], agreement=other))
    assert heard.differs == ()
    (heard,) = keyring.introduce(bundle(nodes[2], agreement=TERMS, run=other.run))
    assert heard.differs == ("the run differs",)
    for broken in (b"", b"{", b"[" * 1000, b"\xff"):
        content = msgspec.msgpack.encode(said(nodes[3], run=bytes(16)))
        signed = handshakes._SignedHandshake(content, nodes[3].key.sign(handshakes._DOMAIN + content))
        (heard,) = keyring.introduce(msgspec.msgpack.encode(handshakes._Bundle([signed], broken)))
        assert heard.differs == ("the run differs",)


def test_words_of_others_are_short_and_plain(nodes, keyring):
    """Keys of 60 kB, line breaks and escape codes in terms become a few short lines of plain characters."""
    evil = {"k" * 60_000: 1, "a\n\x1b[2J[red]b": "\x07\u202e\r\n", **{f"key-{i}": "v" * 500 for i in range(40)}}
    for experiment in ({"k" * 60_000: 1}, {k: v for k, v in evil.items() if len(k) < 100}):
        other = msgspec.structs.replace(TERMS, experiment=experiment)
        (heard,) = keyring.introduce(bundle(nodes[2], agreement=other, run=other.run))
        assert 1 <= len(heard.differs) <= 4
        for text in heard.differs:
            assert len(text) <= 240
            assert text == plain(text, 240)
            assert text.isprintable()


def test_a_certificate_that_is_revoked_or_has_ended_counts_no_more(nodes, keyring):
    keyring.introduce(bundle(nodes[1], nodes[2], carrier=1))
    now = dt.datetime.now(dt.UTC)
    assert keyring.void(now) == set()
    nodes[0].revoked = keys.Revocations(1, ["node-1"])
    assert keyring.void(now) == {1}
    with pytest.raises(Refused, match="revoked"):
        keyring.key_of(1)
    assert keyring.key_of(2) is not None
    assert keyring.introduce(bundle(nodes[1])) == []
    assert keyring.refused == {"revoked": 1}
    assert keyring.void(now + dt.timedelta(days=4000)) == {1, 2}


def test_a_certificate_of_another_authority_is_refused(tmp_path, keyring):
    stranger = Identity.load(Authority.create(tmp_path / "others").issue("node-1", []))
    assert keyring.introduce(bundle(stranger)) == []
    assert keyring.refused == {"unknown-sender": 1}


def test_an_old_hello_said_again_by_somebody_else_changes_no_key_and_no_carrier(root, nodes, keyring):
    """Node 1 was once carried by node 2, and had another certificate; whoever kept that hello cannot cut it off with it."""
    old = bundle(nodes[2], nodes[1], carrier=2, token="old")
    renewed = Identity.load(root / "node-1.1")
    keyring.shown(1, "new", True)
    assert [h.node_id for h in keyring.introduce(bundle(renewed, token="new"))] == [1]
    keyring.introduce(old)
    assert keyring.carrier_of(1) == 1
    assert keyring.key_of(1).public_bytes_raw() == renewed.key.public_key().public_bytes_raw()
    keyring.shown(1, "new", False)  # it has gone ...
    keyring.shown(2, "old", True)  # ... and is there once more as before
    keyring.introduce(old)
    assert keyring.carrier_of(1) == 2


def test_a_start_that_is_shown_takes_the_place_of_the_one_before(nodes, keyring):
    keyring.shown(1, "a", True)
    keyring.introduce(bundle(nodes[1], token="a"))
    keyring.shown(2, "b", True)
    keyring.introduce(bundle(nodes[2], nodes[1], carrier=2, token="b"))  # the same place, in another process
    assert keyring.carrier_of(1) == 2


def test_whoever_is_carried_by_another_is_believed_only_beside_its_carrier(nodes, keyring):
    """Otherwise a member could speak for the start of another process, which would then never be greeted."""
    assert keyring.introduce(bundle(nodes[3], carrier=1, token="that of node 1")) == []
    assert keyring.refused == {"wrong-link": 1}
    both = [(said(nodes[3], carrier=1, token="x"), nodes[3]), (said(nodes[1], token="another"), nodes[1])]
    assert [h.node_id for h in keyring.introduce(seal_handshakes(both, TERMS))] == [1]
    assert keyring.refused == {"wrong-link": 2}


def test_nothing_is_taken_from_an_open_bundle_but_hellos(nodes):
    found, refused = open_handshakes(bundle(nodes[1]), nodes[0], NODES)
    assert [known.name for known in found] == ["node-1"]
    assert refused == []


def _differences(here, there):
    from epidemic.deploy.agreement import Names, differences

    made = [msgspec.structs.replace(TERMS, classes=Names.of(names)) for names in (here, there)]
    assert (made[0].run == made[1].run) == (here == there)
    return differences(*made)


def test_names_of_classes_are_compared_and_both_lists_told():
    """Their number, their order and every name count, also of those that are not told in words."""
    assert _differences(["a", "b"], ["a", "b"]) == []
    assert _differences(["benign", "malignant"], ["malignant", "unclear"]) == [
        "classes [benign, malignant] here, [malignant, unclear] there: name all of them, in one order, in data.classes of all nodes"
    ]
    assert "[a, b] here, [b, a] there" in _differences(["a", "b"], ["b", "a"])[0]
    assert "[0, 1] here, [0, 1, 2] there" in _differences(["0", "1"], ["0", "1", "2"])[0]
    assert "[] here, [a, b] there" in _differences([], ["a", "b"])[0]
    many = [f"class {i}" for i in range(5000)]
    (told,) = _differences(many, [*many[:-1], "other"])
    assert "... 4995 more" in told
    long = ["x" * 200 + str(i) for i in range(2000)]
    assert _differences(long, long[::-1])
    assert len(_differences(long, many)[0]) <= 240


def test_names_of_classes_from_others_are_bounded_and_plain(nodes, keyring):
    from epidemic.deploy.agreement import Names

    evil = ("a\n\x1b[2J", "\u202eb", "[red]c")
    other = msgspec.structs.replace(TERMS, classes=Names(3, "00", evil))
    (heard,) = keyring.introduce(bundle(nodes[2], agreement=other, run=other.run))
    assert "classes [] here, [a??[2J, ?b, [red]c] there" in heard.differs[0]
    assert heard.differs[0].isprintable()
    for names in (Names(1, "0", ("x" * 49,)), Names(1, "0", ("x",) * 65), Names(10**9, "0" * 1000, ())):
        other = msgspec.structs.replace(TERMS, classes=names)
        (heard,) = keyring.introduce(bundle(nodes[2], agreement=other, run=other.run))
        assert all(len(text) <= 240 for text in heard.differs)
        assert len(heard.differs) == 1


def test_features_and_shapes_of_inputs_are_compared():
    from epidemic.deploy.agreement import Names, differences

    here = msgspec.structs.replace(TERMS, inputs=(2,), features=Names.of(["age", "dose"]))
    there = msgspec.structs.replace(TERMS, inputs=(2,), features=Names.of(["dose", "age"]))
    assert "features [age, dose] here, [dose, age] there" in differences(here, there)[0]
    other = msgspec.structs.replace(TERMS, inputs=(3, 8, 8))
    assert differences(TERMS, other) == ["inputs of shape [] here, [3,8,8] there"]
