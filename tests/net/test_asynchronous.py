"""Methods without rounds as real processes: they learn, end at their stop, bear that some of them die, and go on after a restart."""

import msgspec
import numpy as np
import pytest
from namespaces import ClusterThere
from sleeping import asleep

import epidemic as ep
from conftest import experiment
from epidemic.algorithms.ad_psgd import ADPSGD
from epidemic.algorithms.async_el import AsyncEL
from epidemic.algorithms.divshare import DivShare
from epidemic.algorithms.gossip_learning import GossipLearning
from epidemic.clock import Clock, ConstantCompute
from epidemic.core.rng import Streams
from epidemic.simulator.assembly import world_of


def free(algorithm, nodes=8, stop=10.0, **changed):
    usual = {"topology": ep.ELLocal(1) if isinstance(algorithm, ADPSGD) else ep.ELLocal(2)}
    clock = Clock(stop=stop, evaluate=stop / 4)
    return experiment(**{**usual, "nodes": nodes, "algorithm": algorithm, "clock": clock, **changed})


def check_books(there, node_ids):
    """Every message that counted was used, dropped or is held; and no more of them counted than were sent."""
    sent = counted = 0
    for node_id in node_ids:
        node = there.node(node_id)
        messages = node["messages"]
        held = messages.get("counted", 0) - messages.get("used", 0) - messages.get("wasted", 0)
        assert 0 <= held <= 2 * there.experiment.nodes * there.experiment.algorithm.parts
        sent += node["bytes"]["header"] // 256 + node["local"]
        counted += messages.get("counted", 0)
    assert 0 < counted <= sent


def test_two_of_eight_die_one_returns_and_the_others_do_not_notice(deploy):
    what = free(AsyncEL(lr=0.05, local_steps=5), stop=14.0, checkpoint=ep.Checkpoint(seconds=0.5))
    there = deploy(what).start()
    # two seconds: the checkpoint that it goes on from was saved meanwhile
    there.until(
        lambda found: all(p in found and (found[p].trained or 0) > 10 and found[p].round >= 2 for p in range(8))
    )
    for node_id in (2, 5):
        there.cluster.kill(node_id)
    alive = [0, 1, 3, 4, 6, 7]
    fell = there.until(lambda found: all(p in found and found[p].alive == 6 for p in alive))
    assert all(found.state == "learning" for found in fell.values())
    there.cluster.restart(2)
    there.finish()
    assert set(there.cluster.problems()) == {5}
    check_books(there, [*alive, 2])
    for node_id in alive:
        assert there.summary(node_id)["seconds"] == 14.0
        assert any("node 5 is gone" in line for line in there.log(node_id))
    went_on = [line for line in there.log(2) if "resuming after" in line]
    assert went_on, there.log(2)
    assert int(went_on[0].split("resuming after ")[1].split()[0]) > 0
    assert not any("took the model" in line for line in there.log(2))  # it had its own
    assert there.summary(2)["seconds"] == 14.0
    accuracy = [there.summary(p)["final_accuracy"]["mean"] for p in (*alive, 2)]
    assert np.mean(accuracy) > 0.45, accuracy  # the initial model's is about 0.1


@pytest.mark.parametrize(
    "algorithm",
    [
        AsyncEL(lr=0.1, local_steps=4),
        GossipLearning(lr=0.1, local_steps=4, period=0.1),
        ADPSGD(lr=0.1, local_steps=4, patience=0.5),
        DivShare(lr=0.1, local_steps=4, fragments=3),
    ],
    ids=lambda algorithm: algorithm.called,
)
def test_eight_learn_as_much_as_under_the_clock_though_two_of_them_are_killed(deploy, algorithm):
    """Trainings take 0.08 s, because they sleep; the interval is that of six simulated seeds."""
    what = free(
        algorithm,
        stop=5.0,
        data=ep.Digits(),
        partition=ep.IID(),
        model=ep.PythonModel("sleeping:Sleeper", options={"hidden": 32}),
    )
    clock = Clock(stop=5.0, evaluate=2.5, compute=ConstantCompute(seconds=0.02))
    what = msgspec.structs.replace(what, clock=clock)
    there = deploy(what)
    there.cluster = ClusterThere(there.folders, [None] * 8, asleep(there.folders, world_of(what, Streams(1)), 4))
    # late enough that the simulation, in which nobody dies, still says what to expect
    there.until(lambda found: all(p in found and (found[p].trained or 0) > 35 for p in range(8)))
    for node_id in (2, 5):
        there.cluster.kill(node_id)
    there.finish()
    alive = [0, 1, 3, 4, 6, 7]
    assert set(there.cluster.problems()) == {2, 5}
    found = [there.summary(node_id) for node_id in alive]
    trained = np.mean([summary["rounds"] for summary in found])
    assert min(summary["rounds"] for summary in found) > 0.6 * 5.0 / 0.08  # the machine may be busy
    assert {summary["seconds"] for summary in found} == {5.0}
    clock = msgspec.structs.replace(
        clock, compute=ConstantCompute(seconds=5.0 / trained / 4)
    )  # so many under the clock
    simulated = ep.simulate(msgspec.structs.replace(what, clock=clock, seeds=list(range(1, 7))))
    expected = [seed.summary.final_accuracy.mean for seed in simulated.seeds]
    accuracy = np.mean([summary["final_accuracy"]["mean"] for summary in found])
    assert abs(accuracy - np.mean(expected)) < 5 * np.std(expected, ddof=1)


@pytest.mark.parametrize(
    "algorithm",
    [
        GossipLearning(lr=0.05, local_steps=5, period=0.1, parts=3),
        ADPSGD(lr=0.05, local_steps=5),
        DivShare(lr=0.05, local_steps=5, fragments=4, momentum=0.5),
        AsyncEL(lr=0.005, local_steps=5, optimizer="adam", schedule={"kind": "cosine", "rounds": 500, "warmup": 3}),
    ],
    ids=lambda algorithm: algorithm.called,
)
def test_every_method_learns_with_two_places_in_a_process(deploy, algorithm):
    there = deploy(free(algorithm, nodes=4, stop=4.0)).start(processes=2)
    there.finish()
    assert there.cluster.problems() == {}
    check_books(there, range(4))
    for node_id in range(4):
        assert there.node(node_id)["refusals"].keys() <= {"overflow"}
        assert there.summary(node_id)["rounds"] > 3
    losses = [there.summary(p)["best_loss"] for p in range(4)]
    assert np.mean(losses) < 2.2, losses  # 2.3 is that of guessing


def test_asynchronous_el_learns_by_a_trimmed_mean_and_refuses_what_the_simulator_refuses(deploy):
    what = free(
        AsyncEL(lr=0.05, local_steps=5), nodes=6, stop=5.0, topology=ep.ELLocal(4), aggregation=ep.TrimmedMean(f=1)
    )
    there = deploy(what).start(processes=3).finish()
    assert there.cluster.problems() == {}
    check_books(there, range(6))
    assert np.mean([there.summary(node_id)["final_accuracy"]["mean"] for node_id in range(6)]) > 0.4
    with pytest.raises(ep.BadInput, match="says nothing of two models"):
        free(GossipLearning(merge="average"), aggregation=ep.Median())
