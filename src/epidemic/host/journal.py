"""Journal: where a run stands and what it has found, for one directory. Every host of nodes keeps its runs by it.

A host loops like this, whatever a round means to it:

    journal.settle()                 # evaluates and saves where that is due
    if journal.over: journal.conclude()
    with stop.held(): ... a round ...; journal.advanced(...)

An interrupt waits for the end of what is held, because in the middle of it the models are half-trained.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.algorithms import Rows
from epidemic.errors import CallbackFailed, EpidemicError, Interrupted
from epidemic.host.checkpoint import Progress
from epidemic.host.counters import Counters
from epidemic.host.findings import Clock, living_of, nodes_of, record_of, summary_of
from epidemic.host.interrupt import Stop
from epidemic.host.mixture import disagreement, mean_row
from epidemic.host.population import Population, Positions
from epidemic.host.store import Store
from epidemic.learner import Evaluation, Learner
from epidemic.record import Record, Summary
from epidemic.workers import Workers


@dataclass
class Host:
    """Who computes: the hosted nodes, their learner, the threads, and how an interrupt is held back."""

    population: Population
    learner: Learner
    workers: Workers
    stop: Stop


@dataclass
class Ear:
    """Who is told what a run finds out, and asked for a reason to end it; nobody, by default."""

    recorded: Callable[[Record], None] = lambda _: None
    evaluating: Callable[[str], None] = lambda _: None
    finished: Callable[[Summary], None] = lambda _: None
    stop: Callable[[], str | None] = lambda: None


@dataclass
class Extra:
    """What a host saves besides the state of its nodes: tensors and counts."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    tallies: dict[str, int] = field(default_factory=dict)


