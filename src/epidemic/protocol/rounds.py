"""The round protocol of one node: it looks for the others, trains, sends, closes the round, mixes, and goes on until the end.

Who dies is no longer expected; who comes back asks where the others are and takes a model; who falls behind leaves rounds out; who is
far ahead of everybody waits. Nothing that a single member says moves a node: see `roster`.

    looking -> (adopting ->) training -> waiting -> mixing -> training ... -> concluding -> lingering -> left
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from epidemic.protocol.events import (
    NOT_YET,
    NOTHING,
    SECOND,
    Action,
    Adopt,
    Adopted,
    Answer,
    Answered,
    AnswerLetter,
    Arrived,
    Ask,
    Asked,
    Conclude,
    Concluded,
    Event,
    Fail,
    Forget,
    Give,
    Greet,
    Introduced,
    Leave,
    Mix,
    Mixed,
    Present,
    Renewed,
    Say,
    Send,
    SetTimer,
    Started,
    Timer,
    Train,
    Trained,
    Ungreeted,
    Void,
)
from epidemic.protocol.greeting import Greeting
from epidemic.protocol.mailbox import Mailbox, closed
from epidemic.protocol.offers import Offers
from epidemic.protocol.pace import Pace
from epidemic.protocol.roster import Roster

BEHIND = 3
"""So many rounds behind two others, a node goes on where they are."""
LEAD = 8
"""So many rounds ahead of everybody else, a node waits for as long as it may."""
SEND_AGAIN = 3 * SECOND
"""For so long a letter that was sent is taken to be on its way."""
GIVE_AGAIN = SECOND
"""So often at most somebody is given a model."""
TICK = SECOND // 5
"""How often it is looked whether a wait is over for reasons that no event tells."""
DONORS = 5
"""How many others are asked for a model, one after the other, before a node goes on with its own."""
TAKEN = 12 * SECOND
"""For so long another process may be shown at this node's place: an earlier one whose end was not noticed yet."""


@dataclass(frozen=True)
class View:
    """A round, as one node sees it before it happens."""

    targets: tuple[int, ...]  # whom it sends to
    expected: frozenset[int] | None  # whom it hears; None: not known
    graph: bytes  # what its letters must say of the graph


Draw = Callable[[int], int]
"""A random whole number below its argument, that nobody else can know."""


@dataclass(frozen=True)
class Rules:
    """What a node goes by. Times in microseconds."""

    place: int
    nodes: int
    rounds: int
    close: str = "deadline"
    deadline: int = 30 * SECOND
    patience: int = 60 * SECOND
    founders: frozenset[int] = frozenset()  # who is waited for at the start, besides this node
    adopt: bool = True  # whether a node that returns takes somebody's model
    cap: int | None = None  # letters taken a round; each is offered first
    retries: int = 0

    @property
    def barrier(self) -> bool:
        """Whether a round ends only when everybody was heard."""
        return self.close == "barrier"

    @property
    def kept(self) -> int:
        """Rounds whose letters can be sent again."""
        return min(self.nodes, 16) if self.barrier else 4


@dataclass
class Count:
    """What a node counts besides letters."""

    lost: int = 0  # letters waited for in vain
    jumped: int = 0  # rounds left out
    taken: int = 0  # rounds taken part in
    asked: int = 0  # control messages sent
    longest_wait: int = 0  # for letters, in microseconds
    refused: Counter[str] = field(default_factory=Counter)  # letters that are in order and do not count, by reason


