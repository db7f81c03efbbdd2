"""Two hosts whose connection splits and heals, loses packets and delays them."""

import json
import re
import time

import numpy as np
from namespaces import ADDRESS, ClusterThere, link  # noqa: F401

import epidemic as ep
from conftest import experiment
from epidemic.clock import CloseAdaptive
from test_faults import DEADLINE, accuracies, check_books

SIDES = "aaaabbbb"
HOSTS = [f"{ADDRESS[side]}:{7400 + i}" for i, side in enumerate(SIDES)]


def start(there, link):  # noqa: F811
    there.cluster = ClusterThere(there.folders, [link.names[side] for side in SIDES])
    return there


def rounds(there):
    """The last evaluated round of each node."""
    found = []
    for i in range(len(there.folders)):
        path = there.run(i) / "records.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        found.append(json.loads(lines[-1])["round"] if lines else -1)
    return np.array(found)


def until(condition, patience=60):
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


def sees(there, node_id):
    """Whom a node sees, by what it has said so far: everybody at first, then who went and who came."""
    found = set(range(len(there.folders))) - {node_id}
    for line in there.log(node_id):
        change = re.search(r"node (\d+) is (gone|there)$", line)
        if change is not None:
            (found.add if change[2] == "there" else found.discard)(int(change[1]))
    return found


def pairs(there):
    """Of every ordered pair, those where the first sees the second."""
    return {(a, b) for a in range(len(there.folders)) for b in sees(there, a)}


def test_halves_go_on_while_they_are_cut_off_and_find_each_other_again(deploy, link):  # noqa: F811
    what = experiment(
        nodes=8,
        rounds=700,
        eval=ep.Eval(every=10, samples=200),
        network=ep.Network(close=CloseAdaptive(deadline=DEADLINE)),
    )
    there = start(deploy(what, hosts=HOSTS), link)
    until(lambda: rounds(there).min() >= 20)
    link.cut = True
    cut = rounds(there)
    everyone = {(a, b) for a in range(8) for b in range(8) if a != b}
    within = {(a, b) for a, b in everyone if SIDES[a] == SIDES[b]}
    until(lambda: pairs(there) == within)  # everyone has noticed
    until(lambda: (rounds(there) >= cut + 50).all())  # and both halves go on
    link.cut = False
    until(lambda: pairs(there) == everyone)  # each of them sees each other one again
    assert rounds(there).max() < 700
    there.finish()
    assert there.cluster.problems() == {}
    check_books(there, range(8))
    halves = [np.median(accuracies(there, [i for i in range(8) if SIDES[i] == side])) for side in sorted(set(SIDES))]
    assert abs(halves[0] - halves[1]) < 0.1  # they agree again


def test_five_percent_loss_and_fifty_milliseconds_delay(deploy, link):  # noqa: F811
    what = experiment(nodes=8, rounds=40, network=ep.Network(close=CloseAdaptive(deadline=DEADLINE)))
    link.loss, link.delay = 0.05, 0.05
    there = start(deploy(what, hosts=HOSTS), link)
    there.finish(200)
    assert there.cluster.problems() == {}
    assert link.dropped > 50
    assert 0.03 < link.dropped / link.packets < 0.07
    check_books(there, range(8))
    counted = sum(there.node(i)["messages"]["counted"] for i in range(8))
    assert counted > 0.8 * 8 * 40 * 4  # TCP repairs the loss; a few messages are too late
    simulated = ep.simulate(what).seeds[0].summary.final_accuracy.mean
    assert abs(np.mean(accuracies(there, range(8))) - simulated) < 0.05
