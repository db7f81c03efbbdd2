"""Memory of a rank: of one simulation on 1, 2 and 4 ranks, beside its share of the nodes and beside what `epidemic plan` says.

Every rank is looked at every few milliseconds from outside, while it trains, exchanges, evaluates, saves checkpoints and writes the models. Private memory is
what no other process shares (RssAnon), resident memory all of it, with the libraries and mapped files.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.sizes import sized
from benchmarks.timing import verdict

NODES, PARAMETERS = sized(1000, 8), 89_834
FILE = f"""
name = "shares"
nodes = {NODES}
rounds = 2
data = {{kind = "arrays", path = "noise.npz"}}
partition = {{kind = "iid"}}
algorithm = {{lr = 0.05, local_steps = 1, batch_size = 1}}
runtime = {{strategy = "per-node", threads = 1}}
model = {{kind = "gn-lenet"}}
eval = {{every = 2, samples = 2}}
topology = {{kind = "el-local", s = 7}}
checkpoint = {{rounds = 1}}
"""
SIZES = {"train": 8 * NODES, "test": 10}
CONSTANT = 0.5
"""GB that a process has besides its share: half of it Python, PyTorch and training, half of it columns of all models whose disagreement is computed, and what is on
its way between ranks; the same for any number of nodes from a thousand on."""


def run() -> bool:
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        (where / "shares.toml").write_text(FILE)
        rng = np.random.default_rng(0)
        arrays = {f"{part}_x": rng.random((size, 3, 32, 32), dtype=np.float32) for part, size in SIZES.items()}
        labels = {f"{part}_y": rng.integers(0, 10, size) for part, size in SIZES.items()}
        np.savez(where / "noise.npz", **arrays, **labels)
        rows = 2 * 4 * NODES * PARAMETERS + sum(a.nbytes for a in arrays.values())  # models, mixtures, data
        within, planned = [], []
        for ranks in sized((1, 2, 4), (1, 2)):
            private, resident = _peaks(where, ranks)
            plan = json.loads(_output(where, "plan", "shares.toml", "--ranks", ranks, "--json"))["memory_in_all"] / 1e9
            share = rows / ranks / 1e9
            print(
                f"{ranks} ranks, GB of the largest: private {private:.3f}, share {share:.3f}, share and constant {share + CONSTANT:.3f};"
                f" resident {resident:.3f}, planned {plan:.3f}"
            )
            within.append(max(private / (share + CONSTANT), (share + CONSTANT) / private))
            planned.append(max(resident / plan, plan / resident))
    return all(
        [
            verdict(
                "private memory of a rank, of its share and the constant, or the other way round",
                max(within),
                1.15,
                at_most=True,
            ),
            verdict(
                "resident memory of a rank, of what is planned, or the other way round",
                max(planned),
                1.15,
                at_most=True,
            ),
        ]
    )


def _peaks(where: Path, ranks: int) -> tuple[float, float]:
    """The most private and resident memory of any rank, in GB."""
    words = ["run", "shares.toml", "--out", f"on{ranks}", "-q", *(["--ranks", str(ranks)] if ranks > 1 else [])]
    process = subprocess.Popen([sys.executable, "-m", "epidemic", *words], cwd=where, stdout=subprocess.DEVNULL)
    private = resident = 0
    while process.poll() is None:
        for pid in _ranks_of(process.pid) if ranks > 1 else [process.pid]:
            found = _memory_of(pid)
            private, resident = max(private, found[0]), max(resident, found[1])
        time.sleep(0.005)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return private / 1e9, resident / 1e9


def _ranks_of(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in children]


def _memory_of(pid: int) -> tuple[int, int]:
    """Bytes that are private now, and the most that were resident; 0 of a process that is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    found = [re.search(rf"{name}:\s+(\d+) kB", status) for name in ("RssAnon", "VmHWM")]
    private, resident = (0 if one is None else int(one[1]) * 1024 for one in found)
    return private, resident


def _output(where: Path, *words: object) -> str:
    command = [sys.executable, "-m", "epidemic", *map(str, words)]
    return subprocess.run(command, cwd=where, check=True, capture_output=True, text=True).stdout
