"""The life of a deployment after its first run: its mean model, more rounds, the next run with the same keys."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import epidemic as ep
from conftest import experiment, furthest
from epidemic.cli.app import main
from epidemic.experiment import to_toml
from epidemic.net.extending import extend_cluster, write_rounds
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


# -- more rounds ------------------------------------------------------------------------------------------------------

SHORT = {
    "nodes": 4, "rounds": 12, "topology": ep.ELLocal(2), "algorithm": ep.LocalSGD(lr=0.05, local_steps=2, momentum=0.5),
    "eval": ep.Eval(every=5, samples=200), "network": ep.Network(close="barrier"),
}  # fmt: skip


def of(rounds, **changes):
    return experiment(**{**SHORT, "rounds": rounds, **changes})


PUSH_SUM = {"algorithm": ep.PushSum(lr=0.05), "topology": ep.ELOracle(2)}  # whose state is more than a model


@pytest.mark.parametrize("changes", [{}, PUSH_SUM], ids=["momentum", "push-sum"])
def test_a_finished_deployment_goes_on_with_more_rounds_to_the_result_of_the_simulator(deploy, changes):
    there = deploy(of(12, **changes)).start(processes=2).finish()
    assert there.cluster.problems() == {}
    before = (there.folders[0] / "node.pem").read_bytes()
    extend_cluster(there.root, 21)
    there.start(processes=3).finish()
    assert there.cluster.problems() == {}
    whole = ep.simulate(of(21, **changes))
    assert furthest(there, whole) < 1e-5
    for i in range(4):
        rounds = [json.loads(line)["round"] for line in (there.run(i) / "records.jsonl").read_text().splitlines()]
        assert rounds == [0, 5, 10, 15, 20, 21]
        assert there.summary(i)["rounds"] == 21
        assert there.node(i)["letters"] == {"counted": sum(int(k) * v for k, v in there.node(i)["in_degree"].items())}
        assert sum(there.node(i)["in_degree"].values()) == 21
    assert (there.folders[0] / "node.pem").read_bytes() == before
    assert np.mean([sum(there.node(i)["bytes"].values()) for i in range(4)]) == whole.seeds[0].summary.bytes.total.mean
    there.start(processes=1).finish()  # nothing is left to do
    assert "finished already" in there.log(0)[-4]
    assert "epidemic node" in there.log(0)[-4]


def test_a_longer_deployment_is_stopped_and_made_longer_again(deploy):
    there = deploy(of(12)).start().finish()
    extend_cluster(there.root, 30)
    there.start()
    there.until_round(16)
    there.cluster.stop()
    extend_cluster(there.root, 40)
    there.start().finish()
    assert there.cluster.problems() == {}
    assert [there.summary(i)["rounds"] for i in range(4)] == [40] * 4
    assert furthest(there, ep.simulate(of(40))) < 1e-5


def test_who_was_not_told_of_more_rounds_is_refused_and_who_was_keeps_its_results(deploy, capsys):
    what = of(12, network=ep.Network(close="deadline", patience=8))
    there = deploy(what).start().finish()
    kept = {
        name: (there.run(0) / name).read_bytes()
        for name in ("summary.json", "models.safetensors", "state.json", "records.jsonl")
    }
    # Nobody else comes: the finished run is as it was.
    code = main(["node", str(there.folders[0]), "--set", "rounds=20", "--set", "network.patience=1", "--quiet"])
    assert code == 2
    assert "no other node was found" in capsys.readouterr().err
    assert {name: (there.run(0) / name).read_bytes() for name in kept} == kept
    assert ep.load(there.folders[0] / "experiment.toml").rounds == 20  # it has been told
    # Three are told of 20, one of 16: that one learns what to do, and its finished run stays.
    for folder, rounds in zip(there.folders, (20, 20, 20, 16), strict=True):
        write_rounds(folder, rounds)
    there.start().finish()
    assert [child.process.exitcode for child in there.cluster.children] == [0, 0, 0, 2]
    assert "rounds = 16 here, 20 there (start every node with --set rounds=20)" in there.cluster.problems()[3]
    assert there.summary(3)["rounds"] == 12
    assert there.summary(0)["rounds"] == 20
    assert there.cluster.finished() == there.folders[:3]
    assert "(in rounds)" in problem(capsys, "cluster", "gather", *there.folders, "--out", there.root / "together")
    for words, said in (
        (["--set", "rounds=19"], f"rounds = 19 is fewer than the 20 of {there.folders[0] / 'experiment.toml'}"),
        (["--set", "nodes=3"], "and more rounds on all of them"),
    ):
        assert said in problem(capsys, "node", there.folders[0], *words)


def test_cluster_up_goes_on_with_more_rounds_by_command(tmp_path, capsys):
    from test_commands import one_line, run

    out, file = tmp_path / "up", tmp_path / "e.toml"
    file.write_text(to_toml(of(6)))
    code, _, err = run("cluster", "up", file, "--out", out, "--quiet")
    assert code == 0, err
    code, said, err = run("cluster", "up", "--resume", out, "--set", "rounds=11", "--json")
    assert code == 0, err
    assert json.loads(said)["summary"]["rounds"] == 11
    assert {ep.load(path).rounds for path in out.glob("**/experiment.toml")} == {11}
    simulated = ep.simulate(of(11)).seeds[0].summary
    assert json.loads(said)["summary"]["final_accuracy"]["mean"] == pytest.approx(
        simulated.final_accuracy.mean, abs=1e-6
    )
    for settings, message in (
        (["--set", "rounds=5"], "rounds = 5 is fewer than the 11"),
        (["--set", "topology.s=1"], "epidemic cluster next"),
    ):
        assert message in problem(capsys, "cluster", "up", "--resume", out, *settings)
    for path in out.glob("node-*/run/seed-1/checkpoint.safetensors"):  # as versions did that kept none
        path.unlink()
    code, _, err = run("cluster", "up", "--resume", out, "--set", "rounds=12")
    assert code == 2
    assert "epidemic cluster next" in one_line(err)
    assert {ep.load(path).rounds for path in out.glob("**/experiment.toml")} == {11}


def test_methods_without_rounds_have_no_more_of_them(deploy, capsys):
    what = experiment(
        nodes=2, topology=ep.ELLocal(1), algorithm=ep.AsyncEL(lr=0.05), clock=ep.Clock(stop=1.0), network=ep.Network()
    )
    there = deploy(what)
    said = problem(capsys, "node", there.folders[0], "--set", "rounds=500")
    assert "has no rounds and ends after clock.stop" in said
    assert "epidemic cluster next" in said
