"""The simulator: all nodes of an experiment on this machine, round after round.

Interrupt it at any moment, by Ctrl-C or by force: going on from the directory gives the same bytes as never having stopped.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.algorithm import Rows
from epidemic.data import Dataset
from epidemic.engine.results import Models, Observer, Run, SeedRun
from epidemic.errors import Interrupted, RunFailed
from epidemic.experiment import Experiment
from epidemic.host.counters import Counters
from epidemic.host.findings import Clock, nodes_of, record_of, summary_of
from epidemic.host.interrupt import Stop, gentle_stop
from epidemic.host.mixture import disagreement, mean_row, mix
from epidemic.host.round import plan_round
from epidemic.host.setup import Setup, make_learner, prepare
from epidemic.host.store import Progress, Store
from epidemic.learner import Choice, Learner
from epidemic.record import Record
from epidemic.workers import Workers


def simulate(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    observer: Observer | None = None,
    data: Dataset | None = None,
) -> Run:
    """Run all seeds of an experiment; with `out`, write everything down there as it happens.

    With `resume`, finished seeds are read back and an unfinished one goes on. `data` spares loading it again.
    """
    observer = Observer() if observer is None else observer
    root = None if out is None else Path(out)
    workers = Workers(experiment.runtime.threads)
    try:
        results: list[SeedRun] = []
        stores = [None if root is None else Store(root, experiment, seed) for seed in experiment.seeds]
        for store in stores:  # before the first one starts
            if store is not None:
                store.check(resume=resume)
        known: Choice | None = None
        for seed, store in zip(experiment.seeds, stores, strict=True):
            try:
                if store is not None:
                    store.open()
                if store is not None and store.finished:
                    results.append(SeedRun(seed, store.records(), store.summary(), None, store.path))
                    continue
                data = experiment.load_data() if data is None else data
                setup = prepare(experiment, seed, data)
                if store is not None and store.run_info() is None:
                    store.announce()
                learner, known = make_learner(setup, workers, known if store is None else store.known_choice())
                if store is not None and store.run_info() is None:
                    store.begin(known, data.note)
                results.append(_Simulation(setup, learner, workers, store, observer).run())
            except KeyboardInterrupt:
                raise Interrupted(f"interrupted before seed {seed} began; {_go_on(experiment, root)}") from None
            finally:
                if store is not None:
                    store.close()
        return Run(experiment, results)
    finally:
        workers.close()


def _go_on(experiment: Experiment, root: Path | None) -> str:
    """How to go on after an interrupt."""
    if root is None:
        return "nothing was saved, because no directory was given"
    return (
        f"go on with: epidemic run --resume {root}" if experiment.portable else "go on with simulate(..., resume=True)"
    )


class _Simulation:
    """One seed."""

    def __init__(
        self, setup: Setup, learner: Learner, workers: Workers, store: Store | None, observer: Observer
    ) -> None:
        self.setup = setup
        self.experiment = setup.experiment
        self.algorithm = setup.experiment.algorithm
        self.learner = learner
        self.workers = workers
        self.store = store
        self.observer = observer
        self.clock = Clock()
        self.stop = Stop()
        self.spare: dict[str, Tensor] = {}  # memory that the next mixture goes into
        self.train_loss: float | None = None
        self.alive = setup.experiment.nodes
        self.done, self.recorded = 0, -1
        self.counters = Counters.zero(setup.experiment.nodes)
        self.records: list[Record] = []
        rows = setup.initial.to(setup.task.device).repeat(setup.experiment.nodes, 1)
        self.state: Rows = self.algorithm.init(rows)
        self._restore()

    def run(self) -> SeedRun:
        """All rounds, then the final evaluation."""
        experiment, rounds = self.experiment, self.experiment.rounds
        self.observer.started(self.setup, self.learner, self.done)
        saved = time.monotonic()
        with gentle_stop() as stop:
            self.stop = stop
            try:
                while True:
                    due = self.done % experiment.eval.every == 0 or self.done == rounds
                    if due and self.recorded < self.done:
                        self._record()
                    by_rounds = experiment.checkpoint.rounds and self.done % experiment.checkpoint.rounds == 0
                    by_time = (
                        experiment.checkpoint.seconds and time.monotonic() - saved >= experiment.checkpoint.seconds
                    )
                    if self.store is not None and self.done and (by_rounds or by_time or self.done == rounds):
                        with stop.held():
                            self._save()
                        saved = time.monotonic()
                    if self.done == rounds:
                        return self._finish()
                    with stop.held():
                        self._round()
            except KeyboardInterrupt:
                raise self._interrupted(whole=not stop.broke) from None

    # -- one round ----------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        t, streams, device = self.done, self.setup.streams, self.setup.task.device
        with self.clock("plan"):
            plan = plan_round(self.experiment, streams, t)
            index = self.setup.batches.index(streams, t)
            random = self.learner.draws_random_numbers
            seeds = [streams.key("dropout", t, i) % 2**63 if random else 0 for i in range(self.experiment.nodes)]
        self.observer.planned(plan, index)
        with self.clock("train"):
            if len(plan.returning):
                self.state["x"][plan.returning] = self.state["x"][plan.donors]
            try:
                message, loss = self._emit(plan.delivery.alive, torch.from_numpy(index).to(device), seeds)
            except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as problem:
                reason = " ".join(str(problem).split())
                raise RunFailed(
                    f"{self.experiment.name}, seed {self.setup.seed}, round {t}: training failed: {type(problem).__name__}: {reason}"
                ) from problem
        self._check("training loss", np.flatnonzero(plan.delivery.alive), loss)
        with self.clock("mix"):
            mixed = {
                name: mix(plan.weights, rows, self.workers, self._memory(name, rows)) for name, rows in message.items()
            }
            self._absorb(plan.delivery.alive, message, mixed)
            self.counters.count(plan, sum(rows.shape[1] * rows.element_size() for rows in message.values()))
        self.train_loss = float(loss.mean()) if len(loss) else None
        self.alive = int(plan.delivery.alive.sum())
        self.done += 1
        self.observer.advanced(self.done, self.state["x"])

    def _emit(self, alive: NDArray[np.bool_], index: Tensor, seeds: list[int]) -> tuple[Rows, Tensor]:
        """Let those who are up train; the others' models stay where they are and go nowhere."""
        if alive.all():
            self.state, message, loss = self.algorithm.emit(self.state, self.learner, index, seeds)
            return message, loss
        up = np.flatnonzero(alive)
        part = {name: rows[up] for name, rows in self.state.items()}
        part, sent, loss = self.algorithm.emit(part, self.learner, index[up], [seeds[i] for i in up])
        for name, rows in part.items():
            whole = self.state.setdefault(
                name, torch.zeros(len(alive), *rows.shape[1:], dtype=rows.dtype, device=rows.device)
            )
            whole[up] = rows
        message = {}
        for name, rows in sent.items():
            message[name] = (
                self.state[name].clone() if name in self.state else self.state["x"].new_zeros(len(alive), rows.shape[1])
            )
            message[name][up] = rows
        return message, loss

    def _absorb(self, alive: NDArray[np.bool_], message: Rows, mixed: Rows) -> None:
        if alive.all():
            self.state = self.algorithm.absorb(self.state, mixed)
            taken = {rows.untyped_storage().data_ptr() for rows in self.state.values()}
            self.spare = {}
            for name, rows in message.items():
                if rows.untyped_storage().data_ptr() not in taken:
                    self.spare[name] = rows
                    taken.add(rows.untyped_storage().data_ptr())
            return
        up = np.flatnonzero(alive)
        part = {name: rows[up] for name, rows in self.state.items()}
        part = self.algorithm.absorb(part, {name: rows[up] for name, rows in mixed.items()})
        for name, rows in part.items():
            whole = self.state.setdefault(
                name, torch.zeros(len(alive), *rows.shape[1:], dtype=rows.dtype, device=rows.device)
            )
            whole[up] = rows
        self.state = {name: self.state[name] for name in part}

    def _memory(self, name: str, like: Tensor) -> Tensor:
        spare = self.spare.pop(name, None)
        fits = spare is not None and spare.shape == like.shape and spare.dtype == like.dtype and spare.is_contiguous()
        return spare if spare is not None and fits else torch.empty_like(like)

    def _check(self, what: str, nodes: NDArray[Any], loss: Tensor) -> None:
        """End the run if the loss of a node is no longer a number."""
        bad = nodes[(~torch.isfinite(loss)).numpy()]
        if len(bad):
            which = ", ".join(map(str, bad[:8])) + (", ..." if len(bad) > 8 else "")
            kept = "; the last checkpoint is kept" if self.store is not None and self.store.has_checkpoint else ""
            fix = "lower algorithm.lr" if self.done else "look at the data, the model and algorithm.lr"
            raise RunFailed(
                f"{self.experiment.name}, seed {self.setup.seed}, round {self.done}: the {what} of {len(bad)} of"
                f" {self.experiment.nodes} nodes ({which}) is no longer a finite number; {fix}{kept}"
            )

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def _record(self) -> None:
        with self.clock("evaluate"):
            x = self.state["x"]
            same = self.done == 0 and bool((x == x[0]).all())  # everybody starts from one model
            found = self.learner.evaluate(x[:1] if same else x, self.setup.evaluated)
            self._check("loss", np.arange(len(found.loss)), found.loss)
            mean = self.learner.evaluate(mean_row(x, self.workers), self.setup.evaluated)
            record = record_of(
                self.setup,
                found,
                mean,
                hosted=self.experiment.nodes,
                round=self.done,
                alive=self.alive,
                train_loss=self.train_loss,
                disagreement=0.0 if same else disagreement(x, self.workers),
                bytes=self.counters.traffic(),
            )
        with self.stop.held():  # a record is written and known to be, or neither
            if self.store is not None:
                self.store.append(record, {"round": self.done, "seconds": self.clock.taken()})
            self.records.append(record)
            self.recorded = self.done
        self.observer.recorded(record)

    def _finish(self) -> SeedRun:
        """The full test set, and everything written down."""
        self.observer.evaluating("the full test set")
        self.spare.clear()
        x = self.state["x"]
        final = self.learner.evaluate(x, self.setup.test)
        mean = self.learner.evaluate(mean_row(x, self.workers), self.setup.test)
        summary = summary_of(self.setup, self.records, final, mean, rounds=self.done, bytes=self.counters.traffic())
        layout = self.setup.task.layout
        if self.store is not None:
            self.store.finish(summary, nodes_of(self.setup, final, self.counters), layout, x)
        self.observer.finished(summary)
        path = None if self.store is None else self.store.path
        return SeedRun(self.setup.seed, self.records, summary, Models(layout, x.cpu()), path)

    # -- stopping and going on ----------------------------------------------------------------------------------------

    def _save(self) -> None:
        assert self.store is not None
        with self.clock("checkpoint"):
            extra = (
                {} if self.train_loss is None else {"train_loss": torch.tensor(self.train_loss, dtype=torch.float64)}
            )
            tensors = {f"state.{name}": rows for name, rows in self.state.items()}
            tensors |= {**self.counters.tensors(), **extra, "alive": torch.tensor(self.alive)}
            self.store.save_checkpoint(Progress(round=self.done, recorded=self.recorded), tensors)

    def _restore(self) -> None:
        if self.store is None:
            return
        found = self.store.restore()
        if found is None:
            return
        progress, tensors = found
        device = self.setup.task.device
        self.state = {k.removeprefix("state."): t.to(device) for k, t in tensors.items() if k.startswith("state.")}
        self.counters = Counters.restored(tensors)
        self.train_loss = float(tensors["train_loss"]) if "train_loss" in tensors else None
        self.alive = int(tensors["alive"])
        self.done, self.recorded = progress.round, progress.recorded
        self.records = self.store.records()

    def _interrupted(self, *, whole: bool) -> Interrupted:
        """Save, unless the user was too impatient for the round to end: then the last checkpoint counts."""
        where = f"seed {self.setup.seed}, after round {self.done} of {self.experiment.rounds}"
        if self.store is not None and whole:
            with suppress(KeyboardInterrupt), self.stop.held():
                self._save()
        return Interrupted(
            f"interrupted at {where}; {_go_on(self.experiment, None if self.store is None else self.store.root)}"
        )
