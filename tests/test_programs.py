"""Models exported as programs: ONNX Runtime and `torch.export` compute what the model computes, from inputs as they are in the data."""

import builtins
import json

import numpy as np
import onnxruntime as ort
import pandas
import pytest
import safetensors.torch
import torch

import epidemic as ep
from epidemic.cli.app import main
from epidemic.runtime.exported import KEY


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A run on a table of which one column is far from zero."""
    folder = tmp_path_factory.mktemp("table")
    numbers = np.random.default_rng(2).normal(size=(60, 2)) * (3.0, 0.1) + (1_000_000, 2)
    outcome = np.where(numbers @ (0.1, 5) > 100_010, "ill", "well")
    pandas.DataFrame({"time": numbers[:, 0], "dose": numbers[:, 1], "outcome": outcome}).to_csv(folder / "t.csv")
    (folder / "e.toml").write_text(
        'nodes = 3\nrounds = 2\n[topology]\nkind = "el-local"\ns = 1\n[partition]\nkind = "iid"\n'
        f'[data]\nkind = "table"\npath = "{folder / "t.csv"}"\ntarget = "outcome"\nfeatures = ["time", "dose"]\n'
    )
    assert main(["run", str(folder / "e.toml"), "--out", str(folder / "run"), "-q"]) == 0
    return folder


def export(folder, name, *words):
    return main(["export", str(folder / "run"), *(words or ("--mean",)), "-o", str(folder / name), "--overwrite"])


def expected(folder):
    """What the exported weights give for the rows of the table, scaled by hand."""
    assert export(folder, "m.safetensors") == 0
    state = safetensors.torch.load_file(folder / "m.safetensors")
    with safetensors.safe_open(folder / "m.safetensors", "pt") as file:
        columns = json.loads(file.metadata()[KEY])["columns"]
    raw = pandas.read_csv(folder / "t.csv")[["time", "dose"]].to_numpy()
    scaled = torch.tensor((raw - [c[1] for c in columns]) / [c[2] for c in columns]).float()
    hidden = torch.relu(scaled @ state["1.weight"].T + state["1.bias"])
    return raw.astype(np.float32), (hidden @ state["3.weight"].T + state["3.bias"]).numpy()


def test_a_program_for_onnx_runtime_takes_any_number_of_raw_rows(table):
    assert export(table, "m.onnx") == 0
    raw, outputs = expected(table)
    session = ort.InferenceSession(table / "m.onnx")
    for rows in (1, 7, 60):
        (found,) = session.run(None, {"inputs": raw[:rows]})
        np.testing.assert_allclose(
            found, outputs[:rows], atol=0.03
        )  # a column near a million has two digits in float32
    about = json.loads(session.get_modelmeta().custom_metadata_map[KEY])
    assert (about["target"], about["classes"], about["round"]) == ("outcome", ["ill", "well"], 2)


def test_a_program_for_torch_takes_any_number_of_raw_pictures(tmp_path, monkeypatch):
    experiment = ep.Experiment(
        nodes=2, rounds=1, topology=ep.ELLocal(1), data=ep.Digits(), model=ep.SmallCNN(), name="pictures"
    )
    run = ep.simulate(experiment, out=tmp_path / "run")
    assert export(tmp_path, "m.pt2", "--node", "1") == 0
    extra = {KEY: ""}
    program = torch.export.load(tmp_path / "m.pt2", extra_files=extra).module()
    assert json.loads(extra[KEY])["experiment"] == "pictures"
    data = ep.Digits().load()
    module = ep.SmallCNN().build(data.input_shape, len(data.classes))
    module.load_state_dict(run.models[1])
    raw = torch.from_numpy(data.test.inputs[:5]).float()
    for rows in (1, 5):
        torch.testing.assert_close(program(raw[:rows]), module(raw[:rows] * data.scale + data.shift))


def test_a_model_that_cannot_be_written_is_one_line_and_leaves_no_file(table, capsys, monkeypatch):
    assert export(table, "m.gguf") == 2
    assert "must end in .safetensors, .onnx or .pt2" in capsys.readouterr().err
    before = builtins.__import__

    def missing(name, *rest, **more):
        if name == "onnxscript":
            raise ImportError(name)
        return before(name, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", missing)
        assert export(table, "never.onnx") == 2
    assert "pip install 'epidemic-learning[onnx]'" in capsys.readouterr().err
    moved = (table / "t.csv").rename(table / "moved.csv")
    try:
        assert export(table, "never.pt2") == 2
        assert capsys.readouterr().err.count("\n") == 1
    finally:
        moved.rename(table / "t.csv")
    assert not list(table.glob("never*"))
