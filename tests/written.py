"""Runs as they look on disk, written line by line without training anything; and a server that shows them."""

import fcntl
import json
import os
import re
import socket
import threading
import time
from contextlib import contextmanager

import msgspec

from epidemic.record import MeanMax, Record, Spread, Summary, Traffic, encode
from epidemic.runtime.run_directory import RunState


class Written:
    """The directory of a seed, and the process that seems to write it."""

    def __init__(self, run, *, name=None, seed=1, rounds=100, seeds=(1,), kind="el-local", node=None):
        self.path = run / f"seed-{seed}"
        self.path.mkdir(parents=True)
        self.seed, self.rounds, self.name = seed, rounds, name or run.name
        self._lock = os.open(self.path / ".lock", os.O_WRONLY | os.O_CREAT)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        experiment = {
            "name": self.name, "nodes": 8, "rounds": rounds, "seeds": list(seeds), "topology": {"kind": kind, "s": 2},
        }  # fmt: skip
        info = {"experiment": experiment, "seed": seed, "strategy": "per-node", "versions": {}, "machine": {}}
        (self.path / "run.json").write_text(json.dumps(info))
        (self.path / "records.jsonl").touch()
        self.mark("running")

    def mark(self, state, why=""):
        (self.path / "state.json").write_bytes(msgspec.json.encode(RunState(state, why)))

    def record(self, round, accuracy=0.5):
        with (self.path / "records.jsonl").open("ab") as file:
            file.write(encode(a_record(round, accuracy, self.seed)))

    def fail(self, why):
        self.mark("failed", why)
        self.die()

    def die(self):
        """As a process ends that is killed."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def finish(self, accuracy=0.5):
        spread = Spread(accuracy, 0.0, accuracy, accuracy)
        traffic = a_record(self.rounds, accuracy, self.seed).bytes
        summary = Summary(
            name=self.name, seed=self.seed, rounds=self.rounds, best_accuracy=accuracy, best_accuracy_round=self.rounds, best_loss=1.0,
            best_loss_round=self.rounds, final_accuracy=spread, final_loss=spread, final_mean_model_accuracy=accuracy,
            final_mean_model_loss=1.0, final_disagreement=0.1, final_metrics={}, test_samples=10, bytes=traffic,
        )  # fmt: skip
        (self.path / "nodes.json").write_text("[]")
        (self.path / "summary.json").write_bytes(msgspec.json.encode(summary))
        self.mark("finished")
        self.die()


def a_record(round, accuracy, seed=1):
    sent = MeanMax(1000.0 * round, 1000 * round)
    spread = Spread(accuracy, 0.01, max(0.0, accuracy - 0.1), min(1.0, accuracy + 0.1))
    return Record(
        round=round, seed=seed, alive=8, accuracy=spread, loss=Spread(2 - accuracy, 0.1, 1.0, 2.0), disagreement=0.5 / (round + 1),
        bytes=Traffic(sent, sent, sent, sent),
    )  # fmt: skip


def finished(run, *, rounds=20, every=2, **options):
    """A run that has finished."""
    written = Written(run, rounds=rounds, **options)
    records = [a_record(round, 0.1 + 0.8 * round / rounds, written.seed) for round in range(0, rounds + 1, every)]
    (written.path / "records.jsonl").write_bytes(b"".join(map(encode, records)))
    written.finish(0.9)
    return written


def links(text, kind):
    """The addresses of one kind in a page."""
    return list(dict.fromkeys(re.findall(rf'"(/{kind}/[0-9a-f]+)"', text)))


@contextmanager
def served(*directories, port=0, **options):
    """A server in a thread; its address."""
    import uvicorn

    from epidemic.web.app import application
    from epidemic.web.server import configuration

    with socket.create_server(("127.0.0.1", port)) as listening:
        port = listening.getsockname()[1]
        app = application(directories, every=0.05, **options)
        server = uvicorn.Server(configuration(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
