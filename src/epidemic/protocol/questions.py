"""Questions about messages: missing ones are requested, and requested ones are sent again.

No question makes this node send a message to one peer more often than every few seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from epidemic.protocol.events import NOT_YET, NOTHING, SECOND, Answer, Answered, AnswerMessage, Asked, Forget

if TYPE_CHECKING:
    from epidemic.protocol.rounds import Rounds

SEND_AGAIN = 3 * SECOND
"""Time for which a sent message is assumed to be on its way."""


class Questions:
    """The questions about messages that one node asks and answers, besides offers."""

    def __init__(self, node: Rounds, kept: Mapping[int, Iterable[int]]) -> None:
        """Start; `kept` are the targets of messages sent before a restart, by round."""
        self._node = node
        self.kept: dict[int, dict[int, int | None]] = {
            round: dict.fromkeys(targets) for round, targets in kept.items()
        }  # by round: receivers, and when each was last sent the message
        self._asking: set[int] = set()  # peers being asked for a message

    # -- messages that are kept ----------------------------------------------------------------------------------------

    def keep(self, round: int, targets: tuple[int, ...]) -> None:
        """Keep the message of a round for questions, and discard the oldest."""
        self.kept[round] = dict.fromkeys(targets)
        before = round - self._node.rules.kept + 1
        if any(old < before for old in self.kept):
            self.kept = {of: sent for of, sent in self.kept.items() if of >= before}
            self._node.act(Forget(before))

    def sent(self, round: int, node_ids: Iterable[int]) -> None:
        """Note that the message of a round was sent to these."""
        for node_id in node_ids:
            self.kept[round][node_id] = self._node.now

    # -- asking -------------------------------------------------------------------------------------------------------

    def ask_again(self, node_ids: Iterable[int]) -> None:
        """Ask these peers for their missing messages of this round."""
        for node_id in sorted(set(node_ids) - self._asking):
            self._asking.add(node_id)
            self._node.ask("again", node_id, self._node.round, SECOND)

    def answered(self, event: Answered) -> None:
        """Handle the answer of a peer asked for its message: it comes, or there is none."""
        if event.by not in self._asking:
            return
        self._asking.discard(event.by)
        if event.answer == NOTHING and event.round == self._node.round:
            self._node.will_not_come(event.by)

    # -- answering ----------------------------------------------------------------------------------------------------

    def asked_again(self, event: Asked) -> None:
        """Answer a peer that asks for this node's message of a round."""
        node = self._node
        sent = self.kept.get(event.round, {})
        if event.by in sent and node.phase != "looking":
            last = sent[event.by]
            if last is not None and node.now - last < SEND_AGAIN:
                node.act(Answer(event.reply, NOT_YET))
                return
            sent[event.by] = node.now
            node.act(AnswerMessage(event.reply, event.round, event.by))
            return
        past = event.round < max(node.round, node.start)
        node.act(Answer(event.reply, NOTHING if past else NOT_YET))
