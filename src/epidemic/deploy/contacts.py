"""Contacts: where nodes are, signed by themselves, for those who do not know everybody; and the exchanges in which they travel.

A contact is a place's address with its certificate, signed by its own key: nobody can say of another where it is. In an exchange
(`protocol/partial_view.py`) each entry of a view travels with its contact. Everything is untrusted: sizes, form, signatures and certificates are checked, and
what is not in order raises Refused or is left out and counted.
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
"""Bytes of a contact; they are about four hundred."""
LARGEST_EXCHANGE = MOST_ENTRIES * LARGEST_CONTACT
SPARE = 64
"""Contacts that are kept besides those of the view: of those who may soon be in it."""
TOMORROW = 86400
"""Seconds by which clocks may differ; nobody is from further in the future."""
CHECKED = 1024
"""Contacts whose signatures are remembered as good."""

Count = Annotated[int, Meta(ge=0, le=2**31)]


class _Contact(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    node_id: Count
    address: Annotated[str, Meta(max_length=300)]
    since: Annotated[int, Meta(ge=0, le=2**53)]  # seconds: which of two is the newer
    certificate: bytes


class _Exchange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    run: bytes
    sender: Count
    receiver: Count
    entries: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=MOST_ENTRIES)]
    contacts: Annotated[tuple[bytes, ...], Meta(max_length=MOST_ENTRIES)]  # of the entries, in their order


class _SignedContact(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    content: bytes
    signature: bytes


# Made here, in one thread: see `handshake`.
_CONTACTS, _EXCHANGES = msgspec.msgpack.Decoder(_Contact), msgspec.msgpack.Decoder(_Exchange)
_SIGNED = msgspec.msgpack.Decoder(_SignedContact)
_SAVED = msgspec.msgpack.Decoder(list[tuple[tuple[int, int], bytes]])
_SAMPLES = msgspec.msgpack.Decoder(list[tuple[Saved, bytes]])
_PLACE, _VIEW = b"epidemic contact\0", b"epidemic exchange\0"


@dataclass(frozen=True)
class Contact:
    """Where a place is."""

    node_id: int
    address: str
    since: int
    name: str  # of its certificate ...
    expires: float  # ... and when that ends, in seconds
    raw: bytes


def seal_contact(identity: Identity, address: str, since: int) -> bytes:
    """What a node says of where it is."""
    content = msgspec.msgpack.encode(_Contact(identity.node_id, address, since, identity.encoded))
    return msgspec.msgpack.encode(_SignedContact(content, identity.key.sign(_PLACE + content)))


class Book:
    """The contacts that a process has: of those in its view, and of few others. Asked by all threads."""

    def __init__(self, identity: Identity, own: bytes, nodes: int, most: int = MOST_ENTRIES) -> None:
        """`own`: what this node says of where it is; `most`: entries of an exchange that may come."""
        self._identity = identity
        self.own = own
        self._nodes = nodes
        self._most = most
        self._address = _CONTACTS.decode(_SIGNED.decode(own).content).address
        self.local = is_loopback(self._address)  # whether all nodes are on this machine
        self.pinned: Callable[[], Iterable[int]] = tuple  # the places whose contacts must be kept
        self._known: OrderedDict[int, Contact] = OrderedDict()  # by place, the last used last
        self._checked: OrderedDict[bytes, Contact] = OrderedDict()
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter()

    def learn(self, raw: bytes) -> Contact:
        """Keep a contact, unless a newer one of its place is known; raises Refused if it is not in order."""
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
        """Whether its certificate is still good."""
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
        if self._leads_here(said):  # nobody makes others knock at their own doors
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
        """Whether an address is one of this node's own machine: loopback (unless all nodes are there), any at all, or this node's own. Names are resolved by whoever connects."""
        own = said.node_id != self._identity.node_id and same_address(said.address, self._address)
        return own or is_anywhere(said.address) or (is_loopback(said.address) and not self.local)

    def _forget(self) -> None:
        """Nobody keeps a list of everybody."""
        pinned = set(self.pinned())
        with self._lock:
            spare = [node_id for node_id in self._known if node_id not in pinned]
            for node_id in spare[: max(0, len(spare) - SPARE)]:
                del self._known[node_id]

    def get(self, node_id: int) -> Contact | None:
        """Where a place is, if that is known and its certificate still counts."""
        with self._lock:
            found = self._known.get(node_id)
        return found if found is not None and self._counts(found) else None

    def refuse(self, reason: str) -> None:
        """Count what is not in order."""
        with self._lock:
            self._refused[reason] += 1

    @property
    def refused(self) -> Counter[str]:
        """What was not in order, by reason."""
        with self._lock:
            return Counter(self._refused)

    # -- what is kept over a restart ----------------------------------------------------------------------------------

    def saved(self, entries: Iterable[Entry]) -> bytes:
        """A view with its contacts, for a checkpoint."""
        kept = [(entry, found.raw) for entry in entries if (found := self.get(entry[0])) is not None]
        return msgspec.msgpack.encode(kept)

    def restored(self, raw: bytes) -> list[Entry]:
        """A view from a checkpoint, but for contacts that count no more."""
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
        """A sample from a checkpoint, but for contacts that count no more."""
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
        """An exchange on its way; entries whose contacts are not known are left out."""
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
        """Who sends an exchange to this receiver, and which entries; those whose contacts are not in order are left out and counted."""
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
                if refusal.reason == "revoked":  # the list may not have reached everybody yet
                    continue
                break  # no honest node passes such a one on, so the rest is not worth the time that checking it takes
            found.append((node_id, age))
        return said.sender, tuple(found)
