"""`epidemic sweep` and `epidemic reproduce`: many runs with one command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epidemic.cli.completion import items as items_begun
from epidemic.cli.completion import scales
from epidemic.cli.options import Json, NoCode, Quiet, RankCount, Settings
from epidemic.cli.slurm import HERE, On, SlurmOptions, hand_over, print_status, rank_count, wants_slurm, with_slurm
from epidemic.core.errors import BadInput, Interrupted, RunFailed, require_choice, require_int
from epidemic.core.files import directory_name, own_directory

if TYPE_CHECKING:
    from epidemic.study.batch import Job, Outcome
    from epidemic.study.reproduce import Check, Item, ItemResult

MAX_JOBS = 256


def register(app: typer.Typer) -> None:
    """Add the commands that run many experiments to the application."""
    app.command("sweep")(sweep_command)
    app.command("reproduce")(reproduce_command)


def sweep_command(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="An experiment file.", show_default=False)
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2", help="Values of a setting; give it several times.", show_default=False),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Seeds 1 to N at every point.", show_default="the file's")
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Runs side by side, each in a process of its own.")] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where results go.", show_default="runs/NAME-sweep")
    ] = None,
    ranks: RankCount = None,
    on: On = HERE,
    slurm: SlurmOptions = None,
    status: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Only list how the runs of a directory are.", show_default=False),
    ] = None,
    settings: Settings = None,
    no_code: NoCode = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    r"""Run an experiment at every combination of some settings, each in DIR/what-differs.

    Run the same command again to resume after an interrupt, or with more values to add runs: finished runs are skipped.
    A run that fails is reported at the end and does not stop the others (exit code 1).

    With --on slurm each run is a task of an array job, which saves before its time limit, is requeued and resumes; the command ends when
    they are submitted. Run it again to see the results, or to submit again what failed; a run whose numbers exploded is only listed.

    [bold]Examples[/bold]

      epidemic sweep experiment.toml --grid algorithm.lr=0.01,0.05,0.1 \
          --grid topology.s=4,7,14 --seeds 5

      epidemic sweep experiment.toml --set topology.s=7 --jobs 2 \
          --grid topology.kind=el-oracle,el-local,regular --out runs/kinds

      epidemic sweep experiment.toml --grid topology.s=2,4 --ranks 2 \
          --out runs/shared

      epidemic report runs/kinds -o report.html

      epidemic sweep --status runs/kinds
    """
    if status is not None:
        given = (file, grid, seeds, ranks, out, settings, slurm)
        if any(one is not None for one in given) or on != HERE or jobs != 1:
            raise BadInput("--status DIR lists the runs of a directory and runs nothing; leave out everything else")
        return print_status(status, as_json=as_json)
    if file is None:
        raise BadInput("give an experiment FILE to sweep over, or --status DIR")
    from epidemic.api.views import BatchDisplay
    from epidemic.experiment import read_table
    from epidemic.study.batch import Outcome, diverged, run_batch, run_batch_on_ranks
    from epidemic.study.sweep import grid_jobs, parse_grid

    require_int("--jobs", jobs, 1, MAX_JOBS)
    elsewhere = wants_slurm(on, slurm)
    count = rank_count(ranks)
    if elsewhere and jobs > 1:
        raise BadInput(f"--jobs {jobs} is for runs on this machine; on Slurm, {jobs} at once are --slurm array={jobs}")
    if count > 1 and jobs > 1:
        raise BadInput(f"--jobs {jobs} and --ranks {count}: runs on several ranks run in turn here; leave out --jobs")
    values = parse_grid(grid or [])
    table = read_table(file)
    where = (
        Path("runs") / f"{directory_name(str(table.get('name', 'experiment')))}-sweep"
        if out is None
        else own_directory(out)
    )
    planned = grid_jobs(table, values, where, seeds, settings or [])
    words = ["epidemic", "sweep", str(file), *(w for text in grid or [] for w in ("--grid", text))]
    words += [w for text in settings or [] for w in ("--set", text)]
    words += ["--seeds", str(seeds)] if seeds is not None else []
    words += ["--jobs", str(jobs)] if jobs > 1 else []
    words += ["--ranks", str(count)] if count > 1 else []
    words += ["--out", str(where)]
    if elsewhere:
        if hand_over(planned, where, slurm, with_slurm(words, slurm), as_json=as_json, ranks=count):
            return None
        failed = diverged(planned)  # all others are finished
        skipped = [job for job in planned if job.name not in failed]
        return _print_sweep(planned, Outcome([], skipped, failed), where, as_json=as_json)
    try:
        with BatchDisplay(planned, quiet=quiet) as display:
            outcome = run_batch_on_ranks(planned, count, display) if count > 1 else run_batch(planned, jobs, display)
    except Interrupted as stop:
        raise Interrupted(f"{stop}; resume with: {shlex.join(words)}") from None
    return _print_sweep(planned, outcome, where, as_json=as_json)


def _print_sweep(jobs: list[Job], outcome: Outcome, where: Path, *, as_json: bool) -> None:
    from rich.markup import escape

    from epidemic.cli.show import interval, plain_table, print_json, show
    from epidemic.report.results import read_results
    from epidemic.report.statistics import best, seconds_in_all

    rows: list[dict[str, Any]] = []
    lines: list[list[str]] = []
    for job in jobs:
        if job.name in outcome.failed:
            lines.append([job.name, "failed", "-", "-"])
            rows.append({"run": job.name, "directory": str(job.path), "failed": outcome.failed[job.name]})
            continue
        wanted = set(job.experiment.seeds)
        by_seed = [seed.records for seed in read_results(job.path).runs[0].seeds if seed.seed in wanted]
        accuracy, loss = best(by_seed)
        classes = by_seed[0][0].accuracy is not None
        seconds = seconds_in_all(by_seed)
        best_accuracy = interval(accuracy, 100, 2) if classes else "-"
        lines.append([job.name, best_accuracy, interval(loss, digits=4), interval(seconds, digits=1)])
        rows.append(
            {
                "run": job.name,
                "directory": str(job.path),
                "best_accuracy": accuracy if classes else None,
                "best_loss": loss,
                **({} if seconds is None else {"seconds": seconds}),
            }
        )
    timed = any("seconds" in row for row in rows)
    table = plain_table("Best over rounds", "run", "accuracy (%)", "loss", *(["simulated seconds"] if timed else []))
    for name, *cells in lines:
        table.add_row(escape(name), *(cells if timed else cells[:2]))
    if as_json:
        print_json({"directory": str(where), "skipped": len(outcome.skipped), "runs": rows})
    else:
        report = shlex.join(["epidemic", "report", str(where), "-o", "report.html"])
        legend = "mean over nodes; mean over seeds and half-width of the 95 % interval"
        show(table, f"[dim]{legend}[/dim]", f"results: {escape(str(where))}; as a page: {escape(report)}")
    if outcome.failed:
        first, reason = next(iter(outcome.failed.items()))
        raise RunFailed(f"{len(outcome.failed)} of {len(jobs)} runs failed; the first, {first}: {reason}")


def reproduce_command(
    item: Annotated[
        str,
        typer.Argument(
            metavar="ITEM",
            help="An item of the list above, or [bold]all[/bold].",
            show_default=False,
            autocompletion=items_begun,
        ),
    ],
    scale: Annotated[
        str, typer.Option(metavar="SCALE", help="smoke, laptop or paper.", autocompletion=scales)
    ] = "smoke",
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the real data set is.", show_default="where 'data fetch' puts it"),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Seeds 1 to N.", show_default="smoke 2, laptop 1, paper 5")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where everything goes.", show_default="runs/reproduce-SCALE")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would run, with an estimate of time and bytes.")
    ] = False,
    ranks: RankCount = None,
    on: On = HERE,
    slurm: SlurmOptions = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Reproduce a table or figure of the paper, and set our values beside its own.

    Items: table1 table2 table3, fig1 to fig8; beyond the paper: contraction, drift, cap, spectra, async, rivals.

    Scales: smoke (embedded data, seconds), laptop (real data, fewer rounds, hours), paper (the paper's settings, days).
    Writes the figure (PNG, PDF, SVG), its data (CSV), the verdicts (JSON) and the exact experiment files to DIR/ITEM; runs are in
    DIR/runs, are shared between items, and resume when the command is run again.

    [bold]Examples[/bold]

      epidemic reproduce fig3

      epidemic reproduce table2 --scale smoke

      epidemic reproduce table2 --scale laptop --data ~/data/cifar10 --dry-run
    """
    from epidemic.api.views import BatchDisplay
    from epidemic.cli.show import print_json
    from epidemic.study import reproduce as reproducing

    require_choice("--scale", scale, reproducing.SCALES)
    elsewhere = wants_slurm(on, slurm)
    count = rank_count(ranks)
    items = reproducing.items_named(item)
    where = Path("runs") / f"reproduce-{scale}" if out is None else own_directory(out)
    request = reproducing.Request(scale, where, seeds)  # type: ignore[arg-type]
    jobs = reproducing.planned(items, request)
    if not jobs and (seeds is not None or data is not None):
        raise BadInput(f"{item} trains nothing; leave out {'--seeds' if seeds is not None else '--data'}")
    if not jobs and count > 1:
        raise BadInput(f"{item} trains nothing that ranks could share; leave out --ranks")
    if scale == "smoke" and data is not None:
        raise BadInput("--scale smoke uses the embedded data; leave out --data or choose --scale laptop")
    if data is not None and not data.is_dir():
        raise BadInput(f"--data {data} is not a directory")
    for job in jobs:
        job.check()  # a directory of another scale or experiment is refused
    if dry_run:
        if elsewhere or count > 1:
            given = "--on slurm" if elsewhere else "--ranks"
            raise BadInput(f"--dry-run shows what would run here, in one process; leave out {given}")
        return _print_plan(items, jobs, as_json=as_json)
    reproducing.check_data(jobs, data)
    words = ["epidemic", "reproduce", item, "--scale", scale, "--out", str(where)]
    words += ["--seeds", str(seeds)] if seeds is not None else []
    words += ["--data", str(data)] if data is not None else []
    words += ["--ranks", str(count)] if count > 1 else []
    if elsewhere and not jobs:
        raise BadInput(f"{item} trains nothing, so there is nothing for Slurm to run; leave out --on slurm")
    failed: dict[str, str] = {}
    try:
        for stage in reproducing.stages(items, request):
            if elsewhere:  # the next stage follows from what came out of this one
                settings = reproducing.data_settings(stage, data)
                again = with_slurm(words, slurm)
                if hand_over(stage, where, slurm, again, as_json=as_json, ranks=count, settings=settings):
                    return None
                failed |= reproducing.diverged(stage)
                continue
            with BatchDisplay(stage, quiet=quiet) as display:
                failed |= reproducing.run_jobs(stage, data, display, count)
    except Interrupted as stop:
        raise Interrupted(f"{stop}; resume with: {shlex.join(words)}") from None
    found: dict[str, ItemResult] = {}
    problems: dict[str, str] = {}
    for one in items:
        try:
            found[one.name] = reproducing.reproduce(one, request, failed)
        except RunFailed as problem:  # the others can still be looked at
            problems[one.name] = str(problem)
    if as_json:
        print_json(
            {
                "directory": str(where),
                "items": {n: {"checks": f.checks, "notes": f.notes} for n, f in found.items()},
                "failed": problems,
            }
        )
    else:
        for one in items:
            if one.name in found:
                _print_finding(one, found[one.name])
        _print_verdicts(found, where)
    if problems:
        first, reason = next(iter(problems.items()))
        raise RunFailed(f"{len(problems)} of {len(items)} items could not be made; the first, {first}: {reason}")
    return None


