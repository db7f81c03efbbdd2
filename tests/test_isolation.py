"""Operators are told how many messages counted of those expected, and where nodes learnt alone."""

import io

import msgspec
import pytest
from rich.console import Console

from epidemic.cli.plot import screen
from epidemic.cli.statuses import SHOWN, delivery_line, delivery_table, status_line, status_table
from epidemic.deploy.isolation import mostly_alone, often_alone, said_of_cluster, said_of_node
from epidemic.record import HeardCounts, encode
from epidemic.report.results import read_results
from test_statuses import GOOD
from written import Written, a_record


def alone(lonely, rounds=100):
    """A node that expected two messages a round and heard them but in so many lonely rounds."""
    return HeardCounts(rounds, lonely, 2 * rounds, 2 * (rounds - lonely), 0, 0, 0)


def printed(table):
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    return out.getvalue()


def test_a_total_is_the_sum_and_of_nobody_there_is_none():
    parts = HeardCounts(5, 1, 10, 8, 2, 4, 3), HeardCounts(7, 0, 14, 15, 3, 6, 7)
    assert HeardCounts.total(parts) == HeardCounts(12, 1, 24, 23, 5, 10, 10)
    assert HeardCounts.total([]) is None


@pytest.mark.parametrize(
    ("lonely", "rounds", "often", "mostly"),
    [(0, 0, False, False), (0, 9, False, False), (10, 100, False, False), (11, 100, True, False), (50, 100, True, False),
     (51, 100, True, True), (1, 1, True, True)],
)  # fmt: skip
def test_more_than_a_tenth_is_often_and_more_than_half_is_mostly(lonely, rounds, often, mostly):
    found = alone(lonely, rounds)
    assert (often_alone(found), mostly_alone(found)) == (often, mostly)
    assert bool(said_of_node(found, 2.0)) == often


def test_a_node_says_the_share_the_limit_and_what_to_do():
    said = said_of_node(alone(31), 2.5)
    assert said.startswith("learnt alone in 31 of 100 rounds (31 %), more than a tenth: ")
    assert "let nodes wait longer by network.close (now at most 2.5 s)" in said
    assert said_of_node(None, 2.5) == ""


def test_a_cluster_names_the_nodes_that_learnt_alone_the_loneliest_first():
    assert said_of_cluster({}, 1.0) == ""
    assert said_of_cluster({i: alone(10) for i in range(4)}, 1.0) == ""
    one = said_of_cluster({0: alone(0), 1: alone(20), 2: alone(0), 3: alone(0)}, 1.0)
    assert one.startswith(
        "1 of 4 nodes learnt alone in more than a tenth of their rounds: node 1 in 20 of 100 rounds (20 %); let nodes wait"
    )
    some = said_of_cluster({0: alone(0), 1: alone(20), 2: alone(40)}, 1.0)
    assert some.startswith("the nodes learnt alone in 60 of 300 rounds (20 %), more than a tenth: node 2 in 40 of 100")
    most = said_of_cluster({i: alone(90 + i) for i in range(8)}, 1.0)
    assert most.startswith("the nodes learnt alone in 748 of 800 rounds (94 %), more than half: node 7 in 97 of 100")
    assert (
        "node 2 in 92 of 100 rounds (92 %); and 2 more; let nodes wait longer by network.close (now at most 1 s)"
        in most
    )
    assert "\n" not in most


def test_the_table_of_statuses_has_what_was_heard_lately_and_in_all():
    told = msgspec.structs.replace(GOOD, delivery=HeardCounts(50, 6, 100, 88, 20, 40, 42))
    text = printed(status_table({3: told, 4: msgspec.structs.replace(GOOD, node_id=4)}, {3, 4}, "title"))
    heads, first, second = (line.split("  ") for line in text.splitlines()[1:4])
    assert [head.strip() for head in heads if head.strip()][5:8] == ["heard lately", "heard in all", "alone"]
    assert [cell.strip() for cell in first if cell.strip()][5:8] == [
        "42/40",
        "88/100",
        "6/50",
    ]  # more than expected is no mistake
    assert [cell.strip() for cell in second if cell.strip()][5:8] == ["-", "-", "-"]
    assert "messages heard lately 42 of 40, in all 88 of 100, rounds alone 6 of 50" in status_line([told, GOOD])
    free = msgspec.structs.replace(GOOD, trained=4, left=2.0)
    assert "heard" not in printed(status_table({3: free}, {3}, "title")) + status_line([free])


def test_before_the_first_round_nothing_is_said():
    assert delivery_line([alone(0, 0), None]) == ""


def test_of_many_nodes_the_loneliest_have_a_line():
    nodes = {i: alone(i) for i in range(SHOWN + 4)}
    lines = printed(delivery_table(nodes)).splitlines()
    assert lines[0].strip() == f"messages heard of expected, {SHOWN} of {SHOWN + 4} nodes"
    assert [line.split()[0] for line in lines[2:]] == [*map(str, range(4, SHOWN + 4)), "all"]
    assert lines[-1].split()[-1] == f"{sum(range(SHOWN + 4))}/{100 * (SHOWN + 4)}"


def test_watch_shows_it_for_deployed_runs_only(tmp_path):
    for name, delivery in (("deployed", HeardCounts(4, 1, 8, 6, 4, 8, 6)), ("simulated", None)):
        written = Written(tmp_path / name)
        record = msgspec.structs.replace(a_record(4, 0.5), delivery=delivery)
        (written.path / "records.jsonl").write_bytes(encode(record))
    text = printed(screen(read_results(tmp_path / "deployed"), 200, 30))
    assert "heard in all" in text
    assert "6/8" in text
    assert "heard" not in printed(screen(read_results(tmp_path / "simulated"), 200, 30))
