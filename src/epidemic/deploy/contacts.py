"""Contacts: signed addresses of nodes that do not know all others, and the exchanges that carry them.

A contact is a node's address with its certificate, signed by its own key, so nobody can give a false address for another node. In an exchange
(`protocol/partial_view.py`) each entry of a view comes with its contact. Everything received is untrusted: sizes, format, signatures and certificates
are checked. What is invalid raises Refused, or is left out and counted.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta

from epidemic.core.errors import BadInput
from epidemic.deploy.addresses import is_anywhere, is_loopback, same_address, split_address
from epidemic.deploy.keys import Identity, node_id_of
from epidemic.deploy.wire import KeyOf, Refused
from epidemic.protocol.partial_view import MOST_ENTRIES
from epidemic.protocol.peer_sampler import Entries, Entry
from epidemic.protocol.sample import Saved

LARGEST_CONTACT = 2**11
"""Most bytes of a contact; about four hundred are usual."""
LARGEST_EXCHANGE = MOST_ENTRIES * LARGEST_CONTACT
SPARE = 64
"""Contacts kept beyond those of the view, for peers that may soon enter it."""
TOMORROW = 86400
"""Seconds by which clocks may differ; contacts from further in the future are refused."""
CHECKED = 1024
"""Contacts whose signatures are remembered as valid."""

Count = Annotated[int, Meta(ge=0, le=2**31)]


class _Contact(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    node_id: Count
    address: Annotated[str, Meta(max_length=300)]
    since: Annotated[int, Meta(ge=0, le=2**53)]  # seconds; the newer of two contacts counts
    certificate: bytes


class _Exchange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    run: bytes
    sender: Count
    receiver: Count
    entries: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=MOST_ENTRIES)]
    contacts: Annotated[tuple[bytes, ...], Meta(max_length=MOST_ENTRIES)]  # of the entries, in the same order


class _SignedContact(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    content: bytes
    signature: bytes


# Created here, in one thread: see `handshake`.
_CONTACTS, _EXCHANGES = msgspec.msgpack.Decoder(_Contact), msgspec.msgpack.Decoder(_Exchange)
_SIGNED = msgspec.msgpack.Decoder(_SignedContact)
_SAVED = msgspec.msgpack.Decoder(list[tuple[tuple[int, int], bytes]])
_SAMPLES = msgspec.msgpack.Decoder(list[tuple[Saved, bytes]])
_PLACE, _VIEW = b"epidemic contact\0", b"epidemic exchange\0"


@dataclass(frozen=True)
class Contact:
    """The address of a node."""

    node_id: int
    address: str
    since: int
    name: str  # of the certificate ...
    expires: float  # ... and when it expires, in seconds
    raw: bytes


def seal_contact(identity: Identity, address: str, since: int) -> bytes:
    """A signed contact with this node's own address."""
    content = msgspec.msgpack.encode(_Contact(identity.node_id, address, since, identity.encoded))
    return msgspec.msgpack.encode(_SignedContact(content, identity.key.sign(_PLACE + content)))


