"""Doctor: what would keep a deployed node from taking part, found before it is started.

Every check gives one finding: what was looked at, how it is, and what mends it. No check sends a message of the protocol, writes into a run,
or changes anything but permissions, and these only if asked to.
"""

from __future__ import annotations

import datetime as dt
import platform
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from epidemic import __version__
from epidemic.core.errors import BadInput, EpidemicError, plain
from epidemic.core.formatting import count, size
from epidemic.data import Dataset
from epidemic.deploy.addresses import Addresses, elsewhere, is_loopback, read_addresses, split_address
from epidemic.deploy.keys import HELD, Identity, node_id_of
from epidemic.deploy.wire import Refused
from epidemic.experiment import Experiment

EXPIRES_SOON = 30
"""Days of a certificate below which its end is worth a warning."""
MOST_SKEW = 60.0
"""Seconds by which clocks may differ without a warning; certificates are issued with an hour's tolerance."""
LITTLE_DISK, LEAST_DISK = 2**30, 100 * 2**20
"""Free bytes below which a warning is given, and below which a node should not be started."""
MOST_CONNECTED = 64
"""Addresses that are tried at once."""
PERSONAL, PRIVATE = 0o700, 0o600
"""Permissions of a node's folder and of its key."""

State = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    """What one check has shown."""

    check: str
    state: State
    found: str
    remedy: str = ""


