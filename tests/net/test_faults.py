"""What goes wrong on real machines: processes die and return, networks split and heal, lose and delay, nodes are slow."""

import json
import os
import signal
import threading
from contextlib import suppress

import msgspec
import numpy as np
import pytest

import epidemic as ep
from conftest import experiment
from epidemic.clock import CloseAdaptive, CloseQuorum
from epidemic.core.rng import Streams

DEADLINE = 10.0
CLOSE = {"adaptive": CloseAdaptive(deadline=2.0), "quorum": CloseQuorum(q=0.5, deadline=2.0)}


def accuracies(there, node_ids):
    return [there.summary(i)["final_accuracy"]["mean"] for i in node_ids]


def check_books(there, node_ids):
    """No message counted twice or in another round: what was counted is what was averaged, and no more than was sent."""
    for i in node_ids:
        node = there.node(i)
        averaged = sum(int(degree) * rounds for degree, rounds in node["in_degree"].items())
        assert averaged == node["messages"].get("counted", 0)
        delivery = there.summary(i)["delivery"]  # of the rounds in which it took part, the same
        assert (delivery["heard"], delivery["rounds"]) == (averaged, sum(node["in_degree"].values()))
        assert delivery["lonely"] <= node["in_degree"].get("0", 0)
        assert sum(node["in_degree"].values()) + node["jumped"] >= there.experiment.rounds
        assert node["longest_wait"] <= DEADLINE + 2  # of waiting for the processor


def test_five_of_sixteen_die_three_return_and_the_rest_never_waits_for_them(deploy, tmp_path):
    what = experiment(
        rounds=260, network=ep.Network(close=CloseAdaptive(deadline=DEADLINE)), checkpoint=ep.Checkpoint(rounds=10)
    )
    there = deploy(what).start()
    there.until_round(60)
    victims, survivors = [1, 4, 7, 10, 13], [0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15]
    for i in victims:
        there.cluster.kill(i)
    fell = there.until_round(90, survivors)
    died = max(s.round for s in fell.values())
    assert all(s.alive == 11 for s in fell.values())  # noticed at once
    for i in victims[:3]:
        there.cluster.restart(i)
    back = there.until(lambda found: all(i in found and found[i].round > 100 for i in victims[:3]))
    assert max(s.alive for s in back.values()) == 14
    there.finish()
    everyone = survivors + victims[:3]
    assert {node_id for node_id, _ in there.cluster.problems().items()} == set(victims[3:])
    check_books(there, everyone)
    for i in victims[:3]:
        assert any("the others are in round" in line and "with another node's model" in line for line in there.log(i))
        assert any("took the model of node" in line for line in there.log(i))
    assert any("node 1 is gone" in line for line in there.log(0))
    # the survivors heard most messages that anybody can have sent to them, and no others
    graphs = [what.topology.graph(16, t, Streams(1)) for t in range(260)]
    senders = [(t, j) for t, graph in enumerate(graphs) for i in survivors for j in graph.into(i).tolist()]
    sent = sum(j not in victims[3:] or t <= died for t, j in senders)
    heard = sum(there.node(i)["messages"]["counted"] for i in survivors)
    assert 0.75 * sent < heard <= sent
    # accuracy as in the simulator under the same crashes
    crashes = [ep.Crash(i, at=60, returns=died + 15 if i in victims[:3] else None) for i in victims]
    ep.simulate(msgspec.structs.replace(what, faults=ep.Faults(crashes=tuple(crashes))), tmp_path / "simulated")
    nodes = json.loads((tmp_path / "simulated/seed-1/nodes.json").read_text())
    simulated = [nodes[i]["final_accuracy"] for i in everyone]
    assert abs(np.mean(accuracies(there, everyone)) - np.mean(simulated)) < 0.05


def test_a_node_ten_times_slower_takes_part_and_does_not_hold_up_the_others(deploy):
    what = experiment(
        nodes=8,
        rounds=120,
        algorithm=ep.LocalSGD(lr=0.05, local_steps=40),
        eval=ep.Eval(every=40, samples=500),
        network=ep.Network(close=CloseAdaptive(deadline=DEADLINE)),
    )
    there = deploy(what).start()
    there.until_round(5, range(8))
    slow, stop = there.cluster.children[3].process.pid, threading.Event()

    def slow_down():  # runs a tenth of the time
        with suppress(ProcessLookupError):
            while not stop.wait(0.15):
                os.kill(slow, signal.SIGSTOP)
                stop.wait(1.35)
                os.kill(slow, signal.SIGCONT)

    brake = threading.Thread(target=slow_down)
    brake.start()
    others = [child for child in there.cluster.children if child.node_id != 3]
    for child in others:
        child.process.join(100)
        assert not child.running
    stop.set()
    brake.join()
    with suppress(ProcessLookupError):
        os.kill(slow, signal.SIGCONT)
    there.finish()
    assert there.cluster.problems() == {}
    check_books(there, range(8))
    assert there.node(3)["jumped"] > 10  # it left rounds out ...
    heard = there.node(3)["messages"]["counted"]
    assert heard > 10  # ... but heard the others
    assert there.node(3)["bytes"]["header"] // 256 > 10  # messages that it sent itself
    assert sum(there.node(i)["lost"] for i in range(8) if i != 3) < 120 * 7 * 4 / 4  # most messages were not its
    took_part = [sum(there.node(i)["in_degree"].values()) for i in range(8)]
    fast = took_part[:3] + took_part[4:]
    assert min(fast) > 0.9 * 120  # they did every round of theirs and went on without it
    assert took_part[3] < min(fast) - 10


