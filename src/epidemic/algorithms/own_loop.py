"""Somebody's own training loop: a script trains, the node exchanges what the script has attached (`epidemic.join`)."""

from __future__ import annotations

from torch import Tensor

from epidemic.algorithms.base import Defaults, Inbox, RoundContext, Rows
from epidemic.core.errors import BadInput
from epidemic.core.settings import Settings
from epidemic.learner import Learner
from epidemic.learner.callers import CallersLearner


class OwnLoop(Defaults, Settings, frozen=True, tag_field="kind", tag="own-loop", forbid_unknown_fields=True):
    """A script of your own trains, with `epidemic.join`; the node sends, waits and aggregates. Deployed nodes only."""

    aggregates = True
    own_training = True

    @property
    def local_steps(self) -> int:
        """A round is one training, whatever that is."""
        return 1

    @property
    def batch_size(self) -> int:
        """Unknown here, and of no meaning."""
        return 1

    def init(self, x: Tensor) -> Rows:
        """What is attached, and nothing else: the script keeps what it remembers.   # (k, d)"""
        return {"x": x}

    def local_update(self, state: Rows, learner: Learner, context: RoundContext) -> tuple[Rows, Rows, Tensor]:
        """Wait until the script has trained; the message is what is attached then."""
        if not isinstance(learner, CallersLearner):
            raise BadInput(
                'algorithm.kind = "own-loop" is trained by a script of your own; start that, with epidemic.join(folder)'
            )
        loss = learner.update(context.round, state["x"])
        return state, {"x": state["x"]}, loss

    def aggregate(self, state: Rows, inbox: Inbox) -> Rows:
        """The aggregate is what the script goes on with."""
        return {**state, "x": inbox.aggregate("x")}
