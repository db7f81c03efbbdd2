"""A user's own modules: which ones an experiment needs, that they go along with it, and that two versions of one are noticed."""

import sys
from pathlib import Path

import msgspec
import pytest

import epidemic as ep
from epidemic.cli import main
from epidemic.core import config
from epidemic.core.errors import BadInput
from epidemic.deploy.agreement import Agreement, differences
from epidemic.deploy.folders import make_cluster, take_over
from epidemic.deploy.node import experiment_of
from epidemic.experiment import installed, load, own_modules, python_files, references
from epidemic.experiment import modules as rules

HOSTS = ["127.0.0.1:7001", "127.0.0.1:7002"]


def test_references_are_found_in_known_places_and_nowhere_else():
    table = {
        "name": "a:b",
        "loss": "losses:mine",
        "metrics": {"f1": "scores:f1", "auc": "auc"},
        "callbacks": ["watch.inner:Bell", {"use": "watch:Dog", "options": {"to": "host:port"}}],
        "topology": {"kind": "every", "inner": {"kind": "python", "factory": "graphs:Star", "options": {"x": "no:no"}}},
        "algorithm": {"kind": "python", "factory": "ways:Own"},
        "data": {"kind": "python", "function": "sets:load", "path": "c:files"},
        "model": {"kind": "python", "factory": "nets:make.deep"},
        "partition": {"kind": "python", "factory": "not:known"},
    }
    assert references(table) == {
        "loss": "losses:mine", "metrics.f1": "scores:f1", "callbacks[0]": "watch.inner:Bell", "callbacks[1].use": "watch:Dog",
        "topology.inner.factory": "graphs:Star", "algorithm.factory": "ways:Own", "data.function": "sets:load",
        "model.factory": "nets:make.deep",
    }  # fmt: skip
    assert references({"loss": "auto", "model": {"kind": "mlp"}, "data": {"kind": "arrays", "path": "D:x"}}) == {}


MODEL = """
from torch import nn
from own_helper import WIDTH

def make():
    import own_parts.inner
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.Linear(WIDTH, 10))
"""


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """An experiment file with modules beside it, somewhere else than the current directory."""
    where = tmp_path / "beside"
    (where / "own_parts" / "deep").mkdir(parents=True)
    for name, content in {
        "own_model.py": MODEL, "own_helper.py": "WIDTH = 8\n", "own_parts/__init__.py": "", "own_parts/inner.py": "depth = 1\n",
        "own_parts/deep/more.py": "x = 1\n", "own_parts/notes.txt": "not code", "unrelated.py": "",
        "experiment.toml": 'nodes = 2\nrounds = 2\n[topology]\nkind = "ring"\n[data]\nkind = "digits"\n[partition]\nkind = "iid"\n'
        '[model]\nkind = "python"\nfactory = "own_model:make"\n',
    }.items():  # fmt: skip
        (where / name).write_text(content)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(config, "_LOOKED", {})
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield where
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


PACKED = {
    "own_model.py", "own_helper.py", "own_parts/__init__.py", "own_parts/inner.py", "own_parts/deep/more.py",
}  # fmt: skip


def test_named_modules_and_what_they_import_beside_them_are_packed_and_said(beside, tmp_path):
    said = []
    what = load(beside / "experiment.toml")
    folders = make_cluster(what, HOSTS, tmp_path / "c", relay="127.0.0.1:7003", say=said.append)
    for folder in (*folders, tmp_path / "c", tmp_path / "c" / "observer", tmp_path / "c" / "relay"):
        assert set(python_files(folder)) == PACKED
    assert python_files(folders[0])["own_model.py"] == MODEL.encode()
    assert [line.partition(" into")[0] for line in said] == [
        f"packed {beside / name}" for name in ("own_model.py", "own_helper.py", "own_parts")
    ]
    assert [line.rpartition(" ")[2] for line in said] == ["(model.factory)", "(own_model)", "(own_model)"]
    assert not list((tmp_path / "c").rglob("notes.txt"))
    assert not list((tmp_path / "c").rglob("unrelated.py"))


def test_modules_of_the_current_directory_are_packed_too_and_installed_ones_are_not(beside, monkeypatch):
    (Path.cwd() / "own_loss.py").write_text("from torch.nn.functional import cross_entropy as mine\n")
    table = {**load(beside / "experiment.toml").table(), "loss": "own_loss:mine"}
    assert [module.name for module in own_modules(table)] == ["own_loss", "own_model", "own_helper", "own_parts"]
    table |= {
        "loss": "msgspec.json:encode",
        "metrics": {"a": "not_there:f", "b": "math:sin", "c": "epidemic.metrics:f"},
    }
    assert installed(table) == {"msgspec": "loss", "not_there": "metrics.a"}


def test_a_renewed_certificate_takes_the_modules_along(beside, tmp_path):
    folders = make_cluster(load(beside / "experiment.toml"), HOSTS[:1], tmp_path / "c")
    for new, old in (("node-1.2", "node-1"), ("node-9", "node-9")):  # one that was there before, and one that was not
        (tmp_path / "c" / new).mkdir()
        take_over(tmp_path / "c", old, tmp_path / "c" / new)
        assert python_files(tmp_path / "c" / new) == python_files(folders[0])


