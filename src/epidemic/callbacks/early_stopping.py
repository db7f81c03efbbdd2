"""Ending a seed that no longer improves, or that is good enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epidemic.callbacks.base import Callback
from epidemic.callbacks.trackers import BUILT_IN, SHARES, Better, scalar
from epidemic.core.errors import BadInput, require_choice, require_int, require_real, suggestion
from epidemic.core.formatting import count

if TYPE_CHECKING:
    from epidemic.learner import Learner
    from epidemic.record import Record
    from epidemic.runtime.setup import Setup


class EarlyStopping(Callback):
    """Ends a seed when a metric has not improved for `patience` evaluations, or has reached `target`.

    Each seed is judged separately, and is evaluated on the full test set when it ends. A resumed run ends in the same round as an uninterrupted one.

    Args:
        metric: accuracy, accuracy_min, accuracy_max, mean_model_accuracy, loss, loss_max, mean_model_loss, train_loss,
            disagreement; or, with a `mode`, bytes, alive, or a metric of your own by name.
        patience: Evaluations (not rounds) in a row without an improvement that end the seed. None: only `target` counts.
        min_delta: Improvements of at most this much do not count.
        target: A value that is good enough; an accuracy is in [0, 1]. None: only `patience` counts.
        mode: "max" if more is better, "min" if less is; needed if that is unknown.

    Example:
        >>> run = ep.simulate(experiment, callbacks=[ep.callbacks.EarlyStopping(patience=5, target=0.9)])
        >>> run.seeds[0].summary.rounds, run.seeds[0].summary.ended_early
    """

    def __init__(
        self,
        metric: str = "accuracy",
        *,
        patience: int | None = None,
        min_delta: float = 0.0,
        target: float | None = None,
        mode: Better | None = None,
    ) -> None:
        if not isinstance(metric, str):
            raise BadInput(f"EarlyStopping: metric = {metric!r} must be the name of a metric, for example 'accuracy'")
        if patience is None and target is None:
            raise BadInput("EarlyStopping needs patience=N (evaluations without an improvement), target=VALUE, or both")
        if patience is not None:
            require_int("EarlyStopping: patience", patience, 1)
        if target is not None:
            require_real("EarlyStopping: target", target)
            if metric in SHARES and not 0 <= target <= 1:
                meant = f"; {target:g} % is {target / 100:g}" if 1 < target <= 100 else ""
                raise BadInput(f"EarlyStopping: target = {target} must be in [0, 1], as {metric} is{meant}")
        require_real("EarlyStopping: min_delta", min_delta, 0)
        if mode is not None:
            require_choice("EarlyStopping: mode", mode, ["max", "min"])
        better = BUILT_IN.get(metric) or mode
        if better is None:
            say = f"say which values of {metric!r} are better: mode = 'max' or mode = 'min'"
            if metric in BUILT_IN:
                raise BadInput(f"EarlyStopping: {say}")
            near = suggestion(metric, BUILT_IN)
            raise BadInput(f"EarlyStopping: metric = {metric!r} is not built in{near} (if it is your own, {say})")
        if mode is not None and mode != better:
            raise BadInput(f"EarlyStopping: mode = {mode!r} contradicts metric = {metric!r}; leave it out")
        self.metric, self.patience, self.min_delta, self.target = metric, patience, min_delta, target
        self._sign = 1.0 if better == "max" else -1.0
        self._forget()

    def _forget(self) -> None:
        self._best: float | None = None
        self._waited = 0
        self._reached: float | None = None

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """Reset: every seed is judged separately."""
        self._forget()

    def resumed(self, records: Sequence[Record]) -> None:
        """Judge what was recorded before as if it were recorded now."""
        for record in records:
            self.recorded(record)

    def recorded(self, record: Record) -> None:
        """Remember the best value, and how long ago it was."""
        value = scalar(record, self.metric, "EarlyStopping")
        if value is not None and (self._best is None or self._sign * (value - self._best) > self.min_delta):
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        if value is not None and self.target is not None and self._sign * (value - self.target) >= 0:
            self._reached = value

    def stop(self) -> str | None:
        """The reason to end, if there is one."""
        if self._reached is not None:
            return f"{self.metric} {self._reached:.6g} has reached the target {self.target:g}"
        if self.patience is not None and self._waited >= self.patience:
            best = "no value" if self._best is None else f"{self._best:.6g}"
            return f"{self.metric} has not improved on {best} for {count(self._waited, 'evaluation')}"
        return None
