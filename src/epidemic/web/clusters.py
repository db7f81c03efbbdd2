"""Running clusters: nodes are asked how they are, in one thread a cluster, as long as somebody looks; what they write down is read as well."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from statistics import median_low
from typing import Any

import msgspec

from epidemic.core.errors import EpidemicError, plain
from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.deploy.status import Status
from epidemic.experiment import read_toml
from epidemic.record import HeardCounts
from epidemic.topology import is_static, topology_from
from epidemic.web.watch import Folders, WatchedRun, plain_file

EVERY = 1.0
"""Seconds between two status requests."""
PATIENCE = 4.0
"""Seconds without an answer after which a node counts as gone."""
RECENT = 3.0
"""Seconds for which messages that were late or refused are shown."""
LINGER = 20.0
"""Seconds that nodes are asked on after the last visitor."""
COLUMNS = 72
"""Number of updates in the history."""
MOST_LINKS = 700
"""More links than these make a picture unreadable."""
BEHIND = 2
"""So many rounds behind the middle of the nodes is late."""


class StatusAnswer(msgspec.Struct, frozen=True):
    """The last status received from a node."""

    status: Status
    at: float
    late_at: float = -1e9  # when messages to it were last late
    refused_at: float = -1e9  # when it last refused some


class ShownNode(msgspec.Struct, frozen=True):
    """A node in the form in which it is shown."""

    node_id: int
    state: str  # alive, late, refused, joining, finished, failed, stopped, gone, or absent: never seen
    why: str = ""
    round: int = 0
    rounds: int = 0
    accuracy: float | None = None
    loss: float | None = None
    sent: int | None = None
    status: Status | None = None
    delivery: HeardCounts | None = None  # messages that counted of those expected

    @property
    def up(self) -> bool:
        """Whether the node takes part now."""
        return self.state in ("alive", "late", "refused")

    @property
    def unit(self) -> str:
        """What `round` counts: where there are no rounds, seconds."""
        return "round" if self.status is None or self.status.trained is None else "second"


class Asker:
    """Asks nodes for their status while somebody watches."""

    def __init__(self, folder: Path, *, insecure: bool) -> None:
        self._folder, self._insecure = folder, insecure
        self._lock = threading.Lock()
        self._answers: dict[int, StatusAnswer] = {}
        self._problem = ""
        self._until = 0.0
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self.asked_since = 0.0

    def wanted(self) -> tuple[dict[int, StatusAnswer], str]:
        """The known statuses; keeps asking for a while."""
        with self._lock:
            self._until = time.monotonic() + LINGER
            if self._thread is None and not self._stopped.is_set():
                self.asked_since = time.monotonic()
                self._thread = threading.Thread(target=self._ask, name="asker", daemon=True)
                self._thread.start()
            return dict(self._answers), self._problem

    def close(self) -> None:
        """Stop asking the nodes, and wait for the thread to end."""
        self._stopped.set()
        thread = self._thread
        if thread is not None:
            thread.join(3.0)

    def _ask(self) -> None:
        from epidemic.deploy.watching import StatusWatcher

        watcher: StatusWatcher | None = None
        try:
            while not self._stopped.is_set():
                with self._lock:
                    if time.monotonic() > self._until:
                        self._thread = None
                        return
                try:
                    watcher = StatusWatcher(self._folder, insecure=self._insecure) if watcher is None else watcher
                    found, problem = watcher.ask(1.0), ""
                except Exception as error:  # whatever the files of somebody else hold
                    found, problem = [], plain(str(error) if isinstance(error, EpidemicError) else repr(error))
                with self._lock:
                    self._problem = problem
                    now = time.monotonic()
                    self._answers |= {s.node_id: _heard(self._answers.get(s.node_id), s, now) for s in found}
                self._stopped.wait(EVERY)
        finally:
            if watcher is not None:
                watcher.close()


def _heard(before: StatusAnswer | None, status: Status, now: float) -> StatusAnswer:
    if before is None:
        return StatusAnswer(status, now)
    late = now if status.late > before.status.late else before.late_at
    refused = now if status.refused > before.status.refused else before.refused_at
    return StatusAnswer(status, now, late, refused)


class WatchedCluster:
    """A cluster as it is now, and as it was at the last looks."""

    def __init__(self, folders: Folders, *, insecure: bool = False) -> None:
        self.folders = folders
        self.asker = None if folders.asker is None else Asker(folders.asker, insecure=insecure)
        self.members: list[ShownNode] = []
        self.problem = ""
        self.history: deque[tuple[int, dict[int, str]]] = deque(maxlen=COLUMNS)
        self._experiment: dict[str, Any] | None = None

    @property
    def experiment(self) -> dict[str, Any]:
        """The tables of its file; nothing that they name is imported."""
        if self._experiment is None:
            node_ids = [self.folders.path, self.folders.asker, *self.folders.nodes.values()]
            for node_id in (p for p in node_ids if p is not None and plain_file(p / "experiment.toml")):
                try:
                    self._experiment = read_toml(node_id / "experiment.toml")
                    break
                except EpidemicError as problem:
                    self.problem = plain(str(problem))
        return self._experiment or {}

    @property
    def round(self) -> int:
        """The median round of the live nodes; if there are none, of those that have begun."""
        rounds = [m.round for m in self.members if m.up] or [m.round for m in self.members if m.round > 0]
        return median_low(rounds) if rounds else 0

    @property
    def unit(self) -> str:
        """What `round` counts: "round", or "second" for asynchronous methods."""
        return "second" if any(m.unit == "second" for m in self.members) else "round"

    def look(self, *, ask: bool) -> None:
        """Update the state of the nodes; `ask` them if somebody watches."""
        answers: dict[int, StatusAnswer] = {}
        waiting = False
        if self.asker is not None and ask:
            answers, problem = self.asker.wanted()
            self.problem = problem or self.problem
            waiting = time.monotonic() - self.asker.asked_since < 2 * PATIENCE
        nodes = self.experiment.get("nodes")
        node_ids = {*self.folders.nodes, *answers, *(range(min(nodes, 4096)) if isinstance(nodes, int) else ())}
        self.members = members(sorted(node_ids), answers, self.folders.runs, time.monotonic(), asked=bool(answers))
        if waiting and not answers:
            return
        seen = {m.node_id: m.state for m in self.members}
        if not self.history or self.history[-1] != (self.round, seen):
            self.history.append((self.round, seen))

    def links(self) -> Graph | None:
        """The graph of the current round; None if it is unknown here, or too large to draw."""
        table = self.experiment
        network, topology, seeds = table.get("network", {}), table.get("topology", {}), table.get("seeds", [1])
        private = isinstance(network, dict) and network.get("coin", "shared") != "shared"
        n = table.get("nodes")
        if private or not isinstance(n, int) or n > MOST_LINKS or _own(topology) or not isinstance(seeds, list):
            return None
        try:
            drawn = topology_from(topology)
            if self.unit == "second" and not is_static(drawn):  # nodes choose their targets at any time
                return None
            graph = drawn.graph(n, max(self.round, 0), Streams(seeds[0] if seeds else 1))
            return graph.explicit() if graph.messages <= MOST_LINKS else None
        except (EpidemicError, TypeError, ValueError):
            return None


def _own(topology: object) -> bool:
    """Whether a topology is a user's code, which looking at a page must not execute."""
    return not isinstance(topology, Mapping) or topology.get("kind") in (None, "python") or (
        "inner" in topology and _own(topology["inner"])
    )  # fmt: skip