class Rounds:
    """One node's decisions."""

    def __init__(
        self,
        rules: Rules,
        view: Callable[[int], View],
        draw: Draw,
        token: str,
        *,
        done: int = 0,
        kept: Mapping[int, Iterable[int]] | None = None,
        tally: Mapping[str, int] | None = None,
        count: Count | None = None,
    ) -> None:
        """`done` rounds are behind it; `kept` are the targets of letters sent before a restart, by round."""
        self.rules = rules
        self.view = view
        self.draw = draw
        self.token = token
        self.roster = Roster(rules.place, rules.nodes, rules.rounds)
        self.mailbox: Mailbox[tuple[Any, int]] = Mailbox(
            ahead=max(8, rules.kept), room=max(64, 4 * rules.nodes), cap=rules.cap, tally=tally
        )
        self.pace = Pace(rules.deadline)
        self.greeting = Greeting()
        self.offers = Offers(self)
        self.count = Count() if count is None else count
        self.phase = "starting"
        self.done = self.start = done
        self.round = -1  # the one that it is in
        self.mailbox.begin_with(done)
        self._kept: dict[int, dict[int, int | None]] = {
            round: dict.fromkeys(targets) for round, targets in (kept or {}).items()
        }  # by round: to whom, and when it was sent last
        self._acts: list[Action] = []
        self.now = 0
        self._began = 0  # when this phase began
        self._asking: set[int] = set()  # who is just asked for a letter
        self._asked_at = 0  # when those missing were asked last
        self._ready: dict[int, int] = {}  # since when it waited for letters, of the last rounds
        self._given: dict[int, int] = {}  # when somebody was given a model
        self._donors: list[int] = []
        self._goal = -1  # the round to go on from after adopting
        self._said: set[str] = set()
        self._said_waiting = 0
        self._told = 0  # when the others were told last that this node has come to its end
        self._alive_before: frozenset[int] = frozenset()

    def step(self, event: Event, now: int) -> list[Action]:
        """What to do about an event at this time."""
        self.now = now
        self._acts = []
        if self.phase in ("left", "failed"):
            return [Answer(event.reply, NOTHING)] if isinstance(event, Asked) else []
        self._on(event)
        self._tell_presence()
        return self._acts

    def act(self, action: Action) -> None:
        """Have something done."""
        self._acts.append(action)

    # -- events -------------------------------------------------------------------------------------------------------

    def _on(self, event: Event) -> None:
        match event:
            case Arrived():
                self._arrived(event)
            case Trained():
                self._trained(event.round)
            case Mixed():
                self._mixed(event.round)
            case Timer():
                self._timer(event.name)
            case Asked():
                self._asked(event)
            case Answered():
                self._answered(event)
            case Present():
                self.roster.shown(event.place, event.token, event.there, self.now)
                self._people_changed()
            case Introduced():
                self._introduced(event)
            case Ungreeted():
                self._greet(self.greeting.failed(event.place, self.now))
            case Void():
                self.roster.void(event.places)
                self._people_changed()
            case Adopted():
                self._go_to(self._goal, "with another node's model")
                self._tell_start()
                self._open()
            case Concluded():
                self._enter("lingering")
                self._told = self.now
                self.act(Greet(None))
                self._linger()
            case Renewed():
                self.token = event.token
            case Started():
                self._enter("looking")
                self.act(SetTimer("look", self.now + TICK))

    def _timer(self, name: str) -> None:
        if name == "greet":
            self._greet(self.greeting.due(self.now))
        elif name == "look" and self.phase == "looking":
            self.act(SetTimer("look", self.now + TICK))
            self._look()
        elif name == "wait" and self.phase == "waiting":
            self._wait()
        elif name == "linger" and self.phase == "lingering":
            self._linger()

    def _enter(self, phase: str) -> None:
        self.phase, self._began = phase, self.now

    def _people_changed(self) -> None:
        """Somebody came, went, or is known better now."""
        self._greet(self.greeting.strangers(self.roster.strangers(), self.now))
        self._settle()

    def _settle(self) -> None:
        """Look whether what is waited for has come."""
        if self.phase == "looking":
            self._look()
        elif self.phase == "waiting":
            self._wait()
        elif self.phase == "lingering":
            self._linger()

    def _tell_presence(self) -> None:
        if self.phase in ("starting", "looking"):
            return
        alive = self.roster.alive(self.now)
        if alive is self._alive_before:
            return
        for place in sorted(self._alive_before - alive - self.roster.finished):
            self._say(f"round {self.round}: node {place} is gone")
        for place in sorted(alive - self._alive_before):
            self._say(f"round {self.round}: node {place} is there")
        self._alive_before = alive

    def _say(self, text: str) -> None:
        self.act(Say(text))

    def _say_once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self._say(text)

    # -- who is there -------------------------------------------------------------------------------------------------

    def _greet(self, places: list[int]) -> None:
        for place in places:
            self.act(Greet(place))
        if (at := self.greeting.next_time()) is not None:
            self.act(SetTimer("greet", at))

    def _introduced(self, hello: Introduced) -> None:
        if hello.place == self.rules.place:
            if hello.token != self.token:
                self._say_once("twin", "another process says that it is this node")
            return
        if not self.roster.introduced(hello, self.round, self.now):
            self.count.refused["implausible-hello"] += 1
            self._say_once(f"implausible {hello.place}", f"refused what node {hello.place} says of itself")
            return
        self.greeting.known(hello.carrier)
        if hello.differs:
            what = "; ".join(hello.differs[:4])
            self._say_once(f"differs {hello.place}", f"refused node {hello.place}: it runs another experiment: {what}")
        self._people_changed()

    def _look(self) -> None:
        """Wait for the others; where they have begun without this node, catch up with them."""
        rules, roster, waited = self.rules, self.roster, self.now - self._began
        if roster.others_here(self.token):
            if waited > TAKEN:
                self._fail(f"another process runs as node {rules.place}; stop it first", bad_input=True)
            return
        alive, differing = roster.alive(self.now), roster.differing
        founders = frozenset(range(rules.nodes)) - {rules.place} if rules.barrier else rules.founders
        complete = founders - differing.keys() <= alive and bool(alive or differing)
        front = roster.front(self.now)
        begun = front >= 0 and not rules.barrier and waited > SECOND and not roster.strangers()
        many_differ = len(differing) > rules.nodes // 2
        if not (complete or begun or many_differ or waited > rules.patience):
            if self.now - self._said_waiting > 5 * SECOND and waited > 5 * SECOND:
                self._said_waiting = self.now
                nobody = "" if alive else "; nobody answers yet"
                self._say(f"waiting for {listed(sorted(founders - alive))}{nobody}")
            return
        seconds = f"{rules.patience / SECOND:g} s (network.patience)"
        if differing and len(differing) > len(alive):
            place, different = sorted(differing.items())[0]
            text = "; ".join(different[:4])
            self._fail(f"node {place} runs another experiment: {text}; use the same folder for all", bad_input=True)
        elif not alive:
            self._fail(f"no other node was found within {seconds}", bad_input=True)
        elif rules.barrier and not founders <= alive:
            missing = listed(sorted(founders - alive))
            self._fail(
                f'{missing} did not come within {seconds}; with network.close = "barrier" everyone must be there',
                bad_input=True,
            )
        else:
            self._say(f"{1 + len(alive)} of {rules.nodes} nodes are there")
            self._alive_before = alive
            if roster.began_without_us(self.now) and front > self.done and not rules.barrier:
                self._rejoin(front)
            else:
                self._open()

    # -- catching up --------------------------------------------------------------------------------------------------

    def _rejoin(self, front: int) -> None:
        """Go on where the others are, with one of their models or the own one."""
        self._enter("adopting")
        self._goal = front + 1
        donors = self.roster.learning(self.now) if self.rules.adopt else []
        self._donors = []
        while donors and len(self._donors) < DONORS:
            self._donors.append(donors.pop(self.draw(len(donors))))
        self._ask_donor()

    def _ask_donor(self) -> None:
        self._goal = max(self._goal, self.roster.front(self.now) + 1)
        if self._donors:
            self.ask("model", self._donors.pop(0), self._goal - 1, min(5 * SECOND, self.rules.deadline))
            return
        if self.rules.adopt:
            self._say("nobody gave a model; going on with the own one")
        self._go_to(self._goal, "with its own model")
        self._tell_start()
        self._open()

    def _go_to(self, round: int, how: str) -> None:
        self._say(f"the others are in round {round - 1}: going on from {round} instead of {self.done}, {how}")
        self.count.jumped += max(0, min(round, self.rules.rounds) - self.done)
        self.done = self.start = min(round, self.rules.rounds)
        self.mailbox.begin_with(self.done)

    def _tell_start(self) -> None:
        """Tell the others from when to expect this node."""
        self.act(Greet(None))

    # -- a round ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Begin the next round, or come to the end."""
        if self.done >= self.rules.rounds:
            self._end()
            return
        self._enter("training")
        view = self._begin()
        self.act(Train(self.round, len(view.targets)))

    def _begin(self) -> View:
        self.round = self.done
        view = self.view(self.round)
        self.mailbox.open(self.round, None if self.rules.cap is not None else view.expected)
        return view

    def _end(self) -> None:
        if not self.count.taken and self.rules.rounds:
            self._fail(
                "the others were at their end before this node took part in a single round: it has learnt nothing"
            )
            return
        self.round = self.rules.rounds
        self._enter("concluding")
        self.act(Conclude())

    def _trained(self, round: int) -> None:
        if self.phase != "training" or round != self.round:
            return
        front = -1 if self.rules.barrier else self.roster.front(self.now)
        view = self.view(self.round)
        if front >= self.round + BEHIND:
            self.mailbox.skip()
            self._go_to(front + 1, "with its own model")
            if self.done >= self.rules.rounds:
                self._end()
                return
            view = self._begin()  # what it has just learnt is sent in that round
        self.pace.worked(self.now - self._began)
        self._keep(view)
        alive = self.roster.alive(self.now)
        there = tuple(place for place in view.targets if place in alive)
        if self.rules.cap is None:
            for place in there:
                self._kept[self.round][place] = self.now
            self.act(Send(self.round, there))
        else:
            self.offers.begin(self.round, view.targets, alive)
        self._enter("waiting")
        self._asked_at = self.now
        self.act(SetTimer("wait", self.now + TICK))
        self._wait()

    def _keep(self, view: View) -> None:
        self._kept[self.round] = dict.fromkeys(view.targets)
        before = self.round - self.rules.kept + 1
        if any(round < before for round in self._kept):
            self._kept = {round: sent for round, sent in self._kept.items() if round >= before}
            self.act(Forget(before))

    def _limit(self) -> int:
        """How long to wait for letters: a node far ahead of everybody else waits for as long as it may."""
        alone = self.round >= self.roster.furthest(self.now) + LEAD
        return self.rules.deadline if alone else self.pace.limit

    def _wait(self) -> None:
        """Close the round if it is over; ask those whose letters do not come."""
        rules, roster, now = self.rules, self.roster, self.now
        view, alive, limit = self.view(self.round), roster.alive(now), self._limit()
        missing = self.mailbox.missing(None if rules.barrier else roster.expected(self.round, now))
        unknown = view.expected is None or rules.cap is not None
        silent = len(missing)
        if unknown or (not alive and not rules.barrier):  # nobody to expect: wait for the usual time
            silent = 0 if rules.cap is not None and self.mailbox.heard >= rules.cap else -1
        moved_on = unknown and roster.front(now) > self.round
        over = closed(
            close=rules.close,
            missing=silent,
            heard=self.mailbox.heard,
            wanted=len(view.targets) if rules.cap is None else rules.cap,
            overdue=now - self._began >= limit or moved_on,
        )
        if over:
            self._close(missing & alive)
            return
        left = limit - (now - self._began)
        self.act(SetTimer("wait", now + (TICK if rules.barrier else max(1, min(TICK, left)))))
        if rules.barrier:
            for place in sorted(missing - alive):
                if roster.away(place, now, self._began) > rules.patience:
                    self._fail(
                        f"round {self.round}: node {place} has been away for {rules.patience / SECOND:g} s (network.patience), and"
                        ' with network.close = "barrier" nobody goes on without it; start all nodes again to go on'
                    )
                    return
        if missing & alive and now - self._asked_at >= self.pace.suspicious:
            self._asked_at = now
            for place in sorted((missing & alive) - self._asking):
                self._asking.add(place)
                self.ask("again", place, self.round, SECOND)

    def _close(self, missing: frozenset[int]) -> None:
        waited = self.now - self._began
        self.count.longest_wait = max(self.count.longest_wait, waited)
        letters = self.mailbox.take()
        for _, arrived in letters.values():
            self.pace.waited(arrived - self._began)
        self._ready = {round: since for round, since in self._ready.items() if round > self.round - 8}
        self._ready[self.round] = self._began
        self.count.lost += len(missing)
        self.roster.missed(missing)
        self._enter("mixing")
        self.act(Mix(self.round, tuple((sender, letter) for sender, (letter, _) in letters.items())))

    def _mixed(self, round: int) -> None:
        if self.phase != "mixing" or round != self.round:
            return
        self.done = round + 1
        self.count.taken += 1
        self._open()

    # -- letters ------------------------------------------------------------------------------------------------------

    def _arrived(self, event: Arrived) -> None:
        rules, now = self.rules, self.now
        if not 0 <= event.round < rules.rounds:
            self.count.refused["implausible"] += 1
            return
        near = max(self.done, self.round) <= event.round <= max(self.done, self.round) + max(8, rules.kept)
        if near:
            view = self.view(event.round)
            if event.graph != view.graph:
                self.count.refused["wrong-graph"] += 1
                self._say_once(
                    "wrong-graph", "refused a letter: its sender drew another graph (further ones are counted only)"
                )
                return
            if rules.cap is None and view.expected is not None and event.sender not in view.expected:
                self.mailbox.turn_away()
                return
        self.roster.reached(event.sender, event.round)
        outcome = self.mailbox.put(event.round, event.sender, (event.letter, now))
        if outcome in ("counted", "early"):
            self.roster.heard(event.sender, event.round, now)
        since = self._ready.get(event.round)
        if outcome == "late" and since is not None:
            self.pace.waited(now - since)
        if self.phase == "waiting":
            self._wait()

    # -- questions ----------------------------------------------------------------------------------------------------

    def ask(self, topic: str, to: int, round: int, patience: int) -> None:
        """Ask somebody; it counts as a control message."""
        self.count.asked += 1
        self.act(Ask(topic, to, round, patience))

    def _asked(self, event: Asked) -> None:
        if event.topic == "again":
            self._asked_again(event)
        elif event.topic == "model":
            plausible = abs(event.round - self.round) <= 16  # not somebody's old wish, replayed
            last = self._given.get(event.by)
            if (
                plausible
                and self.phase not in ("starting", "looking")
                and (last is None or self.now - last >= GIVE_AGAIN)
            ):
                self._given[event.by] = self.now
                self.act(Give(event.reply, event.by))
            else:
                self.act(Answer(event.reply, NOT_YET))
        else:
            self.offers.asked(event)

    def _asked_again(self, event: Asked) -> None:
        sent = self._kept.get(event.round, {})
        if event.by in sent and self.phase != "looking":
            last = sent[event.by]
            if last is not None and self.now - last < SEND_AGAIN:
                self.act(Answer(event.reply, NOT_YET))
                return
            sent[event.by] = self.now
            self.act(AnswerLetter(event.reply, event.round, event.by))
            return
        past = event.round < max(self.round, self.start)
        self.act(Answer(event.reply, NOTHING if past else NOT_YET))

    def _answered(self, event: Answered) -> None:
        if event.topic == "again":
            self._asking.discard(event.by)
            if event.answer == NOTHING and self.phase == "waiting" and event.round == self.round:
                self._will_not_come(event.by)
        elif event.topic == "model":
            if self.phase != "adopting":
                return
            if event.answer is None or isinstance(event.answer, str):
                self._ask_donor()
            else:
                self._goal = max(self._goal, self.roster.front(self.now) + 1)
                self.act(Adopt(event.answer))
        else:
            self.offers.answered(event)

    def _will_not_come(self, place: int) -> None:
        if self.rules.barrier:
            if place in self.mailbox.missing():
                self._fail(
                    f"round {self.round}: node {place} no longer has its letter for this node, so that the barrier cannot be"
                    ' passed: a node was away for too long; start the run again, or use network.close = "deadline"'
                )
            return
        self.mailbox.excuse(self.round, place)
        self._wait()

    def hello(self) -> tuple[int, int, bool, bool]:
        """What this node says of itself: its round, from when it takes part, whether it has finished, whether it gives up."""
        begun = self.phase not in ("starting", "looking", "adopting")
        over = self.phase in ("lingering", "left")
        return (self.round if begun else -1), self.start, over, self.phase == "failed"

    # -- the end ------------------------------------------------------------------------------------------------------

    def _linger(self) -> None:
        """Stay until the others have finished, too, for as long as a round may take; with a barrier, while they need this node."""
        alive, now = self.roster.alive(self.now), self.now
        everyone = frozenset(range(self.rules.nodes)) - {self.rules.place}
        waited = now - self._began
        if self.rules.barrier:
            over = all(
                place in self.roster.finished or self.roster.away(place, now, self._began) > self.rules.patience
                for place in everyone
            )
        else:
            over = alive <= self.roster.finished or waited >= self.rules.deadline
        if over:
            self._enter("left")
            self.act(Leave())
            return
        self.act(SetTimer("linger", now + TICK))
        if now - self._told > 2 * SECOND:  # the news of its end may have got lost, or that of theirs
            self._told = now
            self.act(Greet(None))

    def _fail(self, reason: str, *, bad_input: bool = False) -> None:
        self.phase = "failed"
        self.act(Fail(reason, bad_input))


def listed(places: list[int]) -> str:
    """Places, for people."""
    more = ", ..." if len(places) > 12 else ""
    return ("node " if len(places) == 1 else "nodes ") + ", ".join(map(str, places[:12])) + more
