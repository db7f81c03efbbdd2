"""Handshakes: how nodes introduce themselves, one signed handshake per node of a process, with what they must agree on."""

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
"""Most bytes of the handshakes of one process."""
LARGEST_HANDSHAKE = 2**12
LARGEST_AGREEMENT = 2**16
_DOMAIN = b"epidemic hello\0"


class Handshake(msgspec.Struct, frozen=True, array_like=True):
    """What a node says of itself to its peers."""

    node_id: int
    carrier: int  # the node whose connection carries its messages
    token: str
    certificate: bytes
    run: bytes  # 16 bytes that identify the run
    round: int  # its current round; -1: not begun
    start: int  # the first round that it takes part in
    finished: bool
    gone: bool
    contact: bytes = b""  # its signed address, if nodes know only some of the others
    commitment: bytes = b""  # with a committed coin, the end of its hash chain

    def introduced(self, differs: tuple[str, ...] = ()) -> Introduced:
        """The handshake as an event for the protocol."""
        return Introduced(
            self.node_id, self.carrier, self.token, self.round, self.start, differs, self.finished, self.gone, self.commitment
        )  # fmt: skip


class _SignedHandshake(msgspec.Struct, frozen=True, array_like=True):
    content: bytes
    signature: bytes


class _Bundle(msgspec.Struct, frozen=True, array_like=True):
    handshakes: list[_SignedHandshake]
    agreement: bytes  # JSON, for messages to people; trusted only if it matches a signed `run`


def seal_handshakes(handshakes: Iterable[tuple[Handshake, Identity]], agreement: Agreement) -> bytes:
    """The handshakes of a process, each signed by its own node."""
    signed = []
    for handshake, identity in handshakes:
        content = msgspec.msgpack.encode(handshake)
        signed.append(_SignedHandshake(content, identity.key.sign(_DOMAIN + content)))
    return msgspec.msgpack.encode(_Bundle(signed, msgspec.json.encode(agreement)))


# Created here, in one thread: msgspec analyses a type on first use, and crashes if two threads do so at once.
_BUNDLES, _HANDSHAKES = msgspec.msgpack.Decoder(_Bundle), msgspec.msgpack.Decoder(Handshake)
_TERMS = msgspec.json.Decoder(Agreement)


class OpenedHandshake(msgspec.Struct, frozen=True):
    """A valid handshake, with what its certificate says."""

    handshake: Handshake
    name: str
    key: Ed25519PublicKey
    expires: dt.datetime
    agreement: Agreement | None  # None: it does not match the run named in the handshake


def open_handshakes(raw: bytes, identity: Identity, nodes: int) -> tuple[list[OpenedHandshake], list[str]]:
    """Read handshakes up to the first invalid one: (valid handshakes, problems).

    A node carried by another process counts only together with the handshake of that process's carrier. Otherwise a member could speak for a process that
    has not introduced itself, and which nobody would then greet.
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
            # No honest process sends such a handshake, so the rest is not worth checking.
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
    if node_id_of(name) != handshake.node_id:  # a member that poses as another one
        raise Refused("wrong-signature")
    if len(handshake.token) > 64 or len(handshake.run) != 16 or len(handshake.commitment) > LINK_BYTES:
        raise Refused("malformed")
    return OpenedHandshake(handshake, name, key, expires, agreement if run == handshake.run else None)
