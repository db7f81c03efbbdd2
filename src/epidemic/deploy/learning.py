"""What the main thread of a process computes for its nodes: training, aggregation, evaluation, models for other nodes, saving.

Work of several nodes is done in one batch. With rounds, models are rows of the process's population, changed by training and aggregation. Asynchronous
models are values, computed when a number is needed (`hosted_models`); the population holds the one last evaluated. A model made invalid by received
numbers is discarded in both cases: the node continues with what it learnt itself.
"""

from __future__ import annotations

import time
import warnings
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from epidemic.algorithms import Column, RoundContext, Rows
from epidemic.algorithms.base import LocalTraining
from epidemic.core.errors import BadInput, Diverged, RunFailed
from epidemic.core.graph import IntArray
from epidemic.core.workers import blocks
from epidemic.deploy.hosted import AsynchronousNode, HostedNode, SynchronousNode
from epidemic.deploy.hosted_models import HostedModels, sane
from epidemic.deploy.isolation import said_of_node
from epidemic.deploy.wire import OpenedMessage
from epidemic.protocol import events as e
from epidemic.runtime.inbox import MessageInbox, Received
from epidemic.runtime.lazy_models import GivenModel
from epidemic.runtime.message_coding import Coder
from epidemic.runtime.plan import shares, weights_by_age
from epidemic.runtime.recorder import Host

Work = Sequence[tuple[Any, e.Action]]
Trainings = list[tuple[AsynchronousNode, e.Learn]]

with warnings.catch_warnings():  # PyTorch warns once that messages are read-only; nobody writes to them
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0\0\0\0", dtype=torch.float32)


@dataclass(frozen=True)
class Calls:
    """What the computation calls in the rest of the process."""

    done: Callable[[Sequence[tuple[int, e.Event]]], None]  # called with the resulting events
    flush: Callable[[float], None]  # waits until messages are sent
    refused: Callable[[], dict[str, int]]  # counts of refused messages
    gave_up: Callable[[HostedNode], None]  # tells the peers
    say: Callable[[HostedNode, str], None]


