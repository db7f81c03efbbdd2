"""Hosted nodes: the nodes that a process runs. Each has its protocol, its run directory, and its counters of sent messages.

The class depends on the method: `SynchronousNode` keeps the messages of its rounds for peers that ask again, `AsynchronousNode` keeps the state of its
protocol as of the last saved model. Everything else in a process is the same for both.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from epidemic.algorithms import Rows
from epidemic.algorithms.asynchronous import Message
from epidemic.core.errors import EpidemicError
from epidemic.deploy.epoch import first_number
from epidemic.deploy.keys import Identity
from epidemic.deploy.outbox import Outgoing
from epidemic.deploy.status import Status
from epidemic.deploy.views import RoundViews
from epidemic.deploy.wire import STATE_TRANSFER, MessageFormat
from epidemic.protocol import events as e
from epidemic.protocol.asynchronous import Asynchronous, Memory
from epidemic.protocol.events import SECOND
from epidemic.protocol.member import Member
from epidemic.protocol.rounds import Rounds
from epidemic.protocol.rules import Count
from epidemic.record import HEADER_BYTES, HeardCounts, MessageCounts, Moment
from epidemic.runtime.message_coding import message_in
from epidemic.runtime.recorder import ExtraState, RunRecorder

KEPT = ("lost", "jumped", "taken", "expected", "heard", "lonely", "asked", "longest_wait")
"""Counters kept over a restart, besides messages by outcome."""
KNOWN, SAMPLE = "known", "sample"
"""Keys of a checkpoint for the view and the sample of a node."""
COMMITTED = "committed"
"""Key of a checkpoint for the commitments of peers."""


class HostedNode:
    """A node that this process runs, of any method."""

    def __init__(self, identity: Identity, position: int, recorder: RunRecorder, format: MessageFormat) -> None:
        """Prepare a node; `position` is its row among those of the process."""
        self.identity = identity
        self.node_id = identity.node_id
        self.position = position
        self.recorder = recorder
        self.format = format
        self.samples = int(recorder.setup.samples[position])
        self.member: Member
        self.error: EpidemicError | None = None
        self.over = False
        self.mended = 0  # models discarded because received numbers had made them invalid
        self._lock = threading.Lock()
        self._messages = self._bytes = self._asked = self._told = 0
        self.undelivered = self.local = 0
        self._repeated: Counter[str] = Counter()  # messages that were recognised as repeated and not read

    # -- messages -----------------------------------------------------------------------------------------------------

    def sent(self, messages: int, left: bool, *, local: bool = False, each: int | None = None) -> None:
        """Count messages that were sent or could not be; thread-safe. `each`: bytes of each message's numbers, if not the usual ones."""
        with self._lock:
            if left:
                self._messages += messages
                self._bytes += messages * (self.format.body_bytes if each is None else each)
                self.local += messages * local
            else:
                self.undelivered += messages

    def repeated(self, outcome: str) -> None:
        """Count a message that was not read because it, or enough of its kind, had arrived before; thread-safe."""
        with self._lock:
            self._repeated[outcome] += 1

    @property
    def messages(self) -> Counter[str]:
        """Messages by outcome, including those that were not read."""
        with self._lock:
            return Counter(self.tally) + self._repeated

    def told(self, numbers: int) -> None:
        """Count bytes sent to find peers, which are no messages of the method."""
        with self._lock:
            self._told += numbers

    def settle_books(self) -> None:
        """Add what was sent since the last call to the run's counters."""
        with self._lock:
            messages, self._messages = self._messages, 0
            numbers, self._bytes = self._bytes, 0
            told, self._told = self._told, 0
        asked, self._asked = self.member.count.asked - self._asked, self.member.count.asked
        self.recorder.counters.sent(messages, numbers, asked, told)

    def give(self, action: e.Give, columns: dict[str, Tensor]) -> None:
        """Answer a returning node that asked for the current model."""
        given = Outgoing(max(self.member.round, 0), (action.to,), columns, kind=STATE_TRANSFER)
        action.reply(bytes(given.sealed(self)))
        self.sent(1, True, each=self.format.model_bytes)

    def mark(self, state: str, why: str = "") -> None:
        """Write the state to the run directory, unless the run is finished."""
        run_directory = self.recorder.run_directory
        if run_directory is not None and not run_directory.finished and not self.recorder.unconfirmed:
            run_directory.mark(state, why)

    # -- what a class of nodes adds -----------------------------------------------------------------------------------

    @property
    def tally(self) -> Mapping[str, int]:
        """Messages of this node by outcome."""
        raise NotImplementedError

    @property
    def stands(self) -> str:
        """The node's progress in words."""
        raise NotImplementedError

    def ended(self, extra: ExtraState | None) -> bool:
        """Whether the node was stopped in its final evaluation; `extra` is what its checkpoint added."""
        raise NotImplementedError

    def extra(self) -> ExtraState:
        """What a checkpoint contains besides the model."""
        raise NotImplementedError

    def more_status(self) -> dict[str, Any]:
        """Further entries of the node's status."""
        return {}

    # -- what is saved ------------------------------------------------------------------------------------------------

    def tallies(self) -> dict[str, int]:
        """The counters for a checkpoint."""
        count = self.member.count
        found = {f"messages.{k}": v for k, v in self.messages.items()}
        found |= {f"refused.{k}": v for k, v in count.refused.items()}
        return found | {k: getattr(count, k) for k in KEPT}

    def counted(self, tallies: Mapping[str, int]) -> tuple[dict[str, int], Count]:
        """The counters of a checkpoint: (messages by outcome, others)."""
        count, tally = Count(), dict[str, int]()
        for key, value in tallies.items():
            kind, _, what = key.partition(".")
            if kind == "messages":
                tally[what] = value
            elif kind == "refused":
                count.refused[what] = value
            elif hasattr(count, key):
                setattr(count, key, value)
        self._asked = count.asked
        return tally, count

    # -- for people ---------------------------------------------------------------------------------------------------

    def status(self, refused: dict[str, int]) -> Status:
        """The node's status; `refused`: what its process has refused, by reason."""
        member, recorder = self.member, self.recorder
        count, tally = member.count, self.messages
        last = recorder.records[-1] if recorder.records else None
        refusals = dict(count.refused)
        for reason, times in refused.items():
            refusals[reason] = refusals.get(reason, 0) + times
        if self.mended:
            refusals["insane"] = refusals.get("insane", 0) + self.mended
        sent = recorder.counters
        about: dict[str, Any] = {
            "round": max(member.round, member.done),
            "rounds": member.rules.rounds,
            "undelivered": self.undelivered,
            "limit": 0.0,
        }
        return Status(
            node_id=self.node_id,
            state=member.phase,
            accuracy=None if last is None or last.accuracy is None else last.accuracy.mean,
            loss=None if last is None else last.loss.mean,
            bytes=int(sent.model[0] + sent.header[0] + sent.control[0]),
            alive=1 + len(member.membership.alive(member.now)),
            nodes=recorder.experiment.nodes,
            late=max(0, tally.get("late", 0)),
            lost=count.lost,
            refused=sum(refusals.values()),
            jumped=count.jumped,
            longest_wait=round(count.longest_wait / SECOND, 3),
            messages={k: v for k, v in tally.items() if v > 0},
            refusals={k: v for k, v in refusals.items() if v > 0},
            local=self.local,
            clock=round(time.time(), 3),
            **about | self.more_status(),
        )


