"""The deployed round protocol under the simulated clock: `protocol/rounds.py` decides, a node of the clockwork carries it out.

The protocol is the one that deployed nodes run: it adapts its waits, catches up, asks again for missing messages, offers messages if there is a cap, and
gives up silent peers. Only `membership` differs: instead of greetings and heartbeats, the simulated world tells at once which nodes are online. A node
that returns was paused, and continues with its model.
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
"""Size of a question, an answer or an offer in bytes, as in deployments."""
REMEMBERED = 32
"""Rounds for which a node keeps its view."""


class DeployedNode(Node):
    """One node of the deployed protocol, with the part of its driver."""

    context: Any  # a SimulatedRoundContext

    def __init__(self, context: Any, rules: Rules, presence: Presence, loss: float) -> None:
        """Start a node.

        Args:
            context: What it can ask for.
            rules: The settings of deployed nodes.
            presence: Which nodes are online, shared by all nodes.
            loss: The share of messages that get lost.
        """
        super().__init__(context)
        self._loss = loss
        self._again = 0  # messages sent again
        self._presence = presence
        self._drawn = 0  # random numbers drawn by the protocol
        self._asked = 0  # questions asked by this node
        self._open: set[int] = set()  # unanswered questions
        self._views: dict[int, NodeView] = {}
        self._results: dict[int, Any] = {}  # by round: what was sent, for peers that ask again
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
        """Begin at once: all peers are there."""
        self._feed(e.Started(), e.Timer("look"))

    def trained(self, row: Any) -> None:
        """Pass on that the training of the open round is done."""
        self._feed(e.Trained(self.protocol.round))

    def received(self, message: Message) -> None:
        """Pass on a received message."""
        self._received += 1
        self._feed(e.Arrived(message.sender, message.note[0], b"", message))

    def online(self) -> None:
        """Ask how far the peers are: the node was away."""
        self._feed(e.Timer("wait"))

    def woken(self, tag: Any) -> None:
        """Handle a timer of the protocol, or a word of another node."""
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
        """How many held messages may still count."""
        return self.protocol.held

    def counts(self) -> dict[str, int]:
        """The counters of the protocol, by name."""
        count = self.protocol.count
        return {"jumped": count.jumped, "asked": count.asked, "lost": count.lost, "lonely": count.lonely}

    # -- what it has done ---------------------------------------------------------------------------------------------

    def _feed(self, *events: e.Event) -> None:
        """Pass events to the protocol and carry out its actions, until none is left."""
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
        """Ask a peer for its round; the answer takes a round trip."""
        self.context.control += CONTROL_BYTES
        if node_id in self._presence.online:
            other = self._presence.protocols[node_id]
            self.context.tell_back(node_id, ("handshake", node_id, other.handshake()[0]))
