"""Runs in memory as the tables and figures that `report/` makes of directories."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from epidemic.callbacks import Callback
from epidemic.callbacks.progress import Display
from epidemic.core.errors import BadInput, require_choice
from epidemic.core.formatting import duration
from epidemic.core.progress import Bar, Bars, in_notebook
from epidemic.data.images import need
from epidemic.record import Record
from epidemic.report.curves import AXES, CLOCKED, MethodCurve, axis_figure, learning_figure, lines_of
from epidemic.report.nodes import nodes_figure
from epidemic.report.results import Result, Results, RunInfo, SeedResult
from epidemic.report.style import check_picture, save
from epidemic.simulator import SeedRun, SimulationResult
from epidemic.study.batch import BatchListener, Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def results_of(runs: Mapping[str, SimulationResult]) -> Results:
    """Runs by name, as if they had been read from directories."""
    found = []
    for name, run in runs.items():
        table = msgspec.json.decode(msgspec.json.encode(run.experiment.table()))
        paths = [seed.path for seed in run.seeds if seed.path is not None]
        found.append(Result(name, paths[0].parent if paths else Path(), table, [_seed(table, s) for s in run.seeds]))
    return Results(found, [])


def _seed(table: dict[str, Any], seed: SeedRun) -> SeedResult:
    info = RunInfo(table, seed.seed, strategy="", versions={}, machine={})
    return SeedResult(seed.path or Path(), info, seed.records, False, seed.summary, None, {})


def dataframe_of(runs: Mapping[str, SimulationResult], *, directories: bool = True) -> DataFrame:
    """The tidy table, with the columns of `epidemic report -o table.csv`; no directory where nothing was kept."""
    pandas = need("pandas", "Data frames", "tables")
    rows = results_of(runs).rows()
    kept = directories and all(seed.path is not None for run in runs.values() for seed in run.seeds)
    return pandas.DataFrame([row if kept else {**row, "directory": ""} for row in rows])


def figure_of(
    runs: Mapping[str, SimulationResult],
    title: str,
    metric: str | None,
    path: str | Path | None,
    target: float | None = None,
    x: str | None = None,
    colours: Mapping[str, str] | None = None,
    order: Sequence[str] | None = None,
) -> Figure:
    """Learning curves; with a `path`, saved there too.

    `metric` is accuracy, where there is one, loss, or a metric that was recorded; `x` one axis alone; `colours` of some runs by
    their names; `order` the names of those that come first.
    """
    records = [record for run in runs.values() for record in run.records]
    classes = all(record.accuracy is not None for record in records)
    what = ("accuracy" if classes else "loss") if metric is None else metric
    recorded = [name for name in records[0].metrics if all(name in record.metrics for record in records)]
    require_choice("metric", what, ["accuracy", "loss", *recorded])
    if what == "accuracy" and not classes:
        raise BadInput("metric = 'accuracy': the targets of this data are not classes; use 'loss'")
    if x is not None:
        require_choice("x", x, AXES)
    if x in CLOCKED and any(record.time is None for record in records):
        raise BadInput(
            f"x = {x!r} needs simulated time: add a [clock] table to the experiment, or use 'rounds' or 'bytes'"
        )
    if path is not None:
        check_picture(Path(path))
    kind = what if what in ("accuracy", "loss") else f"metric.{what}"
    shown, lines = target if kind == "accuracy" else None, _lines(runs)
    _colour(lines, colours or {})
    lines = _ordered(lines, order or ())
    figure = learning_figure(lines, title, shown, kind) if x is None else axis_figure(lines, title, x, shown, kind)
    if path is not None:
        save(figure, Path(path))
    return figure


def node_figure_of(
    by_seed: Mapping[int, list[Record]], title: str, metric: str | None, path: str | Path | None, x: str | None
) -> Figure:
    """A curve for each node and a panel for each seed; with a `path`, saved there too."""
    first = next(iter(by_seed.values()))[0].per_node
    if first is None or any(record.per_node is None for records in by_seed.values() for record in records):
        raise BadInput(
            "per_node = True: the records hold means over nodes only; run the experiment with eval.per_node = true"
        )
    names = [*(["accuracy"] if first.accuracy is not None else []), "loss", *first.metrics]
    what = names[0] if metric is None else metric
    require_choice("metric", what, names)
    timed = all(record.time is not None for records in by_seed.values() for record in records)
    against = "rounds" if x is None else x
    require_choice("x", against, ["rounds", "seconds"] if timed else ["rounds"])
    if path is not None:
        check_picture(Path(path))
    figure = nodes_figure(by_seed, title, what, against)
    if path is not None:
        save(figure, Path(path))
    return figure


def _colour(lines: Sequence[MethodCurve], colours: Mapping[str, str]) -> None:
    """Give lines the colours that the user has chosen."""
    from matplotlib.colors import is_color_like

    for name, colour in colours.items():
        require_choice("colours: the name", name, [line.name for line in lines])
        if not is_color_like(colour):
            raise BadInput(
                f"colours: {name!r}: {colour!r} is not a colour of Matplotlib; use for example '#0072b2' or 'red'"
            )
    for line in lines:
        if line.name in colours:
            line.style = {**line.style, "color": colours[line.name]}


def _ordered(lines: Sequence[MethodCurve], order: Sequence[str]) -> list[MethodCurve]:
    """The lines in the user's order, then the others."""
    names = [order] if isinstance(order, str) else list(order)
    for name in names:
        require_choice("order: the name", name, [line.name for line in lines])
    if len(set(names)) < len(names):
        raise BadInput(f"order = {names} names a line twice; leave one out")
    first = sorted((line for line in lines if line.name in names), key=lambda line: names.index(line.name))
    return [*first, *(line for line in lines if line.name not in names)]


