"""Reader: looks at what comes in, beside the training. What is in order goes on as an event; everything else is counted."""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from epidemic.net.keyring import Keyring
from epidemic.net.wire import Format, Letter, Refused

MOST_WAITING = 32
"""Letters of one link that may wait to be looked at, as long as they are not too many bytes; who sends more harms only itself."""
WAITING_BYTES = 2**26
MOST_UNKNOWN = 16
"""Letters kept of senders who may still introduce themselves."""


def most_of_one(format: Format) -> int:
    """How many letters of one sender may wait, by their size."""
    return max(4 * format.parts, min(MOST_WAITING * format.parts, WAITING_BYTES // format.usual_bytes))


@dataclass(frozen=True)
class _Frame:
    link: int  # whose connection it came by
    raw: bytes
    places: tuple[int, ...]  # whom it is for
    then: Callable[[Letter | None], None] | None  # for a model that was asked for; not a letter of a round


class Reader:
    """The frames that come to a process."""

    def __init__(
        self,
        format: Format,
        keyring: Keyring,
        take: Callable[[Letter, tuple[int, ...]], None],
        say: Callable[[str], None],
        *,
        nodes: int,
        hosted: int,
        samples: Mapping[int, int] | None = None,
    ) -> None:
        """`take` is given every letter that is in order, and whom it is for.

        `samples`: how many training samples places are known to have. Of the others the first number that they tell is believed.
        """
        self._format = format
        self._keyring = keyring
        self._take = take
        self._say = say
        self._nodes = nodes
        self._most = hosted * most_of_one(format)
        self._queue: queue.SimpleQueue[_Frame | None] = queue.SimpleQueue()
        self._waiting: Counter[int] = Counter()  # how many frames in it are from whose link
        self._unknown: deque[_Frame] = deque(maxlen=MOST_UNKNOWN)
        self._samples = dict(samples or {})
        self._refused: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)
        self._thread.start()

    def put(
        self, link: int, raw: bytes, places: tuple[int, ...], then: Callable[[Letter | None], None] | None = None
    ) -> None:
        """A frame came over somebody's connection."""
        with self._lock:
            full = self._waiting[link] >= self._most
            if not full:
                self._waiting[link] += 1
        if full:
            self.refuse("overflow")
            if then is not None:
                then(None)
        else:
            self._queue.put(_Frame(link, raw, places, then))

    def refuse(self, reason: str) -> None:
        """Count what is not in order."""
        with self._lock:
            first = reason not in self._refused
            self._refused[reason] += 1
        if first:
            self._say(f"refused a letter: {reason} (further ones are counted only)")

    @property
    def refused(self) -> Counter[str]:
        """What was not in order, by reason."""
        with self._lock:
            return +self._refused

    def _read(self) -> None:
        while (frame := self._queue.get()) is not None:
            with self._lock:
                self._waiting[frame.link] -= 1
            self._look(frame, again=False)

    def _look(self, frame: _Frame, *, again: bool) -> None:
        try:
            letter = self._format.open(frame.raw, self._keyring.key_of)
            if self._keyring.carrier_of(letter.sender) != frame.link:
                raise Refused("wrong-link")
            if self._samples.setdefault(letter.sender, letter.samples) != letter.samples:
                raise Refused("wrong-samples")
        except Refused as refusal:
            if refusal.reason == "unknown-sender" and frame.then is None:
                self._unknown.append(frame)
            if again:
                self._known_now()
            self.refuse(refusal.reason)
            if frame.then is not None:
                frame.then(None)
            return
        if again:
            self._known_now()
        if frame.then is not None:
            frame.then(letter)
        else:
            self._take(letter, frame.places)

    def _known_now(self) -> None:
        """A frame that was counted as of an unknown sender is counted otherwise."""
        with self._lock:
            self._refused["unknown-sender"] -= 1

    def look_again(self) -> None:
        """Somebody was introduced: look once more at the letters of senders who were not known."""
        for _ in range(len(self._unknown)):
            try:
                frame = self._unknown.popleft()
            except IndexError:  # another thread has it
                return
            self._look(frame, again=True)

    def close(self) -> None:
        """Look at nothing any more."""
        self._queue.put(None)
        self._thread.join(5)
