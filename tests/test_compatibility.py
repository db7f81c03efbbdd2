"""What goes with what: the rules, what components declare of themselves, and random experiments."""

from pathlib import Path

import numpy as np
import pytest

import epidemic as ep
from drawn import RARELY, Broken, _goes_on, drawn, judged, leaves, outcome, without
from epidemic.cli import compatibility
from epidemic.cli.app import main
from epidemic.clock import Clock, Links
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.experiment.compatibility import RULES, refusals, require_compatible
from epidemic.experiment.components import find, pairs
from epidemic.experiment.files import experiment_from
from epidemic.mixing import weights
from epidemic.topology import TOPOLOGIES, natural_mixing, topology_cautions, topology_from

IN_THE_TESTS = 120
"""Random experiments of `make test`; `make random` has 2,000 and more."""


@pytest.mark.parametrize("first", range(0, IN_THE_TESTS, 30))
def test_a_random_experiment_runs_or_is_refused_in_one_line_and_nothing_that_it_says_is_ignored(first):
    words = [judged(seed)[0] for seed in range(first, first + 30)]
    assert 5 <= words.count("ran") <= 25  # so that both are tested


def test_random_experiments_are_the_same_wherever_they_are_drawn():
    assert drawn(7) == drawn(7) != drawn(8)
    table = drawn(1)
    assert all(without(table, path) != table for path in leaves(table))


def test_a_setting_that_is_ignored_is_found(monkeypatch):
    """The examination itself, on an experiment in which something has no effect and nobody says so."""
    monkeypatch.setattr("drawn.topology_cautions", lambda topology, n: [])
    table = {"nodes": 4, "rounds": 2, "topology": {"kind": "every", "inner": {"kind": "ring"}, "period": 3}}
    table |= {"data": {"kind": "synthetic", "features": 3, "classes": 3, "samples": 60}, "model": {"kind": "logistic"}}
    monkeypatch.setattr("drawn.drawn", lambda seed: table)
    monkeypatch.setattr("drawn.leaves", lambda table: [("topology", "period")])
    with pytest.raises(Broken, match=r"topology\.period is silently ignored"):
        judged(0)
    assert "topology.period" not in RARELY


def test_a_run_that_is_not_the_same_when_it_goes_on_is_found(monkeypatch):
    """The examination itself, on seeds of rounds and of the clock."""
    seeds = [seed for seed in range(0, 300, 3) if outcome(drawn(seed))[0] == "ran"][:6]
    assert any("clock" in drawn(seed) for seed in seeds)
    assert any("clock" not in drawn(seed) for seed in seeds)
    for seed in seeds:
        with pytest.raises(Broken, match="resumed, it gives something else"):
            _goes_on(drawn(seed), "another digest")
    monkeypatch.setattr("drawn.resumed", lambda table: "the same")
    with pytest.raises(Broken, match="made longer, it gives something else"):
        _goes_on(next(drawn(seed) for seed in seeds if "clock" not in drawn(seed)), "the same")


# -- what the random experiments found ---------------------------------------------------------------------------------


def test_fill_has_no_meaning_for_differences():
    with pytest.raises(
        BadInput, match=r'algorithm\.compressor\.fill = "own" has no meaning for algorithm\.kind = "choco"'
    ):
        ep.Choco(compressor={"kind": "top-k", "share": 0.5, "fill": "own"})


def test_retries_without_a_cap_are_refused():
    with pytest.raises(BadInput, match=r"faults\.max_retries = 3 has no effect without faults\.cap; set a cap"):
        ep.Experiment(faults=ep.Faults(max_retries=3))
    ep.Experiment(faults=ep.Faults(max_retries=3, cap=5))


@pytest.mark.parametrize("setting", [{"order": "ascending"}, {"model": "fair"}])
def test_settings_of_links_that_are_unlimited_are_refused(setting):
    (name,) = setting
    with pytest.raises(BadInput, match=rf"clock\.links\.{name} = .* has no effect on links that are unlimited"):
        Clock(links=Links(**setting))
    Clock(links=Links(uplink=1.0, **setting))


def test_a_period_that_changes_nothing_is_said():
    (said,) = topology_cautions(ep.Every(ep.Ring(), period=3), 8)
    assert "topology.period = 3 has no effect" in said
    (said,) = topology_cautions(ep.Periodic(ep.ELLocal(2), period=1), 8)
    assert 'topology.inner.kind = "el-local" has no effect' in said


def test_weights_that_fit_the_first_graph_by_chance_are_refused_before_the_second():
    """Among four nodes one graph of EL-Local in 27 goes both ways."""
    by_chance = [seed for seed in range(300) if ep.ELLocal(1).graph(4, 0, Streams(seed)).undirected]
    assert by_chance
    for seed in by_chance[:3]:
        with pytest.raises(BadInput, match="needs links that go both ways"):
            ep.Experiment(nodes=4, topology=ep.ELLocal(1), mixing="metropolis-hastings", seeds=[seed])


def test_graphs_that_are_balanced_by_chance_in_the_rounds_that_are_looked_at_are_refused():
    def balanced(seed):
        graphs = (ep.ELLocal(1).graph(3, round, Streams(seed)) for round in range(4))
        return all((graph.in_degree == 1).all() for graph in graphs)

    seed = next(seed for seed in range(5000) if balanced(seed))
    with pytest.raises(BadInput, match="all would agree on a wrong point"):
        ep.Experiment(nodes=3, topology=ep.ELLocal(1), algorithm=ep.GradientTracking(), seeds=[seed])


