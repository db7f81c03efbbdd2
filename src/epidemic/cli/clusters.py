"""`epidemic cluster`: prepare a deployment, run one on this machine, ask how it is, put results together."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epidemic.cli.keys import Days, hosts_in
from epidemic.cli.nodes import Insecure, stop_by_signal
from epidemic.cli.options import Json, NoCode, Overwrite, Quiet, Settings
from epidemic.core.errors import BadInput, Interrupted, RunFailed, require_int, require_real
from epidemic.core.files import own_directory
from epidemic.core.formatting import count
from epidemic.core.progress import Waiting

if TYPE_CHECKING:
    from rich.table import Table

    from epidemic.deploy.processes import LocalCluster
    from epidemic.deploy.status import Status
    from epidemic.experiment import Experiment


cluster_app = typer.Typer(
    help="Nodes as real processes: prepare, start here, ask, gather results.", no_args_is_help=True
)

MOST_HERE = 512
"""Processes that one machine is asked to run at most."""
MOST_NODES_HERE = 4096
"""Nodes that they host together at most."""


def register(app: typer.Typer) -> None:
    """Add the commands of `epidemic cluster` to the application."""
    cluster_app.command("next")(cluster_next_command)
    app.add_typer(cluster_app, name="cluster")


@cluster_app.command("init")
def cluster_init_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file.", show_default=False)],
    hosts: Annotated[
        str, typer.Option(metavar="HOST:PORT,...", help="Where nodes 0, 1, ... listen.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory to make.", show_default=False)],
    relay: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="All traffic goes through a relay there.", show_default=False),
    ] = None,
    days: Days = 365,
    settings: Settings = None,
    no_code: NoCode = False,
) -> None:
    r"""Prepare a deployment: keys, and for each node a folder with everything it needs. Copy each to its host and run 'epidemic node'.

    The experiment has as many nodes as its file says; nodes beyond the hosts are spare and may join later. Modules of your own that
    the file names, and what they import beside them, are packed into the folders.

    [bold]Example[/bold]

      epidemic cluster init experiment.toml --set nodes=2 --set topology.s=1 \
          --hosts 10.0.0.5:7447,10.0.0.6:7447 --out hospital
    """
    from epidemic.deploy.folders import make_cluster
    from epidemic.experiment import load

    names = hosts_in(hosts)
    folders = make_cluster(load(file, settings), names, own_directory(out), days=days, relay=relay, say=typer.echo)
    spare = len(folders) - len(names)
    typer.echo(f"made {out}: {count(len(names), 'node')}" + (f" and {spare} spare places" if spare else ""))
    if spare:
        typer.echo(
            f"nodes = {len(folders)}, but --hosts names {len(names)}: {out}/node-{len(names)} and further ones are for nodes that come later"
            " (give node.toml an address there)"
        )
    typer.echo(f"copy each {out}/node-I to its host and run there: epidemic node node-I")
    if relay is not None:
        typer.echo(f"copy {out}/relay to {relay} and run there: epidemic relay relay")
    typer.echo(f"keep {out}/authority to yourself; ask how they are with: epidemic cluster status {out}")


@cluster_app.command("up")
def cluster_up_command(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The experiment file.", show_default="the embedded data")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="How many nodes.", show_default="as the file says")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where everything goes.", show_default="runs/cluster-NAME")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Resume a cluster that was stopped.", show_default=False)
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="In how many processes; each hosts its share.", show_default="one for each node"
        ),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A training script that calls epidemic.join().", show_default=False),
    ] = None,
    settings: Settings = None,
    no_code: NoCode = False,
    insecure: Insecure = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    r"""Start all nodes as real processes on this machine, talking over encrypted loopback connections, and show their progress.

    Ctrl-C saves and stops them all; --resume continues, with --set rounds=N also after the end. Kill any of them: the others finish. Results of
    each are in DIR/node-I/run, those of all together in DIR/together. With --script, every process runs that training script, whose node has
    the folder that EPIDEMIC_FOLDER names; what it prints is in DIR/node-I/node.log.

    [bold]Examples[/bold]

      epidemic cluster up --nodes 8

      epidemic cluster up --nodes 24 --processes 2 --out runs/many

      epidemic cluster up experiment.toml --nodes 8 --out runs/eight \
          --set network.close.kind=barrier

      epidemic cluster up --resume runs/eight --set rounds=200

      epidemic cluster up --script train.py --nodes 4
    """
    doing = "loading PyTorch and the experiment"
    with Waiting("cluster", doing=doing, at_once=True, quiet=quiet or as_json) as waiting:
        from epidemic.deploy.addresses import free_addresses
        from epidemic.deploy.agreement import check_hosting
        from epidemic.deploy.extending import extend_cluster
        from epidemic.deploy.folders import make_cluster
        from epidemic.deploy.processes import blocks

        if resume is not None:
            if file is not None or nodes is not None or out is not None:
                raise BadInput("--resume continues the existing experiment; leave out FILE, --nodes and --out")
            where = resume
            experiment = with_more_rounds(where, settings or [])
        else:
            experiment = _experiment_here(file, nodes, settings, script)
            where = _directory_of(experiment) if out is None else own_directory(out)
        shares = blocks(experiment.nodes, experiment.nodes if processes is None else processes)
        _check_script(experiment, script, len(shares), insecure=insecure)
        require_int("processes on this machine", len(shares), 1, MOST_HERE)
        check_hosting(experiment, max(map(len, shares)))
        if resume is None:
            waiting.tell(f"making keys and folders in {where}")
            folders = make_cluster(experiment, free_addresses(experiment.nodes), where)
        else:
            folders = [where / f"node-{i}" for i in range(experiment.nodes)]
            if not all((folder / "node.pem").is_file() for folder in folders):
                raise BadInput(f"{where} is not the directory of a cluster of {experiment.nodes} nodes")
            if settings:
                extend_cluster(where, experiment.rounds)
    with stop_by_signal():
        cluster: LocalCluster | None = None
        try:
            if not quiet and not as_json:
                many = count(len(shares), "process")
                print(f"starting {count(len(folders), 'node')} in {many}", file=sys.stderr, flush=True)
            cluster = _started(folders, len(shares), script, insecure=insecure)
            _attend(cluster, where, quiet=quiet or as_json, insecure=insecure)
        except KeyboardInterrupt:
            if cluster is not None:
                print("stopping; every node saves", file=sys.stderr)
                cluster.stop()
            again = [
                "epidemic",
                "cluster",
                "up",
                "--resume",
                str(where),
                *(["--script", str(script)] if script else []),
            ]
            raise Interrupted(f"interrupted; resume with: {shlex.join(again)}") from None
        except BaseException:
            if cluster is not None:
                cluster.stop(5)
            raise
    on = "as the scripts reported" if experiment.own_training else "on the full test set"
    _report(cluster, where, experiment.network.longest, on, as_json=as_json)


def _check_script(experiment: Experiment, script: Path | None, processes: int, *, insecure: bool) -> None:
    """A script and an experiment that is trained by one need each other."""
    if script is None and experiment.own_training:
        raise BadInput('algorithm.kind = "own-loop" is trained by a script of your own; add --script train.py')
    if script is not None and not experiment.own_training:
        raise BadInput(
            '--script is for algorithm.kind = "own-loop"; leave it out, or use --set algorithm.kind=own-loop'
        )
    if script is not None and not script.is_file():
        raise BadInput(f"--script {script} {'is not a file' if script.exists() else 'does not exist'}")
    if script is not None and processes < experiment.nodes:
        raise BadInput(f"--processes = {processes}: a script is one node in a process of its own; leave it out")
    if script is not None and insecure:
        raise BadInput("--insecure: a script says so itself, by epidemic.join(insecure=True); leave it out")


def _started(folders: list[Path], processes: int, script: Path | None, *, insecure: bool) -> LocalCluster:
    """The processes of all nodes."""
    from epidemic.deploy.processes import LocalCluster
    from epidemic.deploy.scripts import ScriptCluster

    if script is None:
        return LocalCluster(folders, processes, insecure=insecure)
    return ScriptCluster(folders, script)


SCRIPT_ROUNDS = 10
"""Rounds of a script without an experiment file."""


def _experiment_here(
    file: Path | None, nodes: int | None, settings: list[str] | None, script: Path | None = None
) -> Experiment:
    """The experiment of a file, or one with the embedded data; as it can be run by the processes of one machine."""
    from epidemic.experiment import Experiment, experiment_from, merged, read_table, with_settings

    table: dict[str, Any] = {} if file is None else read_table(file)
    if "methods" in table:
        raise BadInput(f"{file} compares several methods; a cluster runs one")
    if file is None and script is not None:
        table = {
            "name": script.stem,
            "nodes": 4,
            "rounds": SCRIPT_ROUNDS,
            "topology": {"kind": "el-local", "s": max(1, min(4, (nodes or 4) - 1))},
            "algorithm": {"kind": "own-loop"},
            "eval": {"every": 1},
            "checkpoint": {"rounds": 1},
        }
    elif file is None:
        table = {
            "name": "embedded",
            "nodes": 16,
            "topology": {"kind": "el-local", "s": max(1, min(4, (nodes or 16) - 1))},
            "algorithm": {"local_steps": 10},
        }
    if nodes is not None:
        table = merged(table, {"nodes": nodes})
    experiment = experiment_from(with_settings(table, settings or []))
    assert isinstance(experiment, Experiment)
    require_int("nodes", experiment.nodes, 2, MOST_NODES_HERE)
    if experiment.network.data == "own":
        raise BadInput('network.data = "own" is for nodes with data of their own; on one machine use "partition"')
    return experiment


def _directory_of(experiment: Experiment) -> Path:
    from epidemic.core.files import directory_name

    return Path("runs") / f"cluster-{directory_name(experiment.name)}"


def _attend(cluster: LocalCluster, where: Path, *, quiet: bool, insecure: bool) -> None:
    """Show how the nodes are until all have ended."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from epidemic.cli.statuses import status_line, status_table
    from epidemic.deploy.watching import StatusWatcher

    if quiet:
        cluster.wait()
        return
    watcher = StatusWatcher(where / "observer", insecure=insecure)
    console = Console(stderr=True)
    seen: dict[int, Status] = {}
    try:
        if console.is_terminal:
            with Live(Text(_starting(cluster, seen)), console=console, auto_refresh=False) as live:
                ended = False
                while not ended:
                    ended = cluster.wait(0.2 if not seen else 0.5)
                    seen |= {status.node_id: status for status in ([] if ended else watcher.ask(1.0))}
                    seen |= {
                        status.node_id: status for status in map(cluster.final, seen.values()) if status is not None
                    }
                    running = {node_id for child in cluster.children if child.running for node_id in child.node_ids}
                    table = status_table(seen, running, str(where))
                    waiting = Text("" if ended else _starting(cluster, seen))
                    live.update(Group(*([table] if seen else []), *([waiting] if waiting else [])), refresh=True)
            return
        said, last = -5.0, ""
        while not cluster.wait(1.0 if seen else 0.2):
            line = _starting(cluster, seen) or (status_line(list(seen.values())) if seen else "")
            if line and (time.monotonic() - said > 5 or (not seen and line != last)):
                said, last = time.monotonic(), line
                console.print(line, highlight=False, markup=False, soft_wrap=True)
            seen |= {status.node_id: status for status in watcher.ask(1.0)}
    finally:
        watcher.close()


