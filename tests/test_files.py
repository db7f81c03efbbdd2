"""Files: who may read them is what the user's umask says; private keys are private whatever it says."""

import os
import stat

import pytest
import safetensors.torch
import torch

import epidemic as ep
from epidemic.cli.app import main
from epidemic.core.errors import BadInput
from epidemic.core.files import write_bytes, write_whole
from epidemic.deploy.folders import make_cluster


@pytest.fixture(params=[0o022, 0o027, 0o077, 0o002], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def small(**changes):
    fields = {
        "nodes": 2, "rounds": 1, "topology": ep.Ring(), "data": ep.Digits(), "partition": ep.IID(), "model": ep.Logistic(),
        "eval": ep.Eval(every=1, samples=10), "runtime": ep.Runtime(strategy="per-node"), "algorithm": ep.LocalSGD(batch_size=4),
    }  # fmt: skip
    return ep.Experiment(**{**fields, **changes})


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_files_have_the_mode_of_the_umask_whoever_writes_them(tmp_path, umask):
    write_bytes(tmp_path / "a", b"a")
    write_whole(tmp_path / "b", lambda part: safetensors.torch.save_file({"x": torch.zeros(2)}, part))
    for name in ("a", "b"):
        assert mode(tmp_path / name) == 0o666 & ~umask
    (tmp_path / "b").chmod(0o600)
    (tmp_path / "b.part").write_bytes(b"left by a process that was killed")
    (tmp_path / "b.part").chmod(0o600)
    write_bytes(tmp_path / "b", b"again")
    assert mode(tmp_path / "b") == 0o666 & ~umask
    assert (tmp_path / "b").read_bytes() == b"again"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_run_and_its_models_can_be_read_by_whom_the_umask_lets(tmp_path):
    before = os.umask(0o022)
    try:
        ep.simulate(small(), tmp_path / "run")
    finally:
        os.umask(before)
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert "models.safetensors" in {path.name for path in written}
    assert {mode(path) for path in written} == {0o644}
    assert mode(tmp_path / "run") == mode(tmp_path / "run" / "seed-1") == 0o755


def test_private_keys_stay_private(tmp_path, umask):
    folders = make_cluster(
        ep.Experiment(nodes=2, topology=ep.ELLocal(1)), ["127.0.0.1:1", "127.0.0.1:2"], tmp_path / "c"
    )
    keys = sorted((tmp_path / "c").rglob("*.key"))
    assert len(keys) == 4  # the authority's, two nodes', the observer's
    assert {mode(path) for path in keys} == {0o600}
    assert mode(folders[0] / "experiment.toml") == 0o666 & ~umask


def export(folder, output):
    return main(["export", str(folder), "--mean", "-o", str(output)])


def test_a_deployed_nodes_folder_can_be_exported_as_it_is(tmp_path, capsys):
    folder, output = tmp_path / "node-3", tmp_path / "model.safetensors"
    folder.mkdir()
    (folder / "node.toml").write_text("")
    assert export(folder, output) == 2  # it has not been run yet
    assert len(capsys.readouterr().err.splitlines()) == 1
    run = ep.simulate(small(nodes=1, topology=ep.Isolated()), folder / "run")
    assert export(folder, output) == 0
    found = safetensors.torch.load_file(output)
    assert all(torch.equal(found[key], value) for key, value in run.models[0].items())


def test_a_failed_write_leaves_what_was_there(tmp_path):
    write_bytes(tmp_path / "a", b"before")

    def fail(part):
        part.write_bytes(b"half")
        raise BadInput("no")

    with pytest.raises(BadInput):
        write_whole(tmp_path / "a", fail)
    assert (tmp_path / "a").read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
