"""What a user should know about a seed before it runs, for every display alike."""

from __future__ import annotations

from typing import Literal

from epidemic.aggregation import made
from epidemic.algorithms import cautions
from epidemic.core.errors import plain
from epidemic.core.formatting import percent
from epidemic.experiment import Experiment, said_of
from epidemic.models import unused_methods
from epidemic.runtime.describe import disconnection
from epidemic.runtime.plan import share_of_few
from epidemic.runtime.setup import Setup
from epidemic.runtime.sizes import small_shares
from epidemic.topology import topology_cautions

Kind = Literal["warning", "note"]


ENOUGH_MOMENTUM = 0.9


def _little_momentum(experiment: Experiment) -> str | None:
    """A line where malicious nodes can hide behind noise that momentum would take away."""
    momentum, adversary = getattr(experiment.algorithm, "momentum", None), experiment.adversary
    plain = getattr(experiment.algorithm, "optimizer", None) == "sgd" and hasattr(experiment.algorithm, "order")
    if not plain or momentum is None or momentum >= ENOUGH_MOMENTUM or adversary is None or not adversary.size:
        return None
    if made(experiment.aggregation).linear:
        return None
    return (
        f"algorithm.momentum = {momentum:g}: malicious models hide behind the noise of honest gradients, of which momentum ="
        f" {ENOUGH_MOMENTUM:g} with a tenth of the learning rate leaves a nineteenth"
    )


def remarks(setup: Setup, said: set[str]) -> list[tuple[Kind, str]]:
    """The lines on a seed, each with its kind. What is in `said` is left out, and what is given is added to it."""
    experiment = setup.experiment
    apart = disconnection(experiment, setup.seed)
    few = small_shares(setup.parts, experiment.algorithm.batch_size)
    found: list[tuple[Kind, str]] = []
    if experiment.runtime.device == "auto":
        found.append(("note", f"{experiment.name} is computed on {setup.task.device.type}"))
    if apart is not None:
        found.append(("warning", apart))
    if setup.data.note:
        found.append(("warning", f"data: {plain(setup.data.note, 500)}"))
    if (unused := unused_methods(setup.task.module)) is not None:
        found.append(("warning", unused))
    found += [("warning", line) for line in cautions(experiment.algorithm, experiment.topology)]
    found += [("warning", line) for line in topology_cautions(experiment.topology, experiment.nodes)]
    share, most = share_of_few(experiment, setup.seed)
    if share:
        found.append(
            (
                "warning",
                f"{said_of(experiment)}: about {percent(share)} of aggregates have fewer than {made(experiment.aggregation).fewest} models"
                f" ({most} at most), and these nodes keep their own; let each hear more (topology.s), or leave fewer out",
            )
        )
    if (without := _little_momentum(experiment)) is not None:
        found.append(("note", without))
    if few is not None and "small shares" not in said:  # its numbers differ between seeds; once is enough
        said.add("small shares")
        found.append(("note", few))
    new = [(kind, line) for kind, line in found if line not in said]
    said.update(line for _, line in new)
    return new
