"""Methods compared on several ranks: the same directories and tables as in one process, said by one rank."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch.distributed as dist

from epidemic.callbacks import all_of
from epidemic.cli import main
from epidemic.core.errors import BadInput
from epidemic.experiment import experiment_from
from epidemic.simulator.on_ranks import in_turn

FILE = """
name = "methods"
nodes = 7
rounds = 4
seeds = [1, 2]
data = {kind = "digits"}
model = {kind = "logistic"}
eval = {every = 2, samples = 60}

[[methods]]
name = "everybody"
topology = {kind = "complete"}

[[methods]]
name = "EL local"
topology = {kind = "el-local", s = 3}

[[methods]]
name = "ring"
topology = {kind = "ring"}
"""
WRITTEN = ("records.jsonl", "summary.json", "nodes.json", "models.safetensors", "comparison.json", "experiment.toml")


def environment(**more):
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(["", os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
        **more,
    }


def started(*words, where, **more):
    return subprocess.Popen(
        [sys.executable, *map(str, words)], cwd=where, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def found(where):
    """Everything that a comparison writes and that does not tell of the machine."""
    return {
        path.relative_to(where).as_posix(): path.read_bytes()
        for path in sorted(where.rglob("*"))
        if path.name in WRITTEN
    }


@pytest.fixture
def place(tmp_path):
    (tmp_path / "methods.toml").write_text(FILE)
    return tmp_path


def test_compare_under_torchrun_writes_and_prints_what_one_process_does(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert main(["compare", "methods.toml", "--out", "on", "--quiet"]) == 0
    printed = capsys.readouterr().out
    (place / "on").rename(place / "alone")
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    end = started(*words, "-m", "epidemic", "compare", "methods.toml", "--out", "on", "-q", where=place)
    said, problem = end.communicate(timeout=200)
    assert end.returncode == 0, problem
    assert found(place / "on") == found(place / "alone")
    assert len(found(place / "on")) == 3 * (1 + 2 * 4) + 1
    assert said == printed
    again = started("-m", "epidemic", "compare", "methods.toml", "--out", "on", "-q", "--ranks", 2, where=place)
    assert (
        again.communicate(timeout=200)[1]
        == "error: on holds an earlier comparison; resume with --resume or choose another --out\n"
    )
    assert again.returncode == 2


def test_an_interrupted_comparison_goes_on_in_one_process_to_the_same_bytes(place, monkeypatch):
    (place / "methods.toml").write_text(
        FILE.replace("rounds = 4", "rounds = 200").replace("[1, 2]", "[1]").replace("every = 2", "every = 40")
    )
    end = started("-m", "epidemic", "compare", "methods.toml", "--out", "on", "-q", "--ranks", 2, where=place)
    second = place / "on" / "el-local" / "seed-1" / "records.jsonl"
    limit = time.monotonic() + 100
    while not second.is_file():
        assert end.poll() is None, end.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)
    end.send_signal(signal.SIGTERM)
    _, said = end.communicate(timeout=100)
    assert end.returncode == 130, said
    assert re.fullmatch(
        r"error: interrupted .*; resume with: epidemic compare methods.toml --out on --resume --ranks 2\n", said
    ), said
    monkeypatch.chdir(place)
    assert main(["compare", "methods.toml", "--out", "on", "--resume", "--quiet"]) == 0
    assert main(["compare", "methods.toml", "--out", "whole", "--quiet"]) == 0
    assert found(place / "on") == found(place / "whole")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rank-timeout", "9", "--ranks", "2", "--on", "slurm"], "leave out --rank-timeout"),
        (["--rank-timeout", "9"], "add --ranks N"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(place, monkeypatch, capsys, words, said):
    monkeypatch.chdir(place)
    assert main(["compare", "methods.toml", "--out", "on", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (place / "on").exists()


@pytest.fixture
def group():
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_method_that_ranks_cannot_share_is_named_before_anything_is_looked_at(group):
    base = {"nodes": 4, "data": {"kind": "digits"}, "topology": {"kind": "ring"}}
    methods = {"plain": experiment_from(base), "small": experiment_from({**base, "compression": {"kind": "int8"}})}

    def check():
        raise AssertionError

    with (
        pytest.raises(BadInput, match=r"^small: \[compression\]: compressed messages cannot be mixed"),
        in_turn(methods, all_of([]), check),
    ):
        pass


def test_ranks_with_different_methods_refuse_each_other(place):
    (place / "fewer.toml").write_text(FILE.rpartition("[[methods]]")[0])
    group = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        group["MASTER_PORT"] = str(probe.getsockname()[1])
    ranks = [
        started("-m", "epidemic", "compare", file, "--out", "on", "-q", where=place, **group, RANK=str(i))
        for i, file in enumerate(["methods.toml", "fewer.toml"])
    ]
    said = [rank.communicate(timeout=100)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 2], said
    assert "rank 1: these methods differ from those of the first rank" in said[0]
    assert said[1] == ""
    assert not (place / "on").exists()
