"""Faults of a round: a frozen value that turns the intended graph into the one that happened.

Applied in this order: crashed nodes neither send nor receive; blocked pairs and partitions cannot talk; each message is lost independently; a receiver
accepts at most `cap` models, and refused senders may try another node.

What is known beforehand (crashed, blocked) is not sent and costs nothing. A lost message has left its sender and counts as sent. With a cap, a model is
offered first: a lost or refused offer costs a control message, not a model. A node that is up but takes no part in a round (`participation`) is like a
crashed node if the others know; otherwise messages to it are lost. If models are asked for, a request is a control message that may be lost, too; then no
model is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from epidemic.core.errors import BadInput, require_choice, require_int, require_real
from epidemic.core.graph import Graph, IntArray
from epidemic.core.rng import Stream, Streams
from epidemic.core.settings import Settings

Mask = NDArray[np.bool_]

WHOLE_SUM = (
    "faults.{fault} removes single messages, but an all-reduce needs all of them",
    'leave it out, or use cost = "all-to-all"',
)
CAP_OF_REQUESTS = (
    "faults.cap = {cap} has no meaning where nodes ask for as many models as they take",
    "leave it out, and use a smaller topology.s",
)
"""Why faults and ways of exchange do not go together, and what to do instead."""


class Crash(Settings, frozen=True, forbid_unknown_fields=True):
    """Node `node` is down from round `at` until round `returns` (for good, if that is not given)."""

    node: int
    at: int
    returns: int | None = None

    def __post_init__(self) -> None:
        require_int("faults.crashes.node", self.node, 0)
        require_int("faults.crashes.at", self.at, 0)
        if self.returns is not None and self.returns <= self.at:
            raise BadInput(f"faults.crashes.returns = {self.returns} must be later than at = {self.at}")


class RandomCrashes(Settings, frozen=True, forbid_unknown_fields=True):
    """Every node that is up crashes with `probability` in each round, and is down for `rounds_down` (default: for good)."""

    probability: float
    rounds_down: int | None = None

    def __post_init__(self) -> None:
        require_real("faults.random_crashes.probability", self.probability, 0, 1)
        if self.rounds_down is not None:
            require_int("faults.random_crashes.rounds_down", self.rounds_down, 1)

    def down(self, n: int, round: int, streams: Streams) -> Mask:
        """Which nodes are down in this round. Lifetimes are drawn in sequence for all nodes, so no round is replayed."""
        down = np.zeros(n, dtype=bool)
        if self.probability == 0:
            return down
        up_since = np.zeros(n)
        life = 0
        while (up_since <= round).any():
            u = streams("crashes", life).uniforms(n)
            survived = np.zeros(n) if self.probability == 1 else np.floor(np.log1p(-u) / np.log1p(-self.probability))
            crashed = up_since + survived
            up_since = crashed + (np.inf if self.rounds_down is None else self.rounds_down)
            down |= (crashed <= round) & (round < up_since)
            life += 1
        return down


class Split(Settings, frozen=True, forbid_unknown_fields=True):
    """From round `start` until `end` only nodes of the same group reach each other; nodes in no group form one more."""

    groups: tuple[tuple[int, ...], ...]
    start: int = 0
    end: int | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "groups", tuple(map(tuple, self.groups)))
        require_int("faults.partitions.start", self.start, 0)
        if self.end is not None and self.end <= self.start:
            raise BadInput(f"faults.partitions.end = {self.end} must be later than start = {self.start}")
        members = [i for group in self.groups for i in group]
        if len(set(members)) < len(members):
            raise BadInput("faults.partitions.groups must not share nodes")

    def active(self, round: int) -> bool:
        """Whether the network is split in this round."""
        return self.start <= round and (self.end is None or round < self.end)

    def group_of(self, n: int) -> IntArray:
        """The number of each node's group.   # (n,)"""
        group = np.zeros(n, dtype=np.int64)
        for number, members in enumerate(self.groups, start=1):
            group[list(members)] = number
        return group


@dataclass(frozen=True, eq=False)
class Absence:
    """Nodes that take no part in a round, though nothing is wrong with them."""

    who: Mask  # (n,)
    known: bool  # whether the others know; if not, what they send there is lost


