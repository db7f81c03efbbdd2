"""Going on with more rounds: the same bytes as all of them from the start."""

import itertools
import os
import signal
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import epidemic as ep
from epidemic.cli import main
from epidemic.experiment import to_toml
from epidemic.runtime import checkpoint, more_rounds, run_directory
from epidemic.study.comparison import run_methods

SHORT = ep.Experiment(
    name="longer", nodes=8, rounds=10, topology=ep.ELLocal(3), data=ep.Digits(), partition=ep.IID(), model=ep.Logistic(),
    algorithm=ep.LocalSGD(lr=0.1, local_steps=2, momentum=0.5), eval=ep.Eval(every=7, samples=50),
    faults=ep.Faults(crashes=(ep.Crash(1, at=9, returns=12),)),
)  # fmt: skip
RESULTS = ("records.jsonl", "models.safetensors", "summary.json", "nodes.json", "state.json")


def of(rounds, **changes):
    return msgspec.structs.replace(SHORT, rounds=rounds, **changes)


def outcome(directory, seed=1):
    return {name: (Path(directory) / f"seed-{seed}" / name).read_bytes() for name in RESULTS}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What 20 rounds from the start give."""
    directory = tmp_path_factory.mktemp("whole")
    ep.simulate(of(20), directory)
    return outcome(directory)


@pytest.mark.parametrize("begun", [0, 1, 7, 10, 19])
def test_a_finished_run_goes_on_to_the_same_bytes(whole, tmp_path, begun):
    (tmp_path / "e.toml").write_text(to_toml(of(begun)))
    out = tmp_path / "out"
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(out), "--quiet"]) == 0
    assert main(["run", "--resume", str(out), "--quiet", "--set", "rounds=20"]) == 0
    assert outcome(out) == whole
    assert ep.load(out / "experiment.toml").rounds == 20
    assert ep.read_results(out).runs[0].experiment["rounds"] == 20
    assert main(["run", "--resume", str(out), "--quiet"]) == 0  # nothing is left to do
    assert outcome(out) == whole


class _BatchNorm(nn.Module):
    """Buffers that change, one of which is not saved with the model."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))
        self.register_buffer("passes", torch.zeros(1), persistent=False)

    def forward(self, x):
        if self.training:
            self.passes += 1
        return self.layers(x)


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": ep.PushSum(lr=0.1), "faults": ep.Faults()},
        {"algorithm": ep.LocalSGD(order="combine-then-adapt", sampling="epoch")},
        {"model": _BatchNorm},
        {"seeds": (1, 2)},
    ],
    ids=["push-sum", "epochs", "buffers", "seeds"],
)
def test_whatever_the_state_consists_of(tmp_path, changes):
    ep.simulate(of(8, **changes), tmp_path / "whole")
    ep.simulate(of(5, **changes), tmp_path / "parts")
    ep.simulate(of(8, **changes), tmp_path / "parts", resume=True)
    for seed in changes.get("seeds", [1]):
        assert outcome(tmp_path / "parts", seed) == outcome(tmp_path / "whole", seed)


class _Stop(ep.Callback):
    def __init__(self, at):
        self.at = at

    def advanced(self, rounds_done, x):
        if rounds_done == self.at:
            os.kill(os.getpid(), signal.SIGINT)

    def evaluating(self, what):
        if self.at is None:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("at", [3, 8, None])
def test_an_interrupted_run_goes_on_with_more_rounds(whole, tmp_path, at):
    with pytest.raises(ep.Interrupted):
        ep.simulate(of(10), tmp_path, callbacks=_Stop(at))
    ep.simulate(of(20), tmp_path, resume=True)
    assert outcome(tmp_path) == whole


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(7))
def test_being_killed_while_the_end_is_taken_back_does_no_harm(whole, tmp_path, monkeypatch, step):
    """A process that dies before any of the files changes: both the shorter and the longer run can still be had."""
    ep.simulate(of(10), tmp_path)
    short = outcome(tmp_path)
    count = itertools.count()

    def killing(function):
        def maybe(*arguments, **options):
            half_written = arguments and getattr(arguments[0], "suffix", "") == ".part"
            if not half_written and next(count) == step:
                raise _Killed
            return function(*arguments, **options)

        return maybe

    with monkeypatch.context() as patch:
        patch.setattr(more_rounds, "write_checkpoint", killing(checkpoint.write_checkpoint))
        patch.setattr(run_directory, "write_bytes", killing(run_directory.write_bytes))
        patch.setattr(Path, "unlink", killing(Path.unlink))
        with pytest.raises(_Killed):
            ep.simulate(of(20), tmp_path, resume=True)
    if step % 2 == 0:
        ep.simulate(of(10), tmp_path, resume=True)
        assert outcome(tmp_path) == short
    ep.simulate(of(20), tmp_path, resume=True)
    assert outcome(tmp_path) == whole


