"""A seed in rounds: plan, train, exchange, record. The same loop runs in one process and on every rank of several.

Shapes: n nodes, k of them hosted here, d numbers of a model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from epidemic.algorithms import Inbox, Rows
from epidemic.callbacks import Callback
from epidemic.core.errors import BadInput, CallbackFailed, RankLost
from epidemic.runtime.attack import attack_of
from epidemic.runtime.fragments import FragmentsInbox
from epidemic.runtime.plan import Plan, plan_round
from epidemic.runtime.population import Positions
from epidemic.runtime.recorder import ExtraState, Host, RunListener, RunRecorder
from epidemic.runtime.run_directory import RunDirectory
from epidemic.simulator.results import Models, SeedRun, models_in


def how_to_resume(run_directory: RunDirectory | None, deciding: bool) -> str:
    """How to resume after an interrupt, as words; `deciding`: callbacks given in Python may end a seed."""
    if run_directory is None:
        return "nothing was saved, because no directory was given"
    way = "simulate(..., resume=True) with the same callbacks" if deciding else run_directory.how_to_resume()
    return f"resume with: {way}"


class RoundLoop:
    """Runs one seed round by round: all nodes in this process, or those of this rank."""

    def __init__(self, host: Host, run_directory: RunDirectory | None, callback: Callback, how_to_resume: str) -> None:
        self.host = host
        self.callback = callback
        listener = RunListener(callback.recorded, callback.evaluating, callback.finished, callback.stop)
        self.recorder = RunRecorder(host, run_directory, how_to_resume, listener=listener)
        self.attack = attack_of(host.population, host.learner, host.workers)
        found = self.recorder.restore()
        if self.attack is not None:
            self._attacked(found)

    def _attacked(self, found: ExtraState | None) -> None:
        """Let the recorder say and save what the adversary did."""
        attack, recorder = self.attack, self.recorder
        assert attack is not None
        if found is not None:
            attack.restore(found.tallies, found.tensors)
        recorder.attack = attack.found
        recorder.extra = lambda: ExtraState(attack.tensors(), attack.tallies())

    def run(self) -> SeedRun:
        """Run all rounds and the final evaluation."""
        recorder, host = self.recorder, self.host
        try:
            with recorder.marked():
                self._start()
                while True:
                    recorder.settle()
                    if recorder.over:
                        return self._finish()
                    recorder.ranks.heed(host.stop)
                    with host.stop.held():
                        self._round()
        except KeyboardInterrupt:
            raise recorder.interrupted() from None
        except RankLost as problem:
            raise RankLost(f"{problem}; stopped {recorder.stands}{recorder.kept}") from problem.__cause__
        except CallbackFailed as problem:
            raise recorder.failed_beside(problem) from problem.__cause__

    def _start(self) -> None:
        recorder, host = self.recorder, self.host
        with recorder.ranks.together():
            self.callback.started(host.population.setup, host.learner, recorder.done)
            if recorder.records:
                self.callback.resumed(tuple(recorder.records))
        if recorder.records:
            recorder.ask()  # the last checkpoint may be from after the decision to end

    def _round(self) -> None:
        recorder, population = self.recorder, self.host.population
        with recorder.clock("plan"):
            setup = population.setup
            plan = plan_round(recorder.experiment, setup.streams, recorder.done, setup.sizes)
            index = population.batches(plan.round)
        ranks, up, attack = recorder.ranks, plan.delivery.alive, self.attack
        if attack is not None:
            up = attack.taking_part(up, plan.round)
        with ranks.together():
            self.callback.planned(plan, index)
        who = None if up.all() else np.flatnonzero(up)
        here = ranks.own(who)  # those on this rank
        with recorder.clock("train"):
            self._adopt(plan)
            degree = plan.delivery.graph.out_degree[population.ids]
            degree = degree if here is None else degree[here]
            if attack is not None:
                attack.look(plan.round, here, index, degree)
            message, own_loss = population.local_update(plan.round, degree, index, here)
            loss = ranks.gathered_values(own_loss, who)
        recorder.check_loss("training loss", loss, np.flatnonzero(up))
        with recorder.clock("mix"):
            inbox = self._inbox(plan, message, who) if attack is None else attack.inbox(plan, message, who)
            population.aggregate(inbox, here, message)
            self._count(plan)
        recorder.advanced(plan.round, loss, up)
        with ranks.together():
            self.callback.advanced(recorder.done, population.models)

    def _adopt(self, plan: Plan) -> None:
        """Give returning nodes the models of others, on whatever rank these are."""
        population, ranks = self.host.population, self.recorder.ranks
        if not len(plan.returning):
            return
        donors, takers = ranks.own(plan.donors), ranks.own(plan.returning)
        assert donors is not None
        assert takers is not None
        given = ranks.carried(population.give(donors), plan.donors, plan.returning)
        if len(takers):
            population.adopt(takers, given)

    def _inbox(self, plan: Plan, message: Rows, who: Positions | None) -> Inbox:
        """The inbox of the nodes that take part in a round."""
        population, workers = self.host.population, self.host.workers
        weights = [one.weights if who is None else one.weights.among(who) for one in plan.passages]
        if len(weights) > 1:
            return FragmentsInbox(message, weights, population.parts, workers, population.memory, population.rule)
        here = self.recorder.ranks.own(who)
        ids = population.ids if here is None else population.ids[here]
        coder, memory = population.coder, population.memory
        return self.recorder.ranks.inbox(message, weights[0], ids, who, workers, memory, coder, population.rule)

    def _count(self, plan: Plan) -> None:
        population = self.host.population
        self.recorder.counters.count(plan, population.message_sizes, population.model_bytes)

    def _finish(self) -> SeedRun:
        recorder = self.recorder
        summary = recorder.conclude()
        path = None if recorder.run_directory is None else recorder.run_directory.path
        return SeedRun(recorder.setup.seed, recorder.records, summary, path, self._models(path, summary.rounds))

    def _models(self, path: Path | None, rounds: int) -> Callable[[], Models]:
        """A function that returns the models: from the run directory, or from memory without one."""
        recorder, task = self.recorder, self.recorder.setup.task
        if recorder.kept_somewhere:
            return elsewhere if path is None else models_in(path, task.module, rounds)
        models = Models(task.layout, recorder.ranks.gathered(recorder.outcome).cpu())
        return lambda: models


def elsewhere() -> Models:
    """Refuse: another rank has the models."""
    raise BadInput("the models of a run on several ranks are on the first rank, or in its directory")
