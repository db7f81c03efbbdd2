"""Process: drives the protocols of the nodes that it hosts. It decides nothing: events go in, actions are carried out.

Three kinds of threads. The network's own hand over what came in; letters are looked at by the reader. One thread, the desk, gives all events to
the protocols in turn and does what is quick. The main thread computes: training, mixing, evaluating, saving; interrupts reach it there.
Letters between places of the process never leave it.
"""

from __future__ import annotations

import datetime as dt
import os
import queue
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec

from epidemic.errors import BadInput, CallbackFailed, EpidemicError, RunFailed
from epidemic.host.journal import Host
from epidemic.net.access import REVOKED
from epidemic.net.acquaintances import Acquaintances, Meeting
from epidemic.net.computing import Calls, Computing
from epidemic.net.desk import Desk, now
from epidemic.net.gate import Gate
from epidemic.net.hello import LARGEST_BUNDLE, Hello, seal_hellos
from epidemic.net.keyring import Keyring
from epidemic.net.opening import Unreachable
from epidemic.net.outbox import Outbox
from epidemic.net.reader import Reader
from epidemic.net.replays import Replays
from epidemic.net.seat import RoundSeat, Seat
from epidemic.net.sight import Sight
from epidemic.net.status import seal_statuses
from epidemic.net.terms import Terms
from epidemic.net.transport import Transport
from epidemic.net.wire import NO_LETTER, Letter, Refused
from epidemic.protocol import events as e

GREETING = 3.0
"""Seconds that a hello is waited for."""

ASK_REVOKED = 3 * e.SECOND
"""Pause between questions whether this node was revoked, while links are there on which nothing comes."""
MOST_ASKED = 4
LARGEST_LIST = 2**20
"""Bytes of a list of revoked certificates."""

_WORDS = (e.ACCEPTED, e.BUSY, e.NOTHING, e.NOT_YET, "sent")

Say = Callable[[str], None]


class Letters(Protocol):
    """What a process sends to others, and what comes for it."""

    def came(self, letter: Any, places: tuple[int, ...]) -> None:
        """A letter came that is in order."""

    def carry_out(self, seat: Any, action: e.Action) -> bool:
        """Do what is about letters; False if it is not."""
        ...

    def close(self) -> None:
        """Send nothing any more."""


class Way(Protocol):
    """What belongs to a method: how its letters travel, and what it computes."""

    def letters(
        self,
        seats: Mapping[int, Any],
        desk: Desk,
        outbox: Outbox,
        transport: Transport,
        refuse: Callable[[str], None],
        failed: Callable[[Exception], None],
    ) -> Letters:
        """Its letters; `refuse` counts those that are not in order, `failed` is told of errors of our own."""
        ...

    def replays(self, seats: Mapping[int, Any]) -> Replays:
        """Which of its messages are worth a signature."""
        ...

    def learning(self, host: Host, seats: Mapping[int, Any], calls: Calls) -> Computing[Any]:
        """Its computing."""
        ...


