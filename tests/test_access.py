"""Access: which keys each certificate may use, by the rules that Zenoh is given."""

import pytest
import zenoh

from epidemic.deploy.access import access_rules
from epidemic.deploy.keys import Authority, Identity

NODES = 3


@pytest.fixture
def root(tmp_path):
    authority = Authority.create(tmp_path / "keys")
    for i in range(NODES):
        authority.issue(f"node-{i}", [])
    return tmp_path / "keys"


def allowed(rules, name, flow, message, key):
    """Whether a message on the link of this certificate is let through, as Zenoh decides it: all of the key must be allowed."""
    subjects = {s["id"] for s in rules["subjects"] if name in s["cert_common_names"]}
    chosen = {rule for p in rules["policies"] if subjects & set(p["subjects"]) for rule in p["rules"]}
    assert rules["default_permission"] == "deny"
    return any(
        zenoh.KeyExpr(allow).includes(zenoh.KeyExpr(key))
        for rule in rules["rules"]
        if rule["id"] in chosen and flow in rule["flows"] and message in rule["messages"]
        for allow in rule["key_exprs"]
    )


@pytest.fixture
def may(root):
    identity = Identity.load(root / "node-0")
    rules, prefix = access_rules(identity, NODES), f"epidemic/{identity.cluster}"
    return lambda name, flow, message, key: allowed(rules, name, flow, message, f"{prefix}/{key}")


def test_messages_are_taken_from_their_sender_and_leave_towards_their_receiver_only(may):
    assert may("node-1", "ingress", "put", "to/0/1")
    assert not may("node-1", "ingress", "put", "to/0/2")
    assert not may("node-1", "ingress", "put", "to/0/*")
    assert may("node-1", "egress", "put", "to/1/0")
    assert not may("node-2", "egress", "put", "to/1/0")
    assert not may("node-1", "ingress", "declare_subscriber", "to/0/*")
    assert not may("node-1", "ingress", "declare_subscriber", "to/**")


def test_a_place_answers_and_shows_itself_only(may):
    for message, topic in (("reply", "ask/status"), ("declare_queryable", "ask/handshake")):
        assert may("node-1", "ingress", message, f"{topic}/1/0")
        assert may("node-1", "ingress", message, f"{topic}/1/*")
        assert not may("node-1", "ingress", message, f"{topic}/2/0")
        assert not may("node-1", "ingress", message, f"{topic}/2/1")
        assert not may("node-1", "ingress", message, f"{topic}/*/0")
    assert may("node-1", "ingress", "liveliness_token", "alive/1/token")
    assert not may("node-1", "ingress", "liveliness_token", "alive/2/token")
    assert not may("node-1", "ingress", "liveliness_token", "done/2/token")


def test_a_question_comes_from_who_it_says_that_asks(may):
    assert may("node-1", "ingress", "query", "ask/handshake/0/1")
    assert may("node-1", "ingress", "query", "ask/status/*/1")
    for asker in ("2", "*", "observer"):
        assert not may("node-1", "ingress", "query", f"ask/handshake/0/{asker}")
    assert not may("node-1", "ingress", "query", "ask/**")


def test_an_observer_asks_for_the_status_and_nothing_else(may):
    assert may("observer", "ingress", "query", "ask/status/*/observer")
    assert not may("observer", "ingress", "query", "ask/status/*/0")
    assert not may("observer", "ingress", "query", "ask/model/0/observer")
    assert not may("observer", "ingress", "put", "to/0/1")
    assert not may("observer", "egress", "put", "to/1/0")
    assert not may("observer", "ingress", "liveliness_token", "alive/1/token")


def test_a_later_certificate_has_its_places_rights_and_a_revoked_or_unknown_one_has_none(root):
    authority = Authority.load(root)
    authority.issue("node-1", [])
    authority.revoke("node-1")
    identity = Identity.load(root / "node-0")
    rules, key = access_rules(identity, NODES), f"epidemic/{identity.cluster}/to/0/1"
    assert allowed(rules, "node-1.1", "ingress", "put", key)
    for name in ("node-1", "node-3", "authority", "", "node-1.10"):
        for flow in ("ingress", "egress"):
            for message in ("put", "query", "reply", "liveliness_token"):
                assert not allowed(rules, name, flow, message, key)


def test_who_was_revoked_may_ask_for_the_list_that_says_so_and_nothing_else(root):
    Authority.load(root).revoke("node-1")
    identity = Identity.load(root / "node-0")
    rules, prefix = access_rules(identity, NODES), f"epidemic/{identity.cluster}"
    assert allowed(rules, "node-1", "ingress", "query", f"{prefix}/ask/revoked/0/1")
    assert allowed(rules, "node-1", "egress", "reply", f"{prefix}/ask/revoked/0/1")
    assert not allowed(rules, "node-1", "ingress", "query", f"{prefix}/ask/revoked/0/2")
    assert not allowed(rules, "node-1", "ingress", "query", f"{prefix}/ask/handshake/0/1")
    assert not allowed(rules, "node-1", "ingress", "reply", f"{prefix}/ask/revoked/1/0")
    assert not allowed(rules, "node-1", "egress", "query", f"{prefix}/ask/handshake/1/0")


def test_nobody_has_a_say_below_another_authority(root):
    rules = access_rules(Identity.load(root / "node-0"), NODES)
    for name in ("node-1", "relay", "observer"):
        assert not allowed(rules, name, "ingress", "put", "epidemic/0123456789abcdef/to/0/1")