@dataclass(frozen=True, eq=False)
class Delivery:
    """What happened to the messages of one round. All arrays are (n,)."""

    intended: Graph
    graph: Graph  # what arrived
    alive: Mask  # nodes that are up and take part
    models_sent: IntArray  # models (or, in an all-reduce, pieces of them) that left each node
    offers_sent: (
        IntArray  # control messages of each node: offers where there is a cap, requests where models are asked for
    )
    refused: IntArray  # offers of each sender that were refused
    lost: IntArray  # messages of each sender that vanished on the way
    pieces: int = 1  # into how many pieces a model was cut


class Faults(Settings, frozen=True, forbid_unknown_fields=True):
    """Everything that may go wrong. The default is nothing."""

    crashes: tuple[Crash, ...] = ()
    random_crashes: RandomCrashes | None = None
    on_return: Literal["adopt", "keep"] = "adopt"
    """Whether a returning node takes the model of a random live peer or keeps its own."""
    blocked: tuple[tuple[int, int], ...] = ()
    """Pairs that cannot talk, in either direction."""
    partitions: tuple[Split, ...] = ()
    loss: float = 0.0
    """Probability that a message is lost."""
    cap: int | None = None
    """The most models that a node accepts in a round."""
    max_retries: int | Literal["unlimited"] = 1
    """How often a refused sender tries another node."""

    def __post_init__(self) -> None:
        for name in ("crashes", "blocked", "partitions"):  # lists from Python, too: what is the same must be equal
            msgspec.structs.force_setattr(self, name, tuple(getattr(self, name)))
        msgspec.structs.force_setattr(self, "blocked", tuple(map(tuple, self.blocked)))
        require_choice("faults.on_return", self.on_return, ["adopt", "keep"])
        require_real("faults.loss", self.loss, 0, 1)
        if self.cap is not None:
            require_int("faults.cap", self.cap, 0)
        if self.max_retries != "unlimited":
            require_int("faults.max_retries", self.max_retries, 0)

    def check(self, n: int) -> None:
        """Raise BadInput if a node is named that does not exist."""
        named = [("crashes", crash.node) for crash in self.crashes]
        named += [("blocked", i) for pair in self.blocked for i in pair]
        named += [("partitions", i) for split in self.partitions for group in split.groups for i in group]
        for what, i in named:
            if not 0 <= i < n:
                raise BadInput(f"faults.{what} names node {i}, but nodes are numbered 0 to {n - 1}")
        for a, b in self.blocked:
            if a == b:
                raise BadInput(f"faults.blocked pairs node {a} with itself")

    def check_exchange(self, n: int, exchange: str) -> None:
        """Raise BadInput if models that travel in this way (`graph.EXCHANGES`) cannot have these faults."""
        capped = self.cap_of(n) is not None
        single = {"loss": self.loss, "blocked": self.blocked, "partitions": self.partitions, "cap": capped}
        asked = [key for key, wanted in single.items() if wanted]
        if exchange == "all-reduce" and asked:
            raise BadInput("; ".join(WHOLE_SUM).format(fault=asked[0]))
        if exchange == "requests" and capped:
            raise BadInput("; ".join(CAP_OF_REQUESTS).format(cap=self.cap))

    def cap_of(self, n: int) -> int | None:
        """The cap in force among n nodes; None if it can never be exceeded."""
        return None if self.cap is None or self.cap >= n - 1 else self.cap

    def alive(self, n: int, round: int, streams: Streams) -> Mask:
        """Which nodes are up in this round.   # (n,)"""
        alive = np.ones(n, dtype=bool)
        for crash in self.crashes:
            if crash.at <= round and (crash.returns is None or round < crash.returns):
                alive[crash.node] = False
        if self.random_crashes is not None:
            alive &= ~self.random_crashes.down(n, round, streams)
        return alive

    def adoptions(self, n: int, round: int, streams: Streams) -> tuple[IntArray, IntArray]:
        """The nodes that return in this round and take a model, and the live peers that they take it from.

        A donor was up in the round before, so it has the current model, and can be reached. Without any donor, nothing is adopted.
        """
        nobody = np.zeros(0, dtype=np.int64)
        if round == 0 or self.on_return == "keep" or (not self.crashes and self.random_crashes is None):
            return nobody, nobody
        before, now = self.alive(n, round - 1, streams), self.alive(n, round, streams)
        returning, donors = np.flatnonzero(now & ~before), np.flatnonzero(now & before)
        if not returning.size or not donors.size:
            return nobody, nobody
        links = self.links(n, round, now)
        u = streams("adoption", round).uniforms(n)
        pairs = []
        for i in returning:
            near = donors[links.open(donors, np.full(len(donors), i))]
            if near.size:
                pairs.append((i, near[int(u[i] * len(near))]))
        found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def links(self, n: int, round: int, alive: Mask) -> LinkFaults:
        """Which pairs can talk in this round, these nodes being up."""
        return LinkFaults(n, alive, self.blocked, [split for split in self.partitions if split.active(round)])

    def deliver(
        self, graph: Graph, round: int, streams: Streams, absence: Absence | None = None, part: int = 0
    ) -> Delivery:
        """Apply the faults to a round's messages; `part`: of the models, if parts go separate ways."""
        n = graph.n
        self.check_exchange(n, graph.exchange)
        up = self.alive(n, round, streams)
        alive = up if absence is None else up & ~absence.who
        believed = alive if absence is None or absence.known else up  # nodes that the others believe to be there
        streams = streams.of_part(part)  # nodes crash as a whole, messages get lost by themselves
        zeros = np.zeros(n, dtype=np.int64)
        capped = self.cap_of(n) is not None
        sent = graph.among(believed)
        asked = graph.exchange == "requests"
        links = self.links(n, round, believed)
        if not (capped or self.loss or links.cut):
            arrived = sent if believed is alive else graph.among(alive)
            left = np.where(alive, sent.sent, 0)
            requests = sent.in_degree if asked else zeros
            return Delivery(graph, arrived, alive, left, requests, zeros, left - arrived.sent, sent.pieces)

        sent = sent.explicit()
        if believed is not alive:
            sent = sent.keep(alive[sent.senders])
        if links.cut:
            sent = sent.keep(links.open(sent.senders, sent.receivers))
        requests = sent.in_degree if asked else zeros
        unheard = zeros
        if self.loss and asked:
            kept = streams("loss-of-requests", round).uniforms(sent.messages) >= self.loss
            unheard = np.bincount(sent.receivers[~kept], minlength=n)
            sent = sent.keep(kept)
        arrived, lost = sent, zeros
        if self.loss or believed is not alive:
            kept = self._kept(sent.messages, streams("loss", round)) & alive[sent.receivers]
            arrived, lost = sent.keep(kept), np.bincount(sent.senders[~kept], minlength=n)
        if not capped:
            return Delivery(graph, arrived, alive, sent.out_degree, requests, zeros, lost + unheard)
        outcome = self._cap(arrived, sent, links, alive, streams("cap", round))
        offers = outcome.offers + lost  # a lost first offer was sent, too
        return Delivery(
            graph, outcome.graph, alive, outcome.graph.out_degree, offers, outcome.refused, lost + outcome.lost
        )

    def _kept(self, messages: int, stream: Stream) -> Mask:
        """A mask of the messages that are not lost."""
        return stream.uniforms(messages) >= self.loss if self.loss else np.ones(messages, dtype=bool)

    def _cap(self, graph: Graph, sent: Graph, links: LinkFaults, alive: Mask, stream: Stream) -> _Capped:
        """Offers arrive in random order, the first `cap` of a receiver are accepted, the refused try elsewhere.

        `graph` has the offers that arrived, `sent` also those that were lost, which count as tried. Nodes that are not `alive` never answer.
        """
        assert self.cap is not None
        n = graph.n
        retries = n if self.max_retries == "unlimited" else self.max_retries
        sender: IntArray = graph.senders.astype(np.int64)
        target: IntArray = graph.receivers.astype(np.int64)
        tried: IntArray = np.sort(sent.senders.astype(np.int64) * n + sent.receivers)
        free = np.full(n, self.cap)
        offers, refused, lost = (np.zeros(n, dtype=np.int64) for _ in range(3))
        senders: list[IntArray] = []
        targets: list[IntArray] = []
        for attempt in range(retries + 1):
            offers += np.bincount(sender, minlength=n)
            if attempt:
                heard = self._kept(len(sender), stream) & alive[target]
                lost += np.bincount(sender[~heard], minlength=n)
                sender, target = sender[heard], target[heard]
            order = stream.permutation(len(sender))
            order = order[np.argsort(target[order], kind="stable")]  # by receiver, at random within
            sender, target = sender[order], target[order]
            arrivals = np.bincount(target, minlength=n)
            place = np.arange(len(target)) - np.repeat(np.cumsum(arrivals) - arrivals, arrivals)
            accepted = place < free[target]
            senders.append(sender[accepted])
            targets.append(target[accepted])
            free -= np.bincount(target[accepted], minlength=n)
            turned_away = np.sort(sender[~accepted])
            refused += np.bincount(turned_away, minlength=n)
            if not turned_away.size:
                break
            if attempt < retries:
                sender, target, tried = _try_elsewhere(turned_away, tried, links, stream)
        graph = Graph.from_edges(n, np.concatenate(senders), np.concatenate(targets))
        return _Capped(graph, offers, refused, lost)


