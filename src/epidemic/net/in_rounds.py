"""In rounds: what a process needs for nodes of a method with rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from epidemic.host.journal import Extra, Host, Journal
from epidemic.net.addresses import Addresses
from epidemic.net.chance import drawing, secret_streams
from epidemic.net.computing import Calls
from epidemic.net.desk import Desk
from epidemic.net.keys import Identity
from epidemic.net.learning import Learning
from epidemic.net.outbox import Outbox
from epidemic.net.round_letters import RoundLetters
from epidemic.net.seat import RoundSeat
from epidemic.net.terms import Terms
from epidemic.net.transport import Transport
from epidemic.net.views import Views
from epidemic.net.wire import Format
from epidemic.protocol.events import SECOND
from epidemic.protocol.rounds import Rounds
from epidemic.protocol.rules import Rules


class InRounds:
    """The way of nodes that learn in rounds."""

    def __init__(self, host: Host, terms: Terms, places: Sequence[int]) -> None:
        setup = host.population.setup
        self._experiment = experiment = setup.experiment
        counted = experiment.network.most_samples if experiment.mixing_rule == "samples" else 0
        population = host.population
        self.format = Format(terms.run, population.columns, experiment.network.largest, counted, population.coder)
        hidden = {place: secret_streams() for place in places} if experiment.network.coin == "private" else {}
        self._views = Views(experiment, setup.streams, hidden)

    def seat(self, identity: Identity, position: int, journal: Journal) -> RoundSeat:
        """A place of the process."""
        return RoundSeat(identity, position, journal, self.format)

    def ended(self, seat: RoundSeat, extra: Extra | None) -> bool:
        """Whether it was stopped in its final evaluation."""
        return seat.journal.over and seat.journal.recorded == self._experiment.rounds

    def join(self, seat: RoundSeat, extra: Extra | None, addresses: Addresses, token: str) -> str:
        """Give a seat its decisions, from where it was; says where that is."""
        network, faults, n = self._experiment.network, self._experiment.faults, self._experiment.nodes
        rules = Rules(
            seat.place,
            n,
            self._experiment.rounds,
            close=network.close,
            deadline=int(network.deadline * SECOND),
            patience=int(network.patience * SECOND),
            founders=frozenset(p for p in addresses.founders if p < n) - {seat.place},
            adopt=faults.on_return == "adopt",
            cap=faults.cap_of(n),
            retries=n if faults.max_retries == "unlimited" else faults.max_retries,
        )
        tally, count, kept = seat.restored(extra, partial(self._views.targets, seat.place))
        seat.member = Rounds(
            rules,
            partial(self._views, seat.place),
            drawing(secret_streams()),
            token,
            done=seat.journal.done,
            kept=kept,
            tally=tally,
            count=count,
        )
        return f"going on after round {seat.journal.done}"

    def letters(
        self,
        seats: Mapping[int, RoundSeat],
        desk: Desk,
        outbox: Outbox,
        transport: Transport,
        refuse: Callable[[str], None],
        failed: Callable[[Exception], None],
    ) -> RoundLetters:
        """How letters travel."""
        return RoundLetters(seats, self._views, desk, outbox, transport)

    def learning(self, host: Host, seats: Mapping[int, RoundSeat], calls: Calls) -> Learning:
        """What is computed."""
        return Learning(host, seats, self._views, calls)

    def stands(self, seat: RoundSeat) -> str:
        """Where it is, for people."""
        return f"round {seat.journal.done} of {self._experiment.rounds}"
