"""The deployed round protocol under the simulated clock: what `protocol/rounds.py` decides is done by a node of the clockwork.

The protocol is the one that deployed nodes run: it adapts its waits, catches up, asks again for messages that do not come, offers messages
where there is a cap, and gives up peers that stay silent. What differs is who is there (`membership`): the simulated world says it at once,
from its churn, instead of greetings and heartbeats; a node that comes back was paused, and goes on with the model that it had.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from epidemic.algorithms.asynchronous import Message, Node
from epidemic.core.errors import RunFailed
from epidemic.protocol import events as e
from epidemic.protocol.rounds import Rounds
from epidemic.protocol.rules import NodeView, Rules
from epidemic.simulator.membership import Presence, SimulatedMembership

CONTROL_BYTES = 128
"""What a question, an answer or an offer takes, as in deployments."""
REMEMBERED = 32
"""Rounds of which a node remembers its view."""


class DeployedNode(Node):
    """One node of the deployed protocol, and what it has done by its driver."""

    context: Any  # a RoundPerson

    def __init__(self, context: Any, rules: Rules, presence: Presence, loss: float) -> None:
        """`rules`: what deployed nodes go by; `presence`: who is there, shared by all nodes; `loss`: the share of messages that get lost."""
        super().__init__(context)
        self._loss = loss
        self._again = 0  # messages that were sent again
        self._presence = presence
        self._drawn = 0  # random numbers of the protocol
        self._asked = 0  # questions of this node
        self._open: set[int] = set()  # questions that are not answered yet
        self._views: dict[int, NodeView] = {}
        self._results: dict[int, Any] = {}  # by round: what was sent, for those who ask again
        self._received = self._used = self._dropped = 0
        self._members = members = SimulatedMembership(rules, presence, context.id)
        self.protocol = Rounds(rules, self._view, self._draw, "", membership=members)
        presence.protocols.append(self.protocol)

    def _draw(self, below: int) -> int:
        self._drawn += 1
        return int(self.context.chance("protocol", self._drawn) * below)

    def _view(self, round: int) -> NodeView:
        found = self._views.get(round)
        if found is None:
            targets, expected = self.context.neighbours(round)
            if self.protocol.rules.blind:
                expected = None
            found = self._views[round] = NodeView(tuple(targets), expected, b"")
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

    def received(self, message: Message) -> None:
        """A message came."""
        self._received += 1
        self._feed(e.Arrived(message.sender, message.note[0], b"", message))

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
            _, node_id, round = tag
            self._members.says(node_id, round, self.context.now)
            self._feed(e.Timer("wait"))

    def messages_held(self) -> int:
        """Messages that may still count."""
        return self.protocol.held

    def counts(self) -> dict[str, int]:
        """What the protocol counted."""
        count = self.protocol.count
        return {"jumped": count.jumped, "asked": count.asked, "lost": count.lost, "lonely": count.lonely}

    # -- what it has done ---------------------------------------------------------------------------------------------

    def _feed(self, *events: e.Event) -> None:
        """Tell the protocol what happened, and do what it wants, until nothing follows from it."""
        todo, protocol, context = deque(events), self.protocol, self.context
        while todo:
            done = protocol.done
            for action in protocol.step(todo.popleft(), context.now):
                follows = self._do(action)
                if follows is not None:
                    todo.append(follows)
            if protocol.done > done:
                context.passed(protocol.done - done)
        useless = self._received - self._used - self._dropped - protocol.held
        if useless > 0:
            self._dropped += useless
            context.dropped(range(useless))

    def _do(self, action: e.Action) -> e.Event | None:
        context = self.context
        match action:
            case e.SetTimer():
                context.wake_at(action.at, action.name)
            case e.Train():
                context.open(action.round)
            case e.Send():
                self._results[action.round] = context.result
                context.post_to(action.round, context.result, action.to)
            case e.Mix():
                messages = [message for _, message in action.messages]
                context.close(action.round, messages, action.ages or (0,) * len(messages))
                self._used += len(messages)
                context.used(messages)
                return e.Mixed(action.round)
            case e.Ask():
                self._ask(action)
            case e.Answer():
                self._answer(action.reply, action.word)
            case e.AnswerMessage():
                if action.round in self._results:
                    self._again += 1
                    lost = bool(self._loss) and context.chance("lost-again", self._again) < self._loss
                    context.post_again(action.round, self._results[action.round], action.to, lost=lost)
                self._answer(action.reply, "sent")
            case e.Forget():
                self._results = {of: row for of, row in self._results.items() if of >= action.before}
            case e.Greet() if action.node_id is not None:
                self._greet(action.node_id)
            case e.Conclude():
                self._presence.finished.add(context.id)
                context.finish()
            case e.Fail():
                raise RunFailed(f"node {context.id}: {action.reason}")
        return None

    def _ask(self, action: e.Ask) -> None:
        context, number = self.context, self._asked
        self._asked += 1
        self._open.add(number)
        context.control += CONTROL_BYTES
        context.tell(action.to, ("ask", context.id, action.topic, action.round, number))
        context.wake_at(context.now + action.patience, ("answer", action.to, action.topic, action.round, None, number))

    def _answer(self, reply: Any, word: str) -> None:
        by, topic, round, number = reply
        self.context.control += CONTROL_BYTES
        self.context.tell(by, ("answer", self.context.id, topic, round, word, number))

    def _greet(self, node_id: int) -> None:
        """Ask somebody for its round; the answer takes the way there and back."""
        self.context.control += CONTROL_BYTES
        if node_id in self._presence.online:
            other = self._presence.protocols[node_id]
            self.context.tell_back(node_id, ("handshake", node_id, other.handshake()[0]))
