"""`epidemic data`: what data there is, fetching it, checking it, how it falls on the nodes, and what is kept decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epidemic.cli.completion import downloads, naming
from epidemic.cli.options import Json, NoCode
from epidemic.core.errors import BadInput, RunFailed, plain, suggestion
from epidemic.core.formatting import count
from epidemic.core.progress import Bar

data_app = typer.Typer(
    help="Data: list, fetch, check, show how it falls on the nodes, and what is kept decoded.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add the commands of `epidemic data` to the application."""
    app.add_typer(data_app, name="data")


@data_app.command("list")
def list_command(as_json: Json = False) -> None:
    """List the kinds of data, and whether they are here."""
    from epidemic.cli.show import plain_table, print_json, show
    from epidemic.data import SOURCES
    from epidemic.data.base import data_home
    from epidemic.data.fetch import DOWNLOADS
    from epidemic.data.idx import DEBIAN

    kinds = []
    for kind, source in SOURCES.items():
        if source.built_in:
            here = "built in"
        elif (data_home() / kind).is_dir() or (kind == "fashion-mnist" and DEBIAN.is_dir()):
            here = "yes"
        else:
            here = "fetch" if kind in DOWNLOADS else "data.path" if kind != "python" else "yours"
        kinds.append({"kind": kind, "here": here, "about": source.about})
    if as_json:
        return print_json({"directory": str(data_home()), "kinds": kinds})
    table = plain_table("Kinds of data (data.kind)", "kind", "here?", "what it is")
    table.columns[1].justify = table.columns[2].justify = "left"
    table.columns[2].no_wrap = False
    for one in kinds:
        table.add_row(*one.values())
    return show(
        table,
        f"[dim]fetch: 'epidemic data fetch KIND' downloads it to {data_home()}; data.path: you say where it is.[/dim]",
    )


@data_app.command("fetch", cls=naming(downloads))
def fetch_command(
    name: Annotated[
        str,
        typer.Argument(help="A data set that can be fetched: {kinds}.", show_default=False, autocompletion=downloads),
    ],
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to put it.", show_default="the user's data directory")
    ] = None,
) -> None:
    """Download a data set and check it; an interrupted download resumes."""
    from epidemic.core.formatting import size
    from epidemic.core.progress import Bars
    from epidemic.data.base import data_home
    from epidemic.data.fetch import downloads, fetch

    wanted = downloads(name)
    directory = data_home() / name if to is None else to
    with Bars() as bars:
        for download in wanted:
            bar = bars.add(download.name, None)

            def tell(_: str, done: int, total: int | None, bar: Bar = bar) -> None:
                count = size(done) if total is None else f"{size(done)} of {size(total)}"
                bars.update(bar, soon=True, done=done, total=total, count=count)

            new = fetch(download, directory, tell)
            bars.update(bar, state="fetched" if new else "is here")
            bars.say(f"{download.name} {bar.state}")
    typer.echo(f"{name} is in {directory}")


