"""`epidemic timeline`: a picture of what the nodes of an experiment do when, under its simulated clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epidemic.cli.options import Json, NoCode
from epidemic.core.errors import BadInput, require_int, require_real
from epidemic.core.formatting import count

if TYPE_CHECKING:
    from epidemic.experiment import Experiment
    from epidemic.simulator.trace import Span, Trip

FIRST_LOOK, WIDER = 1.0, 4.0
"""Simulated seconds of the first dry run, and by how much the next one is longer, until enough has happened."""
BEYOND = 1.25
"""A dry run lasts this much longer than what is shown, so that messages on their way at the end are included."""


def register(app: typer.Typer) -> None:
    """Add `epidemic timeline` to the application."""
    app.command("timeline")(timeline_command)


def timeline_command(
    source: Annotated[
        Path, typer.Argument(metavar="DIR|FILE", help="A run, or an experiment file with a clock.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The picture: .svg, .png or .pdf.", show_default=False),
    ],
    seconds: Annotated[
        float | None,
        typer.Option(metavar="S", help="Only the first S simulated seconds.", show_default="eight trainings of a node"),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N nodes.", show_default="at most 60")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Which seed.", show_default="the first")] = None,
    no_code: NoCode = False,
    as_json: Json = False,
) -> None:
    """Draw what nodes do under the simulated clock: training, waiting, sending, offline, and the ways of messages.

    Nothing is trained: a dry run of the clock gives the same times as the run itself.

    [bold]Examples[/bold]

      epidemic timeline experiment.toml -o timeline.svg

      epidemic timeline runs/first -o timeline.png --seconds 20 --nodes 8
    """
    from epidemic.cli.show import print_json, show, simulated
    from epidemic.report.style import check_picture, save
    from epidemic.report.timeline import LANES, TimelineChart, timeline_figure

    check_picture(output)
    if seconds is not None:
        require_real("--seconds", seconds, above=0)
    experiment, number = _experiment(source, seed)
    if experiment.clock is None:
        raise BadInput(f"{source} has no [clock], so nothing in it has a time; add one to the experiment")
    if nodes is not None:
        require_int("--nodes", nodes, 1, experiment.nodes)
    lanes = min(experiment.nodes, LANES) if nodes is None else nodes
    spans, trips, shown = _log(experiment, number, seconds, lanes)
    line = TimelineChart.of(spans, trips, nodes=lanes, seconds=shown)
    extent = (
        count(experiment.nodes, "node")
        if lanes == experiment.nodes
        else f"the first {lanes} of {experiment.nodes} nodes"
    )
    figure = timeline_figure(line, f"{experiment.name}, seed {number}: {extent}, the first {simulated(shown)}")
    save(figure, output)
    shares = line.shares()
    if as_json:
        return print_json(
            {"file": str(output), "nodes": lanes, "seconds": shown, "messages": len(line.trips), "shares": shares}
        )
    said = ", ".join(f"{kind} {100 * share:.1f} %" for kind, share in shares.items())
    show(
        f"wrote {output}: {extent}, the first {simulated(shown)}, {count(len(line.trips), 'message')}; of their time: {said}"
    )


def _experiment(source: Path, seed: int | None) -> tuple[Experiment, int]:
    """The experiment of a file, a run or a seed's directory, and which seed."""
    from epidemic.experiment import load

    if not source.exists():
        raise BadInput(f"{source} does not exist; give an experiment file or the directory of a run")
    file = source
    if source.is_dir():
        own = source.resolve()
        if own.name.startswith("seed-") and (own / "run.json").is_file():
            number = int(own.name.removeprefix("seed-"))
            if seed is not None and seed != number:
                raise BadInput(
                    f"--seed {seed}: {source} is the directory of seed {number}; leave it out, or give {own.parent}"
                )
            seed, source = number, own.parent
        file = source / "experiment.toml"
        if not file.is_file():
            runs = sorted(path.parent for path in source.glob("*/experiment.toml"))
            hint = f"it holds several; name one, for example {runs[0]}" if runs else "it has no experiment.toml"
            raise BadInput(f"{source} is not the directory of a run: {hint}")
    experiment = load(file)
    if seed is not None and seed not in experiment.seeds:
        known = ", ".join(map(str, experiment.seeds))
        raise BadInput(f"--seed {seed} is not a seed of this experiment; its seeds are {known}")
    return experiment, experiment.seeds[0] if seed is None else seed


def _log(experiment: Experiment, seed: int, seconds: float | None, lanes: int) -> tuple[list[Span], list[Trip], float]:
    """What happens, and until when it is shown: so long as was asked for, or until enough has happened."""
    from epidemic.algorithms.asynchronous import SECOND
    from epidemic.deploy.relay import message_bytes
    from epidemic.record import HEADER_BYTES
    from epidemic.report.timeline import TRAININGS, enough
    from epidemic.simulator.dry_run import dry_log, dry_run

    size = message_bytes(experiment) - HEADER_BYTES
    if seconds is not None:
        return *dry_log(experiment, seed, size, BEYOND * seconds), seconds
    look = FIRST_LOOK
    while True:
        work = dry_run(experiment, seed, size, seconds=look)
        over = work.now < 0.999 * look * SECOND
        if over or work.total >= 2 * TRAININGS * experiment.nodes:
            break
        look *= WIDER
    spans, trips = dry_log(experiment, seed, size, look)
    return spans, trips, enough(spans, lanes) or work.now / SECOND
