"""The folders of a deployment's nodes, prepared with the authority's key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from epidemic.core.errors import BadInput, require_int
from epidemic.core.files import write_bytes
from epidemic.core.rng import Streams
from epidemic.deploy import addresses
from epidemic.deploy.addresses import Addresses, is_loopback, split_address
from epidemic.deploy.agreement import check_deployable
from epidemic.deploy.keys import DAYS, Authority, host_name
from epidemic.deploy.relay import most_bytes
from epidemic.experiment import Experiment, installed, own_modules, python_files, to_toml
from epidemic.topology import peer_sampling


def make_cluster(
    experiment: Experiment,
    hosts: Sequence[str],
    root: Path,
    *,
    days: int = DAYS,
    relay: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Make keys, a folder for each node and the experiment with the user's own modules; nodes beyond the hosts are spare."""
    _check(experiment, hosts, root, days, relay)
    modules = own_modules(experiment.table())
    authority = Authority.create(root)
    common = {"experiment.toml": to_toml(experiment).encode()}
    for module in modules:
        common |= module.files
        say(f"packed {module.source} into every folder ({module.needed_by})")
    for name, needed_by in installed(experiment.table()).items():
        say(f"not packed: {name} ({needed_by}) is not beside the experiment file; every node needs it installed")
    _put(root, common)
    founders = tuple(range(len(hosts)))
    first = first_known(experiment, len(hosts))

    def fill(folder: Path, where: Addresses, comments: list[str]) -> None:
        write_bytes(folder / "node.toml", addresses.to_toml(where, comments).encode())
        _put(folder, common)

    folders = []
    for node_id in range(experiment.nodes):
        own = hosts[node_id] if node_id < len(hosts) else None
        folders.append(authority.issue(f"node-{node_id}", [split_address(own)[0]] if own else [], days))
        if first is None:
            fill(folders[-1], *_node_addresses(node_id, own, hosts, relay, founders))
        else:
            fill(folders[-1], *_first_addresses(own, hosts, first[node_id]))
    known = Addresses(None, (relay,) if relay else tuple(hosts), relay is not None, founders)
    fill(authority.issue("observer", [], days), known, ["Nodes to ask."])
    if relay is not None:
        fill(authority.issue("relay", [split_address(relay)[0]], days), *_relay_addresses(relay, experiment))
    return folders


def _put(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / name, content)


def _check(experiment: Experiment, hosts: Sequence[str], root: Path, days: int, relay: str | None) -> None:
    """Check everything before anything is written."""
    check_deployable(experiment)
    if len(hosts) > experiment.nodes:
        raise BadInput(
            f"--hosts names {len(hosts)} hosts, but the experiment has nodes = {experiment.nodes}; leave some out, or use"
            f" --set nodes={len(hosts)}"
        )
    if len(hosts) < 1:
        raise BadInput("--hosts is empty; give host:port,host:port,...")
    if len(set(hosts)) < len(hosts):
        raise BadInput("--hosts names an address twice; every node needs its own")
    for host in (*hosts, *((relay,) if relay else ())):
        host_name(split_address(host)[0])
    require_int("--days", days, 1, 3649)
    if relay is not None and peer_sampling(experiment.topology) is not None:
        raise BadInput(
            "--relay: topology.view is for nodes that connect to each other; leave out the view where everything goes through a relay"
        )
    if experiment.network.close.waits_for_all and len(hosts) < experiment.nodes:
        raise BadInput(
            f'network.close.kind = "barrier" needs all {experiment.nodes} nodes from the start; --hosts names {len(hosts)}'
        )
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise BadInput(f"{root} exists already; choose another directory")


def _node_addresses(
    node_id: int, own: str | None, hosts: Sequence[str], relay: str | None, founders: tuple[int, ...]
) -> tuple[Addresses, list[str]]:
    """The addresses of a node, with comments for readers of node.toml."""
    comments = [
        "Where this node listens and which peers it looks for. One that answers is enough to find the others;",
        "those named here are also looked for again when a connection breaks.",
    ]
    others = tuple(host for i, host in enumerate(hosts) if i != node_id)
    if relay is not None:
        return Addresses(None, (relay,), True, founders), comments
    if own is None:
        comments.append("A spare place: give the address that others can reach it at.")
        return Addresses("0.0.0.0:7447", others, False, founders), comments
    if is_loopback(own):
        return Addresses(own, others, False, founders), comments
    comments.append(f"Others look for it at {own}.")
    return Addresses(_everywhere(own), others, False, founders), comments


def _everywhere(address: str) -> str:
    """The unspecified address with the port of this one, to listen on all interfaces."""
    host, port = split_address(address)
    return f"[::]:{port}" if ":" in host else f"0.0.0.0:{port}"


def first_known(experiment: Experiment, hosts: int) -> list[tuple[int, ...]] | None:
    """The initial peers of each of the first `hosts` nodes; None if all nodes know each other."""
    service = peer_sampling(experiment.topology)
    if service is None:
        return None
    views = service.start(experiment.nodes, Streams(experiment.seeds[0])("views-start"))
    found = []
    for node_id, row in enumerate(views.ids.tolist()):
        next_one = (node_id + 1) % hosts  # so that no node is isolated
        found.append(tuple(sorted({next_one, *(other for other in row if 0 <= other < hosts)} - {node_id})))
    return found


def _first_addresses(own: str | None, hosts: Sequence[str], known: tuple[int, ...]) -> tuple[Addresses, list[str]]:
    """The addresses of a node with a few initial peers, which meets others through them."""
    comments = [
        "Where this node listens, and its initial peers, through which it meets others. One that answers is enough.",
        "Peers get the address `reach`, or else `listen`.",
    ]
    others = tuple(hosts[node_id] for node_id in known)
    if own is None:
        comments.append('A spare place: add reach = "HOST:PORT", the address that others can reach it at.')
        return Addresses("0.0.0.0:7447", others, False, known), comments
    if is_loopback(own):
        return Addresses(own, others, False, known), comments
    return Addresses(_everywhere(own), others, False, known, own), comments


def _relay_addresses(relay: str, experiment: Experiment) -> tuple[Addresses, list[str]]:
    """The addresses of a relay, and its largest message if the data that determines the model's size is available."""
    listen = relay if is_loopback(relay) else _everywhere(relay)
    comments = [
        "Where the relay listens, and the bytes of a message, which is a model with its header: more is not taken."
    ]
    try:
        return Addresses(listen, largest=most_bytes(experiment)), comments
    except BadInput as problem:
        reason = " ".join(str(problem).split())
        comments += [
            f"It could not be computed here: {reason}",
            "Add it, unless the relay has the data: largest = BYTES",
        ]
        return Addresses(listen), comments


def take_over(root: Path, base: str, folder: Path) -> None:
    """Copy addresses, experiment and modules from the folder of an earlier certificate to that of a new one."""
    earlier = sorted(
        p for p in root.glob(f"{base}*") if p != folder and (p.name == base or p.name.startswith(base + "."))
    )
    for name in ("node.toml", "experiment.toml"):
        for other in [*reversed(earlier), root]:
            if (other / name).is_file():
                write_bytes(folder / name, (other / name).read_bytes())
                if name == "experiment.toml":
                    _put(folder, python_files(other))
                break
