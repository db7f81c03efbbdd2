"""Peers: who the others are, whether they are there, and whether they do the same. No socket.

Nodes introduce themselves by a signed hello with their certificate and their terms. A peer is alive while the network shows a token of
the start that its hello was of; after a restart it has to introduce itself again.

Whose letters are waited for: of those alive, who takes part in the round (`start`), and knew of this node before it (who had begun when
they met may have sent its letters for that round and the next before); but nobody who has let this node wait in vain three times in a
row, until it is heard again.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from epidemic.net.keys import Identity, place_of
from epidemic.net.terms import Terms, differences
from epidemic.net.wire import Refused

LARGEST_HELLO = 2**18
LOOK_AGAIN = 5.0
"""Seconds after which it is looked whether certificates have expired."""
MOST_MISSED = 3
"""Who was waited for in vain so often in a row is not waited for until it is heard again."""


class Hello(msgspec.Struct, frozen=True):
    """How a node introduces itself."""

    place: int
    token: str
    certificate: bytes
    terms: Terms
    round: int  # the round that it is in; -1: not begun
    start: int  # the round that it takes part from


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    content: bytes
    signature: bytes


def seal_hello(hello: Hello, identity: Identity) -> bytes:
    """A hello, signed."""
    content = msgspec.msgpack.encode(hello)
    return msgspec.msgpack.encode(_Signed(content, identity.key.sign(b"epidemic hello\0" + content)))


def open_hello(raw: bytes, identity: Identity) -> tuple[Hello, str, Ed25519PublicKey, dt.datetime]:
    """The hello in these bytes, and the name, key and end of the certificate of who says it; raises Refused."""
    if len(raw) > LARGEST_HELLO:
        raise Refused("oversized")
    try:
        signed = msgspec.msgpack.decode(raw, type=_Signed)
        hello = msgspec.msgpack.decode(signed.content, type=Hello)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise Refused("malformed") from None
    name, key, expires = identity.recognise(hello.certificate)
    try:
        key.verify(signed.signature, b"epidemic hello\0" + signed.content)
    except InvalidSignature:
        raise Refused("wrong-signature") from None
    if place_of(name) != hello.place:  # a member that gives itself out as another one
        raise Refused("wrong-signature")
    return hello, name, key, expires


@dataclass
class _Peer:
    token: str
    name: str
    key: Ed25519PublicKey
    expires: dt.datetime
    round: int  # the furthest that it was seen in
    since: int | None  # the first round in which its letters can be expected; None: it has not said
    begun: bool  # whether it had begun when it introduced itself
    missed: int = 0  # how often it was waited for in vain since it was heard last


class Peers:
    """The other nodes, as one of them sees them."""

    def __init__(self, identity: Identity, terms: Terms, place: int, nodes: int) -> None:
        self._identity = identity
        self._terms = terms
        self._place = place
        self._nodes = nodes
        self._tokens: dict[int, set[str]] = {}
        self._peers: dict[int, _Peer] = {}
        self.differing: dict[int, list[str]] = {}  # what keeps others apart from this one
        self.tally: Counter[str] = Counter()  # hellos that were refused, by reason
        self._alive: frozenset[int] | None = None  # worked out, until something changes
        self._looked = 0.0

    def present(self, place: int, token: str, there: bool) -> None:
        """The network shows, or no longer shows, a token."""
        self._alive = None
        if place != self._place and 0 <= place < self._nodes:
            tokens = self._tokens.setdefault(place, set())
            if not there:
                tokens.discard(token)
            elif len(tokens) < 16:
                tokens.add(token)

    def strangers(self) -> list[int]:
        """Places where somebody is who has not been introduced."""
        known = self.alive | {p for p in self.differing if self._tokens.get(p)}
        return [place for place, tokens in sorted(self._tokens.items()) if tokens and place not in known]

    def learn(self, raw: bytes, here: int = -1) -> Hello | None:
        """Listen to a hello, in round `here`; None, and counted, if it is not in order."""
        try:
            hello, name, key, expires = open_hello(raw, self._identity)
            if not 0 <= hello.place < self._nodes or hello.place == self._place:
                raise Refused("unknown-sender")
            if hello.place in self.alive and hello.token not in self._tokens.get(hello.place, ()):
                raise Refused("unknown-sender")  # an old one, said again by somebody else
            try:
                different = differences(self._terms, hello.terms)
                other_run = hello.terms.run != self._terms.run
            except (TypeError, ValueError, RecursionError, OverflowError):
                raise Refused("malformed") from None
        except Refused as refusal:
            self.tally[refusal.reason] += 1
            return None
        self._alive = None
        if different or other_run:
            self.tally["wrong-run"] += 1
            self.differing[hello.place] = different or ["the run differs"]
            self._peers.pop(hello.place, None)
            return None
        self.differing.pop(hello.place, None)
        before = self._peers.get(hello.place)
        if before is not None and before.token == hello.token:
            before.since = max(before.since or 0, hello.start)
            before.round = max(before.round, hello.round)
        else:
            begun = hello.round >= 0
            late = here > hello.start and not begun  # it will say from when it takes part
            since = None if late else max(hello.start, hello.round + 2 if begun else 0)
            self._peers[hello.place] = _Peer(hello.token, name, key, expires, hello.round, since, begun)
        return hello

    @property
    def alive(self) -> frozenset[int]:
        """Who is there and does the same."""
        now = time.monotonic()
        if self._alive is None or now - self._looked > LOOK_AGAIN:  # certificates expire
            self._alive, self._looked = self._who_is_alive(), now
        return self._alive

    def revocations_changed(self) -> None:
        """Look at everybody's certificate again."""
        self._alive = None

    def _who_is_alive(self) -> frozenset[int]:
        return frozenset(
            place
            for place, peer in self._peers.items()
            if peer.token in self._tokens.get(place, ()) and not self._void(peer)
        )

    def _void(self, peer: _Peer) -> bool:
        """Whether its certificate counts no more."""
        return peer.name in self._identity.revoked.names or peer.expires < dt.datetime.now(dt.UTC)

    def expected(self, round: int) -> frozenset[int]:
        """Who is alive and can be expected to send its letters of this round."""
        peers = ((place, self._peers[place]) for place in self.alive)
        return frozenset(
            place
            for place, peer in peers
            if peer.since is not None and peer.since <= round and peer.missed < MOST_MISSED
        )

    def missed(self, places: Iterable[int]) -> None:
        """These were waited for in vain."""
        for place in places:
            if place in self._peers:
                self._peers[place].missed += 1

    @property
    def learning(self) -> list[int]:
        """Who is alive and has begun."""
        return sorted(place for place in self.alive if self._peers[place].round >= 0)

    @property
    def began_without_us(self) -> bool:
        """Whether somebody had begun before knowing of this node."""
        return any(self._peers[place].begun for place in self.alive)

    def heard_of(self, place: int, round: int) -> None:
        """A peer was seen to be in this round."""
        if place in self._peers:
            self._peers[place].round = max(round, self._peers[place].round)
            self._peers[place].missed = 0
            if self._peers[place].since is None:
                self._peers[place].since = round

    @property
    def front(self) -> int:
        """The furthest round of anybody alive, as far as is known; -1: nobody has begun."""
        return max((self._peers[place].round for place in self.alive), default=-1)

    def key_of(self, place: int) -> Ed25519PublicKey | None:
        """The certified key of a peer, for letters."""
        peer = self._peers.get(place)
        if peer is None:
            return None
        if self._void(peer):
            raise Refused("revoked")
        return peer.key
