"""Rounds under the simulated clock: lazy models for a round's two steps, and the nodes that make them.

If every message counts, models equal those of the round engine to the bit: same samples, same steps, same order of addition.
"""

from __future__ import annotations

from bisect import bisect
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from epidemic.algorithms import Inbox, Rows
from epidemic.algorithms.asynchronous import SECOND, Message
from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.protocol.closing_rules import Close
from epidemic.runtime.counters import control_bytes
from epidemic.runtime.inbox import MatrixInbox, MessageInbox, Received
from epidemic.runtime.lazy_models import LazyModel, LazyModels
from epidemic.runtime.message_coding import message_in
from epidemic.runtime.plan import Plan, RoundView, plan_round, shares, weights_by_age
from epidemic.runtime.recorder import Host
from epidemic.simulator.membership import Presence
from epidemic.simulator.node_context import SimulatedContext
from epidemic.simulator.trace import Closing

KEPT = 64
"""Rounds whose plans are kept."""


class LazyLocalUpdate(LazyModel):
    """The result of a node's local update in a round.   # (state, message, loss)"""

    __slots__ = ("degree", "node", "round", "state")

    def __init__(self, node: int, round: int, state: LazyModel, degree: int) -> None:
        super().__init__()
        self.node, self.round, self.degree = node, round, degree
        self.state: LazyModel | None = state

    def needs(self) -> Iterable[LazyModel]:
        """The state that it starts from."""
        return () if self.state is None else (self.state,)

    def forget_needs(self) -> None:
        """Drop the reference to that state."""
        self.state = None

    @property
    def together(self) -> tuple[Any, ...]:
        """Local updates of the same round are computed in one batch."""
        return (type(self).__name__, self.round)

    @property
    def loss(self) -> Any:
        """The loss of the training."""
        return None if self.value is None else float(self.value[2])


class LazyAggregation(LazyModel):
    """A node's state after the aggregation of a round.   # by name, a row each"""

    __slots__ = ("ages", "local_update_model", "messages", "round", "senders", "whole")

    def __init__(
        self,
        local_update_model: LazyLocalUpdate,
        round: int,
        senders: list[int],
        messages: list[Any],
        ages: list[int],
        *,
        whole: bool,
    ) -> None:
        """Start; `whole`: it uses exactly the messages of the plan."""
        super().__init__()
        self.local_update_model: LazyLocalUpdate | None = local_update_model
        self.round, self.senders, self.messages, self.ages, self.whole = round, senders, messages, ages, whole

    def needs(self) -> Iterable[LazyModel]:
        """The node's own local update and the messages."""
        return () if self.local_update_model is None else (self.local_update_model, *self.messages)

    def forget_needs(self) -> None:
        """Drop the references to them."""
        self.local_update_model, self.messages = None, []

    @property
    def together(self) -> tuple[Any, ...]:
        """Aggregations of the same round are computed in one batch."""
        return (type(self).__name__, self.round)


