"""How nodes introduce themselves: signed handshakes, one for each place of a process, with what they must have in common."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from epidemic.net.keys import Identity, place_of
from epidemic.net.terms import Terms
from epidemic.net.wire import Refused
from epidemic.protocol.commitment import LINK_BYTES
from epidemic.protocol.events import Introduced

LARGEST_BUNDLE = 2**20
"""Bytes of the hellos of one process."""
LARGEST_HELLO = 2**12
LARGEST_TERMS = 2**16
_DOMAIN = b"epidemic hello\0"


class Handshake(msgspec.Struct, frozen=True, array_like=True):
    """How a node introduces itself."""

    place: int
    carrier: int  # the place whose connection carries its letters
    token: str
    certificate: bytes
    run: bytes  # 16 bytes that name what it learns
    round: int  # the round that it is in; -1: not begun
    start: int  # the round that it takes part from
    finished: bool
    gone: bool
    contact: bytes = b""  # where it is, signed, where not everybody knows everybody
    commitment: bytes = b""  # with a committed coin, the end of its hash chain

    def introduced(self, differs: tuple[str, ...] = ()) -> Introduced:
        """What the protocol is told of it."""
        return Introduced(
            self.place, self.carrier, self.token, self.round, self.start, differs, self.finished, self.gone, self.commitment
        )  # fmt: skip


class _SignedHandshake(msgspec.Struct, frozen=True, array_like=True):
    content: bytes
    signature: bytes


class _Bundle(msgspec.Struct, frozen=True, array_like=True):
    hellos: list[_SignedHandshake]
    terms: bytes  # JSON; told for people, believed only as far as it agrees with a signed `run`


def seal_handshakes(hellos: Iterable[tuple[Handshake, Identity]], terms: Terms) -> bytes:
    """The hellos of a process, each signed by its own node."""
    signed = []
    for hello, identity in hellos:
        content = msgspec.msgpack.encode(hello)
        signed.append(_SignedHandshake(content, identity.key.sign(_DOMAIN + content)))
    return msgspec.msgpack.encode(_Bundle(signed, msgspec.json.encode(terms)))


# Made here, in one thread: msgspec learns a type when it is first asked for, and crashes where two threads ask at the same moment.
_BUNDLES, _HELLOS = msgspec.msgpack.Decoder(_Bundle), msgspec.msgpack.Decoder(Handshake)
_TERMS = msgspec.json.Decoder(Terms)


class OpenedHandshake(msgspec.Struct, frozen=True):
    """A hello that is in order, and what its certificate says."""

    hello: Handshake
    name: str
    key: Ed25519PublicKey
    expires: dt.datetime
    terms: Terms | None  # None: they are not those of the run that it names


def open_handshakes(raw: bytes, identity: Identity, nodes: int) -> tuple[list[OpenedHandshake], list[str]]:
    """The hellos in these bytes up to the first that is not in order, and why it is not.

    Who is carried by another process counts only beside the hello of that process's carrier: otherwise a member could speak for
    the start of a process that has not introduced itself, which nobody would then greet.
    """
    refused: list[str] = []
    if len(raw) > LARGEST_BUNDLE:
        return [], ["oversized"]
    try:
        bundle = _BUNDLES.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return [], ["malformed"]
    if len(bundle.hellos) > nodes or len(bundle.terms) > LARGEST_TERMS:
        return [], ["oversized"]
    try:
        terms = _TERMS.decode(bundle.terms)
        run = terms.run
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError):
        terms, run = None, b""
    found = []
    for signed in bundle.hellos:
        try:
            found.append(_open(signed, identity, terms, run))
        except Refused as refusal:
            # No honest process sends such a one, so the rest is not worth the time that checking it takes.
            refused.append(refusal.reason)
            break
    carriers = {(known.hello.place, known.hello.token) for known in found if known.hello.carrier == known.hello.place}
    vouched = [known for known in found if (known.hello.carrier, known.hello.token) in carriers]
    return vouched, refused + ["wrong-link"] * (len(found) - len(vouched))


def _open(signed: _SignedHandshake, identity: Identity, terms: Terms | None, run: bytes) -> OpenedHandshake:
    if len(signed.content) > LARGEST_HELLO:
        raise Refused("oversized")
    try:
        hello = _HELLOS.decode(signed.content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise Refused("malformed") from None
    name, key, expires = identity.recognise(hello.certificate)
    try:
        key.verify(signed.signature, _DOMAIN + signed.content)
    except InvalidSignature:
        raise Refused("wrong-signature") from None
    if place_of(name) != hello.place:  # a member that gives itself out as another one
        raise Refused("wrong-signature")
    if len(hello.token) > 64 or len(hello.run) != 16 or len(hello.commitment) > LINK_BYTES:
        raise Refused("malformed")
    return OpenedHandshake(hello, name, key, expires, terms if run == hello.run else None)