def members(
    node_ids: list[int], answers: Mapping[int, StatusAnswer], runs: Mapping[int, WatchedRun], now: float, *, asked: bool
) -> list[ShownNode]:
    """The state of every node: from its answer, otherwise from the files of its run here."""
    rounds = [a.status.round for a in answers.values() if now - a.at < PATIENCE and a.status.state not in _OVER]
    middle = median_low(rounds) if rounds else 0
    return [_member(node_id, answers.get(node_id), runs.get(node_id), now, middle, asked=asked) for node_id in node_ids]


_OVER = ("lingering", "left", "done")
_JOINING = ("starting", "looking", "adopting")


def _member(
    node_id: int, answer: StatusAnswer | None, run: WatchedRun | None, now: float, middle: int, *, asked: bool
) -> ShownNode:
    here = None if run is None else _from_disk(node_id, run, asked=asked)
    if answer is None:
        return ShownNode(node_id, "absent") if here is None else here
    status = answer.status
    state, why = _state(answer, now, middle)
    if (
        here is not None
        and here.state in ("finished", "failed", "stopped", "gone")
        and (state == "gone" or here.state == "finished")
    ):
        state, why = here.state, here.why  # fmt: skip
    accuracy, loss = (
        (status.accuracy, status.loss) if here is None or state != "finished" else (here.accuracy, here.loss)
    )
    shown = status.rounds if state == "finished" else max(0, min(status.round, status.rounds))
    final = None if here is None or state != "finished" else here.delivery
    delivery = status.delivery if final is None else final
    return ShownNode(node_id, state, why, shown, status.rounds, accuracy, loss, status.bytes, status, delivery)


def _state(answer: StatusAnswer, now: float, middle: int) -> tuple[str, str]:
    status = answer.status
    if status.state in _OVER:
        return "finished", ""
    if status.state == "failed":
        return "failed", "it says that it has failed"
    if now - answer.at >= PATIENCE:
        return "gone", "it no longer answers"
    if status.state in _JOINING:
        return "joining", status.state
    if now - answer.refused_at < RECENT:
        return "refused", "it has just refused messages: " + ", ".join(f"{k} {v}" for k, v in status.refusals.items())
    if status.trained is None and middle - status.round >= BEHIND:
        return "late", f"{middle - status.round} rounds behind"
    if now - answer.late_at < RECENT:
        return "late", "recent messages to it were late"
    return "alive", status.state


def _from_disk(node_id: int, run: WatchedRun, *, asked: bool) -> ShownNode:
    """The state of a node from the files of its run."""
    found = run.state
    state, why = found.state, plain(found.why)
    if state == "running":
        state, why = ("joining", "it runs, but has not answered yet") if asked else ("alive", "")
    if state == "unfinished":
        state = "absent"
    last = run.by_seed[0][-1] if run.by_seed else None
    return ShownNode(
        node_id,
        state,
        why,
        run.round,
        run.rounds,
        None if last is None or last.accuracy is None else last.accuracy.mean,
        None if last is None else last.loss.mean,
        None if last is None else int(last.bytes.total.mean),
        delivery=None if last is None else last.delivery,
    )
