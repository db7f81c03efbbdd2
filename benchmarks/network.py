"""Deployed nodes: sealed models over encrypted links against plain TCP, and a cluster of processes against the simulator.

Exchange: one process sends models of 6.8 MB to another over loopback. Plain: one `sendall` for each, received into a new buffer. Sealed: digest,
signature, TLS, verified and checked for finiteness at the other end, as nodes do it. Shared memory, which Zenoh would use between processes of one
machine and which carries models past the encryption, is off, as it is in nodes.

Rounds: 16 nodes with GN-LeNet, the same experiment, in turn in the simulator, as one process a node, and in two processes.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import epidemic as ep
from benchmarks.sizes import sized
from benchmarks.timing import verdict
from epidemic.callbacks import Callback
from epidemic.deploy.addresses import Addresses, free_addresses
from epidemic.deploy.folders import make_cluster
from epidemic.deploy.keys import Authority, Identity
from epidemic.deploy.processes import LocalCluster
from epidemic.deploy.transport import Transport
from epidemic.deploy.watching import StatusWatcher
from epidemic.deploy.wire import Column, MessageFormat

NUMBERS, MODELS, REPEATS = sized(1_700_000, 1_000), sized(60, 3), sized(4, 1)
FORMAT = MessageFormat.in_rounds(bytes(16), (Column("x", (NUMBERS,), "float32"),))


def _plain_receiver(port, results):
    server = socket.create_server(("127.0.0.1", port))
    results.put("ready")
    link, _ = server.accept()
    for i in range(MODELS + 1):
        view, got = memoryview(bytearray(FORMAT.frame_bytes)), 0
        while got < len(view):
            got += link.recv_into(view[got:])
        if i == 0:
            start = time.perf_counter()
    results.put(time.perf_counter() - start)


def _plain_sender(port):
    model = np.random.default_rng(0).bytes(FORMAT.frame_bytes)
    with socket.create_connection(("127.0.0.1", port)) as link:
        for _ in range(MODELS + 1):
            link.sendall(model)
        link.shutdown(socket.SHUT_WR)
        link.recv(1)


def _sealed_receiver(folders, addresses, results):
    identity, other = Identity.load(folders[0]), Identity.load(folders[1])
    transport = Transport(identity, Addresses(addresses[0]), nodes=2, largest=FORMAT.frame_bytes)
    seen, start, done = 0, 0.0, threading.Event()
    key = other.key.public_key()

    def take(_, frame, node_ids):
        nonlocal seen, start
        FORMAT.open(frame, lambda _: key)
        seen += 1
        if seen == 1:
            start = time.perf_counter()
        if seen == MODELS + 1:
            results.put(time.perf_counter() - start)
            done.set()

    transport.receive(take, lambda _: None, FORMAT.frame_bytes)
    results.put("ready")
    done.wait(120)
    transport.close()


def _sealed_sender(folders, addresses):
    identity = Identity.load(folders[1])
    transport = Transport(identity, Addresses(addresses[1], (addresses[0],)), nodes=2, largest=FORMAT.frame_bytes)
    model = {"x": np.random.default_rng(0).normal(size=NUMBERS).astype("<f4").view(np.uint8)}
    sent = 0
    while sent < MODELS + 1:
        sent += transport.send(0, transport.payload(FORMAT.seal(sent, 1, model, identity.key, graph=bytes(8))))
    time.sleep(sized(5, 1))
    transport.close()


def _seconds(receiver, sender):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    one = context.Process(target=receiver[0], args=(*receiver[1:], results))
    one.start()
    results.get(timeout=60)
    two = context.Process(target=sender[0], args=sender[1:])
    two.start()
    seconds = results.get(timeout=120)
    for process in (one, two):
        process.kill()
        process.join()
    return seconds


def exchange() -> bool:
    with tempfile.TemporaryDirectory() as root:
        authority = Authority.create(Path(root) / "keys")
        folders = [authority.issue(f"node-{i}", []) for i in range(2)]
        plain, sealed = float("inf"), float("inf")
        for _ in range(REPEATS):
            port, *addresses = free_addresses(3)
            number = int(port.split(":")[1])
            plain = min(plain, _seconds((_plain_receiver, number), (_plain_sender, number)))
            sealed = min(sealed, _seconds((_sealed_receiver, folders, addresses), (_sealed_sender, folders, addresses)))
    size = MODELS * FORMAT.frame_bytes / 1e9
    print(
        f"exchange of 6.8 MB models: plain TCP {size / plain:.2f} GB/s, encrypted and signed {size / sealed:.2f} GB/s"
    )
    return verdict("encrypted and signed / plain TCP", plain / sealed, 0.5, at_most=False)


class _Stopwatch(Callback):
    def __init__(self, first, last):
        self.first, self.last, self.seconds = first, last, 0.0

    def advanced(self, rounds_done, x):
        if rounds_done == self.first:
            self.seconds = -time.perf_counter()
        if rounds_done == self.last:
            self.seconds += time.perf_counter()


def rounds() -> bool:
    first, last = sized((10, 50), (1, 4))
    what = ep.Experiment(
        nodes=sized(16, 3), rounds=last + sized(12, 2), topology=ep.ELLocal(sized(7, 2)), data=ep.PythonData(function="benchmarks.training:pictures"), partition=ep.IID(),
        model=ep.GNLeNet(), algorithm=ep.LocalSGD(lr=0.01, local_steps=3, batch_size=8), eval=ep.Eval(every=1000, samples=50),
        runtime=ep.Runtime(strategy="per-node"), checkpoint=ep.Checkpoint(seconds=0),
    )  # fmt: skip
    simulated, control = float("inf"), 0
    deployed = dict.fromkeys((what.nodes, 2), float("inf"))  # by number of processes
    for _ in range(sized(2, 1)):
        watch = _Stopwatch(first, last)
        ep.simulate(what, callbacks=watch)
        simulated = min(simulated, watch.seconds)
        for processes in deployed:
            seconds, asked = _deployed(what, processes, first, last)
            deployed[processes] = min(deployed[processes], seconds)
            control = max(control, asked)
    count = last - first
    print(f"{what.nodes} GN-LeNet nodes: simulator {count / simulated:.2f} rounds/s")
    for processes, seconds in deployed.items():
        print(f"  in {processes} processes {count / max(seconds, 1e-9):.2f} rounds/s")
    print(f"control messages per node and round: {control / 128 / what.rounds:g}")
    each = verdict(
        "one process a node / simulator, rounds per second",
        simulated / max(deployed[what.nodes], 1e-9),
        0.7,
        at_most=False,
    )
    few = verdict(
        "two processes / simulator, rounds per second", simulated / max(deployed[2], 1e-9), 0.9, at_most=False
    )
    return each and few


def _deployed(what: ep.Experiment, processes: int, first: int, last: int) -> tuple[float, int]:
    """Seconds from round `first` to round `last` of the slowest node, and the most bytes of control messages of a node."""
    with tempfile.TemporaryDirectory() as root:
        folders = make_cluster(what, free_addresses(what.nodes), Path(root) / "cluster")
        nodes = LocalCluster(folders, processes)
        watcher = StatusWatcher(Path(root) / "cluster" / "observer")
        reached: dict[int, tuple[float, int]] = {}
        while len(reached) < 2:
            if nodes.wait(0.0):  # all is over already
                if problems := nodes.problems():
                    raise nodes.failure(problems)
                for mark in (first, last):
                    reached.setdefault(mark, (time.perf_counter(), mark))
                break
            found = watcher.ask(0.2)
            if len(found) == what.nodes:
                slowest = min(status.round for status in found)
                for mark in (first, last):
                    if slowest >= mark and mark not in reached:
                        reached[mark] = (time.perf_counter(), slowest)
            time.sleep(1.0)  # an answer takes a node half a millisecond
        between = max(1, reached[last][1] - reached[first][1])  # both may have been seen at once
        seconds = (reached[last][0] - reached[first][0]) / between * (last - first)
        nodes.wait(60)
        watcher.close()
        books = [json.loads(path.read_text())[0] for path in Path(root).glob("cluster/node-*/run/seed-1/nodes.json")]
        return seconds, max(book["bytes"]["control"] for book in books)


def run() -> bool:
    return all([exchange(), rounds()])
