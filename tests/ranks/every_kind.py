"""One rank: every experiment that kinds.json names, by `ep.simulate` inside a process group; of some, the way of their rows is given."""

import json
import sys
from pathlib import Path

import torch.distributed as dist

import epidemic as ep
from epidemic.experiment import load
from epidemic.host import sharded

sys.path.insert(0, str(Path.cwd()))
chosen = sharded.choose
dist.init_process_group("gloo")
for name, settings, way in json.loads(Path("kinds.json").read_text()):
    sharded.choose = chosen if way is None else lambda *_, way=way: way
    ep.simulate(load("base.toml", settings), name, progress=False)
dist.destroy_process_group()