@data_app.command("check")
def check_command(
    name: Annotated[str, typer.Argument(help="A kind of data.", show_default=False)],
    path: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where it is.", show_default="the usual places")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of the data, target=price for instance.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read a data set as a run would, and say what it holds.

    [bold]Example[/bold]

      epidemic data check table --path patients.csv --set target=outcome
    """
    from rich.text import Text

    from epidemic.cli.show import print_json, show
    from epidemic.core.config import build_kind, parse_setting
    from epidemic.data import SOURCES, Table
    from epidemic.experiment.files import toml_value

    if name not in SOURCES:
        raise BadInput(f"data kind {name!r} is not known{suggestion(name, SOURCES)}")
    given = dict(map(parse_setting, settings or []))
    table = {"kind": name, **({} if path is None else {"path": str(path)})}
    source = build_kind(
        {**table, **{key.removeprefix("data."): value for key, value in given.items()}}, SOURCES, "data"
    )
    data = source.load()
    groups = None if data.train.groups is None else len(set(data.train.groups.tolist()))
    scale = source.measured() if isinstance(source, Table) and source.normalise and not source.scale else None
    if as_json:
        return print_json(
            {
                "kind": name,
                "train": len(data.train),
                "test": len(data.test),
                "shape": data.input_shape,
                "classes": data.classes,
                "groups": groups,
                "scale": scale,
                "note": data.note,
            }
        )
    writers = "" if groups is None else f", {groups:,} groups"
    kinds = count(len(data.classes), "class") if data.classes else "quantities to predict"
    typer.echo(
        f"{name}: {len(data.train):,} training and {len(data.test):,} test samples of shape {data.input_shape}, {kinds}{writers}"
    )
    if data.classes and not all(one.isdecimal() for one in data.classes):
        show(
            Text(
                f"classes: {', '.join(plain(one, 40) for one in data.classes[:100])}{', ...' * (len(data.classes) > 100)}"
            )
        )
    if scale is not None:
        typer.echo(f"scale = {toml_value(scale)}")
    if data.note:
        show(Text(f"note: {plain(data.note, 500)}"))
    return None


@data_app.command("cache")
def cache_command(
    remove: Annotated[bool, typer.Option("--clear", help="Remove all entries.")] = False,
) -> None:
    """List the data that is kept decoded, or remove it.

    Pictures are decoded once and kept in the user's cache directory, so that later runs start at once and processes
    share them. An entry is checked whenever it is used, and made anew when its files change. The variable
    EPIDEMIC_CACHE names another directory, or is [bold]off[/bold].

    [bold]Examples[/bold]

      epidemic data cache

      epidemic data cache --clear
    """
    from rich.text import Text

    from epidemic.cli.show import plain_table, show, size
    from epidemic.data.cache import cache_home, clear, entries

    home = cache_home()
    if home is None:
        return typer.echo("the cache is off (EPIDEMIC_CACHE = off, or there is no home directory)")
    if remove:
        try:
            return typer.echo(f"{home}: {size(clear(home))} freed")
        except OSError as problem:
            raise RunFailed(f"{problem.filename or home} cannot be removed: {problem.strerror}") from None
    found = entries(home)
    if not found:
        return typer.echo(f"{home} holds no decoded data")
    table = plain_table(f"Decoded data in {home}", "kind", "samples", "size", "made from")
    table.columns[3].justify, table.columns[3].no_wrap = "left", False
    for entry in found:
        table.add_row(entry.kind, f"{entry.samples:,}", size(entry.bytes), Text(entry.place))
    show(table, f"{size(sum(entry.bytes for entry in found))} in all; 'epidemic data cache --clear' removes it.")


@data_app.command("show")
def show_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An experiment file.", show_default=False)],
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture (.png, .pdf or .svg).", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value.", show_default=False)
    ] = None,
    no_code: NoCode = False,
    as_json: Json = False,
) -> None:
    r"""Show how the training samples and their classes fall on the nodes.

    [bold]Example[/bold]

      epidemic data show experiment.toml --plot classes.png \
          --set partition.alpha=1.0
    """
    import numpy as np
    from rich.text import Text

    from epidemic.cli.show import plain_table, print_json, show
    from epidemic.core.rng import Streams
    from epidemic.experiment import load
    from epidemic.report.curves import classes_figure
    from epidemic.report.style import check_picture, save

    if plot is not None:
        check_picture(plot)
    experiment = load(file, settings)
    data = experiment.load_data()
    if not data.classes:
        raise BadInput("this data has no classes to show")
    seed = experiment.seeds[0]
    parts = experiment.partition.split(data.train, experiment.nodes, Streams(seed)("partition"))
    counts = np.stack([np.bincount(data.train.targets[part], minlength=len(data.classes)) for part in parts])
    sizes = counts.sum(axis=1)
    held = (counts > 0).sum(axis=1)
    largest = counts.max(axis=1) / sizes
    title = f"{count(len(data.train), 'sample')} on {count(experiment.nodes, 'node')} ({type(experiment.partition).__name__}, seed {seed})"
    if as_json:
        if plot is not None:
            save(classes_figure(counts, data.classes, title), plot)
        found = {"nodes": experiment.nodes, "seed": seed, "classes": data.classes, "counts": counts.tolist()}
        return print_json({**found, "note": data.note, "picture": None if plot is None else str(plot)})
    table = plain_table(title, "per node", "min", "median", "mean", "max")
    for what, values, form in (
        ("samples", sizes, "{:.0f}"),
        ("classes", held, "{:.1f}"),
        ("share of the largest class", largest, "{:.2f}"),
    ):
        table.add_row(what, *(form.format(f(values)) for f in (np.min, np.median, np.mean, np.max)))
    show(table)
    if plot is not None:
        save(classes_figure(counts, data.classes, title), plot)
        typer.echo(f"picture: {plot}")
    elif experiment.nodes <= 200:
        shades = " .:-=+*#%@"
        first, last = (plain(data.classes[k], 30) for k in (0, -1))
        heading = plain_table("", "node", "samples", Text(f"classes {first} to {last}, share of the node's samples"))
        heading.columns[2].justify = "left"
        for i, row in enumerate(counts):
            heading.add_row(str(i), str(sizes[i]), "".join(shades[int(np.ceil(9 * c / sizes[i]))] for c in row))
        show(heading)
    if len(data.classes) <= 100 and not all(name.isdecimal() for name in data.classes):
        totals = counts.sum(axis=0).tolist()
        each = ", ".join(f"{plain(n, 30)} ({c:,})" for n, c in zip(data.classes, totals, strict=True))
        show(Text(f"classes in order, with their samples: {each}"))
    if data.note:
        show(Text(f"note: {plain(data.note, 500)}"))
    return None