def _print_plan(items: list[Item], jobs: list[Job], *, as_json: bool) -> None:
    from rich.markup import escape

    from epidemic.cli.show import duration, plain_table, print_json, show, size
    from epidemic.study.reproduce import costs

    todo = [job for job in jobs if not job.finished]
    cost = costs(todo)
    seconds, disk = sum(c.seconds for c in cost.values()), sum(c.disk for c in cost.values())
    if as_json:
        runs = [
            {"run": job.name, "directory": str(job.path), "finished": job.finished, "cost": cost.get(job.path)}
            for job in jobs
        ]
        return print_json({"items": [one.name for one in items], "runs": runs, "seconds": seconds, "disk_bytes": disk})
    table = plain_table("Would run", "run", "rounds or time", "seeds", "time", "sent per node", "disk")
    for job in jobs:
        clock, seeds = job.experiment.clock, str(len(job.experiment.seeds))
        rounds = f"{clock.stop:g} s" if clock is not None and clock.stop else f"{job.experiment.rounds:,}"
        if job.path in cost:
            c = cost[job.path]
            figures = [duration(c.seconds), size(c.sent_per_node), size(c.disk)]
        else:
            figures = ["finished", "-", "-"]
        table.add_row(escape(job.name), rounds, seeds, *figures)
    plain = [one.name for one in items if not one.trains]
    legend = "time: from a few rounds timed now on random data; sent: models and headers of one seed; disk: about"
    show(
        *([table, f"[dim]{legend}[/dim]"] if jobs else []),
        *([f"without training, in seconds to minutes: {', '.join(plain)}"] if plain else []),
        f"in all about {duration(seconds)} and {size(disk)} on disk",
    )


