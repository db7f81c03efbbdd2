"""One seed's directory, read on as it is written: what is new since the last look, and how its run is."""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_ISREG

import msgspec

from epidemic.core.errors import BadInput
from epidemic.core.files import open_regular, read_json
from epidemic.record import Record
from epidemic.report.results import RunInfo
from epidemic.runtime.run_directory import RECORDS, STATE, RunState, read_state

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
        """Read what is new; whether there was anything."""
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
    """What is known of one seed."""

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
        """Read what is new; whether anything changed."""
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
