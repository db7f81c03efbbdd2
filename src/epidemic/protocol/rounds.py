"""The round protocol of one node: it trains, sends, closes the round, mixes, and goes on until the end.

Who dies is no longer expected; who comes back asks where the others are and takes a model; who falls behind leaves rounds out; who is
ahead waits. Nothing that a single member says moves a node: see `membership`.

Nodes stay together by three rules. A round in which a node has heard fewer than a third of its live in-neighbours lasts until the deadline, as
long as one of them may still send (not only for the usual time, which a short pause exceeds). A node that is far ahead of the others waits
for them in any case. And a node that enough others have left behind goes on where they are.

    looking -> (adopting ->) training -> (locating ->) waiting -> mixing -> training ... -> concluding -> lingering -> left

How it begins and ends is in `member`, what it asks and answers in `questions` and `offers`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from epidemic.protocol.adaptive_timeout import AdaptiveTimeout
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
from epidemic.protocol.locate import Locate
from epidemic.protocol.mailbox import Mailbox
from epidemic.protocol.member import TICK, Member
from epidemic.protocol.offers import Offers
from epidemic.protocol.partial_view import PartialView
from epidemic.protocol.peer_sampler import PeerSampler
from epidemic.protocol.questions import Questions
from epidemic.protocol.rules import Count, Draw, NodeView, Rules
from epidemic.protocol.sample import PeerSample

__all__ = ["Count", "NodeView", "PartialKnowledge", "Rounds", "Rules"]

BEHIND = 2
"""So many rounds behind enough others after its training, a node goes on where they are: nobody waits for what it would send. While it waits for
messages it takes one more."""
LEAD = 8
"""So many rounds ahead of everybody else, a node waits for as long as it may."""
NEAR = 2
"""With a committed coin, a message of a later round than so many ahead says nothing of where its sender is until its round is near."""
ALONE = 3
"""A node that has heard fewer than one of so many live in-neighbours is nearly alone, and waits for as long as it may."""
RECENT = 20
"""How many of the last rounds are remembered for people."""
LOCATE = SECOND // 4
"""So long a node that was left behind waits for others to say where they are."""
ASK_AGAIN = 2 * SECOND
"""So often a message is asked for that was asked for in vain."""


REFUSED = {
    "wrong-coin": "it does not show the link of the hash chain that its sender committed to",
    "not-drawn": "its sender has not drawn this node in that round",
    "surplus": "more came in one round than can be by chance",
}
"""Why messages do not count where senders draw their targets by themselves."""


@dataclass(frozen=True)
class PartialKnowledge:
    """How a node comes to know some of the others, and to how many of them it sends."""

    sampler: PeerSampler
    s: int
    cycles: int = 1
    sample: PeerSample | None = None  # None: an empty one


class Rounds(Member):
    """One node's decisions, round by round."""

    unit = "round"

    def __init__(
        self,
        rules: Rules,
        view: Callable[[int], NodeView] | PartialKnowledge,
        draw: Draw,
        token: str,
        *,
        done: int = 0,
        kept: Mapping[int, Iterable[int]] | None = None,
        tally: Mapping[str, int] | None = None,
        count: Count | None = None,
        coin: Commitments | None = None,
        membership: Any = None,
    ) -> None:
        """`done` rounds are behind it; `kept` are the targets of messages sent before a restart, by round.

        `view`: what rounds have in store, or how the node comes to know others where it does not know everybody.
        `coin`: what the nodes have committed to, where their coin is a committed one. `membership`: see `Member`.
        """
        super().__init__(rules, draw, token, done=done, count=count, membership=membership)
        self.coin = coin
        self.commitment = b"" if coin is None else coin.commitment
        self.known: PartialView | None = None
        if isinstance(view, PartialKnowledge):
            self.known = PartialView(
                self, view.sampler, view.s, view.cycles, view.sample or PeerSample(rules.node_id, draw)
            )
        self.view: Callable[[int], NodeView] = view if self.known is None else self.known  # type: ignore[assignment]
        self.mailbox: Mailbox[tuple[Any, int]] = Mailbox(
            ahead=rules.ahead, room=max(64, 4 * rules.nodes), cap=rules.cap, most=rules.most, tally=tally
        )
        self.adaptive_timeout = AdaptiveTimeout(rules.deadline, blind=rules.blind)
        self.questions = Questions(self, kept or {})
        self.offers = Offers(self)
        self.locate = Locate(self)
        self.recent: deque[tuple[int, int]] = deque(maxlen=RECENT)  # messages heard and expected in the last rounds
        self.mailbox.begin_with(done)
        self._ask_at = 0  # when those missing are asked
        self._ready: dict[int, int] = {}  # since when it waited for messages, of the last rounds
        self._carried: dict[int, tuple[int, Any]] = {}  # by sender: the last message that came late, and its round

    @property
    def held(self) -> int:
        """How many messages are here that may still count."""
        return self.mailbox.held + len(self._carried)

    def on(self, event: Event) -> None:
        """A message came, or something was computed."""
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

    def commits(self, handshake: Introduced) -> bool:
        """Whether a node commits itself as it must, and as it did before."""
        return self.coin is None or self.coin.commit(handshake.node_id, handshake.commitment)

    def met(self, node_id: int) -> None:
        """Somebody introduced itself."""
        if self.known is not None:
            self.known.met(node_id)

    def waiting(self) -> None:
        """Look whether the round is over, or the others are found."""
        if self.phase == "waiting":
            self._wait()
        elif self.phase == "locating" and (self.locate.front_is_known or self.now - self.began >= LOCATE):
            self._begin_to_wait()

    # -- a round ------------------------------------------------------------------------------------------------------

    def go_to(self, round: int, how: str) -> None:
        """Leave out the rounds before this one."""
        front = max(round - 1, self.membership.front(self.now))
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

    def _begin(self) -> NodeView:
        self.round = self.done
        if self.known is not None:
            self.known.opened(self.round)
        view = self.view(self.round)
        self.mailbox.open(self.round, None if self.rules.cap is not None else view.expected)
        return view

    def _trained(self, round: int) -> None:
        if self.phase != "training" or round != self.round:
            return
        self.adaptive_timeout.worked(self.now - self.began)
        if self._front_is_vague and self.locate.ask_for_front():
            self.enter("locating")  # nobody would hear what is sent in a round that is over
            self.wake("wait", self.now + LOCATE)
        else:
            self._begin_to_wait()

    def _begin_to_wait(self) -> None:
        """Send what was learnt, in this round or where the others are, and wait for messages."""
        if not self._caught_up(self._behind):
            self._send_and_wait(self.view(self.round))
        self._wait()

    def _send_and_wait(self, view: NodeView) -> None:
        self._send(view)
        self.enter("waiting")
        self._ask_at = self.now + self.adaptive_timeout.suspicious

    @property
    def _behind(self) -> int:
        """So many rounds behind, what a node sends comes too late; where nobody knows whom to wait for that is one.

        Where two witnesses are enough it is one more: a liar may be one of them, and a single honest node that is ahead for a moment the other.
        """
        if self._expects_anybody:
            return 1
        return BEHIND if self.membership.witnesses(self.now) > 2 else BEHIND + 1

    @property
    def _front_is_vague(self) -> bool:
        """Whether somebody says to be far ahead, and not enough others have been heard lately to tell."""
        behind = self._behind
        front, furthest = self.membership.front(self.now, behind - 1), self.membership.furthest(self.now)
        return not self.rules.barrier and furthest >= max(front + behind, self.round + behind)

    def _caught_up(self, behind: int) -> bool:
        """Go on where the others are, if enough of them are so far ahead; what this node has learnt is sent in that round."""
        front, last = self._front(), self.rules.rounds - 1
        if self.rules.barrier or self.round >= last or front < self.round + behind:
            return False
        self.locate.found_front()
        self.mailbox.skip()
        self.go_to(min(front + 1, last), "with its own model")
        self._send_and_wait(self._begin())
        return True

    def _overtaken(self, wanted: int) -> bool:
        """Whether half of those who send to this node in a round have closed this one."""
        if self.coin is not None:
            return any(self._shown(k, 1 if k > 1 else 0) for k in range(1, self.rules.ahead + 1))
        return 2 * self.mailbox.moved_on >= max(1, wanted)

    def _front(self) -> int:
        """The round that enough others have reached. With a committed coin their messages must show it, as long as these are kept.

        A few members can all say that they are ahead, but they cannot send more messages than they have drawn.
        """
        front, here = self.membership.front(self.now, self._behind - 1), self.round
        if self.coin is None or front > here + self.rules.ahead:
            return front
        return max((t for t in range(here + 1, front + 1) if self._shown(t - here, 2)), default=here)

    def _shown(self, rounds: int, more: int) -> bool:
        """Whether so many messages of the next rounds are here that a good part of the others must have gone through them.

        That is half of what these rounds bring on average and so many more, two at least: members that lie have all of theirs here at once.
        """
        here = sum(len(self.mailbox.early(self.round + i)) for i in range(1, rounds + 1))
        return here >= max(2, (rounds * len(self.view(self.round).targets) + 1) // 2 + more)

    def _send(self, view: NodeView) -> None:
        self.questions.keep(self.round, view.targets)
        alive = self.membership.alive(self.now)
        if self.rules.cap is None:
            there = tuple(node_id for node_id in view.targets if node_id in alive)
            self.questions.sent(self.round, there)
            self.act(Send(self.round, there))
        else:
            self.offers.begin(self.round, view.targets, alive)

    def _wait(self) -> None:
        """Close the round if it is over; ask those whose messages do not come."""
        rules, alive = self.rules, self.membership.alive(self.now)
        if self._front_is_vague:
            self.locate.ask_for_front()
        self._caught_up(BEHIND + 1)
        if rules.barrier:
            missing, left = self.mailbox.missing(), TICK
            over = not missing
        elif self._expects_anybody:
            missing, left = frozenset[int](), self._left_for_anybody()
            over = left <= 0
        else:
            missing, left = self._left_for_neighbours()
            over = left <= 0
        if over:
            self._close(missing & alive)
            return
        self.wake("wait", self.now + max(1, min(TICK, left)))
        if rules.barrier and self._away_too_long(missing - alive):
            return
        if missing & alive and self.now >= self._ask_at:
            self._ask_at = self.now + ASK_AGAIN
            self.questions.ask_again(missing & alive)

    @property
    def _expects_anybody(self) -> bool:
        """Whether nobody knows whose messages this node is to get."""
        return self.rules.cap is not None or self.view(self.round).expected is None

    def _left_for_neighbours(self) -> tuple[frozenset[int], int]:
        """Where the in-neighbours are known: whose messages are waited for, and how much time they have left."""
        membership, now, heard = self.membership, self.now, self.mailbox.heard
        view, waited = self.view(self.round), now - self.began
        missing = self.mailbox.missing()
        absent = membership.taking_part(missing, now)
        missing = membership.expected(missing, self.round, now)
        held = frozenset[int]()
        if membership.far_behind(self.round - LEAD, now):
            held = absent
        elif ALONE * heard < heard + len(absent):
            held = membership.worth_waiting_for(absent, self.round, now)
        missing |= held
        usual = self.rules.deadline if held else self.adaptive_timeout.limit
        if missing and not held and not membership.punctual(missing):
            # others wait for this node no longer than it waits: it must not wait as long for one that is slow
            usual //= 2
        return missing, self.rules.close.left(
            heard=heard,
            expected=len(view.expected or ()),
            missing=bool(missing) or not membership.alive(now),
            waited=waited,
            usual=usual,
        )

    def _left_for_anybody(self) -> int:
        """Where nobody knows whom to expect: how long to wait for messages."""
        rules, heard, waited = self.rules, self.mailbox.heard, self.now - self.began
        wanted = len(self.view(self.round).targets)
        if rules.cap is not None and heard >= rules.cap:
            return 0
        if self._overtaken(wanted) or self.membership.front(self.now) > self.round:
            return 0
        left = rules.close.left(
            heard=heard, expected=wanted, missing=True, waited=waited, usual=self.adaptive_timeout.limit
        )
        if rules.close.enough(heard, wanted):
            return left
        if (
            left <= 0 and ALONE * heard < wanted and self.membership.alive(self.now)
        ):  # nobody drew this node, or it is ahead
            since = self.locate.in_company_since(self.round)
            until = rules.deadline - waited
            return until if since is None else min(until, since + self.adaptive_timeout.grace - self.now)
        return left

    def _away_too_long(self, missing: frozenset[int]) -> bool:
        """Whether one of these is away for so long that the barrier will not be passed; then this node gives up."""
        for node_id in sorted(missing):
            if self.membership.away(node_id, self.now, self.began) > self.rules.patience:
                self.fail(
                    f"round {self.round}: node {node_id} has been away for {self.rules.patience / SECOND:g} s (network.patience), and"
                    ' with network.close.kind = "barrier" nobody goes on without it; start all nodes again to go on'
                )
                return True
        return False

    def will_not_come(self, node_id: int) -> None:
        """Somebody has no message for this node in the open round."""
        if self.phase != "waiting":
            return
        if not self.rules.barrier:
            self.mailbox.excuse(self.round, node_id)
            self._wait()
        elif node_id in self.mailbox.missing():
            self.fail(
                f"round {self.round}: node {node_id} no longer has its message for this node, so that the barrier cannot be"
                ' passed: a node was away for too long; start the run again, or use network.close.kind = "adaptive"'
            )

    def _close(self, missing: frozenset[int]) -> None:
        self.count.longest_wait = max(self.count.longest_wait, self.now - self.began)
        messages = self.mailbox.take()
        for _, arrived in messages.values():
            self.adaptive_timeout.waited(arrived - self.began)
        self._ready = {round: since for round, since in self._ready.items() if round > self.round - 8}
        self._ready[self.round] = self.began
        self.count.lost += len(missing)
        self.membership.missed(missing, self.now - self.began, self.now)
        self._note(len(messages))
        self.enter("mixing")
        mixed = {sender: (message, 0) for sender, (message, _) in messages.items()}
        for sender, (round, message) in self._carried.items():
            mixed.setdefault(sender, (message, self.round - round))
        self._carried = {}
        those = [(sender, *mixed[sender]) for sender in sorted(mixed)]
        ages = tuple(age for _, _, age in those)
        self.act(Mix(self.round, tuple((sender, message) for sender, message, _ in those), ages if any(ages) else ()))

    def _note(self, heard: int) -> None:
        """Count what a round brought, and what its graph promised."""
        view, cap = self.view(self.round), self.rules.cap
        expected = len(view.targets) if view.expected is None else len(view.expected)
        expected = expected if cap is None else min(cap, expected)
        self.count.taken += 1
        self.count.expected += expected
        self.count.heard += heard
        self.count.lonely += expected > 0 and not heard
        self.recent.append((heard, expected))

    def _mixed(self, round: int) -> None:
        if self.phase != "mixing" or round != self.round:
            return
        self.done = round + 1
        self.open()

    # -- messages ------------------------------------------------------------------------------------------------------

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
                    "wrong-graph", "refused a message: its sender drew another graph (further ones are counted only)"
                )
                return
            if rules.cap is None and view.expected is not None and event.sender not in view.expected:
                self.mailbox.turn_away()
                return
        if self.mailbox.full(event.round, event.sender):
            self._refuse("surplus")
            return
        outcome = self.mailbox.put(event.round, event.sender, (event.message, self.now))
        if self.coin is None or outcome not in ("early", "duplicate") or event.round <= here + NEAR:
            self.membership.reached(event.sender, event.round)
        if outcome in ("counted", "early"):
            self.membership.heard(event.sender, event.round, self.now)
        elif outcome == "late" and since is not None:
            self.adaptive_timeout.waited(self.now - since)
            if self.rules.close.carries and self._carried.get(event.sender, (-1,))[0] < event.round:
                self._carried[event.sender] = event.round, event.message
            if event.round > self.round - BEHIND:
                self.membership.nearly(event.sender)
        if self.phase == "waiting":
            self._wait()

    def _refuse(self, reason: str) -> None:
        """Count a message that its sender had no right to send."""
        self.count.refused[reason] += 1
        self.say_once(reason, f"refused a message: {REFUSED[reason]} (further ones are counted only)")

    # -- questions ----------------------------------------------------------------------------------------------------

    def asked(self, event: Asked) -> None:
        """Somebody asks for a message, or offers one."""
        if event.topic == "again":
            self.questions.asked_again(event)
        else:
            self.offers.asked(event)

    def answered(self, event: Answered) -> None:
        """Somebody who was asked for a message, or offered one, answers."""
        if event.topic == "again":
            self.questions.answered(event)
        else:
            self.offers.answered(event)
