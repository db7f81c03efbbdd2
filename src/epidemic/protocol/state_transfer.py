"""Giving: somebody who comes back asks for the current model. Nothing that is asked makes a node send one more often than every second to one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epidemic.protocol.events import NOT_YET, SECOND, Answer, Asked, Give

if TYPE_CHECKING:
    from epidemic.protocol.member import Member

GIVE_AGAIN = SECOND
"""So often at most somebody is given a model."""
NEAR = 16
"""Wishes for a model from so many rounds away are somebody's old ones, said again."""


class StateTransfer:
    """To whom one node gave its model, and when."""

    def __init__(self, node: Member) -> None:
        self._node = node
        self._given: dict[int, int] = {}  # when somebody was given a model

    def asked(self, event: Asked) -> None:
        """Somebody asks for the current model; a node that has not begun has none worth giving."""
        node, last = self._node, self._given.get(event.by)
        lately = last is not None and node.now - last < GIVE_AGAIN
        if node.begun and not lately and abs(event.round - node.round) <= NEAR:
            self._given[event.by] = node.now
            node.act(Give(event.reply, event.by))
        else:
            node.act(Answer(event.reply, NOT_YET))
