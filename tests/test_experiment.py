"""Experiments as values and as files: strict, complete, and the same both ways."""

import ast
import json
import re
from importlib.resources import files
from pathlib import Path

import msgspec
import numpy as np
import pytest
from torch import nn

import epidemic as ep
from epidemic.core.errors import BadInput
from epidemic.experiment import (
    check_node_setting,
    experiment_from,
    load,
    node_agreement,
    same_experiment,
    to_toml,
    with_settings,
)
from epidemic.experiment.differences import BETWEEN_NODES_WITH_OWN_DATA, MEANT, decisive
from epidemic.experiment.kinds import AXES, page, template
from epidemic.faults import Crash, Faults, Split
from epidemic.topology import ELLocal, Every, Ring

ROOT = Path(__file__).parents[1]
TEMPLATE = (files("epidemic") / "template.toml").read_text()


def _template(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(TEMPLATE)
    return path


def test_the_template_is_a_valid_experiment(tmp_path):
    experiment = load(_template(tmp_path))
    assert experiment.nodes == 32
    assert experiment.data == ep.Fashion()


def test_the_template_shows_every_key(tmp_path):
    """Top-level keys and those of every table that is not chosen by kind, with their defaults unless said otherwise."""
    experiment = load(_template(tmp_path))
    for field in msgspec.structs.fields(ep.Experiment):
        assert re.search(rf"^(# )?(\[{field.name}\]|{field.name} =)", TEMPLATE, re.M), field.name
    assert all(name in TEMPLATE for name in ep.metrics.SHIPPED)
    for part in ("algorithm", "faults", "eval", "checkpoint", "runtime", "data", "partition", "model", "topology"):
        text = re.search(rf"^\[{part}\]\n(.*?)(?=^\[|\Z)", TEMPLATE, re.M | re.S)[1]
        for field in msgspec.structs.fields(getattr(experiment, part)):
            assert re.search(rf"^(# )?{field.name} =", text, re.M), f"{part}.{field.name}"
    for part in ("faults", "checkpoint", "runtime", "eval"):
        assert getattr(experiment, part) == getattr(ep.Experiment(), part)


@pytest.mark.parametrize("axis", [*AXES.values()], ids=[*AXES])
def test_kinds_named_in_the_template_are_all_there_are(axis):
    for kind in axis.kinds:
        assert re.search(rf"(?<![-\w]){kind}(?![-\w])", TEMPLATE) or axis.table == "clock.links.latency", kind


def test_the_template_and_the_page_of_all_kinds_are_up_to_date():
    said = "make them again: python -m epidemic.experiment.kinds"
    assert template() == TEMPLATE, said
    assert (ROOT / "docs/kinds.md").read_text() == page(), said
    assert "{kinds of" not in TEMPLATE


@pytest.mark.parametrize(
    "experiment",
    [
        ep.Experiment(),
        ep.Experiment(name='with "quotes"', topology=Every(ELLocal(3), period=4), seeds=[1, 2], model=ep.MLP((3, 4))),
        ep.Experiment(
            faults=Faults(crashes=(Crash(1, at=2, returns=3), Crash(2, at=5)), partitions=(Split(((0, 1), (2,)), start=3),), cap=4, max_retries="unlimited")
        ),
        ep.Experiment(data=ep.Synthetic(features=3), partition=ep.Explicit(weights=(1.0, 2.0)), nodes=2, topology=Ring()),
        ep.Experiment(data=ep.PythonData(function="a:b", options={"x": 1, "y": [True]}), eval=ep.Eval(samples="all")),
    ],
)  # fmt: skip
def test_files_and_values_are_the_same(tmp_path, experiment):
    path = tmp_path / "e.toml"
    path.write_text(to_toml(experiment))
    assert load(path) == experiment


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["rouns=5"], "rouns is not a known key; did you mean 'rounds'?"),
        (["topology.x=5"], "topology.x is not a known key"),
        (["topology.kind=ringg"], "topology.kind = 'ringg' is not known; did you mean 'ring'?"),
        (["algorithm.lr=-1"], "algorithm.lr = -1.0 must be greater than 0"),
        (["algorithm.lr=nan"], "algorithm.lr = nan must be a finite number"),
        (["algorithm.lr=fast"], "algorithm.lr = 'fast' must be a number"),
        (["algorithm.momentum=2"], "algorithm.momentum = 2.0 must be at most 1"),
        (["algorithm.order=later"], "algorithm.order"),
        (["nodes=0"], "nodes = 0 must be at least 1"),
        (["nodes=3"], "topology.s = 5 must be at most nodes - 1 = 2"),
        (["nodes=many"], "nodes = 'many' must be a whole number"),
        (["rounds=-1"], "rounds = -1 must be at least 0"),
        (["seeds=[]"], "seeds = [] must have at least one seed"),
        (["seeds=3"], "seeds = 3 must be a list"),
        (["seeds=[1,1]"], "must be different"),
        (["seeds=[-1]"], "seeds = -1 must be at least 0"),
        (["mixing=unifrom"], "mixing = 'unifrom' is not known; did you mean 'uniform'?"),
        (["format=2"], "format = 2 is not supported"),
        (["eval.every=0"], "eval.every = 0 must be at least 1"),
        (["eval.samples=some"], "eval.samples"),
        (["checkpoint.seconds=-1"], "checkpoint.seconds = -1.0 must be at least 0"),
        (["runtime.strategy=best"], "runtime.strategy"),
        (["runtime.threads=-1"], "runtime.threads = -1 must be at least 0"),
        (["faults.cap=-1"], "faults.cap = -1 must be at least 0"),
        (["faults.crashes=[{node=99, at=1}]"], "names node 99"),
        (["faults.cap=3", "mixing=metropolis-hastings"], "use faults.max_retries = 0"),
        (["name="], "name"),
        (["rounds"], "must have the form key=value"),
        (["rounds.x=1"], "rounds = {'x': 1} must be a whole number"),
        (["topology=ring"], "topology = 'ring' must be a table with a kind"),
        (["model.kind=mpl"], "did you mean 'mlp'?"),
        (["partition.alpha=0"], "partition.alpha = 0.0 must be greater than 0"),
    ],
)
def test_mistakes_are_named(tmp_path, settings, message):
    with pytest.raises(BadInput) as caught:
        load(_template(tmp_path), settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_replace_a_table_when_its_kind_changes(tmp_path):
    path = _template(tmp_path)
    assert load(path, ["topology.kind=ring"]).topology == Ring()
    assert load(path, ["topology.s=4"]).topology == ELLocal(4)
    assert load(path, ["topology.kind=el-oracle", "topology.s=4"]).topology == ep.ELOracle(4)
    assert with_settings({"a": {"b": {"c": 1}}}, ["a.b.d=2"]) == {"a": {"b": {"c": 1, "d": 2}}}


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("nodes = = 3")
    with pytest.raises(BadInput, match="is not valid TOML"):
        load(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="cannot be read"):
        load(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_text("[[methods]]\nname='a'")
    with pytest.raises(BadInput, match="epidemic compare"):
        load(tmp_path / "bad.toml")
    with (tmp_path / "bad.toml").open("r+b") as file:
        file.truncate(20 * 2**30)  # takes no room on the disk
    for endless in (tmp_path / "bad.toml", "/dev/zero"):
        with pytest.raises(BadInput, match=r"has more than 64 MiB, more than any file of settings"):
            load(endless)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"topology": "ring"}, "must have a method graph"),
        ({"algorithm": 3}, "it needs local_steps, batch_size, init, local_update and aggregate"),
        ({"loss": "crossentropy"}, "did you mean 'cross-entropy'?"),
        ({"data": 5}, "data must be a Dataset"),
        ({"data": lambda: ((1, 2), 3)}, "data must be a Dataset"),
    ],
)
def test_wrong_objects_in_python(fields, message):
    def use():
        experiment = ep.Experiment(**fields)
        experiment.loss_function(experiment.load_data())

    with pytest.raises(BadInput) as caught:
        use()
    assert message in str(caught.value)


