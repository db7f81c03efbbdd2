"""One rank: every experiment that kinds.json names, in a process group; of some, the way of rows is given, and little may travel at once."""

import json
import sys
from pathlib import Path

import torch.distributed as dist

import epidemic as ep
from epidemic.experiment import load
from epidemic.sharding import communicator, sharded_inbox, transfer

sys.path.insert(0, str(Path.cwd()))
chosen, limits = sharded_inbox.choose, (communicator.LIMIT, transfer.SLAB)
dist.init_process_group("gloo")
for name, settings, way in json.loads(Path("kinds.json").read_text()):
    sharded_inbox.choose = chosen if way is None else lambda *_, way=way: way
    communicator.LIMIT, transfer.SLAB = limits if way is None else (2_000, 10_000)
    if way is not None:  # and go on with more rounds
        ep.simulate(load("base.toml", [*settings, "rounds=3"]), name, progress=False)
    run = ep.simulate(load("base.toml", settings), name, resume=way is not None, progress=False)
    if dist.get_rank() == 0:
        assert len(run.models) == 13  # read from the directory
kinds = {name: settings for name, settings, way in json.loads(Path("kinds.json").read_text()) if way is None}
methods = {
    name: load("base.toml", kinds[f"{name}-None"]) for name in ("el-local", "complete") if dist.get_world_size() == 3
}
if methods:
    print(json.dumps([row.best_accuracy.mean for row in ep.compare(methods, "compared", progress=False).table.rows]))
dist.destroy_process_group()
