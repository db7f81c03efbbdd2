"""What every deployed node does besides learning: it finds its peers, greets and answers them, and ends.

    looking -> (adopting ->) ... learning, as the method has it ... -> concluding -> lingering -> left

A method adds a derived class: `rounds.Rounds` for methods with rounds, `asynchronous.Asynchronous` for those without. The start is in `search`,
handshakes in `introductions`, models for returning nodes in `state_transfer`.
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
"""How often conditions are checked that no event reports, such as the end of a wait."""
TELL_END = 2 * SECOND
"""How often a finished node tells its peers so, in case the message or theirs was lost."""

LINGER = 2 * SECOND
"""The shortest time that a finished node stays for its peers."""


class Member:
    """The part of a deployed node's state machine that all methods share."""

    unit: ClassVar[str]
    """The unit that `round` counts, as one word."""
    commitment: bytes = b""
    """With a committed coin, this node's commitment for its handshakes."""

    def __init__(
        self, rules: Rules, draw: Draw, token: str, *, done: int, count: Count | None, membership: Any = None
    ) -> None:
        """Start a node.

        Args:
            rules: Its settings.
            draw: Source of secret random numbers.
            token: The random name of this start of the node.
            done: Rounds, or seconds of an asynchronous run, completed before a restart.
            count: The counters from before a restart.
            membership: Where the state of peers comes from something other than handshakes and liveness: an object with the methods of `Membership`.
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
        self.round = -1  # the current round
        self.now = 0
        self.began = 0  # when this phase began
        self._acts: list[Action] = []
        self._timers: dict[str, int] = {}  # when each timer expires
        self._said: set[str] = set()
        self._told_end = 0  # when the node last told its peers that it has finished

    def step(self, event: Event, now: int) -> list[Action]:
        """Return the actions that follow from an event at this time."""
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
        """Handle an event that only the method knows."""
        raise NotImplementedError

    def started(self) -> None:
        """Begin to look for peers: the node is connected."""

    def open(self) -> None:
        """Begin to learn: the peers were found."""
        raise NotImplementedError

    def go_to(self, round: int, how: str) -> None:
        """Continue at this round: the peers began without this node."""
        raise NotImplementedError

    @property
    def wants_model(self) -> bool:
        """Whether the node takes a peer's model if the peers began without it."""
        return self.rules.adopt

    def waiting(self) -> None:
        """While learning: check whether a wait is over."""

    def asked(self, event: Asked) -> None:
        """Answer a question other than for a model."""
        self.act(Answer(event.reply, NOTHING))

    def answered(self, event: Answered) -> None:
        """Handle the answer to a question other than for a model."""

    def renewed(self) -> None:
        """Handle connections that were reopened."""

    def commits(self, handshake: Introduced) -> bool:
        """Whether a peer's handshake has the commitment that it must have."""
        return True

    def met(self, node_id: int) -> None:
        """Handle the handshake of a peer that runs the same experiment."""

    # -- what every part uses -----------------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Add an action to those returned by `step`."""
        self._acts.append(action)

    def say(self, text: str) -> None:
        """Add a line to the log."""
        self.act(Say(text))

    def say_once(self, key: str, text: str) -> None:
        """Log a line, but only the first with this key."""
        if key not in self._said:
            self._said.add(key)
            self.say(text)

    def ask(self, topic: str, to: int, round: int, patience: int) -> None:
        """Ask a peer; counted as a control message."""
        self.count.asked += 1
        self.act(Ask(topic, to, round, patience))

    def enter(self, phase: str) -> None:
        """Begin a phase of the protocol."""
        self.phase, self.began = phase, self.now

    def fail(self, reason: str, *, bad_input: bool = False) -> None:
        """Stop with an error; `bad_input` if the user must change something."""
        self.phase = "failed"
        self.act(Fail(reason, bad_input))

    @property
    def begun(self) -> bool:
        """Whether this node takes part in the run, or has finished it."""
        return self.phase not in ("starting", "looking", "adopting")

    def handshake(self) -> tuple[int, int, bool, bool]:
        """The node's state for its handshake: (round, first round that it takes part in, finished, failed)."""
        over = self.phase in ("lingering", "left")
        return (self.round if self.begun else -1), self.start, over, self.phase == "failed"

    def wake(self, name: str, at: int) -> None:
        """Set a timer to this time, unless it expires earlier anyway."""
        if not self.now < self._timers.get(name, 0) <= at:
            self._timers[name] = at
            self.act(SetTimer(name, at))

    def timer(self, name: str) -> None:
        """Handle an expired timer."""
        if name == "greet":
            self.introductions.greet()
        else:
            self.settle()

    def settle(self) -> None:
        """Check whether a wait is over, in any phase."""
        if self.phase == "looking":
            self.wake("look", self.now + TICK)
            self.search.look()
        elif self.phase == "lingering":
            self._linger()
        else:
            self.waiting()

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End the learning: evaluate the final model and write the results."""
        self.round = self.rules.rounds
        self.enter("concluding")
        self.act(Conclude())

    def _concluded(self) -> None:
        self.enter("lingering")
        self._told_end = self.now
        self.act(Greet(None))
        self._linger()

    def _linger(self) -> None:
        """Stay until the peers have finished, at most as long as a round may take; with a barrier, as long as they need this node."""
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
    """Answer the question of an event with NOTHING or NOT_YET, after this node has finished."""
    match event:
        case Asked():
            return [Answer(event.reply, NOTHING)]
        case Approached():
            return [AnswerEntries(event.reply, event.by, None)]
    return []
