"""Dry runs: when everything happens and what is sent, without a model, a sample or a training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.experiment import Experiment
from epidemic.runtime.lazy_models import GivenModel, LazyModels
from epidemic.simulator.assembly import Sizes, assemble
from epidemic.simulator.clockwork import Clockwork
from epidemic.simulator.trace import Log, Span, Trip


@dataclass(frozen=True)
class DrySeed:
    """What is known of a seed without its data."""

    experiment: Experiment
    streams: Streams
    sizes: Any = None


def dry_work(
    experiment: Experiment, seed: int, message_bytes: int, *, seconds: float = 0.0, log: Log | None = None
) -> Clockwork:
    """The clockwork of a seed that computes nothing; it stops after so many simulated seconds, if given."""
    if experiment.clock is None:
        raise BadInput("there is no [clock] in this experiment, so nothing in it has a time; add one")
    if seconds:
        stop = min(seconds, experiment.clock.stop or seconds)
        experiment = msgspec.structs.replace(experiment, clock=msgspec.structs.replace(experiment.clock, stop=stop))
    if experiment.mixing == "samples":  # nobody counts anything here
        experiment = msgspec.structs.replace(experiment, mixing="uniform")
    lazy_models = LazyModels(dry=True)
    sizes = Sizes(message_bytes // 4, 4, message_bytes)
    return assemble(DrySeed(experiment, Streams(seed)), sizes, lazy_models, lazy_models.new(GivenModel(None)), log=log)


def dry_run(experiment: Experiment, seed: int, message_bytes: int, **how: Any) -> Clockwork:
    """Let it run to its end."""
    work = dry_work(experiment, seed, message_bytes, **how)
    for _ in work.run():
        pass
    return work


def dry_log(experiment: Experiment, seed: int, message_bytes: int, seconds: float) -> tuple[list[Span], list[Trip]]:
    """What every node does in the first seconds, and the ways of all messages."""
    log = Log()
    work = dry_run(experiment, seed, message_bytes, seconds=seconds, log=log)
    for one in work.contexts:  # what is not over yet
        if one.training is not None and one.on:
            log.span(one.id, "training", one.since, work.now)
        if not one.on:
            log.span(one.id, "offline", max(one.went, 0), work.now)
    return log.spans, log.trips
