"""Golden event logs of every asynchronous method under the simulated clock, and the models of tiny real runs.

A log is a dry run: what every node is told and what it wants done, by simulated time. Models are named, not computed: `init` is what everybody
starts from, `node 2's update 3` what its third local update (counted from 0) gave, `mix 4` the fourth weighted sum of the run.
"""

import hashlib
import math

import numpy as np
import pytest
import torch

import epidemic as ep
import golden
from epidemic.algorithms import AsynchronousMethod
from epidemic.clock import Clock, ConstantCompute, Links, SlowedCompute
from timing import World, dry, play

WORLD = World([0.3, 0.4, 0.7, 1.1], up=2e6, latency=0.05, on={2: (1.3, 2.05)})
IN_WORDS = """\
Four nodes; a local update takes 0.3, 0.4, 0.7 and 1.1 s. A model is 1 MB, an uplink carries 2 MB/s, and every message takes 50 ms more.
Node 2 is away from 1.3 to 2.05 s: its local update rests, and what it was sending or would have received is lost.
A message in ten is lost in any case."""

METHODS = {
    "async-el": (ep.AsyncEL(), ep.ELLocal(2)),
    "async-el, mix first, wait, keep": (
        ep.AsyncEL(order="mix-first", wait=True, patience=0.5, queue="keep"),
        ep.ELLocal(1),
    ),
    "gossip-learning": (ep.GossipLearning(period=0.5), ep.ELLocal(1)),
    "gossip-learning, um, jitter, newest waits": (
        ep.GossipLearning(period=0.5, jitter=0.2, variant="um", merge="average", on_busy="replace", start_trained=True),
        ep.Ring(),
    ),
    "gossip-learning, rw, tokens": (
        ep.GossipLearning(period=0.4, variant="rw", on_busy="drop", tokens=ep.Tokens("randomised", A=1, C=3)),
        ep.ELLocal(1),
    ),
    "gossip-learning, parts": (ep.GossipLearning(period=0.3, parts=3), ep.ELLocal(1)),
    "ad-psgd": (ep.ADPSGD(patience=0.8), ep.ELLocal(1)),
    "divshare": (ep.DivShare(fragments=3), ep.ELLocal(1)),
    "divshare, mix first": (ep.DivShare(fragments=2, order="mix-first"), ep.ELLocal(2)),
}


class Names:
    """Models by names that say where they come from."""

    def __init__(self):
        self.known, self.kept, self.mixes = {}, [], 0

    def give(self, row, name):
        self.known.setdefault(id(row), name)
        self.kept.append(row)
        return self.known[id(row)]

    def of(self, row):
        return self.known.get(id(row), "?")

    def mix(self, row):
        self.mixes += 1
        return self.give(row, f"mix {self.mixes}")


