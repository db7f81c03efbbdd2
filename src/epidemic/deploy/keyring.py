"""Keyring: the certified keys of the others, learnt from their hellos. Asked by all threads.

Hellos can be kept and said again by anybody. While the network shows the start that a place was introduced with, only another
start that is shown as well takes its place: an old hello changes neither a key nor a carrier.
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
    """Who the others are, as far as certificates tell."""

    def __init__(self, identity: Identity, agreement: Agreement, nodes: int, book: Book | None = None) -> None:
        """`book`: where it is written down where others are, if not everybody knows everybody."""
        self._identity = identity
        self._book = book
        self._agreement = agreement
        self.run = agreement.run
        self._nodes = nodes
        self._known: dict[int, OpenedHandshake] = {}
        self._tokens: dict[int, set[str]] = {}  # the starts that the network shows, by carrier
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter()

    def shown(self, carrier: int, token: str, there: bool) -> None:
        """The network shows, or no longer shows, the token of a carrier's start."""
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
        """Listen to the hellos of a process."""
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
        """Whether a hello says where its node is, if that must be known."""
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
        """Whether a hello may take the place of what is known: not an old one, while the other start is there."""
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
        """The certified key of a node; None if it is not known. Raises Refused if it counts no more."""
        with self._lock:
            known = self._known.get(node_id)
        if known is None:
            return None
        if self._is_void(known, dt.datetime.now(dt.UTC)):
            raise Refused("revoked")
        return known.key

    def carrier_of(self, node_id: int) -> int:
        """Over whose connection the messages of a place come."""
        with self._lock:
            known = self._known.get(node_id)
        return node_id if known is None else known.handshake.carrier

    def knows(self, node_id: int) -> bool:
        """Whether a place was introduced."""
        with self._lock:
            return node_id in self._known

    def carried(self, carrier: int) -> int:
        """How many certified nodes are behind a connection."""
        with self._lock:
            return sum(known.handshake.carrier == carrier for known in self._known.values())

    def _is_void(self, known: OpenedHandshake, now: dt.datetime) -> bool:
        return known.name in self._identity.revoked.names or known.expires < now

    def void(self, now: dt.datetime) -> frozenset[int]:
        """The places whose certificates count no more."""
        with self._lock:
            return frozenset(node_id for node_id, known in self._known.items() if self._is_void(known, now))

    @property
    def refused(self) -> Counter[str]:
        """Hellos that were refused, by reason."""
        with self._lock:
            return Counter(self._refused)
