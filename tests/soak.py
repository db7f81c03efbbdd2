"""As many simulated schedules and examples of laws as one likes, all of them fresh, on all cores: `make soak`, or

python tests/soak.py --minutes 30              schedules of the round protocol, from a random seed on
python tests/soak.py --from 1000000            from this seed on
python tests/soak.py --seed 4711               one schedule again, with what everybody says
python tests/soak.py --free                    those of methods without rounds
python tests/soak.py --long                    long ones, whose nodes must stay together
python tests/soak.py --random                  random experiment files: each runs and goes on, or is refused in one line
python tests/soak.py --examples                other examples of every law that Hypothesis checks; what it finds becomes an @example
python tests/soak.py --everything              a share of the time for each of these
"""

import argparse
import os
import secrets
import subprocess
import sys
import time
import traceback
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import asynchronous_simulated
import drawn
import simulated
import staying
from epidemic.protocol import events as e

CHUNK = 100
KINDS = {"rounds": simulated, "free": asynchronous_simulated, "long": staying, "random": drawn}
SLOW = ("long", "random")
TESTS = Path(__file__).parent


def replay(worlds, seed):
    """One schedule, told in full."""
    schedule = worlds.drawn(seed)
    print(schedule)
    if worlds is drawn:
        print(*worlds.judged(seed))
        return
    world = worlds.World(schedule)
    world.do[e.Say] = lambda node, action: print(f"{world.now / e.SECOND:10.6f}  node {node.node_id}: {action.text}")
    world.play()
    for node in world.nodes:
        state = (
            f"still {node.protocol.phase} in {node.protocol.unit} {node.protocol.round}"
            if node.running
            else node.outcome
        )
        print(f"node {node.node_id}: {state or 'crashed'}")
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


def soak(first, minutes, kind, jobs):
    """Chunk after chunk until the time is over; the number of broken schedules."""
    start, seeds, broken = time.monotonic(), 0, 0
    firsts = iter(range(first, sys.maxsize, CHUNK))
    print(f"{kind}: from seed {first} on, for {minutes:g} minutes", flush=True)
    with get_context("spawn").Pool(jobs) as pool:
        while time.monotonic() - start < 60 * minutes:
            batch = [next(firsts) for _ in range(jobs if kind in SLOW else 8 * jobs)]
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


def explore(minutes, jobs):
    """Examples that no run of the tests has seen, time after time until the time is over; whether a law was broken."""
    end, seed = time.monotonic() + 60 * minutes, secrets.randbelow(10**9)
    while (left := end - time.monotonic()) > 0:
        print(f"examples: from seed {seed} on", flush=True)
        words = ["-m", "hypothesis", "--hypothesis-profile", "explore", "--hypothesis-seed", str(seed), "-n", str(jobs)]
        tests = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words, "--maxfail", "1", *sorted(TESTS.glob("test_*.py"))]
        )
        try:
            if tests.wait(left):
                return 1
        except subprocess.TimeoutExpired:
            tests.terminate()
            tests.wait()
        seed += 1
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--from", dest="first", type=int, default=None)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--free", dest="kind", action="store_const", const="free", default="rounds")
    parser.add_argument("--long", dest="kind", action="store_const", const="long")
    parser.add_argument("--random", dest="kind", action="store_const", const="random")
    parser.add_argument("--examples", dest="kind", action="store_const", const="examples")
    parser.add_argument("--everything", dest="kind", action="store_const", const="everything")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.seed is not None:
        replay(KINDS[given.kind], given.seed)
        return
    first = secrets.randbelow(10**9) if given.first is None else given.first
    kinds = [*KINDS, "examples"] if given.kind == "everything" else [given.kind]
    broken = 0
    for kind in kinds:
        minutes = given.minutes / len(kinds)
        broken += explore(minutes, given.jobs) if kind == "examples" else soak(first, minutes, kind, given.jobs)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
