"""`--on slurm`, `--slurm` and `--status`: what `sweep`, `compare` and `reproduce` have in common when a cluster runs them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epidemic.cli.ranks import MOST
from epidemic.core.errors import BadInput, require_choice, require_int
from epidemic.core.formatting import count

if TYPE_CHECKING:
    from epidemic.study.batch import Job
    from epidemic.study.slurm.submit import Submission

HERE, SLURM = "here", "slurm"
On = Annotated[
    str, typer.Option("--on", metavar="WHERE", help="[bold]here[/bold], or [bold]slurm[/bold]: one task a run.")
]
SlurmOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        metavar="KEY=VALUE,...",
        help="What each task gets, e.g. partition=gpu,time=8h,mem=32G,array=50.",
        show_default=False,
    ),
]


def wants_slurm(on: str, texts: list[str] | None) -> bool:
    """Whether the runs go to Slurm; options without it are refused."""
    require_choice("--on", on, (HERE, SLURM))
    if texts and on != SLURM:
        raise BadInput(f"--slurm {texts[0]} has no effect without --on slurm")
    return on == SLURM


def rank_count(ranks: int | None) -> int:
    """Of each run of a batch; 1: a process alone."""
    require_int("--ranks", 1 if ranks is None else ranks, 1, MOST)
    return ranks or 1


def with_slurm(words: Sequence[str], texts: list[str] | None) -> list[str]:
    """The words of a command that hands its runs over."""
    return [*words, "--on", SLURM, *(word for text in texts or [] for word in ("--slurm", text))]


def hand_over(
    jobs: Sequence[Job],
    where: Path,
    texts: list[str] | None,
    again: Sequence[str],
    *,
    as_json: bool,
    ranks: int = 1,
    settings: Mapping[Path, Sequence[str]] | None = None,
) -> bool:
    """Submit what is missing and report it; False if nothing is, so that results can be shown. `again`: the words of this command.

    Runs that have diverged are listed and not submitted: they would diverge again after every queueing.
    """
    from epidemic.study.batch import diverged
    from epidemic.study.slurm.submit import parse_options, submit

    options = parse_options(texts or [], ranks)
    for job in jobs:
        job.check()  # what lies there may be of another experiment, finished or diverged
    failed = diverged(jobs)
    todo = [job for job in jobs if job.name not in failed]
    if all(job.finished for job in todo):
        return False
    found = submit(todo, where, options, settings)
    _print_submission(found, failed, where, again, as_json=as_json)
    return True


def _print_submission(
    found: Submission, failed: Mapping[str, str], where: Path, again: Sequence[str], *, as_json: bool
) -> None:
    from rich.markup import escape

    from epidemic.cli.show import print_json, show

    if as_json:
        return print_json(
            {
                "directory": str(where),
                "submitted": found.submitted,
                "under_way": found.under_way,
                "finished": found.finished,
                "again": found.again,
                "failed": failed,
            }
        )
    numbers = ", ".join(dict.fromkeys(task.partition("_")[0] for task in found.submitted.values()))
    lines = [f"submitted to Slurm: {count(len(found.submitted), 'run')}" + (f", job {numbers}" if numbers else "")]
    lines += [f"  {name} once more: {why}" for name, why in found.again.items()]
    lines += [
        f"  {name} failed for good: {why}; delete its directory to submit it again" for name, why in failed.items()
    ]
    if found.under_way:
        lines.append(f"queued or running since before: {len(found.under_way)}")
    if found.finished:
        lines.append(f"finished before: {len(found.finished)}")
    lines += [
        f"how they are: {shlex.join(['epidemic', 'sweep', '--status', str(where)])}",
        f"as they go on: {shlex.join(['epidemic', 'watch', str(where)])}",
        f"when all are done, their results, or what is missing once more: {shlex.join(again)}",
        f"{where} must be on a disk that all machines of the cluster share; from here that cannot be checked",
    ]
    show(*map(escape, lines))


def print_status(where: Path, *, as_json: bool) -> None:
    """How the runs of a directory are."""
    from collections import Counter

    from rich.markup import escape

    from epidemic.cli.show import plain_table, print_json, show
    from epidemic.study.slurm.status import status_of

    found = status_of(where)
    states = Counter(one.state for one in found)
    if as_json:
        return print_json({"directory": str(where), "count": dict(states), "runs": found})
    table = plain_table(str(where), "run", "state", "seeds done", "task")
    for one in found:
        table.add_row(escape(one.run), one.state, f"{one.seeds_done}/{one.seeds}", one.task or "-")
    reasons = [f"{one.run}: {one.state}: {one.why}" for one in found if one.why]
    show(table, *map(escape, reasons), ", ".join(f"{number} {state}" for state, number in states.items()))
