"""The deployed round protocol of one node: it trains, sends, closes the round, aggregates, and repeats until the end.

A node that dies is no longer expected. One that returns asks how far its peers are and takes a model. One that falls behind skips rounds; one that is
ahead waits. No claim of a single member moves a node: see `membership`.

Three rules keep nodes together. A node that has received messages from fewer than a third of its live in-neighbours keeps its round open until the
deadline, as long as one of them may still send (the usual limit is shorter than a brief pause). A node far ahead of the others always waits for them.
A node that enough peers have left behind continues in their round.

    looking -> (adopting ->) training -> (locating ->) waiting -> mixing -> training ... -> concluding -> lingering -> left

Start and end are in `member`, questions and answers in `questions` and `offers`.
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
"""Rounds behind enough peers, after its training, at which a node skips to their round: nobody waits for its message any more. While it waits for
messages it needs one more.
"""
LEAD = 8
"""Rounds ahead of everybody else at which a node waits as long as it may."""
NEAR = 2
"""With a committed coin, a message further ahead than this says nothing about its sender's round until that round is near."""
ALONE = 3
"""A node that has heard fewer than one in ALONE live in-neighbours is nearly alone, and waits as long as it may."""
RECENT = 20
"""Last rounds summarised in the status."""
LOCATE = SECOND // 4
"""Time for which a node that was left behind waits for peers to say how far they are."""
ASK_AGAIN = 2 * SECOND
"""How often a missing message is asked for again."""


REFUSED = {
    "wrong-coin": "it does not show the link of the hash chain that its sender committed to",
    "not-drawn": "its sender has not drawn this node in that round",
    "surplus": "more came in one round than can be by chance",
}
"""Why messages do not count if senders draw their own targets, by reason."""


@dataclass(frozen=True)
class PartialKnowledge:
    """How a node gets to know some of the others, and to how many it sends."""

    sampler: PeerSampler
    s: int
    cycles: int = 1
    sample: PeerSample | None = None  # None: an empty one


