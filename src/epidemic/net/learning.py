"""Learning: what the main thread of a process computes for its nodes: training, mixing, giving and taking models, the final test.

What several nodes do at the same time is done in one batch.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from epidemic.algorithms import Rows
from epidemic.errors import BadInput, Diverged, RunFailed
from epidemic.graph import IntArray
from epidemic.host.inbox import Post, Received
from epidemic.host.journal import Host
from epidemic.host.plan import shares
from epidemic.net.seat import NO_LETTER, Outgoing, Seat, rows_of
from epidemic.net.views import Views
from epidemic.net.wire import Letter
from epidemic.protocol import events as e

Say = Callable[[Seat, str], None]
Work = Sequence[tuple[Seat, e.Action]]


class Learning:
    """The computing of one process."""

    def __init__(
        self,
        host: Host,
        seats: dict[int, Seat],
        views: Views,
        *,
        done: Callable[[Sequence[tuple[int, e.Event]]], None],
        flush: Callable[[float], None],
        refused: Callable[[], dict[str, int]],
        gave_up: Callable[[Seat], None],
        say: Say,
    ) -> None:
        """`done` is told what has been computed; `flush` waits until letters are on their way; `gave_up` tells the others."""
        self._host = host
        self._seats = seats
        self._views = views
        self._done = done
        self._flush = flush
        self._refused = refused
        self._gave_up = gave_up
        self._say = say
        self._experiment = host.population.setup.experiment

    def compute(self, found: Work) -> None:
        """Do what the protocols want computed."""
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

    def _who(self, seats: list[Seat]) -> IntArray | None:
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
                letter.sealed(seat, self._views(seat.place, round).graph)
            seat.keep(letter)
            events.append((seat.place, e.Trained(round)))
        self._done(events)

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
                self._flush(seat.rounds.pace.limit / e.SECOND)
                seat.settle_books()
            self._settle(seat)
        self._done(events)

    @staticmethod
    def _stacked(parts: list[Rows]) -> Rows:
        return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _received(self, seat: Seat, mix: e.Mix) -> Received:
        senders = [sender for sender, _ in mix.letters]
        rows = [rows_of(letter, self._host.population.columns) for _, letter in mix.letters]
        view = self._views.whole(seat.place, mix.round)
        at = bisect(senders, seat.place) if view.complete else None
        samples = [seat.samples, *(self._samples(sender, letter) for sender, letter in mix.letters)]
        counts = shares(self._experiment, view, seat.place, senders, samples)
        return Received(senders, rows, counts, at, by_portions=self._experiment.mixing_rule == "samples")

    def _samples(self, sender: int, letter: Letter | dict[str, Tensor]) -> int:
        """How many training samples the sender of a letter says it has; of a place of the same process that is known."""
        return letter.samples if isinstance(letter, Letter) else self._seats[sender].samples

    def _sane(self, seats: list[Seat]) -> Tensor:
        """Whether the models of these nodes have the numbers that a sane model has.   # (k,)"""
        x, who = self._host.population.models, self._who(seats)
        rows, most = (x if who is None else x[who]), self._experiment.network.largest
        lengths = torch.linalg.vector_norm(rows, dim=1)
        if bool((lengths <= most).all()):  # no number is larger than all together, and this is ten times faster to find
            return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        largest: Tensor = torch.linalg.vector_norm(rows, float("inf"), dim=1)
        return largest <= most  # false for what is not a number

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
            self._say(
                seat,
                f"round {seat.rounds.round}: what others sent made no sane model"
                f" (network.largest = {self._experiment.network.largest:g}): going on with its own (further ones are counted only)",
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
        self._say(seat, f"took the model of node {letter.sender}")
        self._done([(seat.place, e.Adopted())])

    def _conclude(self, seat: Seat) -> None:
        """Test the model and write everything down; the others are told."""
        self._flush(self._experiment.network.deadline)
        seat.settle_books()
        journal = seat.journal
        journal.done = self._experiment.rounds
        self._settle(seat)

        def about() -> dict[str, Any]:
            status = seat.status(self._refused())
            names = ("longest_wait", "letters", "refusals", "lost", "jumped", "undelivered", "local")
            return {name: getattr(status, name) for name in names}

        summary = journal.conclude(about)
        found = summary.final_accuracy
        self._say(seat, "finished" + ("" if found is None else f": accuracy {found.mean:.2%} on the full test set"))
        self._done([(seat.place, e.Concluded())])

    def _fail(self, seat: Seat, action: e.Fail) -> None:
        """A node cannot go on: save what it has, and let the other nodes of the process go on."""
        reason = action.reason
        seat.error = BadInput(reason) if action.bad_input else RunFailed(f"{reason}{seat.journal.kept}")
        self._save(seat)
        seat.mark("failed", str(seat.error))
        seat.over = True
        self._gave_up(seat)

    # -- stopping -----------------------------------------------------------------------------------------------------

    def save_all(self) -> None:
        """Save every node that is not at its end."""
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
