"""All nodes of a run on this machine, in one process each or several to a process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from epidemic.core import children
from epidemic.core.children import process_context
from epidemic.core.errors import BadInput, EpidemicError, Interrupted, RunFailed, plain, require_int
from epidemic.core.workers import available_threads
from epidemic.deploy.extending import finished_folders
from epidemic.deploy.isolation import delivery_in
from epidemic.deploy.node import run_node
from epidemic.deploy.runtime import compute_in_stretches, enough_threads
from epidemic.deploy.status import Status

LONGEST_LINE = 2000
"""Most characters of a line in node.log, which may quote other nodes."""
_TIME = 11
"""Characters before it: the seconds since the start."""


@dataclass
class Child:
    """A process with its nodes; the first is its carrier, whose folder has node.log."""

    node_ids: range
    folders: tuple[Path, ...]
    process: Any
    said_before: int = 0
    """Bytes in node.log when the process was started."""

    @property
    def node_id(self) -> int:
        """The node id of its carrier."""
        return self.node_ids[0]

    @property
    def folder(self) -> Path:
        """The folder of its carrier."""
        return self.folders[0]

    @property
    def running(self) -> bool:
        """Whether the process is still running."""
        return bool(self.process.is_alive())

    @property
    def log(self) -> Path:
        """The path of its log."""
        return self.folder / "node.log"

    @property
    def last_words(self) -> str:
        """The last line of its log since it was started, without the time."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(self.said_before, log.seek(0, os.SEEK_END) - 2 * LONGEST_LINE))
                lines = log.read().decode("utf-8", "replace").rstrip().splitlines()
        except OSError:
            return ""
        return lines[-1][_TIME:] if lines else ""

    @property
    def named(self) -> str:
        """The nodes of the process, as messages name them."""
        first, last = self.node_ids[0], self.node_ids[-1]
        return f"node {first}" if first == last else f"the process of nodes {first} to {last}"


def blocks(count: int, processes: int) -> list[range]:
    """Split `count` nodes into contiguous blocks whose sizes differ by at most one."""
    require_int("--processes", processes, 1)
    if processes > count:
        raise BadInput(f"--processes = {processes} must be at most nodes = {count}: a process hosts at least one")
    edges = [count * i // processes for i in range(processes + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def _child(folders: list[str], insecure: bool, threads: int, here: int) -> None:
    """The main function of a process: output goes to node.log, the outcome to the exit code."""
    children.on_its_own(lambda: os.kill(os.getpid(), signal.SIGTERM))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the node itself handles it
    enough_threads(here, here)
    compute_in_stretches()
    paths = [Path(folder) for folder in folders]
    with (paths[0] / "node.log").open("a", encoding="utf-8", buffering=1) as log:
        began = time.time()

        def say(text: str) -> None:
            with suppress(OSError, ValueError):
                log.write(f"{time.time() - began:9.2f}  {plain(text, LONGEST_LINE)}\n")

        say("starting")
        try:
            run_node(paths, insecure=insecure, threads=threads, here=here, say=say)
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
    os._exit(code)  # does not wait for Zenoh's threads


class LocalCluster:
    """All nodes of a run in processes on this machine."""

    def __init__(self, folders: Sequence[Path], processes: int | None = None, *, insecure: bool = False) -> None:
        """Prepare one process per folder, or `processes` of them, each with a contiguous block of folders."""
        parts = blocks(len(folders), len(folders) if processes is None else processes)
        self._insecure = insecure
        self._context = process_context("epidemic.deploy.node")
        self._here = len(parts)
        self._threads = max(1, available_threads() // max(1, len(parts)))
        self.children: list[Child] = []
        try:
            for node_ids in parts:
                self.children.append(self._start(node_ids, [folders[node_id] for node_id in node_ids]))
        except BaseException:
            self.stop(5)
            raise

    def _start(self, node_ids: range, folders: Sequence[Path]) -> Child:
        process = self._process(node_ids, folders)
        child = Child(node_ids, tuple(folders), process)
        with suppress(OSError):
            child.said_before = child.log.stat().st_size
        children.start(process)
        return child

    def _process(self, node_ids: range, folders: Sequence[Path]) -> Any:
        arguments = ([str(folder) for folder in folders], self._insecure, self._threads, self._here)
        return self._context.Process(target=_child, args=arguments, daemon=False)

    def hosting(self, node_id: int) -> Child:
        """The process that hosts a node."""
        return next(child for child in self.children if node_id in child.node_ids)

    def add(self, node_id: int, folder: Path) -> None:
        """Start one more node in a process of its own: a spare one, or a node again with another folder."""
        self.children = [child for child in self.children if node_id not in child.node_ids]
        self.children.append(self._start(range(node_id, node_id + 1), [folder]))
        self.children.sort(key=lambda child: child.node_id)

    def restart(self, node_id: int) -> None:
        """Start the process of a node again."""
        child = self.hosting(node_id)
        self.children[self.children.index(child)] = self._start(child.node_ids, child.folders)

    def kill(self, node_id: int) -> None:
        """Kill the process of a node, like a crash."""
        process = self.hosting(node_id).process
        process.kill()
        process.join()

    def wait(self, timeout: float | None = None, each: Callable[[], None] = lambda: None) -> bool:
        """Wait until all have ended; False if the time is up before."""
        end = None if timeout is None else time.monotonic() + timeout
        processes = [child.process for child in self.children]
        while any(process.is_alive() for process in processes):
            each()
            children.wait_for_any(processes, 0.2)
            if end is not None and time.monotonic() > end:
                return False
        return True

    def stop(self, patience: float = 60.0) -> None:
        """Ask all to save and end; kill those that do not."""
        children.stop([child.process for child in self.children], patience)

    def final(self, status: Status) -> Status | None:
        """The status of a node that has finished since; None if it has not."""
        child = self.hosting(status.node_id)
        if child.process.exitcode != 0:
            return None
        folder = child.folders[status.node_id - child.node_id]
        for path in (folder / "run").glob("seed-*/nodes.json"):
            node = msgspec.json.decode(path.read_bytes())[0]
            sent, delivery = sum(node["bytes"].values()), delivery_in(folder)
            return msgspec.structs.replace(
                status,
                state="done",
                round=status.rounds,
                accuracy=node["final_accuracy"],
                bytes=sent,
                delivery=delivery,
            )
        return None

    def finished(self) -> list[Path]:
        """The folders of the nodes that have finished, by node id."""
        return finished_folders([folder for child in self.children for folder in child.folders])

    def problems(self) -> dict[int, str]:
        """Why processes failed, by the node id of their carriers."""
        found = {}
        for child in self.children:
            code = child.process.exitcode
            if code not in (0, None):
                last = child.last_words
                ended = f"killed by signal {-code}" if code < 0 else f"ended with {code}"
                found[child.node_id] = last.removeprefix("error: ") if last and code > 0 else ended
        return found

    def failure(self, problems: dict[int, str]) -> RunFailed:
        """One error for all that failed."""
        node_id, reason = next(iter(problems.items()))
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        child = self.hosting(node_id)
        return RunFailed(f"{child.named} failed{more}: {reason}; see {child.log}")
