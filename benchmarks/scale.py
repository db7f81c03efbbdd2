"""How cost grows: in the nodes, in s, in the parameters, up to what fits here; every row in a process of its own, which gives its peak memory.

Times are of the fastest round of a few. On a shared machine only their ratios say something; where one size takes longer than others are kept
waiting, it is the time of the processor that is taken.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import epidemic as ep
from benchmarks.memory import peak_gigabytes
from benchmarks.sizes import sized
from benchmarks.timing import verdict
from epidemic.core.workers import Workers
from epidemic.data import Dataset, Samples
from epidemic.runtime.mixing_arithmetic import mix
from epidemic.runtime.plan import plan_round
from epidemic.topology import Topology

GN_LENET = 89_834
"""Parameters."""
KINDS: dict[str, Callable[[int], Topology]] = {"el-local": ep.ELLocal, "el-oracle": ep.ELOracle}


def run() -> bool:
    reached = [_growth("el-local"), _growth("el-oracle"), _directions(), _models(), _million()]
    return all(reached)


def _growth(kind: str) -> bool:
    """A graph drawn and rows of 8 numbers mixed, from a thousand nodes to a million."""
    print(
        f"{kind}, s = 7, rows of 8 numbers, one thread: seconds of a processor in a round, and what it adds to the memory"
    )
    print(f"{'nodes':>10} {'draw':>9} {'mix':>9} {'both, per node, relative':>26} {'memory, bytes per node':>24}")
    first = 0.0
    for n in sized((10_000, 100_000, 1_000_000), (100,)):
        found = _apart("mixed", kind, n, 7, 8)
        each = (found["draw"] + found["mix"]) / n
        first = first or each
        print(
            f"{n:>10,} {found['draw']:>9.4f} {found['mix']:>9.4f} {each / first:>26.2f} {found['gigabytes'] * 1e9 / n:>24,.0f}"
        )
    return verdict(
        f"{kind}: a node's share of a round, 1,000,000 nodes relative to 10,000", each / first, 6, at_most=True
    )


def _directions() -> bool:
    """Doubling one of n, s and d at a time."""
    unit = sized(2_000, 50)
    base = {"n": unit, "s": 7, "d": unit}
    print(
        f"mixing, one thread, relative to n = {base['n']:,}, s = {base['s']}, d = {base['d']:,}, time of the processor"
    )
    workers, reached = Workers(1), []
    for name, steps in {"n": (unit, 2 * unit, 4 * unit), "s": (7, 14, 28), "d": (unit, 2 * unit, 4 * unit)}.items():
        works = [_mixing({**base, name: step}, workers) for step in steps]
        times = [min(_processor(work) for _ in range(5)) for work in works]
        shown = ", ".join(
            f"{name} = {step:,}: {seconds / times[0]:.2f}" for step, seconds in zip(steps, times, strict=True)
        )
        print(f"  {shown}")
        reached.append(verdict(f"four times {name}: mixing", times[2] / times[0], 8, at_most=True))
    workers.close()
    return all(reached)


def _processor(work: Callable[[], object]) -> float:
    """Seconds of a processor that it takes, however many others want it."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _mixing(size: dict[str, int], workers: Workers) -> Callable[[], object]:
    n, s, d = size["n"], size["s"], size["d"]
    weights = plan_round(ep.Experiment(nodes=n, topology=ep.ELLocal(s)), ep.Streams(1), 0).weights
    x = torch.ones(n, d)
    out = torch.empty_like(x)
    return lambda: mix(weights, x, workers, out)


