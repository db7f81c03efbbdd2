"""`epidemic report` and `epidemic watch`: looking at results, finished or not."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epidemic.cli.options import Json
from epidemic.core.errors import BadInput, require_real

if TYPE_CHECKING:
    from epidemic.report.contents import ReportContents
    from epidemic.report.results import Result

SUFFIXES = (".html", ".csv", ".parquet")
PATIENCE = 30.0
"""Seconds that a run which has just been started may take to show up."""
QUIET_LOOKS = 5
"""So often everything must look finished before watching ends: the next run of a sweep needs a moment to begin."""

Directories = Annotated[
    list[Path],
    typer.Argument(metavar="DIR...", help="Directories of runs, comparisons, sweeps.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the commands that read results to the application."""
    app.command("report")(report_command)
    app.command("watch")(watch_command)


def report_command(
    directories: Directories,
    outputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="A page (.html) or the tidy table (.csv, .parquet); give it several times.",
            show_default="DIR/report.html",
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            metavar="ACC",
            help="Accuracy whose cost is compared.",
            show_default="best of a regular topology, else of the first run",
        ),
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="The heading of the page.")] = "Epidemic Learning: results",
    as_json: Json = False,
) -> None:
    r"""Make one self-contained page, or one tidy table, of all runs in some directories.

    Unfinished runs are shown as far as they are. The page loads nothing from anywhere and can be mailed or printed.

    [bold]Examples[/bold]

      epidemic report runs/demo

      epidemic report runs/first runs/second \
          -o both.html -o both.csv -o both.parquet
    """
    from epidemic.cli.show import print_json
    from epidemic.core.files import write_bytes, write_whole
    from epidemic.report.contents import ReportContents
    from epidemic.report.page import page
    from epidemic.report.results import read_results, to_csv, write_parquet

    if target is not None:
        require_real("--target", target, 0, 1)
    for path in outputs or []:
        if path.suffix.lower() not in SUFFIXES:
            raise BadInput(f"{path} must end in {', '.join(SUFFIXES)}")
        if path.is_dir() or not path.absolute().parent.is_dir():
            what = "is a directory" if path.is_dir() else f"the directory {path.absolute().parent} does not exist"
            raise BadInput(f"{path}: {what}; choose another name")
    results = read_results(*directories)
    files = outputs or [directories[0] / "report.html"]
    for path in files:
        if path.suffix.lower() == ".html":
            write_bytes(path, page(results, title, target).encode())
        elif path.suffix.lower() == ".csv":
            write_bytes(path, to_csv(results.rows()).encode())
        else:
            write_whole(path, lambda part: write_parquet(results.rows(), part))
    shown = ReportContents(results, target)
    if as_json:
        return print_json({"files": [str(path) for path in files], "notes": shown.notes, "runs": _rows(shown)})
    _print_results(shown, files)


def watch_command(
    directories: Directories,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="How often to look.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show the state now and end.")] = False,
) -> None:
    """Show the curves of runs live in the terminal, while they run in other processes.

    Ends when everything is finished, failed or stopped, and nothing new has begun for five looks, or on Ctrl-C; the runs do not notice.

    [bold]Example[/bold]

      epidemic run experiment.toml --out runs/first &

      epidemic watch runs/first
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from epidemic.cli.plot import screen
    from epidemic.cli.show import show
    from epidemic.report.results import NothingYet, read_results

    require_real("--every", every, 0.1, 3600)
    console = Console()
    if once or not console.is_terminal:
        show(*screen(read_results(*directories), console.width, console.height).renderables)
        return
    quiet, began = 0, time.monotonic()
    with Live(console=console, screen=False, auto_refresh=False) as live:
        while quiet < QUIET_LOOKS:
            try:
                results = read_results(*directories)
            except BadInput as problem:
                if not isinstance(problem, NothingYet) and time.monotonic() - began > PATIENCE:
                    raise
                live.update(Text(f"waiting: {problem}"), refresh=True)
            else:
                live.update(screen(results, console.width, console.height), refresh=True)
                begun = sum(1 for d in directories for _ in d.rglob("seed-*/run.json"))
                done = all(map(_complete, results.runs)) and begun <= sum(len(run.seeds) for run in results.runs)
                quiet = quiet + 1 if done else 0
            time.sleep(every)


def _complete(run: Any) -> bool:
    """Whether all seeds that the experiment asks for have ended, or one has failed, was stopped or killed: none will follow."""
    ended = {seed.seed for seed in run.seeds if seed.summary is not None}
    broken = any(seed.state.over for seed in run.seeds if seed.summary is None)
    return broken or set(run.experiment.get("seeds", [])) <= ended


def _rows(shown: ReportContents) -> list[dict[str, Any]]:
    from epidemic.report.contents import has_accuracy
    from epidemic.report.statistics import best

    rows = []
    for run, settled in zip(shown.all, shown.runs, strict=True):
        accuracy, loss = best(settled.by_seed)
        rows.append(
            {
                "run": run.label,
                "directory": str(run.path),
                "seeds": len(run.seeds),
                "finished": run.finished,
                "best_accuracy": accuracy if has_accuracy(settled) else None,
                "best_loss": loss,
                "final_metrics": {metric.name: shown.final(settled, metric) for metric in shown.metrics},
                **(_times(shown, settled) if shown.clock else {}),
            }
        )
    return rows


def _times(shown: ReportContents, run: Result) -> dict[str, Any]:
    """Simulated seconds by the end, and until the target: of each seed's own, so that there is an interval."""
    from epidemic.report.statistics import cost, over_seeds, seconds_in_all

    goal = None if shown.target is None else shown.target.accuracy
    return {
        "seconds": seconds_in_all(run.by_seed),
        "seconds_to_target": None if goal is None else over_seeds([cost(r, goal).seconds for r in run.by_seed]),
    }


def _print_results(shown: ReportContents, files: list[Path]) -> None:
    from rich.markup import escape

    from epidemic.cli.show import interval, plain_table, show
    from epidemic.report.sections import rounds_of

    ends = [rounds_of(run) for run in shown.runs]
    planned = {str(run.experiment["rounds"]) for run in shown.runs}
    heads = ["run", "seeds", *(["rounds"] if len({*ends} | planned) > 1 else []), "accuracy (%)", "loss"]
    heads += ["seconds", "to the target"] if shown.clock else []
    table = plain_table("Best over rounds", *heads, *(f"final {metric.name}" for metric in shown.metrics))
    for row, end in zip(_rows(shown), ends, strict=True):
        name = row["run"] if row["finished"] else f"{row['run']} (unfinished)"
        cells = [str(row["seeds"]), *([end] if "rounds" in heads else []), interval(row["best_accuracy"], 100)]
        loss, *own = [interval(found, digits=4) for found in (row["best_loss"], *row["final_metrics"].values())]
        times = [interval(row[key], digits=1) for key in ("seconds", "seconds_to_target")] if shown.clock else []
        table.add_row(escape(name), *cells, loss, *times, *own)
    said = ""
    if shown.clock:
        said = "seconds: simulated, by the end of the run"
        said += f"; to the target of {100 * shown.target.accuracy:.2f} %" if shown.target is not None else ""
    for note in shown.notes:
        print(f"note: {note}", file=sys.stderr)
    show(table, *([f"[dim]{said}[/dim]"] if said else []), f"wrote {escape(', '.join(map(str, files)))}")
