"""Options that several commands share, defined once with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epidemic.core.errors import BadInput

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a value of the file, e.g. --set topology.s=4.", show_default=False
    ),
]
Seeds = Annotated[int | None, typer.Option(metavar="N", help="Seeds 1 to N.", show_default="the file's")]
RankCount = Annotated[
    int | None, typer.Option("--ranks", metavar="N", help="Share the nodes among N processes.", show_default=False)
]
RankTimeout = Annotated[
    float | None,
    typer.Option("--rank-timeout", metavar="SECONDS", help="How long a rank waits for the others.", show_default="600"),
]
NoCode = Annotated[
    bool,
    typer.Option("--no-code", help="Refuse a file that names Python code of its author's, which would be executed."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


def check_new_file(path: Path, overwrite: bool) -> None:
    """Refuse to write a file where there is one, unless it may be overwritten, or where none can be."""
    if path.is_dir():
        raise BadInput(f"{path} is a directory; choose another name")
    if path.exists() and not (overwrite and path.is_file()):
        raise BadInput(f"{path} exists already; choose another name, or add --overwrite")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{path}: the directory {path.absolute().parent} does not exist; create it first")
