"""What a callback is told, how it ends a seed, and how several are told the same."""

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
    """Who wants to know how a run goes on; this one does not care about anything. Derive from it what does.

    A callback is told, and changes nothing: what it is given must stay as it is. For each seed it is told `started`; then, if
    the seed goes on from a checkpoint, `resumed`; then `planned` and `advanced` for each round, `recorded` for each evaluation, and
    `passed` now and then under the simulated clock; `evaluating` and `finished` at the end. After each record it is asked whether to
    `stop`.

    A callback that raises ends the run with one line that names it. What was done is saved and can go on.

    Example:
        >>> class Printer(Callback):
        ...     def recorded(self, record):
        ...         print(record.round, record.loss.mean)
        >>> run = ep.simulate(experiment, callbacks=[Printer()])
    """

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """A seed begins, or goes on after so many rounds.

        Args:
            setup: The seed, ready to run: its experiment, data, shares, model.
            learner: What trains and evaluates the models.
            rounds_done: Rounds that an earlier process has done; 0 at the beginning.
        """

    def resumed(self, records: Sequence[Record]) -> None:
        """The seed goes on: what was recorded before, so that a callback that remembers comes to the same decisions."""

    def planned(self, plan: Plan, index: NDArray[np.int64]) -> None:
        """A round is about to be computed.

        Args:
            plan: Its graph, what goes wrong in it, and its weights.
            index: The samples of every node, local step and place in the batch.   # (n, r, b)
        """

    def advanced(self, rounds_done: int, x: Tensor) -> None:
        """A round is done.

        Args:
            rounds_done: So many by now.
            x: The models, a row for each node; to look at, not to keep: the next round changes them.   # (n, d)
        """

    def passed(self, seconds: float, events: int) -> None:
        """Under the simulated clock, told now and then: where it stands.

        Args:
            seconds: Simulated time since the start.
            events: So many were played since the start: messages that came, trainings that ended, and the like.
        """

    def recorded(self, record: Record) -> None:
        """The models were evaluated, and this was written down."""

    def stop(self) -> str | None:
        """Asked after each record: a reason ends the seed here, with its final evaluation; None goes on.

        The answer may depend on records and settings only, so that a run that was interrupted ends in the same round.
        """
        return None

    def evaluating(self, what: str) -> None:
        """Called when something long without rounds begins; `what` names it."""

    def finished(self, summary: Summary) -> None:
        """Called when a seed is done, with what stands in its `summary.json`."""


class Callbacks(Callback):
    """Several, told in their order. What one of them raises is reported as its own failure."""

    def __init__(self, those: Iterable[Callback]) -> None:
        self.those = tuple(those)

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """A seed begins, or goes on."""
        for one in self.those:
            with _blamed(one, "started"):
                one.started(setup, learner, rounds_done)

    def resumed(self, records: Sequence[Record]) -> None:
        """Tell every callback that a seed resumes, and what it had recorded before."""
        for one in self.those:
            with _blamed(one, "resumed"):
                one.resumed(records)

    def planned(self, plan: Plan, index: NDArray[np.int64]) -> None:
        """A round is about to be computed."""
        for one in self.those:
            with _blamed(one, "planned"):
                one.planned(plan, index)

    def advanced(self, rounds_done: int, x: Tensor) -> None:
        """Tell every callback that a round is done."""
        for one in self.those:
            with _blamed(one, "advanced"):
                one.advanced(rounds_done, x)

    def passed(self, seconds: float, events: int) -> None:
        """Tell every callback how far the simulated time is."""
        for one in self.those:
            with _blamed(one, "passed"):
                one.passed(seconds, events)

    def recorded(self, record: Record) -> None:
        """Tell every callback that the models were evaluated."""
        for one in self.those:
            with _blamed(one, "recorded"):
                one.recorded(record)

    def stop(self) -> str | None:
        """The first reason to end the seed; all are asked."""
        reasons = []
        for one in self.those:
            with _blamed(one, "stop"):
                reason = one.stop()
                if not isinstance(reason, str | None):
                    raise TypeError(f"it must give a reason in words, or None to go on, not {reason!r}")
                reasons.append(reason)
        return next((" ".join(reason.split()) for reason in reasons if reason), None)

    def evaluating(self, what: str) -> None:
        """Tell every callback that something long without rounds begins."""
        for one in self.those:
            with _blamed(one, "evaluating"):
                one.evaluating(what)

    def finished(self, summary: Summary) -> None:
        """Tell every callback that a seed is done."""
        for one in self.those:
            with _blamed(one, "finished"):
                one.finished(summary)


@contextmanager
def _blamed(callback: Callback, what: str) -> Iterator[None]:
    """Whatever goes wrong inside is the callback's failure; before anything was done, what is wrong in its own words."""
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
    those = [callbacks] if isinstance(callbacks, Callback) else callbacks
    if not isinstance(those, Iterable):
        raise BadInput(
            f"callbacks = {callbacks!r} must be a list of callbacks, for example [EarlyStopping(patience=5)]"
        )
    those = list(those)
    for i, one in enumerate(those):
        if isinstance(one, type) and issubclass(one, Callback):
            raise BadInput(f"callbacks[{i}] = {one.__name__} is a class; make one of it: {one.__name__}(...)")
        if not isinstance(one, Callback):
            raise BadInput(f"callbacks[{i}] = {one!r} is not a callback; derive its class from epidemic.Callback")
    return Callbacks(those)


# -- Callbacks that an experiment file names -------------------------------------------------------------------------


def named_callbacks(experiment: Experiment) -> list[Callback]:
    """The callbacks that an experiment names, made anew."""
    return [_made(cast(CallbackName, one)) for one in experiment.callbacks]


def listeners(experiment: Experiment) -> list[Callback]:
    """The same for a deployed node, which nobody but the network can end."""
    found = named_callbacks(experiment)
    for one, named in zip(found, experiment.callbacks, strict=True):
        if type(one).stop is not Callback.stop:
            raise BadInput(
                f"callbacks: {cast(CallbackName, named).use!r} ends runs early, which a deployed node cannot do alone;"
                " leave it out of what is deployed"
            )
    return found


def check_shipped(experiment: Experiment) -> None:
    """Refuse those of our own that no deployed node can have; a user's modules may be where the nodes are, and not here."""
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
