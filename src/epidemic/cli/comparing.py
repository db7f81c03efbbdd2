"""`epidemic compare`: several methods on the same data and seeds."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epidemic.cli.options import Json, NoCode, Overwrite, Quiet, RankCount, RankTimeout, Seeds, Settings
from epidemic.cli.ranks import check_timeout, share, silent, started_as_a_rank
from epidemic.cli.slurm import HERE, On, SlurmOptions, hand_over, rank_count, wants_slurm, with_slurm
from epidemic.core.errors import BadInput, Interrupted, RunFailed
from epidemic.core.files import directory_name, own_directory

if TYPE_CHECKING:
    from epidemic.study.comparison import ComparisonTable


def compare_command(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A file with methods to compare.", show_default="the demo")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where results go.", show_default="runs/NAME")] = None,
    target: Annotated[
        float | None,
        typer.Option(
            metavar="ACC", help="Accuracy whose cost is compared.", show_default="best of the static baseline"
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume: skip what is finished in DIR.")] = False,
    overwrite: Overwrite = False,
    ranks: RankCount = None,
    rank_timeout: RankTimeout = None,
    on: On = HERE,
    slurm: SlurmOptions = None,
    seeds: Seeds = None,
    settings: Settings = None,
    no_code: NoCode = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    r"""Run several methods on the same data and seeds, and compare accuracy, loss and traffic.

    A file lists them in \[\[methods]], each with a name and what it overrides. Without a file, the demo: 128 nodes that each send two models a round,
    to random others (EL-Oracle, EL-Local) or to the same two (a static ring), beside a complete network; embedded data, 3 seeds, about a minute.

    DIR gets comparison.png (accuracy, traffic, disagreement), spreading.png (how far what one node knows has spread after a few
    rounds; of up to 300 nodes) and comparison.json.

    With --on slurm each method is a task of an array job; run the same command again to go on, and for the table when all are done.

    [bold]Examples[/bold]

      epidemic compare

      epidemic compare methods.toml --out runs/methods --target 0.7

      epidemic compare methods.toml --out runs/shared --ranks 2
    """
    if target is not None and not 0 <= target <= 1:
        raise BadInput(f"--target {target:g} must be between 0 and 1, for example 0.7 for 70 %")
    elsewhere = wants_slurm(on, slurm)
    if overwrite and (resume or elsewhere):
        other = "--resume goes" if resume else "--on slurm goes"
        raise BadInput(f"{other} on with what is there and --overwrite replaces it; leave one out")
    check_timeout(rank_timeout, ranks)
    if elsewhere and (rank_timeout is not None or started_as_a_rank()):
        raise BadInput("tasks of Slurm start their own ranks: leave out --rank-timeout and torchrun, or --on slurm")
    if ranks is not None and not elsewhere:
        words = ["compare", *([] if file is None else [str(file)]), *["--resume"] * resume]
        words += ["--overwrite"] * overwrite
        options = [("--out", out), ("--target", target), ("--seeds", seeds), ("--rank-timeout", rank_timeout)]
        return share(ranks, words, options, settings or [], quiet=quiet, as_json=as_json)

    import msgspec

    from epidemic.callbacks.progress import Display
    from epidemic.cli.show import print_json
    from epidemic.core.files import write_bytes
    from epidemic.experiment import numbered_seeds, read_table, with_settings
    from epidemic.report.curves import learning_figure
    from epidemic.report.style import save
    from epidemic.report.timeline import spreading_figure, spreads_of
    from epidemic.runtime.replace import replacing
    from epidemic.sharding.rendezvous import joined, same_for_all
    from epidemic.study import comparison as comparing
    from epidemic.study.batch import Job, diverged

    settings = settings if seeds is None else numbered_seeds(seeds, settings or [])
    with ExitStack() as stack:
        stack.enter_context(joined(rank_timeout))
        with same_for_all():
            whole = comparing.DEMO if file is None else read_table(file)
            comparing.refuse_idle_settings(whole, settings or [])
            table = with_settings(whole, settings or [])
            methods = comparing.methods_from(table)
        name = str(table.get("name", "comparison"))
        where = Path("runs") / directory_name(name) if out is None else own_directory(out)
        words = ["epidemic", "compare", *([str(file)] if file else []), "--out", str(where)]
        words += [word for setting in settings or [] for word in ("--set", setting)]
        words += [] if target is None else ["--target", str(target)]
        if elsewhere:
            count = rank_count(ranks)
            words += ["--ranks", str(count)] if count > 1 else []
            comparing.load_classes(methods)
            jobs = [Job(where / directory_name(name), experiment) for name, experiment in methods.items()]
            if hand_over(jobs, where, slurm, with_slurm(words, slurm), as_json=as_json, ranks=count):
                return None
            for name, why in diverged(jobs).items():
                raise RunFailed(f"method {name!r} failed for good: {why}; delete its directory to submit it again")
            resume = True  # all are finished: they are read back
        with same_for_all():
            stack.enter_context(replacing(comparing.places_of(methods, where) if overwrite else []))
        try:
            with Display(quiet=quiet or silent()) as display:
                runs = comparing.run_methods(methods, where, display, resume=resume)
        except Interrupted as stop:
            where_it_was = str(stop).partition(";")[0]
            raise Interrupted(f"{where_it_was}; resume with: {shlex.join([*words, '--resume'])}") from None
    if silent():
        return None
    records = comparing.records_of(runs)
    result = comparing.compare(methods, records, target)
    nodes = next(iter(methods.values())).nodes
    figures = {
        "comparison": learning_figure(comparing.lines(methods, records), f"{name}, {nodes} nodes", result.target)
    }
    if spreads := spreads_of(methods):
        figures["spreading"] = spreading_figure(spreads)
    for what, figure in figures.items():
        for suffix in (".png", ".svg"):
            save(figure, where / f"{what}{suffix}")
    write_bytes(where / "comparison.json", msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    if as_json:
        parts = {f: getattr(result, f) for f in ("baseline", "target", "target_from", "rows")}
        return print_json({"directory": str(where), **parts})
    return _print_comparison(result, where)


def _print_comparison(result: ComparisonTable, where: Path) -> None:
    from rich.markup import escape

    from epidemic.cli.show import plain_table, show
    from epidemic.study.comparison import cells_of, heads_of, legend_of, title_of

    table = plain_table(title_of(result), *heads_of(result))
    for name, *figures in cells_of(result):
        table.add_row(escape(name), *figures)
    show(table, f"[dim]{escape(legend_of(result))}[/dim]", f"results and figure: {where}")
