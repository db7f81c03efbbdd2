"""A run under the simulated clock: the clockwork decides what happens, models are computed when enough of them wait.

A checkpoint holds the models that are still needed, and how far the run has come. Resuming replays all events, which takes microseconds each, and loads
the models at that point; so every method can be resumed, whatever state its nodes have.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from epidemic.algorithms import RoundContext
from epidemic.algorithms.asynchronous import SECOND
from epidemic.callbacks import Callback
from epidemic.core.errors import BadInput, CallbackFailed
from epidemic.record import HEADER_BYTES, Moment
from epidemic.runtime.lazy_models import Arithmetic, GivenModel, LazyModels, LazyTraining
from epidemic.runtime.parts import parts_of
from epidemic.runtime.recorder import ExtraState, Host, RunListener, RunRecorder
from epidemic.runtime.run_directory import RunDirectory
from epidemic.simulator.assembly import Sizes, assemble
from epidemic.simulator.clocked_rounds import RoundSteps, SharedRounds
from epidemic.simulator.results import Models, SeedRun, models_in
from epidemic.simulator.saved_lazy_models import fill, keep


class TimedRun:
    """Runs one seed under the simulated clock."""

    def __init__(self, host: Host, run_directory: RunDirectory | None, callback: Callback, how_to_resume: str) -> None:
        self.host = host
        self.callback = callback
        listener = RunListener(callback.recorded, callback.evaluating, callback.finished, callback.stop)
        self.recorder = RunRecorder(host, run_directory, how_to_resume, listener=listener)
        self.recorder.extra = self._extra
        self.recorder.moment = self._moment
        self._pauses = 0  # pauses of the clockwork so far
        self._why = "record"  # the reason of the last one
        self._shown = 0  # the last round that was reported
        setup, population = host.population.setup, host.population
        experiment = setup.experiment
        self._free = experiment.free is not None
        host.learner.steady(experiment.nodes)
        self._lazy_models = LazyModels()
        row: Any = {name: rows[0].clone() for name, rows in population.state.items()}
        model = self._lazy_models.new(GivenModel(row["x"] if self._free else row))
        width = setup.initial.element_size()
        self._work = assemble(
            setup, Sizes(len(setup.initial), width, population.message_bytes), self._lazy_models, model
        )
        self._work.heed = host.stop.heed_at_last
        self._compute_with(setup)
        if not self._work.settings.rounds:  # it ends at a given time
            self.recorder.rounds = sys.maxsize
        if run_directory is not None:
            run_directory.amend({"clock": self._work.world.describe(), "message_bytes": population.message_bytes})
        self._events = self._work.run()
        self._restore()

    def _compute_with(self, setup: Any) -> None:
        host, experiment = self.host, setup.experiment
        parts = [torch.from_numpy(part) for part in parts_of(experiment, len(setup.initial), setup.streams)]
        Arithmetic(self._lazy_models, host.workers, parts)
        self._lazy_models.computes(LazyTraining, self._train)
        together = self._work.together
        if isinstance(together, SharedRounds):
            RoundSteps(host, self._lazy_models, together.plans, experiment.clock.close)

    # -- from start to end --------------------------------------------------------------------------------------------

    def run(self) -> SeedRun:
        """Run until the clock stops, then evaluate the final models."""
        recorder = self.recorder
        try:
            with recorder.marked():
                self._start()
                while self._why != "end" and recorder.ended_early is None:
                    self._run_to_pause()
                    if self._why == "record":
                        self._record()
                    recorder.save_where_due()
                return self._finish()
        except KeyboardInterrupt:
            raise recorder.interrupted() from None
        except CallbackFailed as problem:
            raise recorder.failed_beside(problem) from problem.__cause__

    def _start(self) -> None:
        recorder = self.recorder
        self.callback.started(self.host.population.setup, self.host.learner, recorder.done)
        if recorder.records:
            self.callback.resumed(tuple(recorder.records))
            recorder.ask()
        if self._why == "record":  # it was stopped between the pause and its record
            self._record()

    def _run_to_pause(self) -> None:
        """Run the clockwork to its next pause, and compute all waiting models."""
        self.host.stop.heed()
        with self.host.stop.held():
            self._why = next(self._events)
            with self.recorder.clock("train"):
                self._lazy_models.settle()
            self._pauses += 1
            self._update_recorder()
        self.callback.passed(self._work.now / SECOND, self._work.events)
        if self._work.round > self._shown:
            self._shown = self._work.round
            self.callback.advanced(self._shown, self.host.population.models)

    def _update_recorder(self) -> None:
        """Bring the run recorder up to this moment."""
        work, recorder, population = self._work, self.recorder, self.host.population
        recorder.done = work.round
        for one in work.contexts:
            taken = one.taken()
            if taken is not None:
                value = {"x": taken.value} if self._free else taken.value
                for name, row in value.items():
                    population.state[name][one.id] = row
        losses = [one.result.loss for one in work.contexts if one.result is not None]
        recorder.train_loss = float(torch.tensor(losses, dtype=torch.float64).mean()) if losses else None
        recorder.up = np.array([one.on for one in work.contexts])
        recorder.alive = int(recorder.up.sum())
        messages = np.array([one.messages for one in work.contexts], dtype=np.int64)
        recorder.counters.header[:] = messages * HEADER_BYTES
        recorder.counters.control[:] = [one.control for one in work.contexts]
        recorder.counters.model[:] = (
            np.array([one.bytes for one in work.contexts], dtype=np.int64) - messages * HEADER_BYTES
        )

    def _record(self) -> None:
        """Write a record, at most once per moment."""
        last = self.recorder.records[-1].time if self.recorder.records else None
        if last is None or last.seconds < self._work.now / SECOND:
            self.recorder.record()

    def _moment(self) -> Moment:
        return self._work.moment()

    def _finish(self) -> SeedRun:
        recorder = self.recorder
        if not recorder.ended_early:
            self._record()
        summary = recorder.conclude(self._about)
        task = recorder.setup.task
        if recorder.run_directory is not None:
            path = recorder.run_directory.path
            models_later = models_in(path, task.module, summary.rounds)
            return SeedRun(recorder.setup.seed, recorder.records, summary, path, models_later)
        models = Models(task.layout, recorder.models.cpu())
        return SeedRun(recorder.setup.seed, recorder.records, summary, None, lambda: models)

    def _about(self, node: int) -> dict[str, Any]:
        """What the summary says of a node besides its model."""
        one = self._work.contexts[node]
        return {
            "rounds": one.rounds,
            "trained_s": one.busy_for() / SECOND,
            "online_s": one.online_for() / SECOND,
            "messages_sent": one.messages,
            **one.node.counts(),
        }

    # -- training without rounds --------------------------------------------------------------------------------------

    def _train(self, batch: list[LazyTraining]) -> None:
        population, setup = self.host.population, self.host.population.setup
        algorithm = setup.experiment.free
        assert algorithm is not None
        batch = sorted(batch, key=lambda one: one.node)
        who = np.array([one.node for one in batch])
        rows = torch.stack([one.start.value for one in batch if one.start is not None])
        index = np.stack([setup.batches.of(setup.streams, one.node, one.count) for one in batch])
        random = self.host.learner.draws_random_numbers
        seeds = [setup.streams.key("dropout-of", one.node, one.count) % 2**63 if random else 0 for one in batch]
        samples, done = torch.from_numpy(index).to(rows.device), [one.count for one in batch]
        context = RoundContext(0, samples, seeds, torch.zeros(len(batch)), done)
        state = {name: part[who] for name, part in population.state.items() if name != "x"}
        loss = algorithm.train(rows, state, self.host.learner, context)
        self.recorder.check_loss("training loss", loss, who)
        for name, part in state.items():
            population.state[name][who] = part
        for i, one in enumerate(batch):
            one.value, one.loss = rows[i].clone(), float(loss[i])

    # -- stopping and going on ----------------------------------------------------------------------------------------

    def _extra(self) -> ExtraState:
        work = self._work
        tallies = {"clock.pauses": self._pauses, "clock.events": work.events, "clock.digest": work.digest}
        return ExtraState(keep(self._lazy_models.known()), tallies)

    def _restore(self) -> None:
        found = self.recorder.restore()
        if found is None:
            return
        for _ in range(found.tallies.get("clock.pauses", 0)):
            self._why = next(self._events)
            self._lazy_models.forget_pending()
            self._pauses += 1
        work = self._work
        if (work.events, work.digest) != (found.tallies.get("clock.events"), found.tallies.get("clock.digest")):
            run_directory = self.recorder.run_directory
            raise BadInput(
                f"{run_directory.path if run_directory else 'the run'} cannot be gone on with: going over its events again gave others"
                " (another version, or a file of devices or latencies that has changed); delete it to start this seed again"
            )
        fill(self._lazy_models.known(), found.tensors)
        self._shown = work.round
        self._restore_recorder()

    def _restore_recorder(self) -> None:
        """Restore the recorder after a resume: counters follow from the events, the evaluated models from the checkpoint."""
        for one in self._work.contexts:
            one.taken()
        for one in self._work.contexts:
            value: Any = one.model.value
            for name, row in ({"x": value} if self._free else value).items():
                self.host.population.state[name][one.id] = row
