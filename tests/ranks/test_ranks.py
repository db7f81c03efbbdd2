"""One simulation on several processes: the same bytes as in one, whatever the number of ranks, and an end of all when one ends."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from epidemic.experiment import load
from epidemic.simulator import simulate
from saved import content

BASE = """
nodes = 13
rounds = 5
seeds = [1]
[eval]
every = 2
samples = 100
[data]
kind = "digits"
[model]
kind = "logistic"
"""
RESULTS = ("records.jsonl", "summary.json", "nodes.json", "models.safetensors")
MINE = """
import torch
from torch import nn

from epidemic.aggregation import Aggregator
from epidemic.algorithms import Column, Defaults
from epidemic.learner import SGDUpdate

def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 10))

class Messages(Defaults):
    local_steps, batch_size = 2, 4

    def columns(self, size, dtype):
        return Column("x", (size,), dtype), Column("age", (), "float64")

    def init(self, x):
        return {"x": x, "age": torch.zeros(len(x), dtype=torch.float64)}

    def local_update(self, state, learner, context):
        loss = learner.sgd(state["x"], context.index, SGDUpdate(0.05), list(context.seeds), None)
        return state, {"x": state["x"], "age": state["age"] + 1}, loss

    def aggregate(self, state, inbox):
        x, age = torch.empty_like(state["x"]), inbox.mean("age")
        for i, heard in enumerate(inbox.each("x")):
            x[i] = torch.cat([heard.own[None], heard.received]).median(0).values
            x[i] += 0.001 * (heard.weights[1:] * heard.senders).sum() * heard.weights[0]
        for i, heard in enumerate(inbox.each("age")):
            age[i] += heard.received.sum() * 0.01
        return {**state, "x": x, "age": age}

class Own(Aggregator):
    weighted, fewest = True, 2

    def __call__(self, heard):
        share = float(heard.weights[-1]) / (1 + int(heard.senders[-1]))
        return heard.own + share * (heard.received[-1] - heard.own)
