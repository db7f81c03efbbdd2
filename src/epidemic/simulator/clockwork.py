"""The clockwork: the event loop of all nodes of an experiment under the simulated clock.

Time is whole microseconds. Events at the same time are handled in a fixed order: nodes leave, return, messages arrive, trainings end, timers expire,
models are evaluated; within a kind by node, then in order of scheduling. No decision looks at the numbers of a model, so a dry run (times and bytes only)
has the same events as a run that computes. A run resumes by replaying its events without computing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Protocol, runtime_checkable

import numpy as np

from epidemic.aggregation import Aggregator
from epidemic.algorithms.asynchronous import SECOND, Node
from epidemic.core.errors import RunFailed
from epidemic.record import HEADER_BYTES, MessageCounts, Moment
from epidemic.runtime.aggregating import MEAN
from epidemic.runtime.lazy_models import LazyModels
from epidemic.simulator.links import ARRIVED, LINKS, LOST, Flight
from epidemic.simulator.node_context import ARRIVAL, EVALUATE, OFFLINE, ONLINE, TRAINED, WAKE, SimulatedContext
from epidemic.simulator.trace import Log, Tally, Trip

LOOK = 4096
"""Events between two checks for an interrupt and for progress."""

IDLE_EVENTS, IDLE_EVENTS_A_NODE = 1_000_000, 10_000
"""Events other than arriving messages, in all and for each node, without progress: a run that has no clock.stop fails after so many."""


class ClockWorld(Protocol):
    """The modelled world, computing speeds, links and churn: see `epidemic.clock`."""

    uplink: Any
    downlink: Any

    def step_cost(self, node: int, count: int) -> int:
        """Microseconds of one local step in a node's count-th training."""
        ...

    def latency(self, sender: int, receiver: int) -> int:
        """The latency of a link in microseconds."""
        ...

    def on_at_start(self, node: int) -> bool:
        """Whether a node is online when the run begins."""
        ...

    def next_change(self, node: int, after: int) -> int | None:
        """When a node next leaves or returns after this time; None: never."""
        ...

    def describe(self) -> dict[str, Any]:
        """A summary as a few numbers."""
        ...


@runtime_checkable
class Watches(Protocol):
    """Shared state of nodes that needs access to the clockwork."""

    def watch(self, work: Any) -> None:
        """Called once with the clockwork, when all nodes exist."""
        ...


@dataclass(frozen=True)
class ClockSettings:
    """The settings of a clockwork. Times in microseconds; 0: never."""

    n: int
    message_bytes: int  # bytes of the numbers of a message
    steps: int = 1  # local steps per training
    part_bytes: Sequence[int] = ()  # the same for each part of a model
    header_bytes: int = HEADER_BYTES
    links: str = "uplink"
    loss: float = 0.0  # share of messages that get lost
    when_off: str = "pause"  # what happens to a training when its node leaves: pause, abort, finish
    transfers: str = "drop"  # what happens to its transfers then: drop, finish
    remembers: bool = False  # whether a training needs the result of the one before
    free: bool = True  # whether the method is asynchronous
    ordered: bool = False  # whether messages leave in ascending order of targets
    static: bool = False  # whether a node's peers are always the same
    rounds: int = 0  # the run ends when nodes have completed this many rounds on average
    every: int = 0  # rounds between evaluations
    stop: int = 0  # when the run ends
    bytes: float = 0.0  # the run ends when nodes have sent this many bytes on average
    evaluate: int = 0  # time between evaluations
    at_once: float = float("inf")  # trainings that may wait to be computed
    rule: Aggregator = MEAN  # the aggregator of asynchronous nodes


