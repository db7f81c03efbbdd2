"""Keyed randomness: every draw is a function of (seed, purpose, index), never of earlier draws.

`Streams(seed)` holds all randomness of one run. `streams("topology", 7)` is the stream for round 7's graph: the same numbers on every host and in any
order of calls. The generator is Philox4x64-10 (Salmon et al., SC 2011), a counter-based function that NumPy ships; its 128-bit key is a hash of seed,
purpose and index.

Hosts must agree on what is drawn, so everything below is computed from raw Philox words by code of this file and does not change when NumPy changes its
distributions. A golden test pins it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epidemic.core.errors import require_int

IntArray = NDArray[np.integer[Any]]

_DOMAIN = b"epidemic/1"  # another value would change every draw of every run


@dataclass(frozen=True)
class Streams:
    """All randomness of one run: `streams("topology", 3)` is the stream for that purpose and round, always the same.

    Example:
        >>> ep.Streams(1)("mine", 0).uniforms(4)   # (4,)
    """

    seed: int
    part: int = 0
    """For models whose parts go separate ways, the part that this is for; part 0 has the run's own streams."""

    def __post_init__(self) -> None:
        require_int("seed", self.seed, 0, 2**63 - 1)

    def of_part(self, part: int) -> Streams:
        """Independent streams for another part of the models."""
        return Streams(self.seed, part)

    def __call__(self, purpose: str, *index: int) -> Stream:
        """The stream for a purpose (a word) and an index (usually the round)."""
        return Stream(self.key(purpose, *index))

    def generator(self, purpose: str, *index: int) -> np.random.Generator:
        """A NumPy generator for a purpose and an index, the same on every host and platform with the same version of NumPy.

        For topologies of your own: it has `choice`, `integers`, `permutation`, `random` and the rest of NumPy's generator.

        Example:
            >>> ep.Streams(1).generator("topology", 7).choice(96, size=3, replace=False)
        """
        return np.random.Generator(np.random.Philox(_Key(self.key(purpose, *index))))  # type: ignore[arg-type]

    def key(self, purpose: str, *index: int) -> int:
        """The 128-bit Philox key of a purpose and an index; also a seed for torch's generators."""
        return int.from_bytes(self._hashed(purpose, *index).digest(), "little")

    def keys(self, purpose: str, *index: int, last: Iterable[int]) -> list[int]:
        """`key(purpose, *index, i)` for each i of `last`, in half the time: the common part is hashed once."""
        begun, found = self._hashed(purpose, *index), []
        for i in last:
            one = begun.copy()
            one.update(b"\0%d" % i)
            found.append(int.from_bytes(one.digest(), "little"))
        return found

    def _hashed(self, purpose: str, *index: int) -> hashlib.blake2b:
        purpose = f"{purpose}/{self.part}" if self.part else purpose
        words = [_DOMAIN, str(self.seed).encode(), purpose.encode(), *(str(i).encode() for i in index)]
        return hashlib.blake2b(b"\0".join(words), digest_size=16)


