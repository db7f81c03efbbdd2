"""Keys: a private authority, one certificate per node, and the list of revoked certificates.

    DIR/authority/   authority.key (keep it away from the nodes), authority.pem, issued.json, revoked.json
    DIR/node-I/      authority.pem, node.key, node.pem, revoked.json     what node I needs, and nothing else
    DIR/observer/    the same for somebody who asks nodes for their status; a relay has such a folder, too

A certificate's name tells the node id of its holder: node-3, and node-3.1 for the next certificate of the same node. Names are never reused, so a name
is enough to revoke. Keys are Ed25519; secret files have mode 0600.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from epidemic.core.errors import BadInput, require_int
from epidemic.core.files import full_disk, write_bytes
from epidemic.deploy.wire import Refused

T = TypeVar("T")

DAYS = 365
"""Default validity of a node's certificate; the authority's own is valid for ten years."""
MOST_GENERATIONS = 10
"""How many certificates a node may get, one after the other."""

_NAME = re.compile(r"(node|relay|observer)-?(\d{1,9})?(?:\.(\d))?")


class Issued(msgspec.Struct, frozen=True):
    """A certificate issued by the authority."""

    name: str
    hosts: list[str]
    expires: str  # ISO date and time, UTC


class Revocations(msgspec.Struct, frozen=True):
    """The revoked names, signed by the authority; a later list has a higher number."""

    number: int
    names: list[str]
    signature: str = ""

    def signed_bytes(self) -> bytes:
        """The bytes that are signed."""
        return b"epidemic revocations\0" + msgspec.json.encode([self.number, self.names])


def node_id_of(name: str) -> int | None:
    """The node id in a certificate's name; None if it is not a node's."""
    found = _NAME.fullmatch(name)
    return int(found[2]) if found and found[1] == "node" and found[2] else None


def names_of(nodes: int) -> list[str]:
    """All names that certificates of this many nodes may have."""
    bases = [*(f"node-{i}" for i in range(nodes)), "observer", "relay"]
    return [name + more for name in bases for more in ("", *(f".{g}" for g in range(1, MOST_GENERATIONS)))]


# -- the authority ----------------------------------------------------------------------------------------------------


class Authority:
    """Issues and revokes certificates."""

    def __init__(self, path: Path, key: Ed25519PrivateKey, certificate: x509.Certificate) -> None:
        self.path = path
        self._key = key
        self.certificate = certificate

    @staticmethod
    def create(root: Path) -> Authority:
        """Create an authority in root/authority."""
        path = root / "authority"
        if path.exists():
            raise BadInput(f"{path} exists already; choose another directory, or use 'epidemic keys add {root}'")
        key = Ed25519PrivateKey.generate()
        name = _named("epidemic authority")
        now = _now()
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))  # clocks differ
            .not_valid_after(now + dt.timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, None)
        )
        _private_directory(path)
        _write_secret(path / "authority.key", _pem(key))
        write_bytes(path / "authority.pem", certificate.public_bytes(serialization.Encoding.PEM))
        authority = Authority(path, key, certificate)
        authority._save([], Revocations(0, []))
        return authority

    @staticmethod
    def load(root: Path) -> Authority:
        """Load the authority of root/authority."""
        path = root / "authority"
        if not path.is_dir():
            raise BadInput(
                f"{root} has no authority; make one with 'epidemic keys init {root} --hosts ...', or, if 'epidemic cluster next' made"
                f" {root}, name the directory that its keys were first made in"
            )
        return Authority(path, _read_key(path / "authority.key"), _read_certificate(path / "authority.pem"))

    @property
    def issued(self) -> list[Issued]:
        """All certificates issued so far."""
        return _read_json(self.path / "issued.json", list[Issued])

    @property
    def revoked(self) -> Revocations:
        """The list of revoked names."""
        return _read_json(self.path / "revoked.json", Revocations)

    def issue(self, base: str, hosts: Sequence[str], days: int = DAYS) -> Path:
        """Write a certificate, and everything its holder needs, to root/NAME."""
        require_int("--days", days, 1, 3649)
        earlier = [i.name for i in self.issued if i.name == base or i.name.startswith(base + ".")]
        if len(earlier) >= MOST_GENERATIONS:
            raise BadInput(f"{base} has had {len(earlier)} certificates, the most there are; make a new authority")
        name = f"{base}.{len(earlier)}" if earlier else base
        key = Ed25519PrivateKey.generate()
        now = _now()
        expires = now + dt.timedelta(days=days)
        certificate = (
            x509.CertificateBuilder(
                self.certificate.subject, _named(name), key.public_key(), x509.random_serial_number()
            )
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(expires)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName([host_name(h) for h in hosts or ["localhost"]]), critical=False)
            .sign(self._key, None)
        )
        folder = self.path.parent / name
        _private_directory(folder)
        self._save([*self.issued, Issued(name, list(hosts), expires.isoformat(timespec="seconds"))], None)
        _write_secret(folder / "node.key", _pem(key))
        write_bytes(folder / "node.pem", certificate.public_bytes(serialization.Encoding.PEM))
        write_bytes(folder / "authority.pem", self.certificate.public_bytes(serialization.Encoding.PEM))
        write_bytes(folder / "revoked.json", msgspec.json.encode(self.revoked))
        return folder

    def revoke(self, name: str) -> Revocations:
        """Revoke a certificate. The new list is written to every folder here and must be copied to every node."""
        known = [i.name for i in self.issued]
        if name not in known:
            raise BadInput(f"{name} was never issued; known: {', '.join(known)}")
        before = self.revoked
        if name in before.names:
            raise BadInput(f"{name} is revoked already")
        after = Revocations(before.number + 1, [*before.names, name])
        self._save(None, after)
        for folder in self.path.parent.iterdir():
            if (folder / "node.pem").is_file():
                write_bytes(folder / "revoked.json", msgspec.json.encode(self.revoked))
        return self.revoked

    def _save(self, issued: list[Issued] | None, revoked: Revocations | None) -> None:
        if revoked is not None:
            signed = msgspec.structs.replace(revoked, signature=self._key.sign(revoked.signed_bytes()).hex())
            write_bytes(self.path / "revoked.json", msgspec.json.encode(signed))
        if issued is not None:
            write_bytes(self.path / "issued.json", msgspec.json.format(msgspec.json.encode(issued), indent=1))


# -- a holder ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refreshed:
    """The result of rereading the list of revocations."""

    changed: bool  # another list is in force
    problem: str = ""  # why it cannot be read now, perhaps because it is being copied; the last list stays in force


@dataclass
class Identity:
    """A certificate with its key, the authority's certificate, and the revoked names."""

    folder: Path
    name: str
    key: Ed25519PrivateKey
    certificate: x509.Certificate
    authority: x509.Certificate
    revoked: Revocations
    _read: tuple[int, ...] = field(default=(), repr=False)  # state of the file when it was read

    @staticmethod
    def load(folder: Path) -> Identity:
        """Read and check a folder's identity; raises BadInput with one line."""
        if not folder.is_dir():
            raise BadInput(f"{folder} is not a directory; give the folder of a node, made by 'epidemic cluster init'")
        authority = _read_certificate(folder / "authority.pem")
        certificate = _read_certificate(folder / "node.pem")
        key = _read_key(folder / "node.key")
        path = folder / "node.pem"
        if key.public_key() != certificate.public_key():
            raise BadInput(f"{folder / 'node.key'} does not belong to {path}; copy the folder again")
        if not _issued_by(certificate, authority):
            raise BadInput(f"{path} was not issued by {folder / 'authority.pem'}; copy the folder again")
        expires = certificate.not_valid_after_utc
        if expires < _now():
            raise BadInput(f"{path} expired on {expires:%Y-%m-%d}; issue a new one with 'epidemic keys add'")
        if certificate.not_valid_before_utc > _now():
            raise BadInput(
                f"{path} is good only from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on; set this machine's clock"
            )
        found = Identity(folder, _common_name(certificate), key, certificate, authority, Revocations(0, []))
        problem = found.refresh().problem
        if problem:
            raise BadInput(f"{problem}; copy the folder again")
        if found.name in found.revoked.names:
            raise BadInput(f"{path} ({found.name}) was revoked; issue a new one with 'epidemic keys add'")
        return found

    @property
    def node_id(self) -> int:
        """The node id in the certificate."""
        node_id = node_id_of(self.name)
        if node_id is None:
            raise BadInput(f"{self.folder / 'node.pem'} is the certificate of {self.name}, not of a node")
        return node_id

    @property
    def cluster(self) -> str:
        """16 hex digits that identify the authority."""
        return hashlib.sha256(self.authority.public_bytes(serialization.Encoding.DER)).hexdigest()[:16]

    @property
    def encoded(self) -> bytes:
        """The certificate as it is sent to peers."""
        return self.certificate.public_bytes(serialization.Encoding.DER)

    def refresh(self) -> Refreshed:
        """Read the list of revocations again if its file has changed. Never raises: a half-copied list stops no node."""
        path = self.folder / "revoked.json"
        try:
            seen = path.stat()
            state = (seen.st_mtime_ns, seen.st_size, seen.st_ino)
            if state == self._read:
                return Refreshed(False)
            found = _read_json(path, Revocations)
            key = self.authority.public_key()
            assert isinstance(key, Ed25519PublicKey)
            key.verify(bytes.fromhex(found.signature), found.signed_bytes())
        except OSError as problem:
            return Refreshed(False, f"{path} cannot be read: {problem.strerror}")
        except BadInput as problem:
            return Refreshed(False, str(problem))
        except (InvalidSignature, ValueError):
            return Refreshed(False, f"{path} is not signed by the authority")
        self._read = state
        if found.number < self.revoked.number:  # an older list, put back by mistake or by a revoked node
            return Refreshed(False)
        changed = found != self.revoked
        self.revoked = found
        return Refreshed(changed)

    def told(self, raw: bytes) -> bool:
        """Write a list of revocations received from a peer to the folder, if the authority signed it and it is newer; `refresh` then reads it.

        Returns:
            Whether it was written.
        """
        try:
            found = msgspec.json.decode(raw, type=Revocations)
            key = self.authority.public_key()
            assert isinstance(key, Ed25519PublicKey)
            key.verify(bytes.fromhex(found.signature), found.signed_bytes())
        except (msgspec.MsgspecError, InvalidSignature, ValueError, RecursionError):
            return False
        if found.number <= self.revoked.number:
            return False
        write_bytes(self.folder / "revoked.json", msgspec.json.encode(found))
        return True

    def recognise(self, encoded: bytes, now: dt.datetime | None = None) -> tuple[str, Ed25519PublicKey, dt.datetime]:
        """The (name, key, expiry) of a peer's certificate; raises Refused."""
        try:
            certificate = x509.load_der_x509_certificate(encoded)
            name, key = _common_name(certificate), certificate.public_key()
        except (ValueError, TypeError, BadInput, UnsupportedAlgorithm, x509.InvalidVersion):
            raise Refused("malformed") from None
        if not _issued_by(certificate, self.authority) or not isinstance(key, Ed25519PublicKey):
            raise Refused("unknown-sender")
        if name in self.revoked.names or certificate.not_valid_after_utc < (now or _now()):
            raise Refused("revoked")
        return name, key, certificate.not_valid_after_utc

    def still_good(self, now: dt.datetime | None = None) -> None:
        """Raise BadInput if this certificate is revoked or expired, by the last list read and the clock."""
        if self.name in self.revoked.names:
            raise BadInput(f"the certificate here ({self.name}) was revoked; issue a new one with 'epidemic keys add'")
        if self.certificate.not_valid_after_utc < (now or _now()):
            raise BadInput(f"the certificate here ({self.name}) has expired; issue a new one with 'epidemic keys add'")


