"""Cluster: the folders of a run's nodes, all of them as processes on this machine, and asking running ones how they are."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from epidemic.errors import BadInput, EpidemicError, Interrupted, RunFailed, require_int
from epidemic.experiment import Experiment, load, to_toml
from epidemic.files import write_bytes
from epidemic.net import transport
from epidemic.net.keys import DAYS, Authority, Identity, host_name
from epidemic.net.node import Status, run_node
from epidemic.net.terms import check_deployable
from epidemic.net.transport import Addresses, Transport, is_loopback, split_address
from epidemic.workers import available_threads


def make_cluster(
    experiment: Experiment,
    hosts: Sequence[str],
    root: Path,
    *,
    days: int = DAYS,
    relay: str | None = None,
) -> list[Path]:
    """Keys, the experiment and one folder per place; places beyond the hosts are spare."""
    check_deployable(experiment)
    if len(hosts) > experiment.nodes:
        raise BadInput(f"--hosts names {len(hosts)} hosts, but the experiment has nodes = {experiment.nodes}")
    if len(hosts) < 1:
        raise BadInput("--hosts names nobody; give host:port,host:port,...")
    if len(set(hosts)) < len(hosts):
        raise BadInput("--hosts names an address twice; every node needs its own")
    for host in (*hosts, *((relay,) if relay else ())):
        host_name(split_address(host)[0])
    require_int("--days", days, 1, 3649)
    if experiment.network.close == "barrier" and len(hosts) < experiment.nodes:
        raise BadInput(
            f'network.close = "barrier" needs all {experiment.nodes} nodes from the start; --hosts names {len(hosts)}'
        )
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise BadInput(f"{root} exists already; choose another directory")
    authority = Authority.create(root)
    text = to_toml(experiment).encode()
    write_bytes(root / "experiment.toml", text)
    founders = tuple(range(len(hosts)))
    folders = []
    for place in range(experiment.nodes):
        own = hosts[place] if place < len(hosts) else None
        folder = authority.issue(f"node-{place}", [split_address(own)[0]] if own else [], days)
        others = [host for i, host in enumerate(hosts) if i != place]
        comments = [
            "Where this node listens and whom it looks for. One of them that answers is enough to find the others;",
            "those named here are also looked for again when a connection breaks.",
        ]
        if relay is not None:
            where = Addresses(None, (relay,), True, founders)
        elif own is None:
            comments.append("A spare place: give the address that others can reach it at.")
            where = Addresses("0.0.0.0:7447", tuple(others), False, founders)
        else:
            host, port = split_address(own)
            listen = own if is_loopback(own) else f"0.0.0.0:{port}"
            where = Addresses(listen, tuple(others), False, founders)
            if not is_loopback(own):
                comments.append(f"Others look for it at {host}:{port}.")
        write_bytes(folder / "node.toml", transport.to_toml(where, comments).encode())
        write_bytes(folder / "experiment.toml", text)
        folders.append(folder)
    observer = authority.issue("observer", [], days)
    known = Addresses(None, (relay,) if relay else tuple(hosts), relay is not None, founders)
    write_bytes(observer / "node.toml", transport.to_toml(known, ["Whom to ask."]).encode())
    write_bytes(observer / "experiment.toml", text)
    if relay is not None:
        folder = authority.issue("relay", [split_address(relay)[0]], days)
        listen = relay if is_loopback(relay) else f"0.0.0.0:{split_address(relay)[1]}"
        write_bytes(folder / "node.toml", transport.to_toml(Addresses(listen), ["Where the relay listens."]).encode())
        write_bytes(folder / "experiment.toml", text)
    return folders


def take_over(root: Path, base: str, folder: Path) -> None:
    """Give a new certificate's folder what the one before it had: its addresses and the experiment."""
    earlier = sorted(
        p for p in root.glob(f"{base}*") if p != folder and (p.name == base or p.name.startswith(base + "."))
    )
    for name in ("node.toml", "experiment.toml"):
        for other in [*reversed(earlier), root]:
            if (other / name).is_file():
                write_bytes(folder / name, (other / name).read_bytes())
                break


# -- asking -----------------------------------------------------------------------------------------------------------


class Observer:
    """Somebody who asks nodes how they are, with a certificate of its own."""

    def __init__(self, folder: Path, *, insecure: bool = False) -> None:
        self._identity = Identity.load(folder)
        addresses = transport.read_addresses(folder / "node.toml")
        if addresses.listen is not None:  # a node's own folder
            host, port = split_address(addresses.listen)
            here = f"127.0.0.1:{port}" if host == "0.0.0.0" else addresses.listen  # noqa: S104
            addresses = Addresses(None, (here, *addresses.connect), addresses.relay)
        nodes = load(folder / "experiment.toml").nodes
        self._transport = Transport(self._identity, addresses, nodes=nodes, insecure=insecure)

    def ask(self, timeout: float = 2.0) -> list[Status]:
        """Every node that answers, by place."""
        found = {}
        for answer in self._transport.ask("status", None, b"", timeout):
            with suppress(msgspec.MsgspecError):
                status = msgspec.json.decode(answer, type=Status)
                found[status.place] = status
        return [found[place] for place in sorted(found)]

    def wait(self, patience: float) -> list[Status]:
        """The same, but give those asked time to be found."""
        end = time.monotonic() + patience
        best: list[Status] = []
        while True:
            now = self.ask(min(2.0, patience))
            settled = bool(now) and len(now) == len(best)
            best = now if len(now) >= len(best) else best
            if settled or time.monotonic() >= end:
                return best
            time.sleep(0.3)

    def close(self) -> None:
        """Leave."""
        self._transport.close()