class RoundMessages:
    """Targets and in-neighbours of every node in a round, in the order in which messages leave."""

    def __init__(
        self, intended: Graph, arriving: Graph, streams: Streams, round: int, *, exact: bool, ordered: bool
    ) -> None:
        self._intended, self._streams, self._round, self._ordered = intended, streams, round, ordered
        self.awaited: list[int] = (arriving if exact else intended).in_degree.tolist()
        self.coming: list[int] = arriving.in_degree.tolist()
        self.degree: list[int] = arriving.out_degree.tolist()
        self._to: list[int] = []
        self._at: list[int] = []
        self._lost: frozenset[tuple[int, int]] = frozenset()
        if intended.clique is None:
            senders, receivers = intended.senders, intended.receivers
            turn = np.arange(len(senders)) if ordered else streams("order-of-letters", round).words(len(senders))
            order = np.lexsort((turn, senders))
            self._to = receivers[order].tolist()
            self._at = np.concatenate([[0], np.cumsum(intended.out_degree)]).tolist()
        if arriving.messages < intended.messages:
            whole, left = intended.explicit(), arriving.explicit()
            gone = np.setdiff1d(whole.edge_keys, left.edge_keys)  # receiver * n + sender
            self._lost = frozenset(zip((gone % intended.n).tolist(), (gone // intended.n).tolist(), strict=True))

    def targets(self, node: int) -> list[int]:
        """The nodes that a node sends to."""
        if self._intended.clique is None:
            return self._to[self._at[node] : self._at[node + 1]]
        found: list[int] = self._intended.out_of(node).tolist()
        if not self._ordered:
            order = self._streams("order-of-letters", self._round, node).permutation(len(found))
            found = [found[i] for i in order.tolist()]
        return found

    def senders(self, node: int) -> frozenset[int]:
        """The nodes that send to a node."""
        return frozenset(self._intended.into(node).tolist())

    def lost(self, node: int, to: Sequence[int]) -> list[int]:
        """Those of these receivers that the message does not reach."""
        return [node_id for node_id in to if (node, node_id) in self._lost] if self._lost else []


class Plans:
    """The rounds of an experiment as nodes under a clock see them."""

    def __init__(self, setup: Any, *, exact: bool, ordered: bool) -> None:
        """Start without plans.

        Args:
            setup: Experiment, streams and sizes of a seed.
            exact: Whether nodes know which messages will be lost, because they wait for all others.
            ordered: Whether messages leave in ascending order of targets.
        """
        self._setup = setup
        self._exact, self._ordered = exact, ordered
        self._known: OrderedDict[int, tuple[Plan, RoundMessages]] = OrderedDict()

    def __call__(self, round: int) -> tuple[Plan, RoundMessages]:
        """The plan of a round and its messages."""
        found = self._known.get(round)
        if found is None:
            setup = self._setup
            plan = plan_round(setup.experiment, setup.streams, round, setup.sizes)
            delivery = plan.delivery
            messages = RoundMessages(
                delivery.intended, delivery.graph, setup.streams, round, exact=self._exact, ordered=self._ordered
            )
            found = self._known[round] = (plan, messages)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return found


class SimulatedRoundContext(SimulatedContext):
    """The context of a simulated node in rounds; its model is the lazy value of its whole state."""

    __slots__ = ()

    @property
    def _rounds(self) -> SharedRounds:
        found: SharedRounds = self.work.together
        return found

    def awaited(self, round: int) -> int:
        """The number of messages that the node waits for in this round."""
        return self._rounds.plans(round)[1].awaited[self.id]

    def open(self, round: int) -> None:
        """Start training for a round."""
        plan, messages = self._rounds.plans(round)
        degree = messages.degree[self.id]
        if plan.control is not None:
            self.control += int(control_bytes(plan.control)[self.id])
        self.begin(LazyLocalUpdate(self.id, round, self.model, degree))

    def neighbours(self, round: int) -> tuple[list[int], frozenset[int]]:
        """The targets of a round in sending order, and the in-neighbours."""
        messages = self._rounds.plans(round)[1]
        return messages.targets(self.id), messages.senders(self.id)

    def post_to(self, round: int, row: Any, to: Sequence[int]) -> None:
        """Send the message of a round to some nodes for the first time."""
        self.send(to, row, note=(round,), lost=self._rounds.plans(round)[1].lost(self.id, to))

    def post_again(self, round: int, row: Any, to: int, *, lost: bool) -> None:
        """Send the message of a round to a node that asks for it again."""
        self.send([to], row, note=(round,), lost=[to] if lost else ())

    def tell(self, node_id: int, what: Any) -> None:
        """Wake another node with this tag, after the latency of the link."""
        work = self.work
        work.contexts[node_id].wake_at(work.now + work.world.latency(self.id, node_id), what)

    def tell_back(self, node_id: int, what: Any) -> None:
        """Be woken with another node's answer, after the round-trip time."""
        world = self.work.world
        self.wake_at(self.now + world.latency(self.id, node_id) + world.latency(node_id, self.id), what)

    def post(self, round: int) -> None:
        """Send the message of this round to its targets."""
        messages = self._rounds.plans(round)[1]
        to = messages.targets(self.id)
        self.send(to, self.result, note=(round,), lost=messages.lost(self.id, to))

    def close(self, round: int, messages: Sequence[Message], ages: Sequence[int]) -> None:
        """Aggregate these messages, in ascending order of senders."""
        senders = [message.sender for message in messages]
        whole = len(senders) == self._rounds.plans(round)[1].coming[self.id] and not any(ages)
        rows: list[Any] = [message.row for message in messages]
        self.model = self.work.lazy_models.new(
            LazyAggregation(self.result, round, senders, rows, list(ages), whole=whole)
        )
        if self.work.log is not None:
            self.work.log.closings.append(Closing(self.id, round, self.now / SECOND, tuple(senders), tuple(ages)))

    def wait_for_all(self, round: int) -> None:
        """Be woken when every node waits in this round."""
        if self._rounds.meet():
            for one in self.work.contexts:
                one.wake_at(self.now, "all")


class SharedRounds:
    """What all nodes in rounds share: the plans, and the count of nodes that wait for all others."""

    def __init__(self, plans: Plans, nodes: int) -> None:
        self.plans = plans
        self.presence = Presence(nodes)
        self._nodes = nodes
        self._waiting = 0

    def watch(self, work: Any) -> None:
        """Register the membership with the clockwork, once its nodes exist."""
        self.presence.work = work

    def meet(self) -> bool:
        """Count one more waiting node; returns whether all wait."""
        self._waiting = (self._waiting + 1) % self._nodes
        return not self._waiting


class RoundSteps:
    """Computes the two steps of rounds, all nodes of a round in one batch."""

    def __init__(self, host: Host, lazy_models: LazyModels, plans: Plans, close: Close) -> None:
        """Register with `lazy_models`; `close` gives the weights of messages of earlier rounds."""
        self._host = host
        self._plans = plans
        self._close = close
        lazy_models.computes(LazyLocalUpdate, self._local_update)
        lazy_models.computes(LazyAggregation, self._aggregate)

    def _local_update(self, batch: list[LazyLocalUpdate]) -> None:
        population = self._host.population
        batch = sorted(batch, key=lambda one: one.node)
        who = np.array([one.node for one in batch])
        degree = np.array([one.degree for one in batch])
        state = _stacked([one.state.value for one in batch if one.state is not None])
        state, message, loss = population.local_update_from(state, batch[0].round, degree, who)
        population.check_finite("training loss", batch[0].round, who, loss, "")
        for i, one in enumerate(batch):
            one.value = (_row(state, i), _row(message, i), loss[i])

    def _aggregate(self, batch: list[LazyAggregation]) -> None:
        host = self._host
        batch = sorted(batch, key=lambda one: one.local_update_model.node if one.local_update_model is not None else -1)
        updates = [one.local_update_model for one in batch if one.local_update_model is not None]
        state = _stacked([one.value[0] for one in updates])
        message = _stacked([one.value[1] for one in updates])
        plan = self._plans(batch[0].round)[0]
        inbox: Inbox
        if len(batch) == len(host.population) and all(one.whole for one in batch):
            population = host.population
            inbox = MatrixInbox(
                message,
                plan.weights,
                population.ids,
                host.workers,
                population.memory,
                population.coder,
                population.rule,
            )
        else:
            received = [self._received(one, plan) for one in batch]
            inbox = MessageInbox(message, received, host.workers, host.population.coder, host.population.rule)
        state = host.population.aggregate_into(state, inbox)
        for i, one in enumerate(batch):
            one.value = _row(state, i)

    def _received(self, one: LazyAggregation, plan: Plan) -> Received:
        assert one.local_update_model is not None
        node, senders = one.local_update_model.node, one.senders
        experiment, sizes = self._host.population.setup.experiment, self._host.population.setup.sizes
        graph = plan.delivery.intended
        rows = [message_in(message.value[1]) for message in one.messages]
        if any(one.ages):
            return Received(senders, rows, weights_by_age(self._close, one.ages), ages=one.ages)
        view = RoundView(one.round, graph, b"", (), None)
        samples = [] if sizes is None else sizes[[node, *senders]].tolist()
        if one.whole and plan.weights.matrix is not None:
            matrix = plan.weights.matrix
            by = matrix.data[matrix.indptr[node] : matrix.indptr[node + 1]]
        else:
            by = shares(experiment, view, node, senders, samples)
        at = bisect(senders, node) if graph.clique is not None else None
        return Received(senders, rows, by, at, by_portions=experiment.mixing_rule == "samples")


def _stacked(parts: list[Rows]) -> Rows:
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def _row(rows: Rows, i: int) -> Rows:
    """One node's rows, copied: a view would keep the whole batch in memory."""
    return {name: part[i].clone() for name, part in rows.items()}
