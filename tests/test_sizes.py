"""Sizes, devices and shares that cannot be, or should be known: said before anything is computed."""

import pytest
import torch
from torch import nn

import epidemic as ep
from epidemic.cli import main
from epidemic.core.files import read_json
from epidemic.core.memory import machine_memory, require_memory
from epidemic.experiment import to_toml

QUICK = {
    "nodes": 4,
    "rounds": 1,
    "topology": ep.Ring(),
    "data": ep.Digits(),
    "model": ep.Logistic(),
    "partition": ep.IID(),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"nodes": 10**9},
            r"nodes = 1000000000 with models of 650 numbers, .* would take 4.73 TiB of memory; there are",
        ),
        (
            {"model": ep.MLP((10**9,))},
            r"hidden = .1000000000..*, 75,000,000,010 numbers, would take 279.40 GiB of memory",
        ),
        ({"model": ep.MLP((10**18,))}, "is larger than any machine; use a smaller one"),
        ({"model": ep.MLP((10**30,))}, "is larger than any machine; use a smaller one"),
        (
            {"algorithm": ep.LocalSGD(batch_size=10**12)},
            r"algorithm.batch_size = 1000000000000 .* would take 29.10 TiB",
        ),
        (
            {"algorithm": ep.LocalSGD(batch_size=1, local_steps=10**12)},
            r"local_steps = 1000000000000 for 4 nodes would take",
        ),
        (
            {"algorithm": ep.LocalSGD(batch_size=10**8)},
            r"batch_size = 100000000, 6,400,000,000 numbers a batch, would take 23.8",
        ),
        (
            {"data": ep.Synthetic(samples=10**12)},
            "data.samples = 1000000000000 with data.features = 64 would take 465.66 TiB",
        ),
        ({"runtime": ep.Runtime(device="gpu")}, 'runtime.device = "gpu" is not available here; there is: cpu'),
    ],
)
def test_what_cannot_fit_is_refused_with_what_it_needs(monkeypatch, changes, message):
    monkeypatch.setattr("epidemic.core.memory.machine_memory", lambda: 16 * 2**30)
    with pytest.raises(ep.BadInput, match=message):
        ep.simulate(ep.Experiment(**QUICK | changes))


def test_a_model_of_ones_own_counts_too(monkeypatch):
    monkeypatch.setattr("epidemic.core.memory.machine_memory", lambda: 2**20)
    with pytest.raises(
        ep.BadInput, match=r"nodes = 100 with models of 6,500 numbers, .* would take 4.96 MiB of memory"
    ):
        ep.simulate(
            ep.Experiment(**QUICK | {"nodes": 100, "model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 100))})
        )


def test_memory_is_known_or_not_asked_for():
    found = machine_memory()
    assert found is None or found > 2**28
    require_memory("this", 1, "use less")


def test_a_batch_larger_than_a_nodes_data_is_said_once(tmp_path, capsys):
    given = ep.Experiment(**QUICK | {"algorithm": ep.LocalSGD(batch_size=500), "seeds": [1, 2]})
    (tmp_path / "e.toml").write_text(to_toml(given))
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out")]) == 0
    err = capsys.readouterr().err
    assert err.count("note: 4 of 4 nodes hold fewer samples than algorithm.batch_size = 500 (the fewest: ") == 1
    enough = ["--set", "algorithm.batch_size=8", "--out", str(tmp_path / "enough")]
    assert main(["run", str(tmp_path / "e.toml"), *enough]) == 0
    assert "note:" not in capsys.readouterr().err


def test_the_chosen_device_is_written_down_and_kept(tmp_path, capsys, monkeypatch):
    (tmp_path / "e.toml").write_text(to_toml(ep.Experiment(**QUICK, runtime=ep.Runtime(device="auto"))))
    out = tmp_path / "out"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(out)]) == 0
    assert "is computed on cpu" in capsys.readouterr().err
    assert read_json(out / "seed-1" / "run.json")["device"] == "cpu"
    assert ep.load(out / "experiment.toml").runtime.device == "auto"
    # Where there is a GPU, what was begun without one goes on without one.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert main(["run", "--resume", str(out), "--set", "rounds=2", "--quiet"]) == 0
    assert read_json(out / "seed-1" / "run.json")["device"] == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    # What was begun on one does not go on without it, whether it was asked for or not.
    info = out / "seed-1" / "run.json"
    info.write_text(info.read_text().replace('\n  "device": "cpu"', '\n  "device": "cuda"'))
    capsys.readouterr()
    for device, message in (
        ("auto", 'this run was started on "cuda", which is not available here (there is: cpu); resume on that machine'),
        ("cpu", 'runtime.device = "cpu": this run was started on "cuda", and results differ between devices'),
    ):
        assert main(["run", "--resume", str(out), "--set", "rounds=3", "--set", f"runtime.device={device}"]) == 2
        assert message in capsys.readouterr().err
