"""The simulator: all nodes of an experiment on this machine, round after round.

It can be interrupted at any moment, by Ctrl-C or by force: resuming from the run directory gives the same bytes as an uninterrupted run.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from epidemic.callbacks import Callback, Callbacks, all_of
from epidemic.callbacks.base import named_callbacks
from epidemic.core.errors import Interrupted
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers, several
from epidemic.data import Dataset
from epidemic.experiment import Experiment, as_experiment
from epidemic.experiment.compatibility import require_compatible
from epidemic.learner import Choice
from epidemic.runtime.exported import columns_of
from epidemic.runtime.interrupt import gentle_stop
from epidemic.runtime.plan import check_first_round
from epidemic.runtime.population import Population
from epidemic.runtime.recorder import Host
from epidemic.runtime.run_directory import RunDirectory
from epidemic.runtime.setup import initial_module, make_learner, prepare
from epidemic.simulator.on_ranks import on_ranks
from epidemic.simulator.results import Models, SeedRun, SimulationResult, models_in
from epidemic.simulator.rounds import RoundLoop, how_to_resume
from epidemic.simulator.timed_run import TimedRun

LARGE = 64 << 20
"""Bytes of models from which a garbage collection, about a tenth of a second, is worthwhile."""


def simulate(
    experiment: Experiment | str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    resume: bool = False,
    callbacks: Callback | Sequence[Callback] = (),
    data: Dataset | None = None,
) -> SimulationResult:
    """Run all seeds of an experiment; with `out`, write everything down there as it happens.

    With `resume`, finished seeds are read back and an unfinished one goes on; those with fewer rounds go on to more. `callbacks` are
    told how it goes on, after those that the experiment names. `data` spares loading it again. The experiment may also be the path of
    its file, or the file's tables.
    """
    experiment = as_experiment(experiment)
    experiment.check_names()
    if experiment.own_training:
        require_compatible(experiment)
    given = all_of(callbacks).callbacks
    deciding = any(type(one).stop is not Callback.stop for one in given)
    callback = Callbacks([*named_callbacks(experiment), *given])
    if several():
        return on_ranks(experiment, out, resume, callback, deciding, data)
    root = None if out is None else Path(out)
    workers = Workers(experiment.runtime.threads)
    try:
        run_directories = [None if root is None else RunDirectory(root, experiment, seed) for seed in experiment.seeds]
        for run_directory in run_directories:  # before the first one starts
            if run_directory is not None:
                run_directory.check(resume=resume)
        one = _SeedsInTurn(experiment, workers, callback, deciding, data)
        return SimulationResult(
            experiment,
            [one(seed, run_directory) for seed, run_directory in zip(experiment.seeds, run_directories, strict=True)],
        )
    finally:
        workers.close()


class _SeedsInTurn:
    """Runs one seed after the other. A finished seed keeps its results only: the memory of its models is freed for the next."""

    def __init__(
        self, experiment: Experiment, workers: Workers, callback: Callbacks, deciding: bool, data: Dataset | None
    ) -> None:
        self.experiment, self.workers, self.callback, self.deciding = experiment, workers, callback, deciding
        self.data = data
        self.known: Choice | None = None
        self._cyclic = 0  # bytes of models in reference cycles

    def __call__(self, seed: int, run_directory: RunDirectory | None) -> SeedRun:
        try:
            if run_directory is not None:
                run_directory.open()
            if run_directory is not None and run_directory.finished:
                summary = run_directory.summary()
                again = partial(
                    _saved_models, self.experiment, seed, run_directory.path.absolute(), summary.rounds, self.data
                )
                return SeedRun(seed, run_directory.records(), summary, run_directory.path, again)
            return self._run(seed, run_directory)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted before seed {seed} began; {how_to_resume(run_directory, self.deciding)}"
            ) from None
        finally:
            if run_directory is not None:
                run_directory.close()
            if self._cyclic > LARGE:
                gc.collect()

    def _run(self, seed: int, run_directory: RunDirectory | None) -> SeedRun:
        experiment, workers = self.experiment, self.workers
        self.data = data = experiment.load_data() if self.data is None else self.data
        setup = prepare(
            experiment, seed, data, begun_on=None if run_directory is None else run_directory.known_device()
        )
        check_first_round(experiment)  # now that sizes are known to be valid
        if experiment.clock is not None:  # its nodes refer to each other
            self._cyclic = experiment.nodes * setup.initial.nbytes
        if run_directory is not None and (run_directory.run_info() is None or run_directory.behind):
            run_directory.announce()
        if run_directory is not None and run_directory.behind:
            run_directory.lengthen(setup.task.layout)
        learner, self.known = make_learner(
            setup, workers, self.known if run_directory is None else run_directory.known_choice()
        )
        population = Population(setup, learner, workers)
        if run_directory is not None and run_directory.run_info() is None:
            device = setup.task.device.type
            run_directory.begin(self.known, data.note, classes=data.classes, samples=setup.sizes, device=device)
            run_directory.amend(columns_of(data))
        with gentle_stop() as stop:
            host = Host(population, learner, workers, stop)
            kind = RoundLoop if experiment.clock is None else TimedRun
            return kind(host, run_directory, self.callback, how_to_resume(run_directory, self.deciding)).run()


def _saved_models(experiment: Experiment, seed: int, path: Path, rounds: int, data: Dataset | None) -> Models:
    """The models of a finished seed; the data determines the layout of its model."""
    data = experiment.load_data() if data is None else data
    return models_in(path, initial_module(experiment, data, Streams(seed)), rounds)()
