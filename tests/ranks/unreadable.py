"""One rank: the first one's directory cannot be read or written at one moment after the other; all ranks must end alike, and still be in step for the next."""

import sys
from pathlib import Path

import torch.distributed as dist

import epidemic as ep
from epidemic.core.errors import EpidemicError
from epidemic.experiment import load
from epidemic.runtime.run_directory import RunDirectory
from epidemic.sharding.communicator import Communicator
from epidemic.sharding.rendezvous import told_by_the_first

dist.init_process_group("gloo")


def broken(*_, **__):
    raise OSError(5, "Input/output error", "somewhere")


def tried(name, work):
    """What came of it, on all ranks in one line."""
    try:
        work()
        said = "nothing"
    except EpidemicError as problem:
        said = f"{type(problem).__name__}: {problem}"
    words = {one.decode() for one in Communicator()._words(said.encode())}
    if dist.get_rank() == 0:
        print(f"{name}: {' | '.join(sorted(words))}", flush=True)


ep.simulate(load("base.toml", ["rounds=2"]), "begun", progress=False)
for place, settings in (("new", []), ("begun", ["rounds=4"])):
    for name in ("check", "open", "known_device", "known_choice", "announce", "amend", "restore", "records"):
        kept = RunDirectory.__dict__[name]
        setattr(RunDirectory, name, broken)
        tried(
            f"{place} {name}",
            lambda place=place, settings=settings: ep.simulate(
                load("base.toml", settings), place, resume=True, progress=False
            ),
        )
        setattr(RunDirectory, name, kept)
path = Path.read_bytes
Path.read_bytes = broken
tried("told", lambda: told_by_the_first(Path("base.toml")))
Path.read_bytes = path
dist.destroy_process_group()
sys.exit(0)
