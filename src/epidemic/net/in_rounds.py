"""In rounds: what a process needs for nodes of a method with rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from epidemic.host.journal import Extra, Host, Journal
from epidemic.host.plan import committed_targets
from epidemic.net.acquaintances import Meeting
from epidemic.net.addresses import Addresses
from epidemic.net.chance import drawing, kept_secret, secret_streams
from epidemic.net.computing import Calls
from epidemic.net.desk import Desk
from epidemic.net.keys import Identity
from epidemic.net.learning import Learning
from epidemic.net.outbox import Outbox
from epidemic.net.replays import Replays
from epidemic.net.round_letters import RoundLetters
from epidemic.net.seat import COMMITTED, KNOWN, SAMPLE, RoundSeat
from epidemic.net.terms import Terms
from epidemic.net.transport import Transport
from epidemic.net.views import ByAcquaintance, ByChain, ByGraph, Views
from epidemic.net.wire import Format
from epidemic.protocol.commitment import LINK_BYTES, Chain, Commitments
from epidemic.protocol.events import SECOND
from epidemic.protocol.mailbox import REMEMBERED
from epidemic.protocol.rounds import Acquaintance, Rounds
from epidemic.protocol.rules import Draw, Rules, View, most_private
from epidemic.protocol.sample import Sample, Saved
from epidemic.topology import peer_sampling


class InRounds:
    """The way of nodes that learn in rounds."""

    def __init__(self, host: Host, terms: Terms, places: Sequence[int]) -> None:
        setup = host.population.setup
        self._experiment = experiment = setup.experiment
        counted = experiment.network.most_samples if experiment.mixing_rule == "samples" else 0
        population = host.population
        committed = experiment.network.coin == "committed"
        self.format = Format(
            terms.run,
            population.columns,
            experiment.network.largest,
            counted,
            population.coder,
            LINK_BYTES if committed else 8,
        )
        self._seats: dict[int, RoundSeat] = {}
        self._chains: dict[int, Chain] = {}
        self._service = peer_sampling(experiment.topology)
        self._views: Views = ByAcquaintance(self._seats)
        if committed:
            self._views = ByChain(experiment, self._chains)
        elif self._service is None:
            hidden = {place: secret_streams() for place in places} if experiment.network.coin == "private" else {}
            self._views = ByGraph(experiment, setup.streams, hidden)

    def seat(self, identity: Identity, position: int, journal: Journal) -> RoundSeat:
        """A place of the process."""
        place, rounds = identity.place, self._experiment.rounds
        if self._experiment.network.coin == "committed":
            self._chains[place] = Chain(kept_secret(identity.folder), self.format.run, place, rounds)
        self._seats[place] = RoundSeat(identity, position, journal, self.format)
        return self._seats[place]

    def ended(self, seat: RoundSeat, extra: Extra | None) -> bool:
        """Whether it was stopped in its final evaluation."""
        return seat.journal.over and seat.journal.recorded == self._experiment.rounds

    def join(
        self, seat: RoundSeat, extra: Extra | None, addresses: Addresses, token: str, meeting: Meeting | None
    ) -> str:
        """Give a seat its decisions, from where it was; says where that is."""
        network, faults, n = self._experiment.network, self._experiment.faults, self._experiment.nodes
        rules = Rules(
            seat.place,
            n,
            self._experiment.rounds,
            close=network.close,
            deadline=int(network.deadline * SECOND),
            patience=int(network.patience * SECOND),
            witnesses=network.witnesses,
            founders=frozenset(p for p in addresses.founders if p < n) - {seat.place},
            adopt=faults.on_return == "adopt",
            cap=faults.cap_of(n),
            retries=n if faults.max_retries == "unlimited" else faults.max_retries,
            blind=network.blind,
            partial=meeting is not None,
            most=most_private(self._s) if network.coin == "private" and faults.cap_of(n) is None else None,
        )
        tally, count, kept = seat.restored(extra, partial(self._views.targets, seat.place))
        draw = drawing(secret_streams())
        view: Callable[[int], View] | Acquaintance = partial(self._views, seat.place)
        if meeting is not None:
            view = self._acquaintance(seat, extra, meeting, draw)
        seat.member = Rounds(
            rules,
            view,
            draw,
            token,
            done=seat.journal.done,
            kept=kept,
            tally=tally,
            count=count,
            coin=self._coin(seat.place, extra),
        )
        return f"going on after round {seat.journal.done}"

    @property
    def _s(self) -> int:
        """To how many others a node sends, where it draws them by itself."""
        s: int = self._experiment.table()["topology"]["s"]
        return s

    def _coin(self, node: int, extra: Extra | None) -> Commitments | None:
        """What the nodes have committed to, where they do: what was known of it when this node was saved."""
        if node not in self._chains:
            return None
        saved = b"" if extra is None or COMMITTED not in extra.tensors else extra.tensors[COMMITTED].numpy().tobytes()
        targets = partial(committed_targets, self._experiment)
        return Commitments(self._chains[node], self.format.run, node, self._experiment.rounds, targets, saved)

    def _acquaintance(self, seat: RoundSeat, extra: Extra | None, meeting: Meeting, draw: Draw) -> Acquaintance:
        """Whom a seat knows: those whom it knew when it was saved."""
        service, book = self._service, meeting.book
        assert service is not None
        side = service.side(self._experiment.nodes, seat.place, draw)
        kept = (
            {}
            if extra is None
            else {k: extra.tensors[k].numpy().tobytes() for k in (KNOWN, SAMPLE) if k in extra.tensors}
        )
        before: tuple[Saved, ...] = ()
        if KNOWN in kept:
            side.entries = book.restored(kept[KNOWN])
        if SAMPLE in kept:
            before = book.restored_sample(kept[SAMPLE])
        sample = Sample(seat.place, draw, before)
        book.pinned = lambda: side.places | sample.peers
        seat.remembers = lambda: {KNOWN: book.saved(side.saved), SAMPLE: book.saved_sample(sample.saved)}
        return Acquaintance(side, self._s, service.cycles, sample)

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

    def replays(self, seats: Mapping[int, RoundSeat]) -> Replays:
        """Which messages are worth a signature: those of rounds that a mailbox here still tells apart."""

        def near() -> tuple[int, int]:
            rounds = [max(seat.member.done, seat.member.round) for seat in seats.values()]
            return min(rounds) - REMEMBERED, max(rounds) + max(seat.member.rules.ahead for seat in seats.values())

        return Replays(near)

    def learning(self, host: Host, seats: Mapping[int, RoundSeat], calls: Calls) -> Learning:
        """What is computed."""
        return Learning(host, seats, self._views, calls)

    def stands(self, seat: RoundSeat) -> str:
        """Where it is, for people."""
        return f"round {seat.journal.done} of {self._experiment.rounds}"
