"""`epidemic node` and `epidemic relay`: one process of a deployment."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from epidemic.cli.options import NoCode, Quiet, Settings
from epidemic.core.errors import BadInput, plain
from epidemic.core.formatting import count
from epidemic.core.progress import Waiting
from epidemic.runtime.interrupt import signals_to

Insecure = Annotated[bool, typer.Option("--insecure", help="Without encryption; loopback addresses only.")]

LONGEST_LINE = 2000
"""Most characters of a line from a node, which may quote other nodes."""


def register(app: typer.Typer) -> None:
    """Add the commands that run a node or a relay to the application."""
    app.command("node")(node_command)
    app.command("relay")(relay_command)


def node_command(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="The folders of the nodes.", show_default=False)
    ],
    settings: Settings = None,
    no_code: NoCode = False,
    insecure: Insecure = False,
    quiet: Quiet = False,
) -> None:
    """Run a node, or several in one process: find the others, learn with them, write the results into each DIR/run.

    Ctrl-C (or SIGTERM) saves; the same command resumes. A node that was away asks its peers for the current round and joins again.
    --set takes what may differ between nodes: data.path, runtime, checkpoint, network.patience, name; and data and partition where
    network.data = "own". --set rounds=N lets a run continue to more rounds, finished or not: use the same number on all nodes. Of several nodes, the first
    listens and carries the messages of all.

    [bold]Examples[/bold]

      epidemic node node-3

      epidemic node node-3 --set data.path=/srv/private/scans.npz

      epidemic node node-0 node-1 node-2
    """
    if len({path.resolve() for path in directories}) < len(directories):
        raise BadInput("a folder is named twice; every node runs once")
    with stop_by_signal():
        with Waiting(str(directories[0]), doing="loading PyTorch", at_once=True, quiet=quiet):
            from epidemic.deploy.node import run_node
            from epidemic.deploy.runtime import compute_in_stretches

        compute_in_stretches()
        summaries = run_node(directories, settings, insecure=insecure, say=speaker(quiet))
    if quiet:
        return
    from epidemic.cli.statuses import delivery_line
    from epidemic.core.formatting import score, size

    for directory, summary in zip(directories, summaries, strict=True):
        if summary is not None:
            found = score(summary.final_accuracy, summary.final_loss)
            heard = delivery_line([summary.delivery])
            typer.echo(
                f"done: {count(summary.rounds, 'round')}, {found} on the full test set, {size(summary.bytes.total.mean)} sent"
                f"{', ' * bool(heard)}{heard}; {directory / 'run'}"
            )


def relay_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the relay.", show_default=False)],
    no_code: NoCode = False,
    insecure: Insecure = False,
    quiet: Quiet = False,
) -> None:
    """Pass messages on between nodes that cannot reach each other. It sees the models that go through it; it cannot change them.

    [bold]Example[/bold]

      epidemic relay relay
    """
    say = speaker(quiet)
    with stop_by_signal():
        try:
            from epidemic.deploy.relay import run_relay

            run_relay(directory, insecure=insecure, say=say)
        except KeyboardInterrupt:
            say("ended")


def speaker(quiet: bool) -> Any:
    """A function that prints a node's lines on standard error, with the time."""

    def say(text: str) -> None:
        if not quiet:
            with suppress(OSError, ValueError):  # nobody reads it any more
                print(f"{time.strftime('%H:%M:%S')}  {plain(text, LONGEST_LINE)}", file=sys.stderr, flush=True)

    return say


@contextmanager
def stop_by_signal() -> Iterator[None]:
    """SIGTERM like Ctrl-C; and Ctrl-C also where the shell has switched it off (in the background)."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with signals_to(stop):
        yield