class SynchronousNode(HostedNode):
    """A hosted node of a method with rounds."""

    member: Rounds

    def __init__(
        self, identity: Identity, position: int, recorder: RunRecorder, format: MessageFormat, views: RoundViews
    ) -> None:
        """Prepare a node.

        Args:
            identity: Its certificate and key.
            position: Its row among those of the process.
            recorder: Writes its run directory.
            format: The messages of the run.
            views: The rounds as the nodes of this process see them.
        """
        super().__init__(identity, position, recorder, format)
        recorder.delivery = self.delivery
        self.views = views
        self.kept: dict[int, Outgoing] = {}  # its messages by round, for peers that ask again
        self.message: Rows = {}  # result of the local update of the current round   # (1, ...)
        self.loss = torch.zeros(1)
        self.before: Rows | None = None  # its state at the start of the round
        self.own: Rows | None = None  # its state before the last aggregation
        self.remembers: Callable[[], dict[str, bytes]] | None = (
            None  # returns the saved view, if it knows only some of its peers
        )

    # -- messages -----------------------------------------------------------------------------------------------------

    def outgoing(self, round: int, columns: Mapping[str, Tensor] | None = None) -> Outgoing:
        """The node's message of a round, kept for questions; without `columns`, the result of its last local update, even of an earlier round."""
        if columns is None:
            columns = {name: rows[0] for name, rows in message_in(self.message).items()}
        view = self.views(self.node_id, round)
        numbers = (self.samples,) if self.format.most_samples else ()
        self.kept[round] = Outgoing(round, view.targets, dict(columns), view.graph, numbers=numbers)
        return self.kept[round]

    def forget(self, before: int) -> None:
        """Discard messages of rounds before this one."""
        self.kept = {round: message for round, message in self.kept.items() if round >= before}

    def mixed(self, round: int, heard: Sequence[int]) -> None:
        """A round is over, with messages of these senders."""

    @property
    def tally(self) -> Mapping[str, int]:
        """Messages of this node by outcome."""
        return self.member.mailbox.tally

    # -- what is saved ------------------------------------------------------------------------------------------------

    def extra(self) -> ExtraState:
        """What a checkpoint contains besides the model: counters, and with a barrier the messages that peers may ask for again."""
        tensors: dict[str, Tensor] = {}
        if self.member.rules.barrier:
            for round, message in list(self.kept.items()):
                tensors |= {f"message.{round}.{name}": row for name, row in message.columns.items()}
        if self.remembers is not None:
            for name, raw in self.remembers().items():
                tensors[name] = torch.tensor(list(raw), dtype=torch.uint8)
        if self.member.coin is not None:
            tensors[COMMITTED] = torch.tensor(list(self.member.coin.saved), dtype=torch.uint8)
        return ExtraState(tensors, self.tallies())

    def restored(self, extra: ExtraState | None) -> tuple[dict[str, int], Count, dict[int, tuple[int, ...]]]:
        """What a checkpoint added: (messages by outcome, other counters, targets of the kept messages by round)."""
        if extra is None:
            return {}, Count(), {}
        tally, count = self.counted(extra.tallies)
        columns: dict[int, dict[str, Tensor]] = {}
        for key, row in extra.tensors.items():
            if key.startswith("message."):
                _, number, name = key.split(".", 2)
                columns.setdefault(int(number), {})[name] = row
        for round in sorted(columns):
            self.outgoing(round, columns[round])
        return tally, count, {round: message.targets for round, message in self.kept.items()}

    def ended(self, extra: ExtraState | None) -> bool:
        """Whether it was stopped in its final evaluation."""
        return self.recorder.over and self.recorder.recorded == self.recorder.experiment.rounds

    # -- for people ---------------------------------------------------------------------------------------------------

    @property
    def stands(self) -> str:
        """The node's progress in words."""
        return f"round {self.recorder.done} of {self.recorder.experiment.rounds}"

    def delivery(self) -> HeardCounts:
        """How many of the expected messages counted. Parts are read before sums, because another thread may go on counting."""
        recent, count = list(self.member.recent), self.member.count
        lonely = count.lonely
        return HeardCounts(
            rounds=count.taken,
            lonely=min(lonely, count.taken),
            expected=count.expected,
            heard=count.heard,
            recent_rounds=min(len(recent), count.taken),
            recent_expected=sum(expected for _, expected in recent),
            recent_heard=sum(heard for heard, _ in recent),
        )

    def more_status(self) -> dict[str, Any]:
        """The entries of its status about rounds."""
        rounds = self.member
        return {
            "undelivered": self.undelivered + rounds.offers.undelivered,
            "limit": round(rounds.adaptive_timeout.limit / SECOND, 3),
            "known": None if rounds.known is None else len(rounds.known.sampler.node_ids),
            "delivery": self.delivery(),
        }