def _starting(cluster: LocalCluster, seen: Mapping[int, Status]) -> str:
    """Which nodes have not answered yet, and what the first of them is doing; empty if all have."""
    from epidemic.protocol.rules import listed

    silent = [child for child in cluster.children if child.running and not seen.keys() & set(child.node_ids)]
    if not silent:
        return ""
    node_ids = [node_id for child in silent for node_id in child.node_ids]
    total = sum(len(child.node_ids) for child in cluster.children)
    doing = silent[0].last_words or "starting"
    return f"waiting for {len(node_ids)} of {total} nodes to answer: {listed(node_ids)}; node {node_ids[0]}: {doing}"


def _report(cluster: LocalCluster, where: Path, deadline: float, on: str, *, as_json: bool) -> None:
    """Show the results, and whether the nodes learnt together."""
    from rich.markup import escape

    from epidemic.cli.show import percent, plain_table, print_json, show, size
    from epidemic.cli.statuses import delivery_table
    from epidemic.core.formatting import ABOUT_DISAGREEMENT
    from epidemic.deploy.gather import gather
    from epidemic.deploy.isolation import deliveries_of, mostly_alone, said_of_cluster
    from epidemic.record import HeardCounts

    problems = cluster.problems()
    finished = cluster.finished()
    if not finished:
        raise cluster.failure(problems)
    together = where / "together"
    if together.exists():
        import shutil

        shutil.rmtree(together)
    summary = gather(finished, together)
    deliveries = deliveries_of(finished)
    alone = said_of_cluster(deliveries, deadline)
    if as_json:
        print_json(
            {
                "directory": str(where),
                "summary": summary,
                "failed": {str(k): v for k, v in problems.items()},
                "delivery": {str(k): v for k, v in deliveries.items()},
                "warnings": [alone] if alone else [],
            }
        )
    else:
        a = summary.final_accuracy
        lasted = count(summary.rounds, "round")
        if summary.seconds is not None:
            lasted = f"{summary.rounds} trainings of a node in {summary.seconds:g} s"
        title = f"{summary.name}: {count(len(finished), 'node')}, {lasted}, {on}"
        table = plain_table(title, "seed", "accuracy", "sd", "min", "max", "averaged", "loss", "D(X)", "sent")
        spread = [percent(v) for v in (a.mean, a.sd, a.min, a.max)] if a is not None else ["-"] * 4
        apart = "-" if summary.final_disagreement is None else f"{summary.final_disagreement:.3g}"
        table.add_row(
            str(summary.seed), *spread, percent(summary.final_mean_model_accuracy), f"{summary.final_loss.mean:.4f}",
            apart, size(summary.bytes.total.mean),
        )  # fmt: skip
        heard = [delivery_table(deliveries)] if deliveries else []
        about = f"[dim]{ABOUT_DISAGREEMENT}[/dim]"
        show(
            table,
            about,
            *heard,
            f"results: {escape(str(together))}, and of each node in {escape(str(where))}/node-I/run",
        )
    total = HeardCounts.total(deliveries.values())
    failed = total is not None and mostly_alone(total)
    if alone and (problems or not failed):
        print(f"warning: {alone}", file=sys.stderr)
    if problems:
        raise cluster.failure(problems)
    if failed:
        raise RunFailed(f"{alone}; results: {together}")


