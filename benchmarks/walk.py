"""How many source files of the package a simulated round, a deployed message and a deployed round cross: what somebody reads who follows one.

Functions that are called are noted by `sys.setprofile` in all threads and processes, in rounds after the first ones and before the last ones.

  a simulated round     every file of which something runs between two rounds, without evaluation; one thread
  trained models        every file of which a function is given models of that round, after the local update
  a deployed message    every file of which a function is given the message: its model as tensor or bytes, its header, or the event that stands for it;
                        from the end of the local update to the aggregate of its receiver, in both processes
  a deployed round      every file of which something runs in a process meanwhile: also greetings, statuses, timers and records

    python -m benchmarks walk
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch

import epidemic as ep
from epidemic.deploy.addresses import free_addresses
from epidemic.deploy.folders import make_cluster
from epidemic.deploy.node import run_node

PACKAGE = f"{Path(ep.__file__).parent}{os.sep}"
ROUND, MESSAGE = 15, 20
"""About so many files a simulated round and a deployed message should cross at most."""

NODES, FEATURES, ROUNDS = 4, 300, 12
NUMBERS = FEATURES * 10 + 10  # of a model
CARRIERS = {
    "Send",
    "Arrived",
    "Mix",
    "Header",
    "OpenedMessage",
    "Outgoing",
    "_Parcel",
    "_Frame",
    "_Job",
    "Received",
    "MessageInbox",
}
"""Classes of values that are, or stand for, a message on its way."""
ASIDE = {"Population.local_update", "RunRecorder.settle"}
"""What the model is given to before it is a message, and after the aggregate."""


def carries(value: Any, depth: int = 0) -> bool:
    """Whether a value is a message: a whole model, or what is made of one."""
    if type(value).__name__ in CARRIERS:
        return True
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value) >= NUMBERS
    if isinstance(value, torch.Tensor):
        return value.numel() >= NUMBERS
    if isinstance(value, np.ndarray):
        return bool(value.size >= NUMBERS)
    if depth < 2 and isinstance(value, dict):
        return any(carries(one, depth + 1) for one in list(value.values())[:8])
    return depth < 2 and isinstance(value, list | tuple) and any(carries(one, depth + 1) for one in value[:8])


def given_a_message(frame: FrameType) -> bool:
    """Whether a call has a message among its arguments."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return any(carries(frame.f_locals.get(name)) for name in names)


def aside(frame: FrameType | None) -> bool:
    """Whether a call is part of the local update or of taking down results."""
    while frame is not None:
        if frame.f_code.co_qualname in ASIDE:
            return True
        frame = frame.f_back
    return False


class Watch:
    """Notes the files that are crossed, in this process and in those that it forks: a line for each in `folder`."""

    def __init__(self, folder: Path, first: int, last: int) -> None:
        self.folder, self.first, self.last = folder, first, last
        self.aggregates: dict[int, int] = {}  # done, by process
        self.seen: set[tuple[int, str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """What `sys.setprofile` calls."""
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        code, process = frame.f_code, os.getpid()
        if code.co_qualname == "Population.aggregate":
            self.aggregates[process] = self.aggregates.get(process, 0) + 1
        if not self.first <= self.aggregates.get(process, 0) <= self.last:
            return
        self._note("round", code, process)
        if (process, "message", code.co_filename) not in self.seen and given_a_message(frame) and not aside(frame):
            self._note("message", code, process)

    def _note(self, what: str, code: CodeType, process: int) -> None:
        if (process, what, code.co_filename) in self.seen:
            return
        self.seen.add((process, what, code.co_filename))
        with (self.folder / f"{what}-{process}").open("a") as file:
            file.write(f"{code.co_filename.removeprefix(PACKAGE)}\t{code.co_qualname}\n")

    def files(self, what: str) -> dict[str, str]:
        """The files that were crossed in all processes, each with the first function there."""
        found: dict[str, str] = {}
        for path in sorted(self.folder.glob(f"{what}-*")):
            for line in path.read_text().splitlines():
                file, function = line.split("\t")
                found.setdefault(file, function)
        return dict(sorted(found.items()))


def experiment() -> ep.Experiment:
    """A small one, the same for both."""
    return ep.Experiment(
        nodes=NODES,
        rounds=ROUNDS,
        topology=ep.ELLocal(2),
        data=ep.Synthetic(features=FEATURES, samples=400),
        model=ep.Logistic(),
        partition=ep.IID(),
        eval=ep.Eval(every=ROUNDS, samples=20),
        runtime=ep.Runtime(threads=1, strategy="per-node"),
    )


def watched(watch: Watch, do: Any) -> None:
    """Run something while calls are noted, in this thread and in those that it starts."""
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        do()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def the_watch(folder: Path) -> Watch:
    """One that looks at the rounds in the middle."""
    return Watch(folder, 3, ROUNDS - 3)


def simulated(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The files that the models of a simulated round cross, and those of the round."""
    watch = the_watch(folder)
    watched(watch, lambda: ep.simulate(experiment(), progress=False))
    return watch.files("message"), watch.files("round")


def deployed(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The files of a deployed message, and those of a deployed round; each node is a process of its own."""
    nodes = make_cluster(experiment(), free_addresses(NODES), folder / "cluster")
    command = [sys.executable, "-m", "benchmarks.walk", str(folder)]
    processes = [subprocess.Popen([*command, str(node)], stdout=subprocess.DEVNULL) for node in nodes]
    try:
        if any(process.wait(120) for process in processes):
            raise RuntimeError("a deployed node failed")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    watch = the_watch(folder)
    return watch.files("message"), watch.files("round")


def run() -> bool:
    """Print what is crossed; whether a message crosses as little as it should."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        models, a_round = simulated(Path(one))
        a_message, deployed_round = deployed(Path(other))
    for title, files, most in (
        ("what trained models go through in a simulated round", models, None),
        ("a simulated round", a_round, ROUND),
        ("a deployed message", a_message, MESSAGE),
        ("a deployed round", deployed_round, None),
    ):
        print(f"{title}: {len(files)} files" + (f" (about {most} at most)" if most else ""))
        for file, function in files.items():
            print(f"    {file}: {function}")
    return len(a_message) <= MESSAGE


if __name__ == "__main__":  # one node of a deployment
    watched(the_watch(Path(sys.argv[1])), lambda: run_node([Path(sys.argv[2])], threads=1))
