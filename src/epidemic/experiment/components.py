"""Compatibility of kinds: every kind in the registries as a component, and a verdict for each pair, from an experiment that has both.

This file knows no rule. It makes an experiment with both kinds and what each of them needs (an asynchronous method needs a [clock]), and asks the checks
that refuse a user's experiment. A kind is tried with two sets of settings, since they can make the difference; one that works is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, product
from typing import Any

import msgspec

from epidemic.adversary import ADVERSARIES
from epidemic.aggregation import AGGREGATORS
from epidemic.algorithms import ALGORITHMS, AsynchronousMethod
from epidemic.clock import CHURNS, CLOSES
from epidemic.compression import CODECS
from epidemic.core.errors import BadInput, suggestion
from epidemic.data import PARTITIONS
from epidemic.experiment.compatibility import Incompatible, require_compatible
from epidemic.experiment.files import experiment_from, merged
from epidemic.mixing import RULES
from epidemic.participation import PARTICIPATIONS
from epidemic.peer_sampling import SERVICES
from epidemic.topology import TOPOLOGIES

Tables = dict[str, Any]

NODES = 16
"""Nodes of the experiments that are made: a square, a power of two, and even."""

BASE: Tables = {"nodes": NODES, "rounds": 4, "topology": {"kind": "el-local", "s": 4}, "data": {"kind": "synthetic"}}

OPTIONAL = ("weights", "a")
"""Optional settings that are set: without them shares of no size or very small views would be tried."""

FORMS: tuple[Tables, Tables] = (
    {
        **{"s": 4, "m": 4, "period": 2, "inner": {"kind": "ring"}, "share": 0.25, "q": 0.8, "seconds": 1.0, "p": 0.5},
        **{"mean_on": 10.0, "mean_off": 1.0, "median_on": 10.0, "median_off": 1.0, "median": 10.0, "sigma": 0.5},
        **{"online": 12, "a": 2, "weights": [1.0] * NODES},
    },
    {"s": 1, "deadline": 1.0, "fill": "own", "links": "blind", "size": 8, "inner": {"kind": "el-local", "s": 4}},
)
"""Values of settings by name: those that must be said, and others that may make the difference. A kind whose settings have other names, or mean something
else, has a class attribute `example` with values of its own."""

PARTICIPANTS = (9, 8, 12)
"""Numbers of participants: a square, a power of two, and an even number large enough for two halves."""


@dataclass(frozen=True)
class Component:
    """One kind of one axis."""

    axis: str
    kind: str
    summary: str
    forms: tuple[Tables, ...]  # settings that it is tried with
    needs: Tables = field(default_factory=dict)  # further settings that such an experiment needs
    host: str = ""  # the host that it is relevant for, or that it is

    @property
    def name(self) -> str:
        """The name used by commands."""
        return f"{self.axis}.{self.kind}"


@dataclass(frozen=True)
class Judgement:
    """Whether two kinds go together: yes, no (and why not), or None if the question is meaningless."""

    goes: bool | None
    why: str = ""


VIEWED: Tables = {"network": {"coin": "private"}}
"""What deployed nodes with views need."""

HOSTS = {
    "rounds": Component("host", "rounds", "Simulated rounds, without a clock.", ({},), host="simulation"),
    "clock": Component(
        "host", "clock", "Rounds or asynchronous methods under a simulated clock.", ({"clock": {}},), host="simulation"
    ),
    "ranks": Component("host", "ranks", "A simulation on several processes.", ({},), host="ranks"),
    "deployment": Component("host", "deployment", "Deployed nodes.", ({},), host="deployment"),
}

_FAULTS: dict[str, tuple[str, Any]] = {
    "loss": ("Messages get lost.", 0.1),
    "crashes": ("Named nodes crash.", [{"node": 0, "at": 1}]),
    "random_crashes": ("Nodes crash at random.", {"probability": 0.1}),
    "blocked": ("Pairs that cannot talk.", [[0, 1]]),
    "partitions": ("The network is split for a while.", [{"groups": [[0, 1]]}]),
    "cap": ("Nodes accept at most so many models in a round.", 2),
}


@cache
def components() -> dict[str, Component]:
    """All components by name."""
    found = [*HOSTS.values()]
    found += [_of("topology", kind, cls, lambda t: {"topology": t}) for kind, cls in _named(TOPOLOGIES)]
    found += [_algorithm(kind, cls) for kind, cls in _named(ALGORITHMS)]
    found += [_aggregator(kind, cls) for kind, cls in _named(AGGREGATORS)]
    found += [_adversary(kind, cls) for kind, cls in _named(ADVERSARIES)]
    found += [_of("compression", kind, cls, lambda t: {"compression": t}) for kind, cls in _named(CODECS)]
    found += [
        _of("view", kind, cls, lambda t: {"topology": {"kind": "el-local", "s": t.pop("s", 4), "view": t}}, VIEWED)
        for kind, cls in _named(SERVICES)
    ]
    mixing_needs = {"native": {"kind": "u-equistatic", "m": 2}, "metropolis-hastings": {"kind": "ring"}}
    for rule in RULES:
        needs = {"topology": mixing_needs[rule]} if rule in mixing_needs else {}
        found.append(Component("mixing", rule, "A mixing rule.", ({"mixing": rule},), needs))
    found += [_of("partition", kind, cls, lambda t: {"partition": t}) for kind, cls in _named(PARTITIONS)]
    found += [_of("participation", kind, cls, lambda t: {"participation": t}) for kind, cls in _named(PARTICIPATIONS)]
    found += [Component("faults", key, text, ({"faults": {key: value}},)) for key, (text, value) in _FAULTS.items()]
    found += [_of("close", kind, cls, lambda t: {"clock": {"close": t}}) for kind, cls in _named(CLOSES)]
    late = {"clock": {"close": {"kind": "deadline", "seconds": 1.0}}}
    found += [
        _of("churn", kind, cls, lambda t: {"clock": {"churn": t}}, late)
        for kind, cls in _named(CHURNS)
        if kind != "devices"
    ]
    for coin in ("shared", "committed", "private"):
        found.append(
            Component("coin", coin, f'network.coin = "{coin}".', ({"network": {"coin": coin}},), host="deployment")
        )
    return {one.name: one for one in found}


def _named(registry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The kinds in the package."""
    return ((kind, cls) for kind, cls in registry.items() if kind != "python")


