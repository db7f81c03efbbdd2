"""Messages: how they leave the nodes of a process, and how received ones reach its nodes.

Messages to nodes of the same process are passed on directly; all others are signed. With rounds, the main thread seals a message after training, and
keeps it for peers that ask again. Asynchronous messages leave while the node trains: a separate thread, the mailer, computes and seals them, so that
neither the main thread nor the event loop waits. Received models are held as lazy models, only a few per sender.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from epidemic.algorithms import Column
from epidemic.algorithms.asynchronous import Message
from epidemic.deploy.event_loop import EventLoop
from epidemic.deploy.hosted import AsynchronousNode, HostedNode, SynchronousNode
from epidemic.deploy.hosted_models import Holding, HostedModels
from epidemic.deploy.outbox import Outbox, Outgoing
from epidemic.deploy.reader import most_of_one
from epidemic.deploy.transport import Transport
from epidemic.deploy.wire import OpenedMessage
from epidemic.protocol import events as e
from epidemic.runtime.lazy_models import LazyModel

MOST_WAITING = 64
"""Messages of one node that may wait to be computed and sealed, per part of a model; then the oldest is discarded."""


@dataclass(frozen=True)
class _Job:
    node: HostedNode
    do: Callable[[], object]
    messages: int = 0  # number of messages


class Messages:
    """What the nodes of a process send and receive."""

    def __init__(
        self,
        nodes: Mapping[int, HostedNode],
        lazy: HostedModels,
        column: Column,
        device: torch.device,
        loop: EventLoop,
        outbox: Outbox,
        transport: Transport,
        refuse: Callable[[str], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Prepare sending and receiving.

        Args:
            nodes: The nodes of this process, by id.
            lazy: Computes models of asynchronous methods.
            column: The column that such models have.
            device: Where they are computed.
            loop: The event loop.
            outbox: Sends messages to other processes.
            transport: The network.
            refuse: Counts invalid messages.
            failed: Called with internal errors.
        """
        self._nodes = nodes
        self._lazy = lazy
        self._column, self._device = column, device
        self._loop = loop
        self._outbox = outbox
        self._transport = transport
        self._refuse = refuse
        self._failed = failed
        format = next(iter(nodes.values())).format
        self._holding = Holding(most_of_one(format) * len(nodes))
        self._most = MOST_WAITING * format.parts
        self._jobs: deque[_Job] = deque()
        self._some = threading.Condition()
        self._busy = False
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="mailer", daemon=True)  # started with its first job

    # -- what comes in ------------------------------------------------------------------------------------------------

    def came(self, message: OpenedMessage, node_ids: Iterable[int]) -> None:
        """Pass a valid message to the nodes that it is for."""
        row, known = None, None
        for node_id in node_ids:
            node = self._nodes.get(node_id)
            if isinstance(node, SynchronousNode):
                self._loop.put(node_id, e.Arrived(message.sender, message.counter, message.graph, message))
            elif node is not None:
                if message.columns and row is None:
                    raw = message.columns[self._column.name]
                    numbers = torch.frombuffer(raw, dtype=self._column.torch_dtype).to(self._device)
                    row = self._holding.take(message.sender, numbers)
                    if row is None:
                        self._refuse("overflow")
                        return
                if known is None:  # message numbers grow with time, and the clocks of peers are unknown
                    known = Message(message.sender, row, message.kind, message.numbers, message.part, message.counter)
                self._loop.put(node_id, e.Came(message.sender, message.counter, message.numbers, known))

    # -- what goes out ------------------------------------------------------------------------------------------------

    def carry_out(self, node: HostedNode, action: e.Action) -> bool:
        """Carry out an action about messages; False if it is not one, or is left to the main thread."""
        if isinstance(node, SynchronousNode):
            match action:
                case e.Send():
                    self._send_round(node, action)
                case e.AnswerMessage():
                    self._answer(node, action)
                case e.Forget():
                    node.forget(action.before)
                case _:
                    return False
            return True
        assert isinstance(node, AsynchronousNode)
        match action:
            case e.SendMessage():
                self._post(node, action)
            case e.Withdraw():
                self._withdraw(node)
            case e.ComputeModel():
                self._put(_Job(node, partial(self._lazy.value, action.row)))
            case e.Give() if action.to in self._nodes:
                action.reply(None)  # nodes of one process return together
            case e.Give():  # a lazy model, which no training changes
                self._put(_Job(node, partial(self._give, node, action, node.member.context.model)))
            case _:
                return False
        return True

    def _send_round(self, node: SynchronousNode, send: e.Send) -> None:
        message = node.kept.get(send.round) or node.outgoing(send.round)
        arrived = e.Arrived(node.node_id, send.round, node.views(node.node_id, send.round).graph, message.columns)
        if away := self._deliver(node, send.to, arrived):
            self._leave(node, message, away)

    def _answer(self, node: SynchronousNode, answer: e.AnswerMessage) -> None:
        """Answer a peer that asks again for the message of a round."""
        message = node.kept.get(answer.round)
        if message is None:
            answer.reply(e.NOT_YET.encode())
            return
        local = answer.to in self._nodes
        if local:  # inside the process nothing is lost; the question came too early
            graph = node.views(node.node_id, answer.round).graph
            self._loop.put(answer.to, e.Arrived(node.node_id, answer.round, graph, message.columns))
            answer.reply(b"sent")
        else:
            answer.reply(bytes(message.sealed(node)))
        node.sent(1, True, local=local)

    def _post(self, node: AsynchronousNode, post: e.SendMessage) -> None:
        node.format.check_own(node.node_id, post.tag, post.row is not None, post.note, post.part)
        row: LazyModel | None = post.row
        if row is not None and post.part is not None:
            row = self._lazy.cut(row, post.part)
        size = node.format.bytes_of(post.tag, post.part)
        came = e.Came(node.node_id, post.number, post.note, node.message_to_self(post, row))
        if away := self._deliver(node, post.to, came, size):
            count = sum(map(len, away.values()))
            self._put(_Job(node, partial(self._seal_and_leave, node, post, row, away, size), count))

    def _deliver(
        self, node: HostedNode, to: Iterable[int], event: e.Event, each: int | None = None
    ) -> dict[int, list[int]]:
        """Pass a message to receivers in this process; returns the other receivers, by the carrier of their process."""
        away: dict[int, list[int]] = {}
        for node_id in to:
            if node_id in self._nodes:
                self._loop.put(node_id, event)
                node.sent(1, True, local=True, each=each)
            else:
                away.setdefault(node.member.membership.carrier(node_id), []).append(node_id)
        return away

    def _leave(
        self, node: HostedNode, message: Outgoing, away: Mapping[int, list[int]], each: int | None = None
    ) -> None:
        """Seal a message if necessary, and add it to the outbox."""
        if message.payload is None:
            message.payload = self._transport.payload(message.sealed(node))
        for carrier, node_ids in away.items():
            told = partial(node.sent, each=each)
            self._outbox.send(carrier, tuple(node_ids), message.payload, told, owner=node.node_id)

    # -- the mailer's thread ------------------------------------------------------------------------------------------

    def _seal_and_leave(
        self,
        node: AsynchronousNode,
        post: e.SendMessage,
        row: LazyModel | None,
        away: Mapping[int, list[int]],
        size: int,
    ) -> None:
        columns = {} if row is None else {self._column.name: self._lazy.value(row)}
        message = Outgoing(post.number, post.to, columns, kind=post.tag, numbers=post.note, part=post.part)
        self._leave(node, message, away, size)

    def _give(self, node: AsynchronousNode, give: e.Give, model: Any) -> None:
        node.give(give, {self._column.name: self._lazy.value(model)})

    def _put(self, job: _Job) -> None:
        lost = None
        with self._some:
            waiting = [other for other in self._jobs if other.node is job.node and other.messages]
            if job.messages and len(waiting) >= self._most:
                lost = waiting[0]
                self._jobs.remove(lost)
            self._jobs.append(job)
            self._some.notify_all()
            if self._thread.ident is None:
                self._thread.start()
        if lost is not None:
            lost.node.sent(lost.messages, False)

    def _withdraw(self, node: HostedNode) -> None:
        """Discard the messages of a node that have not begun to leave."""
        with self._some:
            self._jobs = deque(job for job in self._jobs if job.node is not node or not job.messages)
        self._outbox.withdraw(node.node_id)

    def _work(self) -> None:
        while True:
            with self._some:
                self._busy = False
                self._some.notify_all()
                while not self._jobs and not self._closing:
                    self._some.wait()
                if self._closing:
                    return
                job = self._jobs.popleft()
                self._busy = True
            try:
                job.do()
            except Exception as problem:
                self._failed(problem)
                return
            del job  # releases what it holds

    def flush(self, timeout: float) -> None:
        """Wait until everything is sealed and sent, at most `timeout` seconds."""
        end = time.monotonic() + timeout
        with self._some:
            self._some.wait_for(lambda: not self._jobs and not self._busy, timeout)
        self._outbox.flush(max(0.0, end - time.monotonic()))

    def close(self) -> None:
        """Stop the mailer; nothing more is sent."""
        with self._some:
            self._closing = True
            self._some.notify_all()
            started = self._thread.ident is not None
        if started:
            self._thread.join(5)