def test_experiments_with_own_objects_are_described():
    own = ep.Experiment(model=nn.Linear(2, 2), data=((np.zeros((4, 2)), np.zeros(4, int)),) * 2)
    assert not own.portable
    assert own.table()["model"]["own"] == "torch.nn.modules.linear.Linear"
    with pytest.raises(BadInput, match="cannot be written to a file"):
        to_toml(own)


def test_what_differs_between_experiments():
    a, b = ep.Experiment(), ep.Experiment(rounds=5, topology=Ring(), seeds=[4], runtime=ep.Runtime(threads=3))
    assert same_experiment(a.table(), b.table()) == ["rounds", "topology.kind", "topology.s"]
    assert same_experiment(a.table(), a.table()) == []


def test_where_the_data_lies_does_not_make_another_experiment():
    here, there = (ep.Experiment(data=ep.Arrays(path=path)) for path in ("data.npz", "/srv/data.npz"))
    assert same_experiment(here.table(), there.table()) == []
    more = ep.Experiment(data=ep.Arrays(path="data.npz", validation=0.1))
    assert same_experiment(here.table(), more.table()) == ["data.validation"]
    given = {"kind": "python", "function": "mine:read"}
    one, other = ({"data": {**given, "options": {"path": path, "size": 3}}} for path in ("a", "b"))
    assert same_experiment(one, other) == []