@dataclass(frozen=True)
class _Capped:
    graph: Graph
    offers: IntArray
    refused: IntArray
    lost: IntArray


@dataclass(frozen=True)
class Reach:
    """Which nodes can talk, round by round, as nodes find out by asking each other."""

    faults: Faults
    n: int
    streams: Streams

    @staticmethod
    def of(faults: Faults, n: int, streams: Streams) -> Reach | None:
        """The reach under these faults; None if all nodes can always talk."""
        cut = faults.crashes or faults.random_crashes or faults.blocked or faults.partitions
        return Reach(faults, n, streams) if cut else None

    def __call__(self, round: int) -> LinkFaults:
        """Return the links of a round that are not blocked, among the nodes that are alive."""
        return self.faults.links(self.n, round, self.faults.alive(self.n, round, self.streams))


class LinkFaults:
    """Which pairs can talk in a round."""

    def __init__(self, n: int, alive: Mask, blocked: tuple[tuple[int, int], ...], splits: list[Split]) -> None:
        self.n = n
        self.alive = alive
        self._blocked = np.array(
            sorted({a * n + b for a, b in blocked} | {b * n + a for a, b in blocked}), dtype=np.int64
        )
        self._groups = [split.group_of(n) for split in splits]

    @property
    def cut(self) -> bool:
        """Whether some that are up cannot talk to each other."""
        return bool(self._groups) or len(self._blocked) > 0

    def open(self, senders: IntArray, receivers: IntArray) -> Mask:
        """Whether each sender can reach the receiver beside it."""
        ok: Mask = (senders != receivers) & self.alive[receivers]
        for group in self._groups:
            ok &= group[senders] == group[receivers]
        if len(self._blocked):
            ok &= ~np.isin(senders.astype(np.int64) * self.n + receivers, self._blocked)
        return ok


