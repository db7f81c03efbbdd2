"""The event loop: one thread that hands events to the protocols of a process, in turn, with the time; and their timers."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from epidemic.protocol.events import SECOND, Action, Event, SetTimer, Timer
from epidemic.protocol.member import Member

EVERY = SECOND
"""How often there is housekeeping."""
PASSES = 4
"""So often what came in meanwhile is handed out before what follows from it is done: messages between nodes of a process, and what
these lead to, belong together. Not for as long as anything comes: whoever floods a process must not stop its work."""

Item = tuple[int, Event] | Callable[[], None] | None


def now() -> int:
    """The monotonic clock, in microseconds."""
    return time.monotonic_ns() // 1000


class EventLoop:
    """Hands out the events of a process."""

    def __init__(
        self,
        protocols: Mapping[int, Member],
        carry_out: Callable[[int, Action], None],
        settled: Callable[[], None],
        housekeeping: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`carry_out` does an action of a place; `settled` is called when nothing waits any more for the moment.

        `failed` is told of an error in this thread, which ends with it.
        """
        self._protocols = protocols
        self._carry_out = carry_out
        self._settled = settled
        self._housekeeping = housekeeping
        self._failed = failed
        self._queue: queue.SimpleQueue[list[Item]] = queue.SimpleQueue()
        self._timers: dict[tuple[int, str], int] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="event loop", daemon=True)

    def start(self) -> None:
        """Begin to hand out events."""
        self._thread.start()

    def put(self, node_id: int, event: Event) -> None:
        """Something happened to a place."""
        self._queue.put([(node_id, event)])

    def put_many(self, events: Iterable[tuple[int, Event]]) -> None:
        """Several things happened at once."""
        self._queue.put(list(events))

    def put_all(self, event: Event) -> None:
        """Something happened to all places."""
        self._queue.put([(node_id, event) for node_id in self._protocols])

    def tell(self, do: Callable[..., None], *args: Any) -> None:
        """Have something done in this thread."""
        self._queue.put([lambda: do(*args)])

    def _run(self) -> None:
        try:
            self._hand_out_all()
        except Exception as problem:
            self._failed(problem)

    def _hand_out_all(self) -> None:
        next_look = now()
        while not self._closing:
            until = min([next_look, *self._timers.values()])
            waiting: list[Item] = []
            try:
                wait = until - now()
                waiting = self._queue.get(timeout=wait / SECOND) if wait > 0 else self._queue.get_nowait()
            except queue.Empty:
                pass
            moment = now()
            due = [key for key, at in self._timers.items() if at <= moment]
            for node_id, name in due:
                del self._timers[node_id, name]
                waiting.append((node_id, Timer(name)))
            for _ in range(PASSES):
                for _ in range(self._queue.qsize()):
                    waiting += self._queue.get_nowait()
                for item in waiting:
                    self._hand_out(item, now())
                waiting = []
            self._settled()
            if moment >= next_look:
                next_look = moment + EVERY
                self._housekeeping()

    def _hand_out(self, item: Item, moment: int) -> None:
        if item is None:
            return
        if callable(item):
            item()
            return
        node_id, event = item
        for action in self._protocols[node_id].step(event, moment):
            if isinstance(action, SetTimer):
                self._timers[node_id, action.name] = action.at
            else:
                self._carry_out(node_id, action)

    def close(self) -> None:
        """Hand out nothing any more."""
        self._closing = True
        self._queue.put([None])
        if self._thread.is_alive():
            self._thread.join(5)
