"""The process: drives the protocols of the nodes that it hosts. It decides nothing: events go in, actions are carried out.

There are three kinds of threads. The network's threads deliver what arrives; the reader checks messages. One thread, the event loop, passes all events to
the protocols and carries out quick actions. The main thread computes: training, aggregation, evaluation, saving; interrupts reach it there. Messages
between nodes of the process never leave it.
"""

from __future__ import annotations

import datetime as dt
import os
import queue
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from epidemic.core.errors import BadInput, CallbackFailed, EpidemicError, RunFailed
from epidemic.deploy.access import REVOKED
from epidemic.deploy.agreement import Agreement
from epidemic.deploy.assembly import Assembly
from epidemic.deploy.event_loop import EventLoop, now
from epidemic.deploy.gate import Gate
from epidemic.deploy.handshake import LARGEST_BUNDLE, Handshake, seal_handshakes
from epidemic.deploy.hosted import HostedNode, SynchronousNode
from epidemic.deploy.keyring import Keyring
from epidemic.deploy.learning import Calls, Computation
from epidemic.deploy.link_monitor import LinkMonitor
from epidemic.deploy.messages import Messages
from epidemic.deploy.opening import Unreachable
from epidemic.deploy.outbox import Outbox
from epidemic.deploy.peer_exchange import PeerExchange, PeerMeeting
from epidemic.deploy.reader import Reader
from epidemic.deploy.status import seal_statuses
from epidemic.deploy.transport import Transport
from epidemic.deploy.wire import STATE_TRANSFER, OpenedMessage, Refused
from epidemic.learner.callers import CallersLearner
from epidemic.protocol import events as e
from epidemic.runtime.recorder import Host

GREETING = 3.0
"""Seconds to wait for a handshake."""

ASK_REVOKED = 3 * e.SECOND
"""Pause between questions whether this node was revoked, while links are silent."""
MOST_ASKED = 4
LARGEST_LIST = 2**20
"""Most bytes of a list of revoked certificates."""

_WORDS = (e.ACCEPTED, e.BUSY, e.NOTHING, e.NOT_YET, "sent")

Say = Callable[[str], None]


