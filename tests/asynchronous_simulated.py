"""Simulated schedules of methods without rounds: the worlds of `simulated`, with `Asynchronous` in place of `Rounds`.

The same things go wrong. The laws:

  nobody hangs    every live node finishes, or says why, within `World.limit` after the last fault
  the stop        a node learns until its clock shows the stop of the run, and no longer
  messages         each counts at most once; every message that arrived is in one tally; what counted was used, dropped, or is held
  choices         no random choice of a life is made again after a restart from a checkpoint, nor a training's batches used twice
  memory          what a protocol holds is bounded by the number of nodes, whatever it was told
  jumps           time is left out only where another honest node is really that far
  a liar          where it is all that is wrong it ends nobody, and costs no time
"""

import gc
from collections import Counter
from dataclasses import replace
from itertools import count
from random import Random

import simulated
from epidemic.algorithms.ad_psgd import ADPSGD
from epidemic.algorithms.async_el import AsyncEL
from epidemic.algorithms.asynchronous import Message
from epidemic.algorithms.divshare import DivShare
from epidemic.algorithms.gossip_learning import GossipLearning
from epidemic.protocol import events as e
from epidemic.protocol.asynchronous import Asynchronous, AsynchronousRules
from epidemic.protocol.replay_filter import WINDOW

SECOND = e.SECOND
LIES = ("progress", "messages", "flood", "questions", "answers", "tokens", "carrier", "differs", "repeat")
HANDLES = count()


class Forgetful(AsyncEL, frozen=True, tag="forgetful"):
    """A method whose nodes remember nothing themselves."""

    def node(self, context):
        node = super().node(context)
        node.state = dict
        return node


METHODS = (
    Forgetful(),
    AsyncEL(wait=True, order="mix-first"),
    GossipLearning(period=0.2),
    GossipLearning(period=0.1, parts=4, variant="mu"),
    ADPSGD(patience=0.3),
    DivShare(fragments=3),
)


class Rows:
    """Models that are only told apart."""

    @staticmethod
    def mix(terms):
        return next(HANDLES)

    @staticmethod
    def aggregate(own, messages, weights, now):
        return next(HANDLES)

    @staticmethod
    def patch(base, parts):
        return next(HANDLES)


class Chances:
    """What is random; which counts were asked for is noted."""

    def __init__(self, world, node_id):
        self.world, self.node_id = world, node_id
        self.static = world.what.topology == "ring"
        self.asked = []

    def peers(self, count):
        self.asked.append(count)
        w, r = self.world.what, Random(f"{self.world.what.seed} {self.node_id} {count}")
        if self.static:
            return r.sample(
                sorted({(self.node_id - 1) % w.n, (self.node_id + 1) % w.n} - {self.node_id}), min(2, w.n - 1)
            )
        return r.sample([i for i in range(w.n) if i != self.node_id], w.s)

    def chance(self, purpose, count):
        return Random(f"{self.world.what.seed} {purpose} {self.node_id} {count}").random()


def drawn(seed):
    """The schedule of a seed: up to four seconds long."""
    found = simulated.drawn(seed)
    rounds = min(found.rounds, 4)
    return replace(found, rounds=rounds, close="adaptive", cap=None, private=False, deadline=5 * SECOND, ids=())


