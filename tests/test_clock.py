"""The simulated clock: times to the microsecond, models to the bit, the order of what happens at the same time, and what must always hold."""

import importlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import epidemic as ep
import epidemic.core.config
import epidemic.simulator.timed_run
from epidemic.algorithms import ALGORITHMS, AsyncEL, AsynchronousMethod, GossipLearning, PushSum
from epidemic.cli import main
from epidemic.clock import (
    Clock,
    CloseBarrier,
    CloseDeadline,
    CloseGlobal,
    CloseQuorum,
    CloseSchedule,
    ConstantCompute,
    DeviceCompute,
    ExponentialChurn,
    Links,
    PerNodeCompute,
    PerStepCompute,
)
from epidemic.core.errors import BadInput, Interrupted, RunFailed
from epidemic.experiment import to_toml
from epidemic.protocol.node import Node
from epidemic.simulator.clocked_rounds import SimulatedRoundContext
from epidemic.simulator.dry_run import dry_run
from epidemic.simulator.trace import Log
from epidemic.topology import TOPOLOGIES, topology_from
from timing import World, dry, play

UNEVEN = Clock(
    compute=PerStepCompute(median=0.1, sigma=0.8), links=Links(uplink=1, downlink=2, latency=0.02, model="duplex")
)


@pytest.fixture(scope="module")
def data():
    return ep.Digits().load()


def small(**changes):
    base = {
        "nodes": 12, "rounds": 4, "topology": ep.ELLocal(3), "data": ep.Digits(), "partition": ep.IID(), "model": ep.Logistic(),
        "algorithm": ep.LocalSGD(lr=0.1, local_steps=2), "eval": ep.Eval(every=2, samples=60),
    }  # fmt: skip
    return ep.Experiment(**{**base, **changes})


@pytest.fixture
def closings(monkeypatch):
    """When each node closed each round, in seconds."""
    found, close = {}, SimulatedRoundContext.close

    def told(self, round, messages, ages):
        found[round, self.id] = (self.now / 1e6, len(messages))
        close(self, round, messages, ages)

    monkeypatch.setattr(SimulatedRoundContext, "close", told)
    return found


def times(closings, round, n=3):
    return [closings[round, node][0] for node in range(n)]


# -- times ------------------------------------------------------------------------------------------------------------


def three(close, model="uplink"):
    links = Links(uplink=8, model=model, order="ascending")  # the world of each test says how fast they are
    return ep.Experiment(nodes=3, rounds=2, topology=ep.Complete(), clock=Clock(close=close, links=links))


@pytest.mark.parametrize(
    ("close", "model", "first", "second"),
    [
        (CloseBarrier(), "uplink", [5.05, 6.05, 4.05], [9.10, 10.10, 10.10]),
        (CloseGlobal(), "uplink", [5.05, 6.05, 4.05], [11.10, 12.10, 10.10]),
        (CloseBarrier(), "fair", [6.05, 6.05, 4.05], None),
    ],
)
def test_the_worked_example_comes_out_to_the_microsecond(close, model, first, second, closings):
    play(dry(three(close, model), World([1, 2, 4], up=1e6, down=1e12 if model == "fair" else np.inf, latency=0.05))[0])
    assert times(closings, 0) == first
    if second:
        assert times(closings, 1) == second


def test_twice_the_rates_take_half_the_time(closings):
    play(dry(three(CloseBarrier()), World([1, 2, 4], up=1e6, latency=0.05))[0])
    slow = dict(closings)
    play(dry(three(CloseBarrier()), World([0.5, 1, 2], up=2e6, latency=0.025))[0])
    assert {key: (at * 2, heard) for key, (at, heard) in closings.items()} == slow


def star(s, model, **links):
    """Node 0 sends s messages at time 1; when they arrive, in seconds."""
    experiment = ep.Experiment(
        nodes=s + 1,
        rounds=1,
        topology=ep.Complete(),
        clock=Clock(links=Links(uplink=8, model=model, order="ascending")),
    )
    size = links.pop("size", 10**6)
    work, log = dry(experiment, World([1] + [1000] * s, **links), size=size)
    play(work)
    return [trip.arrived - 1 for trip in log.trips if trip.sender == 0]


