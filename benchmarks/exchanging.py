"""One rank of a benchmark: how long mixing on ranks takes by each way, beside the time in which gloo moves as many bytes between the same ranks.

Started by `benchmarks.ranks`, once for each rank; the first one prints what was found as JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.sizes import sized
from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers
from epidemic.mixing import Weights, weights
from epidemic.sharding import routing, sharded_inbox, transfer
from epidemic.sharding.communicator import Communicator
from epidemic.sharding.transfer import Transfer
from epidemic.topology import ELLocal, Ring

NODES, NUMBERS, REPEAT = 96, sized(100_000, 1_000), sized(30, 1)
PIECE = sized(16 << 20, 1 << 16)  # bytes that each rank sends to each other one to measure what gloo can do


def main() -> None:
    dist.init_process_group("gloo")
    ranks, workers = Transfer(Communicator()), Workers(1)
    graphs = {
        "ring": Ring().graph(NODES, 0, Streams(1)),
        "EL-Local, s = 7": ELLocal(7).graph(NODES, 0, Streams(1)),
        "complete": Graph.complete(NODES),
    }
    counts = np.diff(routing.bounds_of(NODES, ranks.count)).tolist()
    own = torch.randn(counts[ranks.rank], NUMBERS, generator=torch.Generator().manual_seed(ranks.rank))
    moving = plain(ranks.count)
    choose = sharded_inbox.choose
    found = []
    for name, graph in graphs.items():
        w = weights("uniform", graph)
        chosen = choose(None if w.matrix is None else routing.Needs.of(w, counts), counts, NUMBERS)
        for way in (routing.SUM, routing.COLUMNS) if w.matrix is None else (routing.ROWS, routing.COLUMNS):
            sharded_inbox.choose = lambda *_, way=way: way
            work = partial(exchange, ranks, own, w, counts, workers)
            bare, whole, alone = slowest(moving), slowest(work), slowest(partial(without_arithmetic, work))
            moved = 4 * cost(w, counts, way)
            found.append(
                {
                    "graph": name,
                    "way": way,
                    "chosen": chosen == way,
                    "bytes": moved,
                    "bare": bare,
                    "seconds": alone,
                    "mixed": whole,
                }
            )
    if ranks.rank == 0:
        rate = (ranks.count - 1) * PIECE / min(one["bare"] for one in found)
        print(json.dumps({"rate": rate, "exchanges": found}))
    workers.close()
    dist.destroy_process_group()


def without_arithmetic(work: Callable[[], None]) -> None:
    """The same rows and columns travel, and nothing is added up."""
    kept = sharded_inbox.added, sharded_inbox.mix, transfer.shared_row, transfer.taken
    sharded_inbox.added, sharded_inbox.mix = (
        lambda _matrix, _x, _workers, out: out,
        lambda _weights, x, _workers, _out: x,
    )
    transfer.shared_row, transfer.taken = lambda _weights, members: members[:1], lambda _weights, row, _takers: row
    try:
        work()
    finally:
        sharded_inbox.added, sharded_inbox.mix, transfer.shared_row, transfer.taken = kept


def exchange(ranks: Transfer, own: torch.Tensor, w: Weights, counts: list[int], workers: Workers) -> None:
    """One round's mixtures of the nodes of this rank."""
    out = torch.empty_like(own)
    sharded_inbox.ShardedInbox(ranks, {"x": own}, w, counts, None, workers, lambda *_: out).mean("x")


def plain(count: int) -> Callable[[], None]:
    """Bytes from everybody to everybody else, and nothing besides."""
    sent, got = torch.zeros(count * PIECE, dtype=torch.uint8), torch.zeros(count * PIECE, dtype=torch.uint8)
    sizes = [0 if other == dist.get_rank() else PIECE for other in range(count)]
    sent, got = sent[: sum(sizes)], got[: sum(sizes)]
    return lambda: dist.all_to_all_single(got, sent, sizes, sizes)


def slowest(work: Callable[[], object]) -> float:
    """Seconds of the rank that takes longest, in the best of several repetitions."""
    best = float("inf")
    for _ in range(REPEAT):
        dist.barrier()
        begin = time.perf_counter()
        work()
        seconds = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        best = min(best, float(seconds))
    return best


def cost(w: Weights, counts: list[int], way: str) -> int:
    if way == routing.COLUMNS:
        return routing.by_columns(counts, NUMBERS)
    if way == routing.SUM:
        return routing.by_sum(routing.members_of(w, counts), NUMBERS)
    return routing.by_rows(routing.Needs.of(w, counts), NUMBERS)


if __name__ == "__main__":
    main()