def _lines(runs: Mapping[str, SimulationResult]) -> list[MethodCurve]:
    """Each run in the colour of its method or, where settings differ, of their values."""
    return lines_of([(name, run.experiment.table(), [s.records for s in run.seeds]) for name, run in runs.items()])


# -- Progress that is shown when somebody looks: of a run by its callback, of many by a listener ---------------------


@contextmanager
def run_shown(progress: bool | None) -> Iterator[list[Callback]]:
    """The callbacks that show the progress of runs, if wanted."""
    if not _wanted(progress):
        yield []
        return
    with Display(notebook=in_notebook()) as display:
        yield [display]


@contextmanager
def batch_shown(jobs: Sequence[Job], progress: bool | None) -> Iterator[BatchListener]:
    """The listener that shows the progress of a batch, if wanted."""
    if not _wanted(progress):
        yield BatchListener()
        return
    with BatchDisplay(jobs, notebook=in_notebook()) as display:
        yield display


def _wanted(progress: bool | None) -> bool:
    """Whether to show progress; None: in a notebook or on a terminal."""
    if progress is None:
        return in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
    if not isinstance(progress, bool):
        raise BadInput(f"progress = {progress!r} must be True, False, or None (a notebook or a terminal)")
    return progress


class BatchDisplay(BatchListener):
    """The progress of many runs: one bar for all and one for each that runs, or a line for each that ends."""

    def __init__(self, jobs: Sequence[Job], *, quiet: bool = False, notebook: bool = False) -> None:
        self._bars = Bars(quiet=quiet, notebook=notebook)
        self._done = {job.name: job.rounds if job.finished else 0 for job in jobs}
        self._rounds, self._count = sum(job.rounds for job in jobs), len(jobs)
        self._ended, self._failed = sum(job.finished for job in jobs), 0
        self._found: dict[str, str] = {}
        self._each: dict[str, Bar] = {}
        self._all = Bar("", None)
        self._began = time.monotonic()

    def __enter__(self) -> BatchDisplay:
        self._began = time.monotonic()
        self._all = self._bars.add("all runs", self._rounds)
        self._show_all()
        if self._ended:
            self._bars.say(f"{self._ended} of {self._count} runs are finished already")
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.update(self._all, rate=duration(time.monotonic() - self._began))
        self._bars.__exit__()

    def began(self, job: Job) -> None:
        """Add a bar for the job while it runs."""
        self._each[job.name] = self._bars.add(job.name, job.rounds, count=f"0/{job.rounds}")

    def advanced(self, job: Job, rounds_done: int, found: str) -> None:
        """Update the bars of the job and the batch."""
        self._done[job.name], self._found[job.name] = rounds_done, found
        count = f"{rounds_done}/{job.rounds}"
        self._bars.update(self._each[job.name], soon=True, done=rounds_done, count=count, state=found)
        self._show_all(soon=True)

    def ended(self, job: Job, problem: str | None) -> None:
        """Count the job as done."""
        self._ended += 1
        self._failed += problem is not None
        self._done[job.name] = job.rounds
        found = self._found.get(job.name, "")
        self._bars.remove(self._each.pop(job.name))
        self._show_all()
        self._bars.say(f"{self._state()}: {job.name}  {found if problem is None else 'failed: ' + problem}")
        if problem is not None and self._bars.moving:
            self._bars.note(f"{job.name} failed: {problem}", style="red")

    def _show_all(self, *, soon: bool = False) -> None:
        done = sum(self._done.values())
        self._bars.update(self._all, soon=soon, done=done, count=f"{done}/{self._rounds}", state=self._state())

    def _state(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._ended} of {self._count} runs{failed}"
