"""One rank: the first one's directory cannot be read or written at one moment after the other; all ranks must end alike, and still be in step for the next."""

import sys
from pathlib import Path

import torch.distributed as dist

import epidemic as ep
from epidemic.errors import EpidemicError
from epidemic.experiment import load
from epidemic.host.joining import told_by_the_first
from epidemic.host.passing import Passing
from epidemic.host.store import Store

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
    words = {one.decode() for one in Passing()._words(said.encode())}
    if dist.get_rank() == 0:
        print(f"{name}: {' | '.join(sorted(words))}", flush=True)


ep.simulate(load("base.toml", ["rounds=2"]), "begun", progress=False)
for place, settings in (("new", []), ("begun", ["rounds=4"])):
    for name in ("check", "open", "known_device", "known_choice", "announce", "amend", "restore", "records"):
        kept = Store.__dict__[name]
        setattr(Store, name, broken)
        tried(
            f"{place} {name}",
            lambda place=place, settings=settings: ep.simulate(
                load("base.toml", settings), place, resume=True, progress=False
            ),
        )
        setattr(Store, name, kept)
path = Path.read_bytes
Path.read_bytes = broken
tried("told", lambda: told_by_the_first(Path("base.toml")))
Path.read_bytes = path
dist.destroy_process_group()
sys.exit(0)
