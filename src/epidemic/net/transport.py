"""Transport: Zenoh, and nothing that decides. Letters to places, questions to places, and who is there.

Keys, below epidemic/AUTHORITY/:
    to/J/I            letters from node I to node J
    ask/TOPIC/J       questions that node J answers
    alive/J/TOKEN     node J is there; the token is another one for each start
    done/J/TOKEN      node J has finished

Every link is TLS with certificates of the private authority on both sides; there is no way around it but `insecure`, which takes
loopback addresses only. Access control by certificate name keeps out who was revoked, and hands letters for J to J alone (or to
a relay). Shared memory is off: it would carry models past the encryption.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import zenoh

from epidemic.errors import BadInput, RunFailed
from epidemic.net.keys import Identity, names_of

LEASE = 5.0
"""Seconds of silence after which a link counts as dead. A process that dies is noticed at once: its connections close."""

STUCK = 2.0
"""Seconds after which a link that takes nothing more (not even 64 kB) is closed."""

MOST_QUESTIONS = 64
"""Questions that may wait for an answer; further ones get none."""
LARGEST_QUESTION = 2**18

Presence = Callable[[int, str, bool], None]
"""A place, the token of one start of it, whether it is there."""


class Unreachable(BadInput):
    """Nobody to connect to, so far."""


class Addresses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a node listens, and whom it looks for; node.toml in its folder."""

    listen: str | None = None
    """host:port; none for a node that is reached through a relay only."""
    connect: tuple[str, ...] = ()
    """host:port of others, or of relays; one that answers is enough."""
    relay: bool = False
    """Whether it is relays that it connects to: everything then goes through them."""
    founders: tuple[int, ...] = ()
    """The places that are waited for at the start; the others may come later."""

    def __post_init__(self) -> None:
        for address in (*self.connect, *((self.listen,) if self.listen is not None else ())):
            split_address(address)
        if self.listen is None and not self.connect:
            raise BadInput("node.toml gives neither an address to listen on nor one to connect to")
        if self.relay and self.listen is not None:
            raise BadInput("node.toml: a node behind a relay (relay = true) does not listen; leave listen out")


def split_address(address: str) -> tuple[str, int]:
    """host:port, with [..] around an IPv6 address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65535 or (":" in host) != (host[:1] == "["):
        raise BadInput(f"{address!r} is not an address; use host:port, for example 10.0.0.5:7447 or [fd00::5]:7447")
    if any(c in host for c in " /?#,") or not host.strip("[]"):
        raise BadInput(f"{address!r} is not an address; {host!r} is not the name of a host")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether an address never leaves this machine."""
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def configuration(
    identity: Identity, addresses: Addresses, *, mode: str, nodes: int, largest: int, insecure: bool
) -> zenoh.Config:
    """Zenoh's settings."""
    config = zenoh.Config()

    def put(key: str, value: Any) -> None:
        config.insert_json5(key, json.dumps(value))

    protocol = "tcp" if insecure else "tls"
    if insecure:
        for address in (*addresses.connect, *((addresses.listen,) if addresses.listen else ())):
            if not is_loopback(address):
                raise BadInput(f"--insecure sends models in the clear and takes loopback addresses only, not {address}")
    put("mode", mode)
    put("listen/endpoints", [f"{protocol}/{addresses.listen}"] if addresses.listen else [])
    put("connect/endpoints", [f"{protocol}/{address}" for address in addresses.connect])
    put("connect/exit_on_failure", False)
    put("connect/timeout_ms", -1 if mode != "client" else 3_000)
    put("connect/retry", {"period_init_ms": 500, "period_max_ms": 4000, "period_increase_factor": 1.5})
    put("scouting/multicast/enabled", False)
    put("scouting/gossip/enabled", True)
    put("transport/link/protocols", [protocol])
    put("transport/shared_memory/enabled", False)
    put("transport/link/tx/lease", int(LEASE * 1000))
    put("transport/link/tx/queue/congestion_control/block/wait_before_close", int(STUCK * 1e6))
    put("transport/link/tx/queue/size/data", 16)
    put("transport/link/tx/queue/allocation/mode", "init")
    put("transport/link/rx/max_message_size", 2 * largest + 2**20)
    put("transport/unicast/max_sessions", max(1000, 4 * nodes))
    put("timestamping/enabled", False)
    if not insecure:
        own, key = (str((identity.folder / name).resolve()) for name in ("node.pem", "node.key"))
        put(
            "transport/link/tls",
            {
                "root_ca_certificate": str((identity.folder / "authority.pem").resolve()),
                "listen_certificate": own,
                "listen_private_key": key,
                "connect_certificate": own,
                "connect_private_key": key,
                "enable_mtls": True,
                "verify_name_on_connect": False,  # who somebody is, is their place in the certificate, not their host's name
                "close_link_on_expiration": True,
                "so_sndbuf": 2**22,
                "so_rcvbuf": 2**22,
            },
        )
        put("access_control", _access(identity, nodes))
    return config


