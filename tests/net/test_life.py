"""The life of a deployment after its first run: its mean model, more rounds, the next run with the same keys."""

import hashlib
import json
import os
import shutil
import stat

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import epidemic as ep
from conftest import Deployment, experiment, furthest
from epidemic.cli.app import main
from epidemic.clock import CloseBarrier
from epidemic.deploy.addresses import free_addresses, read_addresses
from epidemic.deploy.extending import extend_cluster, write_rounds
from epidemic.deploy.folders import make_cluster
from epidemic.deploy.gather import OWN_DATA
from epidemic.deploy.keys import Identity
from epidemic.experiment import to_toml
from epidemic.runtime.run_directory import RunDirectory

OWN = {
    "nodes": 3, "rounds": 12, "topology": ep.ELLocal(1), "data": ep.Arrays(path="nowhere"), "model": ep.Logistic(),
    "eval": ep.Eval(every=5, samples="all"), "network": ep.Network(data="own", close=CloseBarrier()),
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
    "eval": ep.Eval(every=5, samples=200), "network": ep.Network(close=CloseBarrier()),
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
        assert there.node(i)["messages"] == {"counted": sum(int(k) * v for k, v in there.node(i)["in_degree"].items())}
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
    what = of(12, network=ep.Network(patience=8))
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


# -- the next run -----------------------------------------------------------------------------------------------------

FIRST = of(8)


def contents(folder):
    """All files below a folder, but those that are there while somebody looks."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


class Made(Deployment):
    """Processes of folders that are there."""

    def __init__(self, what, root, folders):
        self.experiment, self.root, self.folders = what, root, folders
        self.cluster = self.watcher = None


@pytest.fixture
def later():
    made = []

    def make(*arguments):
        made.append(Made(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_next_run_has_the_same_keys_and_starts_from_the_mean_model(deploy, later, tmp_path, capsys):
    there = deploy(FIRST).start(processes=2).finish()
    assert main(["keys", "add", str(there.root), "--node", "1", "--host", "127.0.0.1"]) == 0  # the next run has it
    assert main(["keys", "revoke", str(there.root), "node-1"]) == 0
    before = contents(there.root)
    mean, second = tmp_path / "mean.safetensors", tmp_path / "second"
    assert main(["cluster", "gather", *map(str, there.folders), "--out", str(tmp_path / "together")]) == 0
    assert main(["export", str(tmp_path / "together"), "--mean", "-o", str(mean)]) == 0
    words = ["cluster", "next", there.root, "--weights", mean, "--set", "rounds=9", "--set", "algorithm.lr=0.02"]
    capsys.readouterr()
    assert main([str(word) for word in [*words, "--out", second]]) == 0
    said = capsys.readouterr().out
    assert f"made {second}: run 2 of 4 nodes, starting from {mean} (SHA-256 " in said
    assert f"epidemic cluster up --resume {second}" in said
    assert contents(there.root) == before
    for i in range(4):
        old, new = there.root / ("node-1.1" if i == 1 else f"node-{i}"), second / f"node-{i}"
        for name in ("node.key", "node.pem", "authority.pem", "node.toml", "revoked.json"):
            assert (new / name).read_bytes() == (old / name).read_bytes()
        assert stat.S_IMODE((new / "node.key").stat().st_mode) == 0o600
        assert stat.S_IMODE(new.stat().st_mode) == 0o700
        assert not (new / "run").exists()
    assert Identity.load(second / "node-0").revoked.names == ["node-1"]
    assert not (second / "authority").exists()

    what = msgspec.structs.replace(FIRST, rounds=9, algorithm=msgspec.structs.replace(FIRST.algorithm, lr=0.02))
    again = later(what, second, [second / f"node-{i}" for i in range(4)]).start(processes=2).finish()
    assert again.cluster.problems() == {}
    module = what.model.build((1, 14, 14), 10)
    module.load_state_dict(load_file(mean))
    simulated = ep.simulate(msgspec.structs.replace(what, model=module))
    assert furthest(again, simulated) < 1e-5
    digest = hashlib.sha256(mean.read_bytes()).hexdigest()
    assert json.loads((again.run(0) / "run.json").read_text())["start"] == {"run": 2, "weights": digest}
    assert main(["cluster", "gather", *map(str, again.folders), "--out", str(tmp_path / "together-2")]) == 0
    assert json.loads((tmp_path / "together-2/seed-1/run.json").read_text())["start"]["weights"] == digest
    summary = json.loads((tmp_path / "together-2/seed-1/summary.json").read_text())
    assert summary["final_mean_model_accuracy"] == pytest.approx(simulated.seeds[0].summary.final_mean_model_accuracy)
    # It goes on with more rounds as the first one does, and the one after it counts further.
    extend_cluster(second, 12)
    again.start(processes=1).finish()
    longer = ep.simulate(msgspec.structs.replace(what, rounds=12, model=module))
    assert furthest(again, longer) < 1e-5
    assert main(["cluster", "next", str(second), "--out", str(tmp_path / "third")]) == 0
    assert "run 3 of 4 nodes, starting from new weights" in capsys.readouterr().out


def test_each_site_makes_its_next_folder_itself_and_trains_on_new_data(deploy, later, tmp_path, capsys):
    what = experiment(**OWN)
    there = with_private_data(deploy(what), tmp_path).start().finish()
    assert main(["cluster", "gather", *map(str, there.folders), "--out", str(tmp_path / "together")]) == 0
    mean = tmp_path / "mean.safetensors"
    assert main(["export", str(tmp_path / "together"), "--mean", "-o", str(mean)]) == 0
    folders = []
    for i, folder in enumerate(there.folders):  # one command for each site
        data = private_data(tmp_path / f"new-{i}.npz", 10 + i)
        folders.append(tmp_path / f"site-{i}" / "second")
        words = ["cluster", "next", folder, "--out", folders[-1], "--weights", mean, "--set", "rounds=6"]
        assert main([str(word) for word in [*words, "--set", f"data.path={data}"]]) == 0
        assert f"run 2 of node {i}" in (said := capsys.readouterr().out)
        assert f"epidemic node {folders[-1]}" in said
        assert ep.load(folders[-1] / "experiment.toml").name == f"site-{i}"
    second = later(what, tmp_path, folders).start().finish()
    assert second.cluster.problems() == {}
    assert [second.summary(i)["rounds"] for i in range(3)] == [6] * 3
    assert [there.summary(i)["rounds"] for i in range(3)] == [12] * 3
    first_loss = [
        json.loads((second.run(i) / "records.jsonl").read_text().splitlines()[0])["loss"]["mean"] for i in range(3)
    ]
    assert max(first_loss) < 0.9  # it starts from what was learnt, and not from new weights (1.1)

    # Who starts from other weights, or from none, or has not made the next folder, is told.
    other = tmp_path / "other.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(mean).items()}, other)
    for name, more, expected in (
        ("weights", ["--weights", other], "epidemic cluster next --weights FILE"),
        ("nothing", [], 'start.weights = "not set" here'),
    ):
        bad = tmp_path / name
        words = ["cluster", "next", there.folders[2], "--out", bad, *more, "--set", "rounds=6"]
        assert main([str(word) for word in [*words, "--set", f"data.path={tmp_path / 'new-2.npz'}"]]) == 0
        for folder in folders:
            shutil.rmtree(folder / "run", ignore_errors=True)
        mixed = later(what, tmp_path, [*folders[:2], bad]).start().finish()
        assert mixed.cluster.children[2].process.exitcode == 2
        assert expected in mixed.cluster.problems()[2]


def test_what_cannot_be_a_next_run_is_one_line_and_nothing_is_written(tmp_path, capsys):
    root, out, mean = tmp_path / "c", tmp_path / "next", tmp_path / "w.safetensors"
    folders = make_cluster(FIRST, free_addresses(4), root)
    state = FIRST.model.build((1, 14, 14), 10).state_dict()
    save_file(state, mean)
    name, first = next(iter(state.items()))
    bad = {
        "shape": ({**state, name: first[:1].clone()}, f"is of another model: {name} is"),
        "lacking": ({k: v for k, v in state.items() if k != name}, f"is of another model: it has no {name}"),
        "more": ({**state, "extra": first.clone()}, "is of another model: it has extra"),
        "type": ({**state, name: first.double()}, "float64, and"),
        "nan": ({**state, name: first * float("nan")}, f"{name} has numbers that are not finite"),
        "huge": ({**state, name: first * 0 + 1e9}, "beyond network.largest = 1e+06"),
    }  # fmt: skip
    for kind, (tensors, message) in bad.items():
        save_file(tensors, tmp_path / f"{kind}.safetensors")
        said = problem(capsys, "cluster", "next", root, "--out", out, "--weights", tmp_path / f"{kind}.safetensors")
        assert message in said
    (tmp_path / "cut.safetensors").write_bytes(mean.read_bytes()[:100])
    os.mkfifo(tmp_path / "fifo.safetensors")
    save_file(state, tmp_path / "all.safetensors", {"epidemic": "{}"})
    for file, message in (
        ("cut", "is not a whole safetensors file"),
        ("fifo", "is not a file"),
        ("none", "does not exist; give a safetensors file"),
        ("all", "holds the models of all nodes; give the mean model"),
    ):
        said = problem(capsys, "cluster", "next", root, "--out", out, "--weights", tmp_path / f"{file}.safetensors")
        assert message in said
    for words, message in (
        ([tmp_path / "no"], "is not a directory; give that of a cluster"),
        ([tmp_path], "has no keys"),
        ([root, "--set", "nodes=5"], f"epidemic keys add {root} --node 4"),
        ([root, "--set", "nodes=1"], "nodes = 1"),
        ([root, "--set", "colour=1"], "colour is not a known key"),
        ([root, "--set", "faults.loss=0.1"], "drawn by the simulator only"),
        ([root / "observer"], "is the certificate of observer, not of a node"),
    ):
        assert message in problem(capsys, "cluster", "next", *words, "--out", out)
    assert "is inside" in problem(capsys, "cluster", "next", root, "--out", root / "second")
    assert "exists already" in problem(capsys, "cluster", "next", root, "--out", tmp_path)

    run_directory = RunDirectory(folders[2] / "run", FIRST, 1)
    run_directory.open()
    assert f"the node of {folders[2]} is still running" in problem(capsys, "cluster", "next", root, "--out", out)
    run_directory.close()
    (folders[3] / "node.key").rename(tmp_path / "node.key")
    assert f"{folders[3]} has no node.key" in problem(capsys, "cluster", "next", folders[3], "--out", out)
    (tmp_path / "node.key").rename(folders[3] / "node.key")
    (folders[1] / "experiment.toml").write_text(to_toml(of(9)))
    assert "node-1 has another experiment than node-0 (in rounds)" in problem(
        capsys, "cluster", "next", root, "--out", out
    )
    (folders[1] / "experiment.toml").write_text(to_toml(FIRST))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["c"]

    # A damaged folder of a next run is refused by its node.
    assert main(["cluster", "next", str(root), "--out", str(out), "--weights", str(mean)]) == 0
    (out / "node-0/weights.safetensors").write_bytes((tmp_path / "all.safetensors").read_bytes())
    assert "holds the models of all nodes" in problem(capsys, "node", out / "node-0")
    save_file({name: tensor + 1 for name, tensor in state.items()}, out / "node-0/weights.safetensors")
    assert "is another file than the one that this run was made with" in problem(capsys, "node", out / "node-0")
    (out / "node-1/start.json").unlink()
    assert "has weights.safetensors but no start.json" in problem(capsys, "node", out / "node-1")
    (out / "node-1/start.json").write_text('{"run": 1}')
    assert "run = 1 must be 2 to" in problem(capsys, "node", out / "node-1")
    assert "name the directory that its keys were first made in" in problem(capsys, "keys", "show", out)


def test_expired_and_revoked_certificates_are_named_with_what_helps(tmp_path, capsys, monkeypatch):
    import datetime as dt

    from epidemic.deploy import keys

    root, out = tmp_path / "c", tmp_path / "next"
    folders = make_cluster(FIRST, free_addresses(4), root, days=3)
    assert main(["keys", "revoke", str(root), "node-3"]) == 0
    capsys.readouterr()
    assert main(["cluster", "next", str(root), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "left out node-3, whose certificate was revoked" in said
    assert "epidemic keys add DIR --node 3" in said
    assert not (out / "node-3").exists()
    assert "is not the directory of a cluster of 4 nodes" in problem(capsys, "cluster", "up", "--resume", out)
    assert "was revoked" in problem(capsys, "cluster", "next", folders[3], "--out", tmp_path / "three")
    assert main(["keys", "add", str(root), "--node", "3"]) == 0
    assert main(["cluster", "next", str(root), "--out", str(tmp_path / "whole")]) == 0
    assert Identity.load(tmp_path / "whole" / "node-3").name == "node-3.1"
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=4)
    monkeypatch.setattr(keys, "_now", lambda: later)
    said = problem(capsys, "cluster", "next", root, "--out", tmp_path / "late")
    assert f"{folders[0] / 'node.pem'} expired on" in said
    assert "epidemic keys add" in said
    assert not (tmp_path / "late").exists()


def test_through_a_relay_the_next_run_has_the_size_of_its_own_model(tmp_path):
    root = tmp_path / "c"
    make_cluster(FIRST, ["10.1.1.1:1", "10.1.1.2:1", "10.1.1.3:1", "10.1.1.4:1"], root, relay=free_addresses(1)[0])
    assert main(["cluster", "next", str(root), "--out", str(tmp_path / "next"), "--set", "model.hidden=[100]"]) == 0
    before, after = (read_addresses(path / "relay/node.toml") for path in (root, tmp_path / "next"))
    assert after.listen == before.listen
    assert after.largest > before.largest
    assert read_addresses(tmp_path / "next/node-2/node.toml") == read_addresses(root / "node-2/node.toml")
