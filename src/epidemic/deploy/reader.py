"""The reader: checks what arrives, beside the training. Valid messages go on as events; everything else is counted.

Cheap checks come first, where a frame arrives: its format, its link, and whether it was verified before. Signatures and digests take a hundred times as
long and are checked in a separate thread.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from epidemic.deploy.event_loop import now
from epidemic.deploy.keyring import Keyring
from epidemic.deploy.replays import Replays
from epidemic.deploy.wire import STATE_TRANSFER, Header, MessageFormat, OpenedMessage, Refused

MOST_WAITING = 32
"""Messages of one link that may wait to be checked, if they are not too large; a peer that sends more harms only itself."""
WAITING_BYTES = 2**26
MOST_UNKNOWN = 16
"""Messages kept of senders that may still introduce themselves."""


def most_of_one(format: MessageFormat) -> int:
    """How many messages of one sender may wait, given their size."""
    return max(4 * format.parts, min(MOST_WAITING * format.parts, WAITING_BYTES // format.usual_bytes))


@dataclass(frozen=True)
class _Frame:
    link: int  # the node at the other end of its connection
    raw: bytes
    node_ids: tuple[int, ...]  # its receivers
    then: Callable[[OpenedMessage | None], None] | None  # for a requested model, which is not a message of a round
    new: Header | None = None  # its header, if it is to be remembered once verified


class Reader:
    """Checks the frames that a process receives."""

    def __init__(
        self,
        format: MessageFormat,
        keyring: Keyring,
        take: Callable[[OpenedMessage, tuple[int, ...]], None],
        say: Callable[[str], None],
        *,
        nodes: int,
        hosted: int,
        samples: Mapping[int, int] | None = None,
        replays: Replays | None = None,
        repeated: Callable[[tuple[int, ...], str], None] = lambda node_ids, outcome: None,
        forged: Callable[[int], None] = lambda link: None,
    ) -> None:
        """Prepare the reader.

        Args:
            format: The messages of the run.
            keyring: The keys of the peers.
            take: Called with every valid message and its receivers.
            say: Called with lines for the log.
            nodes: Number of nodes in the deployment.
            hosted: Number of nodes of this process.
            samples: Known numbers of training samples by node; of other nodes the first number that they state is believed.
            replays: The filter for repeated messages.
            repeated: Called about repeated messages, which are not read.
            forged: Called with links that carried a wrong signature.
        """
        self._format = format
        self._keyring = keyring
        self._take = take
        self._say = say
        self._nodes = nodes
        self._replays, self._repeated, self._forged = replays, repeated, forged
        self._most = hosted * most_of_one(format)
        self._queue: queue.SimpleQueue[_Frame | None] = queue.SimpleQueue()
        self._waiting: Counter[int] = Counter()  # frames waiting, by link
        self._unknown: deque[_Frame] = deque(maxlen=MOST_UNKNOWN)
        self._samples = dict(samples or {})
        self._refused: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)
        self._thread.start()

    def put(
        self,
        link: int,
        raw: bytes,
        node_ids: tuple[int, ...],
        then: Callable[[OpenedMessage | None], None] | None = None,
        *,
        asked_for: bool = False,
    ) -> None:
        """Take a frame that arrived over a connection; one that was `asked_for` may have come before."""
        header = None
        if then is None and not asked_for:
            try:
                header = self._new(link, raw, node_ids)
            except Refused as refusal:
                self.refuse(refusal.reason)
                return
            if header is None:
                return
        with self._lock:
            full = self._waiting[link] >= self._most
            if not full:
                self._waiting[link] += 1
        if full:
            self.refuse("overflow")
            if then is not None:
                then(None)
        else:
            self._queue.put(_Frame(link, raw, node_ids, then, header))

    def _new(self, link: int, raw: bytes, node_ids: tuple[int, ...]) -> Header | None:
        """The header of a message that is worth checking further: cheap checks only, nothing is remembered. Raises Refused."""
        header = self._format.peek(raw)
        if not self._keyring.knows(header.sender):
            return header
        if self._keyring.carrier_of(header.sender) != link:
            raise Refused("wrong-link")
        if header.kind == STATE_TRANSFER:  # a model that nobody asked for
            raise Refused("wrong-kind")
        if self._replays is not None:
            outcome = self._replays.sort(header.sender, header.counter, node_ids, now())
            if outcome != "new":
                self._repeated(node_ids, outcome)
                return None
        return header

    def refuse(self, reason: str) -> None:
        """Count an invalid message."""
        with self._lock:
            first = reason not in self._refused
            self._refused[reason] += 1
        if first:
            self._say(f"refused a message: {reason} (further ones are only counted)")

    @property
    def refused(self) -> Counter[str]:
        """Invalid messages by reason."""
        with self._lock:
            return +self._refused

    def _read(self) -> None:
        while (frame := self._queue.get()) is not None:
            with self._lock:
                self._waiting[frame.link] -= 1
            self._look(frame, again=False)

    def _look(self, frame: _Frame, *, again: bool) -> None:
        header, replays = frame.new, self._replays
        if header is not None and replays is not None and replays.known(header.sender, header.counter, frame.node_ids):
            self._repeated(frame.node_ids, "duplicate")  # it waited together with the one that was verified
            if again:
                self._known_now()
            return
        try:
            message = self._format.open(frame.raw, self._keyring.key_of)
            if self._keyring.carrier_of(message.sender) != frame.link:
                raise Refused("wrong-link")
            if frame.then is None and message.kind == STATE_TRANSFER:
                raise Refused("wrong-kind")
            samples = self._format.samples_of(message)
            if samples and self._samples.setdefault(message.sender, samples) != samples:
                raise Refused("wrong-samples")
        except Refused as refusal:
            if refusal.reason == "unknown-sender" and frame.then is None:
                self._unknown.append(frame)
            if refusal.reason == "wrong-signature":
                self._forged(frame.link)
            if again:
                self._known_now()
            self.refuse(refusal.reason)
            if frame.then is not None:
                frame.then(None)
            return
        if again:
            self._known_now()
        if header is not None and replays is not None:
            replays.verified(message.sender, message.counter, frame.node_ids)
        if frame.then is not None:
            frame.then(message)
        else:
            self._take(message, frame.node_ids)

    def _known_now(self) -> None:
        """Uncount a frame of a formerly unknown sender."""
        with self._lock:
            self._refused["unknown-sender"] -= 1

    def look_again(self) -> None:
        """Check the messages of unknown senders again, after an introduction."""
        for _ in range(len(self._unknown)):
            try:
                frame = self._unknown.popleft()
            except IndexError:  # another thread took it
                return
            self._look(frame, again=True)

    def close(self) -> None:
        """Stop the thread of the reader."""
        self._queue.put(None)
        self._thread.join(5)
