"""The event loop: one thread that passes events with their times to the protocols of a process, and runs their timers."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from epidemic.protocol.events import SECOND, Action, Event, SetTimer, Timer
from epidemic.protocol.member import Member

EVERY = SECOND
"""Time between calls of `housekeeping`."""
PASSES = 4
"""How often newly arrived events are passed on before their actions are carried out: messages between nodes of a process, and what follows from
them, belong together. Bounded, so that a flood of events cannot stop the work.
"""

Item = tuple[int, Event] | Callable[[], None] | None


def now() -> int:
    """The monotonic clock, in microseconds."""
    return time.monotonic_ns() // 1000


class EventLoop:
    """Passes events to the protocols of a process, and carries out their actions."""

    def __init__(
        self,
        protocols: Mapping[int, Member],
        carry_out: Callable[[int, Action], None],
        settled: Callable[[], None],
        housekeeping: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Prepare the loop.

        Args:
            protocols: The protocols of the process, by node id.
            carry_out: Carries out an action of a node.
            settled: Called when no event is waiting.
            housekeeping: Called about once a second.
            failed: Called with an exception in this thread, which ends the thread.
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
        """Start the thread of the loop."""
        self._thread.start()

    def put(self, node_id: int, event: Event) -> None:
        """Add an event for one node."""
        self._queue.put([(node_id, event)])

    def put_many(self, events: Iterable[tuple[int, Event]]) -> None:
        """Add several events at once."""
        self._queue.put(list(events))

    def put_all(self, event: Event) -> None:
        """Add an event for all nodes."""
        self._queue.put([(node_id, event) for node_id in self._protocols])

    def tell(self, do: Callable[..., None], *args: Any) -> None:
        """Run a function in the thread of the loop."""
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
        """Stop the thread of the loop."""
        self._closing = True
        self._queue.put([None])
        if self._thread.is_alive():
            self._thread.join(5)
