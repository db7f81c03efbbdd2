"""Which process hosts which nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import epidemic as ep
from epidemic.cli.app import main
from epidemic.cli.clusters import _starting
from epidemic.deploy.processes import Child, blocks


@given(st.integers(1, 500), st.data())
def test_every_place_is_hosted_once_in_contiguous_blocks_of_nearly_the_same_size(count, data):
    processes = data.draw(st.integers(1, count))
    found = blocks(count, processes)
    assert [node_id for block in found for node_id in block] == list(range(count))
    assert len(found) == processes
    sizes = [len(block) for block in found]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("processes", "said"), [(5, "must be at most nodes = 4"), (0, "must be at least 1")])
def test_more_processes_than_nodes_are_refused(processes, said, tmp_path, capsys):
    with pytest.raises(ep.BadInput, match=said):
        blocks(4, processes)
    out = tmp_path / "up"
    assert main(["cluster", "up", "--nodes", "4", "--processes", str(processes), "--out", str(out)]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_named_twice_is_refused(tmp_path, capsys):
    assert main(["node", str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "." / "a")]) == 2
    assert "named twice" in capsys.readouterr().err


class Asleep:
    """A process that does nothing."""

    def __init__(self, running=True):
        self.running = running

    def is_alive(self):
        return self.running


class Several:
    """A cluster as far as it is looked at while it starts."""

    def __init__(self, *children):
        self.children = children


def child(folder, node_ids, log=None, **options):
    folder.mkdir(exist_ok=True)
    if log is not None:
        (folder / "node.log").write_text(log)
    return Child(node_ids, (folder,), options.pop("process", Asleep()), **options)


def test_the_last_words_of_a_process_are_those_since_its_start(tmp_path):
    earlier = "     0.00  starting\n     9.99  interrupted\n"
    folder = tmp_path / "node-0"
    again = child(folder, range(1), earlier, said_before=len(earlier))
    assert again.last_words == ""
    (folder / "node.log").write_text(earlier + "     0.00  starting\n     0.13  loading the data\n")
    assert again.last_words == "loading the data"
    (folder / "node.log").write_text(earlier + f"     0.13  {'x' * 1999}\n" * 50 + "     1.00  the end\n")
    assert again.last_words == "the end"
    assert child(tmp_path / "node-1", range(1)).last_words == ""


def test_while_nodes_start_it_is_said_which_have_not_answered_and_what_the_first_does(tmp_path):
    first = child(tmp_path / "a", range(2), "     0.13  loading the data\n")
    second = child(tmp_path / "b", range(2, 4))
    gone = child(tmp_path / "c", range(4, 5), process=Asleep(running=False))
    cluster = Several(first, second, gone)
    said = _starting(cluster, {})
    assert said == "waiting for 4 of 5 nodes to answer: nodes 0, 1, 2, 3; node 0: loading the data"
    assert _starting(cluster, {0: None, 1: None}) == "waiting for 2 of 5 nodes to answer: nodes 2, 3; node 2: starting"
    assert _starting(cluster, {0: None, 2: None}) == ""
