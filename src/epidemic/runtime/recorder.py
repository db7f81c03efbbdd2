"""The run recorder: the progress and the results of a run, for one run directory. Every host of nodes uses it.

A host loops like this, whatever its rounds are:

    recorder.settle()                # evaluates and saves where due
    if recorder.over: recorder.conclude()
    with stop.held(): ... a round ...; recorder.advanced(...)

An interrupt waits for the end of what is held, because models are half-trained in the middle of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.algorithms import Rows
from epidemic.core.errors import CallbackFailed, Diverged, EpidemicError, Interrupted
from epidemic.core.workers import Workers
from epidemic.learner import Evaluation, Learner
from epidemic.record import AttackCounts, HeardCounts, Moment, Record, Summary
from epidemic.runtime.checkpoint import MODELS, Found, Progress, read_checkpoint, write_checkpoint
from epidemic.runtime.counters import Counters
from epidemic.runtime.evaluations import Stopwatch, among, held_of, living_of, nodes_of, record_of, summary_of
from epidemic.runtime.interrupt import Stop
from epidemic.runtime.more_rounds import recorded_before
from epidemic.runtime.population import Population, Positions
from epidemic.runtime.ranks import Alone, Ranks
from epidemic.runtime.run_directory import RunDirectory
from epidemic.runtime.saved_models import given_the_average, save_models
from epidemic.runtime.tensor_files import Fed, Head


@dataclass
class Host:
    """What computes a run: the hosted nodes, their learner, the threads, and the handling of interrupts."""

    population: Population
    learner: Learner
    workers: Workers
    stop: Stop
    ranks: Ranks | None = None
    """The processes that share the nodes; None: this one hosts all."""


@dataclass
class RunListener:
    """Receives what a run records, and may end it. By default does neither."""

    recorded: Callable[[Record], None] = lambda _: None
    evaluating: Callable[[str], None] = lambda _: None
    finished: Callable[[Summary], None] = lambda _: None
    stop: Callable[[], str | None] = lambda: None


@dataclass
class ExtraState:
    """What a host saves besides the nodes' state: tensors and counters."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    tallies: dict[str, int] = field(default_factory=dict)


