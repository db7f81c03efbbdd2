"""Connections to some of the peers, and exchanges of views (topology.view). Decides nothing; see `protocol/partial_view.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from epidemic.core.errors import BadInput
from epidemic.deploy.addresses import Addresses, elsewhere
from epidemic.deploy.contacts import LARGEST_EXCHANGE, Book, seal_contact
from epidemic.deploy.event_loop import EventLoop
from epidemic.deploy.hosted import SynchronousNode
from epidemic.deploy.keyring import Keyring
from epidemic.deploy.keys import Identity
from epidemic.deploy.transport import Transport
from epidemic.deploy.wire import Refused
from epidemic.experiment import Experiment
from epidemic.protocol import events as e
from epidemic.topology import peer_sampling

TOPIC = "exchange"
FIRST = "first "
"""Prefix of the names of lines to addresses of node.toml; lines to peers in the view have their names."""


@dataclass(frozen=True)
class PeerMeeting:
    """How a node meets peers: their contacts, and the addresses of its initial peers."""

    book: Book
    first: tuple[str, ...]


def meeting_of(experiment: Experiment, identity: Identity, addresses: Addresses) -> PeerMeeting | None:
    """The meeting of a node; None if all nodes know each other."""
    service = peer_sampling(experiment.topology)
    if service is None:
        return None
    if addresses.relay:
        raise BadInput("node.toml: topology.view is for nodes that connect to each other, not for those behind a relay")
    own = seal_contact(identity, addresses.told, int(time.time()))
    most = service.sampler(experiment.nodes, identity.node_id, lambda _: 0).most
    return PeerMeeting(Book(identity, own, experiment.nodes, most), addresses.connect)


class PeerExchange:
    """The peers that the one node of a process knows."""

    def __init__(
        self, node: SynchronousNode, meeting: PeerMeeting, keyring: Keyring, loop: EventLoop, transport: Transport
    ) -> None:
        self._node = node
        self._book = meeting.book
        self._keyring = keyring
        self._loop = loop
        self._transport = transport
        self._first = meeting.first
        transport.answer(TOPIC, self._approached)

    def carry_out(self, action: e.Action) -> bool:
        """Carry out an action about views; False if it is not one."""
        match action:
            case e.Connect():
                contact = self._book.get(action.node_id)
                if contact is not None:  # a separate line, whoever else claims that address
                    self._transport.connect(f"node-{action.node_id}", contact.address, self._found)
            case e.Disconnect():
                self._disconnect(action.node_id)
            case e.Seek():
                for address in self._first:
                    self._transport.connect(FIRST + address, address)
            case e.ExchangeViews():
                self._exchange(action)
            case e.AnswerEntries():
                action.reply(b"" if action.entries is None else self._sealed(action.to, action.entries))
            case _:
                return False
        return True

    def _found(self, address: str) -> str:
        """The address of a contact on another machine; raises BadInput and counts it if it leads to this machine or nowhere."""
        if self._book.local:
            return address
        try:
            return elsewhere(address)
        except BadInput:
            self._book.refuse("malformed")
            raise

    def _disconnect(self, node_id: int) -> None:
        ends = self._transport.ends()
        first = [name for name, there in ends.items() if name.startswith(FIRST) and node_id in there]
        self._transport.disconnect(f"node-{node_id}", *first)

    def housekeeping(self) -> None:
        """Called about once a second: stop waiting for initial peers that are not there."""
        self._transport.let_go(FIRST)

    def _sealed(self, to: int, entries: tuple[tuple[int, int], ...]) -> bytes:
        node = self._node
        found = self._book.seal(self._keyring.run, node.node_id, to, entries, node.identity.key)
        node.told(len(found))
        return found

    def _exchange(self, action: e.ExchangeViews) -> None:
        partner = action.to

        def answered(raw: bytes | None) -> None:
            opened = self._opened(raw) if raw else None
            entries = opened[1] if opened is not None and opened[0] == partner else None
            self._loop.put(self._node.node_id, e.EntriesCame(partner, entries, refused=raw == b""))

        question = self._sealed(partner, action.entries)
        self._transport.ask(TOPIC, partner, question, action.patience / e.SECOND, answered, LARGEST_EXCHANGE)

    def _approached(self, question: bytes, respond: Callable[[bytes], None]) -> None:
        opened = self._opened(question)
        if opened is None:
            respond(b"")
        else:
            self._loop.put(self._node.node_id, e.Approached(*opened, respond))

    def _opened(self, raw: bytes) -> tuple[int, tuple[tuple[int, int], ...]] | None:
        try:
            return self._book.open(raw, self._keyring.run, self._node.node_id, self._keyring.key_of)
        except Refused as refusal:
            self._book.refuse(refusal.reason)
            return None