# -- all on this machine ----------------------------------------------------------------------------------------------


@dataclass
class Child:
    """The process of one node."""

    place: int
    folder: Path
    process: Any

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return bool(self.process.is_alive())


def _child(folder: str, insecure: bool, threads: int) -> None:
    """The life of a node's process: its words go to node.log, the reason of its end to the exit code."""
    with suppress(AttributeError, PermissionError):
        os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the node itself attends to it
    path = Path(folder)
    with (path / "node.log").open("a", encoding="utf-8", buffering=1) as log:
        began = time.time()

        def say(text: str) -> None:
            with suppress(OSError, ValueError):
                log.write(f"{time.time() - began:9.2f}  {text}\n")

        try:
            run_node(path, insecure=insecure, threads=threads, say=say)
            code = 0
        except (Interrupted, KeyboardInterrupt) as stop:
            say(str(stop) or "interrupted")
            code = 130
        except EpidemicError as problem:
            say(f"error: {' '.join(str(problem).split())}")
            code = 2 if isinstance(problem, BadInput) else 1
        except Exception as problem:
            if "EPIDEMIC_DEBUG" in os.environ:
                import traceback

                traceback.print_exc(file=log)
            say(f"error: unexpected {type(problem).__name__}: {problem}")
            code = 1
    sys.stdout.flush()
    os._exit(code)  # Zenoh's threads need no farewell


def _end_with_parent() -> None:
    """Save and end when nobody is left to stop this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class Cluster:
    """All nodes of a run as processes of this machine."""

    def __init__(self, folders: Sequence[Path], *, insecure: bool = False) -> None:
        self._insecure = insecure
        self._context: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
        if hasattr(os, "fork"):  # PyTorch, with what vmap needs, is imported once for all
            multiprocessing.set_forkserver_preload(["epidemic.net.node", "torch._dynamo"])
        self._threads = max(1, available_threads() // max(1, len(folders)))
        self.children: list[Child] = []
        try:
            for place, folder in enumerate(folders):
                self.children.append(self._start(place, folder))
        except BaseException:
            self.stop(5)
            raise

    def _start(self, place: int, folder: Path) -> Child:
        process = self._process(place, folder)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        return Child(place, folder, process)

    def _process(self, place: int, folder: Path) -> Any:
        return self._context.Process(target=_child, args=(str(folder), self._insecure, self._threads), daemon=False)

    def restart(self, place: int) -> None:
        """Start a node again."""
        self.children[place] = self._start(place, self.children[place].folder)

    def kill(self, place: int) -> None:
        """As a crash does it."""
        self.children[place].process.kill()
        self.children[place].process.join()

    def wait(self, timeout: float | None = None, each: Callable[[], None] = lambda: None) -> bool:
        """Until all have ended; False if time is up before."""
        end = None if timeout is None else time.monotonic() + timeout
        while any(child.running for child in self.children):
            each()
            multiprocessing.connection.wait([c.process.sentinel for c in self.children if c.running], 0.2)
            if end is not None and time.monotonic() > end:
                return False
        return True

    def stop(self, patience: float = 60.0) -> None:
        """Ask all to save and end; kill who does not."""
        for child in self.children:
            if child.running:
                child.process.terminate()
        if not self.wait(patience):
            for child in self.children:
                child.process.kill()
                child.process.join()

    def final(self, status: Status) -> Status | None:
        """The status of a node that has finished since; None if it has not."""
        child = self.children[status.place]
        if child.process.exitcode != 0:
            return None
        for path in (child.folder / "run").glob("seed-*/nodes.json"):
            node = msgspec.json.decode(path.read_bytes())[0]
            sent = sum(node["bytes"].values())
            return msgspec.structs.replace(
                status, state="done", round=status.rounds, accuracy=node["final_accuracy"], bytes=sent
            )
        return None

    def problems(self) -> dict[int, str]:
        """Why nodes did not come to their end, by place."""
        found = {}
        for child in self.children:
            code = child.process.exitcode
            if code not in (0, None):
                log = child.folder / "node.log"
                last = log.read_text(encoding="utf-8").strip().splitlines()[-1:] if log.is_file() else []
                ended = f"killed by signal {-code}" if code < 0 else f"ended with {code}"
                said = last[0][11:].removeprefix("error: ") if last and code > 0 else ended
                found[child.place] = said
        return found


def run_failed(problems: dict[int, str], root: Path) -> RunFailed:
    """One line about the nodes that failed."""
    place, reason = next(iter(problems.items()))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return RunFailed(f"node {place} failed{more}: {reason}; see {root / f'node-{place}' / 'node.log'}")
