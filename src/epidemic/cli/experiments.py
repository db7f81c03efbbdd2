"""`epidemic init`, `run` and `export`: one experiment from its file to its models."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epidemic.cli.options import Json, NoCode, Overwrite, Quiet, RankCount, RankTimeout, Seeds, Settings, check_new_file
from epidemic.cli.ranks import check_timeout, share, silent, started_as_a_rank
from epidemic.cli.slurm import HERE, On, SlurmOptions, hand_over, rank_count, wants_slurm, with_slurm
from epidemic.core.errors import BadInput, Interrupted, RunFailed
from epidemic.core.files import directory_name, own_directory
from epidemic.core.formatting import count

if TYPE_CHECKING:
    from torch import Tensor

    from epidemic.experiment import Experiment
    from epidemic.record import Spread, Summary
    from epidemic.simulator import SimulationResult
    from epidemic.study.comparison import ComparisonTable


# -- `epidemic compare`: several methods on the same data and seeds --------------------------------------------------


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

    With --on slurm each method is a task of an array job; run the same command again to resume, and for the table when all are done.

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
        raise BadInput(f"{other} on with what is there and --overwrite replaces it; choose one")
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


FORMATS = (".safetensors", ".onnx", ".pt2")
"""Forms of an exported model: its weights, or a program for ONNX Runtime or for torch.export."""


def register(app: typer.Typer) -> None:
    """Add `init`, `run` and `export` to the application."""
    app.command("init")(init_command)
    app.command("run")(run_command)
    app.command("compare")(compare_command)
    app.command("export")(export_command)


def init_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.", show_default=False)],
    overwrite: Overwrite = False,
) -> None:
    """Write a commented experiment file that runs as it is, with every default visible.

    [bold]Example[/bold]

      epidemic init experiment.toml

      epidemic run experiment.toml --out runs/first
    """
    from importlib.resources import files

    from epidemic.core.files import write_bytes

    check_new_file(file, overwrite)
    write_bytes(file, (files("epidemic") / "template.toml").read_bytes())
    typer.echo(f"wrote {file}; run it with: epidemic run {file} --out runs/{file.stem}")


def run_command(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The experiment file.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where results go.", show_default="runs/NAME")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Resume a run.", show_default=False)] = None,
    overwrite: Overwrite = False,
    seeds: Seeds = None,
    settings: Settings = None,
    no_code: NoCode = False,
    ranks: RankCount = None,
    rank_timeout: RankTimeout = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Simulate an experiment: all its seeds, all its nodes, on this machine.

    Ctrl-C ends the current round and saves; --resume continues, and takes --set for what is not part of the experiment: where the data
    lies, runtime, checkpoint, more seeds; and for more rounds, of a finished run too. Results are in DIR/seed-N.

    [bold]Examples[/bold]

      epidemic run experiment.toml --out runs/first

      epidemic run experiment.toml --out runs/s4 --set topology.s=4 --seeds 5

      epidemic run --resume runs/first

      epidemic run --resume runs/first --set rounds=200

      epidemic run experiment.toml --out runs/shared --ranks 2
    """
    if (file is None) == (resume is None):
        raise BadInput("give either an experiment FILE or --resume DIR")
    if resume is not None and out is not None:
        raise BadInput("--resume continues in the run's own directory; leave out --out")
    if resume is not None and overwrite:
        raise BadInput("--resume continues a run and --overwrite replaces it; choose one")

    check_timeout(rank_timeout, ranks)
    if ranks is not None:
        words = ["run", *([] if file is None else [str(file)]), *["--overwrite"] * overwrite]
        options = [("--out", out), ("--resume", resume), ("--seeds", seeds), ("--rank-timeout", rank_timeout)]
        return share(ranks, words, options, settings or [], quiet=quiet, as_json=as_json)

    from epidemic.callbacks.progress import Display
    from epidemic.cli.show import print_json
    from epidemic.experiment import load, numbered_seeds
    from epidemic.runtime.replace import replacing
    from epidemic.sharding.rendezvous import joined, same_for_all, told_by_the_first
    from epidemic.simulator import simulate

    settings = settings if seeds is None else numbered_seeds(seeds, settings or [])
    with ExitStack() as stack:
        stack.enter_context(joined(rank_timeout))
        before = None if resume is None else told_by_the_first(resume / "experiment.toml")
        with same_for_all():
            if resume is not None:
                experiment, where = _resumed(resume, before, settings or []), resume
            else:
                assert file is not None
                experiment = load(file, settings)
                where = Path("runs") / directory_name(experiment.name) if out is None else own_directory(out)
            stack.enter_context(replacing([where] if overwrite else []))
        try:
            with Display(quiet=quiet or silent()) as display:
                run = simulate(experiment, where, resume=resume is not None, callbacks=display)
        except Interrupted as stop:
            how_to_resume = _how_to_resume(experiment, file, where, settings or [])
            raise Interrupted(f"{str(stop).partition(';')[0]}; resume with: {how_to_resume}") from None
    if silent():
        return None
    if as_json:
        return print_json({"directory": str(where), "seeds": [seed.summary for seed in run.seeds]})
    return _print_run(run, where)


