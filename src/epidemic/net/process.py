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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from epidemic.algorithms import Rows
from epidemic.errors import BadInput, Diverged, EpidemicError, RunFailed
from epidemic.host.inbox import Post, Received
from epidemic.host.journal import Host
from epidemic.host.plan import shares
from epidemic.net.desk import Desk
from epidemic.net.hello import LARGEST_BUNDLE, Hello, seal_hellos
from epidemic.net.keyring import Keyring
from epidemic.net.outbox import Outbox
from epidemic.net.reader import Reader
from epidemic.net.seat import NO_LETTER, Outgoing, Seat, rows_of
from epidemic.net.sight import Sight
from epidemic.net.status import seal_statuses
from epidemic.net.terms import Terms
from epidemic.net.transport import Transport, Unreachable
from epidemic.net.views import Views
from epidemic.net.wire import Letter, Refused
from epidemic.protocol import events as e

GREETING = 3.0
"""Seconds that a hello is waited for."""

_WORDS = (e.ACCEPTED, e.BUSY, e.NOTHING, e.NOT_YET, "sent")

Say = Callable[[str], None]


class Process:
    """The nodes of one process, while they run."""

    def __init__(
        self, host: Host, seats: Sequence[Seat], transport: Transport, terms: Terms, views: Views, say: Say
    ) -> None:
        self._host = host
        self._seats = {seat.place: seat for seat in seats}
        self._transport = transport
        self._terms = terms
        self._views = views
        self._say = say
        carrier = seats[0]
        experiment = host.population.setup.experiment
        self._experiment = experiment
        self._carrier = carrier.place
        self._identity = carrier.identity
        self._format = carrier.format
        self._keyring = Keyring(carrier.identity, terms, experiment.nodes)
        self._outbox = Outbox(transport, nodes=experiment.nodes, senders=len(seats))
        self._sight = Sight(carrier.place)
        self._warned = ""
        self._greeting: set[int] = set()  # whose answer is waited for
        self._work: queue.SimpleQueue[list[tuple[Seat, e.Action]] | EpidemicError] = queue.SimpleQueue()
        self._desk = Desk(
            {seat.place: seat.rounds for seat in seats},
            self._carry_out,
            self._work_found,
            self._housekeeping,
            self._desk_failed,
        )
        self._reader = Reader(
            self._format, self._keyring, self._letter_came, say, nodes=experiment.nodes, hosted=len(seats)
        )
        self._found: list[tuple[Seat, e.Action]] = []

    # -- from start to end --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All rounds of all seats, until nobody needs them any more; raises what ended one before."""
        try:
            with self._host.stop.held():  # an interrupt in the middle of Zenoh's code would get lost
                self._open()
            while not all(seat.over for seat in self._seats.values()):
                try:
                    found = self._work.get(timeout=0.5)
                except queue.Empty:
                    continue
                if isinstance(found, EpidemicError):
                    self._save_all()
                    raise found
                self._compute(found)
        finally:
            self._desk.close()
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
        limit = self._format.frame_bytes
        transport.receive(self._reader.put, lambda _: self._reader.refuse("oversized"), limit)
        transport.answer("hello", self._greeted)
        transport.answer("status", self._asked_status)
        for topic in ("model", "again", "offer"):
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

    def _letter_came(self, letter: Letter, places: tuple[int, ...]) -> None:
        for place in places:
            if place in self._seats:
                self._desk.put(place, e.Arrived(letter.sender, letter.round, letter.graph, letter))

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
        if heard:
            self._reader.look_again()
        return bool(heard)

    def _hellos(self) -> bytes:
        """How the nodes of this process introduce themselves now."""
        return seal_hellos(((self._hello(seat), seat.identity) for seat in self._seats.values()), self._terms)

    def _hello(self, seat: Seat) -> Hello:
        round, start, finished, gone = seat.rounds.hello()
        token, run = self._transport.token, self._keyring.run
        return Hello(seat.place, self._carrier, token, seat.identity.encoded, run, round, start, finished, gone)

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
        refused = dict(self._reader.refused + self._keyring.refused)
        seats = self._seats.values()
        own = ((seat.status(refused if seat.place == self._carrier else {}), seat.identity) for seat in seats)
        respond(seal_statuses(own))

    # -- the desk's thread --------------------------------------------------------------------------------------------

    def _carry_out(self, place: int, action: e.Action) -> None:
        """Do what is quick; what computes is left to the main thread."""
        seat = self._seats[place]
        match action:
            case e.Send():
                self._send(seat, action)
            case e.Ask():
                self._ask(seat, action)
            case e.Answer():
                action.reply(action.word.encode())
            case e.AnswerLetter():
                self._answer_letter(seat, action)
            case e.Greet():
                self._greet(seat, action.place)
            case e.Forget():
                seat.forget(action.before)
            case e.Say():
                self._say_of(seat, action.text)
            case _:
                self._found.append((seat, action))

    def _say_of(self, seat: Seat, text: str) -> None:
        """Tell people of one of the nodes."""
        self._say(f"node {seat.place}: {text}" if len(self._seats) > 1 else text)

    def _work_found(self) -> None:
        """Everything that the last events led to has been carried out: what is to be computed goes to the main thread at once."""
        if self._found:
            found, self._found = self._found, []
            self._work.put(found)

    def _letter_of(self, seat: Seat, round: int) -> Outgoing:
        """The letter of a round; one trained for an earlier round that was left out is sent in this one."""
        letter = seat.kept.get(round)
        if letter is None:
            row = {name: rows[0] for name, rows in seat.message.items()}
            letter = Outgoing(round, self._views.targets(seat.place, round), row)
            seat.keep(letter)
        return letter

    def _frame(self, seat: Seat, letter: Outgoing) -> bytearray:
        if letter.frame is None:
            letter.frame = seat.seal(letter.round, self._views(seat.place, letter.round).graph, letter.row)
        return letter.frame

    def _send(self, seat: Seat, action: e.Send) -> None:
        letter = self._letter_of(seat, action.round)
        by_carrier: dict[int, list[int]] = {}
        for place in action.to:
            if place in self._seats:
                graph = self._views(seat.place, action.round).graph
                self._desk.put(place, e.Arrived(seat.place, action.round, graph, letter.row))
                seat.sent(1, True, local=True)
            else:
                by_carrier.setdefault(seat.rounds.roster.carrier(place), []).append(place)
        if by_carrier and letter.payload is None:
            letter.payload = self._transport.payload(self._frame(seat, letter))
        for carrier, places in by_carrier.items():
            self._outbox.send(carrier, tuple(places), letter.payload, seat.sent)

    def _answer_letter(self, seat: Seat, action: e.AnswerLetter) -> None:
        letter = seat.kept.get(action.round)
        if letter is None:
            action.reply(e.NOT_YET.encode())
            return
        if action.to in self._seats:  # inside the process nothing gets lost; it was asked for too early
            graph = self._views(seat.place, action.round).graph
            self._desk.put(action.to, e.Arrived(seat.place, action.round, graph, letter.row))
            action.reply(b"sent")
        else:
            action.reply(bytes(self._frame(seat, letter)))
        seat.sent(1, True, local=action.to in self._seats)

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
                self._reader.put(carrier, raw, (seat.place,))
                heard("sent")
            else:
                heard(None)

        if to in self._seats:
            self._desk.put(to, e.Asked(topic, seat.place, round, answered))
            return
        carrier = seat.rounds.roster.carrier(to)
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
        for seat in self._seats.values():
            seat.identity.revoked = self._identity.revoked
            try:
                seat.identity.still_good()
            except BadInput as problem:
                self._work.put(problem)
                return
        self._desk.put_all(e.Void(self._keyring.void(dt.datetime.now(dt.UTC))))
        for carrier in self._keyring.present():
            self._sight.saw(carrier)
        if self._sight.lost(self._transport.unseen(), time.monotonic()):
            self._say("a connection is there on which nothing comes: opening the network again")
            self._renew()

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

    # -- the main thread ----------------------------------------------------------------------------------------------

    def _compute(self, found: list[tuple[Seat, e.Action]]) -> None:
        trainings: dict[int, list[tuple[Seat, int]]] = {}
        mixtures: list[tuple[Seat, e.Mix]] = []
        for seat, action in found:
            match action:
                case e.Train():
                    trainings.setdefault(action.round, []).append((seat, action.targets))
                case e.Mix():
                    mixtures.append((seat, action))
                case e.Give():
                    self._give(seat, action)
                case e.Adopt():
                    with self._host.stop.held():
                        self._adopt(seat, action.letter)
                case e.Conclude():
                    self._conclude(seat)
                case e.Leave():
                    seat.over = True
                case e.Fail():
                    self._fail(seat, action)
        if mixtures:
            self._mix(mixtures)
        for round, those in trainings.items():
            for seat, _ in those:
                seat.journal.done = round  # rounds may have been left out
                if seat.journal.due:
                    self._settle(seat)
            with self._host.stop.held():
                self._train(round, those)

    def _who(self, seats: list[Seat]) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        return None if len(seats) == len(self._seats) else np.array([seat.position for seat in seats])

    def _train(self, round: int, those: list[tuple[Seat, int]]) -> None:
        those = sorted(those, key=lambda one: one[0].position)
        seats = [seat for seat, _ in those]
        population = self._host.population
        everyone = np.array([seat.position for seat in seats])
        before = population.snapshot(everyone)
        with seats[0].journal.clock("train"):
            message, loss = population.emit(round, np.array([targets for _, targets in those]), None, self._who(seats))
        sane = torch.isfinite(loss) & self._sane(seats).to(loss.device)
        bad = [i for i in (~sane).nonzero().flatten().tolist() if seats[i].own is not None or not loss[i].isfinite()]
        if bad:
            message, loss = self._train_again(round, those, before, bad)
        if len(self._seats) > 1:  # a neighbour's mixture may overwrite what others still have to read
            message = {name: rows.clone() for name, rows in message.items()}
        events = []
        for i, seat in enumerate(seats):
            seat.before = {name: rows[i : i + 1] for name, rows in before.items()}
            seat.message = {name: rows[i : i + 1] for name, rows in message.items()}
            seat.loss = loss[i : i + 1]
            letter = Outgoing(round, self._views.targets(seat.place, round), {n: r[0] for n, r in seat.message.items()})
            if any(place not in self._seats for place in letter.targets):
                self._frame(seat, letter)
            seat.keep(letter)
            events.append((seat.place, e.Trained(round)))
        self._desk.put_many(events)

    def _train_again(
        self, round: int, those: list[tuple[Seat, int]], before: Rows, bad: list[int]
    ) -> tuple[Rows, Tensor]:
        """A loss or a model exploded: what these nodes mixed last was insane, or they are so themselves.

        Everybody trains again, those from what they had before they last mixed; if it happens again, it is their own fault.
        """
        population = self._host.population
        seats = [seat for seat, _ in those]
        everyone = np.array([seat.position for seat in seats])
        population.restore(everyone, before)
        for i in bad:
            seat = seats[i]
            if seat.own is None:
                seat.journal.check_loss("training loss", torch.tensor([float("nan")]))
            assert seat.own is not None
            population.restore(np.array([seat.position]), seat.own)
            seat.own = None
            self._mended(seat)
            for name, rows in population.snapshot(np.array([seat.position])).items():
                before[name][i] = rows[0]
        message, loss = population.emit(round, np.array([targets for _, targets in those]), None, self._who(seats))
        for i, seat in enumerate(seats):
            seat.journal.check_loss("training loss", loss[i : i + 1])
        return message, loss

    def _mix(self, mixtures: list[tuple[Seat, e.Mix]]) -> None:
        mixtures = sorted(mixtures, key=lambda one: one[0].position)
        seats, events = [seat for seat, _ in mixtures], []
        population = self._host.population
        with self._host.stop.held():
            with seats[0].journal.clock("mix"):
                message = self._stacked([seat.message for seat in seats])
                received = [self._received(seat, mix) for seat, mix in mixtures]
                for seat in seats:
                    seat.own = population.snapshot(np.array([seat.position]))
                population.absorb(Post(message, received, self._host.workers), self._who(seats))
                self._mend(seats)
            for seat, mix in mixtures:
                seat.before = None
                seat.settle_books()
                seat.journal.counters.received(len(mix.letters))
                seat.journal.advanced(mix.round, seat.loss, 1 + len(seat.rounds.roster.alive(seat.rounds.now)))
                events.append((seat.place, e.Mixed(mix.round)))
        for seat in seats:
            if seat.journal.due:
                self._outbox.flush(seat.rounds.pace.limit / e.SECOND)
                seat.settle_books()
            self._settle(seat)
        self._desk.put_many(events)

    @staticmethod
    def _stacked(parts: list[Rows]) -> Rows:
        return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _received(self, seat: Seat, mix: e.Mix) -> Received:
        senders = [sender for sender, _ in mix.letters]
        rows = [rows_of(letter, self._host.population.columns) for _, letter in mix.letters]
        view = self._views.whole(seat.place, mix.round)
        return Received(senders, rows, shares(self._experiment, view, seat.place, senders))

    def _sane(self, seats: list[Seat]) -> Tensor:
        """Whether the models of these nodes have the numbers that a sane model has.   # (k,)"""
        x, who = self._host.population.models, self._who(seats)
        largest: Tensor = torch.linalg.vector_norm(x if who is None else x[who], float("inf"), dim=1)
        return largest <= self._format.largest  # false for what is not a number

    def _mend(self, seats: list[Seat]) -> None:
        """Throw away mixtures whose numbers no sane model has."""
        for seat, sane in zip(seats, self._sane(seats).tolist(), strict=True):
            if not sane:
                self._go_on_alone(seat)

    def _go_on_alone(self, seat: Seat) -> None:
        """A mixture is thrown away: the node keeps what it has learnt itself."""
        assert seat.own is not None
        population, where = self._host.population, np.array([seat.position])
        population.restore(where, seat.own)
        if seat.message:
            alone = Received([], [], np.ones(1))
            population.absorb(Post(seat.message, [alone], self._host.workers), self._who([seat]))
        self._mended(seat)

    def _mended(self, seat: Seat) -> None:
        """Count what was thrown away, and say it once."""
        seat.mended += 1
        if seat.mended == 1:
            self._say_of(
                seat,
                f"round {seat.rounds.round}: what others sent made no sane model (network.largest = {self._format.largest:g}):"
                " going on with its own (further ones are counted only)",
            )

    def _settle(self, seat: Seat) -> None:
        """Evaluate and save where that is due; a mixture with which nothing finite comes out is thrown away."""
        try:
            seat.journal.settle()
        except Diverged:
            if seat.own is None:
                raise
            self._go_on_alone(seat)
            seat.own = None
            seat.journal.settle()

    def _give(self, seat: Seat, action: e.Give) -> None:
        """Give the current model to somebody who asked, while nothing changes it."""
        given = self._host.population.give(np.array([seat.position]))
        row = {name: rows[0] for name, rows in given.items()}
        if action.to in self._seats:
            action.reply(None)  # nodes of one process do not return one without the other
            return
        action.reply(bytes(seat.seal(max(seat.rounds.round, 0), NO_LETTER, row)))
        seat.sent(1, True)

    def _adopt(self, seat: Seat, letter: Letter) -> None:
        population, where = self._host.population, np.array([seat.position])
        rows = {name: row[None].clone() for name, row in rows_of(letter, population.columns).items()}
        seat.own = population.snapshot(where)  # in case that nobody can train with what was given
        population.adopt(where, rows)
        seat.message = {}
        self._say_of(seat, f"took the model of node {letter.sender}")
        self._desk.put(seat.place, e.Adopted())

    def _conclude(self, seat: Seat) -> None:
        """Test the model and write everything down; the others are told."""
        self._outbox.flush(self._experiment.network.deadline)
        seat.settle_books()
        journal = seat.journal
        journal.done = self._experiment.rounds
        self._settle(seat)

        def about() -> dict[str, Any]:
            status = seat.status(dict(self._reader.refused + self._keyring.refused))
            names = ("longest_wait", "letters", "refusals", "lost", "jumped", "undelivered", "local")
            return {name: getattr(status, name) for name in names}

        summary = journal.conclude(about)
        found = summary.final_accuracy
        self._say(f"node {seat.place} has finished" + ("" if found is None else f": accuracy {found.mean:.2%}"))
        self._desk.put(seat.place, e.Concluded())

    def _fail(self, seat: Seat, action: e.Fail) -> None:
        """A node cannot go on: save what it has, and let the other nodes of the process go on."""
        reason = action.reason
        seat.error = BadInput(reason) if action.bad_input else RunFailed(f"{reason}{seat.journal.kept}")
        self._save(seat)
        seat.mark("failed", str(seat.error))
        seat.over = True
        self._desk.tell(self._greet, seat, None)

    # -- stopping -----------------------------------------------------------------------------------------------------

    def _save_all(self) -> None:
        for seat in self._seats.values():
            if not seat.over:
                self._save(seat)

    def rewind(self, seat: Seat) -> None:
        """Put a node back to where its round began; the round is done again when it goes on."""
        if seat.before is not None:
            self._host.population.restore(np.array([seat.position]), seat.before)
            seat.before = None
        seat.settle_books()

    def _save(self, seat: Seat) -> None:
        self.rewind(seat)
        if seat.journal.recorded >= 0 and not seat.journal.over:
            seat.journal.save()
