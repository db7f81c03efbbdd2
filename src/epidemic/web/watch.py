"""What there is to see below some directories: runs, sweeps and comparisons as groups of runs, and clusters.

Nothing is found by a name that somebody asks for: directories are walked, and what is found gets a key, a digest of its path. Links are
not followed, and hidden directories and keys are not entered.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from stat import S_ISREG
from typing import Any

import msgspec

from epidemic.core.errors import BadInput, plain
from epidemic.core.files import open_regular, read_json
from epidemic.record import Record
from epidemic.report.results import RunInfo
from epidemic.runtime.run_directory import RECORDS, STATE, RunState, read_state

# -- One seed's directory, read on as it is written: what is new since the last look, and how its run is -------------


INFO, SUMMARY = "run.json", "summary.json"
_READ = (INFO, RECORDS, STATE, SUMMARY)

LARGEST_LOOK = 2**26
"""Bytes of records that are read at one look; the rest is read at the next."""

LARGEST_LINE = 2**22
"""Bytes after which a line without an end is none that a run has written."""

Mark = tuple[int, int, int]  # inode, size and time: what changes when a file does


class LeftOut(Exception):
    """Why a directory is not shown."""


def marks_of(path: Path) -> dict[str, Mark]:
    """The files of a seed that are there.

    A directory with a link or anything else but plain files among them is not read at all, so that nothing outside is ever shown.
    """
    found: dict[str, Mark] = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_symlink():
                    raise LeftOut("it holds a symbolic link")
                if entry.name in (*_READ, ".lock"):
                    about = entry.stat(follow_symlinks=False)
                    if not S_ISREG(about.st_mode):
                        raise LeftOut(f"its {entry.name} is not a file")
                    found[entry.name] = (about.st_ino, about.st_size, about.st_mtime_ns)
    except OSError as problem:
        raise LeftOut(problem.strerror or str(problem)) from None
    return found


class Records:
    """records.jsonl, read on from where the last look ended; from its beginning, if it is another one now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: Mark | None = None
        self._restart()

    def _restart(self) -> None:
        self.rows: list[Record] = []
        self.problem = ""
        self._end, self._last = 0, b""  # the bytes read so far, and the last line among them

    def look(self, mark: Mark | None) -> bool:
        """Read what is new; returns whether there was anything."""
        if mark == self._mark:
            return False
        old, self._mark = self._mark, mark
        before = len(self.rows), self._end, self.problem
        if mark is None or (old is not None and (mark[0] != old[0] or mark[1] < old[1])):  # another file, or cut back
            self._restart()
        if mark is not None and not self._read_on():  # cut back and gone on with since the last look
            self._restart()
            self._read_on()
        return before != (len(self.rows), self._end, self.problem)

    def _read_on(self) -> bool:
        """Whether what was read before is still there; if so, read on."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._end - len(self._last))
                raw = file.read(len(self._last) if self.problem else LARGEST_LOOK)
        except OSError as problem:
            self.problem = f"{RECORDS} cannot be read: {problem.strerror}"
            return True
        except ValueError as problem:
            self.problem = f"{RECORDS} cannot be read: {problem}"
            return True
        if not raw.startswith(self._last):
            return False
        end = raw.rfind(b"\n") + 1
        if len(raw) == LARGEST_LOOK:
            self._mark = None  # there may be more
        try:
            for line in raw[len(self._last) : end].splitlines(keepends=True):
                self.rows.append(msgspec.json.decode(line, type=Record))
                self._last = line
                self._end += len(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
            self.problem = f"{RECORDS} is damaged after {len(self.rows)} records: {problem}"
        if len(raw) - end > LARGEST_LINE and not self.problem:
            self.problem = f"{RECORDS} is damaged after {len(self.rows)} records: a line has no end"
        return True


class WatchedSeed:
    """The known content of one seed's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info: RunInfo | None = None
        self.state = RunState("unknown")
        self.ended = False  # its results are written
        self._records = Records(path / RECORDS)
        self._marks: dict[str, Mark] = {}
        self._problem = ""

    @property
    def records(self) -> list[Record]:
        """The records that the seed has written so far."""
        return self._records.rows

    @property
    def problem(self) -> str:
        """What in the seed's directory cannot be read, in words; empty if nothing is wrong."""
        return self._problem or self._records.problem

    @property
    def number(self) -> int:
        """The seed's number, or -1 as long as it is not known."""
        return self.info.seed if self.info is not None else -1

    @property
    def round(self) -> int:
        """The last evaluated round; 0 before the first."""
        return self.records[-1].round if self.records else 0

    def look(self) -> bool:
        """Read what is new; returns whether anything changed."""
        marks = marks_of(self.path)
        before = (self.state, self.ended, self.problem, self.info)
        changed = self._records.look(marks.get(RECORDS))
        if marks.get(INFO) != self._marks.get(INFO) or (self.info is None and not self._problem):
            self._read_info()
        if marks != self._marks or self.state.state == "running":  # a process that is killed writes nothing down
            self.ended = SUMMARY in marks
            self.state = RunState("finished") if self.ended else read_state(self.path)
        self._marks = marks
        return changed or before != (self.state, self.ended, self.problem, self.info)

    def _read_info(self) -> None:
        try:
            self.info, self._problem = msgspec.convert(read_json(self.path / INFO), RunInfo), ""
        except (BadInput, msgspec.ValidationError) as problem:
            self.info, self._problem = None, f"{INFO} cannot be read: {problem}"


