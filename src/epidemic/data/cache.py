"""A cache of decoded data on disk: decoded once, then checked and memory-mapped, so that processes share its pages.

An entry is one safetensors file: arrays behind a JSON header, which also holds a BLAKE3 digest of everything else. Its name follows from what is read and
how; it stores the state of its source files and is replaced when they change. Entries are written under another name and renamed, never changed in place,
so no half-written one is read. They are not flushed to the disk: the digest detects damage after a power cut.

The cache never fails a run. If it cannot be used, data is decoded without it.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from filelock import FileLock
from numpy.typing import NDArray

from epidemic.core.locks import taken
from epidemic.core.progress import tell

FORMAT = 1
"""To be increased whenever the same files are decoded differently, or stored differently."""
SETTLED = 2.0
"""Seconds after which a change of a file has another time stamp on every file system."""
PATIENCE = 600.0
"""Seconds to wait for another process that decodes the same; it may have been stopped."""
ALIGNED = 64
SUFFIX = ".safetensors"
DTYPES = {"U8": "<u1", "I64": "<i8", "F32": "<f4"}

Array = NDArray[Any]
log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Stored:
    """What an entry holds: named arrays, and a table of everything else."""

    arrays: dict[str, Array]
    about: dict[str, Any]


@dataclass(frozen=True)
class Origin:
    """The source of a cache entry: settings, path and files."""

    settings: dict[str, Any]  # the kind of data and everything else that is set, apart from where it is
    place: str
    files: Sequence[Path]  # all that is read; of folders only the names count

    @property
    def name(self) -> str:
        """The name of the entry: the same for the same path, settings and decoder, whatever the files contain now."""
        fixed = [FORMAT, _decoder(), self.settings, self.place]
        return f"{self.settings['kind']}-{blake3(msgspec.json.encode(fixed, order='sorted')).hexdigest(16)}"

    def state(self) -> str | None:
        """Changes with every change of a file; None while a file is so new that the next change might not show."""
        digest, now = blake3(), time.time()
        for path in self.files:
            try:
                found = path.stat()
            except OSError:
                return None
            line = f"{path.absolute()}\0"
            if not stat.S_ISDIR(found.st_mode):
                if abs(now - found.st_mtime) < SETTLED:
                    return None
                # The time of the last change of any kind, too: it tells of changes that put the other one back.
                line += f"{found.st_size}\0{found.st_mtime_ns}\0{found.st_ctime_ns}\0"
            digest.update(line.encode(errors="surrogateescape"))
        return digest.hexdigest()


def _decoder() -> str:
    """Pillow's version and that of its JPEG library: others may give slightly different pixels."""
    try:
        import PIL
        from PIL import features
    except ImportError:
        return "none"
    return f"Pillow {PIL.__version__}, JPEG {features.version('jpg')}"


def cache_home() -> Path | None:
    """Where entries are: $EPIDEMIC_CACHE, or the user's cache directory; None: nowhere, the cache is off."""
    own = os.environ.get("EPIDEMIC_CACHE", "")
    if own:
        return None if own == "off" else Path(own)
    usual = os.environ.get("XDG_CACHE_HOME", "")
    if usual:
        return Path(usual) / "epidemic"
    if sys.platform == "win32" and "LOCALAPPDATA" in os.environ:
        return Path(os.environ["LOCALAPPDATA"]) / "epidemic" / "Cache"
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home
        return None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "epidemic"


def remembered(origin: Origin, make: Callable[[], Stored]) -> Stored:
    """The result of `make`, from the cache if a valid entry exists; one process computes it for all that start at once.

    Arrays from the cache are memory-mapped copy-on-write: pages that are only read are shared with every process that reads them, and a write (PyTorch asks for
    writable arrays) stays in the process.
    """
    home = cache_home()
    state = None if home is None else origin.state()
    if home is None or state is None:
        return make()
    path = home / (origin.name + SUFFIX)
    found = _look(path, state)
    if found is not None:
        return found
    with _alone(path, origin.place):
        found = _look(path, state)  # another process may have made it meanwhile
        if found is not None:
            return found
        made = make()
        if origin.state() != state or not _keep(path, made, state):
            return made
        return _look(path, state) or made


# -- one entry --------------------------------------------------------------------------------------------------------


def _look(path: Path, state: str) -> Stored | None:
    """The entry, if it exists, is valid, and was made from the current files."""
    try:
        header, whole = _read(path)
        start, described = _data_start(whole), header.pop("__metadata__")
        digest = described.pop("digest")
        if _digest({**header, "__metadata__": described}, [whole[start:]]) != digest:
            raise ValueError("its digest is wrong")
        arrays = {name: _view(whole[start:], tensor) for name, tensor in header.items()}
        about = msgspec.json.decode(described["about"])
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        log.warning("%s is damaged (%s); it is thrown away and made anew", path, " ".join(str(problem).split()))
        with suppress(OSError):
            path.unlink()
        return None
    return Stored(arrays, about) if described["state"] == state else None


