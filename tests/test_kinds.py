"""Adding a kind is one file and its row in a registry: everything that shows kinds follows."""

import json
import re

import numpy as np
import pytest

import epidemic as ep
from epidemic.aggregation import AGGREGATORS, Coordinatewise
from epidemic.cli import main
from epidemic.cli.completion import topologies
from epidemic.compression import CODECS
from epidemic.core.settings import Settings
from epidemic.experiment import experiment_from, to_toml
from epidemic.experiment.components import components, find, verdict
from epidemic.experiment.kinds import AXES, page, template
from epidemic.report.palette import LOOKS, looks_of_methods
from epidemic.report.style import line_of
from epidemic.topology import TOPOLOGIES, Topology


class Star(Topology, frozen=True, tag="star"):
    """One node hears all others, and they hear it."""

    hub: int = 0

    def draw(self, n, round, streams):
        others = np.setdiff1d(np.arange(n), [self.hub])
        hub = np.full(n - 1, self.hub)
        return ep.Graph.from_edges(n, np.concatenate([others, hub]), np.concatenate([hub, others]))


class Midrange(Coordinatewise, Settings, frozen=True, tag_field="kind", tag="midrange", forbid_unknown_fields=True):
    """Of each coordinate the middle between the smallest and the largest."""

    reach: float = 0.5

    def reduce(self, inputs):
        return (1 - self.reach) * min_of(inputs) + self.reach * max_of(inputs)


def min_of(inputs):
    import torch

    return torch.stack(inputs).amin(0)


def max_of(inputs):
    import torch

    return torch.stack(inputs).amax(0)


@pytest.fixture
def added(monkeypatch):
    """Two kinds more, in their registries and nowhere else."""
    monkeypatch.setitem(TOPOLOGIES, "star", Star)
    monkeypatch.setitem(AGGREGATORS, "midrange", Midrange)
    components.cache_clear()
    yield
    components.cache_clear()


def test_the_template_and_the_page_have_it(added):
    assert re.search(r"^# .*\bstar \(hub\)", template(), re.M)
    assert re.search(r"\bmidrange \(reach\)", template())
    assert "| `star` | `Star` | `hub` = 0 | One node hears all others, and they hear it. |" in page()
    assert "| `midrange` | `Midrange` | `reach` = 0.5 |" in page()


def test_files_and_runs_have_it(added):
    table = {
        **{"nodes": 5, "rounds": 2, "topology": {"kind": "star", "hub": 1}, "aggregation": {"kind": "midrange"}},
        **{
            "data": {"kind": "digits"},
            "model": {"kind": "logistic"},
            "mixing": "uniform",
            "partition": {"kind": "iid"},
        },
    }
    experiment = experiment_from(table)
    assert 'kind = "star"' in to_toml(experiment)
    assert experiment.portable
    run = ep.simulate(experiment, progress=False)
    assert len(run.models) == 5
    assert 0 < run.records[-1].accuracy.mean < 1


def test_commands_complete_help_and_compatibility_have_it(added, capsys):
    assert topologies("sta") == ["star"]
    assert main(["topology", "star", "--nodes", "6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "star"
    assert main(["topology", "--help"]) == 0
    assert re.search(r"\bstar\b", capsys.readouterr().out)
    assert find("star").summary == Star.__doc__
    assert verdict(find("star"), find("midrange")).goes


def test_figures_draw_it_in_a_colour_that_no_other_method_has(added):
    known = list(LOOKS)[:6]
    lines = [line_of(look) for look in looks_of_methods([*known, "star"])]
    assert lines[-1]["color"] not in {line["color"] for line in lines[:-1]}


def test_every_kind_says_in_a_line_what_it_is():
    for axis in AXES.values():
        for kind, cls in axis.kinds.items():
            said = (cls.__doc__ or "").strip().partition("\n")[0]
            assert len(said) > 15, kind
            assert said.endswith("."), kind
            assert cls.__struct_config__.tag == kind


def test_every_row_of_a_registry_is_there_in_the_page_by_its_python_name():
    for cls in (*TOPOLOGIES.values(), *CODECS.values()):
        assert f"`{cls.__name__}`" in page()
