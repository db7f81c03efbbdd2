"""Which process hosts which nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import epidemic as ep
from epidemic.cli.app import main
from epidemic.net.processes import blocks


@given(st.integers(1, 500), st.data())
def test_every_place_is_hosted_once_in_contiguous_blocks_of_nearly_the_same_size(count, data):
    processes = data.draw(st.integers(1, count))
    found = blocks(count, processes)
    assert [place for block in found for place in block] == list(range(count))
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
