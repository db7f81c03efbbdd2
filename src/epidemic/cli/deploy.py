"""`epidemic keys`, `cluster`, `node` and `relay`: the same experiment on real machines."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epidemic.cli.experiments import Json, Quiet, Settings
from epidemic.errors import BadInput, Interrupted, require_int, require_real
from epidemic.files import directory_name, own_directory

if TYPE_CHECKING:
    from rich.table import Table

    from epidemic.net.cluster import Cluster
    from epidemic.net.node import Status
    from epidemic.net.transport import Transport

keys_app = typer.Typer(help="Certificates for nodes: a private authority, one for each place.", no_args_is_help=True)
cluster_app = typer.Typer(
    help="Nodes as real processes: prepare, start here, ask, gather results.", no_args_is_help=True
)

MOST_HERE = 512
"""Processes that one machine is asked to run at most."""

Insecure = Annotated[bool, typer.Option("--insecure", help="Without encryption; loopback addresses only.")]
Days = Annotated[int, typer.Option(metavar="N", help="Days that a certificate is good for.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the node.", show_default=False)]
Root = Annotated[Path, typer.Argument(metavar="DIR", help="The directory with the authority.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(cluster_app, name="cluster")
    app.command("node")(node_command)
    app.command("relay")(relay_command)
    app.add_typer(keys_app, name="keys")


def _hosts(text: str) -> list[str]:
    return [host.strip() for host in text.split(",") if host.strip()]


# -- keys -------------------------------------------------------------------------------------------------------------


@keys_app.command("init")
def keys_init_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory to make.", show_default=False)],
    hosts: Annotated[str, typer.Option(metavar="HOST,...", help="The hosts of nodes 0, 1, ...", show_default=False)],
    spare: Annotated[int, typer.Option(metavar="N", help="So many further places, for nodes that come later.")] = 0,
    days: Days = 365,
) -> None:
    """Make a private authority and a certificate for each node, in DIR/node-I.

    Keep DIR/authority to yourself; copy each node's folder to its host. 'epidemic cluster init' does this and adds the experiment.

    [bold]Example[/bold]

      epidemic keys init keys --hosts alpha.example,beta.example,10.0.0.7
    """
    from epidemic.net.keys import Authority

    require_int("--spare", spare, 0, 10_000)
    require_int("--days", days, 1, 3649)
    names = _hosts(hosts)
    if not names:
        raise BadInput("--hosts names nobody; give host,host,...")
    authority = Authority.create(directory)
    plain = [_host_of(name) for name in names]
    folders = [authority.issue(f"node-{i}", [host], days) for i, host in enumerate(plain)]
    folders += [authority.issue(f"node-{i}", [], days) for i in range(len(names), len(names) + spare)]
    authority.issue("observer", [], days)
    typer.echo(f"made {directory}/authority and {len(folders)} certificates: {folders[0]} to {folders[-1]}")


def _host_of(name: str) -> str:
    from epidemic.net.transport import split_address

    return split_address(name)[0] if name.count(":") == 1 or name.startswith("[") else name


@keys_app.command("add")
def keys_add_command(
    directory: Root,
    node: Annotated[
        int | None, typer.Option(metavar="I", help="A new certificate for place I.", show_default=False)
    ] = None,
    relay: Annotated[bool, typer.Option("--relay", help="A certificate for a relay.")] = False,
    observer: Annotated[bool, typer.Option("--observer", help="A certificate for asking nodes how they are.")] = False,
    host: Annotated[str, typer.Option(metavar="HOST", help="Its host.", show_default="any")] = "",
    days: Days = 365,
) -> None:
    """Issue one more certificate: for a new place, or to replace one that expires or was revoked.

    [bold]Example[/bold]

      epidemic keys add keys --node 3 --host gamma.example
    """
    from epidemic.net.cluster import take_over
    from epidemic.net.keys import Authority

    if (node is not None) + relay + observer != 1:
        raise BadInput("give one of --node I, --relay and --observer")
    if node is not None:
        require_int("--node", node, 0, 999_999_999)
    authority = Authority.load(directory)
    base = f"node-{node}" if node is not None else "relay" if relay else "observer"
    folder = authority.issue(base, [_host_of(host)] if host else [], days)
    take_over(directory, base, folder)
    typer.echo(f"made {folder}; copy it to its host")


@keys_app.command("revoke")
def keys_revoke_command(
    directory: Root,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The certificate, e.g. node-3.", show_default=False)],
) -> None:
    """Take a certificate back. Copy the new revoked.json into every node's folder: running nodes read it before their next round.

    [bold]Example[/bold]

      epidemic keys revoke keys node-3
    """
    from epidemic.net.keys import Authority

    after = Authority.load(directory).revoke(name)
    typer.echo(
        f"revoked {name}; {len(after.names)} in all. Now copy {directory / 'authority' / 'revoked.json'} into every node's folder"
    )


@keys_app.command("show")
def keys_show_command(directory: Root, as_json: Json = False) -> None:
    """List the certificates given out, until when they are good, and which were revoked."""
    import datetime as dt

    from epidemic.cli.show import plain_table, print_json, show
    from epidemic.net.keys import Authority

    authority = Authority.load(directory)
    revoked = authority.revoked.names
    now = dt.datetime.now(dt.UTC)
    rows: list[dict[str, Any]] = []
    for one in authority.issued:
        left = (dt.datetime.fromisoformat(one.expires) - now).days
        state = "revoked" if one.name in revoked else "expired" if left < 0 else "expires soon" if left < 30 else "good"
        rows.append({"name": one.name, "hosts": one.hosts, "expires": one.expires, "state": state})
    if as_json:
        print_json(rows)
        return
    until = authority.certificate.not_valid_after_utc
    table = plain_table(
        f"Certificates of {directory} (the authority's own is good until {until:%Y-%m-%d})",
        "name",
        "hosts",
        "expires",
        "",
    )
    for column in table.columns:
        column.justify = "left"
    for row in rows:
        table.add_row(row["name"], ", ".join(row["hosts"]) or "any", str(row["expires"])[:10], row["state"])
    show(table)


# -- nodes ------------------------------------------------------------------------------------------------------------


def node_command(
    directory: Folder, settings: Settings = None, insecure: Insecure = False, quiet: Quiet = False
) -> None:
    """Run one node: find the others, learn with them, write the results into DIR/run.

    Ctrl-C (or SIGTERM) saves; the same command goes on. A node that was away asks the others where they are and joins them again.
    --set takes what may differ between nodes: data.path, runtime, checkpoint, network.patience, name; and data and partition where
    network.data = "own".

    [bold]Examples[/bold]

      epidemic node node-3

      epidemic node node-3 --set data.path=/srv/private/scans
    """
    with _stop_by_signal():
        from epidemic.net.node import run_node

        try:
            summary = run_node(directory, settings, insecure=insecure, say=_speaker(quiet))
        except Interrupted as stop:
            words = ["epidemic", "node", str(directory), *(["--insecure"] if insecure else [])]
            words += [word for setting in settings or [] for word in ("--set", setting)]
            raise Interrupted(f"{str(stop).partition(';')[0]}; go on with: {shlex.join(words)}") from None
    if summary is not None and not quiet:
        from epidemic.cli.show import percent, size

        accuracy = summary.final_accuracy
        found = f"loss {summary.final_loss.mean:.4f}" if accuracy is None else f"accuracy {percent(accuracy.mean)}"
        typer.echo(
            f"done: {summary.rounds} rounds, {found} on the full test set, {size(summary.bytes.total.mean)} sent; {directory / 'run'}"
        )


def _speaker(quiet: bool) -> Any:
    def say(text: str) -> None:
        if not quiet:
            with suppress(OSError, ValueError):  # nobody reads it any more
                print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)

    return say


def relay_command(directory: Folder, insecure: Insecure = False, quiet: Quiet = False) -> None:
    """Pass letters on between nodes that cannot reach each other. It sees the models that go through it; it cannot change them.

    [bold]Example[/bold]

      epidemic relay relay
    """
    from epidemic.experiment import load
    from epidemic.net.keys import Identity
    from epidemic.net.transport import read_addresses

    identity = Identity.load(directory)
    if not identity.name.startswith("relay"):
        raise BadInput(
            f"{directory} has the certificate of {identity.name}; make one with 'epidemic keys add DIR --relay'"
        )
    addresses = read_addresses(directory / "node.toml")
    if addresses.listen is None:
        raise BadInput(f'{directory / "node.toml"} gives no address to listen on; add: listen = "0.0.0.0:7447"')
    nodes = load(directory / "experiment.toml").nodes
    say = _speaker(quiet)
    transport = _relay_transport(identity, addresses, nodes, insecure=insecure)
    say(f"listening on {addresses.listen}; Ctrl-C ends it")
    before = -1
    with _stop_by_signal():
        try:
            while True:
                if identity.refresh():  # who was revoked is not served any more
                    identity.still_good()
                    say("the list of revoked certificates has changed; opening the network again")
                    transport.close()
                    transport = _relay_transport(identity, addresses, nodes, insecure=insecure)
                now = transport.links()
                if now != before:
                    say(f"{now} connected")
                before = now
                time.sleep(0.5)
        except KeyboardInterrupt:
            say("ended")
        finally:
            transport.close()


def _relay_transport(identity: Any, addresses: Any, nodes: int, *, insecure: bool) -> Transport:
    from epidemic.net.transport import Transport

    return Transport(identity, addresses, nodes=nodes, largest=2**30, insecure=insecure, routes=True)


@contextmanager
def _stop_by_signal() -> Iterator[None]:
    """SIGTERM like Ctrl-C; and Ctrl-C also where the shell has switched it off (in the background)."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- clusters ---------------------------------------------------------------------------------------------------------


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
) -> None:
    """Prepare a deployment: keys, and for each node a folder with everything it needs. Copy each to its host and run 'epidemic node'.

    The experiment has as many nodes as its file says; places beyond the hosts are spare, for nodes that come later.

    [bold]Example[/bold]

      epidemic cluster init experiment.toml --hosts 10.0.0.5:7447,10.0.0.6:7447,10.0.0.7:7447 --set nodes=3 --out hospital
    """
    from epidemic.experiment import load
    from epidemic.net.cluster import make_cluster

    names = _hosts(hosts)
    folders = make_cluster(load(file, settings), names, own_directory(out), days=days, relay=relay)
    spare = len(folders) - len(names)
    typer.echo(f"made {out}: {len(names)} nodes" + (f" and {spare} spare places" if spare else ""))
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
        Path | None, typer.Option(metavar="DIR", help="Go on with one that was stopped.", show_default=False)
    ] = None,
    settings: Settings = None,
    insecure: Insecure = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Start all nodes as real processes on this machine, talking over encrypted loopback connections, and show how they do.

    Ctrl-C stops them all, saved; --resume goes on. Kill any of them: the others finish. Results of each are in DIR/node-I/run,
    those of all together in DIR/together.

    [bold]Examples[/bold]

      epidemic cluster up --nodes 8

      epidemic cluster up experiment.toml --nodes 8 --out runs/eight --set network.close=barrier
    """
    from epidemic.experiment import Experiment, experiment_from, load, merged, read_table, with_settings
    from epidemic.net.cluster import Cluster, make_cluster
    from epidemic.net.transport import free_addresses

    if resume is not None:
        if file is not None or nodes is not None or out is not None or settings:
            raise BadInput("--resume goes on with the experiment as it is; leave out FILE, --nodes, --out and --set")
        where = resume
        experiment = load(where / "experiment.toml")
        folders = [where / f"node-{i}" for i in range(experiment.nodes)]
        if not all((folder / "node.pem").is_file() for folder in folders):
            raise BadInput(f"{where} is not the directory of a cluster of {experiment.nodes} nodes")
    else:
        table: dict[str, Any] = {} if file is None else read_table(file)
        if "methods" in table:
            raise BadInput(f"{file} compares several methods; a cluster runs one")
        if file is None:
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
        where = Path("runs") / f"cluster-{directory_name(experiment.name)}" if out is None else own_directory(out)
        require_int("nodes", experiment.nodes, 2, MOST_HERE)
        if experiment.network.data == "own":
            raise BadInput('network.data = "own" is for nodes with data of their own; on one machine use "partition"')
        folders = make_cluster(experiment, free_addresses(experiment.nodes), where)
    with _stop_by_signal():
        cluster: Cluster | None = None
        try:
            cluster = Cluster(folders, insecure=insecure)
            _attend(cluster, where, quiet=quiet or as_json, insecure=insecure)
        except KeyboardInterrupt:
            if cluster is not None:
                print("stopping; every node saves", file=sys.stderr)
                cluster.stop()
            raise Interrupted(
                f"interrupted; go on with: epidemic cluster up --resume {shlex.quote(str(where))}"
            ) from None
        except BaseException:
            if cluster is not None:
                cluster.stop(5)
            raise
    _report(cluster, where, as_json=as_json)


def _attend(cluster: Cluster, where: Path, *, quiet: bool, insecure: bool) -> None:
    """Show how the nodes are until all have ended."""
    from rich.console import Console
    from rich.live import Live

    from epidemic.net.cluster import Observer

    if quiet:
        cluster.wait()
        return
    observer = Observer(where / "observer", insecure=insecure)
    console = Console(stderr=True)
    seen: dict[int, Status] = {}
    try:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                ended = False
                while not ended:
                    ended = cluster.wait(0.5)
                    seen |= {status.place: status for status in ([] if ended else observer.ask(1.0))}
                    seen |= {status.place: status for status in map(cluster.final, seen.values()) if status is not None}
                    running = {child.place for child in cluster.children if child.running}
                    live.update(status_table(seen, running, str(where)), refresh=True)
            return
        said = 0.0
        while not cluster.wait(1.0):
            seen |= {status.place: status for status in observer.ask(1.0)}
            if seen and time.monotonic() - said > 5:
                said = time.monotonic()
                console.print(_line(list(seen.values())), highlight=False, markup=False)
    finally:
        observer.close()


def _line(statuses: list[Status]) -> str:
    from epidemic.cli.show import percent, size

    rounds = [s.round for s in statuses]
    found = [s.accuracy for s in statuses if s.accuracy is not None]
    accuracy = f", accuracy {percent(sum(found) / len(found))}" if found else ""
    sent = size(sum(s.bytes for s in statuses) / len(statuses))
    return (
        f"rounds {min(rounds)} to {max(rounds)} of {statuses[0].rounds}{accuracy}, {len(statuses)} nodes, {sent} sent per node,"
        f" letters late {sum(s.late for s in statuses)}, lost {sum(s.lost for s in statuses)}"
    )


def status_table(seen: dict[int, Status], running: set[int], title: str) -> Table:
    """One line per node."""
    from epidemic.cli.show import percent, plain_table, size

    table = plain_table(title, "node", "round", "accuracy", "sent", "alive", "late", "lost", "refused", "state")
    table.columns[0].min_width = 4
    table.columns[-1].justify = "left"
    for place in sorted(seen):
        s = seen[place]
        state = s.state if place in running or s.state == "done" else "[red]gone[/red]"
        late, lost, refused = (f"[yellow]{v}[/yellow]" if v else "0" for v in (s.late, s.lost, s.refused))
        alive = (
            f"{s.alive}/{s.nodes}"
            if s.alive == s.nodes or s.state == "done"
            else f"[yellow]{s.alive}/{s.nodes}[/yellow]"
        )
        found = percent(s.accuracy) if s.accuracy is not None else "-" if s.loss is None else f"loss {s.loss:.3f}"
        table.add_row(
            str(place), f"{min(s.round, s.rounds)}/{s.rounds}", found, size(s.bytes), alive, late, lost, refused, state
        )
    return table


def _report(cluster: Cluster, where: Path, *, as_json: bool) -> None:
    """What came out."""
    from rich.markup import escape

    from epidemic.cli.show import percent, plain_table, print_json, show, size
    from epidemic.net.cluster import run_failed
    from epidemic.net.gather import gather

    problems = cluster.problems()
    finished = [c.folder for c in cluster.children if c.place not in problems]
    if not finished:
        raise run_failed(problems, where)
    together = where / "together"
    if together.exists():
        import shutil

        shutil.rmtree(together)
    summary = gather(finished, together)
    if as_json:
        print_json({"directory": str(where), "summary": summary, "failed": {str(k): v for k, v in problems.items()}})
    else:
        a = summary.final_accuracy
        title = f"{summary.name}: {len(finished)} nodes, {summary.rounds} rounds, on the full test set"
        table = plain_table(title, "seed", "accuracy", "sd", "min", "max", "averaged", "loss", "D(X)", "sent")
        spread = [percent(v) for v in (a.mean, a.sd, a.min, a.max)] if a is not None else ["-"] * 4
        apart = "-" if summary.final_disagreement is None else f"{summary.final_disagreement:.3g}"
        table.add_row(
            str(summary.seed), *spread, percent(summary.final_mean_model_accuracy), f"{summary.final_loss.mean:.4f}",
            apart, size(summary.bytes.total.mean),
        )  # fmt: skip
        show(table, f"results: {escape(str(together))}, and of each node in {escape(str(where))}/node-I/run")
    if problems:
        raise run_failed(problems, where)


@cluster_app.command("status")
def cluster_status_command(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The directory of the cluster, or a node's or observer's folder.", show_default=False
        ),
    ],
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing it, until Ctrl-C.")] = False,
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
    from epidemic.net.cluster import Observer

    require_real("--patience", patience, 0.1, 3600)
    if watch and as_json:
        raise BadInput("--watch shows a table that changes; leave out --json")
    folder = directory / "observer" if (directory / "observer").is_dir() else directory
    observer = Observer(folder, insecure=insecure)
    try:
        found = observer.wait(patience)
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
                live.update(_statuses(observer.ask(), directory), refresh=True)
    except KeyboardInterrupt:
        return
    finally:
        observer.close()


def _statuses(found: list[Status], directory: Path) -> Table:
    return status_table(
        {s.place: s for s in found}, {s.place for s in found}, f"{directory}: {len(found)} nodes answer"
    )


@cluster_app.command("gather")
def cluster_gather_command(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="The folders of finished nodes.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the common run goes.", show_default=False)],
) -> None:
    """Put the results of nodes together as one run, which 'epidemic report' shows beside simulations.

    [bold]Example[/bold]

      epidemic cluster gather hospital/node-* --out hospital/together
    """
    from epidemic.net.gather import gather

    summary = gather(directories, own_directory(out))
    typer.echo(f"wrote {out}: {summary.rounds} rounds of {len(directories)} nodes")
