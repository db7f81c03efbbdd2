"""Conversion of labels (names, integers, booleans) to class numbers from 0.

The classes are those declared in `data.classes`, otherwise those named by the data, otherwise those found: names sorted, integers from 0 to the largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from epidemic.core.errors import BadInput, plain
from epidemic.core.formatting import count
from epidemic.data.base import Array, Dataset, Samples, Source

MOST_CLASSES = 100_000
LONGEST_NAME = 255
"""Characters of a class's name; as long as that of a folder."""


class Labelled(Source, frozen=True, kw_only=True):
    """Base of the sources whose classes can be declared."""

    classes: tuple[str, ...] | None = None
    """The names of all classes in order, including those without samples here; None: the names found, sorted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes is not None:
            check_names(self.classes, "data.classes")


@dataclass(frozen=True, eq=False)
class Numbered:
    """Labels as numbers, what they are called, and what should be known about them."""

    targets: list[Array]  # (N,) whole numbers each
    classes: tuple[str, ...]
    note: str


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse what cannot be the names of classes."""
    if len(names) < 2:
        raise BadInput(f"{where} = {shown(names)} must name at least two classes")
    if len(names) > MOST_CLASSES:
        raise BadInput(f"{where} names {count(len(names), 'class')}; at most {MOST_CLASSES} are possible")
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME:
            raise BadInput(
                f"{where}: {plain(repr(name), 60)} is no name of a class; use 1 to {LONGEST_NAME} characters"
            )
        if name in seen:
            raise BadInput(f"{where} names {plain(name, 60)!r} twice")
        seen.add(name)


def shown(names: Sequence[str], most: int = 8) -> str:
    """Names for a line of a message."""
    first = ", ".join(f'"{plain(str(name), 30)}"' for name in names[:most])
    return f"[{first}{f', ... {len(names) - most} more' if len(names) > most else ''}]"


def is_label(y: Array) -> bool:
    """Whether these can be labels: one name, whole number, or truth value for each sample."""
    return y.ndim == 1 and y.dtype.kind in "biuUSOT"


def numbered(
    parts: Mapping[str, Array], own: Sequence[str] | None = None, declared: Sequence[str] | None = None, first: int = 0
) -> Numbered:
    """Number the labels of all parts alike.

    Args:
        parts: The labels, by what one of them is called in messages ("training sample").   # (N,) each
        own: The names that the data has for the numbers 0, 1, ...
        declared: The names that the user declares, in this order.
        first: The number of a part's first sample, in messages.
    """
    labels = [_plain(y, what, first) for what, y in parts.items()]
    kinds = {y.dtype.kind for y in labels if len(y)}
    if len(kinds) > 1:
        found = " but ".join(
            f"the labels of each {w} are {_KINDS[y.dtype.kind]}" for w, y in zip(parts, labels, strict=True)
        )
        raise BadInput(f"{found}; give both the same")
    values, where = np.unique(np.concatenate(labels), return_inverse=True)
    kind = values.dtype.kind

    def refuse(i: int, why: str, name: str | None = None) -> BadInput:
        at = int(np.argmax(where == i))
        for what, y in zip(parts, labels, strict=True):
            if at < len(y):
                return BadInput(f"{what} {at + first} has the label {plain(name or str(values[i]), 60)!r}, {why}")
            at -= len(y)
        raise AssertionError

    def looked_up(names: list[str], among: Sequence[str], which: str) -> list[int]:
        number = {name: k for k, name in enumerate(among)}
        for i, name in enumerate(names):
            if name not in number:
                which_are = f"{which} = {shown(among)}"
                raise refuse(i, f"which is not among {which_are}; add it there, or leave such samples out", name)
        return [number[name] for name in names]

    def counted(names: Sequence[str], which: str) -> list[int]:
        for i, value in enumerate(values):
            if not 0 <= value < len(names):
                raise refuse(i, f"but {which} = {shown(names)} has the numbers 0 to {len(names) - 1}")
        return [int(value) for value in values]

    note = ""
    if kind == "b" and (names := declared or own) is not None and not set(names) & {"false", "true"}:
        values, kind = values.astype(np.int64), "i"  # the first class is false, the second true
    if kind in "bU":
        names = [str(v) for v in values] if kind == "U" else [str(v).lower() for v in values]
        classes = tuple(declared or own or (names if kind == "U" else ("false", "true")))
        which = "data.classes" if declared else "the classes of the data"
        numbers = looked_up(names, classes, which)
        if kind == "b":
            note = 'labels are true or false: taken as the classes "false" and "true"'
    elif own is not None:
        counted(own, "the classes of the data")
        named = [own[int(value)] for value in values]
        classes = tuple(declared or own)
        numbers = looked_up(named, classes, "data.classes") if declared else [int(v) for v in values]
    elif declared is not None and any(_is_whole(name) for name in declared):
        # names that are numbers: a label is the class of that name, not of that place
        classes, numbers = tuple(declared), looked_up([str(v) for v in values], declared, "data.classes")
    elif declared is not None:
        classes, numbers = tuple(declared), counted(declared, "data.classes")
    else:
        for i, value in enumerate(values):
            if not 0 <= value < MOST_CLASSES:
                raise BadInput(
                    f"labels must be 0, 1, ... up to {MOST_CLASSES - 1}, but one is {values[i]}; number the classes from 0"
                )
        classes = tuple(str(i) for i in range(int(values[-1]) + 1 if len(values) else 0))
        numbers = [int(value) for value in values]
    if own is not None:
        check_names(own, "the classes of the data")
    elif kind == "U" and not declared:
        check_names(classes, "labels")
    every = np.asarray(numbers, dtype=np.int64)[where] if len(values) else np.zeros(0, np.int64)
    ends = np.cumsum([len(y) for y in labels])[:-1]
    return Numbered(np.split(every, ends), classes, "; ".join(filter(None, (note, _gaps(every, classes)))))


