"""Downloads: only on request, checked, resumed, and never half-complete under the final name."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from epidemic.core.errors import BadInput, RunFailed, suggestion
from epidemic.core.progress import Progress
from epidemic.data.cifar import ARCHIVES

BLOCK = 1 << 16


@dataclass(frozen=True)
class Download:
    """A file to fetch: its name, its address and the digest that it must have."""

    name: str
    url: str
    md5: str


def _idx_files(base: str, *sums: str) -> tuple[Download, ...]:
    names = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    return tuple(Download(name, base + name, md5) for name, md5 in zip(names, sums, strict=True))


DOWNLOADS: dict[str, tuple[Download, ...]] = {
    "cifar10": (
        Download(
            "cifar-10-binary.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            ARCHIVES["cifar-10-binary.tar.gz"],
        ),
    ),
    "mnist": _idx_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion-mnist": _idx_files(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
}


def downloads(name: str) -> tuple[Download, ...]:
    """The files of a data set to download."""
    if name not in DOWNLOADS:
        raise BadInput(f"{name!r} cannot be fetched{suggestion(name, DOWNLOADS)}")
    return DOWNLOADS[name]


def fetch(download: Download, directory: Path, progress: Progress) -> bool:
    """Fetch one file; False if it was there already. Continues a download that broke off."""
    target = directory / download.name
    if target.is_file() and _md5(target) == download.md5:
        return False
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise BadInput(f"{directory} cannot be made: {problem.strerror}") from None
    part = directory / f"{download.name}.part"
    _receive(download, part, progress)
    found = _md5(part)
    if found != download.md5:
        part.unlink()
        raise RunFailed(f"{download.url} gave md5 {found}, not the expected {download.md5}; nothing was kept")
    part.replace(target)
    return True


def _receive(download: Download, part: Path, progress: Progress) -> None:
    """Complete the file `part`, continuing at its current length."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={start}-"} if start else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            resumed = start > 0 and answer.status == http.client.PARTIAL_CONTENT
            length = answer.headers.get("Content-Length")
            done = start if resumed else 0
            total = done + int(length) if length is not None else None
            with part.open("ab" if resumed else "wb") as out:
                while block := answer.read(BLOCK):
                    out.write(block)
                    done += len(block)
                    progress(download.name, done, total)
        if total is not None and done < total:
            raise RunFailed(
                f"{download.url} broke off after {done} of {total} bytes; run the same command again to continue"
            )
    except urllib.error.HTTPError as problem:
        if problem.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return  # it is complete already
        raise RunFailed(f"{download.url} answered {problem.code} {problem.reason}") from None
    except (OSError, http.client.HTTPException) as problem:
        reason = getattr(problem, "reason", problem)
        raise RunFailed(
            f"{download.url} cannot be fetched ({reason}); run the same command again to continue"
        ) from None


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