@pytest.mark.parametrize("key", MEANT)
def test_a_file_from_before_a_key_existed_means_what_it_meant(key):
    table, name = key.split(".")
    old = ep.Experiment(clock=ep.Clock()).table()
    old[table].pop(name, None)
    new = {**old, table: {**old[table], name: MEANT[key]}}
    other = {**old, table: {**old[table], name: "another"}}
    assert decisive(old, ()) == decisive(new, ())
    assert decisive(other, ()) == {**decisive(old, ()), key: "another"}


def test_the_results_in_the_repository_are_recognised():
    tables = [json.loads(path.read_bytes())["experiment"] for path in (ROOT / "results").rglob("run.json")]
    assert tables
    for table in tables:
        assert same_experiment(table, experiment_from(table).table()) == []


@pytest.mark.parametrize(
    ("setting", "own_data", "fine"),
    [
        ("data.path=/srv/x", False, True),
        ("data={path = '/srv/x'}", False, True),
        ("data.validation=0.2", False, False),
        ("data.validation=0.2", True, True),
        ("data={kind = 'digits', path = 'x'}", False, False),
        ("partition.kind=iid", False, False),
        ("runtime.threads=2", False, True),
        ("runtime={threads = 2}", False, True),
        ("runtimes=2", False, False),
        ("network.patience=9", False, True),
        ("network.patience_=9", False, False),
        ("network.data=own", False, False),
        ("seeds=[4]", True, False),
        ("nonsense", False, False),
    ],
)
def test_what_may_be_set_for_one_node_is_what_nodes_do_not_compare(setting, own_data, fine):
    if not fine:
        with pytest.raises(BadInput):
            check_node_setting(setting, own_data=own_data)
        return
    check_node_setting(setting, own_data=own_data)
    before = ep.Experiment(data=ep.Arrays(path="a"), network=ep.Network(data="own" if own_data else "partition"))
    after = experiment_from(with_settings(before.table(), [setting]))
    assert after != before
    assert node_agreement(after) == node_agreement(before)


def test_the_guide_to_deployment_names_all_that_may_differ():
    text = (
        (ROOT / "docs" / "deploy.md").read_text().partition("### What may differ between nodes")[2].partition("##")[0]
    )
    for key in BETWEEN_NODES_WITH_OWN_DATA:
        assert "*" in key or f"`{key}`" in text


def test_loss_by_name():
    import torch

    experiment = experiment_from({"loss": "torch.nn.functional:multi_margin_loss"})
    assert experiment.loss_function(ep.Digits().load()) is torch.nn.functional.multi_margin_loss
    with pytest.raises(BadInput, match="cannot be imported"):
        experiment_from({"loss": "nowhere:loss"}).loss_function(ep.Digits().load())


def test_public_names():
    for name in ep.__all__:
        assert getattr(ep, name) is not None
    assert set(dir(ep)) <= set(ep.__all__)
    with pytest.raises(AttributeError):
        ep.nothing  # noqa: B018
    tree = ast.parse(Path(ep.__file__).read_text())
    typed = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed >= set(ep.__all__) - {"__version__"}  # type checkers see what is there at run time


class Slow(ep.LocalSGD, frozen=True):
    """Derived from ours, but not ours."""


class Own:
    def __init__(self, size):
        self.size = size

    def graph(self, n, round, streams):
        return Ring().graph(n, round, streams)


def test_a_class_derived_from_ours_is_a_users_own():
    assert not ep.Experiment(algorithm=Slow()).portable
    assert not ep.Experiment(topology=Every(Own(1), period=2)).portable
    assert ep.Experiment(topology=Every(Ring(), period=2)).portable
    assert same_experiment(ep.Experiment(algorithm=Slow()).table(), ep.Experiment().table())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"topology": Own(1)}, {"topology": Own(2)}),
        ({"algorithm": Slow(lr=0.1)}, {"algorithm": Slow(lr=0.2)}),
        ({"data": ((np.zeros(3), np.zeros(3)),) * 2}, {"data": ((np.ones(3), np.zeros(3)),) * 2}),
        ({"loss": lambda out, y: out.sum()}, {"loss": lambda out, y: 2 * out.sum()}),
        ({"metrics": {"m": lambda out, y: out}}, {"metrics": {"m": lambda out, y: -out}}),
        ({"model": nn.Linear(2, 2)}, {"model": nn.Linear(2, 2)}),  # other initial weights
    ],
)
def test_own_objects_that_differ_are_different_experiments(one, other):
    a, b = ep.Experiment(**one).table(), ep.Experiment(**other).table()
    assert same_experiment(a, b)
    assert not same_experiment(a, ep.Experiment(**one).table())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": 5}, "loss = 5 must be a name or a function"),
        ({"faults": None}, "faults = None must be Faults(...)"),
        ({"metrics": ["accuracy"]}, "metrics.accuracy: accuracy is recorded anyway"),
        ({"metrics": {"accuracy": "my:own"}}, "metrics.accuracy: accuracy is recorded anyway"),
        ({"metrics": "auc"}, "metrics = 'auc' must be names, for example"),
        ({"metrics": ["auc", "other:auc"]}, "has a name twice; use a table"),
        (
            {"metrics": {"f": "macro-f2"}},
            "metrics.f = 'macro-f2' is neither known nor of the form \"module:name\"; did you",
        ),
        ({"metrics": {"f": 5}}, "metrics.f = 5 must be a name or a function"),
        ({"metrics": [5]}, "metrics.5 = 5 must be a name or a function"),
        ({"metrics": {"": "auc"}}, "metrics: '' must be a name"),
        ({"callbacks": "my:own"}, "callbacks = 'my:own' must be a list of names"),
        ({"callbacks": [ep.Callback()]}, "give objects to simulate(callbacks=...)"),
        ({"callbacks": [{"options": {}}]}, "callbacks[0].use is missing"),
        (
            {"callbacks": [{"use": "my:own", "option": {}}]},
            "callbacks[0].option is not a known key; did you mean 'options'?",
        ),
        ({"callbacks": ["my:own", {"use": 3}]}, "callbacks[1].use = 3 must be a text"),
    ],
)
def test_wrong_types_in_python(fields, message):
    with pytest.raises(BadInput) as caught:
        ep.Experiment(**fields)
    assert message in str(caught.value)