def _models() -> bool:
    """GN-LeNets: a local step, a round's mixing, and memory beside what the rows themselves take."""
    print("GN-LeNet, EL-Local s = 7, one local step of 8 samples, all cores: seconds of a round, and peak memory")
    print(
        f"{'nodes':>6} {'train':>8} {'rest':>8} {'rest / train':>13} {'train per node, relative':>25} {'GB':>6} {'rows GB':>8}"
    )
    first, reached = 0.0, True
    for n in sized((125, 250, 500, 1_000), (8,)):
        found = _apart("trained", n)
        each, rows = (
            found["train"] / n,
            3 * 4 * GN_LENET * n / 1e9,
        )  # before and after averaging, and a copy to be saved
        first = first or each
        print(
            f"{n:>6,} {found['train']:>8.2f} {found['rest']:>8.3f} {found['rest'] / found['train']:>13.3f} {each / first:>25.2f}"
            f" {found['gigabytes']:>6.2f} {rows:>8.2f}"
        )
        program = found["gigabytes"] - rows
        reached &= verdict(f"{n:,} nodes: GB besides the rows", program, 1.0, at_most=True)
    return reached


def _million() -> bool:
    """Whole rounds of a million nodes, with the same of a hundred thousand beside them."""
    print(
        "logistic regression of 18 parameters, EL-Local s = 7, one local step of 1 sample: microseconds a node, and peak memory"
    )
    shares = []
    for n in sized((100_000, 1_000_000), (100,)):
        found = _apart("trained", n, "logistic")
        shares.append((found["train"] + found["rest"]) / n)
        print(
            f"{n:>10,} nodes: train {found['train'] / n * 1e6:.2f}, rest {found['rest'] / n * 1e6:.2f}, {found['gigabytes']:.2f} GB"
        )
    return verdict(
        "a node's share of a round, 1,000,000 nodes relative to 100,000", shares[-1] / shares[0], 4, at_most=True
    )


# -- in a process of its own ------------------------------------------------------------------------------------------


def _apart(what: str, *arguments: object) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.scale", what, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def mixed(kind: str, n: str, s: str, d: str) -> dict[str, float]:
    """Seconds of a processor for drawing and for mixing, and what both and the rows have added to the memory."""
    experiment = ep.Experiment(nodes=int(n), topology=KINDS[kind](int(s)))
    streams, workers = ep.Streams(1), Workers(1)
    before = peak_gigabytes()
    x = torch.ones(int(n), int(d))
    out = torch.empty_like(x)
    drawing = min(_processor(partial(plan_round, experiment, streams, t)) for t in range(4))
    plan = plan_round(experiment, streams, 0)
    mixing = min(_processor(lambda: mix(plan.weights, x, workers, out)) for _ in range(4))
    workers.close()
    return {"draw": drawing, "mix": mixing, "gigabytes": peak_gigabytes() - before}


def trained(n: str, kind: str = "gn-lenet") -> dict[str, float]:
    """Seconds of training and of the rest of a round, and the peak of the memory, of a run with its directory."""
    nodes, small = int(n), kind == "logistic"
    noise = torch.Generator().manual_seed(1)
    shape, classes = ((8,), 2) if small else ((3, 32, 32), 10)
    each = 1 if small else 8

    def some(size: int) -> Samples:
        inputs = torch.randint(0, 256, (size, *shape), dtype=torch.uint8, generator=noise)
        return Samples(inputs.numpy(), torch.arange(size).numpy() % classes)

    experiment = ep.Experiment(
        nodes=nodes, topology=ep.ELLocal(7), partition=ep.IID(), model=ep.Logistic() if small else ep.GNLeNet(), rounds=3,
        data=Dataset(some(each * nodes), some(10), tuple(map(str, range(classes))), 2 / 255, -1.0),
        algorithm=ep.LocalSGD(0.05, local_steps=1, batch_size=each), eval=ep.Eval(every=1, samples=10),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as where:
        ep.simulate(experiment, where, progress=False)
        lines = (Path(where) / "seed-1" / "timings.jsonl").read_text().splitlines()
    rounds = [json.loads(line)["seconds"] for line in lines[1:]]
    rest = min(one.get("plan", 0.0) + one.get("mix", 0.0) for one in rounds)
    return {"train": min(one["train"] for one in rounds), "rest": rest, "gigabytes": peak_gigabytes()}


if __name__ == "__main__":
    print(json.dumps({"mixed": mixed, "trained": trained}[sys.argv[1]](*sys.argv[2:])))
