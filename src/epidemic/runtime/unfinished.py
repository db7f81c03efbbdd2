"""The models of a run that has not finished: those of its last checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec
from torch import Tensor

from epidemic.core.errors import BadInput
from epidemic.core.files import read_json
from epidemic.experiment import load
from epidemic.learner import Layout
from epidemic.runtime.checkpoint import read_checkpoint
from epidemic.runtime.saved_models import given_the_average
from epidemic.runtime.setup import prepare
from epidemic.runtime.start import read_start


def last_models(run: Path) -> tuple[int, Layout, Tensor]:
    """The last checkpoint of a seed's directory: the number of its rounds, and its models.   # (n, d)

    A checkpoint holds the state of an algorithm as rows of numbers; the experiment is set up to interpret them.
    """
    info = read_json(run / "run.json") or {}
    file = run.parent / "experiment.toml"
    if not file.is_file():
        raise BadInput(
            f"{run} is not finished, and its experiment has objects of your own; resume it in Python: simulate(..., resume=True)"
        )
    experiment = load(file)
    on_cpu = msgspec.structs.replace(
        experiment, runtime=msgspec.structs.replace(experiment.runtime, device="cpu", strategy="auto")
    )
    node_ids = [int(info["node"])] if "node" in info else None
    _, weights = (None, None) if node_ids is None else read_start(run.parent.parent)
    setup = prepare(on_cpu, int(info["seed"]), node_ids=node_ids, weights=weights)
    layout = setup.task.layout
    found = read_checkpoint(run, layout)
    if found is None:
        raise BadInput(f"{run} has no model yet: it has not finished, and saved no checkpoint (Ctrl-C saves one)")
    models = experiment.algorithm.model(found.whole())
    if experiment.participation.live_only and "up" in found.tensors:
        models = given_the_average(models, found.tensors["up"])
    return found.progress.round, layout, models