def test_a_kind_that_is_no_word():
    with pytest.raises(BadInput, match="is not known"):
        experiment_from({"topology": {"kind": [1]}})


def test_odd_keys_are_quoted(tmp_path):
    path = tmp_path / "e.toml"
    experiment = ep.Experiment(model=ep.PythonModel(factory="a:b", options={"a b": 1, 'q"': {"x.y": 2}}))
    path.write_text(to_toml(experiment))
    assert load(path) == experiment


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "e.toml").write_bytes(b'\xef\xbb\xbfname = "marked"\n')
    assert ep.load(tmp_path / "e.toml").name == "marked"


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "\ufeff"])
def test_a_file_without_settings_is_refused(tmp_path, text):
    (tmp_path / "e.toml").write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=r"has no settings; 'epidemic init NEW.toml' writes a file to start from"):
        ep.load(tmp_path / "e.toml")


def test_simulate_takes_an_experiment_a_file_or_its_tables(tmp_path):
    table = {
        "nodes": 2,
        "rounds": 0,
        "topology": {"kind": "ring"},
        "data": {"kind": "digits"},
        "model": {"kind": "logistic"},
    }
    table["eval"] = {"samples": 20}
    file = tmp_path / "e.toml"
    file.write_text(to_toml(ep.load(_written(tmp_path, table))))
    runs = [ep.simulate(given) for given in (table, file, str(file), ep.load(file))]
    assert len({run.records[0].loss.mean for run in runs}) == 1
    with pytest.raises(BadInput, match="nodez is not a known key; did you mean 'nodes'"):
        ep.simulate({"nodez": 3})
    for wrong in (3, None, [1]):
        with pytest.raises(
            BadInput, match=f"must be an Experiment, the path of its TOML file, .* not {type(wrong).__name__}"
        ):
            ep.simulate(wrong)
    with pytest.raises(BadInput, match=r"nowhere.toml cannot be read: No such file"):
        ep.simulate("nowhere.toml")


def _written(directory, table):
    from epidemic.experiment import experiment_from

    file = directory / "made.toml"
    file.write_text(to_toml(experiment_from(table)))
    return file


def test_seeds_by_their_number(tmp_path, capsys):
    from epidemic.cli import main

    file = _written(tmp_path, {"nodes": 2, "rounds": 0, "topology": {"kind": "ring"}, "data": {"kind": "digits"}})
    out = tmp_path / "out"
    assert main(["run", str(file), "--out", str(out), "--seeds", "2", "--quiet"]) == 0
    assert ep.load(out / "experiment.toml").seeds == (1, 2)
    assert main(["run", "--resume", str(out), "--seeds", "3", "--quiet"]) == 0
    assert sorted(path.name for path in out.glob("seed-*")) == ["seed-1", "seed-2", "seed-3"]
    capsys.readouterr()
    for more, message in (
        (["--seeds", "0"], "--seeds = 0 must be at least 1"),
        (["--seeds", "3", "--set", "seeds=[7]"], "--set seeds and --seeds contradict each other"),
        (["--seeds", "2", "--out", str(out / "seed-1")], "is the directory of one seed of a run"),
    ):
        assert main(["run", str(file), *more]) == 2
        assert message in capsys.readouterr().err
    assert main(["run", str(out)]) == 2
    assert f"resume the run in it with --resume {out}" in capsys.readouterr().err
