"""Member: what every deployed node does besides learning, whatever its method: it looks for the others, greets them, answers them, and comes to its end.

    looking -> (adopting ->) ... learning, as the method has it ... -> concluding -> lingering -> left

What a method adds is a class derived from this one: `rounds.Rounds` for methods with rounds, `free.Free` for those without. How it begins is in
`search`, whom it knows in `introductions`, what it gives away in `state_transfer`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from epidemic.protocol.events import (
    NOTHING,
    SECOND,
    Action,
    Adopted,
    Answer,
    Answered,
    AnswerEntries,
    Approached,
    Ask,
    Asked,
    Conclude,
    Concluded,
    Event,
    Fail,
    Greet,
    Introduced,
    Leave,
    Present,
    Renewed,
    Say,
    SetTimer,
    Started,
    Timer,
    Ungreeted,
    Void,
)
from epidemic.protocol.introductions import Introductions
from epidemic.protocol.membership import Membership
from epidemic.protocol.rules import Count, Draw, Rules
from epidemic.protocol.search import Search
from epidemic.protocol.state_transfer import StateTransfer

TICK = SECOND // 2
"""How often it is looked whether a wait is over for reasons that no event tells."""
TELL_END = 2 * SECOND
"""How often a node at its end says so: the news may have got lost, or that of the others."""

LINGER = 2 * SECOND
"""How long at least a node that has finished stays for the others, however short their rounds are."""


class Member:
    """One node's decisions, as far as every method has them."""

    unit: ClassVar[str]
    """What `round` counts, in a word."""
    commitment: bytes = b""
    """What this node commits itself to in its hellos, where the coin is a committed one."""

    def __init__(
        self, rules: Rules, draw: Draw, token: str, *, done: int, count: Count | None, membership: Any = None
    ) -> None:
        """`done` rounds, or whatever is counted like them, are behind it.

        `membership`: who the others are, where something else than greetings and heartbeats tells it; it answers what a `Membership` does.
        """
        self.rules = rules
        self.draw = draw
        self.token = token
        self.membership: Membership = membership or Membership(
            rules.node_id, rules.nodes, rules.rounds, token=token, deadline=rules.deadline, witnesses=rules.witnesses
        )
        self.introductions = Introductions(self)
        self.search = Search(self)
        self.state_transfer = StateTransfer(self)
        self.count = Count() if count is None else count
        self.phase = "starting"
        self.done = self.start = done
        self.round = -1  # the one that it is in
        self.now = 0
        self.began = 0  # when this phase began
        self._acts: list[Action] = []
        self._timers: dict[str, int] = {}  # when timers come
        self._said: set[str] = set()
        self._told_end = 0  # when the others were told last that this node has come to its end

    def step(self, event: Event, now: int) -> list[Action]:
        """What to do about an event at this time."""
        self.now = now
        if self.phase in ("left", "failed"):
            return _last_answer(event)
        acts = self._acts = []
        self._on(event)
        self.introductions.tell()
        return acts

    def _on(self, event: Event) -> None:
        match event:
            case Timer():
                self.timer(event.name)
            case Introduced():
                self.introductions.introduced(event)
            case Asked():
                if event.topic == "model":
                    self.state_transfer.asked(event)
                else:
                    self.asked(event)
            case Answered():
                if event.topic == "model":
                    self.search.answered(event)
                else:
                    self.answered(event)
            case Present():
                self.membership.shown(event.node_id, event.token, event.there, self.now)
                self.introductions.changed()
            case Ungreeted():
                self.introductions.ungreeted(event.node_id)
            case Void():
                self.membership.void(event.node_ids)
                self.introductions.changed()
            case Adopted():
                self.search.adopted()
            case Concluded():
                self._concluded()
            case Renewed():
                self.membership.withdrawn(self.token, self.now)
                self.token = self.membership.token = event.token
                self.renewed()
            case Started():
                self.enter("looking")
                self.wake("look", self.now + TICK)
                self.started()
            case _:
                self.on(event)

    # -- what a method adds -------------------------------------------------------------------------------------------

    def on(self, event: Event) -> None:
        """Something happened that only the method knows."""
        raise NotImplementedError

    def started(self) -> None:
        """It has its place in the network, and looks for the others."""

    def open(self) -> None:
        """The others are there: begin."""
        raise NotImplementedError

    def go_to(self, round: int, how: str) -> None:
        """The others have begun without this node: go on where they are."""
        raise NotImplementedError

    @property
    def wants_model(self) -> bool:
        """Whether it takes somebody's model where the others have begun without it."""
        return self.rules.adopt

    def waiting(self) -> None:
        """Look whether what is waited for while learning has come."""

    def asked(self, event: Asked) -> None:
        """Somebody asks for something else than a model."""
        self.act(Answer(event.reply, NOTHING))

    def answered(self, event: Answered) -> None:
        """Something else than a model was asked for, and this is the answer."""

    def renewed(self) -> None:
        """The connections were opened anew."""

    def commits(self, handshake: Introduced) -> bool:
        """Whether a node commits itself as it must, and as it did before."""
        return True

    def met(self, node_id: int) -> None:
        """Somebody introduced itself who does the same."""

    # -- what every part uses -----------------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Have something done."""
        self._acts.append(action)

    def say(self, text: str) -> None:
        """Tell people."""
        self.act(Say(text))

    def say_once(self, key: str, text: str) -> None:
        """Tell people, but only the first of its kind."""
        if key not in self._said:
            self._said.add(key)
            self.say(text)

    def ask(self, topic: str, to: int, round: int, patience: int) -> None:
        """Ask somebody; it counts as a control message."""
        self.count.asked += 1
        self.act(Ask(topic, to, round, patience))

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.phase, self.began = phase, self.now

    def fail(self, reason: str, *, bad_input: bool = False) -> None:
        """Give up."""
        self.phase = "failed"
        self.act(Fail(reason, bad_input))

    @property
    def begun(self) -> bool:
        """Whether this node takes part, or has."""
        return self.phase not in ("starting", "looking", "adopting")

    def handshake(self) -> tuple[int, int, bool, bool]:
        """What this node says of itself: its round, from when it takes part, whether it has finished, whether it gives up."""
        over = self.phase in ("lingering", "left")
        return (self.round if self.begun else -1), self.start, over, self.phase == "failed"

    def wake(self, name: str, at: int) -> None:
        """Have a timer at this time, unless it comes before then anyway."""
        if not self.now < self._timers.get(name, 0) <= at:
            self._timers[name] = at
            self.act(SetTimer(name, at))

    def timer(self, name: str) -> None:
        """The time has come that was asked for."""
        if name == "greet":
            self.introductions.greet()
        else:
            self.settle()

    def settle(self) -> None:
        """Look whether what is waited for has come."""
        if self.phase == "looking":
            self.wake("look", self.now + TICK)
            self.search.look()
        elif self.phase == "lingering":
            self._linger()
        else:
            self.waiting()

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """All is learnt: have it tested and written down."""
        self.round = self.rules.rounds
        self.enter("concluding")
        self.act(Conclude())

    def _concluded(self) -> None:
        self.enter("lingering")
        self._told_end = self.now
        self.act(Greet(None))
        self._linger()

    def _linger(self) -> None:
        """Stay until the others have finished, too, for as long as a round may take; with a barrier, while they need this node."""
        membership, now = self.membership, self.now
        if self.rules.barrier:
            over = all(
                node_id in membership.finished or membership.away(node_id, now, self.began) > self.rules.patience
                for node_id in self.rules.others
            )
        else:
            over = membership.alive(now) <= membership.finished or now - self.began >= max(LINGER, self.rules.deadline)
        if over:
            self.enter("left")
            self.act(Leave())
            return
        self.wake("linger", now + TICK)
        if now - self._told_end > TELL_END:
            self._told_end = now
            self.act(Greet(None))


def _last_answer(event: Event) -> list[Action]:
    """Who asks gets an answer also from a node that has come to its end."""
    match event:
        case Asked():
            return [Answer(event.reply, NOTHING)]
        case Approached():
            return [AnswerEntries(event.reply, event.by, None)]
    return []
