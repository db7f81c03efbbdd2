"""One rank: every experiment that kinds.json names, by `ep.simulate` inside a process group."""

import json
import sys
from pathlib import Path

import torch.distributed as dist

import epidemic as ep
from epidemic.experiment import load

sys.path.insert(0, str(Path.cwd()))
dist.init_process_group("gloo")
for name, settings in json.loads(Path("kinds.json").read_text()).items():
    ep.simulate(load("base.toml", settings), name, progress=False)
dist.destroy_process_group()
