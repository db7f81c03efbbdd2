"""The round protocol of one node: it trains, sends, closes the round, mixes, and goes on until the end.

Who dies is no longer expected; who comes back asks where the others are and takes a model; who falls behind leaves rounds out; who is
far ahead of everybody waits. Nothing that a single member says moves a node: see `roster`.

    looking -> (adopting ->) training -> waiting -> mixing -> training ... -> concluding -> lingering -> left

How it begins and ends is in `member`, what it asks and answers in `questions` and `offers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from epidemic.protocol.commitment import Commitments
from epidemic.protocol.events import (
    SECOND,
    Answered,
    Approached,
    Arrived,
    Asked,
    EntriesCame,
    Event,
    Introduced,
    Mix,
    Mixed,
    Send,
    Train,
    Trained,
)
from epidemic.protocol.known import Known, Side
from epidemic.protocol.mailbox import Mailbox, closed
from epidemic.protocol.member import TICK, Member
from epidemic.protocol.offers import Offers
from epidemic.protocol.pace import Pace
from epidemic.protocol.questions import Questions
from epidemic.protocol.rules import Count, Draw, Rules, View

__all__ = ["Acquaintance", "Count", "Rounds", "Rules", "View"]

BEHIND = 3
"""So many rounds behind two others, a node goes on where they are."""
LEAD = 8
"""So many rounds ahead of everybody else, a node waits for as long as it may."""
NEAR = 2
"""With a committed coin, a message of a later round than so many ahead says nothing of where its sender is until its round is near."""
ASK_AGAIN = 2 * SECOND
"""So often a letter is asked for that was asked for in vain."""


REFUSED = {
    "wrong-coin": "it does not show the link of the hash chain that its sender committed to",
    "not-drawn": "its sender has not drawn this node in that round",
    "surplus": "more came in one round than can be by chance",
}
"""Why messages do not count where senders draw their targets by themselves."""


@dataclass(frozen=True)
class Acquaintance:
    """How a node comes to know some of the others, and to how many of them it sends."""

    side: Side
    s: int
    cycles: int = 1


class Rounds(Member):
    """One node's decisions, round by round."""

    unit = "round"

    def __init__(
        self,
        rules: Rules,
        view: Callable[[int], View] | Acquaintance,
        draw: Draw,
        token: str,
        *,
        done: int = 0,
        kept: Mapping[int, Iterable[int]] | None = None,
        tally: Mapping[str, int] | None = None,
        count: Count | None = None,
        coin: Commitments | None = None,
    ) -> None:
        """`done` rounds are behind it; `kept` are the targets of letters sent before a restart, by round.

        `view`: what rounds have in store, or how the node comes to know others where it does not know everybody.
        `coin`: what the nodes have committed to, where their coin is a committed one.
        """
        super().__init__(rules, draw, token, done=done, count=count)
        self.coin = coin
        self.commitment = b"" if coin is None else coin.commitment
        self.known = Known(self, view.side, view.s, view.cycles) if isinstance(view, Acquaintance) else None
        self.view: Callable[[int], View] = view if self.known is None else self.known  # type: ignore[assignment]
        self.mailbox: Mailbox[tuple[Any, int]] = Mailbox(
            ahead=rules.ahead, room=max(64, 4 * rules.nodes), cap=rules.cap, most=rules.most, tally=tally
        )
        self.pace = Pace(rules.deadline, blind=rules.blind)
        self.questions = Questions(self, kept or {})
        self.offers = Offers(self)
        self.mailbox.begin_with(done)
        self._ask_at = 0  # when those missing are asked
        self._ready: dict[int, int] = {}  # since when it waited for letters, of the last rounds

    def on(self, event: Event) -> None:
        """A letter came, or something was computed."""
        match event:
            case Arrived():
                self._arrived(event)
            case Trained():
                self._trained(event.round)
            case Mixed():
                self._mixed(event.round)
            case Approached() if self.known is not None:
                self.known.approached(event)
            case EntriesCame() if self.known is not None:
                self.known.came(event)

    def started(self) -> None:
        """It has its place in the network."""
        if self.known is not None:
            self.known.started()

    def settle(self) -> None:
        """Look whether what is waited for has come."""
        super().settle()
        if self.known is not None and self.phase == "looking":
            self.known.looking()

    def commits(self, hello: Introduced) -> bool:
        """Whether a node commits itself as it must, and as it did before."""
        return self.coin is None or self.coin.commit(hello.place, hello.commitment)

    def met(self, place: int) -> None:
        """Somebody introduced itself."""
        if self.known is not None:
            self.known.met(place)

    def waiting(self) -> None:
        """Look whether the round is over."""
        if self.phase == "waiting":
            self._wait()

    # -- a round ------------------------------------------------------------------------------------------------------

    def go_to(self, round: int, how: str) -> None:
        """Leave out the rounds before this one."""
        front = max(round - 1, self.roster.front(self.now))
        self.say(f"the others are in round {front}: going on from {round} instead of {self.done}, {how}")
        self.count.jumped += max(0, min(round, self.rules.rounds) - self.done)
        self.done = self.start = min(round, self.rules.rounds)
        self.mailbox.begin_with(self.done)

    def open(self) -> None:
        """Begin the next round, or come to the end."""
        if self.done >= self.rules.rounds:
            if not self.count.taken and self.rules.rounds:
                self.fail(
                    "the others were at their end before this node took part in a single round: it has learnt nothing"
                )
            else:
                self.end()
            return
        self.enter("training")
        view = self._begin()
        self.act(Train(self.round, len(view.targets)))

    def _begin(self) -> View:
        self.round = self.done
        if self.known is not None:
            self.known.opened(self.round)
        view = self.view(self.round)
        self.mailbox.open(self.round, None if self.rules.cap is not None else view.expected)
        return view

    def _trained(self, round: int) -> None:
        if self.phase != "training" or round != self.round:
            return
        front = -1 if self.rules.barrier else self._front()
        view = self.view(self.round)
        if front >= self.round + BEHIND and self.round < self.rules.rounds - 1:
            self.mailbox.skip()
            # what it has just learnt is sent in that round: in the last one, if the others are at their end
            self.go_to(min(front + 1, self.rules.rounds - 1), "with its own model")
            view = self._begin()
        self.pace.worked(self.now - self.began)
        self._send(view)
        self.enter("waiting")
        self._ask_at = self.now + self.pace.suspicious
        self._wait()

    def _send(self, view: View) -> None:
        self.questions.keep(self.round, view.targets)
        alive = self.roster.alive(self.now)
        if self.rules.cap is None:
            there = tuple(place for place in view.targets if place in alive)
            self.questions.sent(self.round, there)
            self.act(Send(self.round, there))
        else:
            self.offers.begin(self.round, view.targets, alive)

    def _limit(self) -> int:
        """How long to wait for letters: a node far ahead of everybody else waits for as long as it may."""
        alone = self.round >= self.roster.company(self.now) + LEAD
        return self.rules.deadline if alone else self.pace.limit

    def _wait(self) -> None:
        """Close the round if it is over; ask those whose letters do not come."""
        rules, roster, now = self.rules, self.roster, self.now
        view, alive, limit = self.view(self.round), roster.alive(now), self._limit()
        missing = self.mailbox.missing()
        if not rules.barrier:
            missing = roster.expected(missing, self.round, now)
        unknown = view.expected is None or rules.cap is not None
        silent = len(missing)
        if unknown or (not alive and not rules.barrier):  # nobody to expect: wait for the usual time
            silent = 0 if rules.cap is not None and self.mailbox.heard >= rules.cap else -1
        moved_on = unknown and self._overtaken()
        left = limit - (now - self.began)
        if closed(
            close=rules.close,
            missing=silent,
            heard=self.mailbox.heard,
            wanted=len(view.targets) if rules.cap is None else rules.cap,
            overdue=left <= 0 or moved_on,
        ):
            self._close(missing & alive)
            return
        self.wake("wait", now + (TICK if rules.barrier else max(1, min(TICK, left))))
        if rules.barrier and self._away_too_long(missing - alive):
            return
        if missing & alive and now >= self._ask_at:
            self._ask_at = now + ASK_AGAIN
            self.questions.ask_again(missing & alive)

    def _overtaken(self) -> bool:
        """Where nobody knows whom to expect: whether the others have gone on to a later round, so that waiting is of no use."""
        shown = self.coin is not None and any(self._shown(k) for k in range(1, self.rules.ahead + 1))
        return shown or self.roster.front(self.now) > self.round

    def _front(self) -> int:
        """The round that enough others have reached. With a committed coin their messages must show it, as long as these are kept.

        A few members can all say that they are ahead, but they cannot send more messages than they have drawn.
        """
        front, here = self.roster.front(self.now), self.round
        if self.coin is None or front > here + self.rules.ahead:
            return front
        return max((t for t in range(here + 1, front + 1) if self._shown(t - here)), default=here)

    def _shown(self, rounds: int) -> bool:
        """Whether so many messages of the next rounds are here that a good part of the others must have gone through them.

        That is half of what these rounds bring on average, two at least; of several rounds, one more, since members that lie have all of theirs
        here at once.
        """
        here = sum(len(self.mailbox.early(self.round + i)) for i in range(1, rounds + 1))
        return here >= max(2, (rounds * len(self.view(self.round).targets) + 1) // 2 + (rounds > 1))

    def _away_too_long(self, missing: frozenset[int]) -> bool:
        """Whether one of these is away for so long that the barrier will not be passed; then this node gives up."""
        for place in sorted(missing):
            if self.roster.away(place, self.now, self.began) > self.rules.patience:
                self.fail(
                    f"round {self.round}: node {place} has been away for {self.rules.patience / SECOND:g} s (network.patience), and"
                    ' with network.close = "barrier" nobody goes on without it; start all nodes again to go on'
                )
                return True
        return False

    def will_not_come(self, place: int) -> None:
        """Somebody has no letter for this node in the open round."""
        if self.phase != "waiting":
            return
        if not self.rules.barrier:
            self.mailbox.excuse(self.round, place)
            self._wait()
        elif place in self.mailbox.missing():
            self.fail(
                f"round {self.round}: node {place} no longer has its letter for this node, so that the barrier cannot be"
                ' passed: a node was away for too long; start the run again, or use network.close = "deadline"'
            )

    def _close(self, missing: frozenset[int]) -> None:
        self.count.longest_wait = max(self.count.longest_wait, self.now - self.began)
        letters = self.mailbox.take()
        for _, arrived in letters.values():
            self.pace.waited(arrived - self.began)
        self._ready = {round: since for round, since in self._ready.items() if round > self.round - 8}
        self._ready[self.round] = self.began
        self.count.lost += len(missing)
        self.roster.missed(missing)
        self.enter("mixing")
        self.act(Mix(self.round, tuple((sender, letter) for sender, (letter, _) in letters.items())))

    def _mixed(self, round: int) -> None:
        if self.phase != "mixing" or round != self.round:
            return
        self.done = round + 1
        self.count.taken += 1
        self.open()

    # -- letters ------------------------------------------------------------------------------------------------------

    def _arrived(self, event: Arrived) -> None:
        rules, here = self.rules, max(self.done, self.round)
        if not 0 <= event.round < rules.rounds:
            self.count.refused["implausible"] += 1
            return
        since = self._ready.get(event.round)
        if self.coin is not None:  # what is over for long counts for nothing, and is not worth a hash
            over = since is None and event.round < here
            problem = None if over else self.coin.problem(event.sender, event.round, event.graph)
            if problem is not None:
                self._refuse(problem)
                return
        elif since is not None or here <= event.round <= here + rules.ahead:
            view = self.view(event.round)
            if event.graph != view.graph:
                self.count.refused["wrong-graph"] += 1
                self.say_once(
                    "wrong-graph", "refused a letter: its sender drew another graph (further ones are counted only)"
                )
                return
            if rules.cap is None and view.expected is not None and event.sender not in view.expected:
                self.mailbox.turn_away()
                return
        if self.mailbox.full(event.round, event.sender):
            self._refuse("surplus")
            return
        outcome = self.mailbox.put(event.round, event.sender, (event.letter, self.now))
        if self.coin is None or outcome not in ("early", "duplicate") or event.round <= here + NEAR:
            self.roster.reached(event.sender, event.round)
        if outcome in ("counted", "early"):
            self.roster.heard(event.sender, event.round, self.now)
        elif outcome == "late" and since is not None:
            self.pace.waited(self.now - since)
        if self.phase == "waiting":
            self._wait()

    def _refuse(self, reason: str) -> None:
        """Count a message that its sender had no right to send."""
        self.count.refused[reason] += 1
        self.say_once(reason, f"refused a message: {REFUSED[reason]} (further ones are counted only)")

    # -- questions ----------------------------------------------------------------------------------------------------

    def asked(self, event: Asked) -> None:
        """Somebody asks for a letter, or offers one."""
        if event.topic == "again":
            self.questions.asked_again(event)
        else:
            self.offers.asked(event)

    def answered(self, event: Answered) -> None:
        """Somebody who was asked for a letter, or offered one, answers."""
        if event.topic == "again":
            self.questions.answered(event)
        else:
            self.offers.answered(event)