def _access(identity: Identity, nodes: int) -> dict[str, Any]:
    """Who may say what: whoever is certified and not revoked.

    Letters leave towards their receiver and are taken from their sender only; a place is shown, and questions to it are answered, by its
    own node only. A relay passes everything on. An observer may ask nodes how they are, and nothing else.
    """
    prefix = f"epidemic/{identity.cluster}"
    names = [n for n in names_of(nodes) if n not in identity.revoked.names]
    everything = [
        "put", "delete", "declare_subscriber", "query", "declare_queryable", "reply", "liveliness_token",
        "liveliness_query", "declare_liveliness_subscriber",
    ]  # fmt: skip
    both = ["ingress", "egress"]

    def rule(name: str, flows: list[str], messages: list[str], *keys: str) -> dict[str, Any]:
        allowed = {"permission": "allow", "flows": flows, "messages": messages}
        return {"id": name, **allowed, "key_exprs": [f"{prefix}/{key}" for key in keys]}

    rules = [
        rule("say", ["egress"], [m for m in everything if m != "put"], "ask/**", "alive/**", "done/**", "to/**"),
        rule("ask", ["ingress"], ["query"], "ask/**"),
        rule("watch", ["ingress"], ["liveliness_query", "declare_liveliness_subscriber"], "alive/**", "done/**"),
        rule("ask-status", ["ingress"], ["query"], "ask/status/*"),
        rule("pass-on", both, everything, "ask/**", "alive/**", "done/**", "to/**"),
    ]
    subjects, policies = [], []
    for base in [*(f"node-{i}" for i in range(nodes)), "observer", "relay"]:
        known = [n for n in names if n == base or n.startswith(base + ".")]
        if not known:
            continue
        subjects.append({"id": base, "cert_common_names": known})
        if base == "relay":
            own = ["pass-on"]
        elif base == "observer":
            own = ["say", "ask-status"]
        else:
            place = base.removeprefix("node-")
            rules += [
                rule(f"to-{place}", ["egress"], ["put"], f"to/{place}/**"),
                rule(f"from-{place}", ["ingress"], ["put"], f"to/*/{place}"),
                rule(f"hear-{place}", ["ingress"], ["declare_subscriber"], f"to/{place}/*"),
                rule(f"answer-{place}", ["ingress"], ["declare_queryable", "reply"], f"ask/*/{place}"),
                rule(f"alive-{place}", ["ingress"], ["liveliness_token"], f"alive/{place}/*", f"done/{place}/*"),
            ]
            own = ["say", "ask", "watch", *(f"{what}-{place}" for what in ("to", "from", "hear", "answer", "alive"))]
        policies.append({"rules": own, "subjects": [base]})
    return {"enabled": True, "default_permission": "deny", "rules": rules, "subjects": subjects, "policies": policies}