def test_a_node_uses_the_copy_in_its_folder_before_all_others(beside, tmp_path):
    folders = make_cluster(load(beside / "experiment.toml"), HOSTS, tmp_path / "c")
    for where in (Path.cwd(), beside):
        (where / "own_model.py").write_text("raise RuntimeError('another one')")
    experiment = experiment_of(folders, [])
    assert experiment.model.build((1, 8, 8), 10) is not None
    assert next(m.source for m in own_modules(experiment.table())) == folders[0] / "own_model.py"


def test_folders_of_one_process_must_hold_the_same_modules(beside, tmp_path):
    folders = make_cluster(load(beside / "experiment.toml"), HOSTS, tmp_path / "c")
    (folders[1] / "own_helper.py").write_text("WIDTH = 9\n")
    with pytest.raises(
        BadInput, match=r"node-1 holds another own_helper.py than .*node-0; copy the one that all nodes"
    ):
        experiment_of(folders, [])


def digests(where):
    return {module.name: module.digest for module in own_modules(load(where / "experiment.toml").table())}


def test_a_digest_changes_with_any_file_of_a_module_and_with_its_name(beside):
    before = digests(beside)
    (beside / "own_parts" / "deep" / "more.py").write_text("x = 2\n")
    after = digests(beside)
    assert {name for name in before if before[name] != after[name]} == {"own_parts"}
    (beside / "own_parts" / "deep" / "more.py").rename(beside / "own_parts" / "deep" / "moved.py")
    assert digests(beside)["own_parts"] != after["own_parts"]


def test_two_nodes_with_different_copies_notice():
    ours = Agreement({}, "g", "m", "d")
    with_module = msgspec.structs.replace(ours, modules={"own": "0123", "same": "1"})
    assert ours.run != with_module.run
    theirs = msgspec.structs.replace(ours, modules={"own": "4567", "same": "1"})
    assert differences(with_module, theirs) == ["the module own differs"]
    lacking = msgspec.structs.replace(ours, modules={"same": "1"})
    assert differences(with_module, lacking) == ["the module own differs (it is not beside the experiment there)"]
    assert differences(lacking, with_module) == ["the module own differs (it is not beside the experiment here)"]
    assert msgspec.json.decode(msgspec.json.encode(with_module), type=Agreement).run == with_module.run


def refused(where):
    with pytest.raises(BadInput) as refusal:
        own_modules(load(where / "experiment.toml").table())
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_links_that_lead_out_are_refused(beside, tmp_path):
    (tmp_path / "secret.py").write_text("key = 1")
    (beside / "own_parts" / "out.py").symlink_to(tmp_path / "secret.py")
    assert f"is a link to {tmp_path / 'secret.py'}, outside of its module; put the file itself there" in refused(beside)


def test_too_much_is_refused(beside, monkeypatch):
    (beside / "own_parts" / "large.py").write_bytes(b"#" * (rules.LARGEST + 1))
    assert f"has {rules.LARGEST + 1} bytes, more than {rules.LARGEST}" in refused(beside)
    (beside / "own_parts" / "large.py").unlink()
    monkeypatch.setattr(rules, "MOST_FILES", 3)
    assert "are 5 files of" in refused(beside)
    monkeypatch.setattr(rules, "LARGEST", 200)
    assert "more than 3 files or 200 bytes" in refused(beside)


def test_a_package_that_is_called_like_a_directory_of_a_deployment_is_refused(beside):
    (beside / "run").mkdir()
    (beside / "run" / "__init__.py").write_text("")
    (beside / "own_model.py").write_text("import run")
    assert "the package run cannot be taken along" in refused(beside)


def test_more_hosts_than_nodes_are_refused_with_the_way_out(tmp_path):
    what = ep.Experiment(nodes=2, topology=ep.ELLocal(1))
    with pytest.raises(BadInput) as refusal:
        make_cluster(what, [*HOSTS, "127.0.0.1:7003"], tmp_path / "c")
    assert "--hosts names 3 hosts, but the experiment has nodes = 2; leave some out, or use --set nodes=3" in str(
        refusal.value
    )
    assert not (tmp_path / "c").exists()


def test_a_run_interrupted_before_its_first_seed_remembers_where_its_modules_are(beside, tmp_path, monkeypatch):
    from epidemic.runtime import setup

    def interrupted(*_):
        raise KeyboardInterrupt

    looked, path = dict(config._LOOKED), list(sys.path)
    with monkeypatch.context() as patch:
        patch.setattr(setup, "choose", interrupted)
        with pytest.raises(ep.Interrupted, match="before seed 1 began"):
            ep.simulate(beside / "experiment.toml", tmp_path / "run")
    monkeypatch.setattr(config, "_LOOKED", looked)  # as another process knows nothing
    monkeypatch.setattr(sys, "path", path)
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    assert main(["run", "--resume", str(tmp_path / "run"), "--quiet"]) == 0