def _keep(path: Path, stored: Stored, state: str) -> bool:
    """Write an entry, whole or not at all; False if that was not possible."""
    arrays = {name: np.ascontiguousarray(a) for name, a in stored.arrays.items()}
    header: dict[str, Any] = {}
    end = 0
    for name in sorted(arrays, key=lambda name: -arrays[name].itemsize):  # so that every array is aligned
        start, end = end, end + arrays[name].nbytes
        kind = next((k for k, v in DTYPES.items() if np.dtype(v) == arrays[name].dtype), None)
        if kind is None:
            return False
        header[name] = {"dtype": kind, "shape": arrays[name].shape, "data_offsets": [start, end]}
    raw = [arrays[name].reshape(-1).view(np.uint8) for name in header]
    described = {"about": msgspec.json.encode(stored.about).decode(), "state": state, "format": "epidemic"}
    header["__metadata__"] = described
    described["digest"] = _digest(header, raw)
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-(8 + len(encoded)) % ALIGNED)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.write(len(encoded).to_bytes(8, "little") + encoded)
            for block in raw:
                file.write(block.data)
        part.replace(path)
    except OSError as problem:
        with suppress(OSError):
            part.unlink()
        log.warning(
            "%s cannot be written (%s), so data is decoded at every start; set EPIDEMIC_CACHE to another folder, or to off",
            path.parent, problem.strerror or problem,
        )  # fmt: skip
        return False
    return True


def _read(path: Path) -> tuple[dict[str, Any], Array]:
    """The header, and the whole file, mapped."""
    whole = np.memmap(path, np.uint8, "c").view(np.ndarray)
    return msgspec.json.decode(whole[8 : _data_start(whole)].tobytes(), type=dict[str, Any]), whole


def _data_start(whole: Array) -> int:
    start = 8 + int.from_bytes(whole[:8].tobytes(), "little")
    if start > len(whole):
        raise ValueError("it is too short")
    return start


def _digest(header: dict[str, Any], blocks: Sequence[Array]) -> str:
    """A digest of everything except the digest itself."""
    digest = blake3(msgspec.json.encode(header, order="sorted"))
    for block in blocks:
        digest.update(block.data)
    return digest.hexdigest()


def _view(data: Array, tensor: dict[str, Any]) -> Array:
    start, end = tensor["data_offsets"]
    return data[start:end].view(DTYPES[tensor["dtype"]]).reshape(tensor["shape"])


@contextmanager
def _alone(path: Path, place: str) -> Iterator[None]:
    """Wait until no other process makes this entry; continue without waiting if locks are unavailable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _locked(path.with_suffix(".lock"), place)
    except OSError:
        lock = None  # nothing can be kept either, which is said then
    try:
        for left in path.parent.glob(f"{path.name}.*.part") if lock is not None else ():  # by a process that was killed
            with suppress(OSError):
                left.unlink()
        yield
    finally:
        if lock is not None:
            lock.release()


def _locked(path: Path, place: str) -> FileLock | None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if (lock := taken(path)) is not None:
            return lock
        tell(f"{place} (another process decodes it)", 0, None)
        time.sleep(0.1)
    return None


# -- all of them ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CacheEntry:
    """An entry of the cache as `epidemic data cache` lists it."""

    path: Path
    bytes: int
    kind: str
    samples: int
    place: str


def entries(home: Path) -> list[CacheEntry]:
    """The entries of the cache by name; their content is not checked."""
    found = []
    for path in sorted(home.glob("*" + SUFFIX)):
        try:
            size = path.stat().st_size
            header, _ = _read(path)
            about = msgspec.json.decode(header["__metadata__"]["about"])
            samples = sum(v["shape"][0] for k, v in header.items() if k.endswith("inputs"))
            found.append(CacheEntry(path, size, about["kind"], samples, about["place"]))
        except OSError:
            continue  # it is gone
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            found.append(CacheEntry(path, size, "damaged", 0, ""))
    return found


def clear(home: Path) -> int:
    """Remove everything that this file puts into the cache, and nothing else; how many bytes that frees.

    Runs that use an entry keep it until they end.
    """
    freed = 0
    for pattern in ("*" + SUFFIX, f"*{SUFFIX}.*.part", "*.lock"):
        for path in home.glob(pattern):
            with suppress(FileNotFoundError):  # replaced or removed by another process
                size = path.stat().st_size
                path.unlink()
                freed += size
    return freed
