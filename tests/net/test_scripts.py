"""Training scripts as real nodes: what comes out is what a hand-written average gives, and one that is killed costs the others nothing."""

import time
from pathlib import Path

import msgspec
import pytest
import torch

import epidemic as ep
from epidemic.clock import CloseBarrier
from epidemic.core.rng import Streams
from epidemic.deploy.addresses import free_addresses
from epidemic.deploy.folders import make_cluster
from epidemic.deploy.gather import gather
from epidemic.deploy.scripts import ScriptCluster
from epidemic.record import Record
from epidemic.runtime.plan import intended_graph

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BARRIER = ep.Network(close=CloseBarrier())

SCRIPT = """
import os, time, torch
import epidemic as ep

torch.manual_seed(3)
model = torch.nn.ModuleDict(
    {"seen": torch.nn.Linear(3, 2), "common": torch.nn.Linear(2, 2), "own": torch.nn.Linear(2, 2)}
).to(getattr(torch, os.environ.get("TYPE", "float32")))
model["seen"].bias.requires_grad_(False)
with ep.join() as node:
    if node.node_id == 2 and "BASE" in os.environ:
        model["seen"].bias.data.add_(1)
    node.attach(model, names=["seen.*", "common.*"])
    count = int(node.extra.get("count", torch.tensor(0)))
    print("begins with", count, flush=True)
    for round in node.rounds():
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.add_((node.node_id + 1) * (i + 1) / 8).mul_(0.5)
        time.sleep(float(os.environ.get("PAUSE", "0")))
        count += 1
        node.extra["count"] = torch.tensor(count)
        node.report(loss=1.0 + node.node_id, accuracy=0.25)
        node.exchange()
        print("round", round, "heard", node.heard, flush=True)
"""


def by_hand(rounds, nodes, what, dtype):
    """What the script computes, with an average by the round's graph."""
    torch.manual_seed(3)
    model = torch.nn.ModuleDict(
        {"seen": torch.nn.Linear(3, 2), "common": torch.nn.Linear(2, 2), "own": torch.nn.Linear(2, 2)}
    ).to(dtype)
    every = list(model.named_parameters())
    rows = [{name: p.detach().clone() for name, p in every} for _ in range(nodes)]
    travels = [name for name, _ in every if name.startswith(("seen.w", "common"))]
    for round in range(rounds):
        for node in range(nodes):
            for i, (name, _) in enumerate(every):
                rows[node][name].add_((node + 1) * (i + 1) / 8).mul_(0.5)
        graph = intended_graph(what, Streams(1), round)
        heard = [[node, *(int(j) for j in graph.into(node))] for node in range(nodes)]
        means = [
            {name: (sum(rows[j][name].double() for j in those) / len(those)).to(dtype) for name in travels}
            for those in heard
        ]
        for node in range(nodes):
            rows[node].update(means[node])
    return rows, travels


class Scripts:
    """A cluster of scripts."""

    def __init__(self, root, script, **changed):
        self.what = ep.Experiment(
            **{"nodes": 3, "rounds": 4, "topology": ep.ELLocal(1), "algorithm": ep.OwnLoop(), "network": BARRIER}
            | {"eval": ep.Eval(every=2), "checkpoint": ep.Checkpoint(rounds=1)}
            | changed
        )
        self.root, self.script = root, script
        self.folders = make_cluster(self.what, free_addresses(self.what.nodes), root / "cluster")
        self.cluster = None

    def start(self):
        self.cluster = ScriptCluster(self.folders, self.script)
        return self

    def finish(self, patience=90):
        assert self.cluster.wait(patience), [self.log(i)[-3:] for i in range(self.what.nodes)]
        return self

    def log(self, node):
        path = self.folders[node] / "node.log"
        return path.read_text().splitlines() if path.exists() else []

    def said(self, node, text):
        return [line for line in self.log(node) if text in line]

    def until(self, condition, patience=60):
        end = time.monotonic() + patience
        while not condition():
            said = [self.log(i)[-3:] for i in range(self.what.nodes)]
            assert time.monotonic() < end, said
            assert any(child.running for child in self.cluster.children), said
            time.sleep(0.05)

    def model(self, node):
        from epidemic.runtime.saved_models import read_models

        return read_models(self.folders[node] / "run" / "seed-1" / "models.safetensors").rows

    def records(self, node):
        path = self.folders[node] / "run" / "seed-1" / "records.jsonl"
        return [msgspec.json.decode(line, type=Record) for line in path.read_bytes().splitlines()]


