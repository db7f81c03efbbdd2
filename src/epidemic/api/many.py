"""Several experiments with one call: methods side by side, and a grid of settings."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epidemic import simulator
from epidemic.api.runs import Run, overwriting
from epidemic.api.views import batch_shown, dataframe_of, figure_of, run_shown
from epidemic.callbacks import Callback, all_of
from epidemic.core.errors import BadInput, RunFailed, require_int
from epidemic.core.files import directory_name
from epidemic.core.formatting import count, html_table, interval, size
from epidemic.experiment import Experiment, first_seeds
from epidemic.simulator.results import Models, SeedRun
from epidemic.study import comparison as comparing
from epidemic.study.batch import Job, run_batch
from epidemic.study.sweep import experiment_jobs

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

MAX_JOBS = 256


@dataclass(frozen=True, eq=False, repr=False)
class _Many(Mapping[str, Run]):
    """Runs by name, for joint tables and figures."""

    runs: dict[str, Run]

    def __getitem__(self, name: str) -> Run:
        return self.runs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)


class Comparison(_Many):
    """Methods on the same data and seeds; `comparison["name"]` is the `Run` of one of them.

    Attributes:
        runs: The run of each method, by name.
        table: What is compared: best accuracy and loss, the lead over the baseline, rounds and bytes (under the clock also seconds and
            steps) until the target.

    Example:
        >>> found = ep.compare({"EL-Local": a, "ring": b})
        >>> found.table.rows[0].ahead.mean
        >>> found.plot(path="comparison.png")
    """

    table: comparing.ComparisonTable

    def __init__(self, runs: dict[str, Run], table: comparing.ComparisonTable) -> None:
        super().__init__(runs)
        object.__setattr__(self, "table", table)

    def dataframe(self) -> DataFrame:
        """The records of all methods as a pandas DataFrame: a row for each method, seed and evaluated round."""
        return dataframe_of(self.runs)

    def plot(
        self,
        *,
        metric: str | None = None,
        path: str | Path | None = None,
        x: str | None = None,
        colours: Mapping[str, str] | None = None,
        order: Sequence[str] | None = None,
    ) -> Figure:
        """Learning curves of all methods, with the target.

        Args:
            metric: See `Run.plot`.
            path: See `Run.plot`.
            x: See `Run.plot`.
            colours: The colours of some methods by their names, as Matplotlib takes them; the others keep theirs.
            order: The names of methods that come first, in that order, in the legend and below the others in the picture.
        """
        nodes = next(iter(self.runs.values())).experiment.nodes
        title = f"{count(len(self), 'method')}, {count(nodes, 'node')}"
        return figure_of(self.runs, title, metric, path, self.table.target, x, colours, order)

    def __repr__(self) -> str:
        best = max(self.table.rows, key=lambda row: row.best_accuracy.mean)
        return (
            f"Comparison({', '.join(self)}; best accuracy: {best.name} with {interval(best.best_accuracy, 100, 1)} %)"
        )

    def _repr_html_(self) -> str:
        return html_table(
            comparing.title_of(self.table), comparing.cells_of(self.table), comparing.heads_of(self.table)
        )


def compare(
    methods: Mapping[str, Experiment],
    out: str | Path | None = None,
    *,
    target: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool | None = None,
) -> Comparison:
    """Run several methods on the same data and seeds, one after the other, and compare them.

    Args:
        methods: An experiment for each, by the name that it has in tables and figures.
        out: A directory where everything is written down, each method in a directory of its own.
        target: The accuracy whose cost is compared, in [0, 1]; the best of the static sparse method, or of the first one.
        resume: Go on with what is in `out`: what is finished is read back.
        overwrite: Replace the comparison in `out`; see `simulate`.
        callbacks: Who is told how every run goes on.
        progress: See `simulate`.

    Returns:
        The runs by name, with a table, a figure and a data frame of all of them.

    Example:
        >>> base = dict(nodes=16, rounds=20, seeds=[1, 2])
        >>> ep.compare({
        ...     "EL-Local": ep.Experiment(topology=ep.ELLocal(s=4), **base),
        ...     "ring": ep.Experiment(topology=ep.Ring(), **base),
        ... })
    """
    if not isinstance(methods, Mapping) or not methods:
        raise BadInput(
            "compare needs experiments by name, for example {'EL': Experiment(...), 'ring': Experiment(...)}"
        )
    named: dict[str, Experiment] = {}
    for name, experiment in methods.items():
        if not isinstance(name, str) or not isinstance(experiment, Experiment):
            raise BadInput(f"compare: {name!r}: {experiment!r} must be an Experiment by its name")
        if directory_name(name) in map(directory_name, named):
            raise BadInput(
                f"compare: the name {name!r} is too much like another one; give each method a name of its own"
            )
        named[name] = msgspec.structs.replace(experiment, name=name)
    comparing.check_methods(named)
    if target is not None:
        comparing.check_target(target)
    places = [] if out is None else comparing.places_of(named, Path(out))
    with overwriting(places, overwrite, resume), run_shown(progress) as displays:
        told = [*displays, *all_of(callbacks).callbacks]
        found = comparing.run_methods(named, None if out is None else Path(out), told, resume=resume)
    table = comparing.compare(named, comparing.records_of(found), target)
    return Comparison({name: Run.of(run) for name, run in found.items()}, table)


class Sweep(_Many):
    """One experiment at every point of a grid; `sweep["s=4"]` is the `Run` of one point.

    Attributes:
        runs: The run of each point, by what differs.
        failed: Why some points have no run, by their name.

    Example:
        >>> found = ep.sweep(experiment, {"topology.s": [2, 4, 8]})
        >>> {name: run.summary.accuracy.mean for name, run in found.items()}
        >>> found.dataframe().groupby("topology.s")["accuracy_mean"].max()
    """

    failed: dict[str, str]

    def __init__(self, runs: dict[str, Run], failed: dict[str, str], *, kept: bool) -> None:
        super().__init__(runs)
        object.__setattr__(self, "failed", failed)
        object.__setattr__(self, "_kept", kept)

    def dataframe(self) -> DataFrame:
        """The records of all points as a pandas DataFrame, with a column for each setting that differs."""
        kept: bool = self._kept  # type: ignore[attr-defined]
        return dataframe_of(self.runs, directories=kept)

    def plot(
        self,
        *,
        metric: str | None = None,
        path: str | Path | None = None,
        x: str | None = None,
        colours: Mapping[str, str] | None = None,
        order: Sequence[str] | None = None,
    ) -> Figure:
        """Learning curves of all points; see `Run.plot` and `Comparison.plot`."""
        return figure_of(self.runs, count(len(self), "point"), metric, path, x=x, colours=colours, order=order)

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"Sweep({count(len(self), 'point')}{failed}: {', '.join([*self][:6])}{', ...' if len(self) > 6 else ''})"

    def _repr_html_(self) -> str:
        heads = ["point", "seeds", "accuracy (%)", "average model (%)", "loss", "sent per node"]
        timed = any(run.summary.seconds is not None for run in self.values())
        heads += ["simulated seconds"] if timed else []
        rows = []
        for name, run in self.items():
            s = run.summary
            shares = ["-" if v is None else interval(v, 100) for v in (s.accuracy, s.mean_model_accuracy)]
            rows.append([name, len(run.seeds), *shares, interval(s.loss, digits=4), size(s.bytes.mean)])
            rows[-1] += [interval(s.seconds, digits=1)] if timed else []
        rows += [[name, "failed", reason, *[""] * (len(heads) - 3)] for name, reason in self.failed.items()]
        return html_table("Mean over seeds and 95 % interval, on the full test set", rows, heads)


def sweep(
    experiment: Experiment,
    grid: Mapping[str, Iterable[object]],
    out: str | Path | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    jobs: int = 1,
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool | None = None,
) -> Sweep:
    """Run an experiment at every combination of some settings.

    Args:
        experiment: What the points have in common.
        grid: The values of each setting, by its name: `{"algorithm.lr": [0.01, 0.1], "nodes": [8, 16]}`. A whole part takes
            objects: `{"topology": [ep.Ring(), ep.ELLocal(4)]}`.
        out: A directory where everything is written down, each point in a directory of its own. Doing the same again goes on:
            what is finished is read back.
        seeds: Take the place of the experiment's; a number N means 1 to N.
        jobs: So many runs side by side, each in a process of its own. A script must then guard its start with
            `if __name__ == "__main__"`, and import objects of your own from a module.
        callbacks: Who is told how every run goes on; only with one job.
        progress: See `simulate`.

    Returns:
        The runs by what differs, with a figure and a data frame of all of them. A point that fails does not stop the others:
        `failed` says why.

    Raises:
        RunFailed: All points failed.

    Example:
        >>> ep.sweep(ep.Experiment(nodes=16, rounds=20), {"topology.s": [2, 4, 8]}, seeds=3)
    """
    if not isinstance(experiment, Experiment):
        raise BadInput(f"sweep: {experiment!r} must be an Experiment")
    if not isinstance(grid, Mapping):
        raise BadInput(f"grid = {grid!r} must have the values of each setting, for example {{'topology.s': [4, 7]}}")
    require_int("jobs", jobs, 1, MAX_JOBS)
    if isinstance(seeds, int):
        seeds = first_seeds(seeds)
    if seeds is not None and not isinstance(seeds, Iterable):
        raise BadInput(f"seeds = {seeds!r} must be a whole number, or a list of whole numbers")
    if seeds is not None:
        experiment = msgspec.structs.replace(experiment, seeds=tuple(seeds))
    place: _Place | None = None
    if out is None:
        place = _Place()
        out = place.path
    try:
        planned = experiment_jobs(experiment, grid, Path(out))
        with batch_shown(planned, progress) as watcher:
            outcome = run_batch(planned, jobs, watcher, callbacks=callbacks)
        if len(outcome.failed) == len(planned):
            first, reason = next(iter(outcome.failed.items()))
            raise RunFailed(f"all {len(planned)} runs of the sweep failed; the first, {first}: {reason}")
        return Sweep(_read(planned, outcome.failed, place), outcome.failed, kept=place is None)
    except BaseException:
        if place is not None:
            place.remove()
        raise


class _Place:
    """A temporary directory that exists as long as this object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="epidemic-sweep-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _read(jobs: Sequence[Job], failed: Mapping[str, str], place: _Place | None) -> dict[str, Run]:
    """Read the finished runs; each seed keeps the directory alive that its models are read from."""
    found = {}
    for job in jobs:
        if job.name not in failed:
            run = simulator.simulate(job.experiment, job.path, resume=True)
            found[job.name] = Run(run.experiment, [_holding(place, seed) for seed in run.seeds])
    return found


def _holding(place: _Place | None, seed: SeedRun) -> SeedRun:
    return replace(seed, read_models=partial(_read_held, place, seed.read_models))


def _read_held(_: _Place | None, read: Callable[[], Models]) -> Models:
    return read()
