"""Letters of a method without rounds: they leave when the node wants them to, also while it trains.

A thread of its own, the mailer, computes what is sent, signs it and hands it to the outbox; so neither the main thread, which trains, nor
the one that decides is held up. What comes is held by handles, never more of one sender than a few models.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from epidemic.algorithms import Column
from epidemic.algorithms.free import Letter
from epidemic.host.promises import Promise
from epidemic.net.desk import Desk
from epidemic.net.free_seat import FreeSeat
from epidemic.net.free_wire import FreeFormat, FreeLetter
from epidemic.net.handles import Handles, Holding
from epidemic.net.outbox import Outbox
from epidemic.net.reader import most_of_one
from epidemic.net.seat import raw_bytes
from epidemic.net.transport import Transport
from epidemic.net.wire import NO_LETTER
from epidemic.protocol import events as e

MOST_WAITING = 64
"""Letters of one node that may wait to be computed and signed, for each part of a model; then the oldest goes nowhere."""


@dataclass(frozen=True)
class _Job:
    seat: FreeSeat
    do: Callable[[], object]
    places: int  # how many letters it is; 0: none


class FreeLetters:
    """What the nodes of a process send to others, and what comes for them."""

    def __init__(
        self,
        seats: Mapping[int, FreeSeat],
        handles: Handles,
        column: Column,
        device: torch.device,
        desk: Desk,
        outbox: Outbox,
        transport: Transport,
        refuse: Callable[[str], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._seats = seats
        self._handles = handles
        self._column, self._device = column, device
        self._desk = desk
        self._outbox = outbox
        self._transport = transport
        self._refuse = refuse
        self._failed = failed
        format: FreeFormat = next(iter(seats.values())).format
        self._holding = Holding(most_of_one(format) * len(seats))
        self._most = MOST_WAITING * format.parts
        self._jobs: deque[_Job] = deque()
        self._some = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="mailer", daemon=True)
        self._thread.start()

    # -- what comes in ------------------------------------------------------------------------------------------------

    def came(self, letter: FreeLetter, places: tuple[int, ...]) -> None:
        """A letter came that is in order."""
        if letter.graph == NO_LETTER:  # a model that nobody asked for
            self._refuse("wrong-graph")
            return
        row = None
        if letter.tensors:
            raw = letter.tensors[self._column.name]
            numbers = torch.frombuffer(raw, dtype=self._column.torch_dtype).to(self._device)
            row = self._holding.take(letter.sender, numbers)
            if row is None:
                self._refuse("overflow")
                return
        # numbers of letters grow with time, and nobody else's clock is known here
        told = Letter(letter.sender, row, letter.tag, letter.note, letter.part, letter.round)
        for place in places:
            if place in self._seats:
                self._desk.put(place, e.Came(letter.sender, letter.round, letter.note, told))

    # -- what goes out ------------------------------------------------------------------------------------------------

    def carry_out(self, seat: FreeSeat, action: e.Action) -> bool:
        """Do what is about letters; False if it is not."""
        match action:
            case e.Post():
                self._post(seat, action)
            case e.Withdraw():
                self._withdraw(seat)
            case e.Compute():
                self._put(_Job(seat, partial(self._handles.value, action.row), 0))
            case e.Give():
                self._put(_Job(seat, partial(self._give, seat, action, seat.member.body.model), 0))
            case _:
                return False
        return True

    def _post(self, seat: FreeSeat, post: e.Post) -> None:
        format = seat.format
        format.check_own(seat.place, post.tag, post.row is not None, post.note, post.part)
        row: Promise | None = post.row
        if row is not None and post.part is not None:
            row = self._handles.cut(row, post.part)
        size, by_carrier = format.bytes_of(row is not None, post.part), dict[int, list[int]]()
        for place in post.to:
            if place in self._seats:
                told = Letter(seat.place, row, post.tag, post.note, post.part, post.number)
                self._desk.put(place, e.Came(seat.place, post.number, post.note, told))
                seat.sent(1, True, local=True, each=size)
            else:
                by_carrier.setdefault(seat.member.roster.carrier(place), []).append(place)
        if by_carrier:
            places = sum(map(len, by_carrier.values()))
            self._put(_Job(seat, partial(self._send, seat, post, row, by_carrier, size), places))

    def _withdraw(self, seat: FreeSeat) -> None:
        with self._some:
            left = [job for job in self._jobs if job.seat is not seat or not job.places]
            self._jobs = deque(left)
        self._outbox.withdraw(seat.place)

    def _put(self, job: _Job) -> None:
        lost = None
        with self._some:
            waiting = [other for other in self._jobs if other.seat is job.seat and other.places]
            if job.places and len(waiting) >= self._most:
                lost = waiting[0]
                self._jobs.remove(lost)
            self._jobs.append(job)
            self._some.notify()
        if lost is not None:
            lost.seat.sent(lost.places, False)

    # -- the mailer's thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._some:
                while not self._jobs and not self._closing:
                    self._some.wait()
                if self._closing:
                    return
                job = self._jobs.popleft()
            try:
                job.do()
            except Exception as problem:
                self._failed(problem)
                return
            del job  # what it held can be let go

    def _send(
        self, seat: FreeSeat, post: e.Post, row: Promise | None, by_carrier: Mapping[int, list[int]], size: int
    ) -> None:
        numbers = None if row is None else raw_bytes(self._handles.value(row))
        frame = seat.format.seal_letter(
            post.number, seat.place, numbers, seat.identity.key, tag=post.tag, note=post.note, part=post.part
        )
        payload = self._transport.payload(frame)
        for carrier, places in by_carrier.items():
            self._outbox.send(carrier, tuple(places), payload, partial(seat.sent, each=size), owner=seat.place)

    def _give(self, seat: FreeSeat, give: e.Give, model: Any) -> None:
        """Give the current model to somebody who asked."""
        if give.to in self._seats:
            give.reply(None)  # nodes of one process do not return one without the other
            return
        row = {self._column.name: self._handles.value(model)}
        give.reply(bytes(seat.seal(max(seat.member.round, 0), NO_LETTER, row)))
        seat.sent(1, True)

    def close(self) -> None:
        """Send nothing any more."""
        with self._some:
            self._closing = True
            self._some.notify()
        self._thread.join(5)
