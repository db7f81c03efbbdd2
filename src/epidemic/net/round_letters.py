"""Letters of rounds: one for each round, signed once, kept for those who ask for it again."""

from __future__ import annotations

from collections.abc import Mapping

from epidemic.net.desk import Desk
from epidemic.net.outbox import Outbox
from epidemic.net.seat import Outgoing, RoundSeat
from epidemic.net.transport import Transport
from epidemic.net.views import Views
from epidemic.net.wire import Letter
from epidemic.protocol import events as e


class RoundLetters:
    """What the nodes of a process send to others, and what comes for them."""

    def __init__(
        self, seats: Mapping[int, RoundSeat], views: Views, desk: Desk, outbox: Outbox, transport: Transport
    ) -> None:
        self._seats = seats
        self._views = views
        self._desk = desk
        self._outbox = outbox
        self._transport = transport

    def came(self, letter: Letter, places: tuple[int, ...]) -> None:
        """A letter came that is in order."""
        for place in places:
            if place in self._seats:
                self._desk.put(place, e.Arrived(letter.sender, letter.round, letter.graph, letter))

    def carry_out(self, seat: RoundSeat, action: e.Action) -> bool:
        """Do what is about letters; False if it is not."""
        match action:
            case e.Send():
                self._send(seat, action)
            case e.AnswerLetter():
                self._answer(seat, action)
            case e.Forget():
                seat.forget(action.before)
            case _:
                return False
        return True

    def close(self) -> None:
        """Nothing is left to do here."""

    def _letter_of(self, seat: RoundSeat, round: int) -> Outgoing:
        """The letter of a round; one trained for an earlier round that was left out is sent in this one."""
        letter = seat.kept.get(round)
        if letter is None:
            letter = Outgoing(round, self._views.targets(seat.place, round), seat.said)
            seat.keep(letter)
        return letter

    def _send(self, seat: RoundSeat, action: e.Send) -> None:
        letter = self._letter_of(seat, action.round)
        by_carrier: dict[int, list[int]] = {}
        for place in action.to:
            if place in self._seats:
                graph = self._views(seat.place, action.round).graph
                self._desk.put(place, e.Arrived(seat.place, action.round, graph, letter.row))
                seat.sent(1, True, local=True)
            else:
                by_carrier.setdefault(seat.member.roster.carrier(place), []).append(place)
        if by_carrier and letter.payload is None:
            letter.payload = self._transport.payload(letter.sealed(seat, self._views(seat.place, letter.round).graph))
        for carrier, places in by_carrier.items():
            self._outbox.send(carrier, tuple(places), letter.payload, seat.sent)

    def _answer(self, seat: RoundSeat, action: e.AnswerLetter) -> None:
        letter = seat.kept.get(action.round)
        if letter is None:
            action.reply(e.NOT_YET.encode())
            return
        if action.to in self._seats:  # inside the process nothing gets lost; it was asked for too early
            graph = self._views(seat.place, action.round).graph
            self._desk.put(action.to, e.Arrived(seat.place, action.round, graph, letter.row))
            action.reply(b"sent")
        else:
            action.reply(bytes(letter.sealed(seat, self._views(seat.place, letter.round).graph)))
        seat.sent(1, True, local=action.to in self._seats)
