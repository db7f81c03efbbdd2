"""The life of a deployment after its first run: its mean model, more rounds, the next run with the same keys."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import epidemic as ep
from conftest import experiment
from epidemic.cli.app import main
from epidemic.experiment import to_toml
from epidemic.net.gather import OWN_DATA

OWN = {
    "nodes": 3, "rounds": 12, "topology": ep.ELLocal(1), "data": ep.Arrays(path="nowhere"), "model": ep.Logistic(),
    "eval": ep.Eval(every=5, samples="all"), "network": ep.Network(data="own", close="barrier"),
}  # fmt: skip


def problem(capsys, *words):
    """The error line of a command that must end with 2."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    return err


def private_data(path, seed, features=5):
    """A data set of three classes for one node alone."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 150)
    x = (np.eye(3)[labels] @ np.eye(3, features) * 3 + rng.normal(size=(150, features))).astype("f4")
    np.savez(path, train_x=x[:100], train_y=labels[:100], test_x=x[100 + seed :], test_y=labels[100 + seed :])
    return path


def with_private_data(there, tmp_path, first_seed=0):
    """Give each node of a deployment data of its own, by its own experiment file."""
    for i, folder in enumerate(there.folders):
        data = ep.Arrays(path=str(private_data(tmp_path / f"private-{first_seed + i}.npz", first_seed + i)))
        (folder / "experiment.toml").write_text(to_toml(experiment(**{**OWN, "data": data, "name": f"site-{i}"})))
    return there


def test_the_mean_model_of_nodes_with_data_of_their_own_is_gathered_and_exported(deploy, tmp_path, capsys):
    there = with_private_data(deploy(experiment(**OWN)), tmp_path).start().finish()
    assert there.cluster.problems() == {}
    for i in range(3):
        (tmp_path / f"private-{i}.npz").unlink()  # whoever gathers has none of it
    out = tmp_path / "together"
    assert main(["cluster", "gather", *map(str, there.folders), "--out", str(out)]) == 0
    assert OWN_DATA in capsys.readouterr().out
    assert main(["export", str(out), "--mean", "-o", str(tmp_path / "mean.safetensors")]) == 0
    mean, models = load_file(tmp_path / "mean.safetensors"), [there.model(i) for i in range(3)]
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor, torch.stack([model[name][0] for model in models]).mean(0))
    module = ep.Logistic().build((5,), 3)
    module.load_state_dict(mean)
    summary = json.loads((out / "seed-1/summary.json").read_text())
    assert summary["final_mean_model_accuracy"] is None
    assert summary["final_mean_model_loss"] is None
    assert summary["final_disagreement"] > 0
    assert summary["test_samples"] == 50 + 49 + 48
    accuracies = [there.summary(i)["final_accuracy"]["mean"] for i in range(3)]
    assert summary["final_accuracy"]["mean"] == pytest.approx(np.mean(accuracies))
    (run,) = ep.read_results(out).runs
    assert [record.round for record in run.by_seed[0]] == [0, 5, 10, 12]
    assert json.loads((out / "seed-1/run.json").read_text())["data"] == OWN_DATA
    assert main(["report", str(out), "-o", str(tmp_path / "page.html")]) == 0
    assert main(["export", str(out), "--node", "2", "-o", str(tmp_path / "two.safetensors")]) == 0
    assert all(torch.equal(t, models[2][name][0]) for name, t in load_file(tmp_path / "two.safetensors").items())

    # What does not belong together, or is damaged, is named, and nothing is written.
    strange = tmp_path / "strange"
    shutil.copytree(there.folders[2], strange)
    path = strange / "run/seed-1/models.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    arguments = ["cluster", "gather", there.folders[0], strange, "--out", tmp_path / "no"]
    assert f"{path} is damaged" in problem(capsys, *arguments)
    from safetensors.torch import save_file

    about = {"epidemic": json.dumps({"nodes": 1, "constants": [], "aliases": {}})}
    save_file({name: tensor[:, :2] for name, tensor in models[2].items()}, path, about)
    assert "holds another model than" in problem(capsys, *arguments)
    changed = experiment(**{**OWN, "algorithm": ep.LocalSGD(lr=0.7)})
    (strange / "experiment.toml").write_text(to_toml(changed))
    assert "(in algorithm.local_steps, algorithm.lr)" in problem(capsys, *arguments)
    assert not (tmp_path / "no").exists()
