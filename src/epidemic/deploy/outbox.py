"""Outgoing messages, and the outbox that sends them in threads of its own. A message for several nodes of a process is sent once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from epidemic.deploy.transport import Transport

if TYPE_CHECKING:
    from epidemic.deploy.hosted import HostedNode

MOST_QUEUED = 3
"""Messages of one sender that may wait for a link; further ones are not sent over it unless the peer asks."""
MOST_THREADS = 16


@dataclass
class Outgoing:
    """A message of a hosted node, and its frame once it is sealed."""

    counter: int  # the round, or the number of the message
    targets: tuple[int, ...]
    columns: dict[str, Tensor]  # its numbers by column; bytes if messages are compressed
    graph: bytes = b""
    kind: str = ""
    numbers: tuple[int, ...] = ()
    part: int | None = None
    frame: bytearray | None = None
    payload: Any = None  # the frame in the transport's form

    def sealed(self, node: HostedNode) -> bytearray:
        """The signed frame, made on the first call."""
        if self.frame is None:
            raw = {name: raw_bytes(numbers) for name, numbers in self.columns.items()}
            self.frame = node.format.seal(
                self.counter, node.node_id, raw, node.identity.key, kind=self.kind, graph=self.graph, numbers=self.numbers, part=self.part
            )  # fmt: skip
        return self.frame


def raw_bytes(row: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A row's numbers as bytes, sharing its memory if it is on the CPU."""
    return row.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


@dataclass(frozen=True)
class _Parcel:
    payload: Any
    node_ids: tuple[int, ...]
    sent: Callable[[int, bool], None]  # called with the number of receivers, and whether it left
    owner: int  # the sender, for withdrawals


class Outbox:
    """Sends the messages of a process."""

    def __init__(self, transport: Transport, *, nodes: int, senders: int) -> None:
        self._transport = transport
        self._threads = ThreadPoolExecutor(min(MOST_THREADS, nodes), "outbox")
        self._queues: dict[int, deque[_Parcel]] = {}  # by carrier, while something is being sent to it
        self._most = MOST_QUEUED * senders
        self._lock = threading.Lock()
        self._pending: set[Future[None]] = set()

    def send(
        self, carrier: int, node_ids: tuple[int, ...], payload: Any, sent: Callable[[int, bool], None], owner: int = -1
    ) -> None:
        """Send a message to nodes of another process; a stuck link delays no other and fills no memory."""
        parcel = _Parcel(payload, node_ids, sent, owner)
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
            sent(len(node_ids), False)

    def _send_all(self, carrier: int) -> None:
        """Send what is queued for a process, one message after the other."""
        while True:
            with self._lock:
                if not self._queues[carrier]:
                    del self._queues[carrier]
                    return
                parcel = self._queues[carrier].popleft()
            parcel.sent(len(parcel.node_ids), self._transport.send(carrier, parcel.payload, parcel.node_ids))

    def withdraw(self, owner: int) -> None:
        """Discard the messages of one node that have not begun to leave."""
        with self._lock:
            for queue in self._queues.values():
                left = [parcel for parcel in queue if parcel.owner != owner]
                queue.clear()
                queue.extend(left)

    def flush(self, timeout: float) -> None:
        """Wait until everything is sent, at most `timeout` seconds."""
        wait(list(self._pending), timeout)

    def close(self) -> None:
        """Discard what has not been sent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
