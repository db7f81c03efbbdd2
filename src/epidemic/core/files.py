"""Directories and files: names, reading, and writing so that no file is ever half-written."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import safetensors

from epidemic.core.errors import BadInput, RunFailed, argument, plain

_NOT_HERE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ENOENT, errno.EEXIST, errno.EISDIR,
)  # fmt: skip


def directory_name(name: str) -> str:
    """Turn a name into a directory name of lower-case letters, digits and dashes; if it has none of them, a digest distinguishes it."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    lost = re.sub(r"[\x00-\x7f]", "", name)
    return f"{plain or 'x'}-{hashlib.blake2b(lost.encode(), digest_size=3).hexdigest()}" if lost or not plain else plain


def own_directory(out: Path) -> Path:
    """Refuse to fill the current directory."""
    if str(out) in ("", "."):
        raise BadInput(f"{argument('out')} is the current directory; give the results a directory of their own")
    return out


@contextmanager
def full_disk(what: str, running: bool = False) -> Iterator[None]:
    """Turn a failed write into one clear line; for a run, it says that the last checkpoint is intact."""
    try:
        yield
    except (OSError, safetensors.SafetensorError) as problem:
        if isinstance(problem, OSError) and problem.errno in _NOT_HERE:
            raise BadInput(f"{what} cannot be written: {problem.strerror}; choose another directory") from None
        kept = "; the last checkpoint is kept" if running else ""
        raise RunFailed(f"{what} cannot be written: {problem}{kept}") from None


def write_whole(path: Path, write: Callable[[Path], None], *, running: bool = False) -> None:
    """Write to a temporary name and rename, so that the file appears complete or not at all.

    Its mode follows the user's umask, even if the writer of a format makes private files.
    """
    part = path.with_name(path.name + ".part")
    with full_disk(str(path), running):
        try:
            mode = begin_part(part)
            write(part)
            finish_part(part, path, mode)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def begin_part(part: Path) -> int:
    """Create the empty temporary file, and return the mode of the final one."""
    part.unlink(missing_ok=True)
    part.touch()  # the only way to learn the umask without changing it for all threads
    return stat.S_IMODE(part.stat().st_mode)


def finish_part(part: Path, path: Path, mode: int) -> None:
    """Rename the temporary file once it is on the disk."""
    if stat.S_IMODE(part.stat().st_mode) != mode:  # file systems without modes need no change
        part.chmod(mode)
    with part.open("r+b") as file:
        os.fsync(file.fileno())
    part.replace(path)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file completely or not at all."""

    def write(part: Path) -> None:
        part.write_bytes(content)

    write_whole(path, write)


LARGEST_JSON = 2**28
"""Most bytes of a JSON file; larger ones are not ours."""
UNREADABLE = (OSError, msgspec.MsgspecError, ValueError, RecursionError)
"""What reading a foreign JSON file may raise, whatever is in it."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. A pipe, a device or a directory raises ValueError, without waiting for it."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ValueError("it is not a regular file; put the one there that the run wrote")
    return os.fdopen(file, "rb")


def read_bounded(path: Path, largest: int = LARGEST_JSON) -> bytes:
    """Read a regular file of at most `largest` bytes; raises OSError or ValueError."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size <= largest:
            found = file.read(largest + 1)  # the file may grow meanwhile
            if len(found) <= largest:
                return found
    raise ValueError(f"it has more than {largest >> 20} MiB, more than any that a run writes; move it away")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a small JSON file; None if it does not exist."""
    try:
        found = msgspec.json.decode(read_bounded(path))
        if not isinstance(found, dict):
            raise ValueError("it holds no table")
        return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UNREADABLE as problem:
        raise BadInput(f"{path} cannot be read: {plain(str(problem))}") from None
