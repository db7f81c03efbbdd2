"""Pictures: one file at a time, and folders of them sorted by class."""

from __future__ import annotations

import importlib
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from epidemic.data.base import Array, Dataset, Samples, Source, find_directory, scaled_bytes, stratified
from epidemic.errors import BadInput, require_choice, require_int
from epidemic.progress import tell

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def need(module: str, what: str, extra: str = "images") -> Any:
    """An optional library, or a message that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise BadInput(
            f"{what} need the package {module.split('.')[0]}; install it with: pip install 'epidemic-learning[{extra}]'"
        ) from None


def decode_image(encoded: bytes, size: tuple[int, int], channels: int, path: Path) -> Array:
    """The pixels of an encoded picture of the given (height, width).   # (channels, height, width) bytes"""
    image = need("PIL.Image", "Pictures")
    try:
        with image.open(io.BytesIO(encoded)) as picture:
            if (picture.height, picture.width) != size:
                found = f"{picture.height} x {picture.width}"
                raise BadInput(f"{path} has a picture of {found} pixels; all must be {size[0]} x {size[1]}")
            pixels = np.asarray(picture.convert("RGB" if channels == 3 else "L"))
    except (OSError, SyntaxError, ValueError) as problem:
        if isinstance(problem, BadInput):
            raise
        raise BadInput(f"{path} holds a broken picture ({problem})") from None
    return pixels.transpose(2, 0, 1) if channels == 3 else pixels[None]


class ImageFolder(Source, frozen=True, tag="image-folder"):
    """Pictures of equal size in folders by class: path/train/CLASS/*.png and path/test/CLASS/*.png.

    Without train and test folders, path/CLASS/*.png, of which a stratified fifth is for testing.
    """

    about: ClassVar[str] = "pictures in folders by class, with or without train and test folders above them"

    channels: int = 3
    """3 for colour, 1 for grey."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("data.channels", self.channels, 1, 3)
        require_choice("data.channels", str(self.channels), ["1", "3"])
        if self.path is None:
            raise BadInput("data.path is missing: the folder of the pictures")

    def files(self) -> list[Path]:
        root = self._root()
        roots = [root / "train", root / "test"] if _is_split(root) else [root]
        classes = _classes(roots[0])
        # The folders, too, because one without pictures is a class.
        return [path for r in roots for path in (*(r / name for name in classes), *_pictures(r, classes))]

    def read(self) -> Dataset:
        root = self._root()
        if _is_split(root):
            classes = _classes(root / "train")
            train = self._folder(root / "train", classes, None)
            return Dataset(train, self._folder(root / "test", classes, train), classes, *scaled_bytes())
        classes = _classes(root)
        every = self._folder(root, classes, None)
        test = stratified(every.targets, max(len(every) // 5, 1), "folder-test")
        rest = np.setdiff1d(np.arange(len(every)), test)
        return Dataset(every.take(rest), every.take(test), classes, *scaled_bytes())

    def _root(self) -> Path:
        root = find_directory(self.path, "image-folder")
        if not root.is_dir():
            raise BadInput(f"data.path = {str(root)!r} must be a folder")
        return root

    def _folder(self, root: Path, classes: tuple[str, ...], like: Samples | None) -> Samples:
        paths = _pictures(root, classes)
        if not paths:
            raise BadInput(f"{root} has no pictures ({', '.join(SUFFIXES)}) in its class folders")
        if like is None:
            image = need("PIL.Image", "Pictures")
            try:
                with image.open(paths[0]) as first:
                    size = (first.height, first.width)
            except (OSError, SyntaxError) as problem:
                raise BadInput(f"{paths[0]} holds a broken picture ({problem})") from None
        else:
            size = (like.inputs.shape[2], like.inputs.shape[3])
        pixels = np.empty((len(paths), self.channels, *size), dtype=np.uint8)
        with ThreadPoolExecutor() as pool:
            for i, one in enumerate(pool.map(lambda p: decode_image(p.read_bytes(), size, self.channels, p), paths)):
                pixels[i] = one
                if i % 100 == 0:
                    tell(f"{root}, pictures", i, len(paths))
        labels = np.array([classes.index(p.parent.name) for p in paths], dtype=np.int64)
        return Samples(pixels, labels)


def _is_split(root: Path) -> bool:
    return (root / "train").is_dir() and (root / "test").is_dir()


def _pictures(root: Path, classes: tuple[str, ...]) -> list[Path]:
    return [p for name in classes for p in sorted((root / name).glob("*")) if p.suffix.lower() in SUFFIXES]


def _classes(root: Path) -> tuple[str, ...]:
    found = tuple(sorted(p.name for p in root.iterdir() if p.is_dir()))
    if len(found) < 2:
        raise BadInput(f"{root} must have a folder for each class, at least two; found {len(found)}")
    return found
