"""`epidemic cluster next`, and more rounds: what a deployment does after its first run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epidemic.cli.options import Settings
from epidemic.core.errors import BadInput
from epidemic.core.files import own_directory

if TYPE_CHECKING:
    from epidemic.experiment import Experiment


def register(cluster_app: typer.Typer) -> None:
    """Add this command to those of a cluster."""
    cluster_app.command("next")(cluster_next_command)


def with_more_rounds(directory: Path, settings: list[str]) -> Experiment:
    """The experiment of a cluster that goes on; of its settings, only the rounds may become more."""
    from epidemic.core.config import parse_setting
    from epidemic.experiment import load

    for setting in settings:
        if parse_setting(setting)[0] != "rounds":
            raise BadInput(
                f"--set {setting}: --resume continues the existing experiment; only more rounds can be set, and 'epidemic cluster next'"
                " makes another run with the same keys"
            )
    if not (directory / "experiment.toml").is_file():
        raise BadInput(f"{directory} is not the directory of a cluster: it has no experiment.toml")
    return load(directory / "experiment.toml", settings)


def cluster_next_command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory of a cluster, or a node's folder.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory to make.", show_default=False)],
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A .safetensors file that all nodes start from.", show_default="drawn from the seed"
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    r"""Make the next run of a deployment with the keys, addresses and revocations of the last one, which stays as it is.

    On several machines each operator does it for the node's own folder, with the same --set and the same weights: no key leaves its machine,
    and nodes compare when they meet. 'epidemic export --mean' writes weights to start from.

    [bold]Examples[/bold]

      epidemic cluster next hospital --weights mean.safetensors \
          --set rounds=60 --out second

      epidemic cluster next hospital/node-0 --weights mean.safetensors \
          --set rounds=60 --out second-node-0
    """
    from epidemic.deploy.next_run import make_next

    made = make_next(directory, own_directory(out), settings or [], weights, say=typer.echo)
    nodes = f"{len(made.folders)} nodes" if len(made.folders) > 1 else f"node {next(iter(made.folders))}"
    drawn = f"starting from {weights} (SHA-256 {made.start.weights[:16]})" if weights else "starting from new weights"
    typer.echo(f"made {out}: run {made.start.run} of {nodes}, {drawn}")
    if made.local:
        typer.echo(f"start all nodes on this machine with: epidemic cluster up --resume {out}")
    elif out in made.folders.values():
        typer.echo(f"start it with: epidemic node {out}")
    else:
        typer.echo(
            f"each operator makes the same with: epidemic cluster next node-I --out {out.name}-node-I, with the same --set and --weights"
        )
