"""The next run of a deployment with the same keys: its folders are made from the existing ones.

Keys, certificates, addresses and revocations stay the same; settings may change, and all nodes may start from given weights. Nothing of the earlier run
is changed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from epidemic.core.config import look_beside
from epidemic.core.errors import BadInput
from epidemic.core.files import full_disk, write_bytes
from epidemic.core.rng import Streams
from epidemic.deploy.addresses import Addresses, is_loopback, read_addresses
from epidemic.deploy.addresses import to_toml as addresses_toml
from epidemic.deploy.agreement import check_deployable
from epidemic.deploy.extending import check_not_running
from epidemic.deploy.keys import HELD, Identity, certificate_name, copy_identity, newest_revocations, node_id_of
from epidemic.deploy.relay import most_bytes
from epidemic.experiment import Experiment, different_for_nodes, load, own_modules, python_files, to_toml
from epidemic.runtime.setup import initial_module
from epidemic.runtime.start import START, WEIGHTS, Start, StartWeights, read_start
from epidemic.topology import peer_sampling

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Holder:
    """The owner of a folder: where its key and its settings are."""

    name: str
    keys: Path
    settings: Path
    node_id: int | None  # None: an observer or a relay


@dataclass(frozen=True)
class NextRun:
    """The result of `make_next`: the folders of the next run, and its initial weights."""

    folders: dict[int, Path]  # of nodes, by id
    start: Start
    local: bool  # whether all nodes are on this machine


def make_next(
    source: Path, out: Path, settings: Sequence[str], weights: Path | None, say: Say = lambda _: None
) -> NextRun:
    """Make the folders of the next run, from the directory of a cluster or from the folder of one node.

    Args:
        source: The directory made by `cluster init` or `cluster up`, or one node's folder.
        out: The directory to make.
        settings: Changed settings, as KEY=VALUE.
        weights: A safetensors file with the initial model of all nodes; None: drawn from the seed.
        say: Called with lines about what is left out or checked later.

    Returns:
        The folders of the next run.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} exists already; choose another directory")
    alone = (source / "node.pem").is_file()
    first = source if alone else _first_of(source)
    if out.resolve().is_relative_to(source.resolve()):
        raise BadInput(f"{out} is inside {source}; choose a directory beside it")
    look_beside(first / "experiment.toml", first=True)
    root = source if (source / "experiment.toml").is_file() else first
    common = load(root / "experiment.toml", list(settings))
    holders = [_Holder(source.name, source, source, _node_id(source))] if alone else _holders(source, common.nodes)
    revoked, revoked_file = _revocations(source, holders)
    holders = _good(source, holders, revoked, say)
    found = {holder.name: _experiment_of(holder, settings) for holder in holders if holder.node_id is not None}
    _check_same(found)
    start = _next_start(holders, weights, next(iter(found.values())), say)
    with full_disk(str(out)):
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    try:
        part = beside / out.name
        if not alone:
            part.mkdir(mode=0o700)
            _put(part, common, source)
        for holder in holders:
            folder = part if alone else part / holder.name
            copy_identity(holder.keys, folder, revoked_file)
            _put(folder, found.get(holder.name, common), holder.settings)
            _put_addresses(folder, holder, common, say)
            if holder.node_id is not None:
                _put_start(folder, start, weights)
        with full_disk(str(out)):
            part.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    folders = {holder.node_id: out if alone else out / holder.name for holder in holders if holder.node_id is not None}
    return NextRun(folders, start, not alone and all(map(_is_local, folders.values())))


# -- whose folders ----------------------------------------------------------------------------------------------------


def _node_id(folder: Path) -> int:
    node_id = node_id_of(certificate_name(folder))
    if node_id is None:
        raise BadInput(f"{folder / 'node.pem'} is the certificate of {certificate_name(folder)}, not of a node")
    return node_id


def _first_of(source: Path) -> Path:
    """The first node's folder in a cluster's directory."""
    if not source.is_dir():
        raise BadInput(f"{source} is not a directory; give that of a cluster, or a node's folder")
    found = sorted(
        (node_id, path.parent)
        for path in source.glob("node-*/node.pem")
        if (node_id := node_id_of(path.parent.name)) is not None
    )
    if not found:
        raise BadInput(
            f"{source} has no keys: neither node.pem nor node-I/node.pem is there; give the directory of a cluster, or a node's folder"
        )
    return found[0][1]


def _holders(source: Path, nodes: int) -> list[_Holder]:
    """All owners of a folder, with the newest key of each."""
    found = []
    bases: list[tuple[str, int | None]] = [(f"node-{i}", i) for i in range(nodes)]
    for base, node_id in [*bases, ("observer", None), ("relay", None)]:
        keys = _newest(source, base)
        if keys is None and node_id is None:
            continue
        if keys is None:
            raise BadInput(
                f"nodes = {nodes}, but {source} has no folder {base} with a certificate; issue one with"
                f" 'epidemic keys add {source} --node {node_id} --host HOST', or use fewer nodes"
            )
        settings = source / base if (source / base / "experiment.toml").is_file() else keys
        found.append(_Holder(base, keys, settings, node_id))
    return found


def _newest(source: Path, base: str) -> Path | None:
    """The folder with the latest certificate of this name: node-3.2 before node-3.1 and node-3."""
    names = [base, *(f"{base}.{generation}" for generation in range(1, 10))]
    found = [source / name for name in names if (source / name / "node.pem").is_file()]
    return found[-1] if found else None


