"""Tables: CSV and Parquet files with a sample in each row, numbers to learn from, and a column to predict."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from epidemic.core.errors import BadInput, plain, require_real, suggestion
from epidemic.data.base import LARGEST_FLOAT, Array, Dataset, Samples, as_floats, find_directory, stratified
from epidemic.data.images import need
from epidemic.data.labels import Labelled, Numbered, numbered, shown

SUFFIXES = (".csv", ".parquet")
NUMBERS = "biuf"


class Table(Labelled, frozen=True, tag="table"):
    """A CSV or Parquet file, of which a share is for testing, or a folder with train.csv and test.csv (or .parquet).

    A target of text, whole numbers or true and false is a class; one of other numbers is a quantity to predict.
    """

    about: ClassVar[str] = (
        "a CSV or Parquet table: data.target is the column to predict, the others are numbers to learn from"
    )
    common: ClassVar[tuple[str, ...]] = ("scale",)

    target: str
    """The column to predict."""
    features: tuple[str, ...] | None = None
    """The columns to learn from, in this order; None: all others."""
    group: str | None = None
    """A column with the producer of each sample, for partition.kind = "natural"."""
    test: float | None = None
    """The share of a single file that is for testing; not set: a fifth."""
    quantity: bool = False
    """Whether a target of whole numbers is a quantity to predict and not a class."""
    normalise: bool = True
    """Whether each feature is brought to mean 0 and deviation 1, as the training samples have them."""
    scale: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    """The mean and deviation of each feature, by column; for others those of the training samples are used."""
    separator: str = ","

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is None:
            raise BadInput("data.path is missing: the .csv or .parquet file, or the folder with train and test files")
        if self.test is not None:
            require_real("data.test", self.test, 0, 0.9, above=0)
        if len(self.separator) != 1:
            raise BadInput(f'data.separator = {self.separator!r} must be one character, for example ";"')
        if self.features is not None:
            if not self.features:
                raise BadInput("data.features = [] must name at least one column; leave it out for all of them")
            for column in self.features:
                if column in (self.target, self.group) or self.features.count(column) > 1:
                    raise BadInput(f"data.features names {column!r}, which is there already or is the target or group")
        if self.quantity and self.classes is not None:
            raise BadInput("data.quantity = true and data.classes contradict each other; leave one out")
        if self.scale and not self.normalise:
            raise BadInput("data.scale and data.normalise = false contradict each other; leave one out")
        for column, (mean, deviation) in self.scale.items():
            require_real(f"data.scale.{column}: the mean", mean)
            require_real(f"data.scale.{column}: the deviation", deviation, above=0)

    def differs_by_place(self) -> str | None:
        """Why nodes with data of their own would differ: the scale follows from the samples, unless it is given."""
        if not self.normalise or self.scale:
            return None
        return (
            "data.normalise = true takes the scale of each feature from a node's own samples, so that nodes with data of their own"
            " would not speak of the same numbers; use data.normalise = false, or give all of them the same data.scale"
        )

    def measured(self) -> dict[str, tuple[float, float]]:
        """The mean and deviation of each feature of the training samples, as `scale` takes them."""
        data = msgspec.structs.replace(self, normalise=False, scale={}, validation=0.0).load()
        mean, deviation = _moments(data.train.inputs)
        return {
            name: (float(f"{m:.8g}"), float(f"{d:.8g}"))
            for name, m, d in zip(data.features, mean, deviation, strict=True)
        }

    def read(self) -> Dataset:
        place = find_directory(self.path, "table")
        if place.is_file():
            path, frame = place, read_table(place, self.separator)
            features = self._features(frame, path)
            every = numbers_of(frame, features, path)
            targets, classes, note = self._targets({path: frame})
            test = stratified(
                targets[0], max(1, round(len(frame) * (0.2 if self.test is None else self.test))), "table-test"
            )
            rest = np.setdiff1d(np.arange(len(frame)), test)
            groups = self._groups(frame, path)
            train_x, test_x, train_y, test_y = every[rest], every[test], targets[0][rest], targets[0][test]
            groups = None if groups is None else groups[rest]
        else:
            if self.test is not None:
                raise BadInput(
                    f"data.test = {self.test:g}, but {place} has a file of its own for testing; leave it out"
                )
            paths = [_split_file(place, split) for split in ("train", "test")]
            frames = [read_table(path, self.separator) for path in paths]
            features = self._features(frames[0], paths[0])
            train_x, test_x = (numbers_of(f, features, p) for f, p in zip(frames, paths, strict=True))
            targets, classes, note = self._targets(dict(zip(paths, frames, strict=True)))
            train_y, test_y = targets
            groups = self._groups(frames[0], paths[0])
        if groups is not None:
            groups = np.unique(groups, return_inverse=True)[1]
        scales = self._scales(train_x, features)
        train_x, test_x = scaled(train_x, scales), scaled(test_x, scales)
        learnt, tested = Samples(train_x, train_y, groups), Samples(test_x, test_y)
        return Dataset(learnt, tested, classes, note=note, features=features, scales=scales)

    def _features(self, frame: Any, path: Path) -> tuple[str, ...]:
        """Return the names of the columns to learn from; a missing column is refused by name."""
        there = [str(column) for column in frame.columns]
        wanted = [self.target, *(self.features or ()), *((self.group,) if self.group is not None else ())]
        for column in wanted:
            if column not in there:
                raise _no_column(column, there, path)
        rest = tuple(c for c in there if c not in (self.target, self.group))
        features = rest if self.features is None else self.features
        if not features:
            raise BadInput(f"{path} has no column but {', '.join(map(repr, wanted))}; there is nothing to learn from")
        unnamed = [c for c in features if c.startswith("Unnamed: ")]
        if unnamed and self.features is None:
            raise BadInput(f"{path} has a column without a name (a saved index?); remove it, or list data.features")
        return features

    def _targets(self, frames: dict[Path, Any]) -> tuple[list[Array], tuple[str, ...], str]:
        """The column to predict of each file: class numbers and names, or floats (N,)."""
        raw: dict[str, Array] = {}
        for path, frame in frames.items():
            if self.target not in frame.columns:
                raise _no_column(self.target, list(frame.columns), path)
            column = frame[self.target]
            _refuse_missing(column, path)
            kind = getattr(column.dtype, "kind", "O")
            values = column.to_numpy() if kind in NUMBERS else np.array(column.astype(object).tolist(), dtype=object)
            if kind == "f" and self.classes is not None:
                if (values != np.round(values)).any():
                    raise BadInput(
                        f"data.classes = {shown(self.classes)}, but column {self.target!r} of {path} holds a quantity; leave it out"
                    )
                values = values.astype(np.int64)
            raw[f"{path}: row"] = values
        kinds = {values.dtype.kind for values in raw.values()}
        if kinds <= {"f"} or (self.quantity and kinds <= set(NUMBERS)):
            if not all(np.isfinite(values).all() for values in raw.values()):
                raise BadInput(f"column {self.target!r} has targets that are not finite numbers")
            return [as_floats(y, f"column {self.target!r} of {where}", 1) for where, y in raw.items()], (), ""
        if self.quantity or "f" in kinds:
            raise BadInput(f"column {self.target!r} is not a quantity in every row; a quantity needs numbers only")
        found: Numbered = numbered(raw, declared=self.classes, first=1)
        return found.targets, found.classes, found.note

    def _groups(self, frame: Any, path: Path) -> Array | None:
        if self.group is None:
            return None
        _refuse_missing(frame[self.group], path)
        return np.array(frame[self.group].astype(str).tolist(), dtype=np.str_)

    def _scales(self, train: Array, features: Sequence[str]) -> tuple[tuple[float, float], ...]:
        """Mean and deviation of each feature: those of the training samples, or those that are given; empty where nothing is scaled."""
        if not self.normalise:
            return ()
        if self.scale:
            if set(self.scale) != set(features):
                odd = sorted(set(self.scale) ^ set(features))[0]
                raise BadInput(
                    f"data.scale must name each feature and nothing else, but {odd!r} is only in one of them"
                )
            return tuple(self.scale[name] for name in features)
        mean, deviation = _moments(train)
        return tuple(zip(mean.tolist(), deviation.tolist(), strict=True))


def numbers_of(frame: Any, features: Sequence[str], path: Path) -> Array:
    """The features of all rows.   # (N, features) floats"""
    columns = np.empty((len(frame), len(features)), dtype=np.float64)
    for j, name in enumerate(features):
        if name not in frame.columns:
            raise _no_column(name, list(frame.columns), path)
        column = frame[name]
        _refuse_missing(column, path)
        if getattr(column.dtype, "kind", "O") not in NUMBERS:
            raise BadInput(
                f"{path}: column {name!r} holds {_content(column)}; turn it into numbers, or leave it out: data.features"
                " lists the columns to learn from"
            )
        columns[:, j] = column.to_numpy(dtype=np.float64)
        odd = np.flatnonzero(~(np.abs(columns[:, j]) <= LARGEST_FLOAT))
        if len(odd):
            raise BadInput(
                f"{path}: row {odd[0] + 1} has {columns[odd[0], j]} in column {name!r}; use numbers up to {LARGEST_FLOAT:.2g}"
            )
    return columns


