"""Whether an experiment can be shared among ranks, checked before any rank starts: a batch is refused as a whole."""

from __future__ import annotations

import msgspec

from epidemic.callbacks import Callbacks
from epidemic.callbacks.base import named_callbacks
from epidemic.core.errors import BadInput, argument
from epidemic.core.workers import Workers
from epidemic.data import Dataset
from epidemic.experiment import Experiment
from epidemic.runtime.setup import make_learner, prepare
from epidemic.simulator.on_ranks import refuse, refuse_prepared


def check_sharing(experiment: Experiment, ranks: int) -> None:
    """Refuse what the experiment alone shows."""
    if ranks > experiment.nodes:
        raise BadInput(
            f"{argument('ranks')} {ranks} must be at most nodes = {experiment.nodes}: every rank has at least one node"
        )
    refuse(experiment, Callbacks(named_callbacks(experiment)), ranks)


def check_strategy(experiment: Experiment, data: Dataset) -> None:
    """Refuse what only a prepared node shows: how its model would be trained. Prepares one node, trains none."""
    if experiment.runtime.strategy == "timed":  # known only after a measurement
        return
    workers = Workers(1)
    try:
        setup = prepare(experiment, experiment.seeds[0], data, [0])
        refuse_prepared(setup.task, make_learner(setup, workers)[1])
    finally:
        workers.close()


def what_decides_strategy(experiment: Experiment) -> bytes:
    """A key: `check_strategy` treats experiments with equal keys alike."""
    table = experiment.table()
    algorithm = {name: value for name, value in table["algorithm"].items() if name != "lr"}
    kept = {name: table.get(name) for name in ("data", "model", "loss", "metrics", "nodes", "partition", "runtime")}
    return msgspec.json.encode([algorithm, kept])