class Transport:
    """A node's, an observer's or a relay's place in the network."""

    def __init__(
        self,
        identity: Identity,
        addresses: Addresses,
        *,
        nodes: int,
        largest: int = 2**20,
        insecure: bool = False,
        routes: bool = False,
    ) -> None:
        """Open it; `largest` is the size of the largest message in bytes. A relay routes."""
        mode = "router" if routes else "client" if addresses.relay else "peer"
        config = configuration(identity, addresses, mode=mode, nodes=nodes, largest=largest, insecure=insecure)
        if addresses.listen is not None:
            _check_free(addresses.listen)
        _enough_threads(nodes)
        zenoh.init_log_from_env_or("off")
        try:
            self._session = zenoh.open(config)
        except zenoh.ZError as problem:
            raise _worded(problem, addresses) from None
        self.token = secrets.token_hex(8)
        self._prefix = f"epidemic/{identity.cluster}"
        self._publishers: dict[int, zenoh.Publisher] = {}
        self._matched: dict[int, float] = {}  # when somebody was there to take letters for a place
        self._lock = threading.Lock()
        self._declared: list[Any] = []  # what Zenoh would drop when nobody holds it
        self._answering = ThreadPoolExecutor(4, "answer")
        self._questions = threading.Semaphore(MOST_QUESTIONS)

    # -- letters ------------------------------------------------------------------------------------------------------

    def receive(self, place: int, take: Callable[[str, bytes], None], drop: Callable[[], None], limit: int) -> None:
        """Hand every letter for `place` to `take`, with who says to have sent it; larger ones than `limit` are not even copied."""

        def arrived(sample: zenoh.Sample) -> None:
            if len(sample.payload) > limit:
                drop()
            else:
                take(str(sample.key_expr).rpartition("/")[2], sample.payload.to_bytes())

        self._declared.append(self._session.declare_subscriber(f"{self._prefix}/to/{place}/*", arrived))

    @staticmethod
    def payload(frame: bytes | bytearray) -> zenoh.ZBytes:
        """A frame, ready to be sent to several places without being copied for each."""
        return zenoh.ZBytes(frame)

    def send(self, sender: int, place: int, payload: zenoh.ZBytes) -> bool:
        """Send a letter; False if nobody is there to take it. Blocks while the link is busy."""
        with self._lock:
            publisher = self._publishers.get(place)
            if publisher is None:
                publisher = self._publishers[place] = self._session.declare_publisher(
                    f"{self._prefix}/to/{place}/{sender}", congestion_control=zenoh.CongestionControl.BLOCK
                )
        try:
            if (
                time.monotonic() - self._matched.get(place, -math.inf) > 1.0
            ):  # asking each time would take longer than sending
                status: Any = publisher.matching_status  # an object where the stubs say bool
                if not getattr(status, "matching", status):
                    return False
                self._matched[place] = time.monotonic()
            publisher.put(payload)
        except zenoh.ZError:
            return False
        return True

    # -- questions ----------------------------------------------------------------------------------------------------

    def answer(self, topic: str, place: int, reply: Callable[[bytes, Callable[[bytes], None]], None]) -> None:
        """Answer questions: `reply` is given the question and what to call with the answer, now or later."""
        key = f"{self._prefix}/ask/{topic}/{place}"

        def asked(query: zenoh.Query) -> None:
            asked_for = query.payload
            question = asked_for.to_bytes() if asked_for is not None and len(asked_for) <= LARGEST_QUESTION else b""

            def respond(content: bytes) -> None:
                try:
                    query.reply(key, content)
                except zenoh.ZError:
                    pass  # who asked has gone
                finally:
                    query.drop()  # type: ignore[no-untyped-call]

            def work() -> None:
                try:
                    reply(question, respond)
                finally:
                    self._questions.release()

            if not self._questions.acquire(blocking=False):  # somebody asks more than can be answered
                query.drop()  # type: ignore[no-untyped-call]
                return
            try:
                self._answering.submit(work)
            except RuntimeError:  # it is closing
                self._questions.release()
                query.drop()  # type: ignore[no-untyped-call]

        self._declared.append(self._session.declare_queryable(key, asked))

    def ask(self, topic: str, place: int | None, question: bytes, timeout: float) -> list[bytes]:
        """What the node at `place` (None: every node) answers within so many seconds."""
        key = f"{self._prefix}/ask/{topic}/{'*' if place is None else place}"
        try:
            replies = self._session.get(
                key,
                payload=question,
                timeout=timeout,
                target=zenoh.QueryTarget.ALL,
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.DROP,
            )
            return [reply.ok.payload.to_bytes() for reply in replies if reply.ok is not None]
        except zenoh.ZError:
            return []

    # -- who is there -------------------------------------------------------------------------------------------------

    def appear(self, what: str, place: int) -> None:
        """Show the others that this place is taken (`alive`), or has finished (`done`)."""
        self._declared.append(self._session.liveliness().declare_token(f"{self._prefix}/{what}/{place}/{self.token}"))

    def watch(self, what: str, changed: Presence) -> None:
        """Tell of every place that appears or disappears, those there already included."""

        def noticed(sample: zenoh.Sample) -> None:
            _, place, token = str(sample.key_expr).rsplit("/", 2)
            if place.isdigit() and len(place) < 10:
                changed(int(place), token, sample.kind == zenoh.SampleKind.PUT)

        key = f"{self._prefix}/{what}/*/*"
        self._declared.append(self._session.liveliness().declare_subscriber(key, noticed, history=True))

    def links(self) -> int:
        """How many others this one is connected to directly."""
        return len(self._session.info.transports())

    def close(self) -> None:
        """Leave."""
        self._answering.shutdown(wait=False, cancel_futures=True)
        with suppress(zenoh.ZError):  # a link that is stuck; the process ends anyway
            self._session.close()  # type: ignore[no-untyped-call]


