"""Golden event logs of deployed nodes of asynchronous methods, under the fake network and the fake clock of `asynchronous_simulated`.

Every line is what one node is told, or, indented, what it wants done. Models are numbers: `model 7` was the seventh to be made in the world.
A time is that of the world; a node's own clock may show another one.
"""

from itertools import count

import pytest

import asynchronous_simulated
import golden
from asynchronous_simulated import METHODS, SECOND, World
from epidemic.algorithms import AsyncEL
from epidemic.protocol import events as e
from simulated import Schedule


def memory(m):
    state = "".join(f", {name} {value}" for name, value in sorted(m.state.items()))
    choices = "".join(f", {value} of {name}" for name, value in sorted(m.choices.items()))
    return f"{m.elapsed / 1e6:.6f} s, {m.trained} local updates, message {m.number}{state}; choices{choices or ' none'}"


def node_ids(those):
    return " ".join(map(str, those)) or "nobody"


def answer(content):
    return content if isinstance(content, str) or content is None else f"{content[0]} of node {content[1]}"


def said(handshake):
    words = ["finished"] * handshake.finished + ["gone"] * handshake.gone
    return f"second {handshake.round}, from {handshake.start}{''.join(', ' + word for word in words)}"


def content(row, tag, note, part):
    words = [tag] * bool(tag) + ([f"({', '.join(map(str, note))})"] if note else [])
    words += [] if part is None else [f"part {part} of"]
    return " ".join([*words, *([] if row is None else [f"model {row}"])])


EVENTS = {
    e.Started: lambda x: "started",
    e.Renewed: lambda x: f"connections opened anew, shown as {x.token}",
    e.Present: lambda x: f"{'sees' if x.there else 'no longer sees'} node {x.node_id} ({x.token})",
    e.Introduced: lambda x: f"node {x.node_id} introduces itself: {said(x)}",
    e.Ungreeted: lambda x: f"node {x.node_id} did not answer the greeting",
    e.Came: lambda x: f"message {x.number} from {x.sender}: {content(x.message.row, x.message.tag, x.note, x.message.part)}",
    e.Learnt: lambda x: f"local update {x.count} gave model {x.row}",
    e.Looked: lambda x: "evaluated and saved",
    e.Timer: lambda x: f"timer {x.name}",
    e.Asked: lambda x: f"node {x.by} asks for {x.topic}",
    e.Answered: lambda x: f"node {x.by} answers {x.topic}: {answer(x.answer)}",
    e.Adopted: lambda x: "the model is taken",
    e.Concluded: lambda x: "the final test is done",
    e.Say: lambda x: f"say: {x.text}",
    e.Greet: lambda x: f"greet {'everybody' if x.node_id is None else f'node {x.node_id}'}",
    e.SetTimer: lambda x: f"timer {x.name} at {x.at / 1e6:.6f}",
    e.Ask: lambda x: f"ask node {x.to} for {x.topic}, for {x.patience / 1e6:g} s",
    e.Answer: lambda x: f"answer: {x.word}",
    e.Give: lambda x: f"give node {x.to} the model",
    e.Adopt: lambda x: f"take the {answer(x.message)}",
    e.Learn: lambda x: f"local update {x.count} of model {x.row}",
    e.SendMessage: lambda x: f"send message {x.number}, {content(x.row, x.tag, x.note, x.part)}, to {node_ids(x.to)}",
    e.Withdraw: lambda x: "take back what has not begun to leave",
    e.ComputeModel: lambda x: f"compute model {x.row}",
    e.Look: lambda x: f"{'evaluate and save' if x.evaluate else 'save'} model {x.row}: {memory(x.memory)}",
    e.Conclude: lambda x: "conclude",
    e.Leave: lambda x: "leave",
    e.Fail: lambda x: f"fail: {x.reason}",
}  # fmt: skip


class Written(World):
    """A world that writes down what it tells its nodes and what they want."""

    def __init__(self, schedule, method):
        super().__init__(schedule, method=method)
        self.lines = []
        self.do = {kind: self._written(do) for kind, do in self.do.items()}

    def line(self, node, text):
        self.lines.append(f"{self.now / 1e6:10.6f}  node {node.node_id}  {text}")

    def _written(self, do):
        def act(node, action):
            self.line(node, "  " + EVENTS[type(action)](action))
            do(node, action)

        return act

    def step(self, node, event):
        if node.running and self.now >= node.stopped_until:
            self.line(node, EVENTS[type(event)](event))
        super().step(node, event)

    def end(self, node, outcome, noticed=0):
        tally = ", ".join(f"{number} {kind}" for kind, number in sorted(node.protocol.tally.items()) if number)
        if outcome is None:
            self.line(node, "killed")
        self.line(node, f"its messages: {tally or 'none'}")
        super().end(node, outcome, noticed)


def schedule(**changed):
    """Three nodes, fast messages, no faults."""
    base = {
        "seed": 7, "n": 3, "rounds": 2, "topology": "el-local", "s": 1, "close": "adaptive", "private": False, "cap": None,
        "deadline": 5 * SECOND, "patience": 4 * SECOND, "compute": [150_000, 220_000, 400_000], "delay": (5_000, 30_000),
        "loss": 0.0, "doubling": 0.0,
    }  # fmt: skip
    return Schedule(**{**base, **changed})


CALM = "Three nodes; a local update takes 0.15, 0.22 and 0.4 s, a message 5 to 30 ms. They learn for 1.5 s. Nothing goes wrong."
CRASH = (
    "Three nodes; a local update takes 0.15, 0.22 and 0.4 s, a message 5 to 30 ms; they learn for 2.5 s. Node 1 is killed\n"
    "at 1.1 s and is back at 1.4 s, from its checkpoint; node 2 is killed at 1.2 s and is back at 1.5 s, with nothing saved."
)
SPLIT = (
    "Three nodes; a local update takes 0.15, 0.22 and 0.4 s, a message 5 to 400 ms, one in five is lost and one in ten is doubled.\n"
    "They learn for 1.5 s. Node 0 cannot reach the others from 0.8 to 1.4 s; the process of node 1 stands still from 1 to 1.5 s."
)
SCENARIOS = {
    **{f"calm-{name}": (CALM, schedule(), method) for name, method in {
        "async-el-stateless": METHODS[0],
        "async-el-wait": AsyncEL(wait=True),
        "gossip-learning": METHODS[2],
        "gossip-learning-parts": METHODS[3],
        "ad-psgd": METHODS[4],
        "divshare": METHODS[5],
    }.items()},
    "crashes-ad-psgd": (
        CRASH,
        schedule(
            rounds=3,
            faults=[(1_100_000, "crash", 1, 1_400_000, False), (1_200_000, "crash", 2, 1_500_000, True)],
        ),
        METHODS[4],
    ),
    "split-gossip-learning": (
        SPLIT,
        schedule(
            delay=(5_000, 400_000), loss=0.2, doubling=0.1,
            faults=[(800_000, "split", frozenset({0}), 600_000), (1_000_000, "stop", 1, 500_000)],
        ),
        METHODS[2],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_events_of_deployed_nodes(name, monkeypatch):
    words, plan, method = SCENARIOS[name]
    monkeypatch.setattr(asynchronous_simulated, "HANDLES", count())
    world = Written(plan, method).play()
    world.check()
    scenario = "\n".join("# " + line for line in (f"{method.called}: {name}", *words.splitlines()))
    golden.check(f"deployed-{name}", f"{scenario}\n\n" + "\n".join(world.lines))
