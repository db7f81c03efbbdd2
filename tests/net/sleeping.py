"""A model whose training takes a set time, because it sleeps; it writes down when it trained.

How long, and where to write, it is told by the environment, because every process has speeds of its own. It sleeps in every local step, and
must be used with the strategy "per-node". Where it is imported so, nodes begin at the same moment, as under the simulated clock: when all have found each other.
"""

import os
import time
from pathlib import Path

import torch
from torch import nn

from epidemic.protocol.asynchronous import Asynchronous
from epidemic.protocol.events import SECOND, SetTimer
from epidemic.protocol.rounds import Rounds

SLEEPS, SLEPT, TOGETHER, COUNT = "SLEEPING_FOR", "SLEEPING_WROTE", "SLEEPING_WITH", "SLEEPING_COUNT"
"""Files with the seconds of each step, one a line, and when each began and ended; a directory in which processes meet, and how many do."""


class Sleeper(nn.Module):
    """A small network for 64 numbers and 10 classes."""

    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, inputs):
        if self.training and torch.is_grad_enabled() and SLEEPS in os.environ:
            _sleep()
        return self.layers(inputs)


def _sleep():
    log = Path(os.environ[SLEPT])
    done = len(log.read_text().splitlines()) if log.exists() else 0
    began = time.monotonic()
    time.sleep(float(Path(os.environ[SLEEPS]).read_text().splitlines()[done]))
    with log.open("a") as file:
        file.write(f"{began} {time.monotonic()}\n")


def _begin_together(protocol, directory, count):
    """Let nodes of a protocol look for the others until all have found each other."""
    opens = protocol.open

    def open(node):
        if not node.begun:
            (directory / str(node.rules.node_id)).touch()
            if sum(1 for _ in directory.iterdir()) < count:
                node.act(SetTimer("look", node.now + SECOND // 200))
                return
        opens(node)

    protocol.open = open


if SLEEPS in os.environ:
    for kind in (Asynchronous, Rounds):
        _begin_together(kind, Path(os.environ[TOGETHER]), int(os.environ[COUNT]))


def asleep(folders, world, steps):
    """What the processes of a deployment are told: to sleep for as long as the world says that their steps take; an environment for each."""
    begun = folders[0].parent / "begun"
    begun.mkdir()
    found = []
    for node_id, folder in enumerate(folders):
        takes = [world.step_cost(node_id, count // steps) / SECOND for count in range(2000)]
        (folder / "sleeps").write_text("\n".join(map(str, takes)))
        told = {SLEEPS: folder / "sleeps", SLEPT: folder / "slept", TOGETHER: begun, COUNT: len(folders)}
        found.append({name: str(what) for name, what in told.items()})
    return found
