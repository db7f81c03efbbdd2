"""State transfer: a returning node asks for the current model. No peer gets a model more often than once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epidemic.protocol.events import NOT_YET, SECOND, Answer, Asked, Give

if TYPE_CHECKING:
    from epidemic.protocol.member import Member

GIVE_AGAIN = SECOND
"""The shortest time between two models for one peer."""
NEAR = 16
"""Requests from further away than so many rounds count as replays."""


class StateTransfer:
    """The models that one node gave to returning peers."""

    def __init__(self, node: Member) -> None:
        self._node = node
        self._given: dict[int, int] = {}  # when each peer last got a model

    def asked(self, event: Asked) -> None:
        """Answer a request for the current model; a node that has not begun refuses."""
        node, last = self._node, self._given.get(event.by)
        lately = last is not None and node.now - last < GIVE_AGAIN
        if node.begun and not lately and abs(event.round - node.round) <= NEAR:
            self._given[event.by] = node.now
            node.act(Give(event.reply, event.by))
        else:
            node.act(Answer(event.reply, NOT_YET))
