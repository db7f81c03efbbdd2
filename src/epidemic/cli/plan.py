"""`epidemic plan`: what an experiment would take, before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epidemic.cli.options import Json, NoCode, Seeds, Settings
from epidemic.core.formatting import count

if TYPE_CHECKING:
    from rich.table import Table

    from epidemic.estimate import Gpus, RunEstimate


def register(app: typer.Typer) -> None:
    """Add `epidemic plan` to the application."""
    app.command("plan")(plan_command)


def plan_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file.", show_default=False)],
    ranks: Annotated[
        int | None,
        typer.Option(metavar="N", help="Memory if so many processes share the nodes.", show_default="1"),
    ] = None,
    gpus: Annotated[
        bool, typer.Option("--gpus", help="Measure on the GPU of this machine; how many like it are needed.")
    ] = False,
    seeds: Seeds = None,
    settings: Settings = None,
    no_code: NoCode = False,
    as_json: Json = False,
) -> None:
    r"""Estimate what an experiment needs: memory, bytes sent, time, and how many processes or GPUs it takes to fit.

    A few rounds of some of its nodes are timed on this machine, which takes seconds; memory and bytes are counted. Nothing is written.
    With --gpus they are trained on the GPU that is here, and it says how many like it are needed, with a rank on each.

    [bold]Examples[/bold]

      epidemic plan experiment.toml

      epidemic plan experiment.toml --set nodes=10000 --ranks 4 \
          --set data.kind=cifar10 --set model.kind=gn-lenet
    """
    from epidemic.cli.show import print_json
    from epidemic.estimate import plan
    from epidemic.experiment import load, numbered_seeds

    settings = settings if seeds is None else numbered_seeds(seeds, settings or [])
    found = plan(load(file, settings), ranks, gpus=gpus)
    if as_json:
        print_json(found)
    else:
        _print(found)


WORDS = {
    "state": "models and other columns of the state",
    "mixtures": "mixtures",
    "data": "data",
    "loading": "all data, while it is read",
    "going_on": "the state, read from a checkpoint",
    "working": "training and evaluating, for a moment",
    "evaluation": "disagreement",
    "exchange": "on the way between ranks",
    "saving": "pieces of them to be saved",
    "context": "CUDA and its libraries",
    "program": "all else, measured",
}
"""The parts of a memory, in the order in which they are shown."""


def _print(found: RunEstimate) -> None:
    from rich.markup import escape

    from epidemic.cli.show import duration, show, size
    from epidemic.cli.show import simulated as finely

    lines = [
        f"{count(found.nodes, 'node')}, {count(found.parameters, 'parameter')}, {count(found.rounds, 'round')}, {count(found.seeds, 'seed')}"
    ]
    if found.gpus is not None:
        lines.append(_on_gpus(found.gpus))
    elif found.machine_memory is not None:
        fit = "no number of ranks fits" if found.ranks_to_fit is None else f"ranks to fit: {found.ranks_to_fit:,}"
        lines.append(f"memory of this machine: {size(found.machine_memory)}; {fit}")
    if found.ranks > 1:
        lines.append(f"between ranks: {size(found.exchanged_per_round)} in a round, of the busiest of them")
    if found.sent_per_round is not None and found.sent_per_node is not None and found.sent_in_all is not None:
        sent = (size(found.sent_per_round), size(found.sent_per_node), size(found.sent_in_all))
        lines.append(f"sent by a node: {sent[0]} in a round, {sent[1]} by the end; by all nodes: {sent[2]}")
    lines.append(
        f"time in one process here, on its {'CPU' if found.measured_on == 'cpu' else 'GPU'}:"
        f" {finely(found.seconds_per_round)} a round,"
        f" {finely(found.seconds_per_evaluation)} an evaluation, {duration(found.seconds)} in all"
    )
    show(_table(found), *map(escape, [*lines, *found.notes]))


def _table(found: RunEstimate) -> Table:
    """Where memory goes: of a process, or of a GPU and of the process that drives it."""
    from epidemic.cli.show import plain_table, size

    each = "" if found.ranks == 1 else f" of each of {found.ranks} ranks"
    gpus = found.gpus
    parts: list[tuple[str, object, int]] = [("bytes", found.memory, found.memory_in_all)]
    if gpus is not None:
        parts = [("of a GPU", gpus.memory, gpus.memory_in_all), ("of its host process", gpus.host, gpus.host_in_all)]
    table = plain_table(f"Memory{each}", "", *(head for head, _, _ in parts))
    for name, what in WORDS.items():
        sizes = [getattr(memory, name, 0) for _, memory, _ in parts]
        if any(sizes):
            table.add_row(what, *(size(one) if one else "-" for one in sizes))
    table.add_row("at most at once", *(size(total) for _, _, total in parts))
    return table


def _on_gpus(gpus: Gpus) -> str:
    """Whether it fits, and how many would."""
    from epidemic.cli.show import size

    asked = f"{count(gpus.count, 'GPU')} of {size(gpus.memory_of_each)}, one rank each"
    if gpus.to_fit is None:
        return f"no number of GPUs of {size(gpus.memory_of_each)} fits: each would need {size(gpus.least)} at least"
    if gpus.fits:
        fewer = "the fewest that fit" if gpus.count == gpus.to_fit else f"{gpus.to_fit:,} would be enough"
        return f"{asked}: it fits; {fewer}"
    return f"{asked}: it does not fit; {gpus.to_fit:,} would"