def _enough_threads(nodes: int) -> None:
    """Threads for Zenoh's links, before it starts any.

    Closing a link with unsent data (its other end was cut off) blocks the thread that does it for up to ten seconds, and with the usual one
    or two of each kind all links go silent.
    """
    ours = "(acc: (worker_threads: 4), "
    if os.environ.get("ZENOH_RUNTIME", ours).startswith(
        ours
    ):  # unless the user has set it; a parent process may have had fewer nodes
        many = max(4, min(64, nodes))
        kinds = ", ".join(f"{kind}: (worker_threads: {many})" for kind in ("rx", "tx", "net"))
        os.environ["ZENOH_RUNTIME"] = f"{ours}{kinds})"


def _check_free(address: str) -> None:
    """A port in use, said in one line."""
    host, port = split_address(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except (OSError, UnicodeError) as problem:
        used = isinstance(problem, OSError) and problem.errno == errno.EADDRINUSE
        reason = "the port is in use" if used else getattr(problem, "strerror", None) or str(problem)
        raise BadInput(f"cannot listen on {address}: {reason}; choose another one in node.toml") from None


def _worded(problem: zenoh.ZError, addresses: Addresses) -> BadInput | RunFailed:
    text = " ".join(str(problem).split()).split(" at /")[0]
    if "connect to any" in text:
        return BadInput(
            f"nobody answers at {', '.join(addresses.connect)}, or not with a certificate of this authority"
        )
    if "already in use" in text:
        return BadInput(f"cannot listen on {addresses.listen}: the port is in use; choose another one in node.toml")
    return RunFailed(f"the network could not be opened: {text}")


def free_addresses(count: int) -> list[str]:
    """Loopback addresses that nobody listens on now."""
    sockets = []
    try:
        for _ in range(count):
            found = socket.create_server(("127.0.0.1", 0))
            sockets.append(found)
        return [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    finally:
        for found in sockets:
            found.close()


def read_addresses(path: Path) -> Addresses:
    """What node.toml says."""
    from epidemic.config import build
    from epidemic.experiment import read_table

    return build(read_table(path), Addresses, str(path))


def to_toml(addresses: Addresses, comments: Iterable[str] = ()) -> str:
    """node.toml."""
    lines = [f"# {line}" for line in comments]
    if addresses.listen is not None:
        lines.append(f"listen = {json.dumps(addresses.listen)}")
    lines.append(f"connect = {json.dumps(list(addresses.connect))}")
    if addresses.relay:
        lines.append("relay = true")
    lines.append(f"founders = {json.dumps(list(addresses.founders))}")
    return "\n".join(lines) + "\n"