def scaled(x: Array, scales: Sequence[tuple[float, float]]) -> Array:
    """Features as a model takes them.

    Args:
        x: A row for each sample.   # (N, features)
        scales: The mean and deviation of each feature; empty: they stay as they are.
    """
    if not len(scales):
        return x.astype(np.float32)
    mean, deviation = np.array(scales, dtype=np.float64).T
    found: Array = ((x - mean) / deviation).astype(np.float32)
    return found


def _moments(train: Array) -> tuple[Array, Array]:
    """Mean and deviation of each column; a column that is always the same becomes 0 with deviation 1."""
    deviation = train.std(axis=0, dtype=np.float64)
    return train.mean(axis=0, dtype=np.float64), np.where(deviation > 0, deviation, 1.0)


def _split_file(folder: Path, split: str) -> Path:
    found = [folder / (split + suffix) for suffix in SUFFIXES if (folder / (split + suffix)).is_file()]
    if len(found) != 1:
        what = "both" if found else "neither"
        raise BadInput(
            f"{folder} has {what} {split}.csv {'and' if found else 'nor'} {split}.parquet; one of them is needed"
        )
    return found[0]


def read_table(path: Path, separator: str, what: str = "data.path") -> Any:
    """The table in a file, as pandas reads it."""
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(f"{what} = {str(path)!r} must be a .csv or .parquet file, or a folder")
    pandas = need("pandas", "Tables", "tables")
    try:
        if path.suffix.lower() == ".csv":
            # an empty cell is missing; "NA" and "None" are words like others
            options = {"keep_default_na": False, "na_values": [""], "low_memory": False, "index_col": False}
            with warnings.catch_warnings():
                warnings.simplefilter("error", pandas.errors.ParserWarning)  # more fields than names: pandas drops some
                frame = pandas.read_csv(path, sep=separator, encoding="utf-8-sig", **options)
        else:
            need("pyarrow.parquet", "Parquet files", "tables")
            frame = _with_plain_numbers(pandas.read_parquet(path))
    except BadInput:
        raise
    except Warning:
        raise BadInput(
            f"{path} has more fields in its rows than names in its first line; give every column a name"
        ) from None
    except Exception as problem:
        raise BadInput(f"{path} cannot be read as a table: {plain(' '.join(str(problem).split()), 300)}") from None
    if not len(frame):
        raise BadInput(f"{path} has no rows")
    if len(frame.columns) == 1 and path.suffix.lower() == ".csv":
        name = plain(str(frame.columns[0]), 60)
        raise BadInput(
            f'{path} has a single column, {name!r}; if columns are not separated by "{separator}", set data.separator'
        )
    return frame


