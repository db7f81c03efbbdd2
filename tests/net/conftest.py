"""Real processes that learn together over real connections."""

import json
import os
import time

import msgspec
import pytest
import torch
from safetensors.torch import load_file

import epidemic as ep
from epidemic.deploy.addresses import free_addresses
from epidemic.deploy.folders import make_cluster
from epidemic.deploy.processes import LocalCluster
from epidemic.deploy.watching import StatusWatcher

COMMON = {
    "nodes": 16,
    "rounds": 30,
    "topology": ep.ELLocal(4),
    "algorithm": ep.LocalSGD(lr=0.05, local_steps=3),
    "eval": ep.Eval(every=10, samples=500),
    "runtime": ep.Runtime(strategy="per-node", threads=1),
}


def experiment(**changed):
    return ep.Experiment(**{**COMMON, **changed})


class Deployment:
    """A cluster of processes, with what tests ask of it."""

    def __init__(self, what, root, hosts=None, **options):
        self.experiment, self.root = what, root
        self.folders = make_cluster(what, hosts or free_addresses(what.nodes), root, **options)
        self.cluster = None
        self.watcher = None

    def start(self, folders=None, processes=None):
        self.cluster = LocalCluster(self.folders if folders is None else folders, processes)
        return self

    def statuses(self):
        if self.watcher is None:
            self.watcher = StatusWatcher(self.root / "observer")
        return {status.node_id: status for status in self.watcher.ask()}

    def until(self, condition, patience=60):
        """Wait until the statuses fulfil a condition."""
        end = time.monotonic() + patience
        while True:
            found = self.statuses()
            if condition(found):
                return found
            assert time.monotonic() < end, f"not within {patience} s: {found}"

    def until_round(self, round, node_ids=None, patience=60):
        """Wait until all these nodes (default: one of them) are in a round."""
        if node_ids is None:
            return self.until(lambda found: any(s.round >= round for s in found.values()), patience)
        return self.until(lambda found: all(p in found and found[p].round >= round for p in node_ids), patience)

    def finish(self, patience=120):
        """Wait for the end of all; nothing may hang."""
        assert self.cluster.wait(patience), {p: self.log(p)[-3:] for p in range(len(self.folders))}
        return self

    def log(self, node_id):
        return (self.folders[node_id] / "node.log").read_text().splitlines()

    def run(self, node_id):
        return self.folders[node_id] / "run" / f"seed-{self.experiment.seeds[0]}"

    def node(self, node_id):
        return json.loads((self.run(node_id) / "nodes.json").read_text())[0]

    def summary(self, node_id):
        return json.loads((self.run(node_id) / "summary.json").read_text())

    def model(self, node_id):
        return load_file(self.run(node_id) / "models.safetensors")

    def close(self):
        if self.watcher is not None:
            self.watcher.close()
        if self.cluster is not None:
            for child in self.cluster.children:
                child.process.kill()
                child.process.join()


@pytest.fixture
def deploy(tmp_path):
    """Makes deployments and ends them."""
    made = []

    def make(what, **options):
        made.append(Deployment(what, tmp_path / f"cluster-{len(made)}", **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def furthest(deployment, simulated):
    """The largest difference between deployed and simulated final models."""
    return max(
        float((deployment.model(i)[name][0] - value).abs().max())
        for i in range(deployment.experiment.nodes)
        for name, value in simulated.models[i].items()
        if torch.is_floating_point(value)
    )


def with_network(what, **network):
    return msgspec.structs.replace(what, network=ep.Network(**network))


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.stats.get("skipped", []):
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.write_line(f"{report.nodeid}: {report.longrepr[2]}")


os.environ.setdefault("EPIDEMIC_DEBUG", "1")