def as_declared(data: Dataset, declared: Sequence[str]) -> Dataset:
    """The data set with the declared classes in place of its own."""
    if not data.classes:
        raise BadInput(f"data.classes = {shown(declared)}, but the targets are quantities to predict; leave it out")
    split = {"training sample": data.train, "test sample": data.test, "validation sample": data.validation}
    there = {what: samples for what, samples in split.items() if samples is not None}
    found = numbered({what: samples.targets for what, samples in there.items()}, data.classes, declared)
    changed = [
        Samples(samples.inputs, targets, samples.groups)
        for samples, targets in zip(there.values(), found.targets, strict=True)
    ]
    return replace(
        data, train=changed[0], test=changed[1], validation=changed[2] if len(changed) > 2 else None,
        classes=found.classes, note="; ".join(filter(None, (data.note, found.note))),
    )  # fmt: skip


def _is_whole(name: str) -> bool:
    """Whether a name is a whole number."""
    return name.removeprefix("-").isdecimal()


_KINDS = {"b": "true or false", "i": "whole numbers", "U": "names"}


def _plain(y: Array, what: str, first: int) -> Array:
    """Labels as whole numbers, truth values, or text."""
    if y.dtype.kind in "bU":
        return y
    if y.dtype.kind in "iu":
        if y.dtype.kind == "u" and y.size and y.max() > np.iinfo(np.int64).max:
            raise BadInput(f"labels must be 0, 1, ... up to {MOST_CLASSES - 1}, but one is {y.max()}")
        return y.astype(np.int64)
    if y.dtype.kind == "S":
        try:
            return np.char.decode(y, "utf-8")
        except UnicodeDecodeError:
            raise BadInput(f"labels are bytes that are no UTF-8 text ({what}); give text or whole numbers") from None
    for i, label in enumerate(y.tolist()):
        if not isinstance(label, str):
            shows = plain(repr(label), 60)
            raise BadInput(
                f"{what} {i + first} has the label {shows}; give all labels as text, or all as whole numbers"
            )
        if len(label) > LONGEST_NAME:
            raise BadInput(
                f"{what} {i + first} has a label of {len(label)} characters; at most {LONGEST_NAME} are possible"
            )
    return np.array(y.tolist(), dtype=np.str_)


def _gaps(labels: Array, classes: Sequence[str]) -> str:
    """A note on classes that no sample has."""
    empty = [classes[k] for k in np.flatnonzero(np.bincount(labels, minlength=len(classes)) == 0).tolist()]
    if not empty or not len(labels):
        return ""
    return f"no sample is of the class{'es' * (len(empty) > 1)} {shown(empty, 5)[1:-1]} (of {len(classes)})"


def one_hot(y: Any) -> bool:
    """Whether whole numbers (N, C) are rows of one 1 and otherwise 0."""
    return y.ndim == 2 and y.shape[1] > 1 and bool(((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all())