def export_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run, DIR or DIR/seed-N.", show_default=False)],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The .safetensors, .onnx or .pt2 file to write.", show_default=False
        ),
    ],
    node: Annotated[int | None, typer.Option(metavar="I", help="The model of node I.", show_default=False)] = None,
    mean: Annotated[bool, typer.Option("--mean", help="The average of all nodes' models.")] = False,
    no_code: NoCode = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write one final model: its weights, which plain PyTorch loads (.safetensors), or a program for ONNX Runtime (.onnx) or torch.export (.pt2).

    Of an unfinished run, it is the model of the last checkpoint. The file also says which run it is of, its classes, and the columns of a
    table with their scales: 'epidemic predict' applies weights to new rows. A program takes inputs as they are in the data and scales them itself.

    [bold]Example[/bold]

      epidemic export runs/first --mean -o model.safetensors

      epidemic export runs/first --node 3 -o model.onnx

      from safetensors.torch import load_file                 # in Python
      model.load_state_dict(load_file("model.safetensors"))   # in Python
    """
    if mean == (node is not None):
        raise BadInput("give either --node I or --mean")
    if output.suffix not in FORMATS:
        raise BadInput(f"{output} must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    check_new_file(output, overwrite)
    if not directory.is_dir():
        raise BadInput(
            f"{directory} {'is a file' if directory.exists() else 'does not exist'}; give the directory of a run"
        )

    if (directory / "node.toml").is_file() and (directory / "run").is_dir():  # a deployed node's folder
        directory = directory / "run"

    import safetensors.torch

    from epidemic.cli.show import print_json
    from epidemic.core.files import read_json, write_whole
    from epidemic.runtime.exported import describe

    seeds = sorted(path.parent for path in directory.glob("seed-*/run.json"))
    if len(seeds) > 1:
        raise BadInput(f"{directory} has {len(seeds)} seeds; name one, for example {seeds[0]}")
    run = seeds[0] if seeds else directory
    state, round, planned = _model_of(run, node)
    about = describe(read_json(run / "run.json"), node, round)
    if output.suffix == ".safetensors":
        write_whole(output, lambda part: safetensors.torch.save_file(state, part, metadata=about))
    else:
        from epidemic.runtime.programs import module_of, write_program

        write_program(output, *module_of(run, state), about)
    count = sum(t.numel() for t in state.values())
    if as_json:
        return print_json(
            {"file": str(output), "node": node, "round": round, "tensors": {k: list(t.shape) for k, t in state.items()}}
        )
    early = f"; it is of round {round} of {planned}, because the run is not finished" if planned is not None else ""
    return typer.echo(f"wrote {output}: {len(state)} tensor{'s' * (len(state) != 1)}, {count:,} numbers{early}")


def _model_of(run: Path, node: int | None) -> tuple[dict[str, Tensor], int | None, int | None]:
    """The state dict of a node's model or (None) the average, of which round it is, and of how many rounds of an unfinished run."""
    from epidemic.core.files import read_json
    from epidemic.runtime.saved_models import export_model
    from epidemic.runtime.unfinished import last_models
    from epidemic.simulator import Models

    info = read_json(run / "run.json")
    if info is not None and "node" in info and node is not None:  # a deployed node's own run holds one model
        if node != info["node"]:
            raise BadInput(f"--node {node}: {run} is the run of node {info['node']} alone; use --node {info['node']}")
        node = 0
    if info is None or (run / "summary.json").is_file():
        done = (read_json(run / "summary.json") or {}).get("rounds")
        return export_model(run, node), done, None
    round, layout, rows = last_models(run)
    models = Models(layout, rows)
    if node is not None and not 0 <= node < len(models):
        raise BadInput(f"--node {node} does not exist; the nodes are 0 to {len(models) - 1}")
    state = models.mean if node is None else models[node]
    plain = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    return plain, round, info["experiment"]["rounds"]


def _resumed(directory: Path, first: bytes | None, settings: list[str]) -> Experiment:
    """The experiment of a resumed run; `first`: its file on the first rank, if there are several."""
    from epidemic.experiment import check_run_setting, load

    path = directory / "experiment.toml"
    if first is None and not path.is_file():
        raise BadInput(f"{directory} is not the directory of a run: it has no experiment.toml")
    for setting in settings:
        check_run_setting(setting)
    if path.is_file():
        return load(path, settings)
    import tomllib

    from epidemic.experiment import experiment_from, with_settings

    assert first is not None
    found = experiment_from(with_settings(tomllib.loads(first.decode()), settings))
    assert not isinstance(found, list)
    return found