class RunRecorder:
    """Evaluates, records and saves one run: all nodes of a simulation, or one deployed node."""

    def __init__(
        self,
        host: Host,
        run_directory: RunDirectory | None,
        how_to_resume: str,
        *,
        node_id: int | None = None,
        listener: RunListener | None = None,
    ) -> None:
        """Prepare a run; `node_id`: the one node whose run this is; None: the whole population."""
        self.host = host
        self.run_directory = run_directory
        self.listener = RunListener() if listener is None else listener
        self.clock = Stopwatch()
        self.setup = host.population.setup
        self.experiment = self.setup.experiment
        self._who: Positions | None = None if node_id is None else np.array([node_id])
        self._how = how_to_resume
        self.ranks: Ranks = Alone(self.experiment.nodes) if host.ranks is None else host.ranks
        shared = self.ranks.count > 1
        everyone = np.arange(self.experiment.nodes) if shared else host.population.ids
        self.ids: Positions = everyone if node_id is None else everyone[[node_id]]
        self.done, self.recorded = 0, -1  # rounds done; the last one with a record
        self.rounds: float = self.experiment.rounds  # number of rounds after which it is over
        self.records: list[Record] = []
        self.counters = Counters.zero(len(self.ids))
        self.train_loss: float | None = None
        self.alive = self.experiment.nodes  # nodes in the whole network in the last round
        self.up: NDArray[np.bool_] = np.ones(len(self.ids), dtype=bool)  # hosted nodes that were up in it
        self.ended_early: str | None = None  # the reason, if a callback ended the run
        self.extra: Callable[[], ExtraState] = ExtraState
        self.moment: Callable[[], Moment | None] = lambda: None  # progress in time under a clock
        self.delivery: Callable[[], HeardCounts | None] = lambda: (
            None
        )  # messages counted and expected, for deployed nodes
        self.attack: Callable[[Tensor], AttackCounts | None] = lambda _: None  # what an adversary did to these models
        self.honest: NDArray[np.bool_] | None = None  # which nodes are honest, if some are malicious
        if node_id is None and len(self.setup.malicious):
            self.honest = np.ones(self.experiment.nodes, dtype=bool)
            self.honest[self.setup.malicious] = False
            self.alive = int(self.honest.sum())
        self._saved = time.monotonic()
        self._kept_by_first = self.ranks.count > 1 and self.ranks.any(run_directory is not None)
        # A deployed node keeps its finished run unchanged until other nodes agree on more rounds.
        self.unconfirmed = node_id is not None and run_directory is not None and run_directory.behind

    @property
    def over(self) -> bool:
        """Whether all rounds are done, or a callback has ended the run."""
        return self.done >= self.rounds or self.ended_early is not None

    @property
    def models(self) -> Tensor:
        """The models of this run's nodes.   # (k, d)"""
        x = self.host.population.models
        return x if self._who is None else x[self._who]

    @property
    def outcome(self) -> Tensor:
        """The resulting models. Nodes that hold none at the end get the average of the others.   # (k, d)"""
        x, counted = self.models, self._counted
        return x if counted is None else given_the_average(x, torch.from_numpy(counted))

    @property
    def kept(self) -> str:
        """What is saved if the run fails, in words."""
        return (
            "; the last checkpoint is kept"
            if self.run_directory is not None and self.run_directory.has_checkpoint
            else ""
        )

    @property
    def kept_somewhere(self) -> bool:
        """Whether there is a run directory, here or on the first rank."""
        return self.run_directory is not None or self._kept_by_first

    @property
    def _counted(self) -> NDArray[np.bool_] | None:
        """The nodes whose models count as learnt, if not all: honest ones, or those that hold one (if none does, all that are left)."""
        if self.honest is not None:
            return self.honest
        live_only = self.experiment.participation.live_only and self._who is None
        return self.up if live_only and self.up.any() and not self.up.all() else None

    # -- between rounds -----------------------------------------------------------------------------------------------

    def advanced(self, round: int, loss: Tensor, alive: NDArray[np.bool_] | int) -> None:
        """Note that a round is done, with these losses and these live nodes; malicious ones do not count."""
        if self.honest is not None and not isinstance(alive, int):
            loss, alive = loss[torch.from_numpy(self.honest[alive])], alive & self.honest
        self.train_loss = float(loss.mean()) if len(loss) else None
        if isinstance(alive, int):
            self.alive = alive
        else:
            self.alive, self.up = int(alive.sum()), alive
        self.done = round + 1

    def check_loss(self, what: str, loss: Tensor, ids: Positions | None = None) -> None:
        """End the run if a loss is not finite."""
        ids = self.ids if ids is None else ids
        try:
            self.host.population.check_finite(what, self.done, ids, loss, self.kept)
        except Diverged as problem:
            problem.agreed = True  # all ranks have the losses of all nodes, and end alike
            raise

    @property
    def due(self) -> bool:
        """Whether the models must be evaluated now."""
        return (self.done % self.experiment.eval.every == 0 or self.over) and self.recorded < self.done

    def settle(self) -> None:
        """Evaluate and save where due."""
        if self.due:
            self.record()
        self.save_where_due()

    def save_where_due(self) -> None:
        """Save if it is time to."""
        when = self.experiment.checkpoint
        by_rounds = when.rounds and self.done % when.rounds == 0
        by_time = bool(when.seconds) and self.ranks.any(time.monotonic() - self._saved >= when.seconds)
        if self.kept_somewhere and self.done and (by_rounds or by_time or self.over):
            with self.host.stop.held():
                self.save()
            self._saved = time.monotonic()

    def record(self) -> None:
        """Evaluate the models and write a record; nothing is written before there are numbers."""
        host = self.host
        if not host.learner.has_numbers:
            self.recorded = self.done
            return
        with self.clock("evaluate"):
            x, samples, up = self.models, self.setup.evaluated, self.up
            if self._counted is not None:
                x, up = x[torch.from_numpy(self._counted)], up[self._counted]
            same = self._who is None and self.done == 0 and self.ranks.alike(x)  # all nodes start from one model
            found = host.learner.evaluate(x[:1], samples) if same else self._evaluated(x, samples)
            ids = self.ids if self._counted is None else self.ids[self._counted]
            self.check_loss("loss", found.loss, ids[: len(found.loss)])
            whole = self._who is None
            record = record_of(
                self.setup,
                found,
                host.learner.evaluate(self.ranks.mean_row(x, host.workers), samples) if whole else None,
                ids=ids,
                round=self.done,
                alive=self.alive,
                train_loss=self.train_loss,
                disagreement=None if not whole else 0.0 if same else self.ranks.disagreement(x, host.workers),
                living=living_of(found, up, (lambda _: 0.0) if same else self._apart(x)) if whole else None,
                bytes=self.counters.traffic(self.honest),
                time=self.moment(),
                delivery=self.delivery(),
                attack=self.attack(x),
            )
        with host.stop.held(), self.ranks.together():  # a record is written and counted, or neither
            if self.run_directory is not None:
                self.run_directory.append(record, {"round": self.done, "seconds": self.clock.taken()})
            self.records.append(record)
            self.recorded = self.done
        with self.ranks.together():
            self.listener.recorded(record)
        self.ask()

    def _evaluated(self, x: Tensor, samples: tuple[Tensor, Tensor]) -> Evaluation:
        """Every node's evaluation on these samples, including other ranks."""
        first = int(self.host.population.ids[0]) if self.ranks.count > 1 else 0
        found = self.host.learner.evaluate(x, samples, first)
        return found if self._who is not None else self.ranks.evaluations(found)

    def _apart(self, x: Tensor) -> Callable[[NDArray[np.bool_]], float]:
        """A function that returns D(X) of some of the nodes."""

        def apart(up: NDArray[np.bool_]) -> float:
            here = up[self.host.population.ids] if self.ranks.count > 1 else up
            return self.ranks.disagreement(x[torch.from_numpy(here)], self.host.workers)

        return apart

    def ask(self) -> None:
        """Ask callbacks whether to end here; irrelevant after the last round."""
        reason: str | None = None
        with self.ranks.together():
            reason = self.listener.stop()
        reason = self.ranks.told((reason or "").encode()).decode() or None
        if self.done < self.rounds and self.ended_early is None:
            self.ended_early = reason

    def conclude(self, about: Callable[[int], dict[str, Any]] = lambda _: {}) -> Summary:
        """Evaluate on the full test set and write all results; `about` returns further entries about a node."""
        with self.ranks.together():
            self.listener.evaluating("the full test set")
        host = self.host
        host.population.release()
        x, test = self.outcome, self.setup.test
        final = self._evaluated(x, test)
        counted, partial = self._counted, self._who is None and self.experiment.participation.partial
        average = x if counted is None else x[torch.from_numpy(counted)]
        mean: Evaluation | None = None
        if self._who is None:
            mean = host.learner.evaluate(self.ranks.mean_row(average, host.workers), test)
        sent, moment = self.counters.traffic(self.honest), self.records[-1].time
        summary = summary_of(
            self.setup,
            self.records,
            final if counted is None else among(final, counted),
            mean,
            rounds=self.done,
            bytes=sent,
            seconds=None if moment is None else moment.seconds,
            ended_early=self.ended_early or "",
            living=among(final, self.up) if partial and counted is self.honest and self.up.any() else None,
            attack=self.attack(average),
        )
        held = held_of(self.setup)
        held = self.ranks.gathered_values(held, None) if self._who is None else held[self._who]
        layout = self.setup.task.layout
        if self.kept_somewhere:
            save_models(None if self.run_directory is None else self.run_directory.path / MODELS, layout, x, self.ranks)
        with self.ranks.together():
            if self.run_directory is not None:
                nodes = nodes_of(self.setup, final, self.counters, self.ids, held)
                longer = moment is None  # whether it could continue with more rounds
                lines = [
                    node | about(node["node"]) for node in nodes if self.honest is None or self.honest[node["node"]]
                ]
                self.run_directory.finish(summary, lines, self._columns_in(x) if longer else None)
            self.listener.finished(summary)
        return summary

    def _columns_in(self, x: Tensor) -> list[str]:
        """The tensors of a checkpoint that are also in the file of the models `x`.   # (k, d)"""
        population = self.host.population
        own = population.models
        if self.setup.task.layout.transient or (self._who is None and x is not own):
            return []
        return [f"state.{name}" for name, rows in population.state.items() if rows is own]

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Mark the run directory as running inside, and with the outcome afterwards."""
        if self.run_directory is None:
            yield
            return
        self.run_directory.mark("running")
        try:
            yield
        except BaseException as problem:
            reason = " ".join(str(problem).split())
            if self.run_directory.finished:  # the failure came after its end
                self.run_directory.mark("finished", self.ended_early or "")
            elif isinstance(problem, KeyboardInterrupt | Interrupted):
                self.run_directory.mark("stopped", f"interrupted {self._when}")
            else:
                known = isinstance(problem, EpidemicError)
                self.run_directory.mark("failed", reason if known else f"unexpected {type(problem).__name__}: {reason}")
            raise

    # -- stopping and going on ----------------------------------------------------------------------------------------

    def save(self) -> None:
        """Save the nodes' state, the counters, and what the host adds."""
        if self.unconfirmed:  # nothing has happened since the existing checkpoint
            return
        with self.clock("checkpoint"):
            population, extra = self.host.population, self.extra()
            state: Rows = population.state if self._who is None else population.snapshot(self._who)
            tensors = self.counters.tensors()
            if self.train_loss is not None:
                tensors["train_loss"] = torch.tensor(self.train_loss, dtype=torch.float64)
            tensors["alive"] = torch.tensor(self.alive)
            if not self.up.all():
                tensors["up"] = torch.from_numpy(self.up)
            progress = Progress(round=self.done, recorded=self.recorded, tallies=extra.tallies)
            with self.ranks.together():
                if self.run_directory is not None:
                    self.run_directory.sync(progress)
            ranks, path = self.ranks, None if self.run_directory is None else self.run_directory.path
            fed = {
                name: Fed(Head.of(rows, ranks.height(rows)), partial(ranks.streamed, rows))
                for name, rows in state.items()
            }
            write_checkpoint(path, progress, tensors | extra.tensors, fed, ranks.together)

    def restore(self) -> ExtraState | None:
        """Resume from the checkpoint; returns what the host had added to it, or None if there is none."""
        found: Found | None = None
        with self.ranks.together():
            if self.run_directory is not None:
                layout = self.setup.task.layout
                found = (
                    read_checkpoint(self.run_directory.path, layout)
                    if self.unconfirmed
                    else self.run_directory.restore(layout)
                )
        known = self._shared(found)
        if known is None:
            return None
        progress, tensors = known
        population = self.host.population
        if self._who is None:
            population.state = {}  # so that there are never two copies
        state = self.ranks.restored(found)
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
        with self.ranks.together():
            if self.run_directory is not None:
                self.records = self.run_directory.records()
        if self.unconfirmed:
            self.recorded = recorded_before(progress, self.experiment.eval.every)
            self.records = [record for record in self.records if record.round <= self.recorded]
        if self.ranks.count > 1:
            said = self.ranks.told(msgspec.json.encode(self.records))
            self.records = msgspec.json.decode(said, type=list[Record])
        return ExtraState(tensors, progress.tallies)

    def confirm(self) -> None:
        """Extend the run to more rounds, now that the other nodes agree."""
        if not self.unconfirmed:
            return
        assert self.run_directory is not None
        self.unconfirmed = False
        self.run_directory.announce()
        self.run_directory.lengthen(self.setup.task.layout)
        self.run_directory.restore(self.setup.task.layout)
        self.run_directory.mark("running")

    def _shared(self, found: Found | None) -> tuple[Progress, dict[str, Tensor]] | None:
        """What the first rank has read, except the rows of nodes, on every rank."""
        if self.ranks.count == 1:
            return None if found is None else (found.progress, found.tensors)
        said = self.ranks.told(b"" if found is None else msgspec.json.encode(found.progress))
        if not said:
            return None
        raw = self.ranks.told(b"" if found is None else safetensors.torch.save(found.tensors))
        # plain numbers from our own first rank
        return msgspec.json.decode(said, type=Progress), safetensors.torch.load(raw)

    def interrupted(self, where: str = "") -> Interrupted:
        """Save, unless the interrupt did not wait for the end of the round: then the last checkpoint counts. `where`: the progress, if not in rounds."""
        if not self.host.stop.broke:
            self._save_now()
        stands = f"seed {self.setup.seed}, after {where}" if where else self._where
        return Interrupted(f"interrupted at {stands}; {self._how}")

    def failed_beside(self, problem: CallbackFailed) -> CallbackFailed:
        """Save after a callback failed between two rounds; the run itself is sound."""
        ended = False
        with self.ranks.together():
            ended = self.run_directory is not None and self.run_directory.finished
        if self.ranks.any(ended):
            return CallbackFailed(f"{problem}; seed {self.setup.seed} itself is finished and saved")
        self._save_now()
        return CallbackFailed(f"{problem}; stopped at {self._where}; {self._how}")

    @property
    def stands(self) -> str:
        """How far the run has come, as messages say it."""
        return f"at {self._where}"

    @property
    def _where(self) -> str:
        return f"seed {self.setup.seed}, {self._when}"

    @property
    def _when(self) -> str:
        moment = self.moment()
        if moment is not None:
            return f"after {moment.seconds:.6g} simulated seconds"
        return f"after round {self.done} of {self.rounds}"

    def _save_now(self) -> None:
        if self.kept_somewhere and self.recorded >= 0:
            with suppress(KeyboardInterrupt), self.host.stop.held():
                self.save()