class Computation:
    """Computes for the nodes of one process."""

    def __init__(self, host: Host, nodes: Mapping[int, Any], lazy: HostedModels, calls: Calls) -> None:
        """Prepare the computation.

        Args:
            host: The models of the process and what computes them.
            nodes: The nodes of this process, by id.
            lazy: Computes models of asynchronous methods.
            calls: What it calls in the rest of the process.
        """
        self._host = host
        self._nodes = nodes
        self._lazy = lazy
        self._calls = calls
        self._experiment = host.population.setup.experiment
        self._largest = self._experiment.network.largest

    def compute(self, found: Work) -> None:
        """Do the work that the protocols have asked for."""
        trainings: dict[int, list[tuple[SynchronousNode, int]]] = {}
        mixtures: list[tuple[SynchronousNode, e.Mix]] = []
        learning: Trainings = []
        for node, action in found:
            if not isinstance(action, e.Leave | e.Fail):
                node.recorder.confirm()  # the peers are there and have the same number of rounds
            match action:
                case e.Train():
                    trainings.setdefault(action.round, []).append((node, action.targets))
                case e.Mix():
                    mixtures.append((node, action))
                case e.Learn():
                    learning.append((node, action))
                case e.Look():
                    self._look(node, action)
                case e.Give():
                    self._give(node, action)
                case e.Adopt():
                    with self._host.stop.held():
                        self._adopt(node, action.message)
                case e.Conclude():
                    self._conclude(node)
                case e.Leave():
                    node.over = True
                case e.Fail():
                    self._fail(node, action)
        if mixtures:
            self._mix(mixtures)
        for round, group in trainings.items():
            self._train_round(round, group)
        if learning:
            with self._host.stop.held():
                self._learn(sorted(learning, key=lambda one: one[0].position))

    # -- the end of a node --------------------------------------------------------------------------------------------

    def _conclude(self, node: HostedNode) -> None:
        """Evaluate the final model, write the results and tell the peers."""
        self._calls.flush(self._experiment.network.longest)
        node.settle_books()
        self._settle_end(node)

        def about(_: int) -> dict[str, Any]:
            status = node.status(self._calls.refused())
            names = ("longest_wait", "messages", "refusals", "lost", "jumped", "undelivered", "local")
            return {name: getattr(status, name) for name in names}

        summary = node.recorder.conclude(about)
        found, delivery = summary.final_accuracy, summary.delivery
        on = "as the script reported" if self._experiment.own_training else "on the full test set"
        text = "finished" + ("" if found is None else f": accuracy {found.mean:.2%} {on}")
        if delivery is not None:
            text += f", {delivery.heard} of {delivery.expected} expected messages heard"
        self._calls.say(node, text)
        if alone := said_of_node(delivery, self._experiment.network.longest):
            self._calls.say(node, f"warning: {alone}")
        self._calls.done([(node.node_id, e.Concluded())])

    def _settle_end(self, node: HostedNode) -> None:
        """End a node's run: write its last record and its files."""
        if isinstance(node, SynchronousNode):
            node.recorder.done = self._experiment.rounds
            self._settle(node)
            return
        assert isinstance(node, AsynchronousNode)
        self.rewind(node)
        if not self._seen(node) or node.recorder.recorded < node.recorder.done:
            self._record(node)
        if node.recorder.run_directory is not None:
            with self._host.stop.held():
                node.recorder.save()

    def _fail(self, node: HostedNode, action: e.Fail) -> None:
        """Stop a node that failed: save its state; the other nodes of the process continue."""
        reason = action.reason
        node.error = BadInput(reason) if action.bad_input else RunFailed(f"{reason}{node.recorder.kept}")
        self._save(node)
        node.mark("failed", str(node.error))
        node.over = True
        self._calls.gave_up(node)

    def save_all(self) -> None:
        """Save every node that has not finished."""
        for node in self._nodes.values():
            if not node.over:
                self._save(node)

    def _save(self, node: HostedNode) -> None:
        self.rewind(node)
        if node.recorder.recorded >= 0 and not node.recorder.over:
            node.recorder.save()

    def rewind(self, node: HostedNode) -> None:
        """Reset a node to a state from which it can resume: the start of its round, or before its current training."""
        if isinstance(node, AsynchronousNode):
            self._put(node, node.member.context.model)
            node.memory = node.member.memory()
            return
        assert isinstance(node, SynchronousNode)
        if node.before is not None:
            self._host.population.restore(np.array([node.position]), node.before)
            node.before = None
        node.settle_books()

    # -- models that others made insane -------------------------------------------------------------------------------

    def _thrown_away(self, node: HostedNode) -> None:
        """Count a discarded model, and log the first."""
        node.mended += 1
        if node.mended == 1:
            self._calls.say(
                node,
                f"{node.member.unit} {node.member.round}: received numbers gave an invalid model"
                f" (network.largest = {self._largest:g}): continuing with its own (further ones are only counted)",
            )

    def _back_to_own(self, node: AsynchronousNode) -> Tensor:
        """Replace a model made invalid by received numbers with the node's own."""
        assert node.own is not None
        self._thrown_away(node)
        self._calls.done([(node.node_id, e.Mended(GivenModel(node.own)))])
        return node.own

    # -- giving and taking models -------------------------------------------------------------------------------------

    def _give(self, node: SynchronousNode, action: e.Give) -> None:
        """Answer a returning node with the current model, while nothing changes it."""
        if action.to in self._nodes:
            action.reply(None)  # nodes of one process return together
            return
        given = self._host.population.give(np.array([node.position]))
        node.give(action, {name: rows[0] for name, rows in given.items()})

    def _adopt(self, node: HostedNode, message: OpenedMessage) -> None:
        """Take the model of another node; the node's own is kept in case nobody can train with it."""
        population, where = self._host.population, np.array([node.position])
        rows = {name: row[None].clone() for name, row in rows_of(message, population.columns).items()}
        events: list[tuple[int, e.Event]] = []
        if isinstance(node, SynchronousNode):
            node.own = population.snapshot(where)
            population.adopt(where, rows)
            node.message = {}
        else:
            assert isinstance(node, AsynchronousNode)
            node.own = population.models[node.position].clone()
            (row,) = rows.values()
            events.append((node.node_id, e.Mended(GivenModel(row[0].to(population.setup.task.device)))))
        self._calls.say(node, f"took the model of node {message.sender}")
        self._calls.done([*events, (node.node_id, e.Adopted())])

    # -- rounds: training ---------------------------------------------------------------------------------------------

    def _who(self, nodes: list[SynchronousNode]) -> IntArray | None:
        return None if len(nodes) == len(self._nodes) else np.array([node.position for node in nodes])

    def _train_round(self, round: int, group: list[tuple[SynchronousNode, int]]) -> None:
        """Train for a round; `group` has each node with its number of targets."""
        for node, _ in group:
            node.recorder.done = round  # rounds may have been skipped
            if node.recorder.due:
                self._settle(node)
        group.sort(key=lambda one: one[0].position)
        for some in blocks(len(group), self._host.population.at_once):
            with self._host.stop.held():
                self._train(round, group[some])

    def _train(self, round: int, group: list[tuple[SynchronousNode, int]]) -> None:
        nodes = [node for node, _ in group]
        population, where = self._host.population, np.array([node.position for node in nodes])
        before = population.snapshot(where)
        try:
            message, loss = self._trained(round, group, before)
        except KeyboardInterrupt:  # of a script that was interrupted while it handed its numbers over
            population.restore(where, before)
            raise
        if len(self._nodes) > 1:  # a neighbour's aggregation may overwrite what others still have to read
            message = {name: rows.clone() for name, rows in message.items()}
        events = []
        for i, node in enumerate(nodes):
            node.before = {name: rows[i : i + 1] for name, rows in before.items()}
            node.message = {name: rows[i : i + 1] for name, rows in message.items()}
            node.loss = loss[i : i + 1]
            outgoing = node.outgoing(round)
            if any(node_id not in self._nodes for node_id in outgoing.targets):
                outgoing.sealed(node)
            events.append((node.node_id, e.Trained(round)))
        self._calls.done(events)

    def _trained(self, round: int, group: list[tuple[SynchronousNode, int]], before: Rows) -> tuple[Rows, Tensor]:
        """Train, and once more where a loss or a model exploded."""
        nodes = [node for node, _ in group]
        with nodes[0].recorder.clock("train"):
            message, loss = self._host.population.local_update(
                round, np.array([targets for _, targets in group]), None, self._who(nodes)
            )
        fine = torch.isfinite(loss) & self._sane(nodes).to(loss.device)
        bad = [i for i in (~fine).nonzero().flatten().tolist() if nodes[i].own is not None or not loss[i].isfinite()]
        return self._train_again(round, group, before, bad) if bad else (message, loss)

    def _train_again(
        self, round: int, group: list[tuple[SynchronousNode, int]], before: Rows, bad: list[int]
    ) -> tuple[Rows, Tensor]:
        """Train again after a loss or a model exploded: the last aggregation may have been bad.

        The `bad` nodes start from their state before it; all others repeat. A second explosion is the node's own fault.
        """
        population = self._host.population
        nodes = [node for node, _ in group]
        everyone = np.array([node.position for node in nodes])
        population.restore(everyone, before)
        for i in bad:
            node = nodes[i]
            if node.own is None:
                node.recorder.check_loss("training loss", torch.tensor([float("nan")]))
            assert node.own is not None
            population.restore(np.array([node.position]), node.own)
            node.own = None
            self._thrown_away(node)
            for name, rows in population.snapshot(np.array([node.position])).items():
                before[name][i] = rows[0]
        message, loss = population.local_update(
            round, np.array([targets for _, targets in group]), None, self._who(nodes)
        )
        for i, node in enumerate(nodes):
            node.recorder.check_loss("training loss", loss[i : i + 1])
        return message, loss

    # -- rounds: mixing -----------------------------------------------------------------------------------------------

    def _mix(self, mixtures: list[tuple[SynchronousNode, e.Mix]]) -> None:
        mixtures = sorted(mixtures, key=lambda one: one[0].position)
        nodes, events = [node for node, _ in mixtures], []
        population = self._host.population
        with self._host.stop.held():
            with nodes[0].recorder.clock("mix"):
                message = self._stacked([node.message for node in nodes])
                received = [self._received(node, mix) for node, mix in mixtures]
                for node in nodes:
                    node.own = population.snapshot(np.array([node.position]))
                inbox = MessageInbox(message, received, self._host.workers, population.coder, population.rule)
                population.aggregate(inbox, self._who(nodes))
                self._mend(nodes)
            for node, mix in mixtures:
                node.before = None
                node.settle_books()
                node.recorder.counters.received(len(mix.messages))
                node.mixed(mix.round, [sender for sender, _ in mix.messages])
                node.recorder.advanced(mix.round, node.loss, 1 + len(node.member.membership.alive(node.member.now)))
                events.append((node.node_id, e.Mixed(mix.round)))
        for node in nodes:
            if node.recorder.due:
                self._calls.flush(node.member.adaptive_timeout.limit / e.SECOND)
                node.settle_books()
            self._settle(node)
        self._calls.done(events)

    @staticmethod
    def _stacked(parts: list[Rows]) -> Rows:
        return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _received(self, node: SynchronousNode, mix: e.Mix) -> Received:
        senders = [sender for sender, _ in mix.messages]
        population = self._host.population
        rows = [rows_of(message, population.columns, population.coder) for _, message in mix.messages]
        if mix.ages:
            by = weights_by_age(self._experiment.network.close, mix.ages)
            return Received(senders, rows, by, ages=mix.ages)
        view = node.views.whole(node.node_id, mix.round)
        at = bisect(senders, node.node_id) if view.complete else None
        samples = [node.samples, *(self._samples(node, sender, message) for sender, message in mix.messages)]
        counts = shares(self._experiment, view, node.node_id, senders, samples)
        return Received(senders, rows, counts, at, by_portions=self._experiment.mixing_rule == "samples")

    def _samples(self, node: SynchronousNode, sender: int, message: OpenedMessage | dict[str, Tensor]) -> int:
        """The number of training samples that the sender of a message has; known for nodes of the same process."""
        return node.format.samples_of(message) if isinstance(message, OpenedMessage) else self._nodes[sender].samples

    def _sane(self, nodes: list[SynchronousNode]) -> Tensor:
        """Whether the models of these nodes are finite and of plausible magnitude.   # (k,)"""
        rows, most = self._host.population.models_of(self._who(nodes)), self._largest
        lengths = torch.linalg.vector_norm(rows, dim=1)
        if bool((lengths <= most).all()):  # no number exceeds the norm, which is ten times faster to compute
            return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        largest: Tensor = torch.linalg.vector_norm(rows, float("inf"), dim=1)
        return largest <= most  # False for NaN

    def _mend(self, nodes: list[SynchronousNode]) -> None:
        """Discard aggregated models with numbers that no valid model has."""
        for node, fine in zip(nodes, self._sane(nodes).tolist(), strict=True):
            if not fine:
                self._go_on_alone(node)

    def _go_on_alone(self, node: SynchronousNode) -> None:
        """Discard an aggregated model: the node keeps what it has learnt itself."""
        assert node.own is not None
        population, where = self._host.population, np.array([node.position])
        population.restore(where, node.own)
        if node.message:
            alone = Received([], [], np.ones(1))
            inbox = MessageInbox(node.message, [alone], self._host.workers, population.coder, population.rule)
            population.aggregate(inbox, self._who([node]))
        self._thrown_away(node)

    def _settle(self, node: SynchronousNode) -> None:
        """Evaluate and save where due; an aggregated model whose evaluation is not finite is discarded."""
        try:
            node.recorder.settle()
        except Diverged:
            if node.own is None:
                raise
            self._go_on_alone(node)
            node.own = None
            node.recorder.settle()

    # -- without rounds -----------------------------------------------------------------------------------------------

    def _learn(self, group: Trainings) -> None:
        began = time.monotonic()
        with group[0][0].recorder.clock("train"):
            rows = torch.stack([self._start(node, learn) for node, learn in group])
            memory = self._memory([node for node, _ in group])
            before = {name: part.clone() for name, part in memory.items()}
            loss = self._steps(group, rows, memory)
            for i, (node, learn) in enumerate(group):
                if not bool(loss[i].isfinite()) or not sane(rows[i], self._largest):
                    at = slice(i, i + 1)
                    rows[at], loss[at] = self._learn_again(
                        node, learn, {n: v[at] for n, v in before.items()}, memory, i
                    )
        population, took = self._host.population, time.monotonic() - began
        for name, part in memory.items():
            population.state[name][[node.position for node, _ in group]] = part
        events: list[tuple[int, e.Event]] = []
        for i, (node, learn) in enumerate(group):
            node.own = rows[i].clone()
            node.loss = float(loss[i])
            node.busy += took
            events.append((node.node_id, e.Learnt(learn.count, GivenModel(node.own))))
        self._calls.done(events)

    def _start(self, node: AsynchronousNode, learn: e.Learn) -> Tensor:
        """The model that a training starts from; the node's own if received numbers made it invalid."""
        row = self._lazy.value(learn.row)
        if node.own is None or sane(row, self._largest):
            return row
        return self._back_to_own(node)

    def _memory(self, nodes: list[AsynchronousNode]) -> Rows:
        who = np.array([node.position for node in nodes])
        return {name: rows for name, rows in self._host.population.snapshot(who).items() if name != "x"}

    def _steps(self, group: Trainings, rows: Tensor, memory: Rows) -> Tensor:
        """Do the local steps in place and return the loss of each.   # (k, d) -> (k,)"""
        setup, learner = self._host.population.setup, self._host.learner
        index = np.stack([setup.batches.of(setup.streams, node.position, learn.count) for node, learn in group])
        random = learner.draws_random_numbers
        seeds = [
            setup.streams.key("dropout-of", node.node_id, learn.count) % 2**63 if random else 0 for node, learn in group
        ]
        samples, done = torch.from_numpy(index).to(rows.device), [learn.count for _, learn in group]
        context = RoundContext(0, samples, seeds, torch.zeros(len(group)), done)
        algorithm = self._experiment.algorithm
        assert isinstance(algorithm, LocalTraining)
        return algorithm.train(rows, memory, learner, context)

    def _learn_again(
        self, node: AsynchronousNode, learn: e.Learn, before: Rows, memory: Rows, i: int
    ) -> tuple[Tensor, Tensor]:
        """Train again from the node's own model after a loss or a model exploded; a second explosion is its own fault."""
        if node.own is None:
            node.recorder.check_loss("training loss", torch.tensor([float("nan")]))
        assert node.own is not None
        row = self._back_to_own(node)[None].clone()
        loss = self._steps([(node, learn)], row, before)
        node.recorder.check_loss("training loss", loss)
        for name, part in before.items():
            memory[name][i : i + 1] = part
        return row, loss

    # -- looking ------------------------------------------------------------------------------------------------------

    def _look(self, node: AsynchronousNode, look: e.Look) -> None:
        """Evaluate and save a model as it was when this was asked for."""
        recorder = node.recorder
        self._put(node, look.row)
        node.memory = look.memory
        if look.evaluate and not self._seen(node):
            self._record(node)
        if look.evaluate:
            recorder.save_where_due()
        elif recorder.recorded >= 0 and recorder.run_directory is not None:
            with self._host.stop.held():
                recorder.save()
        self._calls.done([(node.node_id, e.Looked())])

    def _seen(self, node: AsynchronousNode) -> bool:
        """Whether a resumed node is to be evaluated at the time at which it was stopped."""
        records = node.recorder.records
        last = records[-1].time if records else None
        return last is not None and last.seconds * e.SECOND >= node.memory.elapsed

    def _put(self, node: AsynchronousNode, row: Any) -> None:
        """Make this the model that is evaluated and saved, with the counters so far."""
        numbers = self._lazy.value(row)
        if node.own is not None and not sane(numbers, self._largest):
            numbers = self._back_to_own(node)
        self._host.population.restore(np.array([node.position]), {"x": numbers[None]})
        node.settle_books()
        recorder, member = node.recorder, node.member
        recorder.done = member.trained
        recorder.train_loss = node.loss
        recorder.alive = 1 + len(member.membership.alive(member.now))

    def _record(self, node: AsynchronousNode) -> None:
        try:
            node.recorder.record()
        except Diverged:
            if node.own is None:
                raise
            own = self._back_to_own(node)
            self._host.population.restore(np.array([node.position]), {"x": own[None]})
            node.recorder.record()


def rows_of(
    message: OpenedMessage | dict[str, Tensor], columns: tuple[Column, ...], coder: Coder | None = None
) -> dict[str, Tensor]:
    """The numbers of a message by column, or the bytes of a compressed one, without copying."""
    if isinstance(message, dict):  # from a node of the same process
        return message
    if coder is not None:
        return {name: torch.frombuffer(raw, dtype=torch.uint8) for name, raw in message.columns.items()}
    return {
        column.name: torch.frombuffer(message.columns[column.name], dtype=column.torch_dtype).reshape(column.shape)
        for column in columns
    }