def _print_finding(item: Item, finding: ItemResult) -> None:
    from rich.markup import escape

    from epidemic.cli.show import plain_table, show

    if finding.table is not None:
        title, rows = finding.table
        shown = plain_table(f"{item.name}: {title}", *rows[0])
        for row in rows:
            shown.add_row(*map(escape, row.values()))
        show(shown, "")
    table = plain_table(f"{item.name}: {item.title}", "", "ours", item.expected_from, "difference", "verdict")
    reasons: dict[str, int] = {}
    for check in finding.checks:
        mark = f" [{reasons.setdefault(check.reason, len(reasons) + 1)}]" if check.reason else ""
        table.add_row(
            escape(check.what), _ours(check), _expected(check), _difference(check), escape(check.verdict + mark)
        )
    notes = [f"[dim][{i}] {escape(reason)}[/dim]".replace("[dim][", "[dim]\\[") for reason, i in reasons.items()]
    show(table, *notes, *(f"[dim]{escape(note)}[/dim]" for note in finding.notes), "")


def _ours(check: Check) -> str:
    if check.ours is None:
        return "-"
    found = f"{check.ours:,.{check.digits}f}"
    return found if check.half_width is None else f"{found}±{check.half_width:,.{check.digits}f}"


def _expected(check: Check) -> str:
    number = "" if check.expected is None else f"{check.expected:,.{check.digits}f}"
    source = f"({check.source})" if check.source else ""
    return " ".join(part for part in (check.claim, number, source) if part)


def _difference(check: Check) -> str:
    return "" if check.difference is None else f"{check.difference:+,.{check.digits}f}"


def _print_verdicts(found: dict[str, ItemResult], where: Path) -> None:
    from collections import Counter

    from rich.markup import escape

    from epidemic.cli.show import show

    count = Counter(check.verdict for finding in found.values() for check in finding.checks)
    listed = ", ".join(f"{number} {verdict}" for verdict, number in count.items())
    show(f"verdicts: {listed}", f"figures, data and experiment files: {escape(str(where))}")
