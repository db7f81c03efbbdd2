"""The protocol of one deployed node of an asynchronous method: it drives the method's state machine from start to stop.

    looking -> (adopting ->) learning -> concluding -> lingering -> left

Instead of a round, the node reports the second of the run. A node that returns learns the current second from two peers and stops at the same time as
they do. It continues with its saved model, or with a peer's model if it has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from epidemic.protocol.deployed_context import DeployedContext, ModelMaker, NodeChances
from epidemic.protocol.events import (
    SECOND,
    Came,
    ComputeModel,
    Event,
    Learn,
    Learnt,
    Look,
    Looked,
    Mended,
    SendMessage,
    SetTimer,
    Withdraw,
)
from epidemic.protocol.member import Member
from epidemic.protocol.node import Node, Row
from epidemic.protocol.replay_filter import ReplayFilter
from epidemic.protocol.rules import Count, Draw, Rules

FASTEST = 10_000
"""Most consecutive trainings per second that a node can plausibly do; bounds the ages and counters that messages may claim."""
ALLOWED = 60
"""Tolerated difference between the clocks of two nodes, in seconds, for this check."""


@dataclass(frozen=True)
class AsynchronousRules(Rules):
    """Settings of an asynchronous node. Times in microseconds."""

    stop: int = 0  # length of the run
    evaluate: int = 0  # time between evaluations; 0: count trainings instead
    every: int = 1  # trainings between evaluations, if they are not timed
    save: int = 0  # time between saves; 0: never by time
    save_every: int = 0  # trainings between saves; 0: never by trainings
    parts: int = 1  # parts that a model is cut into for messages
    steps: int = 1  # local steps of a training


@dataclass
class Memory:
    """State that a node keeps over a restart, besides its model."""

    elapsed: int = 0  # microseconds of the run so far
    trained: int = 0  # trainings done
    number: int = 0  # number of its last message
    choices: dict[str, int] = field(default_factory=dict)  # random choices made so far, by purpose
    state: dict[str, int] = field(default_factory=dict)  # state of the method itself


class Asynchronous(Member):
    """The state machine of one deployed node of an asynchronous method."""

    unit = "second"
    rules: AsynchronousRules

    def __init__(
        self,
        rules: AsynchronousRules,
        make: Callable[[Any], Node],
        chances: NodeChances,
        rows: ModelMaker,
        model: Row,
        draw: Draw,
        token: str,
        *,
        memory: Memory | None = None,
        tally: Mapping[str, int] | None = None,
        count: Count | None = None,
    ) -> None:
        """Start a node; `memory` is its state before a restart, None for a new node."""
        self._memory = Memory() if memory is None else memory
        super().__init__(rules, draw, token, done=self._memory.elapsed // SECOND, count=count)
        self.context = DeployedContext(self, chances, rows, model)
        self._make = make
        self._machine: Node | None = None
        self._replay_filter = ReplayFilter(rules.parts)
        self.tally: Counter[str] = Counter(tally or {})  # messages by outcome
        self.trained = self._memory.trained
        self.number = self._memory.number
        self.origin = 0  # when the run began, on this node's clock
        self._training = False
        self._looking = False  # whether an evaluation or a save is in progress
        self._alarms: dict[str, int] = {}

    # -- from the beginning to the end --------------------------------------------------------------------------------

    @property
    def wants_model(self) -> bool:
        """Whether the node needs a peer's model: only if it has never trained."""
        return self.rules.adopt and self.trained == 0

    @property
    def elapsed(self) -> int:
        """Microseconds of the run so far."""
        return min(self.now - self.origin, self.rules.stop) if self.begun else self._memory.elapsed

    def go_to(self, round: int, how: str) -> None:
        """Continue at the second that the peers have reached."""
        second = min(round - 1, self.rules.rounds)
        self.say(f"the others are in second {second}: going on from there instead of {self.done}, {how}")
        self.count.jumped += max(0, second - self.done)
        self._memory.elapsed = max(self._memory.elapsed, min(second * SECOND, self.rules.stop))
        self.done = self.start = second

    def started(self) -> None:
        """Evaluate the initial model while looking for peers; the clock starts afterwards."""
        self._look(evaluate=True)

    def open(self) -> None:
        """Begin to learn, or end at once if the time is already up."""
        rules, memory = self.rules, self._memory
        self.origin = self.now - memory.elapsed
        if memory.elapsed >= rules.stop:
            if self.count.taken:
                self.end()
            else:
                self.fail("all peers finished before this node learnt anything")
            return
        self.enter("learning")
        self.round = memory.elapsed // SECOND
        self.act(SetTimer("stop", self.origin + rules.stop))
        machine = self._machine = self._make(self.context)
        if memory.state:
            machine.restore(memory.state)
        else:
            self.context.skip(memory.choices)
        for name, pause in (("evaluate", rules.evaluate), ("save", rules.save)):
            if pause:
                self._again(name, pause)
        machine.started()

    def step(self, event: Event, now: int) -> list[Any]:
        """Return the actions that follow from an event at this time."""
        if self.phase == "learning":
            self.round = max(self.round, min((now - self.origin) // SECOND, self.rules.rounds))
        return super().step(event, now)

    def end(self) -> None:
        """End the run and withdraw unsent messages, which no peer needs any more."""
        self.act(Withdraw())
        super().end()

    def timer(self, name: str) -> None:
        """Handle a timer that has expired."""
        if self.phase != "learning" or name in ("greet", "look"):
            super().timer(name)
        elif name == "stop":
            self.end()
        elif name == "evaluate":
            self._look(evaluate=True)
            self._again(name, self.rules.evaluate)
        elif name == "save":
            self._look(evaluate=False)
            self._again(name, self.rules.save)
        else:
            self._alarm(name.removeprefix("wake "))

    def _again(self, name: str, pause: int) -> None:
        """Set a timer to the next multiple of `pause`."""
        self.act(SetTimer(name, self.origin + (self.elapsed // pause + 1) * pause))

    def _look(self, *, evaluate: bool) -> None:
        if not self._looking:
            self._looking = True
            self.act(Look(self.context.model, self.memory(), evaluate))

    def memory(self) -> Memory:
        """The state to keep over a restart, as it is now."""
        if self._machine is None:
            return self._memory
        return Memory(
            self.elapsed, self.trained, self.number, dict(self.context.choices), dict(self._machine.state())
        )  # fmt: skip

    def renewed(self) -> None:
        """Tell the method that the connections were reopened: the node may have been away."""
        if self.phase == "learning" and self._machine is not None:
            self._machine.online()

    # -- what happens -------------------------------------------------------------------------------------------------

    def on(self, event: Event) -> None:
        """Handle a message or the result of a computation."""
        match event:
            case Came():
                self._came(event)
            case Learnt():
                self._learnt(event)
            case Looked():
                self._looking = False
            case Mended():
                self.context.model = event.row

    def _came(self, event: Came) -> None:
        if self.phase != "learning" or self._machine is None:
            self.tally["late" if self.begun else "early"] += 1
            return
        most = FASTEST * self.rules.steps * (self.elapsed // SECOND + ALLOWED)
        if not all(0 <= number <= most for number in event.note):
            self.count.refused["implausible"] += 1
            self.say_once(
                f"implausible {event.sender}",
                f"refused a message of node {event.sender}: implausible ages (further ones are only counted)",
            )
            return
        outcome = self._replay_filter.put(event.sender, event.number, self.now)
        self.tally[outcome] += 1
        if outcome != "counted":
            return
        self.membership.heard(event.sender, self.round, self.now)
        before = self.context.model
        self._machine.received(event.message)
        if self.context.model is not before:
            self.act(ComputeModel(self.context.model))

    def _learnt(self, event: Learnt) -> None:
        if not self._training or event.count != self.trained or self.phase != "learning" or self._machine is None:
            return
        self._training = False
        self.trained += 1
        self.count.taken += 1
        self._machine.trained(event.row)
        rules = self.rules
        evaluate = not rules.evaluate and self.trained % rules.every == 0
        if evaluate or (rules.save_every and self.trained % rules.save_every == 0):
            self._look(evaluate=evaluate)

    def _alarm(self, tag: str) -> None:
        at = self._alarms.get(tag)
        if at is None or self._machine is None:
            return
        if at > self.now:  # it was postponed meanwhile
            self.act(SetTimer(f"wake {tag}", at))
            return
        del self._alarms[tag]
        self._machine.woken(tag)

    # -- what the machine wants done; only `DeployedContext` calls these ------------------------------------------------------------

    def train(self, row: Row) -> None:
        """Train a model; one at a time."""
        if self._training:
            raise RuntimeError("a node trains one thing at a time: wait for `trained` before the next `train`")
        self._training = True
        self.act(Learn(self.trained, row))

    def post(self, to: tuple[int, ...], row: Row, tag: str, note: tuple[int, ...], part: int | None) -> None:
        """Send a message; see `NodeContext.send`."""
        if to:
            self.number += 1
            self.act(SendMessage(self.number, to, row, tag, note, part))

    def alarm(self, tag: str, at: int | None) -> None:
        """Wake the method with this tag at this time of the run; None cancels it."""
        if at is None:
            self._alarms.pop(tag, None)
        else:
            self._alarms[tag] = self.origin + at
            self.act(SetTimer(f"wake {tag}", self.origin + at))
