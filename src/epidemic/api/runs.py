"""One experiment: simulated with its progress shown, and what came out of it, to be looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epidemic import simulator
from epidemic.api.views import dataframe_of, figure_of, node_figure_of, run_shown
from epidemic.callbacks import Callback, all_of
from epidemic.core.errors import BadInput
from epidemic.core.formatting import count, html_table, interval, percent, simulated, size
from epidemic.data import Dataset
from epidemic.experiment import Experiment
from epidemic.report.statistics import Interval
from epidemic.runtime.replace import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def simulate(
    experiment: Experiment | str | Path | Mapping[str, object],
    out: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Callback | Sequence[Callback] = (),
    data: Dataset | None = None,
    progress: bool | None = None,
) -> Run:
    """Run all seeds of an experiment on this machine, all its nodes.

    Args:
        experiment: What to run: an `Experiment`, the path of its TOML file, or the tables of one as a dict.
        out: A directory where everything is written down as it happens, so that the run can go on after an interrupt and be
            read by `epidemic report`. Final models are then read from it when they are asked for: keep it as long as you need them.
            Without it nothing is kept but what this function returns.
        resume: Go on with what is in `out`: finished seeds are read back, an unfinished one goes on from its checkpoint. Both go on to
            more rounds, if the experiment has more than before.
        overwrite: Replace the run in `out`, if there is one. It stays if the new one cannot begin, and files that no run writes are never touched.
        callbacks: Who is told how it goes on, and may end a seed early: one `Callback` or several.
        data: The data of the experiment, if it has been loaded already.
        progress: Show how far it is: a bar on a terminal, a table in a notebook. None: if somebody looks, that is, in a
            notebook or if standard error is a terminal.

    Returns:
        The results: records, summaries and final models of all seeds.

    Raises:
        BadInput: Something cannot be honoured; the message says what, and what to do.
        RunFailed: A loss was no longer a number, or a callback raised something.
        Interrupted: By Ctrl-C; with `out`, `resume=True` goes on.

    Example:
        >>> run = ep.simulate(ep.Experiment(nodes=16, rounds=20, topology=ep.ELLocal(s=4)), out="runs/first")
        >>> run.summary.accuracy.mean
        >>> run.plot(path="curves.png")
    """
    places = [] if out is None else [Path(out)]
    with overwriting(places, overwrite, resume), run_shown(progress) as displays:
        told = [*displays, *all_of(callbacks).callbacks]
        return Run.of(simulator.simulate(experiment, out, resume=resume, callbacks=told, data=data))


def overwriting(places: Sequence[Path], wanted: bool, resume: bool) -> AbstractContextManager[None]:
    """If wanted, the runs that start inside replace those in these directories."""
    if wanted and resume:
        raise BadInput("overwrite = True replaces what resume = True continues; choose one")
    if wanted and not places:
        raise BadInput("overwrite = True needs a directory `out` to overwrite")
    return replacing(places if wanted else [])


@dataclass(frozen=True)
class RunSummary:
    """What came out of an experiment, over its seeds: means with the half-widths of their 95 % intervals.

    Accuracy, loss and metrics are final values: means over nodes, on the full test set.

    Example:
        >>> run.summary.accuracy.mean, run.summary.accuracy.half_width   # the latter is None for a single seed
    """

    name: str
    rounds: tuple[int, ...]
    """The rounds that each seed did; fewer than asked for where it was ended early."""
    accuracy: Interval | None
    """None where the targets are not classes."""
    best_accuracy: Interval | None
    """The best evaluated round of each seed."""
    mean_model_accuracy: Interval | None
    """The accuracy of the average of all models."""
    loss: Interval
    disagreement: Interval | None
    bytes: Interval
    """Bytes sent per node."""
    metrics: Mapping[str, Interval | None]
    """Your own, by name; None where one was not a finite number."""
    seconds: Interval | None = None
    """Simulated ones by the end; None without a clock."""

    def rows(self) -> list[tuple[str, str]]:
        """Every value with its name, for people."""

        def share(value: Interval | None) -> str:
            return "-" if value is None else f"{interval(value, 100)} %"

        found = [("rounds", _span(self.rounds))]
        if self.accuracy is not None:
            found += [
                ("accuracy over nodes", share(self.accuracy)),
                ("best evaluated accuracy", share(self.best_accuracy)),
                ("accuracy of the average model", share(self.mean_model_accuracy)),
            ]
        found.append(("loss over nodes", interval(self.loss, digits=4)))
        found += [(name, "-" if v is None else interval(v, digits=4)) for name, v in self.metrics.items()]
        found.append(("disagreement", "-" if self.disagreement is None else f"{self.disagreement.mean:.3g}"))
        found.append(("sent per node", size(self.bytes.mean)))
        return found if self.seconds is None else [*found, ("simulated seconds", interval(self.seconds, digits=1))]

    def __repr__(self) -> str:
        accuracy = "" if self.accuracy is None else f"accuracy {interval(self.accuracy, 100)} %, "
        seeds = count(len(self.rounds), "seed")
        return f"RunSummary({self.name!r}, {seeds}: {accuracy}loss {interval(self.loss, digits=4)}, sent {size(self.bytes.mean)} per node)"

    def _repr_html_(self) -> str:
        return html_table(f"{self.name}, {count(len(self.rounds), 'seed')}, mean and 95 % interval", self.rows())


class Run(simulator.SimulationResult):
    """What came out of an experiment.

    Attributes:
        experiment: What was run.
        seeds: A `SeedRun` for each seed, with its records, summary and final models.

    Example:
        >>> run = ep.simulate(experiment)
        >>> run.summary                # means over seeds
        >>> run.records[-1].loss.mean  # the last evaluation of the last seed
        >>> run.models[3]              # the state dict of node 3, first seed
        >>> run.dataframe()            # one row for each seed and evaluation
    """

    @staticmethod
    def of(run: simulator.SimulationResult) -> Run:
        """The same results, to be looked at."""
        return Run(run.experiment, run.seeds)

    @property
    def summary(self) -> RunSummary:
        """Final values over the seeds, with their intervals."""
        every = [seed.summary for seed in self.seeds]

        def over(values: list[float | None]) -> Interval | None:
            known = [value for value in values if value is not None]
            return Interval.of(known) if len(known) == len(values) else None

        return RunSummary(
            name=self.experiment.name,
            rounds=tuple(s.rounds for s in every),
            accuracy=over([None if s.final_accuracy is None else s.final_accuracy.mean for s in every]),
            best_accuracy=over([s.best_accuracy for s in every]),
            mean_model_accuracy=over([s.final_mean_model_accuracy for s in every]),
            loss=Interval.of([s.final_loss.mean for s in every]),
            disagreement=over([s.final_disagreement for s in every]),
            bytes=Interval.of([s.bytes.total.mean for s in every]),
            metrics={name: over([s.final_metrics[name].mean for s in every]) for name in every[0].final_metrics},
            seconds=over([s.seconds for s in every]),
        )

    def dataframe(self) -> DataFrame:
        """The records as a pandas DataFrame, a row for each seed and evaluated round.

        The columns are those of `epidemic report -o table.csv`. Needs pandas: pip install 'epidemic-learning[tables]'.
        """
        return dataframe_of({self.experiment.name: self})

    def plot(
        self,
        *,
        metric: str | None = None,
        path: str | Path | None = None,
        x: str | None = None,
        per_node: bool = False,
    ) -> Figure:
        """Learning curves: against rounds, against simulated time where there is some, against bytes sent, and disagreement.

        Where seeds ended in different rounds, the curves go as far as all of them.

        Args:
            metric: "accuracy", "loss", or a metric of the experiment by its name; accuracy, where the targets are classes, if it is not given.
            path: Save the picture there too (.png, .pdf or .svg).
            x: One curve alone, against "rounds", "bytes" or, under the simulated clock, "seconds" or "steps".
            per_node: A curve for each node, a panel for each seed, of a run with `eval.per_node = true`; against rounds, or
                "seconds" under the simulated clock. `metric` may then be one of your own, too.

        Returns:
            The Matplotlib figure; a notebook shows it.
        """
        title = f"{self.experiment.name}, {count(self.experiment.nodes, 'node')}"
        if per_node:
            return node_figure_of({seed.seed: seed.records for seed in self.seeds}, title, metric, path, x)
        return figure_of({self.experiment.name: self}, title, metric, path, x=x)

    def __repr__(self) -> str:
        e, s = self.experiment, self.summary
        accuracy = "" if s.accuracy is None else f"accuracy {interval(s.accuracy, 100)} %, "
        done = f"{count(e.nodes, 'node')}, {_span(s.rounds)} rounds, {count(len(self.seeds), 'seed')}"
        return f"Run({e.name!r}: {done}; {accuracy}loss {interval(s.loss, digits=4)})"

    def _repr_html_(self) -> str:
        heads = [
            "seed",
            "rounds",
            "accuracy",
            "worst node",
            "best node",
            "average model",
            "loss",
            "D(X)",
            "sent per node",
        ]
        timed = all(seed.summary.seconds is not None for seed in self.seeds)
        heads += ["simulated"] if timed else []
        rows = []
        for seed in self.seeds:
            s = seed.summary
            a = s.final_accuracy
            shares = [None] * 3 if a is None else [a.mean, a.min, a.max]
            rows.append(
                [
                    seed.seed,
                    f"{s.rounds} (ended early)" if s.ended_early else s.rounds,
                    *(percent(value) for value in [*shares, s.final_mean_model_accuracy]),
                    f"{s.final_loss.mean:.4f}",
                    "-" if s.final_disagreement is None else f"{s.final_disagreement:.3g}",
                    size(s.bytes.total.mean),
                    *([simulated(s.seconds or 0.0)] if timed else []),
                ]
            )
        e, summary = self.experiment, self.summary
        if len(rows) > 1:
            loss = interval(summary.loss, digits=4)
            mean = [summary.accuracy, summary.mean_model_accuracy]
            shown = ["-" if value is None else f"{interval(value, 100)}%" for value in mean]
            apart = "-" if summary.disagreement is None else f"{summary.disagreement.mean:.3g}"
            rows.append(["mean", "", shown[0], "", "", shown[1], loss, apart, size(summary.bytes.mean)])
            rows[-1] += [] if summary.seconds is None else [simulated(summary.seconds.mean)]
        title = f"{e.name}: {count(e.nodes, 'node')}, {e.topology!r}; on the full test set"
        return html_table(title, rows, heads)


def _span(rounds: Sequence[int]) -> str:
    return f"{min(rounds)}" if len(set(rounds)) == 1 else f"{min(rounds)} to {max(rounds)}"