class AsynchronousNode(HostedNode):
    """A hosted node of an asynchronous method."""

    member: Asynchronous

    def __init__(self, identity: Identity, position: int, recorder: RunRecorder, format: MessageFormat) -> None:
        """Prepare a node; its run ends after a time, not after a number of rounds."""
        super().__init__(identity, position, recorder, format)
        recorder.rounds = float("inf")
        recorder.moment = self.moment
        self.memory = Memory()  # as of the last saved model
        self.loss: float | None = None  # of the last training
        self.own: Tensor | None = None  # result of the last training, valid whatever peers send   # (d,)
        self.busy = 0.0  # seconds of training

    @property
    def tally(self) -> Mapping[str, int]:
        """Messages of this node by outcome."""
        return self.member.tally

    def message_to_self(self, post: e.SendMessage, row: Any) -> Message:
        """The message as a node of the same process receives it."""
        return Message(self.node_id, row, post.tag, post.note, post.part, post.number)

    def moment(self) -> Moment:
        """The node's progress in time, for a record."""
        seconds = self.memory.elapsed / SECOND
        tally, sent = self.tally, int(self.recorder.counters.header[0]) // HEADER_BYTES
        messages = MessageCounts(
            sent + self.undelivered,
            tally.get("counted", 0),
            tally.get("used", 0),
            tally.get("wasted", 0),
            self.undelivered,
        )
        return Moment(
            seconds=round(seconds, 6),
            steps=self.memory.trained * self.recorder.experiment.algorithm.local_steps,
            messages=messages,
            busy=min(1.0, self.busy / seconds) if seconds else 0.0,
            online=self.recorder.alive,
        )

    # -- what is saved ------------------------------------------------------------------------------------------------

    def extra(self) -> ExtraState:
        """What a checkpoint contains besides the model: the protocol's memory and the counters."""
        memory = self.memory
        kept = {"elapsed": memory.elapsed, "trained": memory.trained, "number": memory.number}
        kept |= {"busy": int(self.busy * SECOND), "undelivered": self.undelivered}
        kept |= {f"choices.{purpose}": count for purpose, count in memory.choices.items()}
        kept |= {f"state.{name}": value for name, value in memory.state.items()}
        return ExtraState({}, self.tallies() | {f"free.{key}": value for key, value in kept.items()})

    def restored(self, extra: ExtraState | None) -> tuple[Memory, dict[str, int], Count]:
        """What a checkpoint added: (memory, messages by outcome, other counters).

        Messages are numbered from a new epoch on, so numbers grow although messages were sent after the checkpoint.
        """
        memory, tally, count = Memory(), dict[str, int](), Count()
        if extra is not None:
            tally, count = self.counted({k: v for k, v in extra.tallies.items() if not k.startswith("free.")})
            kept = {k.removeprefix("free."): v for k, v in extra.tallies.items() if k.startswith("free.")}
            memory.elapsed, memory.trained, memory.number = (kept.pop(k, 0) for k in ("elapsed", "trained", "number"))
            self.busy, self.undelivered = kept.pop("busy", 0) / SECOND, kept.pop("undelivered", 0)
            for key, value in kept.items():
                kind, _, name = key.partition(".")
                (memory.choices if kind == "choices" else memory.state)[name] = value
        memory.number = first_number(self.identity.folder, memory.number)
        self.memory = memory
        return memory, tally, count

    @property
    def _stop(self) -> float:
        """Seconds after which the run ends."""
        clock = self.recorder.experiment.clock
        assert clock is not None
        return float(clock.stop)

    def ended(self, extra: ExtraState | None) -> bool:
        """Whether it was stopped in its final evaluation."""
        return extra is not None and extra.tallies.get("free.elapsed", 0) >= round(self._stop * SECOND)

    # -- for people ---------------------------------------------------------------------------------------------------

    @property
    def stands(self) -> str:
        """The node's progress in words."""
        seconds = min(self.memory.elapsed / SECOND, self._stop)
        return f"{self.recorder.done} trainings, second {seconds:.0f} of {self._stop:g}"

    def more_status(self) -> dict[str, Any]:
        """The entries of its status about trainings and the remaining time."""
        free = self.member
        left = (free.rules.stop - free.elapsed) / SECOND
        return {"round": max(free.round, 0), "trained": free.trained, "left": round(max(0.0, left), 3)}