class Recording:
    """The context of a node: does what it is asked for, and writes it down."""

    def __init__(self, node_context, names, write):
        object.__setattr__(self, "_me", node_context)
        object.__setattr__(self, "_names", names)
        object.__setattr__(self, "_write", write)
        object.__setattr__(self, "_updates", 0)
        names.give(node_context.model, "init")

    def __getattr__(self, name):
        return getattr(self._me, name)

    def __setattr__(self, name, value):
        if name == "_updates":
            object.__setattr__(self, name, value)
            return
        setattr(self._me, name, value)
        if name == "model":
            self._write(f"  model = {self._names.of(value)}")

    def train(self, row=None):
        self._write(f"  train {self._names.of(self._me.model if row is None else row)}")
        self._me.train(row)

    def send(self, to, row, *, tag="", note=(), part=None):
        to = list(to)
        self._write(f"  send {what(self._names, row, tag, note, part)} to {' '.join(map(str, to)) or 'nobody'}")
        self._me.send(to, row, tag=tag, note=note, part=part)

    def withdraw(self):
        self._write("  take back what has not begun to leave")
        self._me.withdraw()

    def wake_at(self, time, tag=""):
        self._write(f"  wake{named(tag)} at {time / 1e6:.6f}")
        self._me.wake_at(time, tag)

    def cancel(self, tag):
        self._write(f"  do not wake{named(tag)}")
        self._me.cancel(tag)

    def mix(self, terms):
        row = self._me.mix(terms)
        self._write(f"  {self._names.mix(row)} = {self._sum(terms)}")
        return row

    def aggregate(self, own, messages, weights=()):
        """All of these runs take the mean, so it is written down as the weighted sum that it is."""
        row = self._me.aggregate(own, messages, weights)
        rows = [own, *(message.row for message in messages)]
        shares = weights or [1 / len(rows)] * len(rows)
        self._write(f"  {self._names.mix(row)} = {self._sum([(w, r) for w, r in zip(shares, rows, strict=True) if w])}")
        return row

    def patch(self, base, parts):
        row = self._me.patch(base, parts)
        changed = "; ".join(f"part {part}: {self._sum(terms)}" for part, terms in parts.items())
        self._write(f"  {self._names.mix(row)} = {self._names.of(base)} with {changed}")
        return row

    def used(self, messages):
        messages = list(messages)
        self._me.used(messages)
        self._write(f"  used: from {' '.join(str(one.sender) for one in messages)}")

    def dropped(self, messages):
        messages = list(messages)
        self._me.dropped(messages)
        self._write(f"  of no use: from {' '.join(str(one.sender) for one in messages)}")

    def _sum(self, terms):
        return " + ".join(f"{weight:.6g} {self._names.of(row)}" for weight, row in terms)


class Told:
    """A node that writes down what happens to it."""

    def __init__(self, node, context):
        self._node, self._context = node, context

    def __getattr__(self, name):
        return getattr(self._node, name)

    def started(self):
        self._context._write("started")
        self._node.started()

    def trained(self, row):
        context = self._context
        name = context._names.give(row, f"node {context.id}'s update {context._updates}")
        context._updates += 1
        context._write(f"trained: {name}")
        self._node.trained(row)

    def received(self, message):
        context = self._context
        if message.part is not None:
            context._names.give(
                message.row, f"part {message.part} of node {message.sender} at {message.sent_at / 1e6:.2f}"
            )
        said = what(context._names, message.row, message.tag, message.note, None)
        context._write(f"received from {message.sender}: {said}")
        self._node.received(message)

    def woken(self, tag):
        self._context._write(f"woken{named(tag)}")
        self._node.woken(tag)

    def online(self):
        self._context._write("back")
        self._node.online()


def named(tag):
    return f" ({tag})" if tag else ""


def what(names, row, tag, note, part):
    words = [*([tag] if tag else []), *([f"({', '.join(map(str, note))})"] if note else [])]
    if row is not None:
        words.append(names.of(row) if part is None else f"part {part} of {names.of(row)}")
    return " ".join(words)


def event_log(method, topology, monkeypatch, seconds=2.6):
    """The events of a dry run of so many seconds, one in a line, and what it counted."""
    lines, names, kind = [], Names(), type(method)
    make = kind.node

    def node(self, node_context):
        def write(text):
            lines.append((node_context.now, f"{node_context.now / 1e6:10.6f}  node {node_context.id}  {text}"))

        context = Recording(node_context, names, write)
        return Told(make(self, context), context)

    monkeypatch.setattr(kind, "node", node)
    experiment = ep.Experiment(
        nodes=4, rounds=1, topology=topology, algorithm=method, faults=ep.Faults(loss=0.1), clock=Clock(stop=seconds)
    )
    work, log = dry(experiment, WORLD)
    play(work)
    for trip in log.trips:
        if trip.fate == "lost":
            time = round(trip.arrived * 1e6)
            lines.append(
                (time, f"{time / 1e6:10.6f}  lost    from {trip.sender} to {trip.receiver}, sent at {trip.left:.6f}")
            )
    lines.sort(key=lambda line: line[0])  # stable: as it happened within a moment
    t, m = work.tally, work.moment()
    counted = f"messages: {t.sent} sent, {t.received} received, {t.used} used, {t.wasted} of no use, {t.lost} lost, {t.in_flight} on their way"
    lines += [
        (0, f"{'end':>10}  {counted}"),
        (0, f"{'':>10}  bytes: {t.bytes_sent} sent, {t.bytes_received} received; {t.steps} local steps"),
        (
            0,
            f"{'':>10}  busy {m.busy:.6f}, uplink {m.uplink:.6f}, age of what was used {m.staleness or math.nan:.6f} s",
        ),
    ]
    return "\n".join(text for _, text in lines)


