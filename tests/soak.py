"""As many simulated schedules as one likes, on all cores: `make soak`, or

python tests/soak.py --minutes 30              from a random seed on
python tests/soak.py --from 1000000            from this seed on
python tests/soak.py --seed 4711               one schedule again, with what everybody says
python tests/soak.py --free                    those of methods without rounds
python tests/soak.py --long                    long ones, whose nodes must stay together
"""

import argparse
import os
import secrets
import sys
import time
import traceback
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import free_simulated
import simulated
import staying
from epidemic.protocol import events as e

CHUNK = 100
KINDS = {"rounds": simulated, "free": free_simulated, "long": staying}


def replay(worlds, seed):
    """One schedule, told in full."""
    schedule = worlds.drawn(seed)
    print(schedule)
    world = worlds.World(schedule)
    world.do[e.Say] = lambda node, action: print(f"{world.now / e.SECOND:10.6f}  node {node.place}: {action.text}")
    world.play()
    for node in world.nodes:
        state = (
            f"still {node.protocol.phase} in {node.protocol.unit} {node.protocol.round}"
            if node.running
            else node.outcome
        )
        print(f"node {node.place}: {state or 'crashed'}")
    worlds.run(seed)
    print("all laws hold")


def chunk(kind, first):
    """The seeds of a chunk that break a law, and how."""
    found = []
    for seed in range(first, first + CHUNK):
        try:
            KINDS[kind].run(seed)
        except Exception:
            found.append((seed, traceback.format_exc(limit=-1).strip().splitlines()[-1]))
    return found


def soak(first, minutes, kind):
    """Chunk after chunk until the time is over; the number of broken schedules."""
    start, seeds, broken = time.monotonic(), 0, 0
    firsts = iter(range(first, sys.maxsize, CHUNK))
    print(f"from seed {first} on, for {minutes:g} minutes")
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        while time.monotonic() - start < 60 * minutes:
            batch = [next(firsts) for _ in range(8 * (os.cpu_count() or 1))]
            for found in pool.imap_unordered(partial(chunk, kind), batch):
                seeds += CHUNK
                for seed, why in found:
                    broken += 1
                    again = f"python tests/soak.py --seed {seed}" + ("" if kind == "rounds" else f" --{kind}")
                    print(f"seed {seed}: {why}\n    {again}", flush=True)
            rate = seeds / (time.monotonic() - start)
            print(
                f"{seeds} schedules, up to seed {batch[-1] + CHUNK - 1}; {rate:.0f} a second; {broken} broken",
                flush=True,
            )
    return broken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--from", dest="first", type=int, default=None)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--free", dest="kind", action="store_const", const="free", default="rounds")
    parser.add_argument("--long", dest="kind", action="store_const", const="long")
    given = parser.parse_args()
    if given.seed is not None:
        replay(KINDS[given.kind], given.seed)
        return
    first = secrets.randbelow(10**9) if given.first is None else given.first
    sys.exit(1 if soak(first, given.minutes, given.kind) else 0)


if __name__ == "__main__":
    main()