class Clockwork:
    """All nodes, the scheduled events, and the links."""

    def __init__(
        self,
        settings: ClockSettings,
        world: ClockWorld,
        lazy_models: LazyModels,
        model: Any,
        node: Callable[[Any], Node],
        peers: Callable[[int, int], Sequence[int]],
        chances: Callable[[str, int, int], float],
        *,
        context: type[SimulatedContext] = SimulatedContext,
        together: Any = None,
        log: Log | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            settings: The settings.
            world: Computing speeds, links and churn.
            lazy_models: Computes models.
            model: The lazy model that all nodes start from.
            node: Makes a node from its context.
            peers: Draws the peers of a node for a choice.
            chances: Draws a number in [0, 1) for a purpose, node and count.
            context: The class of contexts.
            together: What nodes in rounds share.
            log: Records what happens; None: nothing is recorded.
        """
        self.together = together
        self.heed: Callable[[], None] = lambda: None  # called now and then between events; raises to stop
        self.settings = settings
        self.n, self.steps, self.free = settings.n, settings.steps, settings.free
        self.message_bytes, self.part_bytes, self.header_bytes = (
            settings.message_bytes,
            settings.part_bytes,
            settings.header_bytes,
        )
        self.loss, self.remembers, self.static, self.ordered = (
            settings.loss,
            settings.remembers,
            settings.static,
            settings.ordered,
        )
        self.when_off, self.transfers, self.rule = settings.when_off, settings.transfers, settings.rule
        self.world, self.lazy_models, self.peers, self.chances, self.log = world, lazy_models, peers, chances, log
        self.now = self.seq = self.events = self.digest = 0
        self.heap: list[tuple[int, int, int, int, Any]] = []
        self.tally = Tally()
        self.links: Any = LINKS[settings.links](world, settings.n, self._arrange)
        self.unfinished = settings.n
        self.total = 0  # rounds or trainings of all nodes
        self._next = settings.every * settings.n  # value of `total` at the next evaluation
        self._ending = False
        self.comings = 0  # how often a node left or returned
        self.contexts = [context(self, i, model) for i in range(settings.n)]
        for one in self.contexts:
            one.node = node(one)
        if isinstance(together, Watches):
            together.watch(self)
        self._begin()

    def _begin(self) -> None:
        settings = self.settings
        for one in self.contexts:
            one.on = self.world.on_at_start(one.id)
            change = self.world.next_change(one.id, 0)
            if change is not None:
                heappush(self.heap, (change, OFFLINE if one.on else ONLINE, one.id, 0, None))
            elif not one.on:
                raise RunFailed(f"node {one.id} is never there; look at the clock's churn")
        if settings.evaluate:
            self._look_at(settings.evaluate, "record")
        if settings.stop:
            self._look_at(settings.stop, "end")
        elif settings.free and not (settings.rounds or settings.bytes):
            self._look_at(0, "end")
        for one in self.contexts:
            one.node.started()

    def _arrange(self, time: int, node: int, what: Any) -> None:
        self.seq += 1
        heappush(self.heap, (time, ARRIVAL, node, self.seq, what))

    def _look_at(self, time: int, why: str) -> None:
        heappush(self.heap, (time, EVALUATE, why == "end", self.events, why))

    def progressed(self, count: int) -> None:
        """Note that nodes have completed `count` more rounds."""
        settings = self.settings
        self.total += count
        if settings.free and settings.rounds and self.total >= settings.rounds * self.n and not self._ending:
            self._ending = True
            self._look_at(self.now, "end")
        elif settings.every and self.total >= self._next and not self._ending:
            every = settings.every * self.n
            self._next = self.total - self.total % every + every
            self._look_at(self.now, "record")

    @property
    def round(self) -> int:
        """The number of rounds that nodes have completed on average."""
        return self.total // self.n

    # -- what happens -------------------------------------------------------------------------------------------------

    def run(self) -> Iterator[str]:
        """Run the events; yields "record" and "end" when models are to be evaluated, "compute" when enough of them wait."""
        heap, contexts, lazy_models, log = self.heap, self.contexts, self.lazy_models, self.log
        at_once, enough = self.settings.at_once, self.settings.bytes * self.n
        idle, most_idle = 0, IDLE_EVENTS + IDLE_EVENTS_A_NODE * self.n
        progress, ends_by_itself = -1, not self.settings.stop
        while heap and self.unfinished:
            time, kind, node, seq, what = heappop(heap)
            if time < self.now:
                raise RunFailed(f"internal error: time went back from {self.now} to {time} microseconds")
            self.now = time
            self.events += 1
            self.digest = (self.digest * 1_000_003 + time * 8 + kind + (node << 20)) & 0xFFFFFFFFFFFF
            if log is not None:
                log.events.append((time, kind, node))
            if not self.events % LOOK:
                self.heed()
                if (so_far := self._progress) > progress:
                    progress, idle = so_far, 0
                elif idle > most_idle and ends_by_itself:
                    raise RunFailed(self._stuck(idle))
            idle += kind != ARRIVAL
            if kind == ARRIVAL:
                flight = self.links.event(what, time)
                if flight is not None:
                    self._arrived(flight, contexts[flight.to])
            elif kind == TRAINED:
                contexts[node].ended(seq)
            elif kind == WAKE:
                contexts[node].woken(seq, what)
            elif kind == EVALUATE:
                if what == "record" and self.settings.evaluate:
                    self._look_at(time + self.settings.evaluate, "record")
                if what == "end":
                    break
                yield "record"
                self.tally.ages.clear()
            else:
                self._changes(contexts[node], kind)
            if lazy_models.waiting >= at_once:
                yield "compute"
            if enough and self.tally.bytes_sent >= enough and not self._ending:
                self._ending = True
                self._look_at(time, "end")
        self.check_laws()
        yield "end"

    @property
    def _progress(self) -> int:
        """What must grow if the run is ever to end: bytes, or trainings (rounds)."""
        return self.tally.bytes_sent if self.free and self.settings.bytes else self.total

    def _stuck(self, events: int) -> str:
        what = "round" if not self.free else "byte sent" if self.settings.bytes else "training"
        return (
            f"the simulated clock made no progress: at {self.now / SECOND:g} s, {events} events without one more {what}, so the run would never end;"
            " look at clock.compute, clock.churn and faults.loss, or give it clock.stop"
        )

    def _arrived(self, flight: Flight, to: SimulatedContext) -> None:
        away = not to.on or (self.transfers == "drop" and to.went >= flight.begins)
        if flight.fate == LOST or away:
            self.lost(flight)
            return
        if flight.fate == ARRIVED:
            return
        flight.fate = ARRIVED
        tally = self.tally
        tally.in_flight -= 1
        tally.received += 1
        tally.bytes_in_flight -= flight.size
        tally.bytes_received += flight.size
        if self.log is not None:
            self._trip(flight, "arrived")
        to.node.received(flight.message)

    def lost(self, flight: Flight) -> None:
        """Note that a message will not arrive."""
        tally = self.tally
        tally.in_flight -= 1
        tally.lost += 1
        tally.bytes_in_flight -= flight.size
        tally.bytes_lost += flight.size
        if self.log is not None:
            self._trip(flight, "lost")

    def _trip(self, flight: Flight, fate: str) -> None:
        assert self.log is not None
        sender = flight.message.sender
        self.log.trips.append(Trip(sender, flight.to, flight.begins / 1e6, self.now / 1e6, fate))
        self.log.span(sender, "sending", flight.begins, min(flight.ends, self.now) if flight.ends >= 0 else self.now)

    def _changes(self, one: SimulatedContext, kind: int) -> None:
        change = self.world.next_change(one.id, self.now)
        if change is not None:
            heappush(self.heap, (change, ONLINE if kind == OFFLINE else OFFLINE, one.id, 0, None))
        self.comings += 1
        if kind == OFFLINE:
            one.leaves()
        else:
            one.returns()

    # -- what is said of it -------------------------------------------------------------------------------------------

    def moment(self) -> Moment:
        """The progress in time, for a record."""
        tally, contexts = self.tally, self.contexts
        there = sum(one.online_for() for one in contexts)
        ages = np.array(tally.ages) / SECOND if tally.ages else None
        return Moment(
            seconds=self.now / SECOND,
            steps=tally.steps / self.n,
            messages=MessageCounts(tally.sent, tally.received, tally.used, tally.wasted, tally.lost),
            staleness=None if ages is None else float(ages.mean()),
            staleness_95=None if ages is None else float(np.quantile(ages, 0.95)),
            busy=sum(one.busy_for() for one in contexts) / there if there else 0.0,
            uplink=self._uplink(there),
            online=sum(one.on for one in contexts),
        )

    def _uplink(self, there: int) -> float | None:
        if not np.isfinite(np.asarray(self.world.uplink, dtype=float)).all() or not there:
            return None
        free = getattr(self.links, "free", [0] * self.n)
        sent = sum(busy - max(0, at - self.now) for busy, at in zip(self.links.busy, free, strict=True))
        return float(sent / there)

    def check_laws(self) -> None:
        """Check invariants: every message and byte sent is received, lost or on its way; no node trains longer than it is online."""
        t = self.tally
        held = sum(one.node.messages_held() for one in self.contexts)
        laws = {
            "messages sent": (t.sent, t.received + t.lost + t.in_flight),
            "bytes sent": (t.bytes_sent, t.bytes_received + t.bytes_lost + t.bytes_in_flight),
            "messages received": (t.received, t.used + t.wasted + held),
        }
        for what, (left, right) in laws.items():
            if left != right:
                raise RunFailed(f"internal error: {left} {what}, but {right} accounted for")
        if self.when_off != "finish":
            for one in self.contexts:
                if one.busy_for() > one.online_for():
                    raise RunFailed(f"internal error: node {one.id} trained for longer than it was online")