def test_messages_leave_one_after_the_other_or_share_the_uplink():
    assert star(7, "uplink", up=1e6, latency=0.05) == pytest.approx([k + 0.05 for k in range(1, 8)], abs=1e-9)
    assert star(7, "fair", up=1e6, down=1e12, latency=0.05) == pytest.approx([7.05] * 7, abs=2e-6)


def test_the_numbers_of_gn_lenet_at_ten_megabits():
    model, rate = 359_336, 10e6 / 8
    for s, seconds in ((1, 0.2874688), (7, 2.0122816), (14, 4.0245632), (95, 27.309536)):
        assert star(s, "uplink", up=rate, size=model)[-1] == pytest.approx(seconds, abs=1e-6 * s)


def test_the_numbers_of_the_femnist_model():
    assert star(7, "uplink", up=10e6 / 8, size=6_760_184)[-1] == pytest.approx(37.8570304, abs=1e-5)


def test_a_message_of_nothing_costs_its_latency():
    assert star(3, "uplink", up=1e6, latency=0.25, size=0) == [0.25] * 3


def test_narrow_downlinks_take_one_after_the_other():
    experiment = ep.Experiment(
        nodes=4, rounds=1, topology=ep.Complete(), clock=Clock(links=Links(uplink=8, model="duplex", order="ascending"))
    )
    work, log = dry(experiment, World([1] * 4, down=1e6))
    play(work)
    for node in range(4):
        assert sorted(trip.arrived for trip in log.trips if trip.receiver == node) == [2, 3, 4]


def test_without_latency_and_limits_a_round_lasts_as_long_as_its_training(data):
    run = ep.simulate(small(clock=Clock()), data=data)  # two steps of 0.1 s
    assert [record.time.seconds for record in run.records] == pytest.approx([0, 0.4, 0.8])
    assert run.records[-1].time.busy == 1.0


@pytest.mark.parametrize(
    ("close", "topology", "expected"),
    [
        (CloseGlobal(), ep.ELOracle(7), 3.159),
        (CloseBarrier(), ep.ELOracle(7), 2.392),
        (CloseBarrier(), ep.Regular(7), 2.205),
    ],
)
def test_mean_round_of_uneven_steps(close, topology, expected):
    """Of the specification's table, in units of the mean step; one run of 100 rounds each."""
    clock = Clock(compute=PerStepCompute(median=0.1, sigma=0.5, mean_one=True), close=close)
    work = dry_run(ep.Experiment(nodes=96, rounds=100, topology=topology, clock=clock), 1, 4)
    assert work.now / 1e6 / 100 / 0.1 == pytest.approx(expected, rel=0.05)


def test_with_fixed_speeds_waiting_for_neighbours_gains_nothing():
    clock = Clock(compute=PerNodeCompute(median=0.1, sigma=0.5))
    experiment = ep.Experiment(nodes=24, rounds=60, topology=ep.ELLocal(4), clock=clock)
    work = dry_run(experiment, 1, 4)
    slowest = max(work.world.step_cost(node, 0) for node in range(24))
    assert work.now == pytest.approx(60 * slowest, rel=0.02)
    assert work.now >= 60 * slowest


