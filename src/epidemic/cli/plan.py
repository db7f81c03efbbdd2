"""`epidemic plan`: what an experiment would take, before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epidemic.cli.experiments import Json, Seeds, Settings

if TYPE_CHECKING:
    from epidemic.estimate import Plan


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command("plan")(plan_command)


def plan_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file.", show_default=False)],
    ranks: Annotated[int, typer.Option(metavar="N", help="Memory if so many processes share the nodes.")] = 1,
    seeds: Seeds = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Say what an experiment would take: memory, bytes sent, time, and how many processes it takes to fit.

    A few rounds of some of its nodes are timed on this machine, which takes seconds; memory and bytes are counted. Nothing is written.

    [bold]Examples[/bold]

      epidemic plan experiment.toml

      epidemic plan experiment.toml --set nodes=10000 --set data.kind=cifar10 --set model.kind=gn-lenet --ranks 4
    """
    from epidemic.cli.show import print_json
    from epidemic.estimate import plan
    from epidemic.experiment import load, numbered_seeds

    settings = settings if seeds is None else numbered_seeds(seeds, settings or [])
    found = plan(load(file, settings), ranks)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: Plan) -> None:
    from rich.markup import escape

    from epidemic.cli.show import duration, plain_table, show, size
    from epidemic.cli.show import simulated as finely

    each = "" if found.ranks == 1 else f" of each of {found.ranks} ranks"
    memory = plain_table(f"Memory{each}", "", "bytes")
    words = {
        "state": "models and other columns of the state",
        "mixtures": "mixtures",
        "data": "data",
        "loading": "all data, while it is read",
        "evaluation": "disagreement",
        "exchange": "on the way between ranks",
        "saving": "pieces of them to be saved",
        "program": "all else, measured",
    }
    for name, what in words.items():
        if getattr(found.memory, name):
            memory.add_row(what, size(getattr(found.memory, name)))
    memory.add_row("at most at once", size(found.memory_in_all))
    lines = [f"{found.nodes:,} nodes, {found.parameters:,} parameters, {found.rounds:,} rounds, {found.seeds} seeds"]
    if found.machine_memory is not None:
        fit = "no number of ranks fits" if found.ranks_to_fit is None else f"ranks to fit: {found.ranks_to_fit:,}"
        lines.append(f"memory of this machine: {size(found.machine_memory)}; {fit}")
    if found.ranks > 1:
        lines.append(f"between ranks: {size(found.exchanged_per_round)} in a round, of the busiest of them")
    if found.sent_per_round is not None and found.sent_per_node is not None and found.sent_in_all is not None:
        sent = (size(found.sent_per_round), size(found.sent_per_node), size(found.sent_in_all))
        lines.append(f"sent by a node: {sent[0]} in a round, {sent[1]} by the end; by all nodes: {sent[2]}")
    lines.append(
        f"time in one process here: {finely(found.seconds_per_round)} a round,"
        f" {finely(found.seconds_per_evaluation)} an evaluation, {duration(found.seconds)} in all"
    )
    show(memory, *map(escape, [*lines, *found.notes]))
