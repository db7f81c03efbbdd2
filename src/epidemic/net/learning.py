"""Learning: what the main thread of a process computes for its nodes in rounds: training, mixing, giving and taking models.

What several nodes do at the same time is done in one batch.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from epidemic.algorithms import Rows
from epidemic.errors import Diverged
from epidemic.graph import IntArray
from epidemic.host.inbox import Post, Received
from epidemic.host.journal import Host
from epidemic.host.plan import shares
from epidemic.net.computing import Calls, Computing, Work
from epidemic.net.seat import Outgoing, RoundSeat, rows_of
from epidemic.net.views import Views
from epidemic.net.wire import NO_LETTER, Letter
from epidemic.protocol import events as e
from epidemic.workers import blocks


class Learning(Computing[RoundSeat]):
    """The computing of nodes of a method with rounds."""

    def __init__(self, host: Host, seats: Mapping[int, RoundSeat], views: Views, calls: Calls) -> None:
        super().__init__(host, seats, calls)
        self._views = views

    def compute(self, found: Work) -> None:
        """Do what the protocols want computed."""
        trainings: dict[int, list[tuple[RoundSeat, int]]] = {}
        mixtures: list[tuple[RoundSeat, e.Mix]] = []
        for seat, action in found:
            if not isinstance(action, e.Leave | e.Fail):
                seat.journal.confirm()  # the others are there and have the same number of rounds
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
                    self.conclude(seat)
                case e.Leave():
                    seat.over = True
                case e.Fail():
                    self.fail(seat, action)
        if mixtures:
            self._mix(mixtures)
        for round, those in trainings.items():
            for seat, _ in those:
                seat.journal.done = round  # rounds may have been left out
                if seat.journal.due:
                    self._settle(seat)
            those.sort(key=lambda one: one[0].position)
            for some in blocks(len(those), self._host.population.at_once):
                with self._host.stop.held():
                    self._train(round, those[some])

    def _who(self, seats: list[RoundSeat]) -> IntArray | None:
        return None if len(seats) == len(self._seats) else np.array([seat.position for seat in seats])

    def _train(self, round: int, those: list[tuple[RoundSeat, int]]) -> None:
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
            letter = Outgoing(round, self._views.targets(seat.place, round), seat.said)
            if any(place not in self._seats for place in letter.targets):
                letter.sealed(seat, self._views(seat.place, round).graph)
            seat.keep(letter)
            events.append((seat.place, e.Trained(round)))
        self._calls.done(events)

    def _train_again(
        self, round: int, those: list[tuple[RoundSeat, int]], before: Rows, bad: list[int]
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
            self.mended(seat)
            for name, rows in population.snapshot(np.array([seat.position])).items():
                before[name][i] = rows[0]
        message, loss = population.emit(round, np.array([targets for _, targets in those]), None, self._who(seats))
        for i, seat in enumerate(seats):
            seat.journal.check_loss("training loss", loss[i : i + 1])
        return message, loss

    def _mix(self, mixtures: list[tuple[RoundSeat, e.Mix]]) -> None:
        mixtures = sorted(mixtures, key=lambda one: one[0].position)
        seats, events = [seat for seat, _ in mixtures], []
        population = self._host.population
        with self._host.stop.held():
            with seats[0].journal.clock("mix"):
                message = self._stacked([seat.message for seat in seats])
                received = [self._received(seat, mix) for seat, mix in mixtures]
                for seat in seats:
                    seat.own = population.snapshot(np.array([seat.position]))
                population.absorb(Post(message, received, self._host.workers, population.coder), self._who(seats))
                self._mend(seats)
            for seat, mix in mixtures:
                seat.before = None
                seat.settle_books()
                seat.journal.counters.received(len(mix.letters))
                seat.journal.advanced(mix.round, seat.loss, 1 + len(seat.member.roster.alive(seat.member.now)))
                events.append((seat.place, e.Mixed(mix.round)))
        for seat in seats:
            if seat.journal.due:
                self._calls.flush(seat.member.pace.limit / e.SECOND)
                seat.settle_books()
            self._settle(seat)
        self._calls.done(events)

    @staticmethod
    def _stacked(parts: list[Rows]) -> Rows:
        return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _received(self, seat: RoundSeat, mix: e.Mix) -> Received:
        senders = [sender for sender, _ in mix.letters]
        population = self._host.population
        rows = [rows_of(letter, population.columns, population.coder) for _, letter in mix.letters]
        view = self._views.whole(seat.place, mix.round)
        at = bisect(senders, seat.place) if view.complete else None
        samples = [seat.samples, *(self._samples(sender, letter) for sender, letter in mix.letters)]
        counts = shares(self._experiment, view, seat.place, senders, samples)
        return Received(senders, rows, counts, at, by_portions=self._experiment.mixing_rule == "samples")

    def _samples(self, sender: int, letter: Letter | dict[str, Tensor]) -> int:
        """How many training samples the sender of a letter says it has; of a place of the same process that is known."""
        return letter.samples if isinstance(letter, Letter) else self._seats[sender].samples

    def _sane(self, seats: list[RoundSeat]) -> Tensor:
        """Whether the models of these nodes have the numbers that a sane model has.   # (k,)"""
        rows, most = self._host.population.models_of(self._who(seats)), self._experiment.network.largest
        lengths = torch.linalg.vector_norm(rows, dim=1)
        if bool((lengths <= most).all()):  # no number is larger than all together, and this is ten times faster to find
            return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        largest: Tensor = torch.linalg.vector_norm(rows, float("inf"), dim=1)
        return largest <= most  # false for what is not a number

    def _mend(self, seats: list[RoundSeat]) -> None:
        """Throw away mixtures whose numbers no sane model has."""
        for seat, sane in zip(seats, self._sane(seats).tolist(), strict=True):
            if not sane:
                self._go_on_alone(seat)

    def _go_on_alone(self, seat: RoundSeat) -> None:
        """A mixture is thrown away: the node keeps what it has learnt itself."""
        assert seat.own is not None
        population, where = self._host.population, np.array([seat.position])
        population.restore(where, seat.own)
        if seat.message:
            alone = Received([], [], np.ones(1))
            inbox = Post(seat.message, [alone], self._host.workers, population.coder)
            population.absorb(inbox, self._who([seat]))
        self.mended(seat)

    def _settle(self, seat: RoundSeat) -> None:
        """Evaluate and save where that is due; a mixture with which nothing finite comes out is thrown away."""
        try:
            seat.journal.settle()
        except Diverged:
            if seat.own is None:
                raise
            self._go_on_alone(seat)
            seat.own = None
            seat.journal.settle()

    def _give(self, seat: RoundSeat, action: e.Give) -> None:
        """Give the current model to somebody who asked, while nothing changes it."""
        given = self._host.population.give(np.array([seat.position]))
        row = {name: rows[0] for name, rows in given.items()}
        if action.to in self._seats:
            action.reply(None)  # nodes of one process do not return one without the other
            return
        action.reply(bytes(seat.seal(max(seat.member.round, 0), NO_LETTER, row)))
        seat.sent(1, True, each=seat.format.model_bytes)

    def _adopt(self, seat: RoundSeat, letter: Letter) -> None:
        population, where = self._host.population, np.array([seat.position])
        rows = {name: row[None].clone() for name, row in rows_of(letter, population.columns).items()}
        seat.own = population.snapshot(where)  # in case that nobody can train with what was given
        population.adopt(where, rows)
        seat.message = {}
        self._calls.say(seat, f"took the model of node {letter.sender}")
        self._calls.done([(seat.place, e.Adopted())])

    def settle_end(self, seat: RoundSeat) -> None:
        """All rounds are done: evaluate and save."""
        seat.journal.done = self._experiment.rounds
        self._settle(seat)

    def rewind(self, seat: RoundSeat) -> None:
        """Put a node back to where its round began; the round is done again when it goes on."""
        if seat.before is not None:
            self._host.population.restore(np.array([seat.position]), seat.before)
            seat.before = None
        seat.settle_books()