@pytest.fixture
def scripts(tmp_path):
    made = []

    def make(script=SCRIPT, **changed):
        path = script
        if isinstance(script, str):
            path = tmp_path / "train.py"
            path.write_text(script)
        made.append(Scripts(tmp_path, path, **changed))
        return made[-1]

    yield make
    for one in made:
        if one.cluster is not None:
            for child in one.cluster.children:
                child.process.kill()
                child.process.join()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_a_barrier_the_result_is_a_hand_written_average(scripts, monkeypatch, dtype):
    monkeypatch.setenv("TYPE", dtype)
    there = scripts().start().finish()
    assert there.cluster.problems() == {}
    rows, travels = by_hand(4, 3, there.what, getattr(torch, dtype))
    for node in range(3):
        found = there.model(node)
        assert set(found) == set(travels)
        for name in travels:
            close = {"rtol": 0, "atol": 1e-6 if dtype == "float32" else 2e-2}
            torch.testing.assert_close(found[name][0], rows[node][name].float(), **close)
        assert [record.round for record in there.records(node)] == [2, 4]
        assert there.records(node)[-1].loss.mean == 1.0 + node
        assert there.records(node)[-1].accuracy.mean == 0.25
    size = sum(rows[0][name].numel() for name in travels) * (4 if dtype == "float32" else 2)
    assert there.records(0)[-1].bytes.model.mean == 4 * size  # four messages, in the type of the tensors
    summary = gather(there.folders, there.root / "together")
    assert summary.final_loss.mean == pytest.approx(2.0)


def test_one_that_is_killed_comes_back_where_it_was_and_the_others_never_wait_for_it(scripts, monkeypatch):
    monkeypatch.setenv("PAUSE", "0.05")
    there = scripts(rounds=45, network=ep.Network(patience=10.0)).start()
    there.until(lambda: there.said(1, "round 5 heard"))
    there.cluster.kill(1)
    there.until(lambda: len(there.said(0, "heard")) > 15)
    there.cluster.restart(1)
    there.until(lambda: len(there.said(1, "begins with")) == 2)
    there.finish()
    assert [child.process.exitcode for child in there.cluster.children] == [0, 0, 0]
    first, again = (int(line.split()[-1]) for line in there.said(1, "begins with"))
    assert first == 0
    assert again >= 5  # the count that was kept with the model
    assert there.said(0, "round 44 heard")


def test_a_node_with_another_base_is_told_so_in_one_line_and_the_others_go_on(scripts, monkeypatch):
    monkeypatch.setenv("BASE", "1")
    there = scripts(network=ep.Network(patience=8.0)).start().finish()
    assert [child.process.exitcode for child in there.cluster.children] == [0, 0, 2]
    (said,) = [line for line in there.log(2) if "error:" in line]
    assert "frozen-base" in said
    assert "load the same pretrained weights on all nodes" in said
    assert there.said(0, "refused node 2")


def test_a_script_that_never_exchanges_fails_in_one_line(scripts):
    there = scripts(
        "import torch, epidemic as ep\nwith ep.join() as node:\n    node.attach(torch.nn.Linear(1, 1))\n",
        nodes=2,
    )
    there.start().finish()
    assert [child.process.exitcode for child in there.cluster.children] == [2, 2]
    assert "without a single node.exchange()" in there.log(0)[-1]


@pytest.mark.parametrize("example", ["own_loop.py", "own_lora.py"])
def test_the_examples_learn_and_agree(scripts, example):
    there = scripts(EXAMPLES / example, nodes=2, rounds=5).start().finish()
    assert there.cluster.problems() == {}
    first, *_, last = (record.loss.mean for record in there.records(0))
    assert last < first
    assert all(torch.equal(there.model(0)[name], rows) for name, rows in there.model(1).items())  # all heard all


def test_a_cluster_that_is_stopped_goes_on(scripts, monkeypatch):
    monkeypatch.setenv("PAUSE", "0.1")
    there = scripts(rounds=10).start()
    there.until(lambda: there.said(0, "round 3 heard"))
    there.cluster.stop()
    assert {child.process.exitcode for child in there.cluster.children} == {130}
    there.start().finish()
    rows, travels = by_hand(10, 3, there.what, torch.float32)
    for node in range(3):
        for name in travels:
            torch.testing.assert_close(there.model(node)[name][0], rows[node][name], rtol=0, atol=1e-5)
