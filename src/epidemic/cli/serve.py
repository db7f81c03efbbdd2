"""`epidemic serve`: a live page of runs, sweeps, comparisons and clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epidemic.cli.nodes import Insecure


def register(app: typer.Typer) -> None:
    """Add `epidemic serve` to the application."""
    app.command("serve")(serve_command)


def serve_command(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Directories of runs, comparisons, sweeps, clusters.", show_default=False
        ),
    ],
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Where to listen; 0 for any.", show_default="8321, or the next that is free"),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on; others than this machine's need a token.")
    ] = "127.0.0.1",
    token: Annotated[bool, typer.Option("--token", help="Ask for a token on this machine, too.")] = False,
    insecure: Insecure = False,
) -> None:
    """Show directories live in the browser: runs that start, continue, fail or finish, and clusters with their nodes.

    The page is read-only. It is visible on this machine alone, unless --host says otherwise: then to visitors with the printed token. Ctrl-C
    ends it, with exit code 0. --insecure is for clusters that run so.

    [bold]Examples[/bold]

      epidemic serve runs

      epidemic serve runs/grid runs/eight --port 9000
    """
    from epidemic.data.images import need

    for module in ("starlette", "uvicorn"):
        need(module, "Live pages", "web")
    from epidemic.web.server import serve

    serve(directories, host, port, token=token, insecure=insecure, say=typer.echo)