def _with_plain_numbers(frame: Any) -> Any:
    """The table with decimals as floats, or as whole numbers where they have no digits after the point."""
    for name, kind in frame.dtypes.items():
        there = frame[name].dropna() if getattr(kind, "kind", "") == "O" else ()
        if len(there) and all(isinstance(value, Decimal) for value in there):
            whole = len(there) == len(frame) and all(value.as_tuple().exponent >= 0 for value in there)
            frame[name] = frame[name].astype(np.int64 if whole and max(map(abs, there)) < 2**63 else np.float64)
    return frame


def _no_column(column: str, there: Sequence[str], path: Path) -> BadInput:
    return BadInput(f"{path} has no column {column!r}{suggestion(column, list(map(str, there)))}")


def _refuse_missing(column: Any, path: Path) -> None:
    missing = np.flatnonzero(column.isna().to_numpy())
    if len(missing):
        more = f" (and {len(missing) - 1} more rows)" if len(missing) > 1 else ""
        raise BadInput(
            f"{path}: row {missing[0] + 1} has no value in column {str(column.name)!r}{more}; fill it in, or leave the rows or the column out"
        )


def _content(column: Any) -> str:
    """What a column holds that is not all numbers, with an example."""
    if getattr(column.dtype, "kind", "O") in "mM":
        return "dates or times"
    for row, value in enumerate(column.tolist()):
        try:
            float(value)
        except (TypeError, ValueError):
            return f"text ({plain(repr(value), 40)} in row {row + 1})"
    return "text"
