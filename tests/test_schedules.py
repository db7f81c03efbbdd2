"""Whatever the network, the clocks and a single member do, the round protocol keeps its laws: thousands of simulated schedules.

The laws are in `simulated.py`. `make soak` plays as many other schedules as one likes.
"""

import os

import pytest

import simulated

CHUNKS = 50
SCHEDULES = int(os.environ.get("EPIDEMIC_SCHEDULES", "12000"))
"""In one run of the tests; more need more than two minutes of two cores."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_laws_hold_on_every_schedule(chunk):
    each = SCHEDULES // CHUNKS
    for seed in range(chunk * each, (chunk + 1) * each):
        try:
            simulated.run(seed)
        except Exception as problem:
            pytest.fail(f"{problem!r}; replay it: python tests/soak.py --seed {seed}")


@pytest.mark.parametrize("topology", ["base", "matcha", "periodic"])
def test_all_laws_hold_where_some_rounds_leave_nodes_alone_or_join_all(topology):
    for seed in range(120):
        try:
            simulated.run(seed, topology=topology)
        except Exception as problem:
            pytest.fail(f"{problem!r}; schedule {seed} over {topology}")


def test_the_schedules_have_everything_that_can_happen():
    drawn = [simulated.drawn(seed) for seed in range(2000)]
    assert {s.close for s in drawn} == {"adaptive", "deadline", "quorum", "barrier"}
    assert {s.topology for s in drawn} == {"el-local", "el-oracle", "ring"}
    assert {fault[1] for s in drawn for fault in s.faults} == {"crash", "stop", "jump", "split"}
    assert {fault[4] for s in drawn for fault in s.faults if fault[1] == "crash"} == {True, False}
    assert {s.n for s in drawn} >= {2, 3, 12, 24}
    for some in ("private", "cap", "late", "loss", "doubling", "amnesia", "honest_but_one", "calm"):
        assert any(getattr(s, some) for s in drawn), some
    assert any(s.liar is not None and s.faults for s in drawn)
    assert any(s.ids and s.faults for s in drawn)
    assert {len(s.ids) for s in drawn} >= {0, 1, 2, 3}
    assert any(max(s.compute) > 5 * min(s.compute) for s in drawn)
