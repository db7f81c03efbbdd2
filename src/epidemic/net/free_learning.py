"""Free learning: what the main thread of a process computes for its nodes without rounds: training, evaluating, saving.

What several nodes want trained at the same moment is trained in one batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from epidemic.algorithms import Rows, Turn
from epidemic.algorithms.base import LocalTraining
from epidemic.errors import Diverged
from epidemic.host.journal import Host
from epidemic.host.promises import Given
from epidemic.net.computing import Calls, Computing, Work
from epidemic.net.free_seat import FreeSeat
from epidemic.net.free_wire import FreeLetter
from epidemic.net.handles import Handles, sane
from epidemic.protocol import events as e

Trainings = list[tuple[FreeSeat, e.Learn]]


class FreeLearning(Computing[FreeSeat]):
    """The computing of nodes of a method without rounds."""

    def __init__(self, host: Host, seats: Mapping[int, FreeSeat], handles: Handles, calls: Calls) -> None:
        super().__init__(host, seats, calls)
        self._handles = handles
        self._largest = self._experiment.network.largest

    def compute(self, found: Work) -> None:
        """Do what the protocols want computed; what is looked at goes first."""
        trainings: Trainings = []
        for seat, action in found:
            match action:
                case e.Learn():
                    trainings.append((seat, action))
                case e.Look():
                    self._look(seat, action)
                case e.Adopt():
                    with self._host.stop.held():
                        self._adopt(seat, action.letter)
                case e.Conclude():
                    self.conclude(seat)
                case e.Leave():
                    seat.over = True
                case e.Fail():
                    self.fail(seat, action)
        if trainings:
            with self._host.stop.held():
                self._train(sorted(trainings, key=lambda one: one[0].position))

    # -- training -----------------------------------------------------------------------------------------------------

    def _train(self, those: Trainings) -> None:
        began = time.monotonic()
        with those[0][0].journal.clock("train"):
            rows = torch.stack([self._start(seat, learn) for seat, learn in those])
            memory = self._memory([seat for seat, _ in those])
            before = {name: part.clone() for name, part in memory.items()}
            loss = self._steps(those, rows, memory)
            for i, (seat, learn) in enumerate(those):
                if not bool(loss[i].isfinite()) or not sane(rows[i], self._largest):
                    at = slice(i, i + 1)
                    rows[at], loss[at] = self._train_again(
                        seat, learn, {n: v[at] for n, v in before.items()}, memory, i
                    )
        population, took = self._host.population, time.monotonic() - began
        for name, part in memory.items():
            population.state[name][[seat.position for seat, _ in those]] = part
        events: list[tuple[int, e.Event]] = []
        for i, (seat, learn) in enumerate(those):
            seat.own = rows[i].clone()
            seat.loss = float(loss[i])
            seat.busy += took
            events.append((seat.place, e.Learnt(learn.count, Given(seat.own))))
        self._calls.done(events)

    def _start(self, seat: FreeSeat, learn: e.Learn) -> Tensor:
        """The model that a training begins with; the node's own where what others sent made no sane one."""
        row = self._handles.value(learn.row)
        if seat.own is None or sane(row, self._largest):
            return row
        self._mend(seat)
        return seat.own

    def _memory(self, seats: list[FreeSeat]) -> Rows:
        who = np.array([seat.position for seat in seats])
        return {name: rows for name, rows in self._host.population.snapshot(who).items() if name != "x"}

    def _steps(self, those: Trainings, rows: Tensor, memory: Rows) -> Tensor:
        """The local steps, in place; the loss of each.   # (k, d) -> (k,)"""
        setup, learner = self._host.population.setup, self._host.learner
        index = np.stack([setup.batches.of(setup.streams, seat.position, learn.count) for seat, learn in those])
        random = learner.draws_random_numbers
        seeds = [
            setup.streams.key("dropout-of", seat.place, learn.count) % 2**63 if random else 0 for seat, learn in those
        ]
        samples, done = torch.from_numpy(index).to(rows.device), [learn.count for _, learn in those]
        turn = Turn(0, samples, seeds, torch.zeros(len(those)), done)
        algorithm = self._experiment.algorithm
        assert isinstance(algorithm, LocalTraining)
        return algorithm.train(rows, memory, learner, turn)

    def _train_again(self, seat: FreeSeat, learn: e.Learn, before: Rows, memory: Rows, i: int) -> tuple[Tensor, Tensor]:
        """A loss or a model exploded: train what the node had learnt itself; if it happens again, it is its own fault."""
        if seat.own is None:
            seat.journal.check_loss("training loss", torch.tensor([float("nan")]))
        assert seat.own is not None
        self._mend(seat)
        row = seat.own[None].clone()
        loss = self._steps([(seat, learn)], row, before)
        seat.journal.check_loss("training loss", loss)
        for name, part in before.items():
            memory[name][i : i + 1] = part
        return row, loss

    def _mend(self, seat: FreeSeat) -> None:
        """Throw away a model that others made insane."""
        assert seat.own is not None
        self.mended(seat)
        self._calls.done([(seat.place, e.Mended(Given(seat.own)))])

    # -- looking ------------------------------------------------------------------------------------------------------

    def _look(self, seat: FreeSeat, look: e.Look) -> None:
        """Evaluate and save a model as it was when that was asked for."""
        journal = seat.journal
        self._put(seat, look.row)
        seat.memory = look.memory
        if look.evaluate and not self._seen(seat):
            self._record(seat)
        if look.evaluate:
            journal.save_where_due()
        elif journal.recorded >= 0 and journal.store is not None:
            with self._host.stop.held():
                journal.save()
        self._calls.done([(seat.place, e.Looked())])

    def _seen(self, seat: FreeSeat) -> bool:
        """Whether a node that went on is looked at again where it was when it stopped."""
        records = seat.journal.records
        last = records[-1].time if records else None
        return last is not None and last.seconds * e.SECOND >= seat.memory.elapsed

    def _put(self, seat: FreeSeat, row: Any) -> None:
        """Make a model the one that is evaluated and saved, with what was counted until now."""
        numbers = self._handles.value(row)
        if seat.own is not None and not sane(numbers, self._largest):
            self._mend(seat)
            numbers = seat.own
        self._host.population.restore(np.array([seat.position]), {"x": numbers[None]})
        seat.settle_books()
        journal, member = seat.journal, seat.member
        journal.done = member.trained
        journal.train_loss = seat.loss
        journal.alive = 1 + len(member.roster.alive(member.now))

    def _record(self, seat: FreeSeat) -> None:
        try:
            seat.journal.record()
        except Diverged:
            if seat.own is None:
                raise
            self._mend(seat)
            self._host.population.restore(np.array([seat.position]), {"x": seat.own[None]})
            seat.journal.record()

    # -- the beginning and the end ------------------------------------------------------------------------------------

    def _adopt(self, seat: FreeSeat, letter: FreeLetter) -> None:
        column = self._host.population.columns[0]
        row = torch.frombuffer(letter.tensors[column.name], dtype=column.torch_dtype)
        row = row.to(self._host.population.setup.task.device).clone()
        seat.own = self._host.population.models[
            seat.position
        ].clone()  # in case that nobody can train with what was given
        self._calls.say(seat, f"took the model of node {letter.sender}")
        self._calls.done([(seat.place, e.Mended(Given(row))), (seat.place, e.Adopted())])

    def settle_end(self, seat: FreeSeat) -> None:
        """The time is up: evaluate and save what there is."""
        self.rewind(seat)
        if not self._seen(seat) or seat.journal.recorded < seat.journal.done:
            self._record(seat)
        if seat.journal.store is not None:
            with self._host.stop.held():
                seat.journal.save()

    def rewind(self, seat: FreeSeat) -> None:
        """Take the model as it is now; a training that is not done is done again when the node goes on."""
        self._put(seat, seat.member.body.model)
        seat.memory = seat.member.memory()
