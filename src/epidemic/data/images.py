"""Pictures: one file at a time, and folders of them sorted by class."""

from __future__ import annotations

import importlib
import io
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from epidemic.core.errors import BadInput, plain, require_choice, require_int
from epidemic.core.progress import tell
from epidemic.data.base import Array, Dataset, Samples, find_directory, scaled_bytes, stratified
from epidemic.data.labels import Labelled, shown

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def need(module: str, what: str, extra: str = "images") -> Any:
    """An optional library, or a message that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise BadInput(
            f"{what} need the package {module.split('.')[0]}; install it with: pip install 'epidemic-learning[{extra}]'"
        ) from None


def decode_image(encoded: bytes, size: tuple[int, int], channels: int, where: str) -> Array:
    """Decode an image to (height, width); `where` names it in messages.   # (channels, height, width) bytes"""
    image = need("PIL.Image", "Pictures")
    try:
        with image.open(io.BytesIO(encoded)) as picture:
            if (picture.height, picture.width) != size:
                found = f"{picture.height} x {picture.width}"
                raise BadInput(f"{where} has a picture of {found} pixels; all must be {size[0]} x {size[1]}")
            pixels = np.asarray(picture.convert("RGB" if channels == 3 else "L"))
    except (OSError, SyntaxError, ValueError) as problem:
        if isinstance(problem, BadInput):
            raise
        raise _broken(where, problem) from None
    return pixels.transpose(2, 0, 1) if channels == 3 else pixels[None]


def picture_size(encoded: bytes, where: str) -> tuple[int, int]:
    """Height and width of an encoded picture."""
    image = need("PIL.Image", "Pictures")
    try:
        with image.open(io.BytesIO(encoded)) as picture:
            return picture.height, picture.width
    except (OSError, SyntaxError) as problem:
        raise _broken(where, problem) from None


def _broken(where: str, problem: Exception) -> BadInput:
    reason = re.sub(r"\s*<[^<>]* at 0x[0-9a-f]+>", "", str(problem))  # not where the bytes were in memory
    return BadInput(f"{where} holds a broken picture ({plain(reason)})")


def check_channels(channels: int) -> None:
    """Raise BadInput unless the channels are 1 or 3."""
    require_int("data.channels", channels, 1, 3)
    require_choice("data.channels", str(channels), ["1", "3"])


class ImageFolder(Labelled, frozen=True, tag="image-folder"):
    """Pictures of equal size in folders by class: path/train/CLASS/*.png and path/test/CLASS/*.png.

    Without train and test folders, path/CLASS/*.png, of which a stratified fifth is for testing.
    """

    about: ClassVar[str] = "pictures in folders by class, with or without train and test folders above them"

    channels: int = 3
    """3 for colour, 1 for greyscale."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_channels(self.channels)
        if self.path is None:
            raise BadInput("data.path is missing: the folder of the pictures")

    def files(self) -> list[Path]:
        root = self._root()
        roots = [root / "train", root / "test"] if _is_split(root) else [root]
        folders = self._folders(roots[0])
        # The folders, too, because one without pictures is a class.
        there = [(r, [name for name in folders if (r / name).is_dir()]) for r in roots]
        return [path for r, names in there for path in (*(r / name for name in names), *_pictures(r, folders))]

    def read(self) -> Dataset:
        root = self._root()
        if _is_split(root):
            folders = self._folders(root / "train")
            left_out = [f"test/{name}" for name in _names(root / "test") if name not in folders]
            if left_out and self.classes is not None:
                raise BadInput(
                    f"{root} has {left_out[0]}, which is not among data.classes = {shown(self.classes)}; move it away"
                )
            train = self._folder(root / "train", folders, None)
            note = f"{shown(left_out)[1:-1]} is left out, because train has no such folder" if left_out else ""
            test = self._folder(root / "test", folders, train)
            return Dataset(train, test, self.classes or folders, *scaled_bytes(), note=note)
        folders = self._folders(root)
        every = self._folder(root, folders, None)
        test_numbers = stratified(every.targets, max(len(every) // 5, 1), "folder-test")
        rest = np.setdiff1d(np.arange(len(every)), test_numbers)
        return Dataset(every.take(rest), every.take(test_numbers), self.classes or folders, *scaled_bytes())

    def _folders(self, root: Path) -> tuple[str, ...]:
        """The folders of the classes: the existing or the declared ones."""
        found = _names(root)
        if self.classes is None:
            if len(found) < 2:
                raise BadInput(
                    f"{root} must have a folder for each class, at least two; found {len(found)}"
                    + ("; if others have the other classes, name all of them in data.classes" if found else "")
                )
            return found
        for name in found:
            if name not in self.classes:
                raise BadInput(
                    f"{root} has a folder {name!r}, which is not among data.classes = {shown(self.classes)};"
                    " add it there, or move it away"
                )
        return self.classes

    def _root(self) -> Path:
        root = find_directory(self.path, "image-folder")
        if not root.is_dir():
            raise BadInput(f"data.path = {str(root)!r} must be a folder")
        return root

    def _folder(self, root: Path, classes: tuple[str, ...], like: Samples | None) -> Samples:
        paths = _pictures(root, classes)
        if not paths:
            raise BadInput(f"{root} has no pictures ({', '.join(SUFFIXES)}) in its class folders")
        size = picture_size(paths[0].read_bytes(), str(paths[0])) if like is None else like.inputs.shape[2:4]
        size = (size[0], size[1])
        pixels = np.empty((len(paths), self.channels, *size), dtype=np.uint8)
        with ThreadPoolExecutor() as pool:
            for i, one in enumerate(
                pool.map(lambda p: decode_image(p.read_bytes(), size, self.channels, str(p)), paths)
            ):
                pixels[i] = one
                if i % 100 == 0:
                    tell(f"{root}, pictures", i, len(paths))
        labels = np.array([classes.index(p.parent.name) for p in paths], dtype=np.int64)
        return Samples(pixels, labels)


def _is_split(root: Path) -> bool:
    return (root / "train").is_dir() and (root / "test").is_dir()


def _pictures(root: Path, classes: tuple[str, ...]) -> list[Path]:
    return [p for name in classes for p in sorted((root / name).glob("*")) if p.suffix.lower() in SUFFIXES]


def _names(root: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in root.iterdir() if p.is_dir()))
