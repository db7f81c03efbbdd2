"""Dry runs: times and messages of a run, without a model, a sample or a training."""

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
    """What assembling needs of a seed, without its data."""

    experiment: Experiment
    streams: Streams
    sizes: Any = None


def dry_work(
    experiment: Experiment, seed: int, message_bytes: int, *, seconds: float = 0.0, log: Log | None = None
) -> Clockwork:
    """The clockwork of a seed that computes nothing; `seconds` > 0 limits the simulated time."""
    if experiment.clock is None:
        raise BadInput("there is no [clock] in this experiment, so nothing in it has a time; add one")
    if seconds:
        stop = min(seconds, experiment.clock.stop or seconds)
        experiment = msgspec.structs.replace(experiment, clock=msgspec.structs.replace(experiment.clock, stop=stop))
    if experiment.mixing == "samples":  # dry runs do not count samples
        experiment = msgspec.structs.replace(experiment, mixing="uniform")
    lazy_models = LazyModels(dry=True)
    sizes = Sizes(message_bytes // 4, 4, message_bytes)
    return assemble(DrySeed(experiment, Streams(seed)), sizes, lazy_models, lazy_models.new(GivenModel(None)), log=log)


def dry_run(experiment: Experiment, seed: int, message_bytes: int, **how: Any) -> Clockwork:
    """Run a dry clockwork to its end and return it."""
    work = dry_work(experiment, seed, message_bytes, **how)
    for _ in work.run():
        pass
    return work


def dry_log(experiment: Experiment, seed: int, message_bytes: int, seconds: float) -> tuple[list[Span], list[Trip]]:
    """The spans of all nodes and the trips of all messages in the first `seconds`."""
    log = Log()
    work = dry_run(experiment, seed, message_bytes, seconds=seconds, log=log)
    for one in work.contexts:  # spans that have not ended
        if one.training is not None and one.on:
            log.span(one.id, "training", one.since, work.now)
        if not one.on:
            log.span(one.id, "offline", max(one.went, 0), work.now)
    return log.spans, log.trips
