"""The transport: Zenoh, without any decisions. Messages to nodes, questions to nodes, and liveness.

A process has one transport, whatever number of nodes it hosts; it has the certificate of the first of them, the carrier. Node ids here are those of
carriers.

Keys, below epidemic/AUTHORITY/:
    to/J/I            messages from carrier I to carrier J
    ask/TOPIC/J/I     questions of carrier I (or an "observer") that carrier J answers
    alive/J/TOKEN     carrier J is alive; each start has its own token
    done/J/TOKEN      carrier J has finished

Received data is checked in Zenoh's own threads, where it arrives, so that nothing piles up unseen; what is too long is dropped before it is copied.
Callbacks must therefore return at once, and never wait for a lock that is held while something is sent.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import zenoh
from zenoh.handlers import Callback

from epidemic.deploy.access import REVOKED, Mode, configuration
from epidemic.deploy.addresses import Addresses
from epidemic.deploy.keys import Identity, node_id_of
from epidemic.deploy.links import Find, Lines, Once, Presence, Watch, ZenohSession
from epidemic.deploy.opening import check_free, worded
from epidemic.deploy.runtime import enough_threads, no_lingering, shut

MOST_QUESTIONS = 64
"""Questions of one topic that may wait for an answer; further ones get none."""
OBSERVER, ANYBODY = -1, -2
"""In place of a node id: an observer, or somebody who asks for the list of revocations."""
LARGEST_QUESTION = 2**18
"""Most bytes of a question; longer ones get no answer."""


class Transport:
    """The network connection of a carrier, an observer or a relay."""

    def __init__(
        self,
        identity: Identity,
        addresses: Addresses,
        *,
        nodes: int,
        largest: int = 2**20,
        insecure: bool = False,
        routes: bool = False,
        here: int = 1,
        knows_all: bool = True,
    ) -> None:
        """Open the connection. Raises Unreachable if a node behind a relay cannot reach it now.

        Args:
            identity: The certificate and its key.
            addresses: Where to listen and connect.
            nodes: Number of nodes in the deployment.
            largest: Size of the largest message in bytes.
            insecure: Whether links are not encrypted.
            routes: Whether it forwards messages, as a relay.
            here: How many processes of this network share the machine.
            knows_all: Whether it connects to all peers; otherwise only as `connect` says, and peers are not told of others.
        """
        self._identity = identity
        self._nodes, self._largest, self._insecure = nodes, largest, insecure
        self._mode: Mode = "router" if routes else "client" if addresses.relay else "peer"
        self._prefix = f"epidemic/{identity.cluster}"
        self._node_id = node_id_of(identity.name)
        self._knows_all = knows_all
        self._asker = "observer" if self._node_id is None else str(self._node_id)
        self.admit: Callable[[int, str], bool] = lambda link, what: True
        """Whether to accept a "message", "alive", or the topic of a question received over a link. Called by Zenoh's threads."""
        self.unwelcome: Callable[[int], bool] = lambda node_id: False
        """Whether to close links to a node as soon as they open."""
        self._answering = ThreadPoolExecutor(4, "answer")
        self._closed = False
        enough_threads(nodes, here)
        zenoh.init_log_from_env_or("off")
        self._new_token()
        self._lines = Lines(self._open, addresses, knows_all=knows_all)

    def _new_token(self) -> None:
        self.token = secrets.token_hex(8)

    def _open(self, addresses: Addresses) -> zenoh.Session:
        if addresses.listen is not None:
            check_free(addresses.listen)
        try:
            config = configuration(
                self._identity,
                addresses,
                mode=self._mode,
                nodes=self._nodes,
                largest=self._largest,
                insecure=self._insecure,
                gossip=self._knows_all,
            )
            session = zenoh.open(config)
            session.info.declare_link_events_listener(self._linked, history=True)
        except zenoh.ZError as problem:
            raise worded(problem, addresses) from None
        return session

    def _linked(self, event: zenoh.LinkEvent) -> None:
        """Called when a link opens or closes."""
        no_lingering()
        if event.kind == zenoh.SampleKind.PUT:
            node_id = _node_id_at_end(event.link)
            if node_id is not None and self.unwelcome(node_id):
                shut(event.link.dst.partition("/")[2])

    def shut(self, node_id: int) -> None:
        """Close the direct links to a node, found by its certificate; there are none behind a relay, or if links are `insecure`.

        Zenoh has no call for this: the socket is shut down, and Zenoh closes the link.
        """
        for line in self._lines.all():
            for link in line.session.info.links():
                if _node_id_at_end(link) == node_id:
                    shut(link.dst.partition("/")[2])

    # -- lines to some of the others ----------------------------------------------------------------------------------

    def connect(self, name: str, address: str, find: Find | None = None) -> None:
        """Open a line of this name soon, to an address or to what `find` resolves it to; does nothing if it exists, or if there are too many."""
        self._lines.connect(name, address, find)

    def disconnect(self, *names: str) -> None:
        """Close the lines with these names."""
        self._lines.disconnect(*names)

    def ends(self) -> dict[str, set[int]]:
        """The peers visible over each line, by its name."""
        return {name: there - {self._node_id} for name, there in self._lines.ends().items()}

    def let_go(self, prefix: str) -> None:
        """Close lines with this prefix over which no peer has been visible for long; call it about once a second."""
        self._lines.let_go(prefix, self._node_id)

    # -- messages ------------------------------------------------------------------------------------------------------

    def receive(
        self, take: Callable[[int, bytes, tuple[int, ...]], None], drop: Callable[[int], None], limit: int
    ) -> None:
        """Pass every received message to `take`, with the id of its link and its receivers in this process.

        A message larger than `limit` is reported to `drop`, uncopied.
        """

        def arrived(sample: zenoh.Sample) -> None:
            sender = self._node_id_in(str(sample.key_expr).rpartition("/")[2])
            if sender is None or not self.admit(sender, "message"):
                return
            if len(sample.payload) > limit:
                drop(sender)
            else:
                take(sender, sample.payload.to_bytes(), self._node_ids_in(sample.attachment))

        key = f"{self._prefix}/to/{self._node_id}/*"
        self._lines.declare(lambda _, session: session.declare_subscriber(key, _direct(arrived)))

    def _node_id_in(self, text: str) -> int | None:
        """The node id in a part of a key, if it is one."""
        digits = text.isascii() and text.isdigit() and len(text) < 10
        return int(text) if digits and int(text) < self._nodes else None

    def _node_ids_in(self, attachment: zenoh.ZBytes | None) -> tuple[int, ...]:
        """The receivers of a message: this node, unless the attachment names others."""
        if attachment is None or len(attachment) > 10 * self._nodes:
            return () if self._node_id is None else (self._node_id,)
        named = (self._node_id_in(text) for text in attachment.to_bytes().decode("ascii", "replace").split(","))
        return tuple(node_id for node_id in dict.fromkeys(named) if node_id is not None)

    @staticmethod
    def payload(frame: bytes | bytearray) -> zenoh.ZBytes:
        """A frame in Zenoh's form, which can be sent several times without copying."""
        return zenoh.ZBytes(frame)

    def send(self, node_id: int, payload: zenoh.ZBytes, node_ids: tuple[int, ...] = ()) -> bool:
        """Send a message to these nodes of the process at `node_id`; False if nobody receives it. Blocks while the link is busy."""
        key = f"{self._prefix}/to/{node_id}/{self._node_id}"
        attachment = None if node_ids in ((), (node_id,)) else ",".join(map(str, node_ids))
        return self._lines.to(node_id).put(key, payload, attachment)

    # -- questions ----------------------------------------------------------------------------------------------------

    def answer(self, topic: str, reply: Callable[[bytes, Callable[[bytes], None]], None]) -> None:
        """Answer questions to this node: `reply` gets the question and a function to call with the answer, now or later.

        The number of waiting questions is bounded per topic.
        """
        prefix = f"{self._prefix}/ask/{topic}/{self._node_id}"
        room = threading.Semaphore(MOST_QUESTIONS)

        def asked(query: zenoh.Query) -> None:
            asker = str(query.key_expr).rpartition("/")[2]
            link = OBSERVER if asker == "observer" else self._node_id_in(asker)
            if topic == REVOKED:  # a revoked node must not use up the share of its successor
                link = ANYBODY
            content = query.payload
            length = 0 if content is None else len(content)
            if (
                link is None
                or not self.admit(link, topic)
                or length > LARGEST_QUESTION
                or not room.acquire(blocking=False)
            ):
                query.drop()  # type: ignore[no-untyped-call]
                return
            question = b"" if content is None else content.to_bytes()

            def respond(answer: bytes) -> None:
                try:
                    query.reply(f"{prefix}/{asker}", answer)
                except zenoh.ZError:
                    pass  # the asker has left
                finally:
                    query.drop()  # type: ignore[no-untyped-call]

            def work() -> None:
                try:
                    reply(question, respond)
                finally:
                    room.release()

            try:
                self._answering.submit(work)
            except RuntimeError:  # it is closing
                room.release()
                query.drop()  # type: ignore[no-untyped-call]

        self._lines.declare(lambda _, session: session.declare_queryable(f"{prefix}/*", _direct(asked)))

    def ask(
        self,
        topic: str,
        node_id: int,
        question: bytes,
        timeout: float,
        answered: Callable[[bytes | None], None],
        largest: int,
    ) -> None:
        """Ask a node without waiting; `answered` is called once, with the first answer of at most `largest` bytes.

        It is called with None if there is no answer within `timeout` seconds or nobody to answer, then perhaps before this returns.
        """
        once = Once(answered)

        def replied(reply: zenoh.Reply) -> None:
            sample = reply.ok
            if sample is not None and len(sample.payload) <= largest and str(sample.key_expr) == key and once.claim():
                answered(sample.payload.to_bytes())

        key = f"{self._prefix}/ask/{topic}/{node_id}/{self._asker}"
        self._get(self._lines.to(node_id), key, question, timeout, replied, once.give_up)

    def ask_all(self, topic: str, question: bytes, timeout: float, largest: int) -> dict[int, bytes]:
        """The answers of all nodes within `timeout` seconds: at most one each, of at most `largest` bytes, over its own link."""
        found: dict[int, bytes] = {}
        ended = threading.Event()
        prefix = f"{self._prefix}/ask/{topic}/"

        def replied(reply: zenoh.Reply) -> None:
            sample = reply.ok
            if sample is None or len(sample.payload) > largest or ended.is_set():
                return
            key = str(sample.key_expr)
            fits = key.startswith(prefix) and key.endswith(f"/{self._asker}")
            node_id = self._node_id_in(key.removeprefix(prefix).removesuffix(f"/{self._asker}")) if fits else None
            if node_id is not None and node_id not in found:
                found[node_id] = sample.payload.to_bytes()

        self._get(self._lines.main, f"{prefix}*/{self._asker}", question, timeout, replied, ended.set)
        ended.wait(timeout + 1.0)
        ended.set()
        return dict(sorted(found.items()))

    @staticmethod
    def _get(
        line: ZenohSession,
        key: str,
        question: bytes,
        timeout: float,
        replied: Callable[[zenoh.Reply], None],
        over: Callable[[], Any],
    ) -> None:
        try:
            line.session.get(
                key,
                Callback(replied, over, indirect=False),
                payload=question,
                timeout=timeout,
                target=zenoh.QueryTarget.ALL,
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.DROP,
            )
        except zenoh.ZError:
            over()

    # -- who is there -------------------------------------------------------------------------------------------------

    def appear(self, what: str, node_id: int) -> None:
        """Announce that this node is `alive` or `done`."""
        self._lines.declare(
            lambda _, session: session.liveliness().declare_token(f"{self._prefix}/{what}/{node_id}/{self.token}")
        )

    def watch(self, what: str, changed: Presence) -> None:
        """Report every node that appears or disappears, including those already there."""
        watch = self._lines.watches[what] = Watch(changed)

        def noticed(line: int, sample: zenoh.Sample) -> None:
            _, text, token = str(sample.key_expr).rsplit("/", 2)
            node_id = self._node_id_in(text)
            if node_id is not None:
                self.admit(node_id, "alive")  # a node that keeps coming and going is disconnected, but never unseen
                watch.noticed(line, node_id, token, sample.kind == zenoh.SampleKind.PUT)

        def declare(line: int, session: zenoh.Session) -> Any:
            return session.liveliness().declare_subscriber(key, _direct(partial(noticed, line)), history=True)

        key = f"{self._prefix}/{what}/*/*"
        self._lines.declare(declare)

    def links(self) -> int:
        """The number of links; two between the same nodes, one from each side, count twice."""
        return sum(len(line.session.info.transports()) for line in self._lines.all())

    def unseen(self) -> frozenset[int]:
        """The nodes with a direct link, by their certificates, that are not visible as `alive`; none if `insecure`.

        Briefly this is normal: a link opens before its other end is announced. If it lasts, the network must be reopened; see `LinkMonitor`.
        """
        ends = {_node_id_at_end(link) for line in self._lines.all() for link in line.session.info.links()}
        linked = {node_id for node_id in ends if node_id is not None}
        return frozenset(linked - self._lines.watches["alive"].node_ids - {self._node_id})

    def renew(self) -> None:
        """Leave and return with a new token and all declarations.

        Call it when `LinkMonitor` says so, and when the list of revocations has changed: access rules are read when the network is opened. Watchers are told
        that all peers are gone, then which are there. Raises Unreachable like the constructor; call it again then.
        """
        self._lines.renew(self._new_token)

    def close(self) -> None:
        """Close the connection to the network, once."""
        if self._closed:
            return
        self._closed = True
        self._answering.shutdown(wait=False, cancel_futures=True)
        self._lines.close()


def _node_id_at_end(link: zenoh.Link) -> int | None:
    """The node id in the certificate at the other end of a link; None if there is none."""
    name = link.auth_identifier
    return None if name is None else node_id_of(name)


def _direct(call: Callable[[Any], None]) -> Any:
    """A handler that runs in Zenoh's own thread; the default one queues 256 messages of any size."""
    return Callback(call, indirect=False)