@pytest.mark.parametrize(("algorithm", "topology"), [(AsyncEL(), ep.ELLocal(4)), (ep.ADPSGD(), ep.Complete())], ids=str)
def test_without_rounds_everybody_trains_as_often_as_it_can(algorithm, topology):
    """Where links take no time; so n nodes make sum(1 / c) max(c) / n times as many steps as with a barrier."""
    clock = Clock(compute=PerNodeCompute(median=0.1, sigma=0.5), stop=20.0)
    work = dry_run(ep.Experiment(nodes=24, topology=topology, algorithm=algorithm, clock=clock), 1, 4)
    costs = [algorithm.local_steps * work.world.step_cost(node, 0) for node in range(24)]
    assert [one.rounds for one in work.contexts] == [work.now // cost for cost in costs]


# -- models -----------------------------------------------------------------------------------------------------------

EXTRA = {"el-oracle": {"s": 4}, "el-local": {"s": 4}, "regular": {"s": 4}, "unlucky": {"s": 4}, "d-equistatic": {"m": 3},
         "u-equistatic": {"m": 3}, "every": {"inner": {"kind": "el-local", "s": 2}, "period": 2}, "python": {"factory": "epidemic.topology:Ring"},
         "matcha": {"inner": {"kind": "ring"}}, "periodic": {"inner": {"kind": "base"}, "period": 3}, "peer-swap": {"s": 4}}  # fmt: skip


@pytest.mark.parametrize(
    "kind", [kind for kind in TOPOLOGIES if kind not in ("pull", "fragments")]
)  # refused under a clock
def test_rounds_that_wait_for_every_message_give_the_models_of_the_round_engine(kind, data):
    topology = topology_from({"kind": kind, **EXTRA.get(kind, {})})
    nodes = 8 if kind == "hypercube" else 12
    plain = ep.simulate(small(nodes=nodes, topology=topology), data=data)
    for clock in (UNEVEN, msgspec.structs.replace(UNEVEN, close=CloseGlobal(), links=Links(uplink=3))):
        timed = ep.simulate(small(nodes=nodes, topology=topology, clock=clock), data=data)
        assert torch.equal(timed.models.rows, plain.models.rows)
    assert [msgspec.structs.replace(r, time=None) for r in timed.records] == plain.records  # with a global barrier


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": PushSum(lr=0.1), "topology": ep.ELLocal(4)},
        {"algorithm": ep.LocalSGD(lr=0.1, momentum=0.9, order="combine-then-adapt")},
        {"faults": ep.Faults(loss=0.3)},
        {"mixing": "samples", "partition": ep.Dirichlet(min_samples=1)},
        {"mixing": "samples", "topology": ep.Complete(), "partition": ep.Dirichlet(min_samples=1)},
        {"algorithm": ep.LocalSGD(lr=0.1, sampling="epoch")},
        {"model": ep.SmallCNN(), "nodes": 5},
    ],
    ids=str,
)
def test_the_same_of_other_algorithms_weights_and_faults(changes, data):
    plain = ep.simulate(small(**changes), data=data)
    timed = ep.simulate(small(**changes, clock=UNEVEN), data=data)
    assert torch.equal(timed.models.rows, plain.models.rows)
    assert timed.records[-1].accuracy == plain.records[-1].accuracy


FREE = [kind for kind, one in ALGORITHMS.items() if isinstance(one, type) and issubclass(one, AsynchronousMethod)]
CHURN = msgspec.structs.replace(UNEVEN, churn=ExponentialChurn(mean_on=1.0, mean_off=0.2))
TOPOLOGY_OF = {"gossip-learning": ep.ELLocal(1), "ad-psgd": ep.Complete()}
SETTINGS_OF = {
    "gossip-learning": {"period": 0.2},
    "ad-psgd": {},
    "divshare": {"fragments": 3},
    "async-el": {"momentum": 0.5},
}


def free(kind, **changes):
    algorithm = ALGORITHMS[kind](lr=0.1, **SETTINGS_OF[kind])
    topology = TOPOLOGY_OF.get(kind, ep.ELLocal(3))
    return small(algorithm=algorithm, topology=topology, **{"clock": CHURN, "rounds": 6, **changes})


LATE = {
    "quorum": CloseQuorum(q=0.5, deadline=0.5, late="carry"),
    "deadline": CloseDeadline(seconds=0.1, late="carry", weight="age", catch_up=True),
    "schedule": CloseSchedule(seconds=0.3),
}


def cases():
    yield from ((kind, free(kind)) for kind in FREE)
    for close in (CloseBarrier(), CloseGlobal()):
        yield type(close).__name__, small(clock=msgspec.structs.replace(UNEVEN, close=close))
    yield from (
        (kind, small(clock=msgspec.structs.replace(CHURN, close=close), rounds=6)) for kind, close in LATE.items()
    )


