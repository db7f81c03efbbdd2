"""What a node says of itself is shown, and does nothing else to whoever watches."""

import io
import math
from itertools import pairwise

import msgspec
import pytest
from rich.console import Console

from epidemic.cli.statuses import status_table
from epidemic.core.errors import BadInput, plain
from epidemic.deploy.link_monitor import BLIND, LinkMonitor
from epidemic.deploy.status import LARGEST_STATUS, Status, read_status
from epidemic.deploy.watching import _nodes_of
from epidemic.record import HeardCounts

GOOD = Status(
    node_id=3, state="waiting", round=5, rounds=10, accuracy=0.5, loss=1.0, bytes=1000, alive=4, nodes=4, late=0, lost=0, refused=2,
    jumped=0, undelivered=0, limit=1.5, longest_wait=0.2, messages={"counted": 7}, refusals={"malformed": 2},
)  # fmt: skip

FINE = {
    "rounds": 5,
    "lonely": 1,
    "expected": 10,
    "heard": 8,
    "recent_rounds": 2,
    "recent_expected": 4,
    "recent_heard": 3,
}


def raw(**changed):
    return msgspec.json.encode({**msgspec.to_builtins(GOOD), **changed})


def test_a_good_status_is_read_as_it_was_written():
    assert read_status(msgspec.json.encode(GOOD), 3) == GOOD
    told = msgspec.structs.replace(GOOD, delivery=HeardCounts(**FINE))
    assert read_status(msgspec.json.encode(told), 3) == told


@pytest.mark.parametrize(
    "changed",
    [
        {"node_id": 2}, {"node_id": "3"}, {"round": 1e300}, {"rounds": -1}, {"bytes": 2**80}, {"accuracy": 1.5}, {"accuracy": "high"},
        {"limit": -1.0}, {"longest_wait": 1e30}, {"alive": None}, {"messages": {str(i): i for i in range(65)}},
        {"delivery": {}}, {"delivery": FINE | {"heard": -1}}, {"delivery": FINE | {"rounds": 2**60}}, {"delivery": FINE | {"lonely": 6}},
        {"delivery": FINE | {"recent_heard": 9}}, {"delivery": FINE | {"recent_expected": 11}}, {"delivery": FINE | {"recent_rounds": 6}},
        {"delivery": FINE | {"expected": 1e300}}, {"refusals": {"malformed": -1}}, {"state": 7}, {"state": "x" * LARGEST_STATUS},
    ],
)  # fmt: skip
def test_a_status_with_impossible_numbers_or_of_another_place_is_not_shown(changed):
    assert read_status(raw(**changed), 3) is None


@pytest.mark.parametrize(
    "junk", [b"", b"{", b"null", b"\xff\xfe", b"[" * 10_000, raw()[:-1], raw().replace(b"1.0", b"1e999")]
)
def test_what_is_no_status_is_not_shown(junk):
    assert read_status(junk, 3) is None


HOSTILE = (
    "[bold red]x[/bold red]",
    "[/]",
    "\x1b[31mred",
    "a\nb\rc",
    "\x9b31m",
    "\u202eabc",
    "[link=file:///x]y",
    "\x00\x07",
)


@pytest.mark.parametrize("words", HOSTILE)
def test_words_of_a_node_neither_colour_nor_break_the_table(words):
    status = read_status(raw(state=words, messages={words: 1}), 3)
    assert status is not None
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200)
    console.print(status_table({3: status}, {3}, "title"))
    harmless = io.StringIO()
    same_length = "x" * len(status.state)
    fine = msgspec.structs.replace(status, state=same_length)
    Console(file=harmless, force_terminal=True, width=200).print(status_table({3: fine}, {3}, "title"))
    assert out.getvalue() == harmless.getvalue().replace(same_length, status.state)
    assert status.state.isprintable()


@pytest.mark.parametrize("words", [*HOSTILE, "x" * 1000, "\x1b" * 1000])
def test_plain_words_are_one_printable_line_of_bounded_length(words):
    shown = plain(words, 50)
    assert shown.isprintable()
    assert len(shown) <= 50
    assert plain("round 3: accuracy 51 %, größer als ½") == "round 3: accuracy 51 %, größer als ½"


def test_a_place_that_is_linked_and_not_in_sight_is_a_reason_to_start_anew_ever_more_rarely():
    sight, when, now = LinkMonitor(1), [], 0.0
    while now < 20 * BLIND:
        if sight.lost({4}, now):
            when.append(now)
        now += 0.5
    gaps = [b - a for a, b in zip([0.0, *when], when, strict=False)]
    assert gaps[0] == BLIND
    assert all(later >= 2 * gap - 1 for gap, later in pairwise(gaps))
    tries = len(when)
    sight.saw(4, now)  # who blinks is not trusted again
    assert not sight.lost({4}, now)
    assert not sight.lost({4}, now + BLIND * 2 ** (tries - 1))
    for second in range(301):
        sight.saw(4, now + second)
    assert not sight.lost({4}, now + 301)
    assert sight.lost({4}, now + 301 + BLIND)


def test_of_two_that_do_not_see_each_other_one_starts_anew_first():
    low, high = LinkMonitor(1), LinkMonitor(2)
    assert not low.lost({2}, 0.0)
    assert not high.lost({1}, 0.0)
    assert low.lost({2}, BLIND)
    assert not high.lost({1}, BLIND)
    assert high.lost({1}, 2 * BLIND)


def test_who_comes_into_sight_in_time_is_no_reason():
    sight = LinkMonitor(0)
    assert not any(sight.lost({1} if math.floor(t) % 9 else set(), float(t)) for t in range(500))


def test_a_file_cannot_make_a_watcher_expect_any_number_of_nodes(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text("nodes = 5")
    assert _nodes_of(file) == 5
    file.write_text("nodes = 1_000_000_000")
    with pytest.raises(BadInput, match="nodes = 1000000000 must be at most 65536"):
        _nodes_of(file)