def _of(axis: str, kind: str, cls: Any, place: Any, needs: Tables | None = None) -> Component:
    summary = (cls.__doc__ or "").strip().partition("\n")[0]
    forms = []
    for i, participants in enumerate(PARTICIPANTS if axis == "participation" else PARTICIPANTS[:2]):
        values = {
            **FORMS[0],
            **(FORMS[1] if i else {}),
            **({"m": participants} if axis == "participation" else {}),
            **getattr(cls, "example", {}),
        }
        wanted = [
            f.encode_name
            for f in msgspec.structs.fields(cls)
            if f.encode_name in values
            and (f.required or f.encode_name in OPTIONAL or (i and f.encode_name in FORMS[1]))
        ]
        table = {"kind": kind, **{name: values[name] for name in wanted}}
        forms.append(place({**table, "s": values["s"]} if axis == "view" else table))
    return Component(axis, kind, summary, tuple(forms), needs or {})


def _aggregator(kind: str, cls: Any) -> Component:
    """An aggregator; with uniform weights those that treat all inputs alike work with any topology."""
    found = _of("aggregation", kind, cls, lambda t: {"aggregation": t})
    return found if cls.weighted else replace(found, forms=(found.forms[0], {**found.forms[0], "mixing": "uniform"}))


def _adversary(kind: str, cls: Any) -> Component:
    """One whose nodes hold data, which goes with any partition; some need a graph that stays as it is."""
    found = _of("adversary", kind, cls, lambda t: {"adversary": t})
    needs: Tables = {"topology": {"kind": "ring"}} if cls.static_only else {}
    return replace(found, forms=({"adversary": {"kind": kind, "data": "all"}},), needs=needs)


