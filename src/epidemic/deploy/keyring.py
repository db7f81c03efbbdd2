"""The keyring: certified keys of the peers, learnt from their handshakes. Thread-safe.

Anybody can record handshakes and replay them. While the network shows the start that a node was introduced with, only another start that the network
also shows replaces it: an old handshake changes neither a key nor a carrier.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from epidemic.core.errors import plain
from epidemic.deploy.agreement import Agreement, differences
from epidemic.deploy.contacts import Book
from epidemic.deploy.handshake import Handshake, OpenedHandshake, open_handshakes
from epidemic.deploy.keys import Identity
from epidemic.deploy.wire import Refused
from epidemic.protocol.events import Introduced
from epidemic.protocol.membership import MOST_TOKENS


class Keyring:
    """The keys and carriers of peers, as their certificates state them."""

    def __init__(self, identity: Identity, agreement: Agreement, nodes: int, book: Book | None = None) -> None:
        """Start empty; `book` collects the contacts of peers, if nodes know only some of them."""
        self._identity = identity
        self._book = book
        self._agreement = agreement
        self.run = agreement.run
        self._nodes = nodes
        self._known: dict[int, OpenedHandshake] = {}
        self._tokens: dict[int, set[str]] = {}  # tokens shown by the network, by carrier
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter()

    def shown(self, carrier: int, token: str, there: bool) -> None:
        """Note that the network shows, or no longer shows, the token of a carrier."""
        with self._lock:
            tokens = self._tokens.setdefault(carrier, set())
            if not there:
                tokens.discard(token)
            elif len(tokens) < MOST_TOKENS:
                tokens.add(token)

    def present(self) -> list[int]:
        """The carriers that the network shows."""
        with self._lock:
            return sorted(carrier for carrier, tokens in self._tokens.items() if tokens)

    def introduce(self, raw: bytes) -> list[Introduced]:
        """Check the handshakes of a process, and return those that count as events."""
        found, refused = open_handshakes(raw, self._identity, self._nodes)
        heard = []
        with self._lock:
            self._refused.update(refused)
            for known in found:
                if not self._placed(known.handshake):
                    continue
                differs = self._differs(known)
                if differs:
                    self._refused["wrong-run"] += 1
                elif known.handshake.node_id < self._nodes and self._counts(known.handshake):
                    self._known[known.handshake.node_id] = known
                heard.append(known.handshake.introduced(differs))
        return heard

    def _placed(self, handshake: Handshake) -> bool:
        """Whether a handshake has a valid contact, if one is needed."""
        if self._book is None:
            return True
        try:
            if self._book.learn(handshake.contact).node_id == handshake.node_id:
                return True
            self._refused["wrong-signature"] += 1
        except Refused as refusal:
            self._refused[refusal.reason] += 1
        return False

    def _counts(self, handshake: Handshake) -> bool:
        """Whether a handshake may replace what is known: not an old one while another start is shown."""
        before = self._known.get(handshake.node_id)
        if before is None or before.handshake.token == handshake.token:
            return True
        return self._is_shown(handshake) or not self._is_shown(before.handshake)

    def _is_shown(self, handshake: Handshake) -> bool:
        return handshake.token in self._tokens.get(handshake.carrier, ())

    def _differs(self, known: OpenedHandshake) -> tuple[str, ...]:
        if known.handshake.run == self.run:
            return ()
        told = differences(self._agreement, known.agreement) if known.agreement is not None else []
        return tuple(plain(text, 240) for text in told[:4]) or ("the run differs",)

    def key_of(self, node_id: int) -> Ed25519PublicKey | None:
        """The certified key of a node; None if it is unknown. Raises Refused if it is revoked or expired."""
        with self._lock:
            known = self._known.get(node_id)
        if known is None:
            return None
        if self._is_void(known, dt.datetime.now(dt.UTC)):
            raise Refused("revoked")
        return known.key

    def carrier_of(self, node_id: int) -> int:
        """The node whose connection carries this node's messages."""
        with self._lock:
            known = self._known.get(node_id)
        return node_id if known is None else known.handshake.carrier

    def knows(self, node_id: int) -> bool:
        """Whether a node has introduced itself."""
        with self._lock:
            return node_id in self._known

    def carried(self, carrier: int) -> int:
        """How many certified nodes a connection carries."""
        with self._lock:
            return sum(known.handshake.carrier == carrier for known in self._known.values())

    def _is_void(self, known: OpenedHandshake, now: dt.datetime) -> bool:
        return known.name in self._identity.revoked.names or known.expires < now

    def void(self, now: dt.datetime) -> frozenset[int]:
        """The nodes whose certificates are no longer valid."""
        with self._lock:
            return frozenset(node_id for node_id, known in self._known.items() if self._is_void(known, now))

    @property
    def refused(self) -> Counter[str]:
        """Refused handshakes by reason."""
        with self._lock:
            return Counter(self._refused)
