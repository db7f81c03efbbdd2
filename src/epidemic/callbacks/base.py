"""The interface of callbacks: what they are called with, how they end a seed, and how several are combined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import msgspec

from epidemic import callbacks
from epidemic.core.config import call_own, import_object
from epidemic.core.errors import BadInput, CallbackFailed, EpidemicError, Interrupted, plain, suggestion
from epidemic.experiment import CallbackName, Experiment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from epidemic.learner import Learner
    from epidemic.record import Record, Summary
    from epidemic.runtime.plan import Plan
    from epidemic.runtime.setup import Setup


class Callback:
    """Base of the callbacks; it does nothing. Override what you need.

    A callback must not change what it is given. For each seed `started` is called; then, if the seed resumes from a checkpoint, `resumed`; then `planned` and
    `advanced` for each round, `recorded` for each evaluation, and `passed` now and then under the simulated clock; `evaluating` and `finished` at the end.
    After each record `stop` is called.

    A callback that raises ends the run with one line that names it. What was done is saved and can be resumed.

    Example:
        >>> class Printer(Callback):
        ...     def recorded(self, record):
        ...         print(record.round, record.loss.mean)
        >>> run = ep.simulate(experiment, callbacks=[Printer()])
    """

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """Called when a seed starts or resumes.

        Args:
            setup: The seed, ready to run: its experiment, data, shares, model.
            learner: What trains and evaluates the models.
            rounds_done: Rounds done by an earlier process; 0 at the start.
        """

    def resumed(self, records: Sequence[Record]) -> None:
        """Called when the seed resumes, with the earlier records, so that a callback with memory comes to the same decisions."""

    def planned(self, plan: Plan, index: NDArray[np.int64]) -> None:
        """Called before a round is computed.

        Args:
            plan: Its graph, faults and weights.
            index: The samples of every node, local step and position in the batch.   # (n, r, b)
        """

    def advanced(self, rounds_done: int, x: Tensor) -> None:
        """A round is done.

        Args:
            rounds_done: So many by now.
            x: The models, a row for each node; to look at, not to keep: the next round changes them.   # (n, d)
        """

    def passed(self, seconds: float, events: int) -> None:
        """Called now and then under the simulated clock.

        Args:
            seconds: Simulated time since the start.
            events: Number of events since the start: arrivals, ends of trainings, and so on.
        """

    def recorded(self, record: Record) -> None:
        """Called after an evaluation, with its record."""

    def stop(self) -> str | None:
        """Called after each record: a reason ends the seed here, with its final evaluation; None continues.

        The answer may depend on records and settings only, so that a resumed run ends in the same round.
        """
        return None

    def evaluating(self, what: str) -> None:
        """Called when something long without rounds begins; `what` names it."""

    def finished(self, summary: Summary) -> None:
        """Called when a seed is done, with what stands in its `summary.json`."""


class Callbacks(Callback):
    """Several callbacks, called in order. An exception of one is reported as its failure."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = tuple(callbacks)

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """Tell every callback that a seed starts or resumes."""
        for one in self.callbacks:
            with _blamed(one, "started"):
                one.started(setup, learner, rounds_done)

    def resumed(self, records: Sequence[Record]) -> None:
        """Tell every callback that a seed resumes, and what it had recorded before."""
        for one in self.callbacks:
            with _blamed(one, "resumed"):
                one.resumed(records)

    def planned(self, plan: Plan, index: NDArray[np.int64]) -> None:
        """A round is about to be computed."""
        for one in self.callbacks:
            with _blamed(one, "planned"):
                one.planned(plan, index)

    def advanced(self, rounds_done: int, x: Tensor) -> None:
        """Tell every callback that a round is done."""
        for one in self.callbacks:
            with _blamed(one, "advanced"):
                one.advanced(rounds_done, x)

    def passed(self, seconds: float, events: int) -> None:
        """Tell every callback how far the simulated time is."""
        for one in self.callbacks:
            with _blamed(one, "passed"):
                one.passed(seconds, events)

    def recorded(self, record: Record) -> None:
        """Tell every callback that the models were evaluated."""
        for one in self.callbacks:
            with _blamed(one, "recorded"):
                one.recorded(record)

    def stop(self) -> str | None:
        """The first reason to end the seed; all are asked."""
        reasons = []
        for one in self.callbacks:
            with _blamed(one, "stop"):
                reason = one.stop()
                if not isinstance(reason, str | None):
                    raise TypeError(f"it must return a reason as text, or None to continue, not {reason!r}")
                reasons.append(reason)
        return next((" ".join(reason.split()) for reason in reasons if reason), None)

    def evaluating(self, what: str) -> None:
        """Tell every callback that something long without rounds begins."""
        for one in self.callbacks:
            with _blamed(one, "evaluating"):
                one.evaluating(what)

    def finished(self, summary: Summary) -> None:
        """Tell every callback that a seed is done."""
        for one in self.callbacks:
            with _blamed(one, "finished"):
                one.finished(summary)