class Book:
    """The contacts that a process knows: of peers in its view, and of a few others. Thread-safe."""

    def __init__(self, identity: Identity, own: bytes, nodes: int, most: int = MOST_ENTRIES) -> None:
        """Start empty; `own` is this node's own contact, `most` the most entries of an exchange."""
        self._identity = identity
        self.own = own
        self._nodes = nodes
        self._most = most
        self._address = _CONTACTS.decode(_SIGNED.decode(own).content).address
        self.local = is_loopback(self._address)  # whether all nodes are on this machine
        self.pinned: Callable[[], Iterable[int]] = tuple  # nodes whose contacts must be kept
        self._known: OrderedDict[int, Contact] = OrderedDict()  # by node id, the most recently used last
        self._checked: OrderedDict[bytes, Contact] = OrderedDict()
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter()

    def learn(self, raw: bytes) -> Contact:
        """Keep a contact unless a newer one of that node is known; raises Refused if it is invalid."""
        with self._lock:
            found = self._checked.get(raw)
        if found is None:
            found = self._check(raw)
        if not self._counts(found):
            raise Refused("revoked")
        with self._lock:
            self._checked[raw] = found
            self._checked.move_to_end(raw)
            while len(self._checked) > CHECKED:
                self._checked.popitem(last=False)
            before = self._known.get(found.node_id)
            if before is None or before.since <= found.since or not self._counts(before):
                self._known[found.node_id] = found
            self._known.move_to_end(found.node_id)
        self._forget()
        return found

    def _counts(self, contact: Contact) -> bool:
        """Whether the certificate of a contact is still valid."""
        return contact.name not in self._identity.revoked.names and contact.expires > time.time()

    def _check(self, raw: bytes) -> Contact:
        if len(raw) > LARGEST_CONTACT:
            raise Refused("oversized")
        try:
            signed = _SIGNED.decode(raw)
            said = _CONTACTS.decode(signed.content)
            split_address(said.address)
        except (msgspec.MsgspecError, ValueError, RecursionError, BadInput):
            raise Refused("malformed") from None
        if self._leads_here(said):  # a contact must not make nodes connect to themselves
            raise Refused("malformed")
        if said.since > time.time() + TOMORROW:
            raise Refused("implausible")
        name, key, expires = self._identity.recognise(said.certificate)
        try:
            key.verify(signed.signature, _PLACE + signed.content)
        except InvalidSignature:
            raise Refused("wrong-signature") from None
        if node_id_of(name) != said.node_id or said.node_id >= self._nodes:
            raise Refused("wrong-signature")
        return Contact(said.node_id, said.address, said.since, name, expires.timestamp(), raw)

    def _leads_here(self, said: _Contact) -> bool:
        """Whether an address is one of this machine: loopback (unless all nodes are here), unspecified, or this node's own. Names are resolved when connecting."""
        own = said.node_id != self._identity.node_id and same_address(said.address, self._address)
        return own or is_anywhere(said.address) or (is_loopback(said.address) and not self.local)

    def _forget(self) -> None:
        """Drop the contacts least recently used."""
        pinned = set(self.pinned())
        with self._lock:
            spare = [node_id for node_id in self._known if node_id not in pinned]
            for node_id in spare[: max(0, len(spare) - SPARE)]:
                del self._known[node_id]

    def get(self, node_id: int) -> Contact | None:
        """The contact of a node, if it is known and its certificate is still valid."""
        with self._lock:
            found = self._known.get(node_id)
        return found if found is not None and self._counts(found) else None

    def refuse(self, reason: str) -> None:
        """Count an invalid contact."""
        with self._lock:
            self._refused[reason] += 1

    @property
    def refused(self) -> Counter[str]:
        """Invalid contacts by reason."""
        with self._lock:
            return Counter(self._refused)

    # -- what is kept over a restart ----------------------------------------------------------------------------------

    def saved(self, entries: Iterable[Entry]) -> bytes:
        """A view with its contacts, for a checkpoint."""
        kept = [(entry, found.raw) for entry in entries if (found := self.get(entry[0])) is not None]
        return msgspec.msgpack.encode(kept)

    def restored(self, raw: bytes) -> list[Entry]:
        """A view from a checkpoint, without contacts that are no longer valid."""
        found = []
        for entry, contact in _SAVED.decode(raw):
            try:
                self.learn(contact)
            except Refused:
                continue
            found.append(entry)
        return found

    def saved_sample(self, slots: Iterable[Saved]) -> bytes:
        """A sample with its contacts, for a checkpoint."""
        return msgspec.msgpack.encode([(slot, found.raw) for slot in slots if (found := self.get(slot[1])) is not None])

    def restored_sample(self, raw: bytes) -> tuple[Saved, ...]:
        """A sample from a checkpoint, without contacts that are no longer valid."""
        found = []
        for slot, contact in _SAMPLES.decode(raw):
            try:
                self.learn(contact)
            except Refused:
                continue
            found.append(slot)
        return tuple(found)

    # -- exchanges ----------------------------------------------------------------------------------------------------

    def seal(self, run: bytes, sender: int, receiver: int, entries: Entries, key: Ed25519PrivateKey) -> bytes:
        """A signed exchange; entries without a known contact are left out."""
        told = []
        for node_id, age in entries[:MOST_ENTRIES]:
            found = self.get(node_id)
            raw = self.own if node_id == sender else None if found is None else found.raw
            if raw is not None:
                told.append(((node_id, age), raw))
        said = _Exchange(run, sender, receiver, tuple(e for e, _ in told), tuple(raw for _, raw in told))
        content = msgspec.msgpack.encode(said)
        return msgspec.msgpack.encode(_SignedContact(content, key.sign(_VIEW + content)))

    def open(self, raw: bytes, run: bytes, receiver: int, key_of: KeyOf) -> tuple[int, Entries]:
        """Read an exchange: (sender, entries); entries with invalid contacts are left out and counted."""
        if len(raw) > LARGEST_EXCHANGE:
            raise Refused("oversized")
        try:
            signed = _SIGNED.decode(raw)
            said = _EXCHANGES.decode(signed.content)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise Refused("malformed") from None
        if said.run != run:
            raise Refused("wrong-run")
        if said.receiver != receiver or len(said.entries) != len(said.contacts):
            raise Refused("malformed")
        if len(said.entries) > self._most:
            raise Refused("oversized")
        key = key_of(said.sender)
        if key is None:
            raise Refused("unknown-sender")
        try:
            key.verify(signed.signature, _VIEW + signed.content)
        except InvalidSignature:
            raise Refused("wrong-signature") from None
        found = []
        for (node_id, age), contact in zip(said.entries, said.contacts, strict=True):
            if node_id == receiver:
                continue
            try:
                if self.learn(contact).node_id != node_id:
                    raise Refused("wrong-signature")
            except Refused as refusal:
                self.refuse(refusal.reason)
                if refusal.reason == "revoked":  # the list of revocations may not have reached every node yet
                    continue
                break  # no honest node forwards such a contact, so the rest is not worth checking
            found.append((node_id, age))
        return said.sender, tuple(found)