@pytest.fixture
def works(monkeypatch):
    """The clockworks of runs, each with a log."""
    made, make = [], epidemic.simulator.timed_run.assemble

    def telling(*args, **how):
        made.append(make(*args, log=Log(), **how))
        return made[-1]

    monkeypatch.setattr(epidemic.simulator.timed_run, "assemble", telling)
    return made


@pytest.mark.parametrize(("kind", "experiment"), list(cases()), ids=lambda x: x if isinstance(x, str) else "")
def test_a_dry_run_has_the_same_events(kind, experiment, data, works):
    run = ep.simulate(experiment, data=data)
    assert run.records[-1].round > 0
    wet, log = works[0], Log()
    plain = dry_run(experiment, 1, wet.message_bytes, log=log)
    assert log.events == wet.log.events
    assert log.trips == wet.log.trips
    assert (plain.tally.bytes_sent, plain.digest) == (wet.tally.bytes_sent, wet.digest)


@pytest.mark.parametrize(("kind", "experiment"), list(cases()), ids=lambda x: x if isinstance(x, str) else "")
def test_results_do_not_depend_on_how_many_models_are_computed_at_once(kind, experiment, data, monkeypatch):
    together = ep.simulate(experiment, data=data)
    make = epidemic.simulator.timed_run.assemble
    for at_once in (1, 10**9):

        def other(*args, at_once=at_once, **how):
            work = make(*args, **how)
            work.settings = msgspec_replace(work.settings, at_once)
            return work

        monkeypatch.setattr(epidemic.simulator.timed_run, "assemble", other)
        alone = ep.simulate(experiment, data=data)
        assert torch.equal(alone.models.rows, together.models.rows)
        assert alone.records == together.records
        monkeypatch.setattr(epidemic.simulator.timed_run, "assemble", make)


def msgspec_replace(terms, at_once):
    import dataclasses

    return dataclasses.replace(terms, at_once=at_once)


# -- going on ---------------------------------------------------------------------------------------------------------


class Impatient(ep.Callback):
    """Presses Ctrl-C after some rounds."""

    def __init__(self, at):
        self.at = at

    def advanced(self, round, models):
        if round >= self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("kind", "experiment"), list(cases()), ids=lambda x: x if isinstance(x, str) else "")
def test_going_on_gives_the_same_files(kind, experiment, data, tmp_path):
    experiment = msgspec.structs.replace(experiment, name=kind)
    ep.simulate(experiment, tmp_path / "whole", data=data)
    for at in (2, 4):
        with pytest.raises(Interrupted):
            ep.simulate(experiment, tmp_path / "cut", data=data, callbacks=[Impatient(at)], resume=at > 2)
    ep.simulate(experiment, tmp_path / "cut", data=data, resume=True)
    for name in ("records.jsonl", "models.safetensors", "summary.json", "nodes.json"):
        assert (tmp_path / "cut/seed-1" / name).read_bytes() == (tmp_path / "whole/seed-1" / name).read_bytes(), name


def test_kill_minus_9_and_going_on_gives_the_same_files(tmp_path):
    experiment = free(
        "async-el", rounds=120, checkpoint=ep.Checkpoint(rounds=1, seconds=0), eval=ep.Eval(every=4, samples=60)
    )
    file = tmp_path / "e.toml"
    file.write_text(to_toml(experiment))
    assert main(["run", str(file), "--out", str(tmp_path / "whole"), "--quiet"]) == 0
    out = tmp_path / "cut"
    records = out / "seed-1" / "records.jsonl"
    for lines in (2,):
        command = ["--resume", str(out)] if out.exists() else [str(file), "--out", str(out)]
        process = subprocess.Popen([sys.executable, "-m", "epidemic", "run", *command, "--quiet"])
        end = time.monotonic() + 90
        while not (records.exists() and records.read_bytes().count(b"\n") > lines):
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < end
            time.sleep(0.005)
        process.kill()
        process.wait()
    assert main(["run", "--resume", str(out), "--quiet"]) == 0
    for name in ("records.jsonl", "models.safetensors", "summary.json", "nodes.json"):
        assert (out / "seed-1" / name).read_bytes() == (tmp_path / "whole/seed-1" / name).read_bytes(), name


