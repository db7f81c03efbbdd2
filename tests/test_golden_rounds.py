"""Golden logs of rounds: when nodes train, hear each other and close, for every closing rule under the clock, and deployed over the fake network."""

import pytest

import epidemic as ep
import golden
import simulated
from epidemic.clock import (
    Clock,
    CloseBarrier,
    CloseDeadline,
    CloseGlobal,
    CloseQuorum,
    CloseSchedule,
    ExponentialChurn,
    Links,
    PerStepCompute,
)
from epidemic.protocol import events as e
from epidemic.simulator.dry_run import dry_run
from epidemic.simulator.trace import Log

SECOND = 10**6
CLOCK = {
    "global": ("every message was heard, and all open the next round at the same moment", CloseGlobal()),
    "barrier": ("every message was heard", CloseBarrier()),
    "quorum": ("half of the messages were heard", CloseQuorum(q=0.5)),
    "quorum-deadline-carry": (
        "three quarters of the messages were heard, or 0.05 s after the training; late messages count in the next round",
        CloseQuorum(q=0.75, deadline=0.05, late="carry"),
    ),
    "deadline": ("every message was heard, or 0.1 s after the training", CloseDeadline(seconds=0.1)),
    "deadline-carry-catch-up": (
        "every message was heard, or 0.05 s after the training; late messages count by age, and nodes leave rounds out",
        CloseDeadline(seconds=0.05, late="carry", weight="age", catch_up=True),
    ),
    "schedule": ("every 0.3 s", CloseSchedule(seconds=0.3)),
    "schedule-carry": ("every 0.3 s; late messages count in the next round", CloseSchedule(seconds=0.3, late="carry")),
}
AWAY = ("quorum-deadline-carry", "deadline", "deadline-carry-catch-up", "schedule")


def timed(close, churn=None):
    return ep.Experiment(
        nodes=5, rounds=4, topology=ep.ELLocal(2), data=ep.Digits(), partition=ep.IID(), model=ep.Logistic(),
        algorithm=ep.LocalSGD(lr=0.1, local_steps=2), eval=ep.Eval(every=2, samples=60), clock=Clock(
            compute=PerStepCompute(median=0.1, sigma=0.8), close=close, churn=churn,
            links=Links(uplink=1, downlink=2, latency=0.02, model="duplex"),
        ),
    )  # fmt: skip


def log_of(experiment):
    """What happens in a dry run, line by line, in the order of time."""
    log = Log()
    work = dry_run(experiment, 1, 4_000, log=log)
    lines = [
        (span.end, span.node, 0, f"node {span.node} {span.kind} until here, from {span.start:.6f}")
        for span in log.spans
        if span.kind != "sending"
    ]
    for trip in log.trips:
        text = f"node {trip.receiver} hears node {trip.sender}, who sent at {trip.left:.6f}"
        if trip.fate == "lost":
            text = f"lost: the message of node {trip.sender} to node {trip.receiver}, sent at {trip.left:.6f}"
        lines.append((trip.arrived, trip.receiver, 1, text))
    for one in log.closings:
        heard = [f"{i} ({age} old)" if age else f"{i}" for i, age in zip(one.senders, one.ages, strict=True)]
        text = f"node {one.node} closes round {one.round} with {', '.join(heard) or 'nothing'}"
        lines.append((one.at, one.node, 2, text))
    told = [f"{at:10.6f}  {text}" for at, _, _, text in sorted(lines)]
    t = work.tally
    told.append(f"the end: {work.now / SECOND:.6f} s, {work.events} events, digest {work.digest:012x}")
    told.append(f"messages: {t.sent} sent, {t.received} received, {t.used} used, {t.wasted} wasted, {t.lost} lost")
    return told


def norms(experiment):
    """The norms of the nodes' models after a run that computes, to five digits."""
    norms = ep.simulate(experiment).models.rows.norm(dim=1).tolist()
    return [f"the models' norms: {', '.join(f'{x:.5g}' for x in norms)}"]


@pytest.mark.parametrize("name", CLOCK)
def test_closing_rules_under_the_clock(name):
    words, close = CLOCK[name]
    head = [
        "Five nodes, four rounds of EL-Local (s = 2), uneven trainings, links of 1 and 2 Mbit/s, messages of 4000 bytes.",
        f"A round closes: {words}.",
        "",
    ]
    experiment = timed(close)
    lines = head + log_of(experiment) + norms(experiment)
    if name in AWAY:
        away = timed(close, ExponentialChurn(mean_on=0.8, mean_off=0.3))
        lines += ["", "The same with nodes that come and go.", "", *log_of(away), *norms(away)]
    golden.check(f"clock-rounds-{name}", "\n".join(lines))


