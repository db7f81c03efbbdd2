"""The adversary of a run: who is malicious, what it has seen, and what that did to the honest nodes, as the rounds go by.

Nothing here runs where no node is malicious. Malicious nodes that do not train take no part in a round but for what is sent in their name.

Shapes: n nodes, t of them take part in a round, h honest ones, b malicious ones, m messages, d numbers of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from epidemic.adversary import Adversary, Scene, Sight
from epidemic.aggregation import Aggregator, Heard
from epidemic.algorithms import Inbox, Rows
from epidemic.core.errors import EpidemicError, RunFailed
from epidemic.core.graph import Graph, IntArray
from epidemic.core.workers import Workers
from epidemic.learner import Learner
from epidemic.mixing import weights
from epidemic.record import AttackCounts, Spread
from epidemic.runtime.aggregating import aggregate_one
from epidemic.runtime.hostile_inbox import HostileInbox, Written
from epidemic.runtime.inbox import MatrixInbox
from epidemic.runtime.plan import Plan
from epidemic.runtime.population import Population, Positions
from epidemic.runtime.setup import Setup

Mask = NDArray[np.bool_]
T = TypeVar("T")

TALLIES = ("aggregates", "bad", "kept", "received", "dropped")
"""What is counted, of honest nodes, as `AttackCounts` has it."""
HALF = ("median", "geometric-median")
"""Rules that tolerate fewer than half of the inputs without being told how many."""
MEMORY = "attack."
"""How the names of the adversary's own tensors in a checkpoint begin."""


def attack_of(population: Population, learner: Learner, workers: Workers) -> Attack | None:
    """That of an experiment's adversary; None where no node is malicious."""
    return Attack(population, learner, workers) if len(population.setup.malicious) else None


def tolerated(rule: Aggregator, inputs: IntArray) -> IntArray | None:
    """How many malicious ones among so many inputs, its own included, a rule tolerates; None where it does not say.   # (k,) -> (k,)"""
    half = (inputs - 1) // 2
    if rule.linear:
        return np.zeros_like(inputs)
    rule = getattr(rule, "inner", rule)  # of one preceded by mixing
    f = getattr(rule, "mixed", None) if getattr(rule, "before", None) is not None else None
    f = getattr(rule, "f", None) if f is None else f
    if isinstance(f, int):
        return np.minimum(f, half) if getattr(rule, "few", "own") == "less" else np.full_like(inputs, f)
    config = getattr(rule, "__struct_config__", None)
    return half if config is not None and config.tag in HALF and getattr(rule, "before", None) is None else None


@dataclass(frozen=True, eq=False)
class Edges:
    """The messages of a round that arrived, receiver by receiver.   # (m,) each"""

    graph: Graph
    lies: Mask  # which of them go from a malicious node to an honest one
    row: NDArray[np.int64]  # of those that were written: which row