"""

KINDS = {
    "el-local": ['topology.kind="el-local"', "topology.s=3"],
    "el-oracle momentum": ['topology.kind="el-oracle"', "topology.s=4", "algorithm.momentum=0.9"],
    "complete": ['topology.kind="complete"', 'topology.cost="all-reduce"'],
    "complete, by samples": ['topology.kind="complete"', 'mixing="samples"'],
    "equitopo": ['topology.kind="u-equistatic"', "topology.m=4"],
    "faults": [
        'topology.kind="regular"', "topology.s=4", 'mixing="metropolis-hastings"', "faults.loss=0.2",
        "faults.random_crashes.probability=0.2", "faults.random_crashes.rounds_down=1",
    ],
    "complete, half there": ['topology.kind="complete"', 'participation.kind="uniform"', "participation.m=6"],
    "batch norm": ['model.kind="python"', 'model.factory="mine:model"', 'topology.kind="el-local"', "topology.s=3"],
    "convolutions": ['model.kind="small-cnn"', 'runtime.strategy="per-node"', 'topology.kind="el-local"', "topology.s=3"],
    "push-sum": ['algorithm.kind="push-sum"', 'topology.kind="el-local"', "topology.s=4"],
    "tracking": ['algorithm.kind="gradient-tracking"', 'topology.kind="regular"', "topology.s=4"],
    "quasi-global momentum": ['algorithm.kind="qg-momentum"', 'topology.kind="base"', "topology.k=2"],
    "exact diffusion": ['algorithm.kind="exact-diffusion"', 'topology.kind="ring"'],
    "complete sums": ['algorithm.kind="push-sum"', 'topology.kind="complete"'],
    "messages": ['algorithm.kind="python"', 'algorithm.factory="mine:Messages"', 'topology.kind="el-local"', "topology.s=3"],
    "messages, half there": [
        'algorithm.kind="python"', 'algorithm.factory="mine:Messages"', 'topology.kind="complete"', 'participation.kind="uniform"', "participation.m=6",
    ],
    "push-pull": ['algorithm.kind="push-pull"', 'topology.kind="el-local"', "topology.s=4"],
    "views and a cap": [
        'topology.kind="el-local"', "topology.s=3", 'topology.view.kind="cyclon"', "topology.view.size=6", "topology.view.shuffle=3", "faults.cap=4",
    ],
    "trimmed mean": ['aggregation.kind="trimmed-mean"', "aggregation.f=2", 'topology.kind="el-local"', "topology.s=5", "faults.loss=0.2"],
    "median of all": ['aggregation.kind="median"', 'topology.kind="complete"', 'participation.kind="uniform"', "participation.m=6"],
    "nearest": ['aggregation.kind="nearest"', "aggregation.f=2", 'topology.kind="el-local"', "topology.s=5", "faults.loss=0.2"],
    "mixed before": ['aggregation.kind="trimmed-mean"', 'aggregation.before="nnm"', 'topology.kind="el-oracle"', "topology.s=4"],
    "gossip with weights": ['aggregation.kind="clipped"', 'topology.kind="regular"', "topology.s=4", 'mixing="metropolis-hastings"'],
    "own rule": ['aggregation.kind="python"', 'aggregation.factory="mine:Own"', 'topology.kind="el-oracle"', "topology.s=4"],
    "examples": [
        'topology.kind="python"', 'topology.factory="own_topology:Remembering"', "topology.options={k=4}",
        'aggregation.kind="python"', 'aggregation.factory="own_aggregator:NearestHalf"',
    ],
    "adam, mlp": ['model.kind="mlp"', 'algorithm.optimizer="adam"', "algorithm.lr=0.01", "algorithm.local_steps=2"],
}  # fmt: skip
BY_EACH_WAY = {
    "el-local": ["rows", "columns"],
    "el-oracle momentum": ["rows", "columns"],
    "exact diffusion": ["rows", "columns"],
    "complete": ["sum", "columns"],
    "faults": ["rows", "columns"],
    "push-sum": ["rows", "columns"],
    "complete, by samples": ["sum", "columns"],
    "complete, half there": ["sum", "columns"],
    "complete sums": ["sum", "columns"],
    "trimmed mean": ["rows", "columns"],
    "median of all": ["rows", "columns"],
}
"""The ways that rows can go; the first four on any number of ranks, the others on three."""


def command(*words):
    return [sys.executable, "-m", "epidemic", *map(str, words)]


def settings(kind):
    return [word for setting in KINDS[kind] for word in ("--set", setting)]


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(["", os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)}


def run(*words, where):
    return subprocess.run(command(*words), cwd=where, capture_output=True, text=True, timeout=200, env=environment())


def results(path):
    return {name: (path / "seed-1" / name).read_bytes() for name in RESULTS}


def checkpoint(path):
    return content(path / "seed-1" / "checkpoint.safetensors")


def write(where):
    (where / "base.toml").write_text(BASE)
    (where / "mine.py").write_text(MINE)
    for name in ("own_topology.py", "own_aggregator.py"):
        shutil.copy(Path(__file__).parents[2] / "examples" / name, where)


@pytest.fixture
def place(tmp_path):
    write(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Every kind in one process. The tests that ask for it are a group, which one worker does: it is made once."""
    where = tmp_path_factory.mktemp("alone")
    write(where)
    sys.path.insert(0, str(where))
    try:
        for kind in KINDS:
            simulate(load(where / "base.toml", KINDS[kind]), where / kind)
    finally:
        sys.path.remove(str(where))
    return where


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def exchanges(path):
    """How many mixtures came by each way."""
    return json.loads((path / "seed-1" / "run.json").read_text())["ranks"]["exchange"]