def examine(
    folder: Path,
    settings: list[str] | None = None,
    *,
    fix: bool = False,
    insecure: bool = False,
    patience: float = 5.0,
) -> Iterator[Finding]:
    """Check the folder of a node, an observer or a relay, and what it needs from this machine and from the network.

    Args:
        folder: The folder, as `epidemic cluster init` made it.
        settings: What is different here, as KEY=VALUE, as for `epidemic node`.
        fix: Whether to mend permissions.
        insecure: Whether the nodes run without encryption; connections are then tried without TLS.
        patience: Seconds that a connection or an answer is waited for.

    Yields:
        One finding for each check, the first ones first. A check that needs what an earlier one found missing is left out.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a directory; give the folder of a node, made by 'epidemic cluster init'")
    missing = [name for name in (*HELD, "node.toml", "experiment.toml") if not (folder / name).is_file()]
    if missing:
        remedy = "copy the whole folder again from where 'epidemic cluster init' made it"
        yield Finding("files", "problem", f"{', '.join(missing)} missing", remedy)
    else:
        yield Finding("files", "ok", "keys, certificate, addresses and experiment are there")
    yield from _permissions(folder, fix)
    identity = None
    if not set(missing) & set(HELD):
        try:
            identity = Identity.load(folder)
        except BadInput as problem:
            yield _refused("certificate", problem)
        else:
            yield _certificate(identity)
    addresses = None
    if "node.toml" not in missing:
        try:
            addresses = read_addresses(folder / "node.toml")
        except BadInput as problem:
            yield _refused("addresses", problem)
    if identity is not None and addresses is not None:
        running = _runs(folder)
        yield from _listening(addresses, running)
        yield from _connections(identity, addresses, insecure=insecure, patience=patience)
        yield from _clocks(folder, insecure=insecure, patience=patience)
    yield _disk(folder)
    yield Finding("versions", "ok", _versions())
    if identity is not None and node_id_of(identity.name) is not None and "experiment.toml" not in missing:
        yield from _experiment(folder, identity.node_id, settings or [])


def _refused(check: str, problem: Exception) -> Finding:
    """A finding from an error message, whose last part is how to mend it."""
    found, _, remedy = " ".join(str(problem).split()).rpartition("; ")
    return Finding(check, "problem", found or remedy, remedy if found else "")


# -- the folder -------------------------------------------------------------------------------------------------------


def _permissions(folder: Path, fix: bool) -> Iterator[Finding]:
    """That nobody else can read the key, or change what is in the folder."""
    for path, wanted, forbidden, who in (
        (folder / "node.key", PRIVATE, 0o077, "others can read it"),
        (folder, PERSONAL, 0o022, "others can change what is in it"),
    ):
        try:
            mode = path.stat().st_mode & 0o777
        except OSError:
            continue
        if not mode & forbidden:
            yield Finding(f"permissions of {path.name}", "ok", f"mode {mode:o}")
            continue
        if fix:
            try:
                path.chmod(wanted)
            except OSError as problem:
                remedy = f"as its owner, run 'chmod {wanted:o} {path}'"
                yield Finding(f"permissions of {path.name}", "problem", f"mode {mode:o}: {problem.strerror}", remedy)
            else:
                yield Finding(f"permissions of {path.name}", "ok", f"mode {mode:o} was changed to {wanted:o}")
        else:
            remedy = f"run 'chmod {wanted:o} {path}', or add --fix"
            yield Finding(f"permissions of {path.name}", "problem", f"mode {mode:o}: {who}", remedy)


def _certificate(identity: Identity) -> Finding:
    """How long the certificate is good for."""
    expires = identity.certificate.not_valid_after_utc
    days = (expires - dt.datetime.now(dt.UTC)).days
    found = f"{identity.name}, good until {expires:%Y-%m-%d} ({days} day{'s' * (days != 1)})"
    if days < EXPIRES_SOON:
        return Finding(
            "certificate", "warning", found, "where the authority is, issue a new one with 'epidemic keys add'"
        )
    return Finding("certificate", "ok", found)


def _runs(folder: Path) -> bool:
    """Whether a process runs the node of this folder now."""
    from epidemic.runtime.run_directory import RunDirectory

    seeds = sorted((folder / "run").glob("seed-*"))
    with suppress(EpidemicError, OSError, ValueError):
        return any(RunDirectory(folder / "run", Experiment(), int(s.name.removeprefix("seed-"))).in_use for s in seeds)
    return False


def _disk(folder: Path) -> Finding:
    """How much room there is for records and checkpoints."""
    free = shutil.disk_usage(folder).free
    found = f"{size(free)} free"
    if free < LITTLE_DISK:
        state: State = "problem" if free < LEAST_DISK else "warning"
        return Finding("disk", state, found, f"make room on the disk of {folder}: a node writes its models there")
    return Finding("disk", "ok", found)


def _versions() -> str:
    """What the others should have in common with this machine."""
    from importlib.metadata import version

    return (
        f"epidemic {__version__}, Python {platform.python_version()}, PyTorch {version('torch')},"
        f" Zenoh {version('eclipse-zenoh')}"
    )


# -- the network ------------------------------------------------------------------------------------------------------


def _listening(addresses: Addresses, running: bool) -> Iterator[Finding]:
    """That the address to listen on is free, and that others can be told of it."""
    if addresses.listen is None:
        found = "not at all" + (": everything goes through the relay" if addresses.relay else "")
        yield Finding("listening", "ok", found)
        return
    if running:
        yield Finding("listening", "ok", f"{addresses.listen}: the node runs now")
        return
    host, port = split_address(addresses.listen)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        remedy = "end what uses it, or change listen in node.toml"
        yield Finding("listening", "problem", f"{addresses.listen}: {reason}", remedy)
    else:
        yield Finding("listening", "ok", f"{addresses.listen} is free")


def _connections(identity: Identity, addresses: Addresses, *, insecure: bool, patience: float) -> Iterator[Finding]:
    """That the addresses to connect to lead to somebody with a certificate of the same authority."""
    if not addresses.connect:
        yield Finding("connections", "ok", "none: others connect to this node")
        return

    def attempt(address: str) -> tuple[Finding, bool]:
        return _connect(identity, address, insecure=insecure, patience=patience)

    with ThreadPoolExecutor(min(MOST_CONNECTED, len(addresses.connect))) as pool:
        tried = list(pool.map(attempt, addresses.connect))
    yield from (finding for finding, _ in tried)
    if not any(answered for _, answered in tried):
        what = "the relay" if addresses.relay else "any of the others"
        found = f"none of {len(tried)} answers" if len(tried) > 1 else "the only one does not answer"
        remedy = f"start {what}, or check firewalls and node.toml; one that answers is enough"
        yield Finding("connections", "problem" if addresses.relay else "warning", found, remedy)


def _connect(identity: Identity, address: str, *, insecure: bool, patience: float) -> tuple[Finding, bool]:
    """Open a connection and close it again; also returns whether somebody with a certificate of ours was there."""
    check, (host, port) = f"connection to {address}", split_address(address)
    if not is_loopback(address):
        try:
            host, port = split_address(elsewhere(address))
        except BadInput as problem:
            return Finding(check, "problem", str(problem), "correct connect in node.toml"), False
    try:
        connection = socket.create_connection((host, port), timeout=patience)
    except OSError as problem:
        reason = "no answer" if isinstance(problem, TimeoutError) else problem.strerror or str(problem)
        return Finding(check, "warning", reason, "is it started, and does a firewall let it through?"), False
    with connection:
        if insecure:
            return Finding(check, "ok", "answers, without encryption"), True
        return _greet(identity, check, connection)


def _greet(identity: Identity, check: str, connection: socket.socket) -> tuple[Finding, bool]:
    """See whose certificate is at the other end, and that ours is taken there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # who somebody is, is the name in the certificate, not the host's
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.load_verify_locations(identity.folder / "authority.pem")
    context.load_cert_chain(identity.folder / "node.pem", identity.folder / "node.key")
    try:
        with context.wrap_socket(connection) as tls:
            encoded = tls.getpeercert(binary_form=True) or b""
            tls.settimeout(0.5)
            with suppress(TimeoutError):  # nothing is wrong where nothing is said
                tls.recv(1)
    except ssl.SSLCertVerificationError as problem:
        remedy = "is it of this cluster, and are both clocks right?"
        return Finding(check, "problem", f"its certificate is refused: {problem.verify_message}", remedy), False
    except TimeoutError:
        return Finding(
            check, "problem", "something listens but does not answer", "is it a node of this cluster?"
        ), False
    except (ssl.SSLError, OSError) as problem:
        reason = getattr(problem, "reason", None) or str(problem)
        remedy = "is it a node of this cluster, and is the certificate here good there?"
        return Finding(check, "problem", f"no encrypted connection ({plain(str(reason), 60)})", remedy), False
    try:
        name, _, expires = identity.recognise(encoded)
    except Refused as problem:
        return Finding(check, "problem", f"its certificate is refused: {problem}", "issue a new one for it"), False
    if name == identity.name:
        return Finding(check, "problem", f"leads to {name}, which is this node itself", "correct node.toml"), False
    return Finding(check, "ok", f"{plain(name, 24)}, certificate good until {expires:%Y-%m-%d}"), True