@contextmanager
def _blamed(callback: Callback, what: str) -> Iterator[None]:
    """Report exceptions inside as the callback's failure; before anything was done, with their own message."""
    try:
        yield
    except (CallbackFailed, Interrupted):
        raise
    except Exception as problem:
        known = isinstance(problem, EpidemicError)
        if known and what == "started":
            raise
        said = str(problem) if known else f"{type(problem).__name__}: {problem}"
        reason = plain(" ".join(said.split()), 500)
        raise CallbackFailed(f"callback {type(callback).__name__} failed in {what}(): {reason}") from problem


def all_of(callbacks: Callback | Iterable[Callback]) -> Callbacks:
    """One callback or several, as one."""
    if isinstance(callbacks, Callbacks):
        return callbacks
    callbacks = [callbacks] if isinstance(callbacks, Callback) else callbacks
    if not isinstance(callbacks, Iterable):
        raise BadInput(
            f"callbacks = {callbacks!r} must be a list of callbacks, for example [EarlyStopping(patience=5)]"
        )
    callbacks = list(callbacks)
    for i, one in enumerate(callbacks):
        if isinstance(one, type) and issubclass(one, Callback):
            raise BadInput(f"callbacks[{i}] = {one.__name__} is a class; make one of it: {one.__name__}(...)")
        if not isinstance(one, Callback):
            raise BadInput(f"callbacks[{i}] = {one!r} is not a callback; derive its class from epidemic.Callback")
    return Callbacks(callbacks)


# -- Callbacks that an experiment file names -------------------------------------------------------------------------


def named_callbacks(experiment: Experiment) -> list[Callback]:
    """The callbacks that an experiment names, made anew."""
    return [_made(cast(CallbackName, one)) for one in experiment.callbacks]


def listeners(experiment: Experiment) -> list[Callback]:
    """The callbacks of a deployed node, whose run they cannot end."""
    found = named_callbacks(experiment)
    for one, named in zip(found, experiment.callbacks, strict=True):
        if type(one).stop is not Callback.stop:
            raise BadInput(
                f"callbacks: {cast(CallbackName, named).use!r} ends runs early, which a deployed node cannot do alone;"
                " leave it out of what is deployed"
            )
    return found


def check_shipped(experiment: Experiment) -> None:
    """Refuse built-in callbacks that deployed nodes cannot use; a user's modules may exist only where the nodes are."""
    shipped = [one for one in experiment.callbacks if ":" not in cast(CallbackName, one).use]
    listeners(msgspec.structs.replace(experiment, callbacks=shipped))


def _made(one: CallbackName) -> Callback:
    """A class or a function is called with the options; an object is taken as it is."""
    where = f"callbacks: {one.use!r}"
    found = _found(one.use)
    made = found
    if isinstance(found, type) or not isinstance(found, Callback):
        made = call_own(found, one.options, where)
    elif one.options:
        raise BadInput(f"{where} is an object already and takes no options; name its class")
    if not isinstance(made, Callback):
        what = made.__name__ if isinstance(made, type) else type(made).__name__
        raise BadInput(f"{where} must be or give an epidemic.Callback, not {what}; derive yours from it")
    return made


def _found(name: str) -> Any:
    if ":" in name:
        return import_object(name, "callbacks")
    known = [n for n in callbacks.__all__ if n not in ("Callback", "Callbacks", "all_of")]
    if name not in known:
        near = suggestion(name, known)
        raise BadInput(f'callbacks: {name!r} is neither known nor of the form "module:name"{near}')
    return getattr(callbacks, name)