# -- what components declare -------------------------------------------------------------------------------------------

SETTINGS = {"s": 2, "m": 2, "period": 2, "inner": {"kind": "ring"}}


@pytest.mark.parametrize("kind", [kind for kind in TOPOLOGIES if kind != "python"])
def test_what_a_topology_declares_of_its_links_and_weights_is_true(kind):
    required = TOPOLOGIES[kind].__struct_fields__
    topology = topology_from({"kind": kind, **{name: SETTINGS[name] for name in required if name in SETTINGS}})
    graphs = [topology.graph(16, round, Streams(seed)) for seed in range(3) for round in range(6)]
    both_ways = all(graph.undirected for graph in graphs)
    alike = all(
        np.allclose(weights(natural_mixing(topology), graph).dense().sum(axis=0), 1, atol=1e-9) for graph in graphs
    )
    assert both_ways == topology.symmetric
    assert alike == topology.doubly_stochastic


# -- the table ---------------------------------------------------------------------------------------------------------


def test_no_two_rules_are_about_the_same_two_traits():
    pairs = [frozenset((rule.one.name, rule.other.name)) for rule in RULES]
    assert len(set(pairs)) == len(pairs)
    traits = {}
    for rule in RULES:
        for trait in (rule.one, rule.other):
            assert traits.setdefault(trait.name, trait.seen.__code__) is trait.seen.__code__, trait.name


def test_a_valid_experiment_breaks_no_rule_of_the_simulation():
    for seed in range(60):
        try:
            experiment = experiment_from(drawn(seed))
        except BadInput:
            continue
        assert list(refusals(experiment)) == []


def test_all_that_stands_in_the_way_of_a_host_is_told():
    experiment = ep.Experiment(
        nodes=8, topology=ep.ELLocal(2, view={"kind": "cyclon", "size": 4, "shuffle": 2}), faults=ep.Faults(loss=0.1)
    )
    lines = [line for _, line in refusals(experiment, "deployment")]
    assert [line.partition(":")[0].partition(" is")[0] for line in lines] == ["topology.view", "faults.loss"]
    with pytest.raises(BadInput, match=r"network\.coin=private"):
        require_compatible(experiment, "deployment")
    require_compatible(experiment, "ranks")


# -- who goes with whom ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answers():
    return {frozenset((one.name, other.name)): found for one, other, found in pairs()}


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("choco", "el-local", False),
        ("choco", "ring", True),
        ("choco", "deployment", True),
        ("async-el", "rounds", False),
        ("async-el", "clock", True),
        ("async-el", "deployment", True),
        ("ad-psgd", "el-local", True),
        ("push-sum", "mixing.uniform", False),
        ("gradient-tracking", "el-oracle", True),
        ("gradient-tracking", "el-local", False),
        ("fragments", "clock", False),
        ("int8", "divshare", False),
        ("cyclon", "deployment", True),
        ("top-k", "mixing.native", True),
        ("median", "erdos-renyi", True),
        ("median", "async-el", True),
        ("median", "push-sum", False),
        ("trimmed-mean", "top-k", False),
        ("trimmed-mean", "gossip-learning", False),
        ("nearest", "deployment", True),
        ("nearest", "fragments", False),
        ("gts", "metropolis-hastings", True),
        ("krum", "metropolis-hastings", False),
        ("multi-krum", "push-sum", False),
        ("clipped", "coin.private", False),
        ("median", "coin.committed", True),
        ("pull", "cap", False),
        ("teleportation", "ranks", False),
        ("loss", "deployment", False),
        ("cap", "deployment", True),
        ("iid", "rounds", True),
    ],
)
def test_what_goes_with_what(answers, one, other, together):
    found = answers[frozenset((find(one).name, find(other).name))]
    assert found.goes is together
    assert bool(found.why) is not together
    assert "\n" not in found.why


def test_every_rule_of_kinds_is_met_by_two_kinds(answers):
    """Of the rules, the others are about two settings of kinds; they are refused, too, but no two kinds show it."""
    lines = {found.why for found in answers.values()}
    starts = {rule.why.partition("{")[0] for rule in RULES if not rule.why.startswith("{")}
    met = {start for start in starts if start and any(line.startswith(start) for line in lines)}
    assert len(met) >= 25


def test_the_page_is_up_to_date():
    page = (Path(__file__).parents[1] / "docs/compatibility.md").read_text()
    assert page == compatibility.page(), "make it again: epidemic compatibility --markdown > docs/compatibility.md"


def test_the_command_says_it(capsys):
    assert main(["compatibility", "choco", "el-local"]) == 0
    assert "algorithm.choco and topology.el-local do not go together: " in capsys.readouterr().out
    assert main(["compatibility", "choco", "ring", "--json"]) == 0
    assert '"together":true' in capsys.readouterr().out.lower()
    assert main(["compatibility", "cyclon"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("view.cyclon: ")
    assert max(map(len, lines)) <= 80 or len(lines[0]) > 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["chocco"], "'chocco' is no kind that is known; did you mean 'choco'?"),
        (["exponential"], "say which: topology.exponential or churn.exponential"),
        (["choco", "choco"], "give two different kinds"),
        (["choco", "--markdown"], "leave the kinds and --json out"),
    ],
)
def test_words_that_name_no_kind_are_refused(capsys, words, message):
    assert main(["compatibility", *words]) == 2
    assert message in capsys.readouterr().err
