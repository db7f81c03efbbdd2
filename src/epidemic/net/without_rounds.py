"""Without rounds: what a process needs for nodes of a method without rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from epidemic.host.journal import Extra, Host, Journal
from epidemic.host.parts import parts_of
from epidemic.host.peers import Chances, Peers
from epidemic.host.promises import Given
from epidemic.net.addresses import Addresses
from epidemic.net.chance import drawing, secret_streams
from epidemic.net.computing import Calls
from epidemic.net.desk import Desk
from epidemic.net.free_learning import FreeLearning
from epidemic.net.free_letters import FreeLetters
from epidemic.net.free_seat import FreeSeat
from epidemic.net.free_wire import FreeFormat
from epidemic.net.handles import Handles
from epidemic.net.keys import Identity
from epidemic.net.outbox import Outbox
from epidemic.net.terms import Terms
from epidemic.net.transport import Transport
from epidemic.protocol.events import SECOND
from epidemic.protocol.free import Free, FreeRules
from epidemic.rng import Streams
from epidemic.topology import is_static


class _Chances:
    """What is random for one node."""

    def __init__(self, place: int, peers: Peers, streams: Streams, *, static: bool) -> None:
        self._place = place
        self._peers, self._chances = peers, Chances(streams)
        self.static = static

    def peers(self, count: int) -> Sequence[int]:
        """Whom it may choose."""
        return self._peers(self._place, count)

    def chance(self, purpose: str, count: int) -> float:
        """A number in [0, 1)."""
        return self._chances(purpose, self._place, count)


class WithoutRounds:
    """The way of nodes that learn without rounds."""

    def __init__(self, host: Host, terms: Terms, places: Sequence[int]) -> None:
        setup = host.population.setup
        self._setup, self._host = setup, host
        self._experiment = experiment = setup.experiment
        algorithm = experiment.free
        assert algorithm is not None
        assert experiment.clock is not None
        self._algorithm, self._clock = algorithm, experiment.clock
        (self._column,) = host.population.columns
        parts = parts_of(experiment, len(setup.initial), setup.streams)
        if not parts and any(kind.part for kind in algorithm.kinds):  # the only part is the whole
            parts = [np.arange(len(setup.initial))]
        sizes = [len(part) for part in parts]
        self.format = FreeFormat(terms.run, self._column, algorithm.kinds, sizes, experiment.network.largest)
        self._handles = Handles([torch.from_numpy(part).to(setup.task.device) for part in parts])

    @property
    def _stop(self) -> int:
        return round(self._clock.stop * SECOND)

    def seat(self, identity: Identity, position: int, journal: Journal) -> FreeSeat:
        """A place of the process."""
        return FreeSeat(identity, position, journal, self.format)

    def ended(self, seat: FreeSeat, extra: Extra | None) -> bool:
        """Whether it was stopped in its final evaluation."""
        return extra is not None and extra.tallies.get("free.elapsed", 0) >= self._stop

    def join(self, seat: FreeSeat, extra: Extra | None, addresses: Addresses, token: str, meeting: None) -> str:
        """Give a seat its decisions, from where it was; says where that is."""
        experiment, clock, n = self._experiment, self._clock, self._experiment.nodes
        network, checkpoint = experiment.network, experiment.checkpoint
        rules = FreeRules(
            seat.place,
            n,
            math.ceil(clock.stop),
            deadline=int(network.deadline * SECOND),
            patience=int(network.patience * SECOND),
            witnesses=network.witnesses,
            founders=frozenset(p for p in addresses.founders if p < n) - {seat.place},
            adopt=experiment.faults.on_return == "adopt",
            stop=self._stop,
            evaluate=round(clock.evaluate * SECOND),
            every=experiment.eval.every,
            save=round(checkpoint.seconds * SECOND),
            save_every=checkpoint.rounds,
            parts=self.format.parts,
            steps=self._algorithm.local_steps,
        )
        streams = secret_streams() if network.coin == "private" else self._setup.streams
        peers = Peers(experiment.topology, n, streams)
        memory, tally, count = seat.restored(extra)
        seat.member = Free(
            rules,
            self._algorithm.node,
            _Chances(seat.place, peers, self._setup.streams, static=is_static(experiment.topology)),
            self._handles,
            Given(self._host.population.models[seat.position].clone()),
            drawing(secret_streams()),
            token,
            memory=memory,
            tally=tally,
            count=count,
        )
        return f"going on after {self.stands(seat)}"

    def letters(
        self,
        seats: Mapping[int, FreeSeat],
        desk: Desk,
        outbox: Outbox,
        transport: Transport,
        refuse: Callable[[str], None],
        failed: Callable[[Exception], None],
    ) -> FreeLetters:
        """How letters travel."""
        device = self._setup.task.device
        return FreeLetters(seats, self._handles, self._column, device, desk, outbox, transport, refuse, failed)

    def learning(self, host: Host, seats: Mapping[int, FreeSeat], calls: Calls) -> FreeLearning:
        """What is computed."""
        return FreeLearning(host, seats, self._handles, calls)

    def stands(self, seat: FreeSeat) -> str:
        """Where it is, for people."""
        seconds = min(seat.memory.elapsed, self._stop) / SECOND
        return f"{seat.journal.done} trainings, second {seconds:.0f} of {self._clock.stop:g}"