class _Key(np.random.bit_generator.ISeedSequence):
    """A key in the form of a seed sequence: `Philox(key=...)` would read and discard system entropy."""

    def __init__(self, key: int) -> None:
        self._words = np.frombuffer(key.to_bytes(16, "little"), "<u8").astype(np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[np.uint64]:
        """The two words that Philox asks for."""
        return self._words


class Stream:
    """A stream of numbers drawn one after the other from one Philox key."""

    def __init__(self, key: int) -> None:
        self._philox = np.random.Philox(_Key(key))  # type: ignore[arg-type]  # documented, not in the stubs

    def words(self, size: int) -> NDArray[np.uint64]:
        """Return `size` raw 64-bit words of the stream.   # (size,)"""
        return np.asarray(self._philox.random_raw(size), dtype=np.uint64)

    def uniforms(self, *shape: int) -> NDArray[np.float64]:
        """Floats on the grid k / 2**53 in [0, 1)."""
        words = self.words(math.prod(shape))
        words >>= np.uint64(11)
        u = words.astype(np.float64)
        u *= 2.0**-53
        return u.reshape(shape)

    def integers(self, high: int, *shape: int) -> IntArray:
        """Integers in [0, high), each with a probability within high / 2**53 of uniform; 32-bit if that suffices."""
        u = self.uniforms(*shape)
        u *= high
        return u.astype(np.int32 if high < 2**31 else np.int64)  # the former is 18 times faster

    def permutation(self, n: int) -> NDArray[np.int64]:
        """A uniformly random order of 0..n-1 (equal words, of probability n**2 / 2**65, keep their order)."""
        return np.argsort(self.words(n), kind="stable")

    def normals(self, *shape: int) -> NDArray[np.float64]:
        """Return standard normal numbers of the given shape, by the method of Box and Muller."""
        size = math.prod(shape)
        u = self.uniforms(2, (size + 1) // 2)
        radius = np.sqrt(-2.0 * np.log1p(-u[0]))  # 1 - u is in (0, 1]
        angle = 2.0 * math.pi * u[1]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size].reshape(shape)


def words_of(keys: Sequence[int], size: int) -> NDArray[np.uint64]:
    """The first `size` words of the stream of each key.   # (k, size)

    One generator takes the keys in turn: to make a new one takes longer than to draw a thousand words.
    """
    both = np.frombuffer(b"".join(key.to_bytes(16, "little") for key in keys), "<u8").astype(np.uint64).reshape(-1, 2)
    philox = np.random.Philox(_Key(0))  # type: ignore[arg-type]  # documented, not in the stubs
    fresh: Any = philox.state
    rows = []
    for key in both:
        fresh["state"]["key"] = key
        philox.state = fresh
        rows.append(philox.random_raw(size))
    return rows[0][None] if len(rows) == 1 else np.array(rows, dtype=np.uint64).reshape(len(keys), size)


def distinct(stream: Stream, rows: int, population: int, size: int) -> IntArray:
    """For each row, `size` distinct numbers of 0..population-1, every subset equally likely.   # (rows, size), sorted

    Draws with replacement, and redraws only what repeats within a row. The first `size` different values of an endless uniform sequence are exactly uniform,
    and no more are drawn than are missing. Time and memory are proportional to rows * size; more than half of the population is drawn as its complement.
    """
    if size > population - size:
        left_out = distinct(stream, rows, population, population - size)
        chosen = np.ones((rows, population), dtype=bool)
        np.put_along_axis(chosen, left_out, False, axis=1)
        return np.nonzero(chosen)[1].reshape(rows, size)
    drawn = stream.integers(population, rows, size)
    drawn.sort(axis=1)
    flat = drawn.ravel()
    same = np.flatnonzero(flat[1:] == flat[:-1])  # equal to its predecessor, in its row or the one before
    repeated = _without_repetitions(same[(same + 1) % size != 0] // size) if size else same
    if repeated.size:
        drawn[repeated] = _complete(stream, drawn[repeated], population)
    return drawn


def _complete(stream: Stream, drawn: IntArray, population: int) -> IntArray:
    """Replace the repetitions within each sorted row by new draws until all are distinct."""
    rows, size = drawn.shape
    keys = _without_repetitions((drawn + population * np.arange(rows)[:, None]).ravel())  # one number per (row, value)
    while keys.size < rows * size:
        missing = size - np.bincount(keys // population, minlength=rows)
        owner = np.repeat(np.arange(rows), missing)
        fresh = stream.integers(population, owner.size) + population * owner
        keys = np.concatenate([keys, fresh])
        keys.sort()
        keys = _without_repetitions(keys)
    return (keys % population).reshape(rows, size)


def _without_repetitions(ascending: IntArray) -> IntArray:
    """Each number once, like `np.unique`, which is ten times slower for a few numbers."""
    first = np.ones(ascending.size, dtype=bool)
    np.not_equal(ascending[1:], ascending[:-1], out=first[1:])
    return ascending[first]
