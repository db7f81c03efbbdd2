"""Runs under the simulated clock that could never end: refused where it can be known, ended in one line where it cannot, and interrupted at once."""

import os
import signal
import threading
import time

import msgspec
import pytest

import epidemic as ep
from epidemic.cli.app import main
from epidemic.clock import Clock, CloseBarrier, CloseDeadline, ConstantCompute, ExponentialChurn
from epidemic.core.errors import BadInput, Interrupted, RunFailed
from epidemic.simulator.dry_run import dry_run

NONE = ep.Isolated()


def small(**settings):
    common = {"nodes": 4, "rounds": 2, "data": ep.Synthetic(features=3, classes=3, samples=60), "model": ep.Logistic()}
    return ep.Experiment(**{**common, "clock": Clock(), "topology": ep.ELLocal(2), **settings})


# -- refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"topology": NONE}, 'topology.kind = "none" has no links'),
        ({"topology": NONE, "clock": Clock(stop=3.0)}, 'topology.kind = "none" has no links'),
        ({"topology": ep.Every(NONE, period=3)}, 'topology.kind = "every" has no links'),
        ({"faults": ep.Faults(loss=1.0)}, "faults.loss = 1"),
    ],
    ids=str,
)
def test_gossip_learning_in_which_nobody_hears_anything_is_refused(settings, why):
    with pytest.raises(BadInput) as refusal:
        small(algorithm=ep.GossipLearning(), **settings)
    assert 'algorithm.kind = "gossip-learning" trains when a message arrives, and none ever does' in str(refusal.value)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("algorithm", [ep.AsyncEL(), ep.DivShare()], ids=str)
def test_a_bound_on_traffic_that_nobody_makes_is_refused(algorithm):
    with pytest.raises(
        BadInput, match=r"clock\.megabytes = 0\.1 is never reached where nobody sends.* use clock\.stop"
    ):
        small(algorithm=algorithm, topology=NONE, clock=Clock(megabytes=0.1))
    small(algorithm=algorithm, topology=NONE, clock=Clock(megabytes=0.1, stop=1.0))
    small(algorithm=algorithm, topology=NONE)
    small(topology=NONE, clock=Clock(megabytes=0.1))  # which ends after its rounds


def test_the_command_refuses_it_with_exit_code_2(tmp_path, capsys):
    path = tmp_path / "silent.toml"
    path.write_text(
        'nodes = 4\nrounds = 2\ntopology = {kind = "none"}\nalgorithm = {kind = "gossip-learning"}\nclock = {}\n'
    )
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == 2
    assert "nobody would train" in capsys.readouterr().err


# -- ended ----------------------------------------------------------------------------------------------------------------

RESTLESS = ExponentialChurn(mean_on=0.001, mean_off=0.001, training="abort")
"""Nobody is there for long enough to train."""


def hopeless(**settings):
    return small(
        algorithm=ep.AsyncEL(), **{"clock": Clock(compute=ConstantCompute(seconds=1.0), churn=RESTLESS), **settings}
    )


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("epidemic.simulator.clockwork.IDLE_EVENTS", 10_000)
    monkeypatch.setattr("epidemic.simulator.clockwork.IDLE_EVENTS_A_NODE", 1_000)


@pytest.mark.parametrize(
    ("algorithm", "close"),
    [
        (ep.AsyncEL(), CloseBarrier()),
        (ep.GossipLearning(), CloseBarrier()),
        (ep.LocalSGD(), CloseDeadline(seconds=5.0)),
    ],
    ids=["async-el", "gossip-learning", "rounds"],
)
def test_a_clock_without_progress_ends_in_one_line(impatient, algorithm, close):
    clock = Clock(compute=ConstantCompute(seconds=1.0), churn=RESTLESS, close=close)
    with pytest.raises(RunFailed, match=r"^the simulated clock made no progress: at .* look at clock\.compute") as end:
        dry_run(small(algorithm=algorithm, clock=clock), 1, 64)
    assert "\n" not in str(end.value)


def test_a_clock_that_stops_by_itself_may_see_nothing_happen(impatient):
    clock = Clock(compute=ConstantCompute(seconds=1.0), churn=RESTLESS, stop=20.0)
    work = dry_run(hopeless(clock=clock), 1, 64)
    assert work.total == 0
    assert work.events > 20_000


# -- interrupted ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_one_wish_to_stop_is_heeded_in_a_loop_of_events(monkeypatch, number):
    monkeypatch.setattr("epidemic.runtime.interrupt.PATIENCE", 0.2)
    monkeypatch.setattr("epidemic.simulator.clockwork.IDLE_EVENTS", 10**12)
    later = threading.Timer(0.7, os.kill, (os.getpid(), number))
    later.start()
    began = time.monotonic()
    with pytest.raises(Interrupted, match="interrupted at seed 1"):
        ep.simulate(hopeless())
    assert time.monotonic() - began < 10
    later.join()


# -- nothing sent -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [ep.AsyncEL(), ep.DivShare()], ids=str)
def test_who_can_send_nothing_has_sent_no_byte(tmp_path, capsys, algorithm):
    experiment = small(topology=NONE, algorithm=algorithm, clock=Clock(compute=ConstantCompute(0.1), stop=3.0))
    run = ep.simulate(experiment, tmp_path / "run")
    last = run.records[-1]
    assert last.round > 0, "nodes train by themselves"
    sent = last.bytes
    assert set(msgspec.structs.astuple(last.time.messages)) == {0}
    assert (sent.model.max, sent.header.max, sent.control.max, sent.total.max) == (0, 0, 0, 0)
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "report.csv")]) == 0
    header, *rows = (tmp_path / "report.csv").read_text().splitlines()
    column = next(i for i, name in enumerate(header.split(",")) if name.startswith("bytes"))
    assert {float(row.split(",")[column]) for row in rows} == {0.0}
