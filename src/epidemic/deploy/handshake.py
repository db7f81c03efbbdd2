"""How nodes introduce themselves: signed handshakes, one for each place of a process, with what they must have in common."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from epidemic.deploy.agreement import Agreement
from epidemic.deploy.keys import Identity, node_id_of
from epidemic.deploy.wire import Refused
from epidemic.protocol.commitment import LINK_BYTES
from epidemic.protocol.events import Introduced

LARGEST_BUNDLE = 2**20
"""Bytes of the hellos of one process."""
LARGEST_HANDSHAKE = 2**12
LARGEST_AGREEMENT = 2**16
_DOMAIN = b"epidemic hello\0"


class Handshake(msgspec.Struct, frozen=True, array_like=True):
    """How a node introduces itself."""

    node_id: int
    carrier: int  # the place whose connection carries its messages
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
            self.node_id, self.carrier, self.token, self.round, self.start, differs, self.finished, self.gone, self.commitment
        )  # fmt: skip


class _SignedHandshake(msgspec.Struct, frozen=True, array_like=True):
    content: bytes
    signature: bytes


class _Bundle(msgspec.Struct, frozen=True, array_like=True):
    handshakes: list[_SignedHandshake]
    agreement: bytes  # JSON; told for people, believed only as far as it agrees with a signed `run`


def seal_handshakes(handshakes: Iterable[tuple[Handshake, Identity]], agreement: Agreement) -> bytes:
    """The hellos of a process, each signed by its own node."""
    signed = []
    for handshake, identity in handshakes:
        content = msgspec.msgpack.encode(handshake)
        signed.append(_SignedHandshake(content, identity.key.sign(_DOMAIN + content)))
    return msgspec.msgpack.encode(_Bundle(signed, msgspec.json.encode(agreement)))


# Made here, in one thread: msgspec learns a type when it is first asked for, and crashes where two threads ask at the same moment.
_BUNDLES, _HANDSHAKES = msgspec.msgpack.Decoder(_Bundle), msgspec.msgpack.Decoder(Handshake)
_TERMS = msgspec.json.Decoder(Agreement)


class OpenedHandshake(msgspec.Struct, frozen=True):
    """A hello that is in order, and what its certificate says."""

    handshake: Handshake
    name: str
    key: Ed25519PublicKey
    expires: dt.datetime
    agreement: Agreement | None  # None: they are not those of the run that it names


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
    if len(bundle.handshakes) > nodes or len(bundle.agreement) > LARGEST_AGREEMENT:
        return [], ["oversized"]
    try:
        agreement = _TERMS.decode(bundle.agreement)
        run = agreement.run
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError):
        agreement, run = None, b""
    found = []
    for signed in bundle.handshakes:
        try:
            found.append(_open(signed, identity, agreement, run))
        except Refused as refusal:
            # No honest process sends such a one, so the rest is not worth the time that checking it takes.
            refused.append(refusal.reason)
            break
    carriers = {
        (known.handshake.node_id, known.handshake.token)
        for known in found
        if known.handshake.carrier == known.handshake.node_id
    }
    vouched = [known for known in found if (known.handshake.carrier, known.handshake.token) in carriers]
    return vouched, refused + ["wrong-link"] * (len(found) - len(vouched))


def _open(signed: _SignedHandshake, identity: Identity, agreement: Agreement | None, run: bytes) -> OpenedHandshake:
    if len(signed.content) > LARGEST_HANDSHAKE:
        raise Refused("oversized")
    try:
        handshake = _HANDSHAKES.decode(signed.content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise Refused("malformed") from None
    name, key, expires = identity.recognise(handshake.certificate)
    try:
        key.verify(signed.signature, _DOMAIN + signed.content)
    except InvalidSignature:
        raise Refused("wrong-signature") from None
    if node_id_of(name) != handshake.node_id:  # a member that gives itself out as another one
        raise Refused("wrong-signature")
    if len(handshake.token) > 64 or len(handshake.run) != 16 or len(handshake.commitment) > LINK_BYTES:
        raise Refused("malformed")
    return OpenedHandshake(handshake, name, key, expires, agreement if run == handshake.run else None)
