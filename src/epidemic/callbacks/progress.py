"""The progress of a run, wherever somebody looks, and what a user should know about a seed before it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from epidemic.aggregation import made
from epidemic.algorithms import cautions
from epidemic.callbacks.base import Callback
from epidemic.clock import Clock
from epidemic.core.errors import plain
from epidemic.core.formatting import count, duration, percent, score, simulated, size
from epidemic.core.progress import Bar, Bars
from epidemic.counting import rounds_planned
from epidemic.experiment import Experiment, said_of
from epidemic.learner import Learner
from epidemic.models import unused_methods
from epidemic.record import Record, Summary
from epidemic.runtime.describe import disconnection
from epidemic.runtime.plan import share_of_few
from epidemic.runtime.setup import Setup
from epidemic.runtime.sizes import small_shares
from epidemic.topology import topology_cautions

Kind = Literal["warning", "note"]


def share_done(
    planned: int | None, clock: Clock | None, rounds_done: int, seconds: float | None, sent: float = 0.0
) -> float:
    """How much of a seed is done, from 0 to 1: by its planned rounds, or by the time or the bytes sent at which its clock stops it."""
    shares = [] if planned is None else [rounds_done / planned if planned else 1.0]
    if clock is not None and clock.stop:
        shares.append((seconds or 0.0) / clock.stop)
    if clock is not None and clock.megabytes:
        shares.append(sent / (1e6 * clock.megabytes))
    return min(max(shares), 1.0)


class Display(Callback):
    """The progress of runs: a bar for each seed on a terminal or in a notebook, a line per evaluation elsewhere."""

    def __init__(self, *, quiet: bool = False, notebook: bool = False) -> None:
        self._bars = Bars(quiet=quiet, notebook=notebook)
        self._quiet = quiet
        self._bar = Bar("", None)
        self._rounds = 0
        self._sent = 0.0
        self._share: Callable[[], float] = float
        self._count: Callable[[int], str] = str
        self._began = (0.0, 0)
        self._done = 0
        self._time: float | None = None  # simulated
        self._events: list[
            tuple[float, int]
        ] = []  # when there were how many: at the first word of them in this process, and now
        self._said: set[str] = set()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.__exit__()

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """Begin a new bar for the seed that begins or resumes."""
        name = f"{setup.experiment.name}, seed {setup.seed}"
        self._rounds = setup.experiment.rounds
        planned, clock = rounds_planned(setup.experiment.table()), setup.experiment.clock
        self._share = lambda: share_done(planned, clock, self._done, self._time, self._sent)
        self._count = lambda done: str(done) if planned is None else f"{done}/{planned}"
        self._began = (time.monotonic(), rounds_done)
        self._done, self._time, self._sent, self._events = rounds_done, None, 0.0, []
        again = f", resuming after round {rounds_done}" if rounds_done else ""
        where = "" if setup.experiment.runtime.device in ("cpu", "auto") else f" on {setup.task.device.type}"
        self._bar = self._bars.add(name, done=self._share(), count=self._aligned())
        self._bars.say(
            f"{name}: {count(setup.experiment.nodes, 'node')}, {count(self._rounds, 'round')}, {learner.strategy}{where}{again}"
        )
        for kind, line in [] if self._quiet else remarks(setup, self._said):
            self._bars.note(f"{kind}: {line}", style="yellow" if kind == "warning" else "dim")

    def advanced(self, rounds_done: int, x: Any) -> None:
        """Move the bar to the rounds that are done."""
        self._done = rounds_done
        self._show(count=self._aligned(), rate=self._rate(rounds_done))

    def passed(self, seconds: float, events: int) -> None:
        """Show simulated time, and how many events are played in a second of ours."""
        self._time = seconds
        self._events = [*self._events[:1], (time.monotonic(), events)]
        self._show(rate=self._rate(self._done))

    def recorded(self, record: Record) -> None:
        """Show the accuracy or loss of the last evaluation beside the bar."""
        apart = "" if record.disagreement is None else f"D {record.disagreement:.2e}  "
        state = f"{score(record.accuracy, record.loss)}  {apart}sent {size(record.bytes.total.mean)}"
        self._time = self._time if record.time is None else record.time.seconds
        self._sent = record.bytes.total.mean
        self._show(state=state)
        self._bars.say(f"{self._bar.name}: round {self._count(record.round)}  {state}  {self._rate(record.round)}")

    def evaluating(self, what: str) -> None:
        """Show that a long step without rounds begins."""
        self._show(rate=what)

    def finished(self, summary: Summary) -> None:
        """Show the duration, and why a seed ended early."""
        if self._time is not None and not summary.ended_early:  # the clock stopped it, perhaps before the last round
            self._bars.update(self._bar, done=1.0)
        self._bars.update(self._bar, rate=duration(time.monotonic() - self._began[0]))
        if summary.ended_early and not self._quiet:
            self._bars.note(f"{self._bar.name}: ended early after round {summary.rounds}: {summary.ended_early}")

    def _show(self, **texts: str) -> None:
        self._bars.update(self._bar, soon=True, done=self._share(), **texts)

    def _aligned(self) -> str:
        """As wide at the beginning as at the end."""
        return self._count(self._done).rjust(2 * len(str(self._rounds)) + 1)

    def _rate(self, rounds_done: int) -> str:
        start, before = self._began
        seconds = time.monotonic() - start
        parts = [] if self._time is None else [simulated(self._time)]
        if rounds_done > before and seconds > 0:
            parts.append(f"{(rounds_done - before) / seconds:.1f} rounds/s")
        (first, some), (last, many) = (self._events[0], self._events[-1]) if self._events else ((0.0, 0), (0.0, 0))
        if many > some and last > first:
            parts.append(f"{(many - some) / (last - first):,.0f} events/s")
        return "  ".join(parts)


ENOUGH_MOMENTUM = 0.9


def _little_momentum(experiment: Experiment) -> str | None:
    """A line where malicious nodes can hide behind noise that momentum would take away."""
    momentum, adversary = getattr(experiment.algorithm, "momentum", None), experiment.adversary
    plain = getattr(experiment.algorithm, "optimizer", None) == "sgd" and hasattr(experiment.algorithm, "order")
    if not plain or momentum is None or momentum >= ENOUGH_MOMENTUM or adversary is None or not adversary.size:
        return None
    if made(experiment.aggregation).linear:
        return None
    return (
        f"algorithm.momentum = {momentum:g}: malicious models hide behind the noise of honest gradients, of which momentum ="
        f" {ENOUGH_MOMENTUM:g} with a tenth of the learning rate leaves a nineteenth"
    )


def remarks(setup: Setup, said: set[str]) -> list[tuple[Kind, str]]:
    """The lines about a seed, each with its kind. Those in `said` are left out; the returned ones are added to it."""
    experiment = setup.experiment
    apart = disconnection(experiment, setup.seed)
    few = small_shares(setup.parts, experiment.algorithm.batch_size)
    found: list[tuple[Kind, str]] = []
    if experiment.runtime.device == "auto":
        found.append(("note", f"{experiment.name} is computed on {setup.task.device.type}"))
    if apart is not None:
        found.append(("warning", apart))
    if setup.data.note:
        found.append(("warning", f"data: {plain(setup.data.note, 500)}"))
    if (unused := unused_methods(setup.task.module)) is not None:
        found.append(("warning", unused))
    found += [("warning", line) for line in cautions(experiment.algorithm, experiment.topology)]
    found += [("warning", line) for line in topology_cautions(experiment.topology, experiment.nodes)]
    share, most = share_of_few(experiment, setup.seed)
    if share:
        found.append(
            (
                "warning",
                f"{said_of(experiment)}: about {percent(share)} of aggregates have fewer than {made(experiment.aggregation).fewest} models"
                f" ({most} at most), and these nodes keep their own; let nodes receive more models (topology.s), or trim fewer",
            )
        )
    if (without := _little_momentum(experiment)) is not None:
        found.append(("note", without))
    if few is not None and "small shares" not in said:  # its numbers differ between seeds; once is enough
        said.add("small shares")
        found.append(("note", few))
    new = [(kind, line) for kind, line in found if line not in said]
    said.update(line for _, line in new)
    return new
