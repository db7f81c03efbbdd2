"""Post: gets letters on their way, in threads of its own, and counts them.

Where receivers have a cap a letter is offered first: a receiver that has enough answers "busy", and another random node is tried.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from epidemic.net.transport import Transport
from epidemic.rng import Stream

MOST_QUEUED = 3
"""Letters that may wait for a receiver's link; of further ones it gets none, unless it asks."""
ACCEPTED, BUSY = b"accepted", b"busy"
NOT_YET, NOTHING = b"not yet", b"nothing"


@dataclass(frozen=True)
class Outgoing:
    """The letter of a round, and whom it is for."""

    round: int
    frame: bytes | bytearray
    targets: frozenset[int]
    sent: dict[int, float] = field(default_factory=dict)  # to whom already, and when on the monotonic clock


class Post:
    """The letters that leave a node."""

    def __init__(self, transport: Transport, place: int, *, nodes: int, kept: int) -> None:
        """`kept`: of how many rounds the letters are kept, for those who ask for them again."""
        self._transport = transport
        self._place = place
        self._threads = ThreadPoolExecutor(min(64, nodes + 2), "post")
        self._queues: dict[int, deque[Any]] = {}  # by receiver, while something is being sent to it
        self._lock = threading.Lock()
        self._pending: list[Future[None]] = []
        self._kept: OrderedDict[int, Outgoing] = OrderedDict()
        self._most_kept = kept
        self._models = self._offers = 0
        self.undelivered = 0  # letters that nobody was there to take

    def send(self, letter: Outgoing, alive: Iterable[int]) -> None:
        """Send a letter to those of its targets who are there."""
        self.keep(letter)
        payload = self._transport.payload(letter.frame)
        self._pending = [future for future in self._pending if not future.done()]
        for place in sorted(letter.targets & frozenset(alive)):
            with self._lock:
                queue = self._queues.get(place)
                if queue is None:
                    self._queues[place] = deque([payload])
                elif len(queue) < MOST_QUEUED:
                    queue.append(payload)
                else:  # a link that is stuck must not hold up the others, nor fill the memory
                    self.undelivered += 1
                    continue
                letter.sent[place] = time.monotonic()
            if queue is None:
                self._pending.append(self._threads.submit(self._send_all, place))

    def _send_all(self, place: int) -> None:
        """Send what is queued for a receiver, one letter after the other."""
        while True:
            with self._lock:
                if not self._queues[place]:
                    del self._queues[place]
                    return
                payload = self._queues[place].popleft()
            self._deliver(place, payload)

    def offer(
        self,
        letter: Outgoing,
        alive: frozenset[int],
        offer_to: Callable[[int], bytes],
        over: Callable[[], bool],
        *,
        retries: int,
        stream: Stream,
        patience: float,
    ) -> None:
        """Offer a letter to those of its targets who are there, and send it to who accepts.

        Others are tried instead of who does not, until the round is over.
        """
        payload = self._transport.payload(letter.frame)
        tried = set(letter.targets) | {self._place}
        choosing = threading.Lock()

        def attempt(place: int) -> None:
            for left in range(retries, -1, -1):
                with self._lock:
                    self._offers += 1
                answers = self._transport.ask("offer", place, offer_to(place), patience)
                if answers[:1] == [ACCEPTED]:
                    self._deliver(place, payload)
                    return
                if answers[:1] != [BUSY]:
                    with self._lock:
                        self.undelivered += 1
                    return
                if not left or over():
                    return
                with choosing:
                    others = sorted(alive - tried)
                    if not others:
                        return
                    place = others[int(stream.integers(len(others), 1)[0])]
                    tried.add(place)

        for place in sorted(letter.targets & alive):
            self._pending.append(self._threads.submit(attempt, place))

    def _deliver(self, place: int, payload: Any) -> None:
        sent = self._transport.send(self._place, place, payload)
        with self._lock:
            self._models += sent
            self.undelivered += not sent

    def keep(self, letter: Outgoing) -> None:
        """Keep a letter for those who ask for it again."""
        with self._lock:
            self._kept[letter.round] = letter
            while len(self._kept) > self._most_kept:
                self._kept.popitem(last=False)

    @property
    def kept(self) -> list[Outgoing]:
        """The letters that can be sent again."""
        with self._lock:
            return list(self._kept.values())

    def again(self, round: int, place: int, after: float) -> bytes | bytearray | None:
        """The letter of a round for somebody who did not get it; empty if it left less than `after` seconds ago; None: there is none."""
        with self._lock:
            letter = self._kept.get(round)
            if letter is None or place not in letter.targets:
                return None
            now = time.monotonic()
            if now - letter.sent.get(place, -math.inf) < after:
                return b""
            letter.sent[place] = now
            self._models += 1
            return letter.frame

    def background(self, work: Callable[[], None]) -> None:
        """Do something else beside the training."""
        self._threads.submit(work)

    def asked(self) -> None:
        """A question left that the exchange itself does not need; it counts like an offer."""
        with self._lock:
            self._offers += 1

    def sent_model(self) -> None:
        """A model left by another way: as the answer to a question."""
        with self._lock:
            self._models += 1

    def flush(self, timeout: float) -> None:
        """Wait until everything is on its way."""
        wait(self._pending, timeout)
        self._pending = [future for future in self._pending if not future.done()]

    def taken(self) -> tuple[int, int]:
        """Models and offers that left since this was asked last."""
        with self._lock:
            models, offers = self._models, self._offers
            self._models = self._offers = 0
            return models, offers

    def close(self) -> None:
        """Give up what is not on its way."""
        self._threads.shutdown(wait=False, cancel_futures=True)