def test_a_world_that_changed_is_noticed(data, tmp_path, monkeypatch):
    with pytest.raises(Interrupted):
        ep.simulate(free("async-el"), tmp_path, data=data, callbacks=[Impatient(3)])
    make = epidemic.simulator.timed_run.assemble

    def slower(*args, **how):
        work = make(*args, **how)
        cost = work.world.step_cost
        work.world.step_cost = lambda node, count: cost(node, count) + (count > 1)
        return work

    monkeypatch.setattr(epidemic.simulator.timed_run, "assemble", slower)
    with pytest.raises(BadInput, match="gave others"):
        ep.simulate(free("async-el"), tmp_path, data=data, resume=True)


def test_a_run_under_a_clock_is_not_made_longer(data, tmp_path):
    ep.simulate(small(clock=UNEVEN), tmp_path, data=data)
    with pytest.raises(BadInput, match="under a clock"):
        ep.simulate(small(clock=UNEVEN, rounds=9), tmp_path, data=data, resume=True)


# -- the order of what happens, and what must hold --------------------------------------------------------------------


def test_a_message_that_arrives_at_the_deadline_is_in_time_and_one_later_is_not(closings):
    """Node 0 has trained at 1; the last message for it comes at 5.05."""
    play(dry(three(CloseDeadline(seconds=4.05)), World([1, 2, 4], up=1e6, latency=0.05))[0])
    assert closings[0, 0] == (5.05, 2)
    play(dry(three(CloseDeadline(seconds=4.049999)), World([1, 2, 4], up=1e6, latency=0.05))[0])
    assert closings[0, 0] == (5.049999, 1)


@pytest.mark.parametrize(("leaves", "fate"), [(5.05, "lost"), (5.050001, "arrived")])
def test_a_message_that_arrives_when_its_receiver_leaves_is_lost(leaves, fate):
    churn = ExponentialChurn(mean_on=1, mean_off=1, transfers="finish")
    experiment = three(CloseDeadline(seconds=100))
    clock = msgspec.structs.replace(experiment.clock, churn=churn)
    experiment = msgspec.structs.replace(experiment, clock=clock, rounds=1)
    work, log = dry(experiment, World([1, 2, 4], up=1e6, latency=0.05, on={0: [leaves, 60]}))
    play(work)
    assert [trip.fate for trip in log.trips if (trip.sender, trip.receiver) == (2, 0)] == [fate]


@pytest.mark.parametrize(("policy", "ends"), [("pause", 6.0), ("abort", 9.0), ("finish", 5.0)])
def test_a_training_rests_begins_again_or_goes_on_while_its_node_is_away(policy, ends):
    """Four seconds of training, away from 3 to 5."""
    churn = ExponentialChurn(mean_on=1, mean_off=1, training=policy)
    clock = Clock(close=CloseDeadline(seconds=1), churn=churn)
    experiment = ep.Experiment(nodes=2, rounds=1, topology=ep.Complete(), clock=clock)
    work, log = dry(experiment, World([4, 4], up=1e9, on={0: [3, 5]}))
    play(work)
    assert [trip.left for trip in log.trips if trip.sender == 0] == [ends]


def test_what_a_node_was_sending_when_it_left_is_lost():
    churn = ExponentialChurn(mean_on=1, mean_off=1)
    clock = Clock(close=CloseDeadline(seconds=50), churn=churn, links=Links(uplink=8, order="ascending"))
    experiment = ep.Experiment(nodes=4, rounds=1, topology=ep.Complete(), clock=clock)
    work, log = dry(experiment, World([1, 9, 9, 9], up=1e6, on={0: [2.5, 4]}))
    play(work)
    assert [(t.receiver, t.fate) for t in log.trips if t.sender == 0] == [(1, "arrived"), (2, "lost"), (3, "lost")]
    assert work.tally.lost == 2


class Forgetful(Node):
    """Takes messages and never says what became of them."""

    def started(self):
        self.context.train()

    def trained(self, row):
        self.context.send(self.context.peers(0), row)
        self.context.train()