@cluster_app.command("status")
def cluster_status_command(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The directory of the cluster, or a node's or observer's folder.", show_default=False
        ),
    ],
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it, until Ctrl-C.")] = False,
    patience: Annotated[float, typer.Option(metavar="SECONDS", help="How long to look for nodes.")] = 5.0,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Ask the running nodes how they are.

    [bold]Example[/bold]

      epidemic cluster status runs/eight
    """
    from rich.console import Console
    from rich.live import Live

    from epidemic.cli.show import print_json, show
    from epidemic.deploy.watching import StatusWatcher

    require_real("--patience", patience, 0.1, 3600)
    if watch and as_json:
        raise BadInput("--watch shows a table that changes; leave out --json")
    folder = directory / "observer" if (directory / "observer").is_dir() else directory
    watcher = StatusWatcher(folder, insecure=insecure)
    try:
        found = watcher.wait(patience)
        if not found:
            raise BadInput(
                f"no node of {directory} answers within {patience:g} s; do they run? see {folder / 'node.toml'}"
            )
        if as_json:
            print_json(found)
            return
        table = _statuses(found, directory)
        if not watch or not Console().is_terminal:
            show(table)
            return
        with Live(table, auto_refresh=False) as live:
            while True:
                time.sleep(1)
                live.update(_statuses(watcher.ask(), directory), refresh=True)
    except KeyboardInterrupt:
        return
    finally:
        watcher.close()


def _statuses(found: list[Status], directory: Path) -> Table:
    from epidemic.cli.statuses import status_table

    return status_table(
        {s.node_id: s for s in found}, {s.node_id for s in found}, f"{directory}: {count(len(found), 'node')}"
    )


@cluster_app.command("gather")
def cluster_gather_command(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="The folders of finished nodes.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the common run goes.", show_default=False)],
    no_code: NoCode = False,
    overwrite: Overwrite = False,
) -> None:
    """Put the results of nodes together as one run, which 'epidemic report' shows beside simulations.

    'epidemic export OUT --mean' writes the average of their models. Where nodes have data of their own (network.data = "own"), that average
    is not evaluated, because no data is here.

    [bold]Example[/bold]

      epidemic cluster gather hospital/node-* --out hospital/together
    """
    from epidemic.cli.statuses import delivery_line
    from epidemic.deploy.gather import OWN_DATA, gather
    from epidemic.deploy.isolation import deliveries_of, said_of_cluster
    from epidemic.experiment import network_from, read_toml
    from epidemic.runtime.replace import replacing

    with replacing([own_directory(out)] if overwrite else []):
        summary = gather(directories, own_directory(out))
    typer.echo(f"wrote {out}: {count(summary.rounds, 'round')} of {count(len(directories), 'node')}")
    if summary.final_mean_model_loss is None:
        typer.echo(
            f"{OWN_DATA}; write it with: {shlex.join(['epidemic', 'export', str(out), '--mean', '-o'])} FILE.safetensors"
        )
    if heard := delivery_line([summary.delivery]):
        typer.echo(heard)
    network = network_from(read_toml(out / "experiment.toml")["network"])
    if alone := said_of_cluster(deliveries_of(directories), network.longest):
        print(f"warning: {alone}", file=sys.stderr)


# -- `epidemic cluster next`, and more rounds: what a deployment does after its first run ----------------------------


def with_more_rounds(directory: Path, settings: list[str]) -> Experiment:
    """The experiment of a resumed cluster; of its settings, only the rounds may grow."""
    from epidemic.core.config import parse_setting
    from epidemic.experiment import load

    for setting in settings:
        if parse_setting(setting)[0] != "rounds":
            raise BadInput(
                f"--set {setting}: --resume continues the existing experiment; only more rounds can be set, and 'epidemic cluster next'"
                " makes another run with the same keys"
            )
    if not (directory / "experiment.toml").is_file():
        raise BadInput(f"{directory} is not the directory of a cluster: it has no experiment.toml")
    return load(directory / "experiment.toml", settings)


def cluster_next_command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory of a cluster, or a node's folder.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory to make.", show_default=False)],
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A .safetensors file that all nodes start from.", show_default="drawn from the seed"
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    r"""Make the next run of a deployment with the keys, addresses and revocations of the last one, which stays as it is.

    On several machines each operator does it for the node's own folder, with the same --set and the same weights: no key leaves its machine,
    and nodes compare when they meet. 'epidemic export --mean' writes weights to start from.

    [bold]Examples[/bold]

      epidemic cluster next hospital --weights mean.safetensors \
          --set rounds=60 --out second

      epidemic cluster next hospital/node-0 --weights mean.safetensors \
          --set rounds=60 --out second-node-0
    """
    from epidemic.deploy.next_run import make_next

    made = make_next(directory, own_directory(out), settings or [], weights, say=typer.echo)
    nodes = count(len(made.folders), "node") if len(made.folders) > 1 else f"node {next(iter(made.folders))}"
    drawn = f"starting from {weights} (SHA-256 {made.start.weights[:16]})" if weights else "starting from new weights"
    typer.echo(f"made {out}: run {made.start.run} of {nodes}, {drawn}")
    if made.local:
        typer.echo(f"start all nodes on this machine with: epidemic cluster up --resume {out}")
    elif out in made.folders.values():
        typer.echo(f"start it with: epidemic node {out}")
    else:
        typer.echo(
            f"each operator makes the same with: epidemic cluster next node-I --out {out.name}-node-I, with the same --set and --weights"
        )
