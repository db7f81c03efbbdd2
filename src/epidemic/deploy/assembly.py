"""From an experiment to the hosted nodes of a process: their message format, their protocols, and the state that they resume from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from epidemic.core.rng import Streams
from epidemic.deploy.addresses import Addresses
from epidemic.deploy.agreement import Agreement
from epidemic.deploy.hosted import COMMITTED, KNOWN, SAMPLE, AsynchronousNode, HostedNode, SynchronousNode
from epidemic.deploy.hosted_models import HostedModels
from epidemic.deploy.keys import Identity
from epidemic.deploy.peer_exchange import PeerMeeting
from epidemic.deploy.replays import Replays
from epidemic.deploy.secrets import drawing, kept_secret, secret_streams
from epidemic.deploy.views import ByChain, ByGraph, ByPartialView, RoundViews
from epidemic.deploy.wire import MessageFormat
from epidemic.protocol.asynchronous import Asynchronous, AsynchronousRules
from epidemic.protocol.commitment import LINK_BYTES, Chain, Commitments
from epidemic.protocol.events import SECOND
from epidemic.protocol.mailbox import REMEMBERED
from epidemic.protocol.rounds import PartialKnowledge, Rounds
from epidemic.protocol.rules import Draw, NodeView, Rules, most_private
from epidemic.protocol.sample import PeerSample, Saved
from epidemic.runtime.lazy_models import GivenModel
from epidemic.runtime.parts import parts_of
from epidemic.runtime.peers import ChanceDraws, Peers
from epidemic.runtime.plan import committed_targets
from epidemic.runtime.recorder import ExtraState, Host, RunRecorder
from epidemic.topology import is_static, peer_sampling


class Assembly:
    """Makes the hosted nodes of a process, for one kind of method."""

    format: MessageFormat
    lazy: HostedModels

    def __init__(self, host: Host) -> None:
        self._host = host
        self._setup = host.population.setup
        self._experiment = self._setup.experiment

    def node(self, identity: Identity, position: int, recorder: RunRecorder) -> HostedNode:
        """Make a hosted node without a protocol; `position` is its row among those of the process."""
        raise NotImplementedError

    def join(
        self, node: Any, extra: ExtraState | None, addresses: Addresses, token: str, meeting: PeerMeeting | None
    ) -> None:
        """Give a node its protocol, in the state in which it was saved.

        Args:
            node: A node made by `node`.
            extra: What its checkpoint added; None for a new node.
            addresses: The content of node.toml.
            token: The random name of this start of the process.
            meeting: How it gets to know peers, if nodes know only some of them.
        """
        raise NotImplementedError

    def replays(self, nodes: Mapping[int, Any]) -> Replays:
        """The filter for repeated messages."""
        raise NotImplementedError

    def _common(self, node: HostedNode, addresses: Addresses) -> dict[str, Any]:
        """The protocol settings that all methods share."""
        network, n = self._experiment.network, self._experiment.nodes
        return {
            "close": network.close,
            "patience": int(network.patience * SECOND),
            "witnesses": network.witnesses,
            "founders": frozenset(p for p in addresses.founders if p < n) - {node.node_id},
            "adopt": self._experiment.faults.on_return == "adopt",
        }


def assembly_of(
    host: Host,
    agreement: Agreement,
    node_ids: Sequence[int],
    make_node: Callable[..., SynchronousNode] = SynchronousNode,
) -> Assembly:
    """The assembly for the nodes of one process.

    Args:
        host: The models of the process and what computes them.
        agreement: What the nodes agree on.
        node_ids: The ids of the process's nodes.
        make_node: What a node of a method with rounds is.
    """
    if host.population.setup.experiment.free is not None:
        return _Asynchronous(host, agreement)
    return _Synchronous(host, agreement, node_ids, make_node)


class _Synchronous(Assembly):
    """Assembles nodes of methods with rounds."""

    def __init__(
        self, host: Host, agreement: Agreement, node_ids: Sequence[int], make_node: Callable[..., SynchronousNode]
    ) -> None:
        super().__init__(host)
        self._make_node = make_node
        experiment, population = self._experiment, host.population
        counted = experiment.network.most_samples if experiment.mixing_rule == "samples" else 0
        committed = experiment.network.coin == "committed"
        self.format = MessageFormat.in_rounds(
            agreement.run,
            population.columns,
            experiment.network.largest,
            counted,
            population.coder,
            LINK_BYTES if committed else 8,
        )
        self.lazy = HostedModels()  # a round's models are rows of the population
        self._nodes: dict[int, SynchronousNode] = {}
        self._chains: dict[int, Chain] = {}
        self._service = peer_sampling(experiment.topology)
        self._views: RoundViews = ByPartialView(self._nodes)
        if committed:
            self._views = ByChain(experiment, self._chains)
        elif self._service is None:
            hidden = {node_id: secret_streams() for node_id in node_ids} if experiment.network.coin == "private" else {}
            self._views = ByGraph(experiment, self._setup.streams, hidden)

    def node(self, identity: Identity, position: int, recorder: RunRecorder) -> SynchronousNode:
        """Make a hosted node; `position` is its row."""
        node_id, rounds = identity.node_id, self._experiment.rounds
        if self._experiment.network.coin == "committed":
            self._chains[node_id] = Chain(kept_secret(identity.folder), self.format.run, node_id, rounds)
        self._nodes[node_id] = self._make_node(identity, position, recorder, self.format, self._views)
        return self._nodes[node_id]

    def join(
        self,
        node: SynchronousNode,
        extra: ExtraState | None,
        addresses: Addresses,
        token: str,
        meeting: PeerMeeting | None,
    ) -> None:
        """Give a node its protocol, in the round in which it was saved."""
        network, faults, n = self._experiment.network, self._experiment.faults, self._experiment.nodes
        rules = Rules(
            node.node_id,
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
        view: Callable[[int], NodeView] | PartialKnowledge = partial(self._views, node.node_id)
        if meeting is not None:
            view = self._partial_knowledge(node, extra, meeting, draw)
        node.member = Rounds(
            rules,
            view,
            draw,
            token,
            done=node.recorder.done,
            kept=kept,
            tally=tally,
            count=count,
            coin=self._coin(node.node_id, extra),
        )

    @property
    def _s(self) -> int:
        """The number of targets of a node that draws them itself."""
        s: int = self._experiment.table()["topology"]["s"]
        return s

    def _coin(self, node: int, extra: ExtraState | None) -> Commitments | None:
        """With a committed coin, the commitments known when the node was saved."""
        if node not in self._chains:
            return None
        saved = b"" if extra is None or COMMITTED not in extra.tensors else extra.tensors[COMMITTED].numpy().tobytes()
        targets = partial(committed_targets, self._experiment)
        return Commitments(self._chains[node], self.format.run, node, self._experiment.rounds, targets, saved)

    def _partial_knowledge(
        self, node: SynchronousNode, extra: ExtraState | None, meeting: PeerMeeting, draw: Draw
    ) -> PartialKnowledge:
        """The view of a node that knows only some of its peers, as it was saved."""
        service, book = self._service, meeting.book
        assert service is not None
        sampler = service.sampler(self._experiment.nodes, node.node_id, draw)
        tensors = {} if extra is None else extra.tensors
        kept = {k: tensors[k].numpy().tobytes() for k in (KNOWN, SAMPLE) if k in tensors}
        before: tuple[Saved, ...] = ()
        if KNOWN in kept:
            sampler.entries = book.restored(kept[KNOWN])
        if SAMPLE in kept:
            before = book.restored_sample(kept[SAMPLE])
        sample = PeerSample(node.node_id, draw, before)
        book.pinned = lambda: sampler.node_ids | sample.peers
        node.remembers = lambda: {KNOWN: book.saved(sampler.saved), SAMPLE: book.saved_sample(sample.saved)}
        return PartialKnowledge(sampler, self._s, service.cycles, sample)

    def replays(self, nodes: Mapping[int, SynchronousNode]) -> Replays:
        """The filter for repeated messages of rounds that a mailbox still distinguishes."""

        def near() -> tuple[int, int]:
            rounds = [max(node.member.done, node.member.round) for node in nodes.values()]
            return min(rounds) - REMEMBERED, max(rounds) + max(node.member.rules.ahead for node in nodes.values())

        return Replays(near)


class _Chances:
    """The random choices of one node of an asynchronous method."""

    def __init__(self, node_id: int, peers: Peers, streams: Streams, *, static: bool) -> None:
        self._node_id = node_id
        self._peers, self._chances = peers, ChanceDraws(streams)
        self.static = static

    def peers(self, count: int) -> Sequence[int]:
        """The peers that the node may choose, in random order."""
        return self._peers(self._node_id, count)

    def chance(self, purpose: str, count: int) -> float:
        """A number in [0, 1), keyed by purpose and count."""
        return self._chances(purpose, self._node_id, count)


class _Asynchronous(Assembly):
    """Assembles nodes of asynchronous methods."""

    def __init__(self, host: Host, agreement: Agreement) -> None:
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
            agreement.run, column, algorithm.kinds, sizes, experiment.network.largest
        )
        cuts = [torch.from_numpy(part).to(setup.task.device) for part in parts]
        self.lazy = HostedModels(cuts, host.population.rule)

    def node(self, identity: Identity, position: int, recorder: RunRecorder) -> AsynchronousNode:
        """Make a hosted node; `position` is its row."""
        return AsynchronousNode(identity, position, recorder, self.format)

    def join(
        self,
        node: AsynchronousNode,
        extra: ExtraState | None,
        addresses: Addresses,
        token: str,
        meeting: PeerMeeting | None,
    ) -> None:
        """Give a node its protocol, at the time at which it was saved."""
        experiment, clock, n = self._experiment, self._clock, self._experiment.nodes
        checkpoint = experiment.checkpoint
        rules = AsynchronousRules(
            node.node_id,
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
        node.member = Asynchronous(
            rules,
            self._algorithm.node,
            _Chances(node.node_id, peers, self._setup.streams, static=is_static(experiment.topology)),
            self.lazy,
            GivenModel(self._host.population.models[node.position].clone()),
            drawing(secret_streams()),
            token,
            memory=memory,
            tally=tally,
            count=count,
        )

    def replays(self, nodes: Mapping[int, AsynchronousNode]) -> Replays:
        """The filter for repeated messages, by their numbers."""
        return Replays(None, self.format.parts)