def test_what_cannot_be_is_refused_with_the_numbers(tmp_path, capsys):
    out = tmp_path / "out"
    (tmp_path / "e.toml").write_text(to_toml(of(3)))
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(out), "--quiet"]) == 0
    capsys.readouterr()
    for arguments, message in (
        (["--resume", str(out), "--set", "rounds=2"], f"rounds = 2 is fewer than the 3 of the run in {out / 'seed-1'}"),
        ([str(tmp_path / "e.toml"), "--out", str(out), "--set", "rounds=5"], f"--resume {out} --set rounds=5"),
        (["--resume", str(out), "--set", "nodes=5"], "and more rounds"),
    ):
        assert main(["run", *arguments]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
    (out / "seed-1" / "checkpoint.safetensors").unlink()
    assert main(["run", "--resume", str(out), "--set", "rounds=5"]) == 2
    assert "cannot continue from 3 to 5 rounds: its checkpoint.safetensors was deleted" in capsys.readouterr().err
    assert ep.load(out / "experiment.toml").rounds == 3
    assert main(["run", "--resume", str(out), "--quiet"]) == 0


def test_an_unfinished_run_is_exported_as_of_its_last_checkpoint(tmp_path, capsys):
    class Kept(ep.Callback):
        def advanced(self, rounds_done, x):
            if rounds_done == 4:
                self.rows = x.clone()

    sums = of(8, algorithm=ep.PushSum(lr=0.1), faults=ep.Faults())  # where the model is not the state
    kept = Kept()
    out = tmp_path / "out"
    with pytest.raises(ep.Interrupted):
        ep.simulate(sums, out, callbacks=[kept, _Stop(4)])
    for arguments, expected in ((["--node", "3"], kept.rows[3]), (["--mean"], kept.rows.mean(0))):
        file = tmp_path / f"{arguments[0]}.safetensors"
        assert main(["export", str(out), *arguments, "-o", str(file)]) == 0
        assert "it is of round 4 of 8, because the run is not finished" in capsys.readouterr().out
        state = load_file(file)
        module = ep.Logistic().build((1, 8, 8), 10)
        module.load_state_dict(state)
        torch.testing.assert_close(torch.cat([state[name].flatten() for name in ("1.weight", "1.bias")]), expected)
    capsys.readouterr()
    for arguments, message in (
        ([str(out), "--node", "8"], "--node 8 does not exist; the nodes are 0 to 7"),
        ([str(tmp_path / "no"), "--mean"], "does not exist; give the directory of a run"),
    ):
        assert main(["export", *arguments, "-o", "x.safetensors"]) == 2
        assert message in capsys.readouterr().err
    (out / "seed-1" / "checkpoint.safetensors").unlink()
    assert main(["export", str(out), "--mean", "-o", "x.safetensors"]) == 2
    assert "has no model yet" in capsys.readouterr().err


def test_a_comparison_goes_on_with_more_rounds(tmp_path):
    def methods(rounds):
        return {"ring": of(rounds, topology=ep.Ring()), "complete": of(rounds, topology=ep.Complete())}

    run_methods(methods(4), tmp_path / "parts", ep.Callback())
    run_methods(methods(6), tmp_path / "parts", ep.Callback(), resume=True)
    run_methods(methods(6), tmp_path / "whole", ep.Callback())
    for kind in methods(6):
        assert outcome(tmp_path / "parts" / kind) == outcome(tmp_path / "whole" / kind)


class _Enough(ep.Callback):
    """Ends the second seed after the record of round 7."""

    def started(self, setup, learner, rounds_done):
        self.seed = setup.seed

    def recorded(self, record):
        self.round = record.round

    def stop(self):
        return "enough" if self.seed == 2 and self.round >= 7 else None


def test_a_seed_that_ended_early_stays_and_the_others_go_on(tmp_path, capsys):
    def swept(rounds, out, **options):
        return ep.sweep(of(rounds, seeds=(1, 2)), {"topology.s": [2, 3]}, tmp_path / out, **options)

    swept(10, "parts", callbacks=_Enough())
    for _ in range(2):
        found = swept(20, "parts")
        assert [run.summary.rounds for run in found.values()] == [(20, 7), (20, 7)]
    swept(20, "whole", callbacks=_Enough())
    for point in found:
        assert outcome(tmp_path / "parts" / point, 1) == outcome(tmp_path / "whole" / point, 1)
        assert outcome(tmp_path / "parts" / point, 2) == outcome(tmp_path / "whole" / point, 2)
    assert {run.experiment["rounds"] for run in ep.read_results(tmp_path / "parts").runs} == {20}

    one = tmp_path / "one"
    ep.simulate(of(10, seeds=(2,)), one, callbacks=_Enough())
    assert main(["run", "--resume", str(one), "--set", "rounds=20"]) == 0
    assert "seed 2 ended early after round 7: enough" in capsys.readouterr().out
    assert ep.load(one / "experiment.toml").rounds == 20


def test_a_finished_run_does_not_hold_its_models_twice(tmp_path):
    ep.simulate(of(3, algorithm=ep.LocalSGD()), tmp_path)
    models, kept = (tmp_path / "seed-1" / name for name in ("models.safetensors", "checkpoint.safetensors"))
    assert kept.stat().st_size < models.stat().st_size / 4
    models.write_bytes(models.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(ep.BadInput, match="is damaged"):
        ep.simulate(of(5, algorithm=ep.LocalSGD()), tmp_path, resume=True)