def test_messages_that_are_not_accounted_for_end_the_run(monkeypatch):
    monkeypatch.setattr(AsyncEL, "node", lambda self, context: Forgetful(context))
    with pytest.raises(RunFailed, match="messages received"):
        dry_run(free("async-el"), 1, 1000)


def test_a_node_that_still_trains_at_the_end_of_a_round_sends_in_the_next(closings):
    """Rounds of three seconds, trainings of 1, 2 and 4: the third node takes part in every second round."""
    experiment = msgspec.structs.replace(three(CloseSchedule(seconds=3)), rounds=4)
    play(dry(experiment, World([1, 2, 4], up=1e8))[0])
    assert sorted(closings) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    assert {key: heard for key, (_, heard) in closings.items()} == {key: 2 if (key[0] % 2) else 1 for key in closings}
    assert all(at == 3 * (round + 1) for (round, _), (at, _) in closings.items())


def test_a_quorum_goes_on_without_the_slowest(closings):
    play(dry(three(CloseQuorum(q=0.5)), World([1, 2, 4], up=1e6, latency=0.05))[0])
    assert closings[0, 0] == (4.05, 1) or closings[0, 0] == (3.05, 1)


def test_stops_at_a_time_or_at_so_many_bytes(data):
    stopped = ep.simulate(free("async-el", clock=Clock(stop=1.0, evaluate=0.4)), data=data)
    assert [r.time.seconds for r in stopped.records] == [0, 0.4, 0.8, 1.0]
    assert stopped.seeds[0].summary.seconds == 1.0
    full = ep.simulate(free("async-el", clock=Clock(megabytes=0.05)), data=data)
    assert full.records[-2].bytes.total.mean < 50_000 <= full.records[-1].bytes.total.mean


def test_callbacks_are_told_of_simulated_time_and_events(data):
    told = []

    class Listener(ep.Callback):
        def passed(self, seconds, events):
            told.append((seconds, events))

    run = ep.simulate(free("async-el"), data=data, callbacks=[Listener()])
    assert told == sorted(told)
    assert told[-1][0] == run.records[-1].time.seconds
    assert 0 < told[0][1] < told[-1][1]


def test_threads_make_no_difference(data):
    one, many = (ep.simulate(free("async-el", runtime=ep.Runtime(threads=t)), data=data) for t in (1, 3))
    assert torch.equal(one.models.rows, many.models.rows)


@pytest.mark.parametrize("order", ["send-first", "mix-first"])
def test_a_model_in_a_single_fragment_is_the_whole_model(order, data):
    """Its messages are as large as models, and what comes is averaged like models."""
    algorithm = ep.DivShare(lr=0.1, fragments=1, order=order)
    experiment = small(algorithm=algorithm, clock=Clock(links=Links(uplink=1, latency=0.02)), rounds=6)
    last = ep.simulate(experiment, data=data).records[-1]
    assert last.time.messages.used > 0
    assert last.bytes.model.mean == last.time.messages.sent / 12 * 650 * 4