def _clocks(folder: Path, *, insecure: bool, patience: float) -> Iterator[Finding]:
    """By how much this machine's clock differs from those of running nodes, which only an observer may ask."""
    from epidemic.deploy.watching import StatusWatcher

    observer = folder if (folder / "node.pem").is_file() and folder.name == "observer" else folder.parent / "observer"
    if not (observer / "node.key").is_file():
        yield Finding(
            "clock", "ok", f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M:%S} UTC; no observer's folder to compare"
        )
        return
    try:
        watcher = StatusWatcher(observer, insecure=insecure)
    except EpidemicError:
        yield Finding("clock", "ok", f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M:%S} UTC; no running node was asked")
        return
    try:
        watcher.wait(patience)
        began = time.time()
        statuses = watcher.ask(min(2.0, patience))
        ended = time.time()
    finally:
        watcher.close()
    told = {s.node_id: s.clock for s in statuses if isinstance(s.clock, float)}
    if not told:
        yield Finding("clock", "ok", f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M:%S} UTC; no running node answers")
        return
    apart = {node: max(began - clock, clock - ended, 0.0) for node, clock in told.items()}
    worst = max(apart, key=lambda node: apart[node])
    found = f"at most {apart[worst]:.0f} s from the clocks of {len(told)} running node{'s' * (len(told) != 1)}"
    if apart[worst] <= MOST_SKEW:
        yield Finding("clock", "ok", found)
    else:
        found = f"{apart[worst]:.0f} s from node {worst}'s, of {len(told)} that answer"
        yield Finding("clock", "warning", found, "set both clocks by NTP; certificates tolerate one hour")


# -- the experiment ---------------------------------------------------------------------------------------------------


