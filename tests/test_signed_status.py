"""Statuses: every node speaks for itself only, and what it says is fit for a terminal."""

import io

import msgspec
import pytest

from epidemic.deploy import status as statuses
from epidemic.deploy.keys import Authority, Identity
from epidemic.deploy.status import LARGEST_STATUS, Status, open_statuses, seal_statuses

NODES = 3


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    authority = Authority.create(tmp_path_factory.mktemp("status") / "keys")
    return [Identity.load(authority.issue(f"node-{i}", [])) for i in range(NODES)]


def status(node_id, **changed):
    values = {
        "state": "training", "round": 3, "rounds": 10, "accuracy": 0.5, "loss": 1.25, "bytes": 1000, "alive": 3, "nodes": 3,
        "late": 0, "lost": 1, "refused": 2, "jumped": 0, "undelivered": 0, "limit": 0.5, "longest_wait": 1.5,
        "messages": {"counted": 7}, "refusals": {"malformed": 2}, "local": 4, **changed,
    }  # fmt: skip
    return Status(node_id=node_id, **values)


def signed(identity, content):
    return statuses._SignedStatus(content, identity.encoded, identity.key.sign(statuses._DOMAIN + content))


def test_what_nodes_say_of_themselves_is_read_as_it_was_said(nodes):
    said = [status(2), status(0, accuracy=None, loss=None, round=-1)]
    raw = seal_statuses((one, nodes[one.node_id]) for one in said)
    assert open_statuses(raw, nodes[1], NODES) == said[::-1]


def test_a_status_about_another_place_is_left_out(nodes):
    raw = seal_statuses([(status(1), nodes[2]), (status(0), nodes[0])])
    assert [one.node_id for one in open_statuses(raw, nodes[0], NODES)] == [0]


def test_a_status_that_was_changed_or_signed_as_something_else_is_left_out(nodes):
    content = msgspec.json.encode(status(1))
    changed = statuses._SignedStatus(
        content.replace(b"1000", b"1001"), nodes[1].encoded, signed(nodes[1], content).signature
    )
    otherwise = statuses._SignedStatus(content, nodes[1].encoded, nodes[1].key.sign(content))
    for bad in (changed, otherwise):
        assert open_statuses(msgspec.msgpack.encode([bad]), nodes[0], NODES) == []


def test_who_is_no_member_is_left_out(tmp_path, nodes):
    stranger = Identity.load(Authority.create(tmp_path / "others").issue("node-1", []))
    assert open_statuses(seal_statuses([(status(1), stranger)]), nodes[0], NODES) == []


@pytest.mark.parametrize(
    "change",
    [
        {"round": 2**60}, {"accuracy": 2.0}, {"bytes": -1}, {"longest_wait": -1.0}, {"state": 7},
        {"messages": {str(i): i for i in range(65)}}, {"state": "s" * LARGEST_STATUS},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_impossible_or_endless_values_are_left_out(nodes, change):
    values = {**msgspec.to_builtins(status(1)), **change}
    raw = msgspec.msgpack.encode([signed(nodes[1], msgspec.json.encode(values))])
    assert open_statuses(raw, nodes[0], NODES) == []


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x91" * 5000, b"\x93\x01\x02\x03", b"[" * 5000])
def test_what_is_no_status_is_left_out(nodes, raw):
    assert open_statuses(raw, nodes[0], NODES) == []


def test_deep_or_broken_content_is_left_out_and_the_rest_counts(nodes):
    parts = [signed(nodes[1], b"[" * 10_000), signed(nodes[2], msgspec.json.encode(status(2)))]
    assert [one.node_id for one in open_statuses(msgspec.msgpack.encode(parts), nodes[0], NODES)] == [2]


def test_no_more_statuses_are_looked_at_than_there_are_nodes(nodes):
    raw = seal_statuses([(status(1), nodes[1])] * NODES + [(status(2), nodes[2])])
    assert [one.node_id for one in open_statuses(raw, nodes[0], NODES)] == [1]


def test_escape_codes_and_line_breaks_become_plain_and_words_are_short(nodes):
    evil = "\x1b[2J\x1b]0;title\x07\n[bold red]done[/]\u202e" * 20
    (one,) = open_statuses(
        seal_statuses([(status(1, state=evil, messages={evil: 1}, refusals={evil: 2}), nodes[1])]), nodes[0], NODES
    )
    for word in (one.state, *one.messages, *one.refusals):
        assert word.isprintable()
        assert len(word) <= 24


def test_markup_of_others_is_printed_as_it_is_and_never_obeyed(nodes):
    from rich.console import Console

    from epidemic.cli.statuses import status_table

    (one,) = open_statuses(seal_statuses([(status(1, state="[red]x[/nope]"), nodes[1])]), nodes[0], NODES)
    console = Console(width=200, record=True, force_terminal=True, file=io.StringIO())
    console.print(status_table({1: one}, {1}, "nodes"))
    assert "[red]x[/nope]" in console.export_text()
