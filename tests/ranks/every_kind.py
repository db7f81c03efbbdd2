"""One rank: every experiment that kinds.json names, by `ep.simulate` inside a process group.

With LIMIT in the environment, what travels and what is written is cut into pieces of so many bytes, and the run is begun with fewer rounds.
"""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

import epidemic as ep
from epidemic.experiment import load
from epidemic.host import shards

sys.path.insert(0, str(Path.cwd()))
dist.init_process_group("gloo")
limit = int(os.environ.get("LIMIT", "0"))
for name, settings in json.loads(Path("kinds.json").read_text()).items():
    if limit:
        shards.LIMIT = limit
        ep.simulate(load("base.toml", [*settings, "rounds=3"]), name, progress=False)
    run = ep.simulate(load("base.toml", settings), name, resume=bool(limit), progress=False)
    if dist.get_rank() == 0:
        assert len(run.models) == 13  # read from the directory
dist.destroy_process_group()
