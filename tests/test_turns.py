"""Turns: never more at once than there are slots, and nobody waits for one that is dead or stands still."""

import multiprocessing
import os
import signal
import time

from epidemic.net.turns import Turns


def _hold(directory, ready, go):
    turns = Turns(directory, 1, 2)
    with turns.one() as mine:
        ready.put(mine)
        go.wait(30)


def test_a_slot_is_held_by_one_process_and_free_again_when_that_dies(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, go = context.Queue(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, ready, go))
    other.start()
    assert ready.get(timeout=60) is True
    mine = Turns(tmp_path, 1, 2)
    with mine.one() as held:
        assert held is False  # it is taken, and work goes on all the same
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    with mine.one() as held:
        assert held is True
    mine.close()


def test_as_many_turns_as_slots(tmp_path):
    three = [Turns(tmp_path, 2, 3) for _ in range(3)]
    with three[0].one() as first, three[1].one() as second, three[2].one() as third:
        assert (first, second, third) == (True, True, False)
    with three[2].one() as again:
        assert again is True
    for turns in three:
        turns.close()


def test_patience_follows_what_turns_take(tmp_path):
    one, other = Turns(tmp_path, 1, 2), Turns(tmp_path, 1, 2)
    other._took = 0.2
    with one.one():
        began = time.monotonic()
        with other.one() as held:
            assert held is False
        assert time.monotonic() - began >= 0.8  # two turns of each that may be before it
    one.close()
    other.close()