def _try_elsewhere(
    sender: IntArray, tried: IntArray, links: LinkFaults, stream: Stream
) -> tuple[IntArray, IntArray, IntArray]:
    """For each refused message a uniformly random node that its sender has not tried; a sender that has tried all gives up.

    Returns senders, their new targets, and the sorted keys sender * n + target of everything tried by now.
    """
    n = links.n
    senders: list[IntArray] = []
    targets: list[IntArray] = []
    for _ in range(8):  # guess; right at once unless almost all nodes have been tried
        if len(sender) <= 16:
            break
        target = stream.integers(n, len(sender))
        key = sender * n + target
        first = np.zeros(len(key), dtype=bool)
        first[np.unique(key, return_index=True)[1]] = True
        good = first & links.open(sender, target) & ~np.isin(key, tried)
        senders.append(sender[good])
        targets.append(target[good])
        tried = np.union1d(tried, key[good])
        sender = sender[~good]
    everyone = np.arange(n)
    for i, wanted in zip(*np.unique(sender, return_counts=True), strict=True):
        left = links.open(np.full(n, i), everyone)
        left[tried[slice(*np.searchsorted(tried, [i * n, (i + 1) * n]))] - i * n] = False
        candidates = everyone[left]
        chosen = candidates[stream.permutation(len(candidates))[:wanted]]
        senders.append(np.full(len(chosen), i))
        targets.append(chosen)
    all_senders, all_targets = np.concatenate(senders), np.concatenate(targets)
    return all_senders, all_targets, np.union1d(tried, all_senders * n + all_targets)