@pytest.mark.xdist_group("alone")
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_any_number_of_ranks_gives_the_bytes_of_one_process_by_every_way(place, alone, count):
    kinds = {1: ["el-local"], 4: ["el-local", "exact diffusion", "complete", "messages"]}.get(count, list(KINDS))
    runs = [(kind, None) for kind in kinds]
    forced = list(BY_EACH_WAY)[: {1: 0, 3: None}.get(count, 4)]
    runs += [(kind, way) for kind in forced for way in BY_EACH_WAY[kind]]
    (place / "kinds.json").write_text(json.dumps([(f"{kind}-{way}", KINDS[kind], way) for kind, way in runs]))
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(count)}
    script = Path(__file__).with_name("every_kind.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script], cwd=place, env={**environment(), **group, "RANK": str(i)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for i in range(count)
    ]  # fmt: skip
    said = [rank.communicate(timeout=500)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * count, said
    for kind, way in runs:
        assert results(place / f"{kind}-{way}") == results(alone / kind), (kind, way)
        assert checkpoint(place / f"{kind}-{way}") == checkpoint(alone / kind), (kind, way)
        assert way is None or exchanges(place / f"{kind}-{way}").keys() == {way}
    if count > 1:
        assert exchanges(place / "complete-None") == {"sum": 5}
        assert exchanges(place / "exact diffusion-None") == {"rows": 5}  # of a ring few rows leave their rank
        assert sum(exchanges(place / "el-local-None").values()) == 5  # which way is less depends on the round's graph
        assert exchanges(place / "messages-None")["messages"] == 10
    if count == 3:  # the same by `ep.compare`, with a table on every rank
        assert len({text.splitlines()[-1] for text in said}) == 1
        for kind in ("el-local", "complete"):
            for name in ("records.jsonl", "models.safetensors"):
                assert results(place / "compared" / kind)[name] == results(alone / kind)[name]


@pytest.mark.xdist_group("alone")
def test_two_agents_of_torchrun_give_the_bytes_of_one_process(place, alone):
    port = free_port()
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port]
    end = ["-m", "epidemic", "run", "base.toml", "--out", "on", "-q", *settings("el-local")]
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words, "--node-rank", str(i), *end],
            cwd=place, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    said = [agent.communicate(timeout=200)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert results(place / "on") == results(alone / "el-local")


def begun(process, path, lines):
    """Wait until so many records are written."""
    end = time.monotonic() + 120
    records = path / "seed-1" / "records.jsonl"
    while not records.is_file() or records.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


LONG = ["--set", "rounds=200", "--set", "eval.every=20", "--set", "checkpoint.rounds=20", *settings("el-local")]
"""Also in pairs: --set KEY=VALUE."""


def children(pid):
    """The ranks that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
            line = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(words[1]) == pid and b"spawn_main" in line:
            found.append(int(stat.parent.name))
    return sorted(found)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks processes up in /proc")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_all_and_another_number_of_ranks_goes_on_to_the_same_bytes(place, victim):
    process = subprocess.Popen(
        command("run", "base.toml", "--out", "on", "-q", "--ranks", 2, *LONG, "--set", "checkpoint.rounds=1"),
        cwd=place, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    begun(process, place / "on", 3)
    ranks = children(process.pid)
    part = place / "on/seed-1/checkpoint.safetensors.part"
    end = time.monotonic() + 60
    while not part.exists():  # until a checkpoint is being written
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
    os.kill(ranks[victim], signal.SIGKILL)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 1, said
    while part.exists() and victim != 0:  # who writes it clears it away, unless it is killed itself
        assert time.monotonic() < end + 100
        time.sleep(0.05)
    assert content(place / "on/seed-1/checkpoint.safetensors")[2]["round"] > 30
    assert said.count("error:") == 1
    assert f"rank {victim} ended without a word (signal 9)" in said
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < end + 100
        time.sleep(0.05)
    again = run("run", "--resume", "on", "-q", *(["--ranks", 3] if victim else []), where=place)
    assert again.returncode == 0, again.stderr
    simulate(load(place / "base.toml", LONG[1::2]), place / "alone")
    assert results(place / "on") == results(place / "alone")


def test_a_full_disk_on_the_first_rank_ends_all_in_one_line(place):
    resource = pytest.importorskip("resource")
    found = subprocess.run(
        command("run", "base.toml", "--out", "on", "-q", "--ranks", 2, *LONG), cwd=place, env=environment(), capture_output=True, text=True,
        timeout=200, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )  # fmt: skip
    assert found.returncode == 1, found.stderr
    assert found.stderr.count("error:") == 1
    assert (
        "checkpoint.safetensors cannot be written: [Errno 27] File too large; the last checkpoint is kept"
        in found.stderr
    )
    assert len(found.stderr.strip().splitlines()) == 1
    assert not list((place / "on/seed-1").glob("checkpoint*"))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks processes up in /proc")
def test_a_rank_that_hangs_is_given_up_in_time(place):
    process = subprocess.Popen(
        command("run", "base.toml", "--out", "on", "-q", "--ranks", 2, "--rank-timeout", 5, *LONG),
        cwd=place, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    begun(process, place / "on", 3)
    os.kill(children(process.pid)[1], signal.SIGSTOP)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert "rank 1 is gone or does not answer; stopped at seed 1" in said
    assert said.rstrip().endswith("the last checkpoint is kept")


def test_sigterm_saves_and_ends_with_130_and_one_process_goes_on(place):
    process = subprocess.Popen(
        command("run", "base.toml", "--out", "on", "-q", "--ranks", 2, *LONG, "--set", "checkpoint.rounds=0"),
        cwd=place, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    begun(process, place / "on", 2)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    stopped = re.search(r"after round (\d+) of 200; resume with: epidemic run --resume on", said)
    assert stopped, said
    assert f'"round":{stopped[1]}' in (place / "on/seed-1/checkpoint.safetensors").read_bytes()[:4000].decode(
        errors="replace"
    ).replace("\\", "")
    again = run("run", "--resume", "on", "-q", where=place)
    assert again.returncode == 0, again.stderr
    simulate(load(place / "base.toml", LONG[1::2]), place / "alone")
    assert results(place / "on") == results(place / "alone")


SLOW = """
import os, pathlib, time
from torch import nn

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        if self.training and x.requires_grad is False and os.environ.get("RANK") == "1" and pathlib.Path("go").exists():
            pathlib.Path("slow").touch()
            time.sleep(12)
        return self.last(x.flatten(1))
"""


def test_a_second_wish_does_not_wait_for_a_rank_that_is_slow(place):
    (place / "slow_model.py").write_text(SLOW)
    process = subprocess.Popen(
        command("run", "base.toml", "--out", "on", "-q", "--ranks", 2, "--rank-timeout", 150, *LONG, "--set",
                'model={kind="python",factory="slow_model:Slow"}', "--set", 'runtime.strategy="per-node"', "--set", "data.kind=digits"),
        cwd=place, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    begun(process, place / "on", 2)
    (place / "go").touch()
    until = time.monotonic() + 60
    while not (place / "slow").exists():
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(2.5)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, said = process.communicate(timeout=200)
    assert process.returncode == 130, said
    assert time.monotonic() - begin < 75, "it waited for the others until their patience was over"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "14"], "14 ranks are more than nodes = 13; use at most 13"),
        (["--ranks", "2", "--set", "clock.stop=5"], "[clock]"),
        (["--ranks", "2", "--set", 'compression.kind="int8"'], "compressed messages cannot be mixed on 2 ranks"),
        (["--ranks", "2", "--set", 'model.kind="small-cnn"'], 'use --set runtime.strategy="per-node"'),
        (["--ranks", "2", "--set", "topology.s=13"], "topology.s = 13"),
        (["--ranks", "0"], "--ranks = 0 must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(place, words, said):
    found = run("run", "base.toml", "--out", "on", "-q", *settings("el-local"), *words, where=place)
    assert found.returncode == 2, found.stderr
    assert found.stderr.count("error:") == 1
    assert said in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_commands_that_start_ranks_at_the_same_moment_do_not_meet_each_other(place):
    """Each has a port that nobody else can have drawn, and its own ranks."""
    at_once = 6
    processes = [
        subprocess.Popen(
            command("run", "base.toml", "--out", f"on-{i}", "-q", "--ranks", 2, *settings("el-local"), "--set", "rounds=2", "--set", f"seeds=[{i + 1}]"),
            cwd=place, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for i in range(at_once)
    ]  # fmt: skip
    said = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * at_once, said
    assert all((place / f"on-{i}" / f"seed-{i + 1}" / "summary.json").is_file() for i in range(at_once))


def test_a_port_that_somebody_else_has_is_not_given_to_ranks():
    """The store of every command stays where it listens for as long as its ranks live."""
    from epidemic.cli import ranks

    stores = [ranks._meeting_point() for _ in range(50)]
    assert len({store.port for store in stores}) == 50


def test_what_the_first_rank_cannot_read_or_write_ends_all_of_them_in_step(place):
    (place / "base.toml").write_text(BASE.replace("rounds = 5", "rounds = 3"))
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "3"}
    script = Path(__file__).with_name("unreadable.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script], cwd=place, env={**environment(), **group, "RANK": str(i)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(3)
    ]  # fmt: skip
    said = [rank.communicate(timeout=200) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], said
    lines = said[0][0].splitlines()
    broken = "RunFailed: [Errno 5] Input/output error: 'somewhere'"
    found = dict(line.split(": ", 1) for line in lines)
    assert len(found) == len(lines) == 17
    # a new run has no records to read; all others end in the same words on every rank
    assert {name: words for name, words in found.items() if words != broken} == {"new records": "nothing"}


def pair(place, first, second, timeout=100):
    """Two ranks that were started with different words: their exit codes, and what they said."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            command(*words),
            cwd=place,
            env={**environment(), **group, "RANK": str(i)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for i, words in enumerate((first, second))
    ]
    said = [rank.communicate(timeout=timeout)[1] for rank in ranks]
    return [rank.returncode for rank in ranks], said


def test_ranks_with_different_files_refuse_each_other(place):
    words = ("run", "base.toml", "--out", "on", "-q", *settings("el-local"))
    codes, said = pair(place, (*words, "--set", "algorithm.lr=0.1"), (*words, "--set", "algorithm.lr=0.2"))
    assert codes == [2, 2], said
    assert "rank 1: this is a different experiment than that of the first rank (in algorithm.lr)" in said[0]
    assert said[1] == ""


def test_ranks_that_would_save_at_different_times_refuse_each_other(place):
    words = ("run", "base.toml", "--out", "on", "-q", *settings("el-local"))
    codes, said = pair(place, (*words, "--set", "checkpoint.rounds=5"), (*words, "--set", "checkpoint.rounds=3"))
    assert codes == [2, 2], said
    assert "than that of the first rank (in checkpoint)" in said[0]


def test_a_file_that_one_rank_does_not_have_ends_all_at_once(place):
    words = ("--out", "on", "-q", *settings("el-local"))
    codes, said = pair(place, ("run", "base.toml", *words), ("run", "nowhere.toml", *words))
    assert codes == [2, 2], said
    assert "rank 1:" in said[0]
    assert "nowhere.toml" in said[0]


def test_only_the_first_rank_has_the_directory_that_is_gone_on_with(place):
    """The others, on other machines, are told what is in it; and a run that diverges says so once."""
    short = ("--set", "rounds=2")
    assert run("run", "base.toml", "--out", "on", "-q", *settings("el-local"), *short, where=place).returncode == 0
    more = ("-q", "--set", "rounds=4")
    codes, said = pair(place, ("run", "--resume", "on", *more), ("run", "--resume", "elsewhere", *more))
    assert codes == [0, 0], said
    assert (
        run(
            "run", "base.toml", "--out", "whole", "-q", *settings("el-local"), "--set", "rounds=4", where=place
        ).returncode
        == 0
    )
    assert results(place / "on") == results(place / "whole")
    wild = ("run", "base.toml", "--out", "wild", "-q", *settings("el-local"), "--set", "algorithm.lr=1e38")
    codes, said = pair(place, wild, wild)
    assert codes == [1, 1], said
    assert said[0].count("no longer a finite number") == 1
    assert said[1] == ""
