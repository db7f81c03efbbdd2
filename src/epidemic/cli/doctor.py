"""`epidemic doctor`: what would keep deployed nodes from taking part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epidemic.cli.nodes import Insecure
from epidemic.cli.options import Json, NoCode, Quiet, Settings
from epidemic.core.errors import RunFailed, require_real
from epidemic.core.progress import Waiting

STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("doctor")(doctor_command)


def doctor_command(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of nodes or of an observer.", show_default=False)
    ],
    settings: Settings = None,
    fix: Annotated[bool, typer.Option("--fix", help="Mend permissions of keys and folders.")] = False,
    patience: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for answers.")] = 5.0,
    no_code: NoCode = False,
    insecure: Insecure = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check a node's folder before it is started: keys, addresses, connections, clock, disk, data, model, memory.

    Nothing is sent but the opening of connections, and nothing is changed but permissions with --fix. The exit code is 1 if something would
    keep a node from taking part.

    [bold]Examples[/bold]

      epidemic doctor node-3

      epidemic doctor node-3 --fix --set data.path=/srv/private/scans.npz
    """
    require_real("--patience", patience, 0.1, 600)
    found = {}
    with Waiting(str(directories[0]), doing="checking", at_once=True, quiet=quiet or as_json):
        from epidemic.deploy.doctor import examine

        for directory in directories:
            checks = examine(directory, settings, fix=fix, insecure=insecure, patience=patience)
            found[directory] = list(checks)
    from epidemic.cli.show import plain_table, print_json, show

    problems = sum(one.state == "problem" for findings in found.values() for one in findings)
    warnings = sum(one.state == "warning" for findings in found.values() for one in findings)
    if as_json:
        print_json([{"directory": str(directory), "findings": findings} for directory, findings in found.items()])
    else:
        from rich.text import Text

        for directory, findings in found.items():
            table = plain_table(str(directory), "check", "state", "found", "what mends it")
            for column in table.columns[1:]:
                column.justify = "left"
            for column in table.columns[2:]:
                column.no_wrap = False
            for one in findings:
                table.add_row(Text(one.check), Text(one.state, STYLES[one.state]), Text(one.found), Text(one.remedy))
            show(table)
    if problems:
        raise RunFailed(_counted(problems, "problem") + (f" and {_counted(warnings, 'warning')}" if warnings else ""))
    if not as_json:
        typer.echo("no problem found" + (f", {_counted(warnings, 'warning')}" if warnings else ""))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
