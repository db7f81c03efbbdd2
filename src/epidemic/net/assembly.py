"""Assembly: from an experiment to the hosted nodes of a process: the format of their messages, their decisions, and what they resume from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from epidemic.host.journal import Extra, Host, Journal
from epidemic.host.parts import parts_of
from epidemic.host.peers import Chances, Peers
from epidemic.host.plan import committed_targets
from epidemic.host.promises import Given
from epidemic.net.acquaintances import Meeting
from epidemic.net.addresses import Addresses
from epidemic.net.chance import drawing, kept_secret, secret_streams
from epidemic.net.hosted import COMMITTED, KNOWN, SAMPLE, AsynchronousNode, HostedNode, SynchronousNode
from epidemic.net.keys import Identity
from epidemic.net.lazy_models import LazyModels
from epidemic.net.replays import Replays
from epidemic.net.terms import Terms
from epidemic.net.views import ByAcquaintance, ByChain, ByGraph, RoundViews
from epidemic.net.wire import MessageFormat
from epidemic.protocol.commitment import LINK_BYTES, Chain, Commitments
from epidemic.protocol.events import SECOND
from epidemic.protocol.free import Free, FreeRules
from epidemic.protocol.mailbox import REMEMBERED
from epidemic.protocol.rounds import Acquaintance, Rounds
from epidemic.protocol.rules import Draw, Rules, View, most_private
from epidemic.protocol.sample import Sample, Saved
from epidemic.rng import Streams
from epidemic.topology import is_static, peer_sampling


class Assembly:
    """Makes the hosted nodes of a process, whatever their method."""

    format: MessageFormat
    lazy: LazyModels

    def __init__(self, host: Host) -> None:
        self._host = host
        self._setup = host.population.setup
        self._experiment = self._setup.experiment

    def node(self, identity: Identity, position: int, journal: Journal) -> HostedNode:
        """A node of the process, which does not know yet where it was; `position` is its row."""
        raise NotImplementedError

    def join(self, node: Any, extra: Extra | None, addresses: Addresses, token: str, meeting: Meeting | None) -> None:
        """Give a node its decisions, from where it was when it was saved.

        Args:
            node: One that `node` has made.
            extra: What its checkpoint had added; None: it is new.
            addresses: What node.toml says.
            token: By which the network shows this start of the process.
            meeting: How it meets others, where not everybody knows everybody.
        """
        raise NotImplementedError

    def replays(self, nodes: Mapping[int, Any]) -> Replays:
        """Which messages are worth a signature."""
        raise NotImplementedError

    def _common(self, node: HostedNode, addresses: Addresses) -> dict[str, Any]:
        """The rules that every method has."""
        network, n = self._experiment.network, self._experiment.nodes
        return {
            "close": network.close,
            "patience": int(network.patience * SECOND),
            "witnesses": network.witnesses,
            "founders": frozenset(p for p in addresses.founders if p < n) - {node.place},
            "adopt": self._experiment.faults.on_return == "adopt",
        }


def assembly_of(host: Host, terms: Terms, places: Sequence[int]) -> Assembly:
    """That of an experiment, for the nodes of one process.

    Args:
        host: The models of the process and what computes them.
        terms: What the nodes agree on.
        places: The ids of the process's nodes.
    """
    if host.population.setup.experiment.free is not None:
        return _Asynchronous(host, terms)
    return _Synchronous(host, terms, places)


class _Synchronous(Assembly):
    """Of a method with rounds."""

    def __init__(self, host: Host, terms: Terms, places: Sequence[int]) -> None:
        super().__init__(host)
        experiment, population = self._experiment, host.population
        counted = experiment.network.most_samples if experiment.mixing_rule == "samples" else 0
        committed = experiment.network.coin == "committed"
        self.format = MessageFormat.in_rounds(
            terms.run,
            population.columns,
            experiment.network.largest,
            counted,
            population.coder,
            LINK_BYTES if committed else 8,
        )
        self.lazy = LazyModels()  # a round's models are rows of the population
        self._nodes: dict[int, SynchronousNode] = {}
        self._chains: dict[int, Chain] = {}
        self._service = peer_sampling(experiment.topology)
        self._views: RoundViews = ByAcquaintance(self._nodes)
        if committed:
            self._views = ByChain(experiment, self._chains)
        elif self._service is None:
            hidden = {place: secret_streams() for place in places} if experiment.network.coin == "private" else {}
            self._views = ByGraph(experiment, self._setup.streams, hidden)

    def node(self, identity: Identity, position: int, journal: Journal) -> SynchronousNode:
        """A node of the process."""
        place, rounds = identity.place, self._experiment.rounds
        if self._experiment.network.coin == "committed":
            self._chains[place] = Chain(kept_secret(identity.folder), self.format.run, place, rounds)
        self._nodes[place] = SynchronousNode(identity, position, journal, self.format, self._views)
        return self._nodes[place]

    def join(
        self, node: SynchronousNode, extra: Extra | None, addresses: Addresses, token: str, meeting: Meeting | None
    ) -> None:
        """Give a node its decisions, from the round that it was in."""
        network, faults, n = self._experiment.network, self._experiment.faults, self._experiment.nodes
        rules = Rules(
            node.place,
            n,
            self._experiment.rounds,
            cap=faults.cap_of(n),
            retries=n if faults.max_retries == "unlimited" else faults.max_retries,
            blind=network.blind,
            partial=meeting is not None,
            most=most_private(self._s) if network.coin == "private" and faults.cap_of(n) is None else None,
            **self._common(node, addresses),
        )
        tally, count, kept = node.restored(extra)
        draw = drawing(secret_streams())
        view: Callable[[int], View] | Acquaintance = partial(self._views, node.place)
        if meeting is not None:
            view = self._acquaintance(node, extra, meeting, draw)
        node.member = Rounds(
            rules,
            view,
            draw,
            token,
            done=node.journal.done,
            kept=kept,
            tally=tally,
            count=count,
            coin=self._coin(node.place, extra),
        )

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

    def _acquaintance(self, node: SynchronousNode, extra: Extra | None, meeting: Meeting, draw: Draw) -> Acquaintance:
        """Whom a node knows: those whom it knew when it was saved."""
        service, book = self._service, meeting.book
        assert service is not None
        side = service.side(self._experiment.nodes, node.place, draw)
        tensors = {} if extra is None else extra.tensors
        kept = {k: tensors[k].numpy().tobytes() for k in (KNOWN, SAMPLE) if k in tensors}
        before: tuple[Saved, ...] = ()
        if KNOWN in kept:
            side.entries = book.restored(kept[KNOWN])
        if SAMPLE in kept:
            before = book.restored_sample(kept[SAMPLE])
        sample = Sample(node.place, draw, before)
        book.pinned = lambda: side.places | sample.peers
        node.remembers = lambda: {KNOWN: book.saved(side.saved), SAMPLE: book.saved_sample(sample.saved)}
        return Acquaintance(side, self._s, service.cycles, sample)

    def replays(self, nodes: Mapping[int, SynchronousNode]) -> Replays:
        """Those of rounds that a mailbox here still tells apart."""

        def near() -> tuple[int, int]:
            rounds = [max(node.member.done, node.member.round) for node in nodes.values()]
            return min(rounds) - REMEMBERED, max(rounds) + max(node.member.rules.ahead for node in nodes.values())

        return Replays(near)


class _Chances:
    """What is random for one node without rounds."""

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


class _Asynchronous(Assembly):
    """Of a method without rounds."""

    def __init__(self, host: Host, terms: Terms) -> None:
        super().__init__(host)
        setup, experiment = self._setup, self._experiment
        algorithm = experiment.free
        assert algorithm is not None
        assert experiment.clock is not None
        self._algorithm, self._clock = algorithm, experiment.clock
        (column,) = host.population.columns
        parts = parts_of(experiment, len(setup.initial), setup.streams)
        sizes = [len(part) for part in parts]
        self.format = MessageFormat.without_rounds(
            terms.run, column, algorithm.kinds, sizes, experiment.network.largest
        )
        cuts = [torch.from_numpy(part).to(setup.task.device) for part in parts]
        self.lazy = LazyModels(cuts, host.population.rule)

    def node(self, identity: Identity, position: int, journal: Journal) -> AsynchronousNode:
        """A node of the process."""
        return AsynchronousNode(identity, position, journal, self.format)

    def join(
        self, node: AsynchronousNode, extra: Extra | None, addresses: Addresses, token: str, meeting: Meeting | None
    ) -> None:
        """Give a node its decisions, from the moment in which it was."""
        experiment, clock, n = self._experiment, self._clock, self._experiment.nodes
        checkpoint = experiment.checkpoint
        rules = FreeRules(
            node.place,
            n,
            math.ceil(clock.stop),
            stop=round(clock.stop * SECOND),
            evaluate=round(clock.evaluate * SECOND),
            every=experiment.eval.every,
            save=round(checkpoint.seconds * SECOND),
            save_every=checkpoint.rounds,
            parts=self.format.parts,
            steps=self._algorithm.local_steps,
            **self._common(node, addresses),
        )
        streams = secret_streams() if experiment.network.coin == "private" else self._setup.streams
        peers = Peers(experiment.topology, n, streams)
        memory, tally, count = node.restored(extra)
        node.member = Free(
            rules,
            self._algorithm.node,
            _Chances(node.place, peers, self._setup.streams, static=is_static(experiment.topology)),
            self.lazy,
            Given(self._host.population.models[node.position].clone()),
            drawing(secret_streams()),
            token,
            memory=memory,
            tally=tally,
            count=count,
        )

    def replays(self, nodes: Mapping[int, AsynchronousNode]) -> Replays:
        """Those whose numbers are new."""
        return Replays(None, self.format.parts)