def _how_to_resume(experiment: Experiment, file: Path | None, where: Path, settings: list[str]) -> str:
    """The command that resumes after an interrupt: from the directory, if that holds all that was asked for."""
    from epidemic.experiment import load

    written = where / "experiment.toml"
    held = written.is_file() and set(experiment.seeds) <= set(load(written).seeds)
    if file is not None and not held:
        words = [str(file), "--out", str(where)]
    else:
        words, settings = ["--resume", str(where)], [] if file is not None else settings
    return shlex.join(["epidemic", "run", *words, *(word for setting in settings for word in ("--set", setting))])


def _print_run(run: SimulationResult, where: Path) -> None:
    from rich.markup import escape

    from epidemic.cli.show import decimals, number, percent, plain_table, show, simulated, size
    from epidemic.core.formatting import ABOUT_DISAGREEMENT
    from epidemic.counting import TRAININGS, rounds_planned, without_rounds

    experiment = run.experiment
    ends = sorted({seed.summary.rounds for seed in run.seeds})
    rounds = str(ends[0]) if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"
    planned = rounds_planned(experiment.table())
    rounds += "" if planned is None or ends == [planned] else f" of {planned}"
    unit = TRAININGS if without_rounds(experiment.table()) else "rounds"
    title = f"{experiment.name}: {count(experiment.nodes, 'node')}, {rounds} {unit}, on the full test set"
    differ = len(ends) > 1
    timed = all(seed.summary.seconds is not None for seed in run.seeds)
    partial = any(seed.summary.final_living_accuracy is not None for seed in run.seeds)
    table = plain_table(
        title,
        "seed",
        *(["rounds"] if differ else []),
        "accuracy",
        "sd",
        "min",
        "max",
        "averaged",
        "loss",
        "D(X)",
        "sent",
        *(["simulated"] if timed else []),
        *(["last round's"] if partial else []),
    )
    more = plain_table("Metrics over nodes, on the full test set", "seed", "metric", "mean", "sd", "min", "max")
    for seed in run.seeds:
        s = seed.summary
        a = s.final_accuracy
        spread = [percent(v) for v in (a.mean, a.sd, a.min, a.max)] if a is not None else ["-"] * 4
        table.add_row(
            str(seed.seed), *([str(s.rounds)] if differ else []), *spread, percent(s.final_mean_model_accuracy),
            decimals(s.final_loss.mean, 4),
            "-" if s.final_disagreement is None else f"{s.final_disagreement:.3g}", size(s.bytes.total.mean),
            *([simulated(s.seconds or 0.0)] if timed else []),
            *([_mean_percent(s.final_living_accuracy)] if partial else []),
        )  # fmt: skip
        for name, found in s.final_metrics.items():
            more.add_row(str(seed.seed), escape(name), *map(number, (found.mean, found.sd, found.min, found.max)))
    legend = "accuracy: mean, standard deviation, worst and best over nodes; averaged: the mean of all models; sent: per node"
    legend += f"; {ABOUT_DISAGREEMENT}"
    legend += "; simulated: time on the experiment's clock" if timed else ""
    legend += "; last round's: accuracy of the nodes that took part in it" if partial else ""
    early = [
        f"seed {seed.seed} ended early after round {seed.summary.rounds}: {escape(seed.summary.ended_early)}"
        for seed in run.seeds
        if seed.summary.ended_early
    ]
    attacks = [_attack_line(seed.summary) for seed in run.seeds if seed.summary.attack is not None]
    show(table, f"[dim]{legend}[/dim]", *([more] if more.rows else []), *attacks, *early, f"results: {where}")


def _attack_line(summary: Summary) -> str:
    """What the adversary of a seed did, in a sentence."""
    from epidemic.cli.show import percent
    from epidemic.core.formatting import count

    found = summary.attack
    assert found is not None
    bad = "" if found.bad is None else f"{found.bad} of {count(found.aggregates, 'node-round')} bad, "
    success = (
        "" if found.success is None else f"; the attack succeeds on {percent(found.success.mean)} of triggered samples"
    )
    return (
        f"seed {summary.seed}, of honest nodes: {bad}{found.kept} kept their own model; {count(found.received, 'malicious message')} received,"
        f" {found.dropped} dropped{success}"
    )


def _mean_percent(spread: Spread | None) -> str:
    from epidemic.cli.show import percent

    return percent(None if spread is None else spread.mean)
