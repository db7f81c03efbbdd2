"""Outbox: gets letters on their way, in threads of its own. A letter for several places of one process leaves once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from epidemic.net.transport import Transport

MOST_QUEUED = 3
"""Letters of one sender that may wait for a process's link; of further ones it gets none, unless it asks."""
MOST_THREADS = 16


@dataclass(frozen=True)
class _Parcel:
    payload: Any
    places: tuple[int, ...]
    sent: Callable[[int, bool], None]  # told to how many places it went, and whether it left
    owner: int  # whose it is, for who takes its letters back


class Outbox:
    """The letters that leave a process."""

    def __init__(self, transport: Transport, *, nodes: int, senders: int) -> None:
        self._transport = transport
        self._threads = ThreadPoolExecutor(min(MOST_THREADS, nodes), "outbox")
        self._queues: dict[int, deque[_Parcel]] = {}  # by carrier, while something is being sent to it
        self._most = MOST_QUEUED * senders
        self._lock = threading.Lock()
        self._pending: set[Future[None]] = set()

    def send(
        self, carrier: int, places: tuple[int, ...], payload: Any, sent: Callable[[int, bool], None], owner: int = -1
    ) -> None:
        """Send a letter to some of a process's places; a link that is stuck holds up nobody else, and fills no memory."""
        parcel = _Parcel(payload, places, sent, owner)
        with self._lock:
            queue = self._queues.get(carrier)
            if queue is not None and len(queue) >= self._most:
                full = True
            else:
                full = False
                if queue is None:
                    self._queues[carrier] = deque([parcel])
                    future = self._threads.submit(self._send_all, carrier)
                    self._pending.add(future)
                    future.add_done_callback(self._pending.discard)
                else:
                    queue.append(parcel)
        if full:
            sent(len(places), False)

    def _send_all(self, carrier: int) -> None:
        """Send what is queued for a process, one letter after the other."""
        while True:
            with self._lock:
                if not self._queues[carrier]:
                    del self._queues[carrier]
                    return
                parcel = self._queues[carrier].popleft()
            parcel.sent(len(parcel.places), self._transport.send(carrier, parcel.payload, parcel.places))

    def withdraw(self, owner: int) -> None:
        """Take back the letters of one node that have not begun to leave."""
        with self._lock:
            for queue in self._queues.values():
                left = [parcel for parcel in queue if parcel.owner != owner]
                queue.clear()
                queue.extend(left)

    def flush(self, timeout: float) -> None:
        """Wait until everything is on its way."""
        wait(list(self._pending), timeout)

    def close(self) -> None:
        """Give up what is not on its way."""
        self._threads.shutdown(wait=False, cancel_futures=True)