class Rounds(Member):
    """The state machine of one deployed node in rounds."""

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
        """Start a node.

        Args:
            rules: Its settings.
            view: The node's view of each round; or, if nodes know only some peers, how it gets to know them.
            draw: Source of secret random numbers.
            token: The random name of this start of the node.
            done: Rounds completed before a restart.
            kept: Targets of messages sent before a restart, by round.
            tally: Messages by outcome before a restart.
            count: Other counters before a restart.
            coin: With a committed coin, the commitments of the nodes.
            membership: See `Member`.
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
        self.recent: deque[tuple[int, int]] = deque(maxlen=RECENT)  # (heard, expected) in the last rounds
        self.mailbox.begin_with(done)
        self._ask_at = 0  # when to ask for missing messages
        self._ready: dict[int, int] = {}  # by round, of the last rounds: when the wait for messages began
        self._carried: dict[int, tuple[int, Any]] = {}  # by sender: its last late message, and the round of it

    @property
    def held(self) -> int:
        """How many held messages may still count."""
        return self.mailbox.held + len(self._carried)

    def on(self, event: Event) -> None:
        """Handle a message or the result of a computation."""
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
        """Begin to look for peers: the node is connected."""
        if self.known is not None:
            self.known.started()

    def settle(self) -> None:
        """Check whether a wait is over."""
        super().settle()
        if self.known is not None and self.phase == "looking":
            self.known.looking()

    def commits(self, handshake: Introduced) -> bool:
        """Whether a peer's handshake has the commitment that it must have."""
        return self.coin is None or self.coin.commit(handshake.node_id, handshake.commitment)

    def met(self, node_id: int) -> None:
        """Handle the handshake of a peer."""
        if self.known is not None:
            self.known.met(node_id)

    def waiting(self) -> None:
        """Check whether the round is over, or the peers' round is known."""
        if self.phase == "waiting":
            self._wait()
        elif self.phase == "locating" and (self.locate.front_is_known or self.now - self.began >= LOCATE):
            self._begin_to_wait()

    # -- a round ------------------------------------------------------------------------------------------------------

    def go_to(self, round: int, how: str) -> None:
        """Skip to this round."""
        front = max(round - 1, self.membership.front(self.now))
        self.say(f"the others are in round {front}: going on from {round} instead of {self.done}, {how}")
        self.count.jumped += max(0, min(round, self.rules.rounds) - self.done)
        self.done = self.start = min(round, self.rules.rounds)
        self.mailbox.begin_with(self.done)

    def open(self) -> None:
        """Open the next round, or end after the last one."""
        if self.done >= self.rules.rounds:
            if not self.count.taken and self.rules.rounds:
                self.fail("all peers finished before this node completed a round: it has learnt nothing")
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
            self.enter("locating")  # a message for a round that is over would not be read
            self.wake("wait", self.now + LOCATE)
        else:
            self._begin_to_wait()

    def _begin_to_wait(self) -> None:
        """Send the trained model, in this round or in the one that the peers have reached, and wait for messages."""
        if not self._caught_up(self._behind):
            self._send_and_wait(self.view(self.round))
        self._wait()

    def _send_and_wait(self, view: NodeView) -> None:
        self._send(view)
        self.enter("waiting")
        self._ask_at = self.now + self.adaptive_timeout.suspicious

    @property
    def _behind(self) -> int:
        """The distance in rounds at which a node's messages come too late; one if in-neighbours are unknown.

        If two witnesses suffice, it is one more: one of them may lie, and the other may be a single honest node that is ahead for a moment.
        """
        if self._expects_anybody:
            return 1
        return BEHIND if self.membership.witnesses(self.now) > 2 else BEHIND + 1

    @property
    def _front_is_vague(self) -> bool:
        """Whether a peer claims to be far ahead, and too few others have been heard recently to confirm it."""
        behind = self._behind
        front, furthest = self.membership.front(self.now, behind - 1), self.membership.furthest(self.now)
        return not self.rules.barrier and furthest >= max(front + behind, self.round + behind)

    def _caught_up(self, behind: int) -> bool:
        """Skip to the round of the peers if enough are `behind` rounds ahead; the trained model is sent in that round."""
        front, last = self._front(), self.rules.rounds - 1
        if self.rules.barrier or self.round >= last or front < self.round + behind:
            return False
        self.locate.found_front()
        self.mailbox.skip()
        self.go_to(min(front + 1, last), "with its own model")
        self._send_and_wait(self._begin())
        return True

    def _overtaken(self, wanted: int) -> bool:
        """Whether half of this node's in-neighbours have closed this round."""
        if self.coin is not None:
            return any(self._shown(k, 1 if k > 1 else 0) for k in range(1, self.rules.ahead + 1))
        return 2 * self.mailbox.moved_on >= max(1, wanted)

    def _front(self) -> int:
        """The round that enough peers have reached. With a committed coin their messages must prove it, while these are kept.

        A few members can claim to be ahead, but they cannot send more messages than they have drawn.
        """
        front, here = self.membership.front(self.now, self._behind - 1), self.round
        if self.coin is None or front > here + self.rules.ahead:
            return front
        return max((t for t in range(here + 1, front + 1) if self._shown(t - here, 2)), default=here)

    def _shown(self, rounds: int, more: int) -> bool:
        """Whether so many messages of the next rounds are held that a good part of the peers must have completed those rounds.

        The threshold is half of what these rounds bring on average plus `more`, two at least: lying members may have sent all of theirs at once.
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
        """Close the round if it is over; ask for missing messages."""
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
        """Whether this node cannot know whose messages to expect."""
        return self.rules.cap is not None or self.view(self.round).expected is None

    def _left_for_neighbours(self) -> tuple[frozenset[int], int]:
        """If the in-neighbours are known: those still awaited, and the time left for them in microseconds."""
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
            # Peers wait for this node no longer than it waits itself, so it must wait less than that for a slow one.
            usual //= 2
        return missing, self.rules.close.left(
            heard=heard,
            expected=len(view.expected or ()),
            missing=bool(missing) or not membership.alive(now),
            waited=waited,
            usual=usual,
        )

    def _left_for_anybody(self) -> int:
        """If nobody knows whom to expect: the time left to wait for messages, in microseconds."""
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
        """Whether one of these peers has been away too long for the barrier; the node then fails."""
        for node_id in sorted(missing):
            if self.membership.away(node_id, self.now, self.began) > self.rules.patience:
                self.fail(
                    f"round {self.round}: node {node_id} has been away for {self.rules.patience / SECOND:g} s (network.patience), and"
                    ' with network.close.kind = "barrier" no node continues without it; start all nodes again to resume'
                )
                return True
        return False

    def will_not_come(self, node_id: int) -> None:
        """Stop expecting a message from this node in the open round."""
        if self.phase != "waiting":
            return
        if not self.rules.barrier:
            self.mailbox.excuse(self.round, node_id)
            self._wait()
        elif node_id in self.mailbox.missing():
            self.fail(
                f"round {self.round}: node {node_id} no longer has its message for this node, so the barrier cannot be"
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
        inputs = [(sender, *mixed[sender]) for sender in sorted(mixed)]
        ages = tuple(age for _, _, age in inputs)
        self.act(Mix(self.round, tuple((sender, message) for sender, message, _ in inputs), ages if any(ages) else ()))

    def _note(self, heard: int) -> None:
        """Count the messages that a round brought and those that its graph promised."""
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
        if self.coin is not None:  # messages of old rounds never count and are not worth a hash
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
                    "wrong-graph", "refused a message: its sender drew another graph (further ones are only counted)"
                )
                return
            if rules.cap is None and view.expected is not None and event.sender not in view.expected:
                self.mailbox.refuse()
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
        """Count a message that its sender was not allowed to send."""
        self.count.refused[reason] += 1
        self.say_once(reason, f"refused a message: {REFUSED[reason]} (further ones are only counted)")

    # -- questions ----------------------------------------------------------------------------------------------------

    def asked(self, event: Asked) -> None:
        """Answer a question for a message, or an offer."""
        if event.topic == "again":
            self.questions.asked_again(event)
        else:
            self.offers.asked(event)

    def answered(self, event: Answered) -> None:
        """Handle the answer to a question for a message, or to an offer."""
        if event.topic == "again":
            self.questions.answered(event)
        else:
            self.offers.answered(event)