@pytest.mark.parametrize("name", METHODS)
def test_events_under_the_clock(name, monkeypatch):
    method, topology = METHODS[name]
    scenario = "\n".join("# " + line for line in (f"{name}, on {type(topology).__name__}", *IN_WORDS.splitlines()))
    golden.check(
        f"clock-{name.replace(', ', '-').replace(' ', '-')}",
        f"{scenario}\n\n{event_log(method, topology, monkeypatch)}",
    )


def test_every_asynchronous_method_has_a_log():
    from epidemic.algorithms import ALGORITHMS

    assert {type(method) for method, _ in METHODS.values()} == {
        kind for kind in ALGORITHMS.values() if issubclass(kind, AsynchronousMethod)
    }


# -- models -----------------------------------------------------------------------------------------------------------

MODELS = {
    "async-el": ep.AsyncEL(lr=0.5, batch_size=2),
    "async-el, mix first, momentum": ep.AsyncEL(lr=0.5, batch_size=2, momentum=0.5, order="mix-first"),
    "gossip-learning": ep.GossipLearning(lr=0.5, batch_size=2, period=0.25, merge="average"),
    "gossip-learning, um": ep.GossipLearning(lr=0.5, batch_size=2, period=0.5, merge="average", variant="um"),
    "gossip-learning, parts": ep.GossipLearning(lr=0.5, batch_size=2, period=0.25, merge="average", parts=2),
    "ad-psgd": ep.ADPSGD(lr=0.5, batch_size=2),
    "divshare": ep.DivShare(lr=0.5, batch_size=2, fragments=2),
}
MODELS_IN_WORDS = """\
# The models of two nodes that learn for 4 simulated seconds: a local update takes 0.25 and 0.5 s, a message 0.1 s.
# The loss of a sample c is |x - c|^2 / 2, samples are whole numbers, lr and all weights are powers of 1/2: so every number is exact, on any
# processor and with any number of threads, and is given here as it is."""


def exact_data():
    """Samples of small whole numbers."""
    x = np.array([[k % 5 - 2, k % 3, -k % 7, k % 2] for k in range(24)], dtype=np.float64)
    return ep.Dataset(ep.Samples(x, np.zeros_like(x)), ep.Samples(x[:4], np.zeros_like(x[:4])))


def exact_models(method, threads):
    """The models of both nodes at the end.   # (2, 4)"""
    compute = SlowedCompute(ConstantCompute(0.25), fraction=0.5, factor=2)
    clock = Clock(compute=compute, links=Links(uplink=1000, latency=0.1), stop=4)
    experiment = ep.Experiment(
        nodes=2, rounds=1, topology=ep.ELLocal(1), algorithm=method, data=ep.Synthetic(), partition=ep.IID(), model=ep.Point(),
        eval=ep.Eval(every=1), runtime=ep.Runtime(threads=threads), clock=clock,
    )  # fmt: skip
    return ep.simulate(experiment, data=exact_data(), progress=False).models.rows


def test_exact_models():
    lines = []
    for name, method in MODELS.items():
        x = exact_models(method, 1)
        assert torch.equal(x * 2**40, (x * 2**40).round()), (
            "a number is not exact: this file would depend on the processor"
        )
        assert torch.equal(x, exact_models(method, 2))
        digest = hashlib.blake2b(x.numpy().tobytes(), digest_size=8).hexdigest()
        lines += [
            f"{name}: {digest}",
            *(f"  node {i}  {' '.join(map(repr, row))}" for i, row in enumerate(x.tolist())),
        ]
    golden.check("clock-async-models", MODELS_IN_WORDS + "\n\n" + "\n".join(lines))
