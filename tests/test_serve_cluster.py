"""A cluster's page: every node as it answers or as its run says, and the round's links where everybody knows them."""

import re
import shutil
import sys
from importlib.resources import files

import msgspec
import pytest
from starlette.testclient import TestClient

import epidemic as ep
from epidemic.core.rng import Streams
from epidemic.deploy.folders import make_cluster
from epidemic.record import HeardCounts, encode
from epidemic.web.app import application
from epidemic.web.clusters import PATIENCE, RECENT, ShownNode, StatusAnswer, WatchedCluster, _heard, members
from epidemic.web.picture import WORDS, cluster_page, shape
from epidemic.web.watch import Catalogue, WatchedRun, WatchedSeed
from test_statuses import GOOD
from written import Written, a_record, finished, links

NOW = 1000.0


def says(node_id=3, **changed):
    return msgspec.structs.replace(GOOD, node_id=node_id, **changed)


def state(answer=None, others=(), run=None, now=NOW):
    answers = {3: answer} if answer is not None else {}
    answers |= {10 + i: StatusAnswer(says(10 + i, round=r), now) for i, r in enumerate(others)}
    found = members([3], answers, {} if run is None else {3: run}, now, asked=bool(answers))
    return found[0]


def run_of(written):
    run = WatchedRun(written.path.parent, written.path.parent.parent)
    run.seeds[written.path] = WatchedSeed(written.path)
    run.look()
    return run


def test_a_node_is_as_it_answers():
    assert state(StatusAnswer(says(), NOW)).state == "alive"
    assert state(StatusAnswer(says(), NOW - PATIENCE)).state == "gone"
    assert state(StatusAnswer(says(state="looking"), NOW)).state == "joining"
    assert state(StatusAnswer(says(state="failed"), NOW)).state == "failed"
    assert state(StatusAnswer(says(state="lingering"), NOW - 100)).state == "finished"
    assert state(None).state == "absent"


def test_who_is_behind_or_hears_late_or_refuses_is_shown_so_for_a_while():
    assert state(StatusAnswer(says(round=5), NOW), others=(6, 6, 6)).state == "alive"
    assert state(StatusAnswer(says(round=5), NOW), others=(7, 7, 7)).state == "late"
    before = StatusAnswer(says(late=1, refused=2), NOW - 1)
    assert state(_heard(before, says(late=2, refused=2), NOW)).state == "late"
    refusing = _heard(before, says(late=2, refused=3), NOW)
    assert state(refusing).state == "refused"
    later = _heard(refusing, says(late=2, refused=3), NOW + RECENT)
    assert state(later, now=NOW + RECENT).state == "alive"


def test_a_run_on_disk_says_what_a_silent_node_cannot(tmp_path):
    written = Written(tmp_path / "node-3" / "run", node=3)
    written.record(4, 0.5)
    run = run_of(written)
    assert state(None, run=run).state == "alive", "nobody was asked, and it is running"
    assert state(None, others=(1,), run=run).state == "joining", "it runs, but has not answered yet"
    written.fail("the disk is full")
    run.look()
    silent = StatusAnswer(says(), NOW - 100)
    assert (state(silent, run=run).state, state(silent, run=run).why) == ("failed", "the disk is full")
    assert state(StatusAnswer(says(), NOW), run=run).state == "alive", "its answer is newer than a copy of its files"
    written.finish(0.75)
    run.look()
    assert state(silent, run=run).state == "finished"
    assert state(None, run=run).state == "finished"


@pytest.fixture
def folder(tmp_path):
    experiment = ep.Experiment(
        nodes=4, rounds=5, data=ep.Digits(), model=ep.Logistic(), topology=ep.ELLocal(2), seeds=[7]
    )
    make_cluster(experiment, [f"127.0.0.1:{port}" for port in range(9, 13)], tmp_path / "four")
    return tmp_path / "four"


def found_in(folder):
    catalogue = Catalogue([folder])
    catalogue.look()
    return WatchedCluster(next(iter(catalogue.clusters.values())))


def test_links_are_those_of_the_present_round(folder):
    cluster = found_in(folder)
    cluster.members = [ShownNode(i, "alive", round=3, rounds=5) for i in range(4)]
    graph = ep.ELLocal(2).graph(4, 3, Streams(7))
    assert cluster.links().senders.tolist() == graph.senders.tolist()
    text = cluster_page(cluster).main
    assert text.count('class="flow"') == graph.messages == 8
    cluster.members[0] = ShownNode(0, "gone")
    text = cluster_page(cluster).main
    away = sum(1 for i in range(4) for j in graph.senders[graph.indptr[i] : graph.indptr[i + 1]] if 0 in (i, j))
    assert text.count('class="cut"') == away


