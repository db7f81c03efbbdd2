"""The numbers of messages without rounds grow with each start, whatever the clock says and whatever was saved."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epidemic.core.errors import BadInput
from epidemic.deploy import epoch
from epidemic.deploy.epoch import SHIFT, first_number
from epidemic.protocol.events import SECOND
from epidemic.protocol.replay_filter import ReplayFilter

NOW = 1_790_000_000


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = NOW

        def time(self):
            return self.now

    found = Clock()
    monkeypatch.setattr(epoch, "time", found)
    return found


def test_a_node_that_restarts_without_a_checkpoint_and_with_its_clock_an_hour_back_is_heard_at_once(tmp_path, clock):
    replay_filter = ReplayFilter()
    before = first_number(tmp_path, 0)
    assert [replay_filter.put(1, before + i, i * SECOND) for i in range(1, 100)] == ["counted"] * 99
    clock.now -= 3600
    after = first_number(tmp_path, 0)
    assert [replay_filter.put(1, after + i, (100 + i) * SECOND) for i in range(1, 10)] == ["counted"] * 9


@given(st.lists(st.tuples(st.integers(0, 4 * NOW), st.integers(0, 2**40)), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_numbers_grow_whatever_the_clock_and_the_checkpoint_say(tmp_path_factory, starts):
    folder = tmp_path_factory.mktemp("node")
    last = 0
    with pytest.MonkeyPatch.context() as patch:
        for now, used in starts:
            patch.setattr(epoch, "time", type("Clock", (), {"time": staticmethod(lambda now=now: now)}))
            first = first_number(folder, used)
            assert first > max(last, used)
            assert first < 2**63 - 2**SHIFT
            last = first + 1_000_000


def test_a_folder_that_was_restored_from_a_backup_is_heard_at_once_where_the_clock_is_right(tmp_path, clock):
    before = first_number(tmp_path, 0)
    saved = (tmp_path / "epoch").read_bytes()
    clock.now += 3600
    lost = first_number(tmp_path, 0)
    (tmp_path / "epoch").write_bytes(saved)
    clock.now += 60
    assert first_number(tmp_path, before) > lost + 10**9


def test_it_is_written_down_before_it_is_used(tmp_path, clock):
    first = first_number(tmp_path, 0)
    assert int((tmp_path / "epoch").read_text()) << SHIFT == first
    with pytest.raises(BadInput, match="cannot be written"):
        first_number(tmp_path / "nowhere", 0)


@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"1" * 30, b"1" * 200, b"\xff"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "epoch").write_bytes(content)
    with pytest.raises(BadInput, match="epoch is damaged: it must hold one whole number; delete it"):
        first_number(tmp_path, 0)


def test_more_than_any_node_can_have_is_refused(tmp_path):
    (tmp_path / "epoch").write_bytes(str(2**31).encode())
    with pytest.raises(BadInput, match="more than any start of a node can have; delete it"):
        first_number(tmp_path, 0)
