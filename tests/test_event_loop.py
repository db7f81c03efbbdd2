"""The event loop: one thread hands events to the protocols in turn; nothing that comes in keeps it from getting things done."""

import threading

from epidemic.deploy.event_loop import EventLoop
from epidemic.protocol.events import Asked, Say, SetTimer, Timer, Trained


class Protocol:
    """Says what happened to it; wants a timer when it has trained."""

    def step(self, event, now):
        wanted = [SetTimer("soon", now + 1000)] if isinstance(event, Trained) else []
        return [Say(type(event).__name__), *wanted]


class There:
    """An event loop with two places and what came of it."""

    def __init__(self):
        self.done, self.settled, self.looked = [], threading.Semaphore(0), threading.Semaphore(0)
        self.failure, self.failed = None, threading.Event()
        self.loop = EventLoop(
            {0: Protocol(), 1: Protocol()}, self.carry_out, self.settled.release, self.looked.release, self.fail
        )

    def carry_out(self, node_id, action):
        self.done.append((node_id, action.text))

    def fail(self, problem):
        self.failure = problem
        self.failed.set()

    def until(self, wanted):
        while wanted not in self.done:
            assert self.settled.acquire(timeout=60)


def test_events_are_handed_out_in_their_order_and_timers_come():
    there = There()
    there.loop.put(0, Trained(1))
    there.loop.put_many([(1, Asked("again", 0, 1, None)), (0, Asked("again", 1, 1, None))])
    there.loop.put_all(Timer("other"))
    there.loop.start()
    there.until((0, "Timer"))
    there.loop.close()
    assert there.done[:3] == [(0, "Trained"), (1, "Asked"), (0, "Asked")]
    assert there.done.count((0, "Timer")) >= 1


def test_a_flood_keeps_neither_work_nor_housekeeping_nor_timers_back():
    """Every event leads to another one at once, as if somebody asked without end."""
    there = There()
    take = there.carry_out

    def carry_out(node_id, action):
        take(node_id, action)
        there.loop.put(0, Asked("again", 1, 1, None))
        there.loop.put(0, Asked("again", 1, 1, None)) if len(there.done) < 100 else None

    there.loop._carry_out = carry_out
    there.loop.put(1, Trained(1))
    there.loop.start()
    for _ in range(3):
        assert there.settled.acquire(timeout=60)
    there.until((1, "Timer"))
    assert there.looked.acquire(timeout=60)
    there.loop.close()
    assert not there.loop._thread.is_alive()


def test_an_error_in_the_thread_is_told_and_ends_it():
    there = There()
    there.loop.start()
    there.loop.tell(lambda: 1 / 0)
    assert there.failed.wait(60)
    assert isinstance(there.failure, ZeroDivisionError)
    there.loop.close()