@pytest.mark.parametrize(
    "change",
    [("coin = \"shared\"", "coin = \"private\""), ('kind = "el-local"', 'kind = "python"\nfactory = "evil:make"'),
     ('kind = "el-local"', 'kind = "every"\nperiod = 2\ninner = {kind = "python", factory = "evil:make"}')],
)  # fmt: skip
def test_what_only_nodes_know_or_code_would_say_is_not_drawn(folder, change):
    path = folder / "experiment.toml"
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    (folder / "evil.py").write_text("raise SystemExit('executed')")
    before = list(sys.path)
    cluster = found_in(folder)
    cluster.look(ask=False)
    assert cluster.links() is None
    assert len(cluster.members) == 4
    assert "The nodes" in cluster_page(cluster).main
    assert sys.path == before
    assert "evil" not in sys.modules


def test_every_state_has_words_and_a_shape_of_its_own():
    looks = {
        state: re.sub("s-.*", "", shape(state, 0, 0, 5)) for state in ("alive", "late", "refused", "failed", "finished")
    }
    assert len(set(looks.values())) == 5
    style = (files("epidemic.web") / "live.css").read_text()
    assert all(f".s-{state}" in style for state in WORDS)


def test_without_a_certificate_what_is_on_disk_is_shown(folder):
    shutil.rmtree(folder / "observer")
    finished(folder / "node-2" / "run", rounds=5, every=1)
    with TestClient(application([folder.parent]), base_url="http://localhost") as visitor:
        index = visitor.get("/").text
        assert links(index, "run") == [], "runs of nodes belong to their cluster"
        text = visitor.get(links(index, "cluster")[0]).text
    assert "There is no observer" in text
    assert text.count('<tr id="n-') == 4
    assert re.search(r'<tr id="n-2">.*?s-finished.*?90.00 %', text)
    assert "Accuracy" in text


def test_words_of_nodes_are_shown_and_not_executed(folder):
    cluster = found_in(folder)
    hostile = "<script>x</script>"
    cluster.members = members([3], {3: StatusAnswer(says(state=hostile), NOW)}, {}, NOW, asked=True)
    assert hostile not in cluster_page(cluster).main
    assert "&lt;script&gt;" in cluster_page(cluster).main


def test_messages_heard_of_expected_are_shown_lately_and_in_all(folder):
    cluster = found_in(folder)
    well, badly = HeardCounts(50, 0, 100, 98, 20, 40, 39), HeardCounts(50, 30, 100, 41, 20, 40, 0)
    answers = {
        0: StatusAnswer(says(0, delivery=well), NOW),
        1: StatusAnswer(says(1, delivery=badly), NOW),
        2: StatusAnswer(says(2), NOW),  # of before there were these numbers
    }
    cluster.members = members([0, 1, 2], answers, {}, NOW, asked=True)
    text = cluster_page(cluster).main
    cells = [re.findall("<td>(.*?)</td>", re.search(f'<tr id="n-{i}">(.*?)</tr>', text)[1]) for i in range(3)]
    assert [row[5:8] for row in cells] == [
        ["39 / 40", "98 / 100", "0 / 50"],
        ["0 / 40", "41 / 100", '<b class="some">30 / 50</b><small class="why">most rounds</small>'],
        ["-", "-", "-"],
    ]
    assert "39 of 80<small>expected messages</small>" in text
    assert "30<small>of 100</small>" in text
    assert "1 often alone" in text


def test_a_method_without_rounds_expects_no_messages(folder):
    cluster = found_in(folder)
    cluster.members = members([3], {3: StatusAnswer(says(trained=9, left=3.0), NOW)}, {}, NOW, asked=True)
    assert "heard lately" not in cluster_page(cluster).main


def test_messages_are_counted_from_the_records_of_a_node_that_is_not_asked(tmp_path):
    written = Written(tmp_path / "node-3" / "run", node=3)
    delivery = HeardCounts(4, 1, 8, 6, 4, 8, 6)
    with (written.path / "records.jsonl").open("ab") as file:
        file.write(encode(msgspec.structs.replace(a_record(4, 0.5), delivery=delivery)))
    run = run_of(written)
    assert state(None, run=run).delivery == delivery
    assert state(StatusAnswer(says(delivery=HeardCounts(3, 1, 6, 4, 3, 6, 4)), NOW - 100), run=run).delivery.rounds == 3
    written.finish(0.75)
    run.look()
    assert state(StatusAnswer(says(delivery=HeardCounts(3, 1, 6, 4, 3, 6, 4)), NOW), run=run).delivery == delivery


def test_keys_are_never_entered(folder):
    (folder / "authority" / "seed-1").mkdir()
    (folder / "authority" / "seed-1" / "run.json").write_text("{}")
    catalogue = Catalogue([folder])
    catalogue.look()
    assert catalogue.runs == {}