def _experiment(folder: Path, node_id: int, settings: list[str]) -> Iterator[Finding]:
    """That the experiment can be deployed, its data read, its model made, and where its run is."""
    from epidemic.deploy.node import experiment_of
    from epidemic.runtime.setup import prepare
    from epidemic.runtime.start import read_start

    def attempt(check: str, work: Callable[[], tuple[object, str]]) -> tuple[object, Finding]:
        try:
            value, found = work()
        except EpidemicError as problem:
            return None, _refused(check, problem)
        except MemoryError:
            return None, Finding(check, "problem", "not enough memory", "use a machine with more")
        except Exception as problem:  # the author's own code: anything may come out of it
            said = f"{type(problem).__name__}: {plain(' '.join(str(problem).split()))}"
            return None, Finding(check, "problem", said, "mend the code that the experiment names")
        return value, Finding(check, "ok", found)

    def read() -> tuple[Experiment, str]:
        experiment = experiment_of([folder], settings)
        experiment.check_names()
        if node_id >= experiment.nodes:
            raise BadInput(
                f"the certificate is for node {node_id}, but the experiment has nodes 0 to {experiment.nodes - 1};"
                " copy the experiment again"
            )
        table = experiment.table()
        words = f"{table['topology']['kind']}, {table['algorithm']['kind']}"
        return experiment, f"{count(experiment.nodes, 'node')}, {count(experiment.rounds, 'round')}, {words}"

    experiment, finding = attempt("experiment", read)
    yield finding
    if not isinstance(experiment, Experiment):
        return

    if experiment.own_training:
        yield Finding("model", "ok", "in a script of your own; nodes compare what travels when they meet")
        yield _memory(True)
        yield _state_of_run(folder, experiment)
        return

    def load() -> tuple[object, str]:
        data = experiment.load_data()
        parts = [f"{len(data.train.targets)} training and {len(data.test.targets)} test samples"]
        parts.append(f"inputs {'x'.join(map(str, data.input_shape)) or 'of one number'}")
        if data.classes:
            shown = ", ".join(plain(name, 24) for name in data.classes[:6])
            parts.append(f"{count(len(data.classes), 'class')} ({shown}{', ...' * (len(data.classes) > 6)})")
        if data.features:
            shown = ", ".join(plain(name, 24) for name in data.features[:6])
            parts.append(f"{len(data.features)} columns ({shown}{', ...' * (len(data.features) > 6)})")
        return data, "; ".join(parts)

    data, finding = attempt("data", load)
    yield finding
    if not isinstance(data, Dataset):
        return

    def make() -> tuple[object, str]:
        _, weights = read_start(folder)
        setup = prepare(experiment, experiment.seeds[0], data, [node_id], weights=weights)
        row = setup.task.layout.size * setup.task.layout.dtype.itemsize
        own = len(setup.parts[0])
        where = setup.task.device.type
        return setup, f"{setup.task.layout.size} numbers ({size(row)}), {count(own, 'sample')} of its own, on {where}"

    _, finding = attempt("model", make)
    yield finding
    yield _memory(finding.state == "ok")
    yield _state_of_run(folder, experiment)


def _memory(fits: bool) -> Finding:
    """How much memory is free; whether the model fits was found when it was made."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return Finding("memory", "ok", "not reported by this system")
    if fits:
        return Finding("memory", "ok", f"{size(free)} available")
    return Finding("memory", "warning", f"{size(free)} available", "see the model")


def _state_of_run(folder: Path, experiment: Experiment) -> Finding:
    """Whether the node has run already."""
    from epidemic.runtime.run_directory import RunDirectory

    run_directory = RunDirectory(folder / "run", experiment, experiment.seeds[0])
    try:
        run_directory.check(resume=True)
        if run_directory.in_use:
            return Finding("run", "ok", "the node runs now")
        if run_directory.finished:
            remedy = "for more, start all nodes with --set rounds=N"
            return Finding("run", "ok", f"finished: {run_directory.path}", remedy)
        if run_directory.run_info() is not None:
            return Finding("run", "ok", "was stopped; the same command resumes it")
    except EpidemicError as problem:
        return _refused("run", problem)
    return Finding("run", "ok", "not begun")
