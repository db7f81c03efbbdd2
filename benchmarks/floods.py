"""Floods: what a certified member that floods one node costs it, against a node that is not flooded.

Three nodes of four learn with a logistic regression, each in a process of its own; the fourth is an attacker with a good certificate, which sends
greetings, or its own old messages, to node 0 as fast as it can. Counted: trainings for each second of processor time, of the victim and of a
bystander, in the same seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import epidemic as ep
from benchmarks.sizes import SMALLEST, sized
from epidemic.core.rng import Streams
from epidemic.deploy.addresses import Addresses, free_addresses, read_addresses
from epidemic.deploy.agreement import agreement_of
from epidemic.deploy.folders import make_cluster
from epidemic.deploy.handshake import Handshake, seal_handshakes
from epidemic.deploy.keys import Identity
from epidemic.deploy.outbox import raw_bytes
from epidemic.deploy.processes import LocalCluster
from epidemic.deploy.transport import Transport
from epidemic.deploy.watching import StatusWatcher
from epidemic.deploy.wire import Column, MessageFormat
from epidemic.runtime.plan import intended_graph, view_of
from epidemic.runtime.setup import prepare

SECONDS = sized(6.0, 1.0)
WHAT = ep.Experiment(
    nodes=4,
    rounds=1_000_000,
    topology=ep.ELLocal(2),
    model=ep.Logistic(),
    algorithm=ep.LocalSGD(local_steps=1),
    eval=ep.Eval(every=10_000, samples=100),
    runtime=ep.Runtime(strategy="per-node", threads=1),
)


def _attack(folder, addresses, kind, round, started):
    """Flood node 0 until it is killed."""
    identity, setup = Identity.load(folder), prepare(WHAT, 1, None, [3])
    terms = agreement_of(setup)
    transport = Transport(identity, Addresses(None, addresses), nodes=WHAT.nodes, largest=2**22)
    handshake = Handshake(3, 3, transport.token, identity.encoded, terms.run, 0, WHAT.rounds, False, False)
    bundle = seal_handshakes([(handshake, identity)], terms)
    format = MessageFormat.in_rounds(terms.run, (Column("x", tuple(setup.initial.shape), "float32"),))
    graph = view_of(intended_graph(WHAT, Streams(WHAT.seeds[0]), round), round, 3).digest
    payload = transport.payload(format.seal(round, 3, {"x": raw_bytes(setup.initial)}, identity.key, graph=graph))
    time.sleep(1.0)
    transport.ask("handshake", 0, bundle, 3.0, lambda _: None, 2**20)
    while not transport.send(0, payload):
        time.sleep(0.01)
    started.set()
    while True:
        if kind == "greetings":
            transport.ask("handshake", 0, bundle, 1.0, lambda _: None, 2**20)
        else:
            transport.send(0, payload)


def _used(pid):
    """Seconds of processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _trainings(watcher, cluster):
    """Trainings for each second of processor time, of nodes 0 and 1."""
    pids = [child.process.pid for child in cluster.children[:2]]

    def look():
        found = {}
        while not {0, 1} <= found.keys():
            found = {status.node_id: status for status in watcher.ask()}
        return [found[i].round for i in (0, 1)], [_used(pid) for pid in pids], found[0].refusals.get("flood", 0)

    before, spent, _ = look()
    time.sleep(SECONDS)
    after, now, flood = look()
    return [(after[i] - before[i]) / (now[i] - spent[i]) for i in (0, 1)], flood


def run() -> bool:
    """Whether a flooded node keeps half of what one has that is not flooded."""
    kept = []
    for kind in ("nothing", "greetings", "old messages"):
        with tempfile.TemporaryDirectory() as node_id:
            root = Path(node_id) / "cluster"
            folders = make_cluster(WHAT, free_addresses(3), root)
            addresses = tuple(read_addresses(folder / "node.toml").listen for folder in folders[:3])
            cluster, watcher = LocalCluster(folders[:3]), StatusWatcher(root / "observer")
            attacker = None
            try:
                while not (found := watcher.ask()) or min(status.round for status in found) < 100 or len(found) < 3:
                    time.sleep(0.2)
                if kind != "nothing":
                    context = multiprocessing.get_context("forkserver")
                    started = context.Event()
                    arguments = (folders[3], addresses, kind, found[0].round, started)
                    attacker = context.Process(target=_attack, args=arguments, daemon=True)
                    attacker.start()
                    started.wait()
                seen = [_trainings(watcher, cluster) for _ in range(2)]
            finally:
                watcher.close()
                for process in [child.process for child in cluster.children] + ([attacker] if attacker else []):
                    process.kill()
                    process.join()
        for when, ((victim, bystander), flood) in zip(("first", "next"), seen, strict=True):
            kept.append(victim / bystander)
            print(
                f"{kind}, {when} {SECONDS:.0f} s: victim {victim:.0f}, bystander {bystander:.0f} trainings per processor second,"
                f" ratio {kept[-1]:.2f}; {flood} dropped unread"
            )
    return SMALLEST or min(kept) >= 0.5  # ratios of the smallest form say nothing


if __name__ == "__main__":
    raise SystemExit(not run())
