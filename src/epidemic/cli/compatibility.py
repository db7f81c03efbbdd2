"""`epidemic compatibility`: what goes with what, and why not."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epidemic.cli.options import Json
from epidemic.cli.show import plain_table, print_json, show
from epidemic.core.errors import BadInput

if TYPE_CHECKING:
    from epidemic.experiment.components import Component, Judgement

WIDTH = 80


def register(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command("compatibility")(compatibility_command)


def compatibility_command(
    one: Annotated[
        str | None,
        typer.Argument(metavar="[KIND]", help="A kind, for example choco.", show_default=False),
    ] = None,
    other: Annotated[
        str | None,
        typer.Argument(metavar="[KIND]", help="Another one.", show_default=False),
    ] = None,
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print all of it, as the documentation has it.")] = False,
) -> None:
    r"""Show what goes with what: topologies, algorithms, codecs, views, clocks, faults and the rest.

    Without a kind: which of them can be run by rounds, under the clock, on ranks, and deployed. With one: what it does not go with,
    and why. With two: whether they go together. Kinds of several things are told apart as in compression.none.

    [bold]Examples[/bold]

      epidemic compatibility

      epidemic compatibility choco

      epidemic compatibility choco el-local
    """
    from epidemic.experiment.components import components, find, pairs, verdict

    if markdown:
        if one is not None or as_json:
            raise BadInput("--markdown prints all of it; leave the kinds and --json out")
        typer.echo(page(), nl=False)
    elif one is None:
        if as_json:
            every = [_described(component) for component in components().values()]
            print_json({"kinds": every, "refused": [_told(a, b, found) for a, b, found in pairs() if not found.goes]})
        else:
            _hosts()
    elif other is None:
        found = [(b, verdict(find(one), b)) for b in components().values() if b != find(one)]
        if as_json:
            told = [_told(find(one), b, v) for b, v in found if v.goes is not None]
            print_json({"kind": _described(find(one)), "with": told})
        else:
            _all_of(find(one), found)
    else:
        a, b = find(one), find(other)
        if a == b:
            raise BadInput(f"{one!r} twice; give two different kinds")
        v = verdict(a, b)
        if as_json:
            print_json(_told(a, b, v))
        else:
            typer.echo(_sentence(a, b, v))


def _described(component: Component) -> dict[str, Any]:
    return {"name": component.name, "axis": component.axis, "kind": component.kind, "summary": component.summary}


def _told(a: Component, b: Component, verdict: Judgement) -> dict[str, Any]:
    return {"one": a.name, "other": b.name, "together": verdict.goes, "why": verdict.why or None}


def _sentence(a: Component, b: Component, verdict: Judgement) -> str:
    said = {True: "go together", False: "do not go together", None: "do not meet"}[verdict.goes]
    return f"{a.name} and {b.name} {said}" + (f": {verdict.why}" if verdict.why else "")


def _word(verdict: Judgement) -> str:
    return {True: "yes", False: "-", None: ""}[verdict.goes]


def _rows() -> list[tuple[Component, list[Judgement]]]:
    """Every kind with the judgement of each host."""
    from epidemic.experiment.components import HOSTS, components, verdict

    every = [component for component in components().values() if component.axis != "host"]
    return [(component, [verdict(host, component) for host in HOSTS.values()]) for component in every]


def _hosts() -> None:
    from epidemic.experiment.components import HOSTS

    table = plain_table("What each host can run", "kind", *HOSTS)
    for component, verdicts in _rows():
        table.add_row(component.name, *map(_word, verdicts))
    show(table)
    typer.echo("")
    typer.echo("Why not, and what does not go with a kind: epidemic compatibility KIND [KIND]")


def _all_of(one: Component, found: list[tuple[Component, Judgement]]) -> None:
    typer.echo(f"{one.name}: {one.summary}")
    refused = [(other, verdict) for other, verdict in found if verdict.goes is False]
    if not refused:
        typer.echo("It goes with everything else.")
        return
    typer.echo("It goes with everything but:")
    for other, verdict in refused:
        typer.echo("")
        typer.echo(f"  {other.name}")
        typer.echo(
            textwrap.fill(verdict.why, WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
        )


def _shortened(names: list[str]) -> list[str]:
    """Kinds as Markdown; all kinds of an axis as one."""
    from epidemic.experiment.components import components

    every = list(components())
    found: dict[str, None] = {}
    for name in names:
        axis = name.partition(".")[0] + "."
        whole = all(other in names for other in every if other.startswith(axis))
        found[f"all of {axis[:-1]}" if whole else f"`{name}`"] = None
    return list(found)


def page() -> str:
    """The text of the documentation page."""
    from epidemic.experiment.components import HOSTS, pairs

    lines = [
        "# What goes with what",
        "",
        "`epidemic compatibility A B` says whether two kinds go together, and why not; without arguments it prints the first table. An experiment that has what",
        "does not go together is refused before anything runs, in one line that says what to use instead. This page is made by",
        "`epidemic compatibility --markdown`.",
        "",
        "## What each host can run",
        "",
        "Rounds and the clock simulate all nodes in one process, ranks in several; deployed nodes are processes that talk over a network. An empty cell: not applicable.",
        "",
        f"| kind | {' | '.join(HOSTS)} | what it is |",
        f"|---|{':-:|' * len(HOSTS)}---|",
    ]
    for component, verdicts in _rows():
        lines.append(f"| `{component.name}` | {' | '.join(map(_word, verdicts))} | {component.summary} |")
    lines += ["", "## What does not go together", "", "| kind | does not go with |", "|---|---|"]
    against: dict[str, list[str]] = {}
    for a, b, found in pairs():
        if found.goes is False and a.axis != "host":
            against.setdefault(a.name, []).append(b.name)
            against.setdefault(b.name, []).append(a.name)
    lines += [f"| `{name}` | {', '.join(_shortened(others))} |" for name, others in against.items()]
    return "\n".join(lines) + "\n"
