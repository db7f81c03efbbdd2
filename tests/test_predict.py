"""`epidemic predict`: an exported model knows its columns, scales and classes, and is applied to new rows as it was trained."""

import json

import numpy as np
import pandas
import pytest
import safetensors
import safetensors.torch
import torch

from epidemic.cli.app import main
from epidemic.runtime.exported import KEY, read_exported

CLASSES = ("ill", "well")


def write_table(path, rows=120, *, target="outcome", quantity=False, shift=0.0):
    numbers = np.random.default_rng(1).normal(size=(rows, 2)) * (10, 0.5) + (50, 2 + shift)
    score = numbers @ (0.1, 2.0)
    values = score if quantity else np.where(score > 9, *CLASSES)
    frame = pandas.DataFrame({"id": range(rows), "age": numbers[:, 0], "dose": numbers[:, 1], target: values})
    frame.to_csv(path, index=False)
    return frame


def trained(folder, *, quantity=False, more=(), rounds=30):
    write_table(folder / "train.csv", quantity=quantity)
    (folder / "e.toml").write_text(
        'name = "hospital"\nnodes = 3\n'
        f"rounds = {rounds}\n"
        '[topology]\nkind = "el-local"\ns = 1\n[model]\nkind = "mlp"\nhidden = [4]\n[partition]\nkind = "iid"\n'
        '[data]\nkind = "table"\npath = "train.csv"\ntarget = "outcome"\nfeatures = ["dose", "age"]\n'
        f"[algorithm]\nlr = {0.01 if quantity else 0.1}\n" + "\n".join(more)
    )
    assert main(["run", str(folder / "e.toml"), "--out", str(folder / "run"), "-q"]) == 0
    assert main(["export", str(folder / "run"), "--mean", "-o", str(folder / "mean.safetensors")]) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("predict")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found)
        trained(found)
    return found


def predict(folder, *words, model="mean.safetensors", table="train.csv", out="out.csv"):
    return main(["predict", str(folder / model), str(folder / table), "-o", str(folder / out), "--overwrite", *words])


def test_predictions_are_those_of_the_model_on_rows_scaled_as_in_training(folder):
    frame = write_table(folder / "new.csv", 40, shift=0.3)
    assert predict(folder, "--keep", "id", table="new.csv") == 0
    found = pandas.read_csv(folder / "out.csv")
    state = safetensors.torch.load_file(folder / "mean.safetensors")
    about = json.loads(safetensors.safe_open(folder / "mean.safetensors", "pt").metadata()[KEY])
    assert [name for name, _, _ in about["columns"]] == ["dose", "age"]
    inputs = np.stack([(frame[name] - mean) / deviation for name, mean, deviation in about["columns"]], axis=1)
    hidden = torch.relu(torch.tensor(inputs).float() @ state["1.weight"].T + state["1.bias"])
    chances = (hidden @ state["3.weight"].T + state["3.bias"]).softmax(1).numpy()
    assert found["id"].tolist() == list(range(40))
    assert found["prediction"].tolist() == [CLASSES[i] for i in chances.argmax(1)]
    np.testing.assert_allclose(found[[f"probability of {name}" for name in CLASSES]], chances, atol=1e-6)


def test_the_accuracy_of_a_table_that_has_the_target_is_said(folder, capsys):
    assert predict(folder, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    found = pandas.read_csv(folder / "out.csv")["prediction"]
    truth = pandas.read_csv(folder / "train.csv")["outcome"]
    assert said["accuracy"] == pytest.approx((found == truth).mean())
    assert 0.7 < said["accuracy"] <= 1
    write_table(folder / "without.csv", 5, target="something")
    assert predict(folder, table="without.csv") == 0
    assert capsys.readouterr().out == f"wrote {folder / 'out.csv'}: 5 rows\n"


def test_the_file_says_what_it_is(folder):
    about = read_exported(folder / "mean.safetensors").about
    assert (about.experiment, about.seed, about.round, about.node) == ("hospital", 1, 30, None)
    assert (about.data, about.target, about.classes) == ("table", "outcome", CLASSES)
    assert "train.csv" not in safetensors.safe_open(folder / "mean.safetensors", "pt").metadata()[KEY]
    assert main(["export", str(folder / "run"), "--node", "2", "-o", str(folder / "two.safetensors")]) == 0
    assert read_exported(folder / "two.safetensors").about.node == 2


def test_a_quantity_is_predicted_as_a_number(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trained(tmp_path, quantity=True, rounds=40)
    capsys.readouterr()
    assert predict(tmp_path, "--json") == 0
    error = json.loads(capsys.readouterr().out)["root mean squared error"]
    frame, truth = pandas.read_csv(tmp_path / "out.csv"), pandas.read_csv(tmp_path / "train.csv")["outcome"]
    assert list(frame.columns) == ["prediction"]
    assert error == pytest.approx(float(np.sqrt(np.mean((frame["prediction"] - truth) ** 2))), rel=1e-4)
    assert error < truth.std()


def changed(folder, name, **about):
    """A copy of the exported model whose description is another one."""
    path = folder / "mean.safetensors"
    before = json.loads(safetensors.safe_open(path, "pt").metadata()[KEY])
    metadata = {KEY: json.dumps({**before, **about})}
    safetensors.torch.save_file(safetensors.torch.load_file(path), folder / name, metadata=metadata)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"columns": []}, "was not trained on a table"),
        ({"columns": [["dose", 0, 1]]}, "does not hold the model that it describes"),
        ({"model": {"kind": "mlp", "hidden": [10**9, 10**9]}}, "does not hold the model that it describes"),
        ({"model": {"kind": "nothing"}}, "model.kind = 'nothing' is not known"),
        ({"classes": "ill"}, "cannot be read as an exported model"),
    ],
)
def test_a_description_that_does_not_fit_is_refused_in_one_line_and_costs_nothing(folder, capsys, about, said):
    changed(folder, "odd.safetensors", **about)
    assert predict(folder, model="odd.safetensors", out="never.csv") == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not (folder / "never.csv").exists()


def test_other_files_are_refused(folder, capsys):
    safetensors.torch.save_file(safetensors.torch.load_file(folder / "mean.safetensors"), folder / "bare.safetensors")
    (folder / "text.safetensors").write_text("no tensors")
    for model, said in (
        ("bare.safetensors", "does not say which run it is of"),
        ("text.safetensors", "cannot be read as an exported model"),
        ("none.safetensors", "does not exist"),
    ):
        assert predict(folder, model=model, out="never.csv") == 2
        assert said in capsys.readouterr().err
    pandas.read_csv(folder / "train.csv").drop(columns="dose").to_csv(folder / "narrow.csv", index=False)
    assert predict(folder, table="narrow.csv", out="never.csv") == 2
    assert "has no column 'dose'" in capsys.readouterr().err
    assert predict(folder, "--keep", "name", out="never.csv") == 2
    assert "--keep name" in capsys.readouterr().err
    assert not (folder / "never.csv").exists()


def test_code_that_an_exported_model_names_can_be_refused(folder, capsys):
    changed(folder, "own.safetensors", model={"kind": "python", "factory": "somebody:model"})
    assert predict(folder, "--no-code", model="own.safetensors", out="never.csv") == 2
    assert "--no-code" in capsys.readouterr().err
