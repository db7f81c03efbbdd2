"""Edge colourings: the links of a graph as a few matchings, in each of which a node has at most one partner."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


def edge_colours(n: int, one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each undirected link, links that meet having different ones: 0, 1, ..., at most the largest degree.   # (m,)

    Tried with as many colours as the largest degree first, which always succeeds in bipartite graphs; else with one more, by Misra
    and Gries (1992), which always succeeds.
    """
    degree = np.bincount(np.concatenate([one, other]), minlength=n)
    fewest = int(degree.max(initial=0))
    links = list(zip(one.tolist(), other.tolist(), strict=True))
    for colours in (fewest, fewest + 1):
        colouring = _Colouring(n, colours)
        if all(colouring.add(u, v) for u, v in links):
            break
    return np.array([colouring.colour[min(u, v), max(u, v)] for u, v in links], dtype=np.int64)


class _Colouring:
    """A proper colouring of the links so far. `spare` has a bit for each colour that a node has not used."""

    def __init__(self, n: int, colours: int) -> None:
        self.colour: dict[tuple[int, int], int] = {}
        self._partner: list[dict[int, int]] = [{} for _ in range(n)]  # by colour
        self._spare = [(1 << colours) - 1] * n
        self._colours = colours

    def add(self, u: int, v: int) -> bool:
        """Colour one more link, recolouring others if necessary; False if so few colours do not suffice."""
        both = self._spare[u] & self._spare[v]
        if both:
            self._set(u, v, _lowest(both))
            return True
        if self._swap_and_set(u, v):
            return True
        return self._by_fan(u, v)

    def _swap_and_set(self, u: int, v: int) -> bool:
        """Free a colour of u at v: the links from v in that colour and in one that v has to spare exchange the two."""
        for a in _bits(self._spare[u]):
            for b in _bits(self._spare[v]):
                path = self._path(v, a, b)
                if path[-1] != u:
                    self._exchange(path, a, b)
                    self._set(u, v, a)
                    return True
        return False

    def _by_fan(self, u: int, v: int) -> bool:
        """Misra and Gries: links of u pass their colours on until the new one can have its own."""
        fan = [v]
        while True:
            more = (self._partner[u].get(c) for c in _bits(self._spare[fan[-1]]))
            following = next((w for w in more if w is not None and w not in fan), None)
            if following is None:
                break
            fan.append(following)
        if not self._spare[u] or not self._spare[fan[-1]]:
            return False
        c, d = _lowest(self._spare[u]), _lowest(self._spare[fan[-1]])
        self._exchange(self._path(u, d, c), d, c)
        for last, w in enumerate(fan):
            if last and not self._spare[fan[last - 1]] >> self._of(u, w) & 1:
                return False  # the rest is no fan any more; cannot happen with one colour more than the largest degree
            if self._spare[w] >> d & 1:
                passed = [self._of(u, w) for w in fan[1 : last + 1]]
                for w in fan[1 : last + 1]:
                    self._unset(u, w)
                for w, colour in zip(fan[: last + 1], [*passed, d], strict=True):
                    self._set(u, w, colour)
                return True
        return False

    def _path(self, start: int, a: int, b: int) -> list[int]:
        """The nodes from `start` on along links coloured a, b, a, ..."""
        path, colour = [start], a
        while colour in self._partner[path[-1]]:
            path.append(self._partner[path[-1]][colour])
            colour = a + b - colour
        return path

    def _exchange(self, path: list[int], a: int, b: int) -> None:
        """Exchange the colours of a path that begins with a."""
        for u, v in pairwise(path):
            self._unset(u, v)
        for i, (u, v) in enumerate(pairwise(path)):
            self._set(u, v, a if i % 2 else b)

    def _of(self, u: int, v: int) -> int:
        return self.colour[min(u, v), max(u, v)]

    def _set(self, u: int, v: int, colour: int) -> None:
        self.colour[min(u, v), max(u, v)] = colour
        for here, there in ((u, v), (v, u)):
            self._partner[here][colour] = there
            self._spare[here] ^= 1 << colour

    def _unset(self, u: int, v: int) -> None:
        colour = self.colour.pop((min(u, v), max(u, v)))
        for here in (u, v):
            del self._partner[here][colour]
            self._spare[here] ^= 1 << colour


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _bits(bits: int) -> list[int]:
    found = []
    while bits:
        found.append(_lowest(bits))
        bits &= bits - 1
    return found
