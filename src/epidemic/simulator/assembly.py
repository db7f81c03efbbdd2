"""From an experiment with a [clock] to its clockwork: the world, the links, and the nodes of its method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from epidemic.aggregation import made
from epidemic.algorithms.asynchronous import SECOND, Node
from epidemic.clock import Clock, CloseGlobal, CloseSchedule, World
from epidemic.core.rng import Streams
from epidemic.experiment import Experiment, found_in
from epidemic.faults import Faults
from epidemic.protocol.clocked_rounds import ClosingNode, GlobalNode, ScheduledNode
from epidemic.protocol.rules import Rules
from epidemic.runtime.lazy_models import LazyModels
from epidemic.runtime.parts import parts_of
from epidemic.runtime.peers import ChanceDraws, Peers
from epidemic.simulator.clocked_rounds import Plans, SharedRounds, SimulatedRoundContext
from epidemic.simulator.clockwork import ClockSettings, Clockwork
from epidemic.simulator.deployed_protocol import DeployedNode
from epidemic.simulator.membership import Presence
from epidemic.simulator.node_context import SimulatedContext
from epidemic.simulator.trace import Log
from epidemic.topology import is_static


class Seed(Protocol):
    """What assembling needs of one seed of an experiment: a `Setup`, or less in a dry run."""

    @property
    def experiment(self) -> Experiment:
        """The whole specification of the run."""
        ...

    @property
    def streams(self) -> Streams:
        """The random streams of the seed."""
        ...

    @property
    def sizes(self) -> Any:
        """The number of training samples of each node, if known.   # (n,)"""
        ...


@dataclass(frozen=True)
class WithoutCap:
    """The same seed, with the experiment's cap removed."""

    experiment: Experiment
    streams: Streams
    sizes: Any


@dataclass(frozen=True)
class Sizes:
    """The sizes of models and messages."""

    numbers: int  # numbers of a model
    width: int  # bytes of a number
    message: int  # bytes of the numbers of a message


def microseconds(seconds: float) -> int:
    """Convert seconds to whole microseconds."""
    return round(seconds * SECOND)


def world_of(experiment: Experiment, streams: Streams) -> World:
    """The world of an experiment: computing speeds, links and churn."""
    assert experiment.clock is not None
    where = found_in(experiment.clock.files)
    return experiment.clock.world(experiment.nodes, streams, experiment.algorithm.batch_size, where)


def assemble(
    seed: Seed,
    sizes: Sizes,
    lazy_models: LazyModels,
    model: Any,
    *,
    world: Any = None,
    log: Log | None = None,
    header_bytes: int | None = None,
) -> Clockwork:
    """Make the clockwork of one seed, ready to run; `model` is the lazy model that all nodes start from."""
    experiment, streams = seed.experiment, seed.streams
    clock, algorithm = experiment.clock, experiment.algorithm
    assert clock is not None
    world = world_of(experiment, streams) if world is None else world
    method = experiment.free
    free = method is not None
    parts = parts_of(experiment, sizes.numbers, streams)
    settings = ClockSettings(
        n=experiment.nodes,
        message_bytes=sizes.message,
        steps=algorithm.local_steps,
        part_bytes=tuple(len(part) * sizes.width for part in parts),
        links=clock.links.model,
        loss=experiment.faults.loss if free else 0.0,
        when_off="pause" if clock.churn is None else clock.churn.training,
        transfers="drop" if clock.churn is None else clock.churn.transfers,
        remembers=bool(method is not None and method.step.remembers),
        free=free,
        ordered=free and clock.links.order == "ascending",
        static=free and is_static(experiment.topology),
        rounds=0 if clock.stop or clock.megabytes else experiment.rounds,
        every=0 if clock.evaluate else experiment.eval.every,
        stop=microseconds(clock.stop),
        bytes=clock.megabytes * 1e6,
        evaluate=microseconds(clock.evaluate),
        rule=made(experiment.aggregation),
        at_once=float("inf") if lazy_models.dry else experiment.nodes,
        **({} if header_bytes is None else {"header_bytes": header_bytes}),
    )
    chances = ChanceDraws(streams)
    if method is not None:
        peers = Peers(experiment.topology, experiment.nodes, streams)
        return Clockwork(
            settings, world, lazy_models, model, method.node, peers, chances, context=SimulatedContext, log=log
        )
    deployed = clock.protocol == "deployed"
    if deployed:  # nodes offer messages to each other; none is refused in advance
        seed = WithoutCap(
            replace(experiment, faults=replace(experiment.faults, cap=None, max_retries=Faults().max_retries)),
            streams,
            seed.sizes,
        )
    plans = Plans(seed, exact=clock.close.waits_for_all and not deployed, ordered=clock.links.order == "ascending")
    together = SharedRounds(plans, experiment.nodes)
    return Clockwork(
        settings,
        world,
        lazy_models,
        model,
        partial(_deployed, experiment, together.presence)
        if deployed
        else partial(_in_rounds, clock, experiment.rounds),
        lambda node, count: (),
        chances,
        context=SimulatedRoundContext,
        together=together,
        log=log,
    )


def _deployed(experiment: Experiment, presence: Presence, context: Any) -> Node:
    """Make a node that runs the deployed protocol."""
    assert experiment.clock is not None
    network, faults, n = experiment.network, experiment.faults, experiment.nodes
    rules = Rules(
        context.id,
        n,
        experiment.rounds,
        close=experiment.clock.close,
        patience=microseconds(network.patience),
        cap=faults.cap_of(n),
        retries=n if faults.max_retries == "unlimited" else faults.max_retries,
        blind=network.blind,
        partial=True,
        witnesses=network.witnesses,
    )
    return DeployedNode(context, rules, presence, faults.loss)


def _in_rounds(clock: Clock, rounds: int, context: Any) -> Node:
    """Make a node that closes its rounds by the clock's closing rule."""
    close = clock.close
    if isinstance(close, CloseGlobal):
        return GlobalNode(context, rounds, close)
    if isinstance(close, CloseSchedule):
        return ScheduledNode(context, rounds, close)
    return ClosingNode(context, rounds, close)
