"""A user's own topology, named in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import msgspec

from epidemic.core.config import call_own, import_object
from epidemic.core.errors import BadInput, EpidemicError
from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.topology.base import (
    Expected,
    GivesGraphs,
    Topology,
    check_topology,
    exchange_of,
    expected,
    is_doubly_stochastic,
    is_placed,
    is_random,
    is_static,
    is_symmetric,
    natural_mixing,
)


class PythonTopology(Topology, frozen=True, tag="python", dict=True):
    """A user's own: "module:factory" is called with `options` and returns an object with graph(n, round, streams).

    Further attributes of the object (natural_mixing, static, random, placed, symmetric, doubly_stochastic, exchange, check, expected) are used as well. An
    experiment is identified by the name and the options, not by the code behind them; deployed nodes also compare the first graphs.
    """

    factory: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    @classmethod
    def compared(cls, s: int, m: int | None) -> Mapping[str, Mapping[str, Any]]:
        return {}

    @cached_property
    def made(self) -> GivesGraphs:
        """Call the factory and return the user's topology."""
        made = call_own(import_object(self.factory, "topology.factory"), self.options, self._place)
        if isinstance(made, type) or not isinstance(made, GivesGraphs):
            what = made.__name__ if isinstance(made, type) else type(made).__name__
            raise BadInput(f"{self._place} must return an object with a method graph(n, round, streams), not {what}")
        return made

    @property
    def _place(self) -> str:
        return f"topology.factory = {self.factory!r}"

    @property
    def natural_mixing(self) -> str:  # type: ignore[override]
        return natural_mixing(self.made)

    @property
    def random(self) -> bool:  # type: ignore[override]
        return is_random(self.made)

    @property
    def static(self) -> bool:  # type: ignore[override]
        return is_static(self.made)

    @property
    def placed(self) -> bool:  # type: ignore[override]
        return is_placed(self.made)

    @property
    def symmetric(self) -> bool | None:  # type: ignore[override]
        return is_symmetric(self.made)

    @property
    def doubly_stochastic(self) -> bool | None:  # type: ignore[override]
        return is_doubly_stochastic(self.made)

    @property
    def exchange(self) -> str:  # type: ignore[override]
        return exchange_of(self.made)

    def check(self, n: int) -> None:
        with self._in_a_line(f"check({n})"):
            check_topology(self.made, n)

    def graph(self, n: int, round: int, streams: Streams) -> Graph:
        call = f"graph({n}, {round}, streams)"
        with self._in_a_line(call):
            drawn = self.made.graph(n, round, streams)
        wrong = _wrong(drawn, n)
        if wrong:
            raise BadInput(f"{self._place}: {call} must return an epidemic.Graph of {n} nodes, not {wrong}")
        return drawn

    def expected(self, n: int, streams: Streams) -> Expected:
        with self._in_a_line(f"expected({n}, streams)"):
            return expected(self.made, n, streams)

    @contextmanager
    def _in_a_line(self, call: str) -> Iterator[None]:
        """Turn exceptions of the user's code into one line; our own errors stay as they are."""
        try:
            yield
        except EpidemicError:
            raise
        except Exception as problem:
            reason = " ".join(str(problem).split())
            raise BadInput(f"{self._place}: {call} failed: {type(problem).__name__}: {reason}") from problem


def require_keyed(topology: GivesGraphs, draw: Callable[[], Graph]) -> None:
    """Raise BadInput if a user's own topology gives two different graphs for one round: hosts and resumed runs would not agree on it.

    Args:
        topology: The topology; built-in ones are not checked.
        draw: Draws the graph of one round.
    """
    named = _own_part(topology)
    if named is not None and draw().digest() != draw().digest():
        raise BadInput(
            f"topology {named} gave two different graphs for the same round, so it draws from something else than its streams;"
            " in graph(n, round, streams) use streams.generator('topology', round) instead of np.random"
        )


def _own_part(topology: object) -> str | None:
    """The name of the user's own topology, also inside of a wrapper; None if all is built in."""
    while topology is not None:
        if isinstance(topology, PythonTopology):
            return repr(topology.factory)
        if not isinstance(topology, Topology):
            return type(topology).__name__
        topology = getattr(topology, "inner", None)
    return None


def _wrong(graph: object, n: int) -> str:
    """What keeps this from being a graph of n nodes; empty if nothing does."""
    if not isinstance(graph, Graph):
        return type(graph).__name__
    if graph.n != n:
        return f"one of {graph.n}"
    if len(graph.indptr) != n + 1 or (len(graph.senders) and not 0 <= graph.senders.min() <= graph.senders.max() < n):
        return "one with nodes that do not exist"
    if len(graph.receivers) != len(graph.senders):
        return "one whose edges do not add up"
    return "one in which a node sends to itself" if (graph.senders == graph.receivers).any() else ""
