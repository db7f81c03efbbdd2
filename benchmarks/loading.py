"""Starting with decoded pictures from the cache against decoding them: a folder of PNGs and a parquet file of JPEGs."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from benchmarks.sizes import sized
from benchmarks.timing import interleaved, verdict
from epidemic.data import CIFAR10, ImageFolder, Source

PICTURES = sized(2000, 40)
LONG_AGO = 1_600_000_000


def _encoded(kind: str) -> list[bytes]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(PICTURES):
        coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))  # as smooth as a photograph
        out = io.BytesIO()
        coarse.resize((32, 32), Image.Resampling.BICUBIC).save(out, kind)
        found.append(out.getvalue())
    return found


def _folder(root: Path) -> Source:
    for i, picture in enumerate(_encoded("PNG")):
        path = root / f"class-{i % 10}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    return ImageFolder(path=str(root))


def _parquet(root: Path) -> Source:
    root.mkdir()
    rows = [{"img": {"bytes": p, "path": None}, "label": i % 10} for i, p in enumerate(_encoded("JPEG"))]
    for split in ("train", "test"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / f"{split}-00000-of-00001.parquet")
    return CIFAR10(path=str(root))


def _load(source: Source, cache: str) -> None:
    os.environ["EPIDEMIC_CACHE"] = cache
    source.load()


def run() -> bool:
    before = os.environ.get("EPIDEMIC_CACHE")
    reached = []
    with tempfile.TemporaryDirectory() as made:
        for name, make, limit in (("folder of PNGs", _folder, 0.25), ("parquet of JPEGs", _parquet, 0.05)):
            source = make(Path(made) / name)
            for path in Path(made).rglob("*"):
                os.utime(path, (LONG_AGO, LONG_AGO))  # new files are not kept yet
            cache = str(Path(made) / "cache")
            _load(source, cache)
            decoded, kept = interleaved(
                lambda s=source: _load(s, "off"), lambda s=source, c=cache: _load(s, c), repeat=5
            )
            what = f"{name}, {kept * 1e3:.0f} ms from the cache relative to {decoded * 1e3:.0f} ms decoded"
            reached.append(verdict(what, kept / decoded, limit, at_most=True))
    os.environ.pop("EPIDEMIC_CACHE")
    if before is not None:
        os.environ["EPIDEMIC_CACHE"] = before
    return all(reached)
