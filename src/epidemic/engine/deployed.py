"""The deployed round protocol under the simulated clock: what `protocol/rounds.py` decides is done by a node of the clockwork.

The protocol is the one that deployed nodes run: it adapts its waits, catches up, asks again for messages that do not come, offers messages
where there is a cap, and gives up peers that stay silent. What differs is who is there (`membership`): the simulated world says it at once,
from its churn, instead of greetings and heartbeats; a node that comes back was paused, and goes on with the model that it had.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from epidemic.algorithms.free import Letter, Node
from epidemic.engine.membership import Membership, Presence
from epidemic.errors import RunFailed
from epidemic.protocol import events as e
from epidemic.protocol.rounds import Rounds
from epidemic.protocol.rules import Rules, View

CONTROL_BYTES = 128
"""What a question, an answer or an offer takes, as in deployments."""
REMEMBERED = 32
"""Rounds of which a node remembers its view."""


class DeployedNode(Node):
    """One node of the deployed protocol, and what it has done by its driver."""

    me: Any  # a RoundPerson

    def __init__(self, me: Any, rules: Rules, presence: Presence, loss: float) -> None:
        """`rules`: what deployed nodes go by; `presence`: who is there, shared by all nodes; `loss`: the share of messages that get lost."""
        super().__init__(me)
        self._loss = loss
        self._again = 0  # messages that were sent again
        self._presence = presence
        self._drawn = 0  # random numbers of the protocol
        self._asked = 0  # questions of this node
        self._open: set[int] = set()  # questions that are not answered yet
        self._views: dict[int, View] = {}
        self._results: dict[int, Any] = {}  # by round: what was sent, for those who ask again
        self._received = self._used = self._dropped = 0
        self._members = members = Membership(rules, presence, me.id)
        self.protocol = Rounds(rules, self._view, self._draw, "", roster=members)
        presence.protocols.append(self.protocol)

    def _draw(self, below: int) -> int:
        self._drawn += 1
        return int(self.me.chance("protocol", self._drawn) * below)

    def _view(self, round: int) -> View:
        found = self._views.get(round)
        if found is None:
            targets, expected = self.me.neighbours(round)
            if self.protocol.rules.blind:
                expected = None
            found = self._views[round] = View(tuple(targets), expected, b"")
            if len(self._views) > REMEMBERED:
                del self._views[min(self._views)]
        return found

    # -- what happens to it -------------------------------------------------------------------------------------------

    def started(self) -> None:
        """The others are there: it begins at once."""
        self._feed(e.Started(), e.Timer("look"))

    def trained(self, row: Any) -> None:
        """The training of the open round is done."""
        self._feed(e.Trained(self.protocol.round))

    def received(self, letter: Letter) -> None:
        """A message came."""
        self._received += 1
        self._feed(e.Arrived(letter.sender, letter.note[0], b"", letter))

    def online(self) -> None:
        """It was away, and looks where the others are."""
        self._feed(e.Timer("wait"))

    def woken(self, tag: Any) -> None:
        """A timer of the protocol, or a word of another node."""
        if isinstance(tag, str):
            self._feed(e.Timer(tag))
        elif tag[0] == "ask":
            _, by, topic, round, number = tag
            self._feed(e.Asked(topic, by, round, (by, topic, round, number)))
        elif tag[0] == "answer":
            _, by, topic, round, word, number = tag
            if number in self._open:
                self._open.discard(number)
                self._feed(e.Answered(topic, by, round, word))
        else:
            _, place, round = tag
            self._members.says(place, round, self.me.now)
            self._feed(e.Timer("wait"))

    def letters_held(self) -> int:
        """Messages that may still count."""
        return self.protocol.held

    def counts(self) -> dict[str, int]:
        """What the protocol counted."""
        count = self.protocol.count
        return {"jumped": count.jumped, "asked": count.asked, "lost": count.lost, "lonely": count.lonely}

    # -- what it has done ---------------------------------------------------------------------------------------------

    def _feed(self, *events: e.Event) -> None:
        """Tell the protocol what happened, and do what it wants, until nothing follows from it."""
        todo, protocol, me = deque(events), self.protocol, self.me
        while todo:
            done = protocol.done
            for action in protocol.step(todo.popleft(), me.now):
                follows = self._do(action)
                if follows is not None:
                    todo.append(follows)
            if protocol.done > done:
                me.passed(protocol.done - done)
        useless = self._received - self._used - self._dropped - protocol.held
        if useless > 0:
            self._dropped += useless
            me.dropped(range(useless))

    def _do(self, action: e.Action) -> e.Event | None:
        me = self.me
        match action:
            case e.SetTimer():
                me.wake_at(action.at, action.name)
            case e.Train():
                me.open(action.round)
            case e.Send():
                self._results[action.round] = me.result
                me.post_to(action.round, me.result, action.to)
            case e.Mix():
                letters = [letter for _, letter in action.letters]
                me.close(action.round, letters, action.ages or (0,) * len(letters))
                self._used += len(letters)
                me.used(letters)
                return e.Mixed(action.round)
            case e.Ask():
                self._ask(action)
            case e.Answer():
                self._answer(action.reply, action.word)
            case e.AnswerLetter():
                if action.round in self._results:
                    self._again += 1
                    lost = bool(self._loss) and me.chance("lost-again", self._again) < self._loss
                    me.post_again(action.round, self._results[action.round], action.to, lost=lost)
                self._answer(action.reply, "sent")
            case e.Forget():
                self._results = {of: row for of, row in self._results.items() if of >= action.before}
            case e.Greet() if action.place is not None:
                self._greet(action.place)
            case e.Conclude():
                self._presence.finished.add(me.id)
                me.finish()
            case e.Fail():
                raise RunFailed(f"node {me.id}: {action.reason}")
        return None

    def _ask(self, action: e.Ask) -> None:
        me, number = self.me, self._asked
        self._asked += 1
        self._open.add(number)
        me.control += CONTROL_BYTES
        me.tell(action.to, ("ask", me.id, action.topic, action.round, number))
        me.wake_at(me.now + action.patience, ("answer", action.to, action.topic, action.round, None, number))

    def _answer(self, reply: Any, word: str) -> None:
        by, topic, round, number = reply
        self.me.control += CONTROL_BYTES
        self.me.tell(by, ("answer", self.me.id, topic, round, word, number))

    def _greet(self, place: int) -> None:
        """Ask somebody for its round; the answer takes the way there and back."""
        self.me.control += CONTROL_BYTES
        if place in self._presence.online:
            other = self._presence.protocols[place]
            self.me.tell_back(place, ("hello", place, other.hello()[0]))