def _revocations(source: Path, holders: Sequence[_Holder]) -> tuple[frozenset[str], bytes]:
    """The revoked names by the newest list here, and that list's file. All files of the keys must be there."""
    for holder in holders:
        for name in HELD:
            if not (holder.keys / name).is_file():
                raise BadInput(
                    f"{holder.keys} has no {name}; copy it from where the keys of this node were made, or issue new ones with"
                    " 'epidemic keys add'"
                )
    lists = [holder.keys / "revoked.json" for holder in holders]
    lists += [path for path in [source / "authority" / "revoked.json"] if path.is_file()]
    newest, content = newest_revocations(lists, holders[0].keys / "authority.pem")
    return frozenset(newest.names), content


def _good(source: Path, holders: Sequence[_Holder], revoked: frozenset[str], say: Say) -> list[_Holder]:
    """The owners with valid certificates, without revoked ones. Raises BadInput if one has expired."""
    found = []
    for holder in holders:
        option = holder.name if holder.node_id is None else f"node {holder.node_id}"
        add = f"epidemic keys add DIR --{option}, where DIR/authority is"
        if certificate_name(holder.keys) in revoked:
            say(f"left out {holder.name}, whose certificate was revoked; to have it again, issue a new one: {add}")
            continue
        Identity.load(holder.keys)
        found.append(holder)
    if not any(holder.node_id is not None for holder in found):
        raise BadInput(f"every node of {source} was revoked; issue new certificates with 'epidemic keys add'")
    return found


# -- what they run ----------------------------------------------------------------------------------------------------


def _experiment_of(holder: _Holder, settings: Sequence[str]) -> Experiment:
    """The next experiment of one node, which keeps its own settings: where its data is, how it computes."""
    check_not_running(holder.settings, load(holder.settings / "experiment.toml"))
    experiment = load(holder.settings / "experiment.toml", list(settings))
    check_deployable(experiment)
    if peer_sampling(experiment.topology) is not None and read_addresses(holder.settings / "node.toml").relay:
        raise BadInput(
            "topology.view is for nodes that connect to each other, and these go through a relay; leave out the view, or prepare anew with"
            " 'epidemic cluster init'"
        )
    return experiment


def _check_same(found: dict[str, Experiment]) -> None:
    (name, first), *others = found.items()
    for other, experiment in others:
        different = different_for_nodes(first, experiment)
        if different:
            raise BadInput(
                f"{other} has another experiment than {name} (in {', '.join(different[:5])}); all nodes must agree: set it for all, with --set"
            )


def _next_start(holders: Sequence[_Holder], weights: Path | None, experiment: Experiment, say: Say) -> Start:
    """The start of the next run: the next number, and weights that fit the model as far as this can be checked here."""
    numbers = []
    for holder in holders:
        if holder.node_id is not None:
            before, _ = read_start(holder.settings)
            numbers.append(1 if before is None else before.run)
    if len(set(numbers)) > 1:
        raise BadInput(
            f"these folders are of different runs (numbers {min(numbers)} to {max(numbers)}); make the next from one run"
        )
    if weights is None:
        return Start(numbers[0] + 1)
    if experiment.own_training:
        raise BadInput(f"--weights {weights}: a script of your own loads its weights itself; leave it out")
    found = StartWeights.read(weights)
    try:
        data = experiment.load_data()
    except BadInput as problem:
        say(f"that the weights fit the model is checked when nodes start, because the data is not here: {problem}")
    else:
        found.put(initial_module(experiment, data, Streams(experiment.seeds[0])), experiment.network.largest)
    return Start(numbers[0] + 1, found.digest)


# -- what is written --------------------------------------------------------------------------------------------------


def _put(folder: Path, experiment: Experiment, before: Path) -> None:
    """Write the experiment and the user's own modules, old and new."""
    files = {path: content for module in own_modules(experiment.table()) for path, content in module.files.items()}
    files |= {**python_files(before), "experiment.toml": to_toml(experiment).encode()}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / name, content)


def _put_start(folder: Path, start: Start, weights: Path | None) -> None:
    write_bytes(folder / START, msgspec.json.encode(start) + b"\n")
    if weights is not None:
        with full_disk(str(folder / WEIGHTS)):
            shutil.copyfile(weights, folder / WEIGHTS)


def _put_addresses(folder: Path, holder: _Holder, experiment: Experiment, say: Say) -> None:
    """Write the addresses; a relay's largest message follows the next model, if its size can be computed here."""
    path = holder.settings / "node.toml"
    if not path.is_file():
        raise BadInput(f"{holder.settings} has no node.toml, which says where others are; copy it from the run before")
    content = path.read_bytes()
    addresses = read_addresses(path)
    if holder.name == "relay":
        try:
            largest = most_bytes(experiment)
        except BadInput as problem:
            say(
                f"relay/node.toml stays as it is; adapt its largest if the next model is another one, because the data is not here: {problem}"
            )
        else:
            content = addresses_toml(msgspec.structs.replace(addresses, largest=largest)).encode()
    write_bytes(folder / "node.toml", content)


def _is_local(folder: Path) -> bool:
    addresses: Addresses = read_addresses(folder / "node.toml")
    return addresses.listen is not None and is_loopback(addresses.listen)
