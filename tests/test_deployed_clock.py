"""The protocol of deployed nodes under the simulated clock: it agrees with the plain rules where nothing goes wrong, and does the rest where something does."""

import msgspec
import pytest
import torch

import epidemic as ep
from epidemic.clock import (
    Clock,
    CloseAdaptive,
    CloseBarrier,
    CloseDeadline,
    CloseGlobal,
    CloseQuorum,
    CloseSchedule,
    ExponentialChurn,
    Links,
    PerStepCompute,
)
from epidemic.simulator.dry_run import dry_run
from epidemic.simulator.trace import Log

RULES = [CloseBarrier(), CloseQuorum(q=0.75, deadline=3.0), CloseDeadline(seconds=0.4), CloseAdaptive(deadline=5.0)]


def timed(close, protocol="deployed", *, nodes=12, rounds=6, churn=None, **changes):
    clock = Clock(
        compute=PerStepCompute(median=0.1, sigma=0.3), links=Links(uplink=20, latency=0.02), close=close,
        protocol=protocol, churn=churn,
    )  # fmt: skip
    base = {
        "nodes": nodes, "rounds": rounds, "topology": ep.ELLocal(3), "data": ep.Digits(), "partition": ep.IID(),
        "model": ep.Logistic(), "algorithm": ep.LocalSGD(lr=0.1, local_steps=1), "eval": ep.Eval(every=3, samples=60),
    }  # fmt: skip
    return ep.Experiment(**{**base, "clock": clock, **changes})


def closings(experiment):
    log = Log()
    work = dry_run(experiment, 1, 4_000, log=log)
    return work, [(one.round, one.node, one.at, one.senders) for one in log.closings]


@pytest.mark.parametrize("close", RULES[:3], ids=lambda close: close.kind)
def test_without_trouble_rounds_close_when_and_with_what_the_plain_rule_says(close):
    deployed, plain = closings(timed(close)), closings(timed(close, "plain"))
    assert deployed[1] == plain[1]
    assert deployed[0].now == plain[0].now


def test_with_a_barrier_the_models_are_those_of_the_round_engine_to_the_bit():
    experiment = timed(CloseBarrier())
    plain = msgspec.structs.replace(experiment, clock=None)
    assert torch.equal(ep.simulate(experiment).models.rows, ep.simulate(plain).models.rows)


@pytest.mark.parametrize("close", RULES[1:], ids=lambda close: close.kind)
@pytest.mark.parametrize("trouble", ["loss", "cap", "churn", "nothing"])
def test_whatever_goes_wrong_every_node_comes_to_its_end(close, trouble):
    changes = {
        "loss": {"faults": ep.Faults(loss=0.2)},
        "cap": {"faults": ep.Faults(cap=2, max_retries=2)},
        "churn": {"churn": ExponentialChurn(mean_on=3.0, mean_off=1.0)},
        "nothing": {},
    }[trouble]
    work, found = closings(timed(close, **changes))
    assert work.unfinished == 0
    assert all(list(senders) == sorted(set(senders)) for *_, senders in found)
    if trouble == "cap":
        assert max(len(senders) for *_, senders in found) <= 2
    again, _ = closings(timed(close, **changes))
    assert (again.events, again.digest) == (work.events, work.digest)


def test_a_message_that_was_lost_is_asked_for_and_counts():
    experiment = timed(CloseAdaptive(deadline=20.0), nodes=6, rounds=2, faults=ep.Faults(loss=0.2))
    work, found = closings(experiment)
    assert sum(one.node.counts()["asked"] for one in work.contexts) > 0
    assert work.tally.lost > 0
    assert sum(len(senders) for *_, senders in found) == 6 * 2 * 3  # every message, in the end


def test_a_run_that_computes_has_the_events_of_a_dry_one():
    experiment = timed(CloseAdaptive(deadline=5.0), faults=ep.Faults(loss=0.1))
    run = ep.simulate(experiment)
    assert torch.isfinite(run.models.rows).all()
    assert run.records[-1].time.seconds == dry_run(experiment, 1, 4 * run.models.rows.shape[1]).now / 1e6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"close": CloseGlobal()}, 'clock.close.kind = "global" needs a view of all nodes'),
        ({"close": CloseSchedule(seconds=1)}, 'clock.close.kind = "schedule" needs one clock'),
        ({"close": CloseDeadline(seconds=1, catch_up=True)}, "leave rounds out by themselves"),
        ({"close": CloseAdaptive(), "protocol": "plain"}, 'use clock.protocol = "deployed" with it'),
        ({"close": CloseBarrier(), "faults": ep.Faults(cap=2)}, "needs known in-neighbours"),
        (
            {"close": CloseDeadline(seconds=1), "protocol": "plain", "faults": ep.Faults(cap=2)},
            "a cap needs clock.protocol",
        ),
        ({"close": CloseBarrier(), "protocol": "both"}, "clock.protocol = 'both'"),
    ],
)
def test_what_does_not_go_with_the_protocol_is_refused(changes, said):
    with pytest.raises(ep.BadInput, match=said):
        timed(changes.pop("close"), changes.pop("protocol", "deployed"), **changes)