def test_a_spare_place_is_filled_later(deploy):
    from epidemic.deploy.addresses import free_addresses

    what = experiment(
        nodes=5, rounds=200, topology=ep.ELLocal(2), network=ep.Network(close=CloseAdaptive(deadline=DEADLINE))
    )
    there = deploy(what, hosts=free_addresses(4))
    address = free_addresses(1)[0]
    toml = there.folders[4] / "node.toml"
    toml.write_text(toml.read_text().replace("0.0.0.0:7447", address))
    there.start(there.folders[:4])
    there.until_round(20, range(4))
    there.cluster.add(4, there.folders[4])
    there.until(lambda found: len(found) == 5 and found[4].round > 20 and found[0].alive == 5)
    there.finish()
    assert there.cluster.problems() == {}
    check_books(there, range(5))
    assert there.node(4)["jumped"] >= 20


def test_on_return_keep_goes_on_with_its_own_model(deploy):
    what = experiment(
        nodes=4,
        rounds=200,
        topology=ep.ELLocal(2),
        faults=ep.Faults(on_return="keep"),
        network=ep.Network(close=CloseAdaptive(deadline=DEADLINE)),
        checkpoint=ep.Checkpoint(rounds=5),
    )
    there = deploy(what).start()
    there.until_round(30, range(4))
    there.cluster.kill(2)
    there.until_round(60, [0])
    there.cluster.restart(2)
    there.finish()
    assert any("with its own model" in line for line in there.log(2))
    assert any("resuming after round" in line for line in there.log(2))
    check_books(there, range(4))


@pytest.mark.parametrize("close", ["adaptive", "quorum"])
def test_with_a_private_coin_nodes_learn_without_knowing_whom_to_expect(deploy, close):
    what = experiment(  # trainings that take longer than messages; otherwise nodes that begin a moment later leave out rounds
        nodes=6, rounds=40, topology=ep.ELLocal(3), algorithm=ep.LocalSGD(lr=0.05, local_steps=60),
        network=ep.Network(coin="private", close=CLOSE[close]),
    )  # fmt: skip
    there = deploy(what).start().finish()
    assert there.cluster.problems() == {}
    assert [there.node(i)["bytes"]["control"] for i in range(6)] == [0] * 6
    sent = [there.node(i)["bytes"]["header"] // 256 for i in range(6)]
    took_part = [sum(there.node(i)["in_degree"].values()) for i in range(6)]
    assert sent == [3 * rounds for rounds in took_part]  # to three others in every round
    assert sum(took_part) > 0.8 * 6 * 40
    heard = sum(there.node(i)["messages"]["counted"] for i in range(6))
    late = sum(there.node(i)["messages"].get("late", 0) for i in range(6))
    assert heard > 0.5 * sum(sent)
    assert heard + late <= sum(sent)
    simulated = ep.simulate(what).seeds[0].summary.final_accuracy.mean
    assert abs(np.mean(accuracies(there, range(6))) - simulated) < 0.06


def test_a_cap_is_kept_by_offers_and_refused_messages_go_elsewhere(deploy):
    what = experiment(
        nodes=8,
        rounds=30,
        topology=ep.ELLocal(3),
        faults=ep.Faults(cap=3, max_retries="unlimited"),
        network=ep.Network(close=CloseAdaptive(deadline=2.0)),
    )
    there = deploy(what).start().finish()
    assert there.cluster.problems() == {}
    degrees = [int(degree) for i in range(8) for degree in there.node(i)["in_degree"]]
    assert max(degrees) == 3
    offers = sum(there.node(i)["bytes"]["control"] for i in range(8)) // 128
    models = sum(there.node(i)["bytes"]["header"] for i in range(8)) // 256
    assert offers >= 8 * 30 * 3
    assert 0.6 * 8 * 30 * 3 < models <= 8 * 30 * 3
    simulated = ep.simulate(what).seeds[0].summary
    assert offers < 2.5 * simulated.bytes.control.mean * 8 / 128
