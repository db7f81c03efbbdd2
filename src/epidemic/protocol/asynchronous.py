"""The protocol of one node of a method without rounds: from its beginning to its stop it tells the method's state machine what happens.

    looking -> (adopting ->) learning -> concluding -> lingering -> left

What it says of itself, where others say their round, is the second of the run that it is in: so who comes back learns from two others
how far the run is, and ends with them. A node that returns goes on with the model that it had saved; one that has none takes somebody's.
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
"""Trainings a second that are believed of anybody, one after the other; what messages say of ages and counts cannot grow faster."""
ALLOWED = 60
"""Seconds by which clocks of nodes may seem to differ in that."""


@dataclass(frozen=True)
class AsynchronousRules(Rules):
    """What such a node goes by besides. Times in microseconds."""

    stop: int = 0  # how long the run lasts
    evaluate: int = 0  # how often the model is evaluated; 0: by trainings
    every: int = 1  # trainings between evaluations, if not by time
    save: int = 0  # how often it is saved; 0: never by time
    save_every: int = 0  # trainings between savings; 0: never by trainings
    parts: int = 1  # into how many parts a model is cut for messages
    steps: int = 1  # local steps of a training


@dataclass
class Memory:
    """What a node remembers over a restart, besides its model."""

    elapsed: int = 0  # microseconds of the run
    trained: int = 0  # trainings that are done
    number: int = 0  # of its last message
    choices: dict[str, int] = field(default_factory=dict)  # by purpose: how many random choices it has made
    state: dict[str, int] = field(default_factory=dict)  # the method's own


class Asynchronous(Member):
    """One node's decisions, without rounds."""

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
        """`memory`: what it remembers of before a restart; None: it is new."""
        self._memory = Memory() if memory is None else memory
        super().__init__(rules, draw, token, done=self._memory.elapsed // SECOND, count=count)
        self.body = DeployedContext(self, chances, rows, model)
        self._make = make
        self._machine: Node | None = None
        self._intake = ReplayFilter(rules.parts)
        self.tally: Counter[str] = Counter(tally or {})  # messages by what became of them
        self.trained = self._memory.trained
        self.number = self._memory.number
        self.origin = 0  # when the run began, by this node's clock
        self._training = False
        self._looking = False  # whether it is being evaluated or saved
        self._alarms: dict[str, int] = {}

    # -- from the beginning to the end --------------------------------------------------------------------------------

    @property
    def wants_model(self) -> bool:
        """Whether it takes somebody's model: only where it has none of its own."""
        return self.rules.adopt and self.trained == 0

    @property
    def elapsed(self) -> int:
        """Microseconds of the run that are over."""
        return min(self.now - self.origin, self.rules.stop) if self.begun else self._memory.elapsed

    def go_to(self, round: int, how: str) -> None:
        """The others are in the second before this one."""
        second = min(round - 1, self.rules.rounds)
        self.say(f"the others are in second {second}: going on from there instead of {self.done}, {how}")
        self.count.jumped += max(0, second - self.done)
        self._memory.elapsed = max(self._memory.elapsed, min(second * SECOND, self.rules.stop))
        self.done = self.start = second

    def started(self) -> None:
        """Its first model is evaluated while it looks for the others: afterwards the clock runs."""
        self._look(evaluate=True)

    def open(self) -> None:
        """Begin to learn, or come to the end at once."""
        rules, memory = self.rules, self._memory
        self.origin = self.now - memory.elapsed
        if memory.elapsed >= rules.stop:
            if self.count.taken:
                self.end()
            else:
                self.fail("the others were at their end before this node learnt anything")
            return
        self.enter("learning")
        self.round = memory.elapsed // SECOND
        self.act(SetTimer("stop", self.origin + rules.stop))
        machine = self._machine = self._make(self.body)
        if memory.state:
            machine.restore(memory.state)
        else:
            self.body.skip(memory.choices)
        for name, pause in (("evaluate", rules.evaluate), ("save", rules.save)):
            if pause:
                self._again(name, pause)
        machine.started()

    def step(self, event: Event, now: int) -> list[Any]:
        """What to do about an event at this time."""
        if self.phase == "learning":
            self.round = max(self.round, min((now - self.origin) // SECOND, self.rules.rounds))
        return super().step(event, now)

    def end(self) -> None:
        """The time is up; messages that have not left are of no use to anybody."""
        self.act(Withdraw())
        super().end()

    def timer(self, name: str) -> None:
        """The time has come that was asked for."""
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
        """Have a timer at the next multiple of a pause."""
        self.act(SetTimer(name, self.origin + (self.elapsed // pause + 1) * pause))

    def _look(self, *, evaluate: bool) -> None:
        if not self._looking:
            self._looking = True
            self.act(Look(self.body.model, self.memory(), evaluate))

    def memory(self) -> Memory:
        """What to remember over a restart, as it is now."""
        if self._machine is None:
            return self._memory
        return Memory(
            self.elapsed, self.trained, self.number, dict(self.body.choices), dict(self._machine.state())
        )  # fmt: skip

    def renewed(self) -> None:
        """The connections were opened anew: the node was away, perhaps."""
        if self.phase == "learning" and self._machine is not None:
            self._machine.online()

    # -- what happens -------------------------------------------------------------------------------------------------

    def on(self, event: Event) -> None:
        """A message came, or something was computed."""
        match event:
            case Came():
                self._came(event)
            case Learnt():
                self._learnt(event)
            case Looked():
                self._looking = False
            case Mended():
                self.body.model = event.row

    def _came(self, event: Came) -> None:
        if self.phase != "learning" or self._machine is None:
            self.tally["late" if self.begun else "early"] += 1
            return
        most = FASTEST * self.rules.steps * (self.elapsed // SECOND + ALLOWED)
        if not all(0 <= number <= most for number in event.note):
            self.count.refused["implausible"] += 1
            self.say_once(
                f"implausible {event.sender}",
                f"refused a message of node {event.sender}: ages that nobody can have (further ones are counted only)",
            )
            return
        outcome = self._intake.put(event.sender, event.number, self.now)
        self.tally[outcome] += 1
        if outcome != "counted":
            return
        self.membership.heard(event.sender, self.round, self.now)
        before = self.body.model
        self._machine.received(event.message)
        if self.body.model is not before:
            self.act(ComputeModel(self.body.model))

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
        if at > self.now:  # it was asked for again meanwhile
            self.act(SetTimer(f"wake {tag}", at))
            return
        del self._alarms[tag]
        self._machine.woken(tag)

    # -- what the machine wants done; only `DeployedContext` calls these ------------------------------------------------------------

    def train(self, row: Row) -> None:
        """Have a model trained."""
        if self._training:
            raise RuntimeError("a node trains one thing at a time: wait for `trained` before the next `train`")
        self._training = True
        self.act(Learn(self.trained, row))

    def post(self, to: tuple[int, ...], row: Row, tag: str, note: tuple[int, ...], part: int | None) -> None:
        """Have a message sent."""
        if to:
            self.number += 1
            self.act(SendMessage(self.number, to, row, tag, note, part))

    def alarm(self, tag: str, at: int | None) -> None:
        """Wake the machine at this time of the run; None: no more."""
        if at is None:
            self._alarms.pop(tag, None)
        else:
            self._alarms[tag] = self.origin + at
            self.act(SetTimer(f"wake {tag}", self.origin + at))
