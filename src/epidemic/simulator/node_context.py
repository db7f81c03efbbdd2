"""The context of one node under the simulated clock: its state, and what its method can ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappush
from typing import TYPE_CHECKING, Any

from epidemic.algorithms.asynchronous import Message, Node, Row, Term
from epidemic.runtime.lazy_models import LazyCut, LazyMixture, LazyPatch, LazyTraining, aggregate_of
from epidemic.simulator.links import LEAVING, LOST, WITHDRAWN, Flight

if TYPE_CHECKING:
    from epidemic.simulator.clockwork import Clockwork

OFFLINE, ONLINE, ARRIVAL, TRAINED, WAKE, EVALUATE = range(6)
"""The kinds of events, in the order in which they are handled at the same time."""

NOTE_BYTES = 8
"""Bytes of one integer in a message."""


class SimulatedContext:
    """A `NodeContext` (`protocol/node.py`) under the simulated clock."""

    __slots__ = (
        "_changed", "_cuts", "_ends", "_held", "_lasts", "_model", "_remaining", "_sent", "_version", "_wakes", "before", "busy", "bytes", "control", "count",
        "finished", "id", "messages", "node", "nodes", "on", "on_since", "on_time", "result", "rounds", "since", "training", "went", "work",
    )  # fmt: skip

    node: Node

    def __init__(self, work: Clockwork, id: int, model: Any) -> None:
        self.work = work
        self.id = id
        self.nodes = work.n
        self._model = model
        self._changed = True
        self.count = 0  # trainings begun
        self.rounds = 0  # trainings or rounds completed
        self.finished = False
        self.training: Any = None  # the lazy model being trained
        self.result: Any = None  # the last completed training
        self.before: LazyTraining | None = None  # the last training begun
        self.since = 0  # when the current stretch of training began
        self.busy = 0  # microseconds of training
        self._ends = self._lasts = 0  # when the training ends, and how long it takes in all
        self._remaining: int | None = None  # remaining microseconds of a training while the node is away
        self._version = 0
        self._wakes: dict[str, int] = {}
        self._held: list[tuple[int, Any]] = []  # events while it was away
        self._cuts: tuple[Any, dict[int, LazyCut]] = (None, {})  # parts of the row that was sent last
        self._sent = 0
        self.messages = self.bytes = 0  # messages and bytes sent
        self.control = 0  # bytes of messages without a model
        self.on = True
        self.on_since = self.on_time = 0
        self.went = -1  # when it last left

    @property
    def now(self) -> int:
        """Microseconds since the start of the run."""
        return self.work.now

    @property
    def model(self) -> Any:
        """The current model, which is evaluated."""
        return self._model

    @model.setter
    def model(self, row: Any) -> None:
        self._model = row
        self._changed = True

    def taken(self) -> Any:
        """The model, if it has changed since the last call; else None."""
        changed, self._changed = self._changed, False
        return self._model if changed else None

    @property
    def static(self) -> bool:
        """Whether the node's peers are always the same."""
        return self.work.static

    def peers(self, count: int) -> Sequence[int]:
        """The peers that the topology offers for this choice, in random order."""
        return self.work.peers(self.id, count)

    def chance(self, purpose: str, count: int) -> float:
        """A number in [0, 1), keyed by this node, purpose and count."""
        return self.work.chances(purpose, self.id, count)

    # -- training -----------------------------------------------------------------------------------------------------

    def train(self, row: Row | None = None) -> None:
        """Start the local steps from this model, or from the node's own."""
        start: Any = self._model if row is None else row
        lazy_model = LazyTraining(self.id, self.count, start, self.before if self.work.remembers else None)
        self.before = lazy_model if self.work.remembers else None
        self.begin(lazy_model)

    def begin(self, lazy_model: Any) -> None:
        """Start to train a lazy model."""
        work = self.work
        if self.training is not None:
            raise RuntimeError(f"node {self.id} is to train while it trains: a method must wait for `trained`")
        self.training = work.lazy_models.new(lazy_model)
        work.lazy_models.waiting += 1
        self._lasts = work.steps * work.world.step_cost(self.id, self.count)
        self.count += 1
        self.since = work.now
        if self.on:
            self._end_at(work.now + self._lasts)
        else:
            self._remaining = self._lasts

    def _end_at(self, time: int) -> None:
        self._version += 1
        self._ends = time
        heappush(self.work.heap, (time, TRAINED, self.id, self._version, None))

    def ended(self, version: int) -> None:
        """Handle the end of a training, unless it was rescheduled."""
        if version != self._version or self.training is None:
            return
        if not self.on:  # it continued while the node was away, which learns of it on return
            self._held.append((TRAINED, version))
            return
        self._worked()
        work, row = self.work, self.training
        self.training, self.result = None, row
        work.tally.steps += work.steps
        self.node.trained(row)
        if work.free:
            self.rounds += 1
            work.progressed(1)

    def _worked(self) -> None:
        """Add the last stretch of training to `busy`."""
        now = self.work.now
        self.busy += now - self.since
        if self.work.log is not None:
            self.work.log.span(self.id, "training", self.since, now)

    # -- messages ------------------------------------------------------------------------------------------------------

    def send(
        self,
        to: Iterable[int],
        row: Row | None,
        *,
        tag: str = "",
        note: tuple[int, ...] = (),
        part: int | None = None,
        lost: Iterable[int] = (),
    ) -> None:
        """Send a message to each of these nodes; it never reaches those in `lost`."""
        work = self.work
        now, tally, body, size = work.now, work.tally, row, work.header_bytes
        if row is not None and part is None:
            size += work.message_bytes
        elif row is not None:
            assert part is not None
            size += work.part_bytes[part]
            body = self._cut(row, part)
        if note and work.free:
            size += NOTE_BYTES * len(note)
        message = Message(self.id, body, tag, note, part, now)
        for node_id in sorted(to) if work.ordered else to:
            in_vain = (work.loss and self.chance("loss", self._sent) < work.loss) or node_id in lost
            self._sent += 1
            tally.sent += 1
            tally.in_flight += 1
            tally.bytes_sent += size
            tally.bytes_in_flight += size
            self.messages += 1
            self.bytes += size
            work.links.send(Flight(message, node_id, size, LOST if in_vain else LEAVING), now)

    def _cut(self, row: Any, part: int) -> Any:
        """A part of a row; messages with the same part share it."""
        if self._cuts[0] is not row:
            self._cuts = (row, {})
        cuts = self._cuts[1]
        if part not in cuts:
            cuts[part] = self.work.lazy_models.new(LazyCut(row, part))
        return cuts[part]

    def withdraw(self) -> None:
        """Discard messages that have not begun to leave."""
        work = self.work
        tally = work.tally
        for flight in work.links.withdraw(self.id, work.now):
            flight.fate = WITHDRAWN
            tally.sent -= 1
            tally.in_flight -= 1
            tally.bytes_sent -= flight.size
            tally.bytes_in_flight -= flight.size
            self.messages -= 1
            self.bytes -= flight.size

    def used(self, messages: Iterable[Message]) -> None:
        """Count messages that went into the model."""
        tally, now = self.work.tally, self.work.now
        for message in messages:
            tally.used += 1
            tally.ages.append(now - message.sent_at)

    def dropped(self, messages: Iterable[Message]) -> None:
        """Count messages that were received but not used."""
        for _ in messages:
            self.work.tally.wasted += 1

    # -- timers and handles -------------------------------------------------------------------------------------------

    def wake_at(self, time: int, tag: str = "") -> None:
        """Call `woken(tag)` at this time."""
        work = self.work
        work.seq += 1
        self._wakes[tag] = work.seq
        heappush(work.heap, (max(time, work.now), WAKE, self.id, work.seq, tag))

    def cancel(self, tag: str) -> None:
        """Cancel the wake-up with this tag."""
        self._wakes.pop(tag, None)

    def woken(self, seq: int, tag: str) -> None:
        """Handle an expired timer."""
        if self._wakes.get(tag) != seq:
            return
        if not self.on:
            self._held.append((WAKE, (seq, tag)))
            return
        del self._wakes[tag]
        self.node.woken(tag)

    def mix(self, settings: Sequence[Term]) -> Any:
        """The weighted sum of these models, added in this order."""
        return self.work.lazy_models.new(LazyMixture(settings))  # type: ignore[arg-type]  # handles are promises here

    def aggregate(self, own: Any, messages: Sequence[Message], weights: Sequence[float] = ()) -> Any:
        """The aggregate of a model and these messages by the experiment's [aggregation]."""
        return self.work.lazy_models.new(aggregate_of(self.work.rule, own, messages, weights, self.now))

    def patch(self, base: Row, parts: Mapping[int, Sequence[Term]]) -> Any:
        """The base with some parts replaced by weighted sums."""
        return self.work.lazy_models.new(LazyPatch(base, parts))  # type: ignore[arg-type]  # handles are promises here

    # -- rounds, going and coming -------------------------------------------------------------------------------------

    def passed(self, rounds: int = 1) -> None:
        """Record that the node has completed or skipped `rounds` rounds."""
        self.rounds += rounds
        self.work.progressed(rounds)

    def finish(self) -> None:
        """Mark the node as finished."""
        if not self.finished:
            self.finished = True
            self.work.unfinished -= 1

    def leaves(self) -> None:
        """Take the node offline: its training pauses and its transfers are lost, as the experiment says."""
        work = self.work
        now = work.now
        self.on, self.went = False, now
        self.on_time += now - self.on_since
        if self.training is not None and work.when_off != "finish":
            self._worked()
            self._version += 1
            self._remaining = self._ends - now if work.when_off == "pause" else self._lasts
        if work.transfers == "drop":
            for flight in work.links.cut(self.id, now):
                flight.fate = WITHDRAWN
                work.lost(flight)

    def returns(self) -> None:
        """Bring the node back: its training continues, and it gets the events that it missed."""
        work = self.work
        now = work.now
        if work.log is not None:
            work.log.span(self.id, "offline", max(self.went, 0), now)
        self.on, self.on_since = True, now
        if self._remaining is not None:
            self.since = now
            self._end_at(now + self._remaining)
            self._remaining = None
        held, self._held = self._held, []
        for kind, what in held:
            if kind == TRAINED:
                self.ended(what)
            else:
                self.woken(*what)
        self.node.online()

    def online_for(self) -> int:
        """Microseconds that the node has been online."""
        return self.on_time + (self.work.now - self.on_since if self.on else 0)

    def busy_for(self) -> int:
        """Microseconds that the node has trained."""
        trains = self.training is not None and self._remaining is None
        return self.busy + (self.work.now - self.since if trains else 0)