# -- deployed, over the fake network ----------------------------------------------------------------------------------


class Told(simulated.World):
    """A schedule whose actions are written down."""

    def __init__(self, schedule):
        super().__init__(schedule)
        self.lines = []

    def tell(self, node, text):
        self.lines.append(f"{self.now / SECOND:10.6f}  node {node.node_id} {text}")

    def on_train(self, node, action):
        self.tell(node, f"trains for round {action.round}")
        super().on_train(node, action)

    def on_send(self, node, action):
        self.tell(node, f"sends round {action.round} to {listed(action.to)}")
        super().on_send(node, action)

    def on_mix(self, node, action):
        self.tell(node, f"closes round {action.round} with {listed(sender for sender, _ in action.messages)}")
        super().on_mix(node, action)

    def on_ask(self, node, action):
        self.tell(node, f"asks node {action.to}: {action.topic}, round {action.round}")
        super().on_ask(node, action)

    def on_answer_message(self, node, action):
        self.tell(node, f"sends round {action.round} again to {action.to}")
        super().on_answer_message(node, action)

    def on_give(self, node, action):
        self.tell(node, f"gives its model to {action.to}")
        super().on_give(node, action)

    def on_adopt(self, node, action):
        self.tell(node, "takes a model")
        super().on_adopt(node, action)

    def on_nothing(self, node, action):
        if isinstance(action, e.Say):
            self.tell(node, f"says: {action.text}")

    def end(self, node, outcome, noticed=0):
        self.tell(node, f"ends: {outcome or 'it crashes'}")
        super().end(node, outcome, noticed)


def listed(node_ids):
    return ", ".join(map(str, node_ids)) or "nobody"


CRASH = (850_000, "crash", 2, 1_900_000, False)
PAUSE = (750_000, "stop", 1, 1_500_000)
DEPLOYED = {
    "adaptive": ("all who are alive were heard, at most 2 s (adaptive)", {"close": "adaptive"}),
    "adaptive-crash": ("adaptive; node 2 crashes and comes back", {"close": "adaptive", "faults": [CRASH], "rounds": 8}),
    "adaptive-pause": ("adaptive; node 1 stands still for 1.5 s", {"close": "adaptive", "faults": [PAUSE], "rounds": 8}),
    "adaptive-loss": ("adaptive; a fifth of the messages get lost", {"close": "adaptive", "loss": 0.2}),
    "adaptive-slow": ("adaptive; node 0 is ten times slower", {"close": "adaptive", "slow": 10, "rounds": 8}),
    "adaptive-private": ("adaptive; nobody knows whom to expect", {"close": "adaptive", "private": True}),
    "adaptive-cap": ("adaptive; at most one message counts, the others are offered elsewhere", {"close": "adaptive", "cap": 1}),
    "quorum": ("three quarters of the expected messages were heard, or 2 s after the training", {"close": "quorum"}),
    "quorum-loss": ("quorum; a fifth of the messages get lost", {"close": "quorum", "loss": 0.2}),
    "deadline-slow": ("every message was heard, or 2 s after the training; node 0 is ten times slower", {"close": "deadline", "slow": 10}),
    "barrier": ("every message was heard", {"close": "barrier"}),
    "barrier-loss": ("barrier; a fifth of the messages get lost", {"close": "barrier", "loss": 0.2}),
    "barrier-crash": ("barrier; node 2 crashes and comes back", {"close": "barrier", "faults": [CRASH], "rounds": 8}),
}  # fmt: skip


@pytest.mark.parametrize("name", DEPLOYED)
def test_deployed_rounds_over_the_fake_network(name):
    words, what = DEPLOYED[name]
    what = {"rounds": 4, "private": False, "cap": None, "loss": 0.0, "faults": [], **what}
    compute = [50_000, 60_000, 80_000, 110_000, 150_000]
    compute[0] *= what.pop("slow", 1)
    schedule = simulated.Schedule(
        seed=5, n=5, topology="el-local", s=2, deadline=2 * SECOND, patience=20 * SECOND, compute=compute,
        delay=(5_000, 60_000), doubling=0.0, **what,
    )  # fmt: skip
    world = Told(schedule).play()
    world.check()
    head = [
        f"Five nodes, {schedule.rounds} rounds of EL-Local (s = 2), trainings of 0.05 to 0.15 s, messages of 0.005 to 0.06 s.",
        f"A round closes: {words}.",
        "",
    ]
    golden.check(f"deployed-rounds-{name}", "\n".join(head + world.lines))