DEEPEST = 8
"""Depth to which directories are walked."""
MOST_RUNS = 5_000
"""Most runs shown; if more are left out, the page says so."""
WALKS = 0.1
"""The share of time spent looking for new directories."""

_SEED = re.compile(r"seed-[0-9]+")
_NODE = re.compile(r"node-([0-9]+)(\..*)?")
_CLOSED = ("authority", "__pycache__")
_ORDER = ("running", "failed", "gone", "stopped", "unfinished")


def key_of(path: Path) -> str:
    """What a directory is called in addresses."""
    return blake2b(os.fsencode(path), digest_size=8).hexdigest()


class WatchedRun:
    """A run: an experiment's directory with its seeds."""

    def __init__(self, path: Path, group: Path, place: int | None = None) -> None:
        self.path, self.group, self.place = path, group, place
        self.key = key_of(path)
        self.seeds: dict[Path, WatchedSeed] = {}
        self.stamp = 0  # counts its changes

    @property
    def known(self) -> list[WatchedSeed]:
        """Its seeds of which something can be shown."""
        return sorted((s for s in self.seeds.values() if s.info is not None), key=lambda seed: seed.number)

    @property
    def experiment(self) -> dict[str, Any]:
        """Its settings, as the tables of a file."""
        return next((seed.info.experiment for seed in self.known if seed.info is not None), {})

    @property
    def name(self) -> str:
        """The experiment's name, safe to be shown."""
        return plain(str(self.experiment.get("name", self.path.name)), 120)

    @property
    def kind(self) -> str:
        """The kind of the run's topology; "own" for a user's own."""
        topology = self.experiment.get("topology")
        return str(topology.get("kind", "own")) if isinstance(topology, dict) else "own"

    @property
    def rounds(self) -> int:
        """How many rounds the run is to have."""
        return int(self.experiment.get("rounds", 0))

    @property
    def wanted(self) -> int:
        """How many seeds it is to have."""
        asked = self.experiment.get("seeds")
        return max(len(asked) if isinstance(asked, list) else 1, len(self.seeds))

    @property
    def round(self) -> int:
        """The round of the seed that is least far."""
        return min((seed.round for seed in self.known), default=0)

    @property
    def by_seed(self) -> list[list[Record]]:
        """The records of the seeds that have some."""
        return [seed.records for seed in self.known if seed.records]

    @property
    def classes(self) -> bool:
        """Whether the last records have accuracies."""
        return bool(self.by_seed) and all(records[-1].accuracy is not None for records in self.by_seed)

    @property
    def state(self) -> RunState:
        """The combined state of its seeds: running, else what went wrong, else finished if all seeds are."""
        found = [self.unfinished(seed) for seed in self.known if not seed.ended]
        for state in _ORDER:
            for one in found:
                if one.state == state:
                    return one
        ended = sum(seed.ended for seed in self.known)
        if ended >= self.wanted:
            return RunState("finished")
        return RunState("unfinished", f"{ended} of {self.wanted} seeds are done, and none is running")

    @staticmethod
    def unfinished(seed: WatchedSeed) -> RunState:
        """The state of a seed; one without a state file counts as unfinished."""
        return RunState("unfinished") if seed.state.state == "unknown" else seed.state

    def look(self) -> None:
        """Read what is new in its seeds."""
        for seed in self.seeds.values():
            with suppress(LeftOut):  # said by the walk
                self.stamp += seed.look()