class World(simulated.World):
    """Time, the network, and all nodes of a method without rounds."""

    def __init__(self, schedule, protocol=Asynchronous, method=None):
        super().__init__(schedule, protocol)
        self.method = METHODS[schedule.seed % len(METHODS)] if method is None else method
        self.stop = schedule.rounds * SECOND - SECOND // 2
        self.do |= {
            e.Learn: self.on_learn, e.SendMessage: self.on_post, e.Look: self.on_look, e.Withdraw: self.on_nothing,
            e.ComputeModel: self.on_nothing,
        }  # fmt: skip

    def limit(self):
        w = self.what
        return 2 * w.patience + self.stop + 2 * w.deadline + 60 * SECOND

    # -- lives --------------------------------------------------------------------------------------------------------

    def start(self, node_id, from_nothing):
        node, w = self.nodes[node_id], self.what
        if node.running:
            return
        node.life += 1
        self.up += 1
        node.outcome = None
        memory, tally, counted = (None, {}, None) if from_nothing or node.saved is None else node.saved
        rules = AsynchronousRules(
            node_id, w.n, w.rounds, close=simulated.closing('adaptive', w.deadline), patience=w.patience,
            founders=frozenset(i for i in range(w.n) if i != node_id and i not in w.late),
            adopt=self.random.random() < 0.7, stop=self.stop, evaluate=self.random.choice([0, SECOND // 2]),
            every=3, save=w.save_every * SECOND // 4, parts=self.method.parts,
        )  # fmt: skip
        if memory is not None:  # as the wall clock has it, numbers of messages grow over restarts
            memory = replace(memory, number=max(memory.number, 1000 * self.now))
        node.chances = Chances(self, node_id)
        node.protocol = self.make(
            rules, self.method.node, node.chances, Rows, next(HANDLES), Random(self.random.random()).randrange,
            node.token, memory=memory, tally=tally,
            count=None if counted is None else type(counted)(**{**vars(counted), "refused": Counter(counted.refused)}),
        )  # fmt: skip
        if memory is None:
            node.protocol.number = 1000 * self.now
        node.first_choice = 0 if memory is None else memory.choices.get("peers", 0)
        node.first_training = node.next_training = node.protocol.trained
        node.timers, node.waiting, node.arrivals = {}, [], 0
        node.born, node.greeted, node.distinct = self.now, Counter(), set()
        node.base = self.in_books(node.protocol)
        node.held_before = node.protocol.tally["counted"] - node.protocol.tally["used"] - node.protocol.tally["wasted"]
        node.counted_before = node.protocol.tally["counted"]
        node.stopped_until = 0
        self.step(node, e.Started())
        if node.ghost is not None and node.ghost[1] > self.now:
            token, until = node.ghost
            self.later(0, node, e.Present(node_id, token, True))
            self.later(until - self.now, node, e.Present(node_id, token, False))
        self.show_all(node)
        for other in self.nodes:
            if other.running and other is not node:
                self.show(node, other)

    # -- actions ------------------------------------------------------------------------------------------------------

    def on_learn(self, node, action):
        assert action.count == node.next_training, f"training {action.count} instead of {node.next_training}"
        node.next_training += 1
        self.later(self.what.compute[node.node_id], node, e.Learnt(action.count, next(HANDLES)))

    def on_post(self, node, action):
        message = Message(node.node_id, action.row, action.tag, action.note, action.part, action.number)
        for node_id in action.to:
            assert node_id != node.node_id
            self.send(node, node_id, action.number, message)

    def on_look(self, node, action):
        self.check_jump(node, action.memory.elapsed)
        life = node.life

        def looked():
            if node.life == life and node.running:
                p = node.protocol
                copied = type(p.count)(**{**vars(p.count), "refused": Counter(p.count.refused)})
                tally = Counter(p.tally)
                node.saved = (action.memory, tally, copied)
                self.step(node, e.Looked())

        self.at(max(self.now, node.stopped_until) + 5000, looked)

    def on_conclude(self, node, action):
        p = node.protocol
        late = self.now + node.skew - p.origin - self.stop
        assert late >= 0, f"node {node.node_id} ends {-late} microseconds before its stop"
        if not any(fault[1] in ("stop", "jump") for fault in self.what.faults) and p.origin >= node.born:
            assert late <= 1, f"node {node.node_id} ends {late} microseconds after its stop"
        self.later(50_000, node, e.Concluded())

    def deliver(self, receiver, sender, number, message, _):
        node = self.nodes[receiver]
        if not node.running:
            self.messages["nobody"] += 1
            return
        if self.now < node.stopped_until:
            self.at(node.stopped_until, self.deliver, receiver, sender, number, message, _)
            return
        self.messages["arrived"] += 1
        node.arrivals += 1
        node.distinct.add((number, sender))
        self.step(node, e.Came(sender, number, message.note, message))

    # -- a member that lies -------------------------------------------------------------------------------------------

    def lie(self):
        liar = self.nodes[self.what.liar]
        victim = self.nodes[self.random.randrange(self.what.n)]
        if liar.running and victim.running and victim is not liar and self.open(liar.node_id, victim.node_id):
            getattr(self, f"lie_{self.random.choice(LIES)}")(liar, victim)

    def lie_more(self):
        """Nothing: without rounds there are no graphs."""

    def forged(self, liar, victim, number, age):
        kind = self.random.choice(self.method.kinds)
        part = self.random.randrange(self.method.parts) if kind.part else None
        message = Message(liar.node_id, next(HANDLES), kind.tag, (age,) * kind.notes, part, number)
        self.messages["sent"] += 1
        self.deliver(victim.node_id, liar.node_id, number, message, None)

    def lie_messages(self, liar, victim):
        """Old numbers again, numbers and ages of the far future."""
        here = liar.protocol.number
        for _ in range(5):
            number = self.random.choice([1, here, here, max(1, here - WINDOW), here + WINDOW, 2**62])
            self.forged(liar, victim, number, self.random.choice([0, 3, 10**6, 10**18, -5]))
            if not victim.running:
                return

    def lie_flood(self, liar, victim):
        """More than anybody can have to say."""
        for i in range(1500):
            self.forged(liar, victim, liar.protocol.number + i, 0)
            if not victim.running:
                return

    # -- laws ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def in_books(protocol):
        kinds = ("counted", "duplicate", "flood", "early", "late")
        return sum(protocol.tally[k] for k in kinds) + protocol.count.refused["implausible"]

    def check_jump(self, node, elapsed):
        """Time is left out only where another node, and not one that lies, is really that far."""
        others = [o.reached for o in self.nodes if o is not node and o.node_id != self.what.liar]
        if node.reached < 0 and self.what.n > 2:
            assert elapsed <= max(others) + SECOND, f"node {node.node_id} begins at {elapsed}"
        node.reached = max(node.reached, elapsed)

    def step(self, node, event):
        super().step(node, event)
        if node.running and node.protocol.phase == "learning":
            node.reached = max(node.reached, node.protocol.elapsed)

    def check_life(self, node):
        p, n, asked = node.protocol, self.what.n, node.chances.asked
        found = self.in_books(p) - node.base
        assert found == node.arrivals, f"{found} messages are in the books, {node.arrivals} came: {p.tally}"
        machine = p._machine
        held = 0 if machine is None else machine.messages_held()
        open_books = p.tally["counted"] - p.tally["used"] - p.tally["wasted"] - node.held_before
        assert open_books == held, f"{open_books} messages are neither used nor dropped, {held} are held"
        counted = p.tally["counted"] - node.counted_before
        assert counted <= len(node.distinct), (
            f"{counted} messages counted, but {len(node.distinct)} different ones came"
        )
        for sender, room in p._replay_filter._senders.items():
            assert room.seen < 1 << WINDOW, f"of node {sender} more is remembered than of its last messages"
        assert len(asked) == len(set(asked)), "a choice was made twice"
        assert all(choice >= node.first_choice for choice in asked), "a choice of a former life was made again"
        size = simulated.held({k: v for k, v in vars(p).items() if k not in ("context", "_machine", "_make", "rules")})
        assert size <= 200 + 40 * n, f"node {node.node_id} holds {size} things"
        for node_id, times in node.greeted.items():
            most = 12 + 2 * (self.now - node.born) // SECOND + (40 if node_id == self.what.liar else 0)
            assert times <= most, f"node {node_id} was greeted {times} times by node {node.node_id}"

    def check(self):
        w = self.what
        for node in self.nodes:
            assert not node.running, f"node {node.node_id} hangs in {node.protocol.phase}"
            if node.dead_for_good or node.outcome == "left":
                continue
            allowed = ["no other node was found", "learnt anything"]
            if any(fault[1] == "jump" for fault in w.faults):
                allowed.append("another process runs as node")
            if w.liar is not None:
                allowed.append("runs another experiment")
            assert any(words in node.outcome for words in allowed), node.outcome
        on_the_way = sum(1 for _, _, do, _ in self.heap if do == self.deliver)
        ends = self.messages["lost"] + self.messages["nobody"] + self.messages["arrived"] + on_the_way
        assert self.messages["sent"] == ends
        if w.calm:
            assert all(node.outcome == "left" for node in self.nodes), [node.outcome for node in self.nodes]

    def check_liar(self, without):
        for node in self.nodes:
            if node.node_id != self.what.liar:
                assert node.outcome == "left", f"node {node.node_id}: {node.outcome}"
        took = (self.now / SECOND, without.now / SECOND)
        assert self.now <= without.now + self.what.deadline + SECOND, f"it took {took[0]} instead of {took[1]} s"


def run(seed, protocol=Asynchronous):
    """Play the schedule of a seed and check the laws; what came out."""
    gc.disable()
    try:
        schedule = drawn(seed)
        world = World(schedule, protocol).play()
        world.check()
        if schedule.honest_but_one:
            world.check_liar(World(replace(schedule, liar=None), protocol).play())
        return world
    finally:
        gc.enable()