@pytest.mark.parametrize(
    ("algorithm", "close"),
    [(ep.AsyncEL(lr=0.1), CloseBarrier()), (ep.LocalSGD(lr=0.1), CloseDeadline(seconds=60))],
    ids=["async-el", "rounds"],
)
def test_models_that_are_still_equal_are_evaluated_while_somebody_is_away(algorithm, close, data):
    """One evaluation stands for all of them, also for those who are there."""
    churn = ExponentialChurn(mean_on=2.0, mean_off=2.0)
    clock = Clock(compute=ConstantCompute(10.0), churn=churn, close=close, evaluate=1.0, stop=5.0)
    first, *_ = records = ep.simulate(small(algorithm=algorithm, clock=clock), data=data).records
    some = [record.living for record in records if record.living is not None]
    assert some
    for living in some:
        assert living.disagreement == 0.0
        assert living.accuracy.mean == pytest.approx(first.accuracy.mean)
        assert living.loss.mean == pytest.approx(first.loss.mean)


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"algorithm": AsyncEL()}, r"add a \[clock\]"),
        ({"clock": Clock(), "faults": ep.Faults(cap=3)}, "only faults.loss"),
        ({"clock": Clock(churn=ExponentialChurn(mean_on=1, mean_off=1))}, "for ever"),
        ({"clock": Clock(close=CloseQuorum(q=1.0)), "faults": ep.Faults(loss=0.1)}, "clock.close.deadline"),
        ({"clock": Clock(close=CloseDeadline(seconds=1)), "algorithm": PushSum(), "topology": ep.ELLocal(4)}, "needs every message"),
        ({"clock": Clock(close=CloseDeadline(seconds=1, late="carry")), "mixing": "metropolis-hastings", "topology": ep.Ring()}, "uniform"),
        ({"clock": Clock(close=CloseGlobal()), "algorithm": AsyncEL()}, "no rounds to close"),
        ({"clock": Clock(), "algorithm": GossipLearning(period=1.0), "topology": ep.ELOracle(4)}, "el-local"),
        ({"clock": Clock(), "topology": ep.Pull(3)}, r'nobody answers under a \[clock\]; use topology.kind = "el-local"'),
        ({"clock": Clock(), "topology": ep.Every(ep.Pull(3), period=2)}, 'use topology.kind = "el-local"'),
        ({"clock": Clock(), "topology": ep.Complete("all-reduce")}, r'not carried out under a \[clock\]; use cost = "all-to-all"'),
        ({"clock": Clock(), "topology": ep.Periodic(ep.Ring(), period=3, cost="all-reduce")}, 'use cost = "all-to-all"'),
        ({"clock": 3}, r"Clock\(\.\.\.\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(changes, says):
    with pytest.raises(BadInput, match=says) as problem:
        small(**changes)
    assert "\n" not in str(problem.value)


def test_files_of_the_clock_are_found_beside_the_experiment_and_again_when_going_on(data, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    devices = "".join(f'{{"id": "{i}", "ms_per_sample": {5 + i}, "up_kbps": 1000}}\n' for i in range(12))
    (tmp_path / "there/devices.jsonl").write_text(devices)
    experiment = free("async-el", clock=Clock(devices="devices.jsonl", compute=DeviceCompute()))
    file = tmp_path / "there/e.toml"
    file.write_text(to_toml(experiment))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Interrupted):
        ep.simulate(file, "out", callbacks=[Impatient(2)])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(epidemic.core.config, "_LOOKED", {})
    assert main(["run", "--resume", str(tmp_path / "out"), "--quiet"]) == 0
    (tmp_path / "there/devices.jsonl").unlink()
    monkeypatch.setattr(epidemic.core.config, "_LOOKED", {})
    assert main(["run", str(file), "--out", str(tmp_path / "never"), "--quiet"]) == 2


def test_a_method_of_ones_own_in_one_file(tmp_path, monkeypatch):
    """As examples/own_gossip.py shows it: by its class, and by name from a file; simulated, dry, and gone on with."""
    shutil.copy(Path(__file__).parents[1] / "examples/own_gossip.py", tmp_path / "own_gossip_copy.py")
    file = tmp_path / "e.toml"
    options = {"lr": 0.2, "trust": 0.3}
    algorithm = ep.PythonAlgorithm(factory="own_gossip_copy:Neighbourly", options=options)
    monkeypatch.syspath_prepend(tmp_path)
    named = small(algorithm=algorithm, topology=ep.ELLocal(1), clock=CHURN, rounds=6)
    file.write_text(to_toml(named))
    run = ep.simulate(file, tmp_path / "run")
    assert run.records[-1].time.messages.used > 0
    module = importlib.import_module("own_gossip_copy")
    own = msgspec.structs.replace(named, algorithm=module.Neighbourly(**options))
    assert torch.equal(ep.simulate(own).models.rows, run.models.rows)
    assert dry_run(named, 1, 2600).events > 0
    with pytest.raises(BadInput, match="Neighbourly"):
        msgspec.structs.replace(own, clock=None)