class Attack:
    """The adversary of one seed: its messages, what it remembers, and what it has done."""

    def __init__(self, population: Population, learner: Learner, workers: Workers) -> None:
        setup = population.setup
        assert setup.experiment.adversary is not None
        self.adversary: Adversary = setup.experiment.adversary
        self.malicious = setup.malicious  # (b,)
        n = setup.experiment.nodes
        self.honest: Mask = np.ones(n, dtype=bool)  # (n,)
        self.honest[self.malicious] = False
        self._population, self._learner, self._workers = population, learner, workers
        self._setup: Setup = setup
        self._rule = population.rule
        self._counts = dict.fromkeys(TALLIES, 0)
        self._counts["measured"] = int(tolerated(self._rule, np.zeros(1, dtype=np.int64)) is not None)
        self._memory: dict[str, Tensor] = {}
        self._before: Tensor | None = None  # (d,)
        self._untrained: Tensor | None = None  # (b, d)
        self._imagined: Tensor | None = None  # (h, d)
        test = setup.data.evaluated
        aim = self.adversary.triggered(test, setup.data)
        self._aim = None if aim is None else setup.task.tensors(aim)

    # -- a round ----------------------------------------------------------------------------------------------------------

    def active(self, round: int) -> bool:
        """Whether the malicious nodes are malicious already."""
        return round >= self.adversary.start

    def taking_part(self, alive: Mask, round: int) -> Mask:
        """Who trains and aggregates in a round, of those that are up.   # (n,) -> (n,)"""
        return alive if self.adversary.trains or not self.active(round) else alive & self.honest

    def look(self, round: int, who: Positions | None, index: NDArray[np.int64], out_degree: IntArray) -> None:
        """See what is to be seen before a round's training.

        Args:
            round: The round.
            who: Who takes part; everybody if None.   # (t,)
            index: The samples of all nodes in this round.   # (n, r, b)
            out_degree: To how many each of those who take part sends.   # (t,)
        """
        adversary, population = self.adversary, self._population
        if not self.active(round):
            return
        if adversary.looks_back or adversary.trains:
            x = population.models
            part = np.arange(len(self.honest)) if who is None else who
            self._before = x[torch.from_numpy(part[self.honest[part]])].mean(0)
            self._untrained = x[torch.from_numpy(self.malicious)].clone() if adversary.trains else None
        if adversary.imagines:
            self._imagined = self._imagine(round, who, index, out_degree)

    def _imagine(self, round: int, who: Positions | None, index: NDArray[np.int64], out_degree: IntArray) -> Tensor:
        """What those who take part would send, had they trained on flipped labels.   # (t, d)"""
        everybody = np.arange(len(self.honest)) if who is None else who
        with self._flipped():
            state = self._population.snapshot(everybody)
            _, message, _ = self._population.local_update_from(state, round, out_degree, everybody)
        return message["x"]

    @contextmanager
    def _flipped(self) -> Iterator[None]:
        """While it lasts, training samples of class y are of class C - 1 - y."""
        task = self._setup.task
        kept = task.train
        task.train = (kept[0], len(self._setup.data.classes) - 1 - kept[1])
        try:
            yield
        finally:
            task.train = kept

    def inbox(self, plan: Plan, message: Rows, who: Positions | None) -> Inbox:
        """What those who take part hold of a round's messages."""
        part = np.arange(len(self.honest)) if who is None else who
        graph = plan.delivery.graph.explicit()
        lies = self.honest[graph.receivers] & ~self.honest[graph.senders] & self.active(plan.round)
        edges = Edges(graph, lies, np.full(len(lies), -1))
        population = self._population
        if not self.adversary.lies or not lies.any():
            self._count(edges, part, int(lies.sum()), 0, plan)
            w = plan.weights if who is None else plan.weights.among(who)
            return MatrixInbox(message, w, part, self._workers, population.memory, None, self._rule)
        rows, row = self._write(plan, edges, message["x"], part)
        sane = torch.isfinite(rows).all(1) & (rows.abs().amax(1) <= self._setup.experiment.network.largest)
        fine = sane.cpu().numpy() if len(rows) else np.zeros(0, dtype=bool)
        heard = ~lies
        heard[lies] = (row[lies] >= 0) & (fine[row[lies]] if len(fine) else False)
        sent = int((row[lies] >= 0).sum())
        arrived = graph if heard.all() else graph.keep(heard)
        kept = Edges(arrived, lies[heard], row[heard])
        self._count(kept, part, int(kept.lies.sum()), sent - int(kept.lies.sum()), plan)
        written = self._matrix(plan, kept, rows, part)
        return HostileInbox(message, written, self._workers, population.memory, self._rule)

    def _matrix(self, plan: Plan, edges: Edges, rows: Tensor, part: Positions) -> Written:
        """Who hears which rows, by which weights."""
        graph, n, t = edges.graph, len(self.honest), len(part)
        experiment = self._setup.experiment
        whole = weights(experiment.mixing_rule, plan.delivery.intended, graph).spelled_out
        place = np.full(n, -1)
        place[part] = np.arange(t)
        columns, senders = np.empty(len(whole.data), dtype=np.int64), np.empty(len(whole.data), dtype=np.int64)
        first, rest = whole.indptr[:-1], np.arange(len(graph.senders)) + graph.receivers + 1
        columns[first], columns[rest] = place, np.where(edges.lies, t + edges.row, place[graph.senders])
        senders[first], senders[rest] = np.arange(n), graph.senders
        lengths = np.diff(whole.indptr)[part]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        at = np.arange(indptr[-1]) + np.repeat(whole.indptr[part] - indptr[:-1], lengths)
        matrix = csr_array((whole.data[at], columns[at], indptr), shape=(t, t + len(rows)))
        return Written(rows, matrix, senders[at])

    # -- writing ----------------------------------------------------------------------------------------------------------

    def _write(self, plan: Plan, edges: Edges, x: Tensor, part: Positions) -> tuple[Tensor, NDArray[np.int64]]:
        """The rows that are written, and which of them each message is; -1: none.   # (e, d), (m,)"""
        adversary, graph, here = self.adversary, edges.graph, self.honest[part]
        honest = part[here].astype(np.int64)
        rows = x[torch.from_numpy(np.flatnonzero(here))]  # (h, d)
        seen = rows if self._imagined is None else self._imagined[torch.from_numpy(np.flatnonzero(here))]
        intended = plan.delivery.intended.explicit()
        sight = Sight(plan.round, intended, self.malicious, honest, rows, self._before, self._setup.streams)
        notes = self._safely(lambda: adversary.prepare(sight, self._memory))
        mine = np.searchsorted(part, self.malicious) if adversary.trains else None
        writers = np.unique(graph.senders[edges.lies]).astype(np.int64)
        w = weights(self._setup.experiment.mixing_rule, plan.delivery.intended, graph).spelled_out

        def scene(receiver: int | None, senders: NDArray[np.int64], **more: object) -> Scene:
            trained = untrained = None
            if mine is not None:
                which = np.searchsorted(self.malicious, senders)
                trained = x[torch.from_numpy(mine[which])]
                assert self._untrained is not None
                untrained = self._untrained[torch.from_numpy(which)]
            return Scene(sight, senders, notes=notes, receiver=receiver, trained=trained, untrained=untrained, **more)  # type: ignore[arg-type]

        common = self._looked_at(graph, honest, seen)
        if adversary.alike:
            if not len(common):
                return x[:0], edges.row
            combine = partial(self._combined, np.concatenate([honest, writers]))
            found = self._said(scene(None, writers, honest=common, aggregate=combine), x)
            row = edges.row.copy()
            if len(found) == 1:
                row[edges.lies] = 0
            elif len(found):
                row[edges.lies] = np.searchsorted(writers, graph.senders[edges.lies])
            return found, row

        attacked = np.unique(graph.receivers[edges.lies]).tolist()
        place = np.full(len(self.honest), -1)
        place[honest] = np.arange(len(honest))

        def one(receiver: int) -> Tensor:
            part_of = slice(graph.indptr[receiver], graph.indptr[receiver + 1])
            senders, false = graph.senders[part_of].astype(np.int64), edges.lies[part_of]
            true = senders[~false]
            at = torch.from_numpy(place[np.concatenate([[receiver], true])])
            share = w.data[w.indptr[receiver] : w.indptr[receiver + 1]]
            models = rows[at]
            looked = (models if seen is rows else seen[at]) if adversary.sees == "receiver" else common
            if not len(looked):
                return x[:0]
            combine = partial(self._combined, np.concatenate([true, senders[false]]))
            return self._said(
                scene(
                    receiver,
                    senders[false],
                    honest=looked,
                    aggregate=combine,
                    own=models[0],
                    received=models[1:],
                    weights=np.concatenate([share[:1], share[1:][~false]]),
                    malicious_weight=float(share[1:][false].sum()),
                ),
                x,
            )

        pieces = self._workers.map(one, attacked)
        ends = np.cumsum([0, *map(len, pieces)])
        row = edges.row.copy()
        for receiver, written, start in zip(attacked, pieces, ends[:-1].tolist(), strict=True):
            at = graph.indptr[receiver] + np.flatnonzero(
                edges.lies[graph.indptr[receiver] : graph.indptr[receiver + 1]]
            )
            if len(written):
                row[at] = start if len(written) == 1 else start + np.arange(len(at))
        return torch.cat(pieces), row

    def _looked_at(self, graph: Graph, honest: NDArray[np.int64], seen: Tensor) -> Tensor:
        """The honest models that are looked at, where it is not for each receiver others.   # (q, d)"""
        if self.adversary.sees != "messages":
            return seen
        told = graph.senders[~self.honest[graph.receivers] & self.honest[graph.senders]]
        return seen[torch.from_numpy(np.flatnonzero(np.isin(honest, told)))]

    def _said(self, scene: Scene, like: Tensor) -> Tensor:
        """What is written, as rows: none, one, or one for each sender.   # (e, d)"""
        found = self._safely(lambda: self.adversary.message(scene))
        if found is None:
            return like[:0]
        size, k = like.shape[1], scene.count
        if not isinstance(found, Tensor) or found.dtype != like.dtype or tuple(found.shape) not in ((size,), (k, size)):
            what = f"{str(found.dtype)[6:]} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise RunFailed(
                f"adversary: message gave {what}; it must give {str(like.dtype)[6:]} ({size},), or ({k}, {size}) with a row for each sender"
            )
        return found[None] if found.dim() == 1 else found

    def _safely(self, call: Callable[[], T]) -> T:
        """What a user's own adversary raises, as one line."""
        try:
            return call()
        except EpidemicError:
            raise
        except Exception as problem:
            reason = " ".join(str(problem).split())
            raise RunFailed(
                f'adversary.kind = "{self.adversary.called}" failed: {type(problem).__name__}: {reason}'
            ) from problem

    def _combined(self, senders: NDArray[np.int64], inputs: Tensor) -> Tensor:
        """What the rule would make of these inputs, its own first.   # (m, d) -> (d,)"""
        if self._rule.linear:
            return inputs.mean(0)
        m, out = len(inputs), torch.empty_like(inputs[0])
        ids = senders[: m - 1] if len(senders) >= m - 1 else np.arange(m - 1)
        heard = Heard(inputs[0], inputs[:0], ids, np.full(m, 1 / m), np.zeros(m - 1, dtype=np.int64))
        aggregate_one(self._rule, inputs[0], list(inputs[1:]), heard, out)
        return out

    # -- counting ---------------------------------------------------------------------------------------------------------

    def _count(self, edges: Edges, part: Positions, received: int, dropped: int, plan: Plan) -> None:
        """Count what malicious messages did in a round."""
        n, graph = len(self.honest), edges.graph
        honest = np.zeros(n, dtype=bool)
        honest[part[self.honest[part]]] = True
        inputs = 1 + graph.in_degree
        false = np.bincount(graph.receivers[edges.lies], minlength=n)
        f = tolerated(self._rule, inputs)
        counts = self._counts
        counts["aggregates"] += int(honest.sum())
        if f is not None:
            counts["bad"] += int((honest & (false > f)).sum())
        few = (inputs < self._rule.fewest) if not self._rule.linear else np.zeros(n, dtype=bool)
        counts["kept"] += int((honest & few).sum())
        counts["received"] += received
        counts["dropped"] += dropped

    def found(self, x: Tensor) -> AttackCounts:
        """What has been counted so far, and how many triggered samples these models classify as the adversary wants.   # (h, d)"""
        counts = self._counts
        success = None
        if self._aim is not None:
            success = Spread.of(self._learner.evaluate(x, self._aim).metrics["accuracy"])
        return AttackCounts(
            aggregates=counts["aggregates"],
            bad=counts["bad"] if counts["measured"] else None,
            kept=counts["kept"],
            received=counts["received"],
            dropped=counts["dropped"],
            success=success,
        )

    # -- saving -----------------------------------------------------------------------------------------------------------

    def tallies(self) -> dict[str, int]:
        """The counts as a checkpoint keeps them."""
        return {MEMORY + name: self._counts[name] for name in TALLIES}

    def tensors(self) -> dict[str, Tensor]:
        """For the checkpoint: what the adversary remembers."""
        return {MEMORY + name: rows for name, rows in self._memory.items()}

    def restore(self, tallies: dict[str, int], tensors: dict[str, Tensor]) -> None:
        """Continue from the counts and tensors of a checkpoint."""
        self._counts |= {name: tallies[MEMORY + name] for name in TALLIES}
        self._memory = {name.removeprefix(MEMORY): rows for name, rows in tensors.items() if name.startswith(MEMORY)}
