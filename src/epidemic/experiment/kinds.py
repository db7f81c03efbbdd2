"""Everything that a file can name by kind, from the registries: the lines of the template, and the page `docs/kinds.md`.

A new kind is listed in the registry of its room and appears in both when they are made again:

    python -m epidemic.experiment.kinds

They are files because `epidemic init` answers at once, without importing PyTorch, which most registries need. A test compares them with what this makes.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from epidemic.adversary import ADVERSARIES
from epidemic.aggregation import AGGREGATORS
from epidemic.algorithms import ALGORITHMS, AsynchronousMethod
from epidemic.algorithms.optimisers import OPTIMIZERS
from epidemic.algorithms.schedules import SCHEDULES
from epidemic.clock import CHURNS, CLOSES, COMPUTES, LATENCIES
from epidemic.compression import CODECS
from epidemic.core.settings import Settings
from epidemic.data import PARTITIONS, SOURCES
from epidemic.models import MODELS
from epidemic.participation import PARTICIPATIONS
from epidemic.peer_sampling import SERVICES
from epidemic.topology import TOPOLOGIES

SOURCE = Path(__file__).with_name("template.source.toml")
"""The template with places for kinds; of a checkout, as the page."""
TEMPLATE = Path(__file__).parents[1] / "template.toml"
PAGE = Path(__file__).parents[3] / "docs/kinds.md"

WIDTH = 150
"""Columns of the template."""

GLUE = "\N{NO-BREAK SPACE}"


class Registry(NamedTuple):
    """A table of the experiment file that has a kind."""

    table: str  # as the file has it
    title: str
    kinds: Mapping[str, type[Settings]]


AXES = {
    "topology": Registry("topology", "Topologies: who sends to whom", TOPOLOGIES),
    "view": Registry("topology.view", "Peer sampling: whom the nodes of EL-Local know", SERVICES),
    "algorithm": Registry("algorithm", "Algorithms: what nodes do with models", ALGORITHMS),
    "optimizer": Registry("algorithm.optimizer", "Optimisers", OPTIMIZERS),
    "schedule": Registry("algorithm.schedule", "Schedules of the learning rate", SCHEDULES),
    "aggregation": Registry("aggregation", "Aggregators: how received models become one", AGGREGATORS),
    "adversary": Registry("adversary", "Adversaries: what malicious nodes do", ADVERSARIES),
    "compression": Registry("compression", "Codecs: smaller messages", CODECS),
    "data": Registry("data", "Data", SOURCES),
    "partition": Registry("partition", "Partitions: which node holds which samples", PARTITIONS),
    "model": Registry("model", "Models", MODELS),
    "participation": Registry("participation", "Participation: who takes part in a round", PARTICIPATIONS),
    "compute": Registry("clock.compute", "The clock: how long a local step takes", COMPUTES),
    "latency": Registry("clock.links.latency", "The clock: latencies", LATENCIES),
    "churn": Registry("clock.churn", "The clock: who is there when", CHURNS),
    "close": Registry("clock.close, network.close", "When a node closes a round", CLOSES),
}


def common_settings(kinds: Mapping[str, type[Settings]]) -> list[str]:
    """The settings that all kinds of a registry have, or four in five of many kinds, a user's own left aside."""
    fields = [cls.__struct_fields__ for kind, cls in kinds.items() if kind != "python"]
    if len(fields) < 2:
        return []
    enough = len(fields) if len(fields) < 5 else 0.8 * len(fields)
    return [name for name in fields[0] if sum(name in others for others in fields) >= enough]


def summary(cls: type[Settings]) -> str:
    """The first line of a kind's documentation."""
    return (cls.__doc__ or "").strip().partition("\n")[0].rstrip()


def line(kinds: Mapping[str, type[Settings]]) -> str:
    """All kinds in a line, each with the settings that not all of them have: "ring; torus (rows); ..."."""
    common = common_settings(kinds)
    found = []
    for kind, cls in kinds.items():
        own = [name for name in cls.__struct_fields__ if name not in common]
        found.append(f"{kind} ({', '.join(own)})" if own else kind)
    return "; ".join(found)


def _in_template() -> dict[str, Mapping[str, type[Settings]]]:
    """The kinds that the template has a line for, by the word that stands for them there."""
    found = {name: axis.kinds for name, axis in AXES.items()}
    free = {kind: cls for kind, cls in ALGORITHMS.items() if issubclass(cls, AsynchronousMethod)}
    return {**found, "algorithm": {k: c for k, c in ALGORITHMS.items() if k not in free}, "asynchronous": free}


def template() -> str:
    """The experiment file that `epidemic init` writes: every key with its default, and every kind."""
    text, kinds = SOURCE.read_text(), _in_template()

    def shown(found: re.Match[str]) -> str:
        together = re.sub(r" (?=[^()]*\))| (?=\()", GLUE, line(kinds[found["axis"]]))  # a kind and its settings
        said = textwrap.fill(
            f"{found['before']}kind: {together}",
            WIDTH,
            subsequent_indent="# ",
            break_on_hyphens=False,
            break_long_words=False,
        )
        return said.replace(GLUE, " ")

    return re.sub(r"^(?P<before>#.*)\{kinds of (?P<axis>\w+)\}$", shown, text, flags=re.MULTILINE)


def _shown(value: Any) -> str:
    """A default as a file would have it."""
    if isinstance(value, msgspec.Struct):
        value = {k: v for k, v in msgspec.to_builtins(value).items() if v is not None}
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {_shown(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else f"{value!r}"


def _settings(cls: type[Settings]) -> dict[str, str]:
    """Settings of a kind with their defaults, as Markdown, by name."""
    found = {}
    for field in msgspec.structs.fields(cls):
        made = field.default_factory() if callable(field.default_factory) else field.default
        found[field.name] = f"`{field.name}`" + ("" if field.required else f" = {_shown(made)}")
    return found


def page() -> str:
    """The page of the documentation."""
    lines = [
        "# Every kind",
        "",
        "All that an experiment file can name by `kind`, with its settings and their defaults; a setting without a default must be given. In Python the same settings are arguments:",
        "the first may go without its name. Which kinds go together: [What goes with what](compatibility.md). This page is made by `python -m epidemic.experiment.kinds`.",
    ]
    for axis in AXES.values():
        first = _settings(next(iter(axis.kinds.values())))
        common = [first[name] for name in common_settings(axis.kinds)]
        tables = " and ".join(f"`[{table}]`" for table in axis.table.split(", "))
        lines += ["", f"## {axis.title}", ""]
        alike = f" Unless its line says otherwise, each has {', '.join(common)}." if common else ""
        lines.append(f"In {tables}.{alike}")
        lines += ["", "| kind | in Python | settings | what it is |", "|---|---|---|---|"]
        for kind, cls in axis.kinds.items():
            own = [text for text in _settings(cls).values() if text not in common]
            none = "none" if common and not cls.__struct_fields__ else ""
            lines.append(f"| `{kind}` | `{cls.__name__}` | {', '.join(own) or none} | {summary(cls)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for path, text in ((TEMPLATE, template()), (PAGE, page())):
        path.write_text(text)
        print(f"wrote {path}")