class Folders:
    """A cluster's directory: its nodes' folders with their runs, and the folder with the observer's certificate."""

    def __init__(self, path: Path, title: str) -> None:
        self.path, self.title, self.key = path, title, key_of(path)
        self.asker: Path | None = None
        self.nodes: dict[int, Path] = {}
        self.runs: dict[int, WatchedRun] = {}


class Catalogue:
    """Everything found so far, kept up to date by `look`."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self.roots: dict[Path, str] = {}
        for directory in directories:
            if not directory.exists():
                raise BadInput(f"{directory} does not exist; make it first, or give the directory of a run")
            if not directory.is_dir():
                raise BadInput(
                    f"{directory} is a file; give the directory of a run, a comparison, a sweep or a cluster"
                )
            self.roots.setdefault(directory.resolve(), str(directory))
        if not self.roots:
            raise BadInput("no directory was given; name at least one that holds runs, or will")
        self.runs: dict[Path, WatchedRun] = {}
        self.clusters: dict[Path, Folders] = {}
        self.notes: list[str] = []
        self._walk_at = 0.0

    @property
    def groups(self) -> dict[Path, list[WatchedRun]]:
        """The runs that are not of a cluster's nodes, by the directory that holds them."""
        found: dict[Path, list[WatchedRun]] = {}
        for run in self.runs.values():
            if run.place is None and run.known:
                found.setdefault(run.group, []).append(run)
        return {path: sorted(runs, key=lambda run: natural(str(run.path))) for path, runs in sorted(found.items())}

    def run(self, key: str) -> WatchedRun | None:
        """Return the run with this key, or None."""
        return next((run for run in self.runs.values() if run.key == key and run.known), None)

    def group(self, key: str) -> Path | None:
        """Return the directory of several runs with this key, or None."""
        return next((path for path in self.groups if key_of(path) == key), None)

    def cluster(self, key: str) -> Folders | None:
        """Return the cluster with this key, or None."""
        return next((cluster for cluster in self.clusters.values() if cluster.key == key), None)

    def title(self, path: Path) -> str:
        """A directory's title: its path relative to the given one, safe to be shown."""
        for root, given in self.roots.items():
            if path.is_relative_to(root):
                return plain(str(Path(given) / path.relative_to(root)), 160)
        return plain(path.name, 160)

    def look(self) -> None:
        """Read what is new. Searching for new directories takes at most a tenth of the time, however large the tree is."""
        began = time.monotonic()
        if began >= self._walk_at:
            self._walk()
            ended = time.monotonic()
            self._walk_at = ended + (ended - began) / WALKS
        for run in self.runs.values():
            run.look()

    # -- finding ------------------------------------------------------------------------------------------------------

    def _walk(self) -> None:
        self.notes = []
        found: dict[Path, WatchedRun] = {}
        clusters: dict[Path, Folders] = {}
        for root in self.roots:
            for path, names in self._directories(root, 0):
                if path in found or path in clusters:  # one given directory may hold another
                    continue
                folders = self._cluster(path, names)
                if folders is not None:
                    clusters[path] = folders
                seeds = self._seeds(path, names)
                if seeds and len(found) < MOST_RUNS:
                    run = self.runs.get(path) or WatchedRun(path, path if path == root else path.parent)
                    found[path] = self._with(run, seeds)
                elif seeds:
                    self.notes.append(f"more than {MOST_RUNS} runs: {self.title(path)} and others are not shown")
                    break
        for folders in clusters.values():
            folders.runs = {
                place: found[path / "run"] for place, path in folders.nodes.items() if path / "run" in found
            }
            for place, own in folders.runs.items():
                own.place = place
        self.runs, self.clusters = found, clusters

    def _directories(self, path: Path, depth: int) -> Iterator[tuple[Path, list[str]]]:
        """A directory and those below it, each with the names of its subdirectories. Links are left out."""
        try:
            with os.scandir(path) as entries:
                names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        except OSError as problem:
            if path in self.roots:
                self.notes.append(f"{self.title(path)} cannot be read: {problem.strerror}")
            return
        names = [name for name in names if not name.startswith(".") and name not in _CLOSED]
        yield path, names
        for name in names:
            if depth < DEEPEST and not _SEED.fullmatch(name):
                yield from self._directories(path / name, depth + 1)

    def _seeds(self, path: Path, names: list[str]) -> list[Path]:
        seeds = [path / name for name in names if _SEED.fullmatch(name) and plain_file(path / name / INFO)]
        if path in self.roots and _SEED.fullmatch(path.name) and plain_file(path / INFO):
            seeds.append(path)
        return seeds

    def _with(self, run: WatchedRun, seeds: list[Path]) -> WatchedRun:
        kept: dict[Path, WatchedSeed] = {}
        for path in seeds:
            seed = run.seeds.get(path) or WatchedSeed(path)
            try:
                run.stamp += seed.look()
            except LeftOut as why:
                self.notes.append(f"{self.title(path)} is left out: {why}")
                continue
            kept[path] = seed
            if seed.problem:
                self.notes.append(f"{self.title(path)}: {plain(seed.problem)}")
        if set(kept) != set(run.seeds):
            run.stamp += 1
        run.seeds = kept
        return run

    def _cluster(self, path: Path, names: list[str]) -> Folders | None:
        nodes = {int(m[1]): path / m[0] for name in names if (m := _NODE.fullmatch(name)) and _is_place(path / name)}
        observer = path / "observer"
        given = path in self.roots and _is_place(path)  # a node's or an observer's own folder
        if not nodes and not given and not (observer.name in names and _is_place(observer)):
            return None
        folders = self.clusters.get(path) or Folders(path, self.title(path))
        own = _NODE.fullmatch(path.name)
        folders.nodes = nodes if nodes or not given or own is None else {int(own[1]): path}
        folders.asker = next((f for f in (observer, *((path,) if given else ())) if _can_ask(f)), None)
        return folders


def _is_place(folder: Path) -> bool:
    return plain_file(folder / "node.toml")


def _can_ask(folder: Path) -> bool:
    return all(plain_file(folder / name) for name in ("node.toml", "node.pem", "node.key", "experiment.toml"))


def plain_file(path: Path) -> bool:
    """Whether a path is a file, not a link to one."""
    try:
        return path.is_file() and not path.is_symlink() and not path.parent.is_symlink()
    except OSError:  # a folder that this user may not enter
        return False


def natural(text: str) -> list[tuple[float, str]]:
    """Sorts lr=0.05 before lr=0.1, and s=9 before s=10."""
    parts = re.split(r"([0-9]+(?:\.[0-9]+)?)", text)
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts)]