class Process:
    """The running nodes of one process."""

    def __init__(
        self,
        host: Host,
        nodes: Sequence[HostedNode],
        transport: Transport,
        agreement: Agreement,
        assembly: Assembly,
        say: Say,
        meeting: PeerMeeting | None = None,
    ) -> None:
        """Connect the parts of a process.

        Args:
            host: The models of the process and what computes them.
            nodes: Its nodes; the first one's connections carry the messages of all.
            transport: The network.
            agreement: What the nodes agree on.
            assembly: What has made these nodes.
            say: Called with lines about the progress.
            meeting: How the one node of this process meets peers, if nodes know only some of them.
        """
        self._host = host
        self._nodes = {node.node_id: node for node in nodes}
        self._transport = transport
        self._agreement = agreement
        self._say = say
        carrier = nodes[0]
        experiment = host.population.setup.experiment
        self._experiment = experiment
        self._carrier = carrier.node_id
        self._identity = carrier.identity
        self._format = carrier.format
        self._book = None if meeting is None else meeting.book
        self._keyring = Keyring(carrier.identity, agreement, experiment.nodes, self._book)
        self._outbox = Outbox(transport, nodes=experiment.nodes, senders=len(nodes) * self._format.parts)
        self._link_monitor = LinkMonitor(carrier.node_id)
        self._warned = ""
        self._asked_revoked = 0  # when it last asked whether this node was revoked, or when all was well
        self._greeting: set[int] = set()  # peers whose answer is awaited
        self._work: queue.SimpleQueue[list[tuple[HostedNode, e.Action]] | EpidemicError] = queue.SimpleQueue()
        self._put_off: list[list[tuple[HostedNode, e.Action]] | EpidemicError] = []  # until a script has trained
        if isinstance(host.learner, CallersLearner):
            host.learner.meanwhile = self._give_meanwhile
        self._loop = EventLoop(
            {node.node_id: node.member for node in nodes},
            self._carry_out,
            self._work_found,
            self._housekeeping,
            self._loop_failed,
        )
        offers = 0 if experiment.faults.cap_of(experiment.nodes) is None else len(nodes)
        self._gate = Gate(transport, self._loop, say, self._format.parts + offers)
        sizes = host.population.setup.sizes
        self._reader = Reader(
            self._format,
            self._keyring,
            lambda message, node_ids: self._messages.came(message, node_ids),
            say,
            nodes=experiment.nodes,
            hosted=len(nodes),
            samples=dict(enumerate(sizes.tolist())) if self._format.most_samples and sizes is not None else None,
            replays=assembly.replays(self._nodes),
            repeated=self._repeated,
            forged=self._gate.forged,
        )
        self._found: list[tuple[HostedNode, e.Action]] = []
        self._messages = Messages(
            self._nodes,
            assembly.lazy,
            self._format.columns[0],
            host.population.setup.task.device,
            self._loop,
            self._outbox,
            transport,
            self._reader.refuse,
            self._loop_failed,
        )
        self._acquaintances: PeerExchange | None = None
        if meeting is not None:
            assert isinstance(carrier, SynchronousNode)
            self._acquaintances = PeerExchange(carrier, meeting, self._keyring, self._loop, transport)
        calls = Calls(
            done=self._loop.put_many,
            flush=self._messages.flush,
            refused=self._refusals,
            gave_up=lambda node: self._loop.tell(self._greet, node, None),
            say=self._say_of,
        )
        self.learning = Computation(host, self._nodes, assembly.lazy, calls)

    def _refusals(self) -> dict[str, int]:
        """Refused input, by reason."""
        known = Counter[str]() if self._book is None else self._book.refused
        return dict(self._reader.refused + self._keyring.refused + known + Counter(flood=self._gate.dropped))

    # -- from start to end --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the nodes until no peer needs them; raises the error of a node that failed."""
        try:
            with self._host.stop.held():  # an interrupt inside Zenoh's code would be lost
                self._open()
            while not all(node.over for node in self._nodes.values()):
                self._host.stop.heed()
                try:
                    found = self._put_off.pop(0) if self._put_off else self._work.get(timeout=0.5)
                except queue.Empty:
                    continue
                if isinstance(found, EpidemicError):
                    self.learning.save_all()
                    raise found
                try:
                    self.learning.compute(found)
                except CallbackFailed:
                    self.learning.save_all()
                    raise
        finally:
            self._loop.close()
            self._messages.close()
            self._outbox.close()
            self._transport.close()
            self._reader.close()
        errors = [node.error for node in self._nodes.values() if node.error is not None]
        if errors:
            raise errors[0]

    def _open(self) -> None:
        transport, loop = self._transport, self._loop
        for node in self._nodes.values():
            loop.put(node.node_id, e.Started())
            loop.put(node.node_id, e.Present(self._carrier, transport.token, True))
        self._introduce_inside()
        self._gate.open()
        limit = self._format.most_bytes
        transport.receive(self._reader.put, lambda _: self._reader.refuse("oversized"), limit)
        transport.answer("handshake", self._greeted)
        transport.answer("status", self._asked_status)
        transport.answer(REVOKED, lambda _, respond: respond(msgspec.json.encode(self._identity.revoked)))
        capped = self._experiment.faults.cap_of(self._experiment.nodes) is not None
        for topic in ("model", "again", "offer") if capped else ("model", "again"):
            transport.answer(topic, partial(self._asked, topic))
        transport.watch("alive", self._presence)
        transport.appear("alive", self._carrier)
        loop.start()

    def _loop_failed(self, problem: Exception) -> None:
        """End the process, saved, after an internal error."""
        if "EPIDEMIC_DEBUG" in os.environ:
            traceback.print_exception(problem)
        text = f"unexpected {type(problem).__name__}: {' '.join(str(problem).split())}"
        self._work.put(problem if isinstance(problem, EpidemicError) else RunFailed(text))

    # -- the network's threads ----------------------------------------------------------------------------------------

    def _repeated(self, node_ids: tuple[int, ...], outcome: str) -> None:
        for node_id in node_ids:
            if node_id in self._nodes:
                self._nodes[node_id].repeated(outcome)

    def _presence(self, node_id: int, token: str, there: bool) -> None:
        if node_id != self._carrier or token != self._transport.token:
            self._keyring.shown(node_id, token, there)
            self._loop.put_all(e.Present(node_id, token, there))

    def _greeted(self, question: bytes, respond: Callable[[bytes], None]) -> None:
        self._introduced(question)
        respond(self._handshakes())

    def _introduced(self, raw: bytes) -> bool:
        heard = self._keyring.introduce(raw)
        for handshake in heard:
            self._loop.put_all(handshake)
        for carrier in {handshake.carrier for handshake in heard}:
            self._gate.carries(carrier, self._keyring.carried(carrier))
        if heard:
            self._reader.look_again()
        return bool(heard)

    def _handshakes(self) -> bytes:
        """The current handshakes of the nodes of this process."""
        return seal_handshakes(
            ((self._handshake(node), node.identity) for node in self._nodes.values()), self._agreement
        )

    def _handshake(self, node: HostedNode) -> Handshake:
        round, start, finished, gone = node.member.handshake()
        token, run = self._transport.token, self._keyring.run
        where, bound = b"" if self._book is None else self._book.own, node.member.commitment
        return Handshake(
            node.node_id, self._carrier, token, node.identity.encoded, run, round, start, finished, gone, where, bound
        )

    def _introduce_inside(self) -> None:
        """Introduce the nodes of this process to each other."""
        for node in self._nodes.values():
            known = self._handshake(node).introduced()
            self._loop.put_many((node_id, known) for node_id in self._nodes if node_id != node.node_id)

    def _asked(self, topic: str, question: bytes, respond: Callable[[bytes], None]) -> None:
        try:
            offer = self._format.open_offer(question, self._keyring.key_of)
        except Refused as refusal:
            self._reader.refuse(refusal.reason)
            respond(e.NOTHING.encode())
            return
        if offer.receiver in self._nodes:
            self._loop.put(offer.receiver, e.Asked(topic, offer.sender, offer.round, respond))
        else:
            respond(e.NOTHING.encode())

    def _asked_status(self, _: bytes, respond: Callable[[bytes], None]) -> None:
        refused = self._refusals()
        nodes = self._nodes.values()
        own = ((node.status(refused if node.node_id == self._carrier else {}), node.identity) for node in nodes)
        respond(seal_statuses(own))

    # -- the event loop --------------------------------------------------------------------------------------------------

    def _carry_out(self, node_id: int, action: e.Action) -> None:
        """Carry out a quick action; computations are left to the main thread."""
        node = self._nodes[node_id]
        match action:
            case e.Ask():
                self._ask(node, action)
            case e.Answer():
                action.reply(action.word.encode())
            case e.Greet():
                self._greet(node, action.node_id)
            case e.Say():
                self._say_of(node, action.text)
            case _:
                known = self._acquaintances
                if not (self._messages.carry_out(node, action) or (known is not None and known.carry_out(action))):
                    self._found.append((node, action))

    def _say_of(self, node: HostedNode, text: str) -> None:
        """Log a line about one of the nodes."""
        self._say(f"node {node.node_id}: {text}" if len(self._nodes) > 1 else text)

    def _work_found(self) -> None:
        """Pass the computations that the last events led to on to the main thread."""
        if self._found:
            found, self._found = self._found, []
            self._work.put(found)

    def _give_meanwhile(self) -> None:
        """While a script trains, which may take hours: give models to nodes that return, and put off everything else."""
        with suppress(queue.Empty):
            while True:
                found = self._work.get_nowait()
                if not isinstance(found, EpidemicError):
                    given = [one for one in found if isinstance(one[1], e.Give)]
                    if given:
                        self.learning.compute(given)
                    found = [one for one in found if one not in given]
                if found:
                    self._put_off.append(found)

    def _ask(self, node: HostedNode, action: e.Ask) -> None:
        topic, to, round = action.topic, action.to, action.round

        def heard(answer: Any) -> None:
            self._loop.put(node.node_id, e.Answered(topic, to, round, answer))

        def answered(raw: bytes | None) -> None:
            word = None if raw is None or len(raw) > 16 else raw.decode("ascii", "replace")
            if raw is None or word in _WORDS:
                heard(word)
            elif topic == "model":
                self._reader.put(carrier, raw, (), lambda message: heard(self._given(message, to)))
            elif topic == "again":
                self._reader.put(carrier, raw, (node.node_id,), asked_for=True)
                heard("sent")
            else:
                heard(None)

        if to in self._nodes:
            self._loop.put(to, e.Asked(topic, node.node_id, round, answered))
            return
        carrier = node.member.membership.carrier(to)
        question = self._format.seal_offer(round, node.node_id, to, node.identity.key)
        self._transport.ask(topic, carrier, question, action.patience / e.SECOND, answered, self._format.frame_bytes)

    @staticmethod
    def _given(message: OpenedMessage | None, by: int) -> OpenedMessage | None:
        """A received model, if it came from the node that was asked."""
        return message if message is not None and message.sender == by and message.kind == STATE_TRANSFER else None

    def _greet(self, node: HostedNode, node_id: int | None) -> None:
        """Send handshakes to another process, or to all; requests of several nodes are combined."""
        if node_id is None:
            self._introduce_inside()
        for carrier in self._keyring.present() if node_id is None else [node_id]:
            if carrier == self._carrier or (carrier in self._greeting and node_id is not None):
                continue
            self._greeting.add(carrier)
            self._transport.ask(
                "handshake", carrier, self._handshakes(), GREETING, self._answer_to(carrier), LARGEST_BUNDLE
            )

    def _answer_to(self, carrier: int) -> Callable[[bytes | None], None]:
        def answered(raw: bytes | None) -> None:
            self._greeting.discard(carrier)
            if raw is None or not self._introduced(raw):
                self._loop.put_all(e.Ungreeted(carrier))

        return answered

    def _housekeeping(self) -> None:
        """Called about once a second: check certificates and silent links."""
        found = self._identity.refresh()
        if found.problem and found.problem != self._warned:
            self._say(f"{found.problem}; the list read before counts")
        self._warned = found.problem
        if found.changed:
            self._say(f"the list of revoked certificates has changed: {', '.join(self._identity.revoked.names)}")
            self._renew()  # access rules are read when the network is opened
        for node in self._nodes.values():
            node.identity.revoked = self._identity.revoked
            try:
                node.identity.still_good()
            except BadInput as problem:
                self._work.put(problem)
                return
        self._loop.put_all(e.Void(self._keyring.void(dt.datetime.now(dt.UTC))))
        if self._acquaintances is not None:
            self._acquaintances.housekeeping()
        for carrier in self._keyring.present():
            self._link_monitor.saw(carrier, time.monotonic())
        unseen = self._transport.unseen()
        self._ask_whether_revoked(unseen)
        if self._link_monitor.lost(unseen, time.monotonic()):
            self._say("a connection exists but carries nothing: reopening the network")
            self._renew()

    def _ask_whether_revoked(self, unseen: frozenset[int]) -> None:
        """Ask for the list of revocations now and then: silent peers may have revoked this node."""
        if not unseen:
            self._asked_revoked = now()
        elif now() - self._asked_revoked > ASK_REVOKED:
            self._asked_revoked = now()
            for node_id in sorted(unseen)[:MOST_ASKED]:
                self._transport.ask(REVOKED, node_id, b"", GREETING, self._told_revoked, LARGEST_LIST)

    def _told_revoked(self, raw: bytes | None) -> None:
        if raw is not None:
            with suppress(EpidemicError):  # if it cannot be written, nothing is lost
                self._identity.told(raw)

    def _renew(self) -> None:
        try:
            self._transport.renew()
        except Unreachable as problem:
            self._say(str(problem))
            return
        token = self._transport.token
        for node_id in self._nodes:
            self._loop.put(node_id, e.Renewed(token))
            self._loop.put(node_id, e.Present(self._carrier, token, True))
        self._introduce_inside()
