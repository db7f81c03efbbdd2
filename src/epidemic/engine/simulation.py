"""The simulator: all nodes of an experiment on this machine, round after round.

Interrupt it at any moment, by Ctrl-C or by force: going on from the directory gives the same bytes as never having stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from epidemic.callbacks import Callback, Callbacks, all_of
from epidemic.callbacks.named import named_callbacks
from epidemic.data import Dataset
from epidemic.engine.results import Models, Run, SeedRun
from epidemic.errors import CallbackFailed, Interrupted
from epidemic.experiment import Experiment, as_experiment
from epidemic.host.inbox import Exchange
from epidemic.host.interrupt import gentle_stop
from epidemic.host.journal import Ear, Host, Journal
from epidemic.host.plan import Plan, plan_round
from epidemic.host.population import Population
from epidemic.host.saved import load_models
from epidemic.host.setup import initial_module, make_learner, prepare
from epidemic.host.store import Store
from epidemic.learner import Choice
from epidemic.rng import Streams
from epidemic.workers import Workers


def simulate(
    experiment: Experiment | str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    resume: bool = False,
    callbacks: Callback | Sequence[Callback] = (),
    data: Dataset | None = None,
) -> Run:
    """Run all seeds of an experiment; with `out`, write everything down there as it happens.

    With `resume`, finished seeds are read back and an unfinished one goes on; those with fewer rounds go on to more. `callbacks` are
    told how it goes on, after those that the experiment names. `data` spares loading it again. The experiment may also be the path of
    its file, or the file's tables.
    """
    experiment = as_experiment(experiment)
    experiment.check_names()
    given = all_of(callbacks).those
    deciding = any(type(one).stop is not Callback.stop for one in given)
    callback = Callbacks([*named_callbacks(experiment), *given])
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
                    again = partial(_saved_models, experiment, seed, store.path, data)
                    results.append(SeedRun(seed, store.records(), store.summary(), store.path, again))
                    continue
                data = experiment.load_data() if data is None else data
                setup = prepare(experiment, seed, data, begun_on=None if store is None else store.known_device())
                if store is not None and (store.run_info() is None or store.behind):
                    store.announce()
                if store is not None and store.behind:
                    store.lengthen(setup.task.layout)
                learner, known = make_learner(setup, workers, known if store is None else store.known_choice())
                if store is not None and store.run_info() is None:
                    device = setup.task.device.type
                    store.begin(known, data.note, classes=data.classes, samples=setup.sizes, device=device)
                with gentle_stop() as stop:
                    host = Host(Population(setup, learner), learner, workers, stop)
                    results.append(_Simulation(host, store, callback, _go_on(store, deciding)).run())
            except KeyboardInterrupt:
                raise Interrupted(f"interrupted before seed {seed} began; {_go_on(store, deciding)}") from None
            finally:
                if store is not None:
                    store.close()
        return Run(experiment, results)
    finally:
        workers.close()


def _go_on(store: Store | None, deciding: bool) -> str:
    """How to go on after an interrupt; `deciding`: callbacks that no file names may end a seed."""
    if store is None:
        return "nothing was saved, because no directory was given"
    way = "simulate(..., resume=True) with the same callbacks" if deciding else store.way_on()
    return f"go on with: {way}"


def _saved_models(experiment: Experiment, seed: int, path: Path, data: Dataset | None) -> Models:
    """The models of a finished seed; the data says how its model is laid out."""
    data = experiment.load_data() if data is None else data
    module = initial_module(experiment, data, Streams(seed))
    return Models(*load_models(path, module))


class _Simulation:
    """One seed."""

    def __init__(self, host: Host, store: Store | None, callback: Callback, how_to_go_on: str) -> None:
        self.host = host
        self.callback = callback
        ear = Ear(callback.recorded, callback.evaluating, callback.finished, callback.stop)
        self.journal = Journal(host, store, how_to_go_on, ear=ear)
        self.journal.restore()

    def run(self) -> SeedRun:
        """All rounds, then the final evaluation."""
        journal, host = self.journal, self.host
        try:
            with journal.marked():
                self._start()
                while True:
                    journal.settle()
                    if journal.over:
                        return self._finish()
                    with host.stop.held():
                        self._round()
        except KeyboardInterrupt:
            raise journal.interrupted() from None
        except CallbackFailed as problem:
            raise journal.failed_beside(problem) from problem.__cause__

    def _start(self) -> None:
        journal, host = self.journal, self.host
        self.callback.started(host.population.setup, host.learner, journal.done)
        if journal.records:
            self.callback.resumed(tuple(journal.records))
            journal.ask()  # the end may have been decided, and not been reached

    def _round(self) -> None:
        journal, population = self.journal, self.host.population
        with journal.clock("plan"):
            setup = population.setup
            plan = plan_round(journal.experiment, setup.streams, journal.done, setup.sizes)
            index = population.batches(plan.round)
        self.callback.planned(plan, index)
        up = plan.delivery.alive
        who = None if up.all() else np.flatnonzero(up)
        with journal.clock("train"):
            if len(plan.returning):
                population.adopt(plan.returning, population.give(plan.donors))
            degree = plan.delivery.graph.out_degree
            message, loss = population.emit(plan.round, degree if who is None else degree[who], index, who)
        journal.check_loss("training loss", loss, np.flatnonzero(up))
        with journal.clock("mix"):
            weights = plan.weights if who is None else plan.weights.among(who)
            ids = population.ids if who is None else population.ids[who]
            inbox = Exchange(message, weights, ids, self.host.workers, population.memory)
            population.absorb(inbox, who, message)
            self._count(plan)
        journal.advanced(plan.round, loss, up)
        self.callback.advanced(journal.done, population.models)

    def _count(self, plan: Plan) -> None:
        self.journal.counters.count(plan, self.host.population.letter_bytes)

    def _finish(self) -> SeedRun:
        journal = self.journal
        summary = journal.conclude()
        models = Models(journal.setup.task.layout, journal.models.cpu())
        path = None if journal.store is None else journal.store.path
        return SeedRun(journal.setup.seed, journal.records, summary, path, lambda: models)