def _algorithm(kind: str, cls: Any) -> Component:
    """An algorithm; what its class declares tells what else an experiment needs."""
    needs: Tables = {}
    if issubclass(cls, AsynchronousMethod):
        needs = {"clock": {"stop": 10.0}, "topology": {"kind": "ring"}}
    elif cls.same_neighbours or cls.balanced:
        needs = {"topology": {"kind": "ring"}}
    if cls.exact_exchange:
        needs["network"] = {"close": {"kind": "barrier"}}
    found = _of("algorithm", kind, cls, lambda t: {"algorithm": t}, needs)
    return replace(found, host="deployment") if cls.own_training else found


def find(word: str) -> Component:
    """The component of a name: its kind, or axis.kind if several axes have that kind."""
    every = components()
    if word in every:
        return every[word]
    found = [one for one in every.values() if one.kind == word]
    if len(found) > 1:
        raise BadInput(f"{word!r} is a kind of several things; say which: {' or '.join(one.name for one in found)}")
    if not found:
        raise BadInput(
            f"{word!r} is no kind that is known{suggestion(word, [*every, *(one.kind for one in every.values())])}"
        )
    return found[0]


def verdict(one: Component, other: Component) -> Judgement:
    """Whether two kinds go together.

    Args:
        one: A kind.
        other: A kind of another axis.

    Returns:
        The judgement; for hosts: whether that host can run the kind.
    """
    if one.axis == other.axis and one.axis != "faults":
        return Judgement(None, f"an experiment has one {one.axis} at a time")
    if other.axis in ("host", "view") and one.axis != "host":
        one, other = other, one
    if one.axis == "view" and other.axis == "topology":
        only = 'views are had by topology.kind = "el-local" alone, whose nodes draw their targets by themselves'
        return Judgement(other.kind == "el-local", "" if other.kind == "el-local" else only)
    if one.axis == "host" and other.host and one.host != other.host and other.axis != "algorithm":
        return Judgement(None, f"{other.name} is asked by deployed nodes alone")
    if one.name == "host.rounds" and any("clock" in form for form in other.forms):
        return Judgement(False, f"{other.name} is a part of [clock], and rounds without a clock have none")
    host = one.host or other.host or "simulation"
    reasons = []
    for first, second, needs in product(one.forms, other.forms, ((one.needs, other.needs), (other.needs, one.needs))):
        why = _refusal(one, host, [BASE, *needs, first, second])
        if why is None:
            return Judgement(True)
        reasons.append(why)
    general = [why for why in reasons if isinstance(why, Incompatible)]
    return Judgement(False, str((general or reasons)[0]))


def _refusal(one: Component, host: str, layers: list[Tables]) -> BadInput | None:
    table: Tables = {}
    for layer in layers:
        table = merged(table, layer)
    if one.name == "host.rounds":
        table.pop("clock", None)
    if getattr(ALGORITHMS.get(table.get("algorithm", {}).get("kind", "")), "own_training", False):
        del table["data"]
    if host == "deployment":
        table = merged({**table}, {"seeds": [1]})
        close = table.get("clock", {}).get("close")
        if close is not None and "close" not in table.get("network", {}):
            table = merged(table, {"network": {"close": close}})
    try:
        require_compatible(experiment_from(table), host)
    except BadInput as problem:
        return problem
    return None


def pairs() -> Iterator[tuple[Component, Component, Judgement]]:
    """All pairs of kinds of different axes with their verdicts, without meaningless ones."""
    for one, other in combinations(components().values(), 2):
        found = verdict(one, other)
        if found.goes is not None:
            yield one, other, found