class Journal:
    """One run: all nodes of a simulation, or one deployed node."""

    def __init__(
        self, host: Host, store: Store | None, how_to_go_on: str, *, place: int | None = None, ear: Ear | None = None
    ) -> None:
        """`place`: the position of the one node whose run this is; without it, the run is of the whole population."""
        self.host = host
        self.store = store
        self.ear = Ear() if ear is None else ear
        self.clock = Clock()
        self.setup = host.population.setup
        self.experiment = self.setup.experiment
        self._who: Positions | None = None if place is None else np.array([place])
        self._how = how_to_go_on
        self.ids: Positions = host.population.ids if place is None else host.population.ids[[place]]
        self.done, self.recorded = 0, -1  # rounds; the last one that has a record
        self.records: list[Record] = []
        self.counters = Counters.zero(len(self.ids))
        self.train_loss: float | None = None
        self.alive = self.experiment.nodes  # in the whole network, in the last round
        self.up: NDArray[np.bool_] = np.ones(len(self.ids), dtype=bool)  # which of the hosted nodes were
        self.ended_early: str | None = None  # why, if somebody wants no more rounds
        self.extra: Callable[[], Extra] = Extra
        self._saved = time.monotonic()

    @property
    def over(self) -> bool:
        """Whether all rounds are done, or nobody wants more of them."""
        return self.done >= self.experiment.rounds or self.ended_early is not None

    @property
    def models(self) -> Tensor:
        """The models of this run's nodes.   # (k, d)"""
        x = self.host.population.models
        return x if self._who is None else x[self._who]

    @property
    def kept(self) -> str:
        """What is left when it fails, for people."""
        return "; the last checkpoint is kept" if self.store is not None and self.store.has_checkpoint else ""

    # -- between rounds -----------------------------------------------------------------------------------------------

    def advanced(self, round: int, loss: Tensor, alive: NDArray[np.bool_] | int) -> None:
        """Round `round` is done, with these losses; who was up in it."""
        self.train_loss = float(loss.mean()) if len(loss) else None
        if isinstance(alive, int):
            self.alive = alive
        else:
            self.alive, self.up = int(alive.sum()), alive
        self.done = round + 1

    def check_loss(self, what: str, loss: Tensor, ids: Positions | None = None) -> None:
        """End the run if a loss is no longer a number."""
        ids = self.ids if ids is None else ids
        self.host.population.check_finite(what, self.done, ids, loss, self.kept)

    @property
    def due(self) -> bool:
        """Whether the models are to be evaluated now."""
        return (self.done % self.experiment.eval.every == 0 or self.over) and self.recorded < self.done

    def settle(self) -> None:
        """Evaluate and save where that is due."""
        if self.due:
            self.record()
        when = self.experiment.checkpoint
        by_rounds = when.rounds and self.done % when.rounds == 0
        by_time = when.seconds and time.monotonic() - self._saved >= when.seconds
        if self.store is not None and self.done and (by_rounds or by_time or self.over):
            with self.host.stop.held():
                self.save()
            self._saved = time.monotonic()

    def record(self) -> None:
        """Evaluate the models, and write the record down."""
        host = self.host
        with self.clock("evaluate"):
            x, samples = self.models, self.setup.evaluated
            same = self._who is None and self.done == 0 and bool((x == x[0]).all())  # everybody starts from one model
            found = host.learner.evaluate(x[:1] if same else x, samples)
            self.check_loss("loss", found.loss, self.ids[: len(found.loss)])
            whole = self._who is None
            record = record_of(
                self.setup,
                found,
                host.learner.evaluate(mean_row(x, host.workers), samples) if whole else None,
                hosted=len(self.ids),
                round=self.done,
                alive=self.alive,
                train_loss=self.train_loss,
                disagreement=None if not whole else 0.0 if same else disagreement(x, host.workers),
                living=living_of(found, x, self.up, host.workers) if whole else None,
                bytes=self.counters.traffic(),
            )
        with host.stop.held():  # a record is written and known to be, or neither
            if self.store is not None:
                self.store.append(record, {"round": self.done, "seconds": self.clock.taken()})
            self.records.append(record)
            self.recorded = self.done
        self.ear.recorded(record)
        self.ask()

    def ask(self) -> None:
        """Ask whether to end here; after the last round it makes no difference."""
        reason = self.ear.stop()
        if self.done < self.experiment.rounds and self.ended_early is None:
            self.ended_early = reason

    def conclude(self, about: Callable[[], dict[str, Any]] = dict) -> Summary:
        """The full test set, and everything written down; `about` is added to what is said of a single node."""
        self.ear.evaluating("the full test set")
        host = self.host
        host.population.release()
        x, test = self.models, self.setup.test
        final = host.learner.evaluate(x, test)
        mean: Evaluation | None = host.learner.evaluate(mean_row(x, host.workers), test) if self._who is None else None
        sent = self.counters.traffic()
        summary = summary_of(
            self.setup, self.records, final, mean, rounds=self.done, bytes=sent, ended_early=self.ended_early or ""
        )
        if self.store is not None:
            nodes = nodes_of(self.setup, final, self.counters, self.ids)
            more = about()
            state = host.population.state
            models = [f"state.{name}" for name, rows in state.items() if rows is x] if self._who is None else None
            self.store.finish(summary, [node | more for node in nodes], self.setup.task.layout, x, models)
        self.ear.finished(summary)
        return summary

    @contextmanager
    def marked(self) -> Iterator[None]:
        """While it runs, the directory says so; afterwards, how it ended."""
        if self.store is None:
            yield
            return
        self.store.mark("running")
        try:
            yield
        except BaseException as problem:
            reason = " ".join(str(problem).split())
            if self.store.finished:  # what went wrong came after its end
                self.store.mark("finished", self.ended_early or "")
            elif isinstance(problem, KeyboardInterrupt | Interrupted):
                self.store.mark("stopped", f"interrupted after round {self.done} of {self.experiment.rounds}")
            else:
                known = isinstance(problem, EpidemicError)
                self.store.mark("failed", reason if known else f"unexpected {type(problem).__name__}: {reason}")
            raise

    # -- stopping and going on ----------------------------------------------------------------------------------------

    def save(self) -> None:
        """Save the state of the nodes, what was counted, and what the host adds."""
        assert self.store is not None
        with self.clock("checkpoint"):
            population, extra = self.host.population, self.extra()
            state: Rows = population.state if self._who is None else population.snapshot(self._who)
            tensors = {f"state.{name}": rows for name, rows in state.items()} | self.counters.tensors()
            if self.train_loss is not None:
                tensors["train_loss"] = torch.tensor(self.train_loss, dtype=torch.float64)
            tensors["alive"] = torch.tensor(self.alive)
            if not self.up.all():
                tensors["up"] = torch.from_numpy(self.up)
            progress = Progress(round=self.done, recorded=self.recorded, tallies=extra.tallies)
            self.store.save_checkpoint(progress, tensors | extra.tensors)

    def restore(self) -> Extra | None:
        """Go on from the checkpoint; what the host had added to it, or None if there is none."""
        found = None if self.store is None else self.store.restore(self.setup.task.layout)
        if found is None or self.store is None:
            return None
        progress, tensors = found
        state = {k.removeprefix("state."): t for k, t in tensors.items() if k.startswith("state.")}
        population = self.host.population
        if self._who is None:
            population.state = {name: rows.to(self.setup.task.device) for name, rows in state.items()}
        else:
            population.restore(self._who, state)
        self.counters = Counters.restored(tensors)
        self.train_loss = float(tensors["train_loss"]) if "train_loss" in tensors else None
        self.alive = int(tensors["alive"])
        if "up" in tensors:
            self.up = tensors["up"].numpy()
        self.done, self.recorded = progress.round, progress.recorded
        self.records = self.store.records()
        return Extra(tensors, progress.tallies)

    def interrupted(self) -> Interrupted:
        """Save, unless the user was too impatient for the round to end: then the last checkpoint counts."""
        if not self.host.stop.broke:
            self._save_now()
        return Interrupted(f"interrupted at {self._where}; {self._how}")

    def failed_beside(self, problem: CallbackFailed) -> CallbackFailed:
        """Save: what failed is not the run but somebody who was told of it, between two rounds."""
        if self.store is not None and self.store.finished:
            return CallbackFailed(f"{problem}; seed {self.setup.seed} itself is finished and saved")
        self._save_now()
        return CallbackFailed(f"{problem}; stopped at {self._where}; {self._how}")

    @property
    def _where(self) -> str:
        return f"seed {self.setup.seed}, after round {self.done} of {self.experiment.rounds}"

    def _save_now(self) -> None:
        if self.store is not None and self.recorded >= 0:
            with suppress(KeyboardInterrupt), self.host.stop.held():
                self.save()
