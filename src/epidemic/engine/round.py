"""A seed in rounds: plan, train, exchange, take down what was found; the same loop in one process and on every rank of several.

Shapes: n nodes, k of them hosted here, d numbers of a model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from epidemic.algorithms import Inbox, Rows
from epidemic.callbacks import Callback
from epidemic.engine.results import Models, SeedRun, models_in
from epidemic.errors import BadInput, CallbackFailed, RankLost
from epidemic.host.fragments import Mosaic
from epidemic.host.journal import Ear, Host, Journal
from epidemic.host.plan import Plan, plan_round
from epidemic.host.population import Positions
from epidemic.host.store import Store


def way_on(store: Store | None, deciding: bool) -> str:
    """How to go on after an interrupt; `deciding`: callbacks that no file names may end a seed."""
    if store is None:
        return "nothing was saved, because no directory was given"
    way = "simulate(..., resume=True) with the same callbacks" if deciding else store.way_on()
    return f"go on with: {way}"


class InRounds:
    """One seed, round after round: of all nodes in this process, or of those of this rank."""

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
                    journal.ranks.heed(host.stop)
                    with host.stop.held():
                        self._round()
        except KeyboardInterrupt:
            raise journal.interrupted() from None
        except RankLost as problem:
            raise RankLost(f"{problem}; stopped {journal.stands}{journal.kept}") from problem.__cause__
        except CallbackFailed as problem:
            raise journal.failed_beside(problem) from problem.__cause__

    def _start(self) -> None:
        journal, host = self.journal, self.host
        with journal.ranks.together():
            self.callback.started(host.population.setup, host.learner, journal.done)
            if journal.records:
                self.callback.resumed(tuple(journal.records))
        if journal.records:
            journal.ask()  # the end may have been decided, and not been reached

    def _round(self) -> None:
        journal, population = self.journal, self.host.population
        with journal.clock("plan"):
            setup = population.setup
            plan = plan_round(journal.experiment, setup.streams, journal.done, setup.sizes)
            index = population.batches(plan.round)
        ranks, up = journal.ranks, plan.delivery.alive
        with ranks.together():
            self.callback.planned(plan, index)
        who = None if up.all() else np.flatnonzero(up)
        here = ranks.own(who)  # those who live here
        with journal.clock("train"):
            self._adopt(plan)
            degree = plan.delivery.graph.out_degree[population.ids]
            message, own_loss = population.emit(plan.round, degree if here is None else degree[here], index, here)
            loss = ranks.everyones(own_loss, who)
        journal.check_loss("training loss", loss, np.flatnonzero(up))
        with journal.clock("mix"):
            population.absorb(self._inbox(plan, message, who), here, message)
            self._count(plan)
        journal.advanced(plan.round, loss, up)
        with ranks.together():
            self.callback.advanced(journal.done, population.models)

    def _adopt(self, plan: Plan) -> None:
        """Let those who return take the models of others, wherever these live."""
        population, ranks = self.host.population, self.journal.ranks
        if not len(plan.returning):
            return
        donors, takers = ranks.own(plan.donors), ranks.own(plan.returning)
        assert donors is not None
        assert takers is not None
        given = ranks.carried(population.give(donors), plan.donors, plan.returning)
        if len(takers):
            population.adopt(takers, given)

    def _inbox(self, plan: Plan, message: Rows, who: Positions | None) -> Inbox:
        """What those who take part hold of a round's letters."""
        population, workers = self.host.population, self.host.workers
        weights = [one.weights if who is None else one.weights.among(who) for one in plan.passages]
        if len(weights) > 1:
            return Mosaic(message, weights, population.parts, workers, population.memory, population.rule)
        here = self.journal.ranks.own(who)
        ids = population.ids if here is None else population.ids[here]
        coder, memory = population.coder, population.memory
        return self.journal.ranks.inbox(message, weights[0], ids, who, workers, memory, coder, population.rule)

    def _count(self, plan: Plan) -> None:
        population = self.host.population
        self.journal.counters.count(plan, population.letter_sizes, population.model_bytes)

    def _finish(self) -> SeedRun:
        journal = self.journal
        summary = journal.conclude()
        path = None if journal.store is None else journal.store.path
        return SeedRun(journal.setup.seed, journal.records, summary, path, self._models(path, summary.rounds))

    def _models(self, path: Path | None, rounds: int) -> Callable[[], Models]:
        """How to get the models: from the directory, or, without one, from memory."""
        journal, task = self.journal, self.journal.setup.task
        if journal.kept_somewhere:
            return elsewhere if path is None else models_in(path, task.module, rounds)
        models = Models(task.layout, journal.ranks.gathered(journal.outcome).cpu())
        return lambda: models


def elsewhere() -> Models:
    """Where the models are not."""
    raise BadInput("the models of a run on several ranks are on the first rank, or in its directory")
