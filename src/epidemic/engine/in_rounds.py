"""Rounds under the simulated clock: the promises of a round's two steps, and the nodes that make them.

Models come out as the round engine's to the bit where every letter counts: the same samples, the same steps, the same order of addition.
"""

from __future__ import annotations

from bisect import bisect
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from epidemic.algorithms import Inbox, Rows
from epidemic.algorithms.free import SECOND, Letter
from epidemic.close import Close
from epidemic.engine.membership import Presence
from epidemic.engine.person import Person
from epidemic.engine.telling import Closing
from epidemic.graph import Graph
from epidemic.host.coding import letter_in
from epidemic.host.counters import control_bytes
from epidemic.host.inbox import Exchange, Post, Received
from epidemic.host.journal import Host
from epidemic.host.plan import Plan, View, plan_round, shares, weights_by_age
from epidemic.host.promises import Promise, Promises
from epidemic.rng import Streams

KEPT = 64
"""Rounds whose plans are remembered."""


class Emission(Promise):
    """What a node has trained and says in a round.   # (state, message, loss)"""

    __slots__ = ("degree", "node", "round", "state")

    def __init__(self, node: int, round: int, state: Promise, degree: int) -> None:
        super().__init__()
        self.node, self.round, self.degree = node, round, degree
        self.state: Promise | None = state

    def needs(self) -> Iterable[Promise]:
        """The state that it starts from."""
        return () if self.state is None else (self.state,)

    def forget_needs(self) -> None:
        """It is not needed any more."""
        self.state = None

    @property
    def together(self) -> tuple[Any, ...]:
        """Those of a round are computed together."""
        return (type(self).__name__, self.round)

    @property
    def loss(self) -> Any:
        """Of its training."""
        return None if self.value is None else float(self.value[2])


class Absorption(Promise):
    """The state of a node that has mixed what it heard.   # by name, a row each"""

    __slots__ = ("ages", "emission", "letters", "round", "senders", "whole")

    def __init__(
        self, emission: Emission, round: int, senders: list[int], letters: list[Any], ages: list[int], *, whole: bool
    ) -> None:
        """`whole`: every letter of the plan is there, and no other."""
        super().__init__()
        self.emission: Emission | None = emission
        self.round, self.senders, self.letters, self.ages, self.whole = round, senders, letters, ages, whole

    def needs(self) -> Iterable[Promise]:
        """What it says itself, and the letters."""
        return () if self.emission is None else (self.emission, *self.letters)

    def forget_needs(self) -> None:
        """They are not needed any more."""
        self.emission, self.letters = None, []

    @property
    def together(self) -> tuple[Any, ...]:
        """Those of a round are computed together."""
        return (type(self).__name__, self.round)


