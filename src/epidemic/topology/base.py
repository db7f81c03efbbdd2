"""What a topology is: a frozen value that gives the graph of round t.

A user's own class needs just that one method, `graph(n, round, streams)`; the rest has sensible defaults.
Random topologies draw from the round's stream, static ones from the run's, so that any host computes any round alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from epidemic.errors import BadInput, require_int
from epidemic.graph import Graph
from epidemic.rng import Stream, Streams
from epidemic.shown import html_table

ATTEMPTS = 1000
"""How often a static topology is drawn again when it comes out disconnected, before giving up."""


@runtime_checkable
class GivesGraphs(Protocol):
    """What everything else asks of a topology."""

    def graph(self, n: int, round: int, streams: Streams) -> Graph:
        """The graph of this round."""
        ...


class Expected(msgspec.Struct, frozen=True):
    """What theory says about one round of a random topology with its natural weights."""

    sigma2: float | None = None
    """Largest eigenvalue of E[Pi W^T W Pi]: the worst-case factor on the squared distance to the old mean."""
    contraction: float | None = None
    """E[D(WX)] / D(X), where it is the same for every X."""


class Topology(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the built-in topologies."""

    natural_mixing: ClassVar[str] = "uniform"
    random: ClassVar[bool] = False  # whether each round has a graph of its own, drawn at random
    static: ClassVar[bool] = False  # whether all rounds have the same graph
    fewest_nodes: ClassVar[int] = 2

    def check(self, n: int) -> None:
        """Raise BadInput if this topology does not exist for n nodes."""
        require_int("nodes", n, self.fewest_nodes)

    def graph(self, n: int, round: int, streams: Streams) -> Graph:
        """The graph of this round."""
        self.check(n)
        return self.draw(n, round, streams)

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        """The graph of this round, n being valid."""
        raise NotImplementedError

    def expected(self, n: int, streams: Streams) -> Expected:
        """Theory for this topology, as far as there is a closed form."""
        return Expected()

    def _repr_html_(self) -> str:
        settings = [(name, getattr(self, name)) for name in self.__struct_fields__]
        changes = "never" if self.static else "at random, in every round" if self.random else "by a rule"
        if isinstance(self, Every) and not self.static:
            changes = f"as its inner one does, every {self.period} rounds"
        about = [("the graph changes", changes), ("mixing", self.natural_mixing)]
        return html_table(f"{type(self).__name__} ({kind_of(self)})", [*settings, *about])


class StaticTopology(Topology, frozen=True):
    """A topology whose graph is the same in every round; the last few are remembered."""

    static: ClassVar[bool] = True

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        return _remembered(self, n, streams)

    def build(self, n: int, stream: Stream) -> Graph:
        """The one graph of the run."""
        raise NotImplementedError


@lru_cache(maxsize=16)
def _remembered(topology: StaticTopology, n: int, streams: Streams) -> Graph:
    return topology.build(n, streams("topology"))


class Every(Topology, frozen=True, tag="every"):
    """Another topology, each of whose graphs is held for `period` rounds."""

    inner: Any
    period: int

    def __post_init__(self) -> None:
        require_int("topology.period", self.period, 1)
        if isinstance(self.inner, dict):
            from epidemic.topology import topology_from  # the registry lists this class too

            msgspec.structs.force_setattr(self, "inner", topology_from(self.inner, "topology.inner"))
        if not isinstance(self.inner, GivesGraphs):
            raise BadInput(f"topology.inner = {self.inner!r} must be a topology, for example {{kind = 'ring'}}")

    @property
    def natural_mixing(self) -> str:  # type: ignore[override]
        return natural_mixing(self.inner)

    @property
    def random(self) -> bool:  # type: ignore[override]
        return is_random(self.inner)

    @property
    def static(self) -> bool:  # type: ignore[override]
        return is_static(self.inner)

    def check(self, n: int) -> None:
        check_topology(self.inner, n)

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        graph: Graph = self.inner.graph(n, round // self.period, streams)
        return graph

    def expected(self, n: int, streams: Streams) -> Expected:
        inner = expected(self.inner, n, streams)
        return (
            inner if self.period == 1 else Expected(sigma2=inner.sigma2)
        )  # a graph held on meets what it mixed itself


def natural_mixing(topology: GivesGraphs) -> str:
    """The mixing rule that a topology is meant to be used with."""
    return str(getattr(topology, "natural_mixing", "uniform"))


def is_random(topology: GivesGraphs) -> bool:
    """Whether each round has a graph of its own, drawn at random."""
    return bool(getattr(topology, "random", False))


def is_static(topology: GivesGraphs) -> bool:
    """Whether all rounds have the same graph."""
    return bool(getattr(topology, "static", False))


def kind_of(topology: GivesGraphs) -> str:
    """The kind by which a table names the topology; for a user's own class, the name of the class."""
    return str(topology.__struct_config__.tag) if isinstance(topology, Topology) else type(topology).__name__


def check_topology(topology: GivesGraphs, n: int) -> None:
    """Raise BadInput if the topology says that it does not exist for n nodes."""
    check = getattr(topology, "check", None)
    if check is not None:
        check(n)


def expected(topology: GivesGraphs, n: int, streams: Streams) -> Expected:
    """Theory for a topology, empty where it has none to offer."""
    ask = getattr(topology, "expected", None)
    return ask(n, streams) if ask is not None else Expected()


def check_degree(n: int, s: int, *, even: bool) -> None:
    """1 <= s <= n - 1, and n * s even where links go both ways."""
    require_int("nodes", n, 2)
    if s > n - 1:
        raise BadInput(f"topology.s = {s} must be at most nodes - 1 = {n - 1}")
    if even and n * s % 2:
        raise BadInput(
            f"topology.s = {s} with nodes = {n}: an undirected graph of equal degrees needs nodes * s even;"
            f" use s = {s - 1 or s + 1} or nodes = {n + 1}"
        )


def ceil_log2(n: int) -> int:
    """The smallest k with 2**k >= n; the paper's default for s."""
    return (n - 1).bit_length()
