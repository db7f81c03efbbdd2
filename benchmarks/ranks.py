"""Ranks: their exchange beside what gloo can move, and two of them, of one thread each, against one process with two threads.

The exchange is that of 96 nodes of 100,000 numbers, by every way; rounds are those of GN-LeNet on 96 nodes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.sizes import sized
from benchmarks.timing import verdict

FILE = f"""
name = "ranks"
nodes = {sized(96, 8)}
rounds = {sized(3, 1)}
data = {{kind = "arrays", path = "noise.npz"}}
partition = {{kind = "iid"}}
algorithm = {{lr = 0.05, local_steps = 3, batch_size = 8}}
runtime = {{strategy = "per-node"}}
model = {{kind = "gn-lenet"}}
eval = {{every = 1, samples = 10}}
topology = {{kind = "el-local", s = 7}}
"""

SIZES = {"train": sized(9600, 96), "test": 100}


def run() -> bool:
    for count in sized((2, 4), (2,)):
        _exchanges(count)
    return _rounds()


def _exchanges(count: int) -> None:
    """Print, for every way, how long mixing takes and how long its bytes would."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.exchanging"],
            cwd=Path(__file__).resolve().parents[1],
            env={**os.environ, **group, "RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(count)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"ranks ended with {[rank.returncode for rank in ranks]}")
    found = json.loads(said[0])
    rate = found["rate"]
    print(f"{count} ranks, {rate / 1e9:.2f} GB/s of gloo between them; 96 rows of 400 kB:")
    for one in found["exchanges"]:
        limit = one["bytes"] / rate
        print(
            f"  {one['graph']} by {one['way']}{' (chosen)' if one['chosen'] else ''}: {one['bytes'] / 1e6:.1f} MB in {1e3 * one['seconds']:.1f} ms,"
            f" limit {1e3 * limit:.1f} ms ({one['seconds'] / limit:.1f} times); with its arithmetic {1e3 * one['mixed']:.1f} ms"
        )


def _rounds() -> bool:
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        (where / "ranks.toml").write_text(FILE)
        rng = np.random.default_rng(0)
        arrays = {f"{part}_x": rng.random((size, 3, 32, 32), dtype=np.float32) for part, size in SIZES.items()}
        labels = {f"{part}_y": rng.integers(0, 10, size) for part, size in SIZES.items()}
        np.savez(where / "noise.npz", **arrays, **labels)
        shared = alone = float("inf")
        for attempt in range(sized(2, 1)):
            alone = min(alone, _seconds(where, f"alone{attempt}", ["--set", "runtime.threads=2"]))
            shared = min(shared, _seconds(where, f"shared{attempt}", ["--set", "runtime.threads=1", "--ranks", "2"]))
    print(f"GN-LeNet, 96 nodes, seconds a round: two threads {alone:.3f}, two ranks {shared:.3f}")
    return verdict("rounds per second of two ranks, of two threads", alone / shared, 0.9, at_most=False)


def _seconds(where: Path, out: str, words: list[str]) -> float:
    """Of the fastest round: planning, training and mixing."""
    command = [sys.executable, "-m", "epidemic", "run", "ranks.toml", "--out", out, "-q", *words]
    subprocess.run(command, cwd=where, check=True, stdout=subprocess.DEVNULL)
    lines = (where / out / "seed-1" / "timings.jsonl").read_text().splitlines()
    rounds = [json.loads(line)["seconds"] for line in lines[1:]]
    return min(sum(seconds.get(phase, 0.0) for phase in ("plan", "train", "mix")) for seconds in rounds)