HELD = ("authority.pem", "node.pem", "node.key", "revoked.json")
"""The files of an identity."""


def certificate_name(folder: Path) -> str:
    """The name in a folder's certificate, valid or not."""
    return _common_name(_read_certificate(folder / "node.pem"))


def copy_identity(folder: Path, target: Path, revoked: bytes) -> None:
    """Make a folder with the key and certificates of another one, and this list of revocations."""
    _private_directory(target)
    _write_secret(target / "node.key", _read(folder / "node.key"))
    for name in ("authority.pem", "node.pem"):
        write_bytes(target / name, _read(folder / name))
    write_bytes(target / "revoked.json", revoked)


def newest_revocations(lists: Sequence[Path], authority: Path) -> tuple[Revocations, bytes]:
    """The latest list of revocations signed by the authority, and the bytes of its file."""
    key = _read_certificate(authority).public_key()
    assert isinstance(key, Ed25519PublicKey)
    found: tuple[Revocations, bytes] | None = None
    for path in lists:
        listed, content = _read_json(path, Revocations), _read(path)
        try:
            key.verify(bytes.fromhex(listed.signature), listed.signed_bytes())
        except (InvalidSignature, ValueError):
            raise BadInput(f"{path} is not signed by the authority of {authority}; copy it again") from None
        if found is None or listed.number > found[0].number:
            found = listed, content
    assert found is not None
    return found


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    with suppress(InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        certificate.verify_directly_issued_by(authority)
        return True
    return False


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _common_name(certificate: x509.Certificate) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1 or not isinstance(names[0].value, str):
        raise BadInput("a certificate without a name")
    return names[0].value


def host_name(host: str) -> x509.GeneralName:
    """A host in the form of a certificate."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise BadInput(f"{host!r} is not the name or address of a host") from None


# -- files ------------------------------------------------------------------------------------------------------------


def _pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _private_directory(path: Path) -> None:
    with full_disk(str(path)):
        path.mkdir(mode=0o700, parents=True)


def _write_secret(path: Path, content: bytes) -> None:
    with full_disk(str(path)), os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}") from None


def _read_key(path: Path) -> Ed25519PrivateKey:
    content = _read(path)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise BadInput(f"{path} can be read by others (mode {path.stat().st_mode & 0o777:o}); run 'chmod 600 {path}'")
    try:
        key = serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError):
        raise BadInput(f"{path} is not a private key; copy it again") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(f"{path} is not an Ed25519 key; make keys with 'epidemic keys init'")
    return key


def _read_certificate(path: Path) -> x509.Certificate:
    content = _read(path)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise BadInput(f"{path} is not a certificate; copy it again") from None


def _read_json(path: Path, kind: type[T]) -> T:
    content = _read(path)
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise BadInput(f"{path} is damaged: {problem}") from None
