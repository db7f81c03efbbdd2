"""Desk: what a node has from the others and knows of them. The network's threads put it here; the node's loop takes it from here.

Letters are looked at beside the training, newcomers are greeted, questions answered. One lock, `changed`, guards all of it, and is
notified whenever something changes.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from epidemic.net.keys import Identity
from epidemic.net.mailbox import Mailbox
from epidemic.net.pace import Pace
from epidemic.net.peers import Hello, Peers, seal_hello
from epidemic.net.post import ACCEPTED, BUSY, NOT_YET, NOTHING, Post
from epidemic.net.terms import Terms
from epidemic.net.transport import Transport
from epidemic.net.wire import Format, Letter, Refused

SEND_AGAIN = 3.0
"""Seconds during which a letter that was sent is taken to be on its way."""
MOST_WAITING = 32
"""Letters of one sender that may wait to be looked at, as long as they are not too many bytes; who sends more harms only itself."""
WAITING_BYTES = 2**26

Say = Callable[[str], None]


class Desk:
    """One node's."""

    def __init__(
        self,
        identity: Identity,
        terms: Terms,
        format: Format,
        mailbox: Mailbox[tuple[Letter, float]],
        pace: Pace,
        *,
        nodes: int,
        barrier: bool,
        say: Say,
    ) -> None:
        self._place = identity.place
        self._identity = identity
        self._terms = terms
        self._format = format
        self._pace = pace
        self._nodes = nodes
        self._barrier = barrier
        self._say = say
        self.mailbox = mailbox
        self.peers = Peers(identity, terms, identity.place, nodes)
        self.changed = threading.Condition()  # re-entrant
        self.refused: Counter[str] = Counter()  # by reason
        self.finished_places: set[int] = set()
        self.round = -1  # the round that the node is in
        self.start = 0  # the round that it takes part from
        self.ready: dict[int, float] = {}  # since when it waited for letters, of the last rounds
        self.asking = False  # whether somebody is just asked for a letter
        self.broken = ""  # why a barrier can never be passed
        self._unknown: deque[bytes] = deque(maxlen=16)  # letters of senders who may still introduce themselves
        self._incoming: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        self._waiting: Counter[str] = Counter()  # how many letters in it are from whom
        self._wishes: dict[int, Callable[[bytes], None]] = {}  # who asks for a model
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    def open(self, transport: Transport, post: Post, *, offers: bool) -> None:
        """Attend to the network; with a cap, to offers, too."""
        self.transport, self.post = transport, post
        transport.receive(self._place, self._arrived, lambda: self.refuse("oversized"), self._format.frame_bytes)
        transport.answer("hello", self._place, self._greeted)
        transport.answer("model", self._place, self._asked_for_model)
        transport.answer("again", self._place, self._asked_again)
        if offers:
            transport.answer("offer", self._place, self._offered)
        transport.watch("alive", self._presence)
        transport.watch("done", self._has_finished)
        transport.appear("alive", self._place)
        for work in (self._read_letters, self._greet):
            self._threads.append(threading.Thread(target=work, daemon=True))
            self._threads[-1].start()

    def close(self) -> None:
        """Attend to nothing any more."""
        self._closing.set()
        with self.changed:
            self.changed.notify_all()
        self._incoming.put(None)
        for thread in self._threads:
            thread.join(5)

    # -- letters ------------------------------------------------------------------------------------------------------

    def _arrived(self, sender: str, frame: bytes) -> None:
        with self.changed:
            most = max(4, min(MOST_WAITING, WAITING_BYTES // self._format.frame_bytes))
            full = self._waiting[sender] >= most or len(self._waiting) > 2 * self._nodes
            if not full:
                self._waiting[sender] += 1
        if full:
            self.refuse("overflow")
        else:
            self._incoming.put((sender, frame))

    def refuse(self, reason: str) -> None:
        """Count a letter that is not in order."""
        with self.changed:
            first = not self.refused[reason]
            self.refused[reason] += 1
        if first:
            self._say(f"refused a letter: {reason} (further ones are counted only)")

    def _read_letters(self) -> None:
        """Look at letters one after the other, beside the training."""
        while (found := self._incoming.get()) is not None:
            sender, frame = found
            with self.changed:
                self._waiting[sender] -= 1
                if not self._waiting[sender]:
                    del self._waiting[sender]
            try:
                self._put(self._format.open(frame, self.key_of))
            except Refused as refusal:
                self.refuse(refusal.reason)
                if refusal.reason == "unknown-sender":
                    with self.changed:
                        self._unknown.append(frame)

    def _put(self, letter: Letter) -> None:
        with self.changed:
            self.peers.heard_of(letter.sender, letter.round)
            now = time.monotonic()
            late = self.mailbox.put(letter.round, letter.sender, (letter, now)) == "late"
            since = self.ready.get(letter.round)
            if late and since is not None:
                self._pace.waited(now - since)
            self.changed.notify_all()

    def _look_again(self) -> None:
        """Look once more at letters of senders who were not known: they may have been introduced."""
        with self.changed:
            frames, self._unknown = self._unknown, deque(maxlen=self._unknown.maxlen)
        for frame in frames:
            try:
                self._put(self._format.open(frame, self.key_of))
                with self.changed:
                    self.refused["unknown-sender"] -= 1
            except Refused as refusal:
                if refusal.reason == "unknown-sender":
                    with self.changed:
                        self._unknown.append(frame)

    def key_of(self, place: int) -> Any:
        """The certified key of a node; raises Refused."""
        with self.changed:
            return self.peers.key_of(place)

    def _presence(self, place: int, token: str, there: bool) -> None:
        with self._telling():
            self.peers.present(place, token, there)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Say who came and who went."""
        with self.changed:
            before = self.peers.alive
            yield
            after = self.peers.alive
            self.changed.notify_all()
        if self.round >= 0:
            for place in sorted(before - after - self.finished_places):
                self._say(f"round {self.round}: node {place} is gone")
            for place in sorted(after - before):
                self._say(f"round {self.round}: node {place} is there")

    def _has_finished(self, place: int, token: str, there: bool) -> None:
        with self.changed:
            if there:
                self.finished_places.add(place)
            self.changed.notify_all()

    def hello(self) -> bytes:
        """How this node introduces itself now."""
        hello = Hello(self._place, self.transport.token, self._identity.encoded, self._terms, self.round, self.start)
        return seal_hello(hello, self._identity)

    def _greeted(self, question: bytes, respond: Callable[[bytes], None]) -> None:
        self._learn(question)
        respond(self.hello())

    def _learn(self, raw: bytes) -> None:
        with self._telling():
            apart = set(self.peers.differing)
            hello = self.peers.learn(raw, self.round)
            others = {p: d for p, d in self.peers.differing.items() if p not in apart}
        for place, different in others.items():
            self._say(f"refused node {place}: it runs another experiment: {'; '.join(different[:4])}")
        if hello is not None:
            self._look_again()

    def _greet(self) -> None:
        """Introduce this node to whoever appears; who cannot be understood is asked less and less often."""
        tries: Counter[int] = Counter()
        when: dict[int, float] = {}
        while not self._closing.is_set():
            with self.changed:
                now = time.monotonic()
                strangers = [place for place in self.peers.strangers() if when.get(place, 0.0) <= now]
                if not strangers:
                    self.changed.wait(0.25)
            for place in strangers:
                for answer in self.transport.ask("hello", place, self.hello(), 3.0):
                    self._learn(answer)
                with self.changed:
                    known = place in self.peers.alive
                tries[place] = 0 if known else tries[place] + 1
                when[place] = time.monotonic() + min(5.0, 0.05 * 2 ** tries[place])
            if self._unknown:
                self._look_again()

    def _asked_for_model(self, question: bytes, respond: Callable[[bytes], None]) -> None:
        try:
            wish = self._format.open_offer(question, self.key_of)
        except Refused as refusal:
            self.refuse(refusal.reason)
            respond(b"")
            return
        with self.changed:
            meant = (
                wish.receiver == self._place and abs(wish.round - self.round) <= 16
            )  # not somebody's old wish, replayed
            waiting = self._wishes.pop(wish.sender, None)
            if meant:
                self._wishes[wish.sender] = respond
        if waiting is not None:
            waiting(b"")
        if not meant:
            respond(b"")

    def wishes(self) -> list[Callable[[bytes], None]]:
        """Whom to give the current model: what to call with it."""
        with self.changed:
            found, self._wishes = self._wishes, {}
        return list(found.values())

    def _offered(self, question: bytes, respond: Callable[[bytes], None]) -> None:
        try:
            offer = self._format.open_offer(question, self.key_of)
        except Refused as refusal:
            self.refuse(refusal.reason)
            respond(BUSY)
            return
        with self.changed:
            promised = offer.receiver == self._place and self.mailbox.promise(offer.round, offer.sender)
        respond(ACCEPTED if promised else BUSY)

    # -- letters that do not come -------------------------------------------------------------------------------------

    def ask_again(self, round: int, places: list[int]) -> None:
        """Ask those who are missing for their letters: they send them again, or say that there will be none."""
        try:
            for place in places:
                if self.round != round:
                    return
                wish = self._format.seal_offer(round, self._place, place, self._identity.key)
                self.post.asked()
                for answer in self.transport.ask("again", place, wish, 1.0):
                    if answer == NOTHING:
                        self._will_not_come(round, place)
                    elif answer not in (NOT_YET, b""):
                        self._arrived(str(place), answer)
        finally:
            self.asking = False

    def _will_not_come(self, round: int, place: int) -> None:
        with self.changed:
            if self._barrier:
                self.broken = (
                    f"round {round}: node {place} no longer has its letter for this node, so that the barrier cannot be passed:"
                    ' a node was away for too long; start the run again, or use network.close = "deadline"'
                )
            else:
                self.mailbox.excuse(round, place)
            self.changed.notify_all()

    def _asked_again(self, question: bytes, respond: Callable[[bytes], None]) -> None:
        try:
            wish = self._format.open_offer(question, self.key_of)
        except Refused as refusal:
            self.refuse(refusal.reason)
            respond(NOTHING)
            return
        frame = self.post.again(wish.round, wish.sender, SEND_AGAIN) if wish.receiver == self._place else None
        with self.changed:
            past = self.round > wish.round or self.start > wish.round
        respond(bytes(frame) if frame else NOTHING if frame is None and past else NOT_YET)