class Letters:
    """Who sends to whom in a round, in the order in which letters leave, and how many each waits for."""

    def __init__(
        self, intended: Graph, arriving: Graph, streams: Streams, round: int, *, exact: bool, ordered: bool
    ) -> None:
        self._intended, self._streams, self._round, self._ordered = intended, streams, round, ordered
        self.awaited: list[int] = (arriving if exact else intended).in_degree.tolist()
        self.coming: list[int] = arriving.in_degree.tolist()
        self.degree: list[int] = arriving.out_degree.tolist()
        self._to: list[int] = []
        self._at: list[int] = []
        self._lost: frozenset[tuple[int, int]] = frozenset()
        if intended.clique is None:
            senders, receivers = intended.senders, intended.receivers
            turn = np.arange(len(senders)) if ordered else streams("order-of-letters", round).words(len(senders))
            order = np.lexsort((turn, senders))
            self._to = receivers[order].tolist()
            self._at = np.concatenate([[0], np.cumsum(intended.out_degree)]).tolist()
        if arriving.messages < intended.messages:
            whole, left = intended.explicit(), arriving.explicit()
            gone = np.setdiff1d(whole.edge_keys, left.edge_keys)  # receiver * n + sender
            self._lost = frozenset(zip((gone % intended.n).tolist(), (gone // intended.n).tolist(), strict=True))

    def targets(self, node: int) -> list[int]:
        """Whom a node sends to."""
        if self._intended.clique is None:
            return self._to[self._at[node] : self._at[node + 1]]
        found: list[int] = self._intended.out_of(node).tolist()
        if not self._ordered:
            order = self._streams("order-of-letters", self._round, node).permutation(len(found))
            found = [found[i] for i in order.tolist()]
        return found

    def senders(self, node: int) -> frozenset[int]:
        """Who sends to a node."""
        return frozenset(self._intended.into(node).tolist())

    def lost(self, node: int, to: Sequence[int]) -> list[int]:
        """Those of them whom the letter does not reach."""
        return [place for place in to if (node, place) in self._lost] if self._lost else []


class Plans:
    """The rounds of an experiment as nodes under a clock see them."""

    def __init__(self, setup: Any, *, exact: bool, ordered: bool) -> None:
        """`setup`: experiment, streams and sizes of a seed. `exact`: nodes know which letters will be lost, because they wait for all others; `ordered`: letters leave by ascending target."""
        self._setup = setup
        self._exact, self._ordered = exact, ordered
        self._known: OrderedDict[int, tuple[Plan, Letters]] = OrderedDict()

    def __call__(self, round: int) -> tuple[Plan, Letters]:
        """What is decided about a round."""
        found = self._known.get(round)
        if found is None:
            setup = self._setup
            plan = plan_round(setup.experiment, setup.streams, round, setup.sizes)
            delivery = plan.delivery
            letters = Letters(
                delivery.intended, delivery.graph, setup.streams, round, exact=self._exact, ordered=self._ordered
            )
            found = self._known[round] = (plan, letters)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return found


class RoundPerson(Person):
    """A node in rounds; its model is the promise of its whole state."""

    __slots__ = ()

    @property
    def _rounds(self) -> Together:
        found: Together = self.work.together
        return found

    def awaited(self, round: int) -> int:
        """How many letters it waits for."""
        return self._rounds.plans(round)[1].awaited[self.id]

    def open(self, round: int) -> None:
        """Begin to train for a round."""
        plan, letters = self._rounds.plans(round)
        degree = letters.degree[self.id]
        if plan.control is not None:
            self.control += int(control_bytes(plan.control)[self.id])
        self.begin(Emission(self.id, round, self.model, degree))

    def neighbours(self, round: int) -> tuple[list[int], frozenset[int]]:
        """Whom it sends to in a round, in the order in which messages leave, and who sends to it."""
        letters = self._rounds.plans(round)[1]
        return letters.targets(self.id), letters.senders(self.id)

    def post_to(self, round: int, row: Any, to: Sequence[int]) -> None:
        """Send the message of a round to some nodes for the first time."""
        self.send(to, row, note=(round,), lost=self._rounds.plans(round)[1].lost(self.id, to))

    def post_again(self, round: int, row: Any, to: int, *, lost: bool) -> None:
        """Send the message of a round to a node that asks for it."""
        self.send([to], row, note=(round,), lost=[to] if lost else ())

    def tell(self, place: int, what: Any) -> None:
        """Have another node woken with this when it can know it."""
        work = self.work
        work.people[place].wake_at(work.now + work.world.latency(self.id, place), what)

    def tell_back(self, place: int, what: Any) -> None:
        """Be woken with what another node answers, after the time there and back."""
        world = self.work.world
        self.wake_at(self.now + world.latency(self.id, place) + world.latency(place, self.id), what)

    def post(self, round: int) -> None:
        """Send what was trained."""
        letters = self._rounds.plans(round)[1]
        to = letters.targets(self.id)
        self.send(to, self.result, note=(round,), lost=letters.lost(self.id, to))

    def close(self, round: int, letters: Sequence[Letter], ages: Sequence[int]) -> None:
        """Mix these letters."""
        senders = [letter.sender for letter in letters]
        whole = len(senders) == self._rounds.plans(round)[1].coming[self.id] and not any(ages)
        rows: list[Any] = [letter.row for letter in letters]
        self.model = self.work.promises.new(Absorption(self.result, round, senders, rows, list(ages), whole=whole))
        if self.work.log is not None:
            self.work.log.closings.append(Closing(self.id, round, self.now / SECOND, tuple(senders), tuple(ages)))

    def wait_for_all(self, round: int) -> None:
        """Be woken when everybody waits."""
        if self._rounds.meet():
            for one in self.work.people:
                one.wake_at(self.now, "all")


class Together:
    """What all nodes in rounds share: the plans, and the place where they wait for each other."""

    def __init__(self, plans: Plans, nodes: int) -> None:
        self.plans = plans
        self.presence = Presence(nodes)
        self._nodes = nodes
        self._waiting = 0

    def watch(self, work: Any) -> None:
        """Let who is there be known, now that there are nodes."""
        self.presence.work = work

    def meet(self) -> bool:
        """One more waits; whether all do."""
        self._waiting = (self._waiting + 1) % self._nodes
        return not self._waiting


class Steps:
    """Computes the two steps of rounds, those of a round in one batch."""

    def __init__(self, host: Host, promises: Promises, plans: Plans, close: Close) -> None:
        """`close`: says how much messages of earlier rounds count."""
        self._host = host
        self._plans = plans
        self._close = close
        promises.computes(Emission, self._emit)
        promises.computes(Absorption, self._absorb)

    def _emit(self, those: list[Emission]) -> None:
        population = self._host.population
        those = sorted(those, key=lambda one: one.node)
        who = np.array([one.node for one in those])
        degree = np.array([one.degree for one in those])
        state = _stacked([one.state.value for one in those if one.state is not None])
        state, message, loss = population.emit_from(state, those[0].round, degree, who)
        population.check_finite("training loss", those[0].round, who, loss, "")
        for i, one in enumerate(those):
            one.value = (_row(state, i), _row(message, i), loss[i])

    def _absorb(self, those: list[Absorption]) -> None:
        host = self._host
        those = sorted(those, key=lambda one: one.emission.node if one.emission is not None else -1)
        emissions = [one.emission for one in those if one.emission is not None]
        state = _stacked([one.value[0] for one in emissions])
        message = _stacked([one.value[1] for one in emissions])
        plan = self._plans(those[0].round)[0]
        inbox: Inbox
        if len(those) == len(host.population) and all(one.whole for one in those):
            population = host.population
            inbox = Exchange(
                message,
                plan.weights,
                population.ids,
                host.workers,
                population.memory,
                population.coder,
                population.rule,
            )
        else:
            received = [self._received(one, plan) for one in those]
            inbox = Post(message, received, host.workers, host.population.coder, host.population.rule)
        state = host.population.absorb_into(state, inbox)
        for i, one in enumerate(those):
            one.value = _row(state, i)

    def _received(self, one: Absorption, plan: Plan) -> Received:
        assert one.emission is not None
        node, senders = one.emission.node, one.senders
        experiment, sizes = self._host.population.setup.experiment, self._host.population.setup.sizes
        graph = plan.delivery.intended
        rows = [letter_in(letter.value[1]) for letter in one.letters]
        if any(one.ages):
            return Received(senders, rows, weights_by_age(self._close, one.ages), ages=one.ages)
        view = View(one.round, graph, b"", (), None)
        samples = [] if sizes is None else sizes[[node, *senders]].tolist()
        if one.whole and plan.weights.matrix is not None:
            matrix = plan.weights.matrix
            by = matrix.data[matrix.indptr[node] : matrix.indptr[node + 1]]
        else:
            by = shares(experiment, view, node, senders, samples)
        at = bisect(senders, node) if graph.clique is not None else None
        return Received(senders, rows, by, at, by_portions=experiment.mixing_rule == "samples")


def _stacked(parts: list[Rows]) -> Rows:
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def _row(rows: Rows, i: int) -> Rows:
    """A node's part, in memory of its own: that of a whole batch would live as long as the last of its rows."""
    return {name: part[i].clone() for name, part in rows.items()}