class Process:
    """The nodes of one process, while they run."""

    def __init__(
        self,
        host: Host,
        seats: Sequence[Seat],
        transport: Transport,
        terms: Terms,
        way: Way,
        say: Say,
        meeting: Meeting | None = None,
    ) -> None:
        """`way`: what belongs to the method of these nodes; `meeting`: how the one node of this process meets others that it does not know."""
        self._host = host
        self._seats = {seat.place: seat for seat in seats}
        self._transport = transport
        self._terms = terms
        self._say = say
        carrier = seats[0]
        experiment = host.population.setup.experiment
        self._experiment = experiment
        self._carrier = carrier.place
        self._identity = carrier.identity
        self._format = carrier.format
        self._book = None if meeting is None else meeting.book
        self._keyring = Keyring(carrier.identity, terms, experiment.nodes, self._book)
        self._outbox = Outbox(transport, nodes=experiment.nodes, senders=len(seats) * self._format.parts)
        self._sight = Sight(carrier.place)
        self._warned = ""
        self._asked_revoked = 0  # when it was asked last whether this node was revoked, or when all was well
        self._greeting: set[int] = set()  # whose answer is waited for
        self._work: queue.SimpleQueue[list[tuple[Seat, e.Action]] | EpidemicError] = queue.SimpleQueue()
        self._desk = Desk(
            {seat.place: seat.member for seat in seats},
            self._carry_out,
            self._work_found,
            self._housekeeping,
            self._desk_failed,
        )
        offers = 0 if experiment.faults.cap_of(experiment.nodes) is None else len(seats)
        self._gate = Gate(transport, self._desk, say, self._format.parts + offers)
        sizes = host.population.setup.sizes
        self._reader = Reader(
            self._format,
            self._keyring,
            lambda letter, places: self._letters.came(letter, places),
            say,
            nodes=experiment.nodes,
            hosted=len(seats),
            samples=dict(enumerate(sizes.tolist())) if self._format.most_samples and sizes is not None else None,
            replays=way.replays(self._seats),
            repeated=self._repeated,
            forged=self._gate.forged,
        )
        self._found: list[tuple[Seat, e.Action]] = []
        self._letters = way.letters(
            self._seats, self._desk, self._outbox, transport, self._reader.refuse, self._desk_failed
        )
        self._acquaintances: Acquaintances | None = None
        if meeting is not None:
            assert isinstance(carrier, RoundSeat)
            self._acquaintances = Acquaintances(carrier, meeting, self._keyring, self._desk, transport)
        calls = Calls(
            done=self._desk.put_many,
            flush=self._outbox.flush,
            refused=self._refusals,
            gave_up=lambda seat: self._desk.tell(self._greet, seat, None),
            say=self._say_of,
        )
        self.learning = way.learning(host, self._seats, calls)

    def _refusals(self) -> dict[str, int]:
        """What came and was not in order, by reason."""
        known = Counter[str]() if self._book is None else self._book.refused
        return dict(self._reader.refused + self._keyring.refused + known + Counter(flood=self._gate.dropped))

    # -- from start to end --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All rounds of all seats, until nobody needs them any more; raises what ended one before."""
        try:
            with self._host.stop.held():  # an interrupt in the middle of Zenoh's code would get lost
                self._open()
            while not all(seat.over for seat in self._seats.values()):
                self._host.stop.heed()
                try:
                    found = self._work.get(timeout=0.5)
                except queue.Empty:
                    continue
                if isinstance(found, EpidemicError):
                    self.learning.save_all()
                    raise found
                try:
                    self.learning.compute(found)
                except CallbackFailed:
                    self.learning.save_all()
                    raise
        finally:
            self._desk.close()
            self._letters.close()
            self._outbox.close()
            self._transport.close()
            self._reader.close()
        errors = [seat.error for seat in self._seats.values() if seat.error is not None]
        if errors:
            raise errors[0]

    def _open(self) -> None:
        transport, desk = self._transport, self._desk
        for seat in self._seats.values():
            desk.put(seat.place, e.Started())
            desk.put(seat.place, e.Present(self._carrier, transport.token, True))
        self._introduce_inside()
        self._gate.open()
        limit = self._format.most_bytes
        transport.receive(self._reader.put, lambda _: self._reader.refuse("oversized"), limit)
        transport.answer("hello", self._greeted)
        transport.answer("status", self._asked_status)
        transport.answer(REVOKED, lambda _, respond: respond(msgspec.json.encode(self._identity.revoked)))
        capped = self._experiment.faults.cap_of(self._experiment.nodes) is not None
        for topic in ("model", "again", "offer") if capped else ("model", "again"):
            transport.answer(topic, partial(self._asked, topic))
        transport.watch("alive", self._presence)
        transport.appear("alive", self._carrier)
        desk.start()

    def _desk_failed(self, problem: Exception) -> None:
        """An error of our own: the process ends with it, saved."""
        if "EPIDEMIC_DEBUG" in os.environ:
            traceback.print_exception(problem)
        text = f"unexpected {type(problem).__name__}: {' '.join(str(problem).split())}"
        self._work.put(problem if isinstance(problem, EpidemicError) else RunFailed(text))

    # -- the network's threads ----------------------------------------------------------------------------------------

    def _repeated(self, places: tuple[int, ...], outcome: str) -> None:
        for place in places:
            if place in self._seats:
                self._seats[place].repeated(outcome)

    def _presence(self, place: int, token: str, there: bool) -> None:
        if place != self._carrier or token != self._transport.token:
            self._keyring.shown(place, token, there)
            self._desk.put_all(e.Present(place, token, there))

    def _greeted(self, question: bytes, respond: Callable[[bytes], None]) -> None:
        self._introduced(question)
        respond(self._hellos())

    def _introduced(self, raw: bytes) -> bool:
        heard = self._keyring.introduce(raw)
        for hello in heard:
            self._desk.put_all(hello)
        for carrier in {hello.carrier for hello in heard}:
            self._gate.carries(carrier, self._keyring.carried(carrier))
        if heard:
            self._reader.look_again()
        return bool(heard)

    def _hellos(self) -> bytes:
        """How the nodes of this process introduce themselves now."""
        return seal_hellos(((self._hello(seat), seat.identity) for seat in self._seats.values()), self._terms)

    def _hello(self, seat: Seat) -> Hello:
        round, start, finished, gone = seat.member.hello()
        token, run = self._transport.token, self._keyring.run
        where, bound = b"" if self._book is None else self._book.own, seat.member.commitment
        return Hello(
            seat.place, self._carrier, token, seat.identity.encoded, run, round, start, finished, gone, where, bound
        )

    def _introduce_inside(self) -> None:
        """Tell the nodes of this process of each other."""
        for seat in self._seats.values():
            known = self._hello(seat).introduced()
            self._desk.put_many((place, known) for place in self._seats if place != seat.place)

    def _asked(self, topic: str, question: bytes, respond: Callable[[bytes], None]) -> None:
        try:
            wish = self._format.open_offer(question, self._keyring.key_of)
        except Refused as refusal:
            self._reader.refuse(refusal.reason)
            respond(e.NOTHING.encode())
            return
        if wish.receiver in self._seats:
            self._desk.put(wish.receiver, e.Asked(topic, wish.sender, wish.round, respond))
        else:
            respond(e.NOTHING.encode())

    def _asked_status(self, _: bytes, respond: Callable[[bytes], None]) -> None:
        refused = self._refusals()
        seats = self._seats.values()
        own = ((seat.status(refused if seat.place == self._carrier else {}), seat.identity) for seat in seats)
        respond(seal_statuses(own))

    # -- the desk's thread --------------------------------------------------------------------------------------------

    def _carry_out(self, place: int, action: e.Action) -> None:
        """Do what is quick; what computes is left to the main thread."""
        seat = self._seats[place]
        match action:
            case e.Ask():
                self._ask(seat, action)
            case e.Answer():
                action.reply(action.word.encode())
            case e.Greet():
                self._greet(seat, action.place)
            case e.Say():
                self._say_of(seat, action.text)
            case _:
                known = self._acquaintances
                if not (self._letters.carry_out(seat, action) or (known is not None and known.carry_out(action))):
                    self._found.append((seat, action))

    def _say_of(self, seat: Seat, text: str) -> None:
        """Tell people of one of the nodes."""
        self._say(f"node {seat.place}: {text}" if len(self._seats) > 1 else text)

    def _work_found(self) -> None:
        """Everything that the last events led to has been carried out: what is to be computed goes to the main thread at once."""
        if self._found:
            found, self._found = self._found, []
            self._work.put(found)

    def _ask(self, seat: Seat, action: e.Ask) -> None:
        topic, to, round = action.topic, action.to, action.round

        def heard(answer: Any) -> None:
            self._desk.put(seat.place, e.Answered(topic, to, round, answer))

        def answered(raw: bytes | None) -> None:
            word = None if raw is None or len(raw) > 16 else raw.decode("ascii", "replace")
            if raw is None or word in _WORDS:
                heard(word)
            elif topic == "model":
                self._reader.put(carrier, raw, (), lambda letter: heard(self._given(letter, to)))
            elif topic == "again":
                self._reader.put(carrier, raw, (seat.place,), asked_for=True)
                heard("sent")
            else:
                heard(None)

        if to in self._seats:
            self._desk.put(to, e.Asked(topic, seat.place, round, answered))
            return
        carrier = seat.member.roster.carrier(to)
        question = self._format.seal_offer(round, seat.place, to, seat.identity.key)
        self._transport.ask(topic, carrier, question, action.patience / e.SECOND, answered, self._format.frame_bytes)

    @staticmethod
    def _given(letter: Letter | None, by: int) -> Letter | None:
        """A model that was asked for, if it is one, of the node that was asked."""
        return letter if letter is not None and letter.sender == by and letter.graph == NO_LETTER else None

    def _greet(self, seat: Seat, place: int | None) -> None:
        """Introduce the nodes of this process to another process, or to all; several seats that want the same are one."""
        if place is None:
            self._introduce_inside()
        for carrier in self._keyring.present() if place is None else [place]:
            if carrier == self._carrier or (carrier in self._greeting and place is not None):
                continue
            self._greeting.add(carrier)
            self._transport.ask("hello", carrier, self._hellos(), GREETING, self._answer_to(carrier), LARGEST_BUNDLE)

    def _answer_to(self, carrier: int) -> Callable[[bytes | None], None]:
        def answered(raw: bytes | None) -> None:
            self._greeting.discard(carrier)
            if raw is None or not self._introduced(raw):
                self._desk.put_all(e.Ungreeted(carrier))

        return answered

    def _housekeeping(self) -> None:
        """About once a second: certificates, and links that carry nothing."""
        found = self._identity.refresh()
        if found.problem and found.problem != self._warned:
            self._say(f"{found.problem}; the list read before counts")
        self._warned = found.problem
        if found.changed:
            self._say(f"the list of revoked certificates has changed: {', '.join(self._identity.revoked.names)}")
            self._renew()  # who may connect is read when the network is opened
        for seat in self._seats.values():
            seat.identity.revoked = self._identity.revoked
            try:
                seat.identity.still_good()
            except BadInput as problem:
                self._work.put(problem)
                return
        self._desk.put_all(e.Void(self._keyring.void(dt.datetime.now(dt.UTC))))
        if self._acquaintances is not None:
            self._acquaintances.housekeeping()
        for carrier in self._keyring.present():
            self._sight.saw(carrier, time.monotonic())
        unseen = self._transport.unseen()
        self._ask_whether_revoked(unseen)
        if self._sight.lost(unseen, time.monotonic()):
            self._say("a connection is there on which nothing comes: opening the network again")
            self._renew()

    def _ask_whether_revoked(self, unseen: frozenset[int]) -> None:
        """Who says nothing on its link has perhaps revoked this node: ask for the list that would say so, now and then."""
        if not unseen:
            self._asked_revoked = now()
        elif now() - self._asked_revoked > ASK_REVOKED:
            self._asked_revoked = now()
            for place in sorted(unseen)[:MOST_ASKED]:
                self._transport.ask(REVOKED, place, b"", GREETING, self._told_revoked, LARGEST_LIST)

    def _told_revoked(self, raw: bytes | None) -> None:
        if raw is not None:
            with suppress(EpidemicError):  # where it cannot be written, nothing is lost
                self._identity.told(raw)

    def _renew(self) -> None:
        try:
            self._transport.renew()
        except Unreachable as problem:
            self._say(str(problem))
            return
        token = self._transport.token
        for place in self._seats:
            self._desk.put(place, e.Renewed(token))
            self._desk.put(place, e.Present(self._carrier, token, True))
        self._introduce_inside()
