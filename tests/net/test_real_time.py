"""Simulated time is real time: the same experiment under the clock and as eight processes, on hosts of their own, with set links.

Every process trains for as long as the clock says that its node does (it sleeps), and what leaves its host leaves at the rate, and comes after the
delay, that the clock has. Compared is when trainings begin and end, which says how long everything else took: sending, waiting, mixing.
"""

from functools import partial

import msgspec
import numpy as np
import pytest
from namespaces import ADDRESS, ClusterThere, eight  # noqa: F401
from sleeping import asleep

import epidemic as ep
from conftest import experiment
from epidemic.algorithms.async_el import AsyncEL
from epidemic.algorithms.gossip_learning import GossipLearning
from epidemic.clock import Clock, CloseDeadline, Links, PerStepCompute
from epidemic.core.rng import Streams
from epidemic.simulator.assembly import world_of
from epidemic.simulator.dry_run import dry_log

SIDES = "abcdefgh"
HOSTS = [f"{ADDRESS[side]}:7400" for side in SIDES]
HIDDEN = 330
LETTER = 4 * (75 * HIDDEN + 10)  # bytes of the model's numbers
TOLERANCE = 0.05


def timed(rounds, algorithm, topology, compute, links, *, stop=0.0, deadline=None):
    """An experiment whose clock is what the processes and links of its deployment are like, too."""
    ends = {"stop": stop, "evaluate": stop} if deadline is None else {"close": CloseDeadline(seconds=deadline)}
    return experiment(
        nodes=8,
        rounds=rounds,
        data=ep.Digits(),
        model=ep.PythonModel("sleeping:Sleeper", options={"hidden": HIDDEN}),
        algorithm=algorithm,
        topology=topology,
        eval=ep.Eval(every=rounds, samples=100),
        clock=Clock(compute=compute, links=links, **ends),
        network=ep.Network() if deadline is None else ep.Network(close=CloseDeadline(seconds=deadline)),
    )


CASES = {
    # a message takes a quarter of a second of the uplink, so that some miss the deadline
    "deadline": timed(
        12,
        ep.LocalSGD(local_steps=1),
        ep.ELLocal(2),
        PerStepCompute(median=0.7, sigma=0.3),
        Links(uplink=3.0, latency=0.1),
        deadline=0.5,
    ),
    # nodes wait for messages
    "async-el": timed(
        8,
        AsyncEL(local_steps=1, wait=True),
        ep.ELLocal(1),
        PerStepCompute(median=0.5, sigma=0.1),
        Links(uplink=2.0, latency=0.3),
        stop=14.0,
    ),
    # trainings begin when messages come
    "gossip-learning": timed(
        8,
        GossipLearning(local_steps=1, period=0.8, start_trained=True),
        ep.ELLocal(1),
        PerStepCompute(median=0.4, sigma=0.3),
        Links(uplink=1.1, latency=0.1),
        stop=10.0,
    ),
}


def simulated(what):
    """When each node trains, in seconds."""
    spans, _ = dry_log(what, what.seeds[0], LETTER, what.clock.stop or 1000.0)
    return [[(s.start, s.end) for s in spans if s.node == i and s.kind == "training"] for i in range(8)]


def deployed(there, network):
    """The same of processes."""
    what = there.experiment
    environments = asleep(there.folders, world_of(what, Streams(what.seeds[0])), what.algorithm.local_steps)
    network.rate, network.delay = what.clock.links.uplink * 125_000, what.clock.links.latency
    there.cluster = ClusterThere(there.folders, [network.names[side] for side in SIDES], environments)
    there.finish()
    assert there.cluster.problems() == {}
    lines = [(folder / "slept").read_text().splitlines() for folder in there.folders]
    return [[tuple(map(float, line.split())) for line in node] for node in lines]


def duration(trainings, rounds):
    """Seconds until the mean node has trained so often, from when the nodes began."""
    ends = sorted(end for node in trainings for _, end in node)
    return ends[rounds * len(trainings) - 1] - float(np.mean([node[0][0] for node in trainings]))


def median_round(trainings):
    """Seconds from the beginning of a training to that of the node's next one."""
    return float(np.median(np.concatenate([np.diff([start for start, _ in node]) for node in trainings])))


@pytest.mark.parametrize("what", CASES.values(), ids=CASES)
def test_a_deployment_takes_as_long_as_the_clock_says(what, deploy, eight):  # noqa: F811
    expected, found = simulated(what), deployed(deploy(what, hosts=HOSTS), eight)
    for measured in (partial(duration, rounds=what.rounds), median_round):
        assert measured(found) == pytest.approx(measured(expected), rel=TOLERANCE)
    # links count: without them it would be another time
    clock = msgspec.structs.replace(what.clock, links=Links())
    ideal = simulated(msgspec.structs.replace(what, clock=clock))
    assert duration(ideal, what.rounds) < (1 - 2 * TOLERANCE) * duration(expected, what.rounds)
