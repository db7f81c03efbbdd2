"""Simulated schedules: a population of round protocols over a fake network and a fake clock, reproducible from a seed.

A schedule draws how many nodes there are, how rounds close, how long trainings and messages take, and what goes wrong: messages lost, doubled,
delayed and reordered; crashes with a restart from a checkpoint or from nothing; processes stopped for a while; clocks that jump; networks
that split and heal; nodes that are slow or come late; a member that lies, at times with several node ids in its process. `run(seed)` plays it to its end and checks the laws:

  nobody hangs        every live node finishes, or says why, within `World.limit` after the last fault
  messages             none counts twice, in another round, or from somebody unexpected; never more than the cap
  books               every message that was sent ends in one tally of its receiver or of the network
  barrier             without a crash every node mixes exactly what the simulator would
  quiet               a shared coin without a cap asks for nothing while nothing is late
  greetings           nobody is greeted faster than the pauses between greetings allow
  memory              what a protocol holds is bounded by the number of nodes, whatever it was told
  pace                each message is seen once
  graphs              a message of a current or near round with a wrong graph is refused and counted as such, and never mixed
  jumps               rounds are left out only where another honest node is really that far, whatever all ids of one process say
  a liar              where it is all that is wrong it ends nobody, and costs no more time than the deadlines of a few rounds
"""

from __future__ import annotations

import gc
import heapq
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random

from epidemic.core.rng import Streams
from epidemic.protocol import events as e
from epidemic.protocol.closing_rules import CLOSES
from epidemic.protocol.rounds import NodeView, Rounds, Rules
from epidemic.topology import Base, ELLocal, ELOracle, Matcha, Periodic, Ring

SECOND = e.SECOND
LEASE = 5 * SECOND  # until a silent connection counts as dead
GREETING = 3 * SECOND  # how long a hello is waited for
NOT_HELD = ("_node", "rules", "view", "draw")
PLAIN = (int, str, bytes, bool, type(None))
LIES = ("progress", "messages", "questions", "answers", "tokens", "carrier", "differs", "repeat")
MORE_LIES = 20
"""So many of the lies are drawn from a random source of their own, so that the others are the same as they were before these were added."""


@lru_cache(maxsize=4096)
def views(kind, n, s, seed, round):
    """Every node's view of a round."""
    topology = {
        "el-local": ELLocal(s), "el-oracle": ELOracle(s), "ring": Ring(),
        "base": Base(s), "matcha": Matcha(Ring(), budget=0.4, probabilities="uniform"), "periodic": Periodic(Base(s), period=3),
    }[kind]  # fmt: skip
    graph = topology.graph(n, round, Streams(seed))
    digest = bytes([round % 251]) * 8
    return tuple(NodeView(tuple(graph.out_of(i).tolist()), frozenset(graph.into(i).tolist()), digest) for i in range(n))


@dataclass
class Schedule:
    """What a seed stands for."""

    seed: int
    n: int
    rounds: int
    topology: str
    s: int
    close: str
    private: bool
    cap: int | None
    deadline: int
    patience: int
    compute: list  # microseconds a training takes, by node
    delay: tuple  # least and most microseconds of a message
    loss: float
    doubling: float
    faults: list = field(default_factory=list)  # (time, what, ...)
    late: dict = field(default_factory=dict)  # spare places: when they start
    save_every: int = 2
    liar: int | None = None
    ids: tuple = ()  # further node ids of the liar's process
    amnesia: float = 0.0  # how often a token that was lost is not shown again

    @property
    def calm(self):
        """Whether nothing is ever late: no faults, and everything is quick."""
        return not (self.faults or self.late or self.loss or self.liar is not None) and self.delay[1] < SECOND // 10

    @property
    def honest_but_one(self):
        """Whether a liar is all that is wrong."""
        quick = self.delay[1] < SECOND // 10 and max(self.compute) < SECOND // 4
        return self.liar is not None and quick and not (self.faults or self.late or self.loss)

    @property
    def crashes(self):
        return any(fault[1] == "crash" for fault in self.faults)

    @property
    def liars(self):
        """All node ids of the process that lies."""
        return {self.liar, *self.ids} - {None}


def drawn(seed):
    """The schedule of a seed."""
    made = drawn_with_one_id(seed)
    if made.close == "adaptive" and seed % 5 == 3:
        made.close = "deadline"
    if made.liar is not None and made.n > 5:
        others = [i for i in range(made.n) if i != made.liar and i not in made.late]
        harmed = set(range(made.n)) if "split" in {what for _, what, *_ in made.faults} else {f[2] for f in made.faults}
        ids = Random(f"ids {seed}").sample(others, -(-(made.n - 1) // 3) - 1)  # enough, if each of them was a witness
        if not harmed & {made.liar, *ids}:  # what happens to a process would happen to all its nodes
            made.ids = tuple(sorted(ids))
    return made


def drawn_with_one_id(seed):
    """The schedule of a seed, as long as every process has one node."""
    r = Random(seed)
    n = r.choice([2, 3, 3, 4, 4, 5, 5, 6, 7, 8, 10, 12] + ([16, 24] if seed % 16 == 0 else []))
    topology = r.choice(["el-local", "el-local", "el-oracle", "ring"]) if n > 2 else "el-local"
    s = r.randint(1, min(4, n - 1))
    if topology == "el-oracle" and n * s % 2:
        s = 2
    close = r.choice(["adaptive", "adaptive", "quorum", "barrier"])
    private = close != "barrier" and topology == "el-local" and r.random() < 0.2
    cap = r.randint(1, 3) if close != "barrier" and r.random() < 0.15 else None
    compute = [r.randint(20_000, 60_000) for _ in range(n)]
    made = Schedule(
        seed, n, r.choice([1, 3, 5, 8, 8]), topology, s, close, private, cap,
        deadline=r.choice([2, 5]) * SECOND, patience=r.choice([4, 20]) * SECOND, compute=compute,
        delay=r.choice([(1_000, 2_000), (1_000, 30_000), (5_000, 400_000)]),
        loss=r.choice([0.0, 0.0, 0.0, 0.02, 0.2]), doubling=r.choice([0.0, 0.0, 0.1]),
    )  # fmt: skip
    made.save_every = r.choice([1, 2, 5])
    if r.random() < 0.3:
        return made
    if r.random() < 0.3:
        compute[r.randrange(n)] *= r.choice([5, 30])
    if close != "barrier" and n > 3 and r.random() < 0.2:
        made.late[n - 1] = r.randint(0, 4 * SECOND)
    if n > 3 and close != "barrier" and r.random() < 0.25:
        made.liar = r.randrange(n - 1)
        if r.random() < 0.4:
            return made
    for _ in range(r.choice([0, 1, 1, 2, 3])):
        at, who = r.randint(0, 3 * SECOND), r.randrange(n)
        what = r.choice(["crash", "crash", "stop", "jump", "split"])
        if what == "crash":
            back = None if r.random() < 0.3 else at + r.randint(0, 3 * SECOND)
            made.faults.append((at, "crash", who, back, r.random() < 0.3))
        elif what == "stop":
            made.faults.append((at, "stop", who, r.choice([SECOND // 2, 3 * SECOND, 9 * SECOND])))
        elif what == "jump":
            made.faults.append((at, "jump", who, r.choice([SECOND, 30 * SECOND])))
        else:
            group = frozenset(i for i in range(n) if r.random() < 0.5)
            made.faults.append((at, "split", group, r.choice([SECOND, 3 * SECOND, 12 * SECOND])))
    made.amnesia = r.choice([0.0, 0.0, 0.5])
    return made


def closing(kind, deadline, **more):
    """The closing rule of a kind, in which a node waits for at most `deadline` microseconds where that has a limit."""
    settings = {
        "barrier": {}, "adaptive": {"deadline": deadline / SECOND}, "deadline": {"seconds": deadline / SECOND},
        "quorum": {"q": 0.75, "deadline": deadline / SECOND},
    }  # fmt: skip
    return CLOSES[kind](**{**settings[kind], **more})


class Node:
    """A place, through its lives."""

    def __init__(self, node_id):
        self.node_id = node_id
        self.process = self  # the node whose connection carries its messages
        self.life = 0
        self.renewals = 0
        self.protocol = None
        self.saved = None  # done, kept, tally, count
        self.waiting = []  # events while the process is stopped
        self.stopped_until = 0
        self.skew = 0
        self.timers = {}
        self.arrivals = 0
        self.base = 0  # messages that were tallied in earlier lives
        self.inboxes = {}
        self.born = 0
        self.distinct = set()  # rounds and senders of the messages that came in this life
        self.reached = -1  # the furthest round that it was in
        self.greeted = Counter()  # whom it greeted in this life
        self.ghost = None  # the token of its last life, and until when it is still shown
        self.outcome = None  # "left", or why it failed
        self.jumped = 0  # rounds left out
        self.dead_for_good = False

    @property
    def running(self):
        return self.protocol is not None

    @property
    def token(self):
        return f"{self.process.node_id}/{self.process.life}/{self.process.renewals}"


class World:
    """Time, the network, and all nodes."""

    def __init__(self, schedule, protocol=Rounds):
        self.what = schedule
        self.make = protocol
        self.random = Random(schedule.seed + 1)
        self.more = Random(f"more lies {schedule.seed}")
        self.now = 0
        self.heap = []
        self.order = 0
        self.nodes = [Node(i) for i in range(schedule.n)]
        for node_id in schedule.ids:
            self.nodes[node_id].process = self.nodes[schedule.liar]
        self.splits = []  # groups that are cut off from the rest
        self.shown = {}  # (viewer, its life, place, token) that the network shows: when the viewer knows
        self.messages = Counter()  # what the network did with messages
        self.last_fault = 0
        self.asked = 0
        self.pending_starts = self.up = 0
        self.handshakes = deque(maxlen=64)  # said lately, by anybody
        self.do = {
            e.SetTimer: self.on_timer, e.Send: self.on_send, e.Train: self.on_train, e.Mix: self.on_mix,
            e.Greet: self.on_greet, e.Ask: self.on_ask, e.Answer: self.on_answer, e.AnswerMessage: self.on_answer_message,
            e.Give: self.on_give, e.Adopt: self.on_adopt, e.Conclude: self.on_conclude, e.Leave: self.on_leave,
            e.Fail: self.on_fail, e.Say: self.on_nothing, e.Forget: self.on_nothing,
        }  # fmt: skip

    # -- time ---------------------------------------------------------------------------------------------------------

    def at(self, time, do, *args):
        self.order += 1
        heapq.heappush(self.heap, (time, self.order, do, args))

    def play(self):
        starts = [self.what.late.get(node_id, self.random.randint(0, SECOND // 2)) for node_id in range(self.what.n)]
        for node_id in sorted(range(self.what.n), key=lambda node_id: node_id in self.what.ids):  # after the liar
            self.at_start(starts[self.nodes[node_id].process.node_id], node_id, False)
        for time, what, *rest in self.what.faults:
            self.at(time, getattr(self, f"do_{what}"), *rest)
        self.last_fault = max([0, *self.what.late.values(), *(fault[0] for fault in self.what.faults)])
        if self.what.liar is not None:
            for _ in range(40):
                self.at(int(6 * SECOND * self.random.random() ** 2), self.lie)
            for _ in range(MORE_LIES):
                self.at(int(3 * SECOND * self.more.random() ** 2), self.lie_more)
        limit = self.limit()
        while self.heap:
            time, _, do, args = heapq.heappop(self.heap)
            self.now = time
            if time > self.last_fault + limit:
                break
            do(*args)
            if not self.up and not self.pending_starts:
                break
        return self

    def at_start(self, time, node_id, from_nothing):
        self.pending_starts += 1

        def go():
            self.pending_starts -= 1
            self.start(node_id, from_nothing)

        self.at(time, go)

    def limit(self):
        """A stated time after the last fault within which every live node has finished."""
        w = self.what
        a_round = w.deadline + max(w.compute) + SECOND
        # with a barrier, on a ring, one after the other finds its neighbour to have been away for too long
        patiences = 2 + (w.n // 2 if w.close == "barrier" else 0)
        return patiences * w.patience + (w.rounds + 3) * a_round + 60 * SECOND

    def step(self, node, event):
        if node.protocol is None:
            return
        if self.now < node.stopped_until:
            node.waiting.append(event)
            return
        actions = node.protocol.step(event, self.now + node.skew)
        if isinstance(node.protocol, Rounds):
            self.check_jump(node, node.protocol.round)  # also where it neither trains nor sends in a round
        for action in actions:
            self.do[type(action)](node, action)

    def later(self, delay, node, event):
        self.at(self.now + delay, self.arrive, node, node.life, event)

    def arrive(self, node, life, event):
        if node.life == life and node.running:
            self.step(node, event)

    # -- lives --------------------------------------------------------------------------------------------------------

    def start(self, node_id, from_nothing):
        node, w = self.nodes[node_id], self.what
        if node.running:
            return
        node.life += 1
        self.up += 1
        node.outcome = None
        saved = None if from_nothing else node.saved
        founders = frozenset(i for i in range(w.n) if i != node_id and i not in w.late)
        rules = Rules(
            node_id, w.n, w.rounds, close=closing(w.close, w.deadline), patience=w.patience, founders=founders,
            adopt=self.random.random() < 0.7, cap=w.cap, retries=self.random.choice([0, 1, 5]), blind=w.private,
        )  # fmt: skip
        secret = Random(self.random.random())
        drawing = {}

        def view(round):
            found = drawing.get(round)
            if found is None:
                if w.private:
                    others = [i for i in range(w.n) if i != node_id]
                    found = NodeView(tuple(secret.sample(others, w.s)), None, bytes(8))
                else:
                    found = views(w.topology, w.n, w.s, w.seed % 7, round)[node_id]
                drawing[round] = found
            return found

        done, kept, tally, count = saved or (0, {}, {}, None)
        node.protocol = self.make(
            rules, view, secret.randrange, node.token, done=done, kept=kept, tally=tally,
            count=None if count is None else type(count)(**{**vars(count), "refused": Counter(count.refused)}),
        )  # fmt: skip
        node.timers, node.waiting, node.arrivals = {}, [], 0
        node.born, node.greeted, node.distinct = self.now, Counter(), set()
        node.seen_before = sum(node.protocol.mailbox.tally[kind] for kind in ("counted", "skipped", "late"))
        node.stopped_until = 0
        node.base = sum(v for k, v in tally.items() if k != "early") + sum(node.protocol.count.refused.values())
        node.base -= self.said(node.protocol)
        self.step(node, e.Started())
        if node.ghost is not None and node.ghost[1] > self.now:  # the end of its last life was not noticed yet
            token, until = node.ghost
            self.later(0, node, e.Present(node_id, token, True))
            self.later(until - self.now, node, e.Present(node_id, token, False))
        self.show_all(node)
        for other in self.nodes:
            if other.running and other is not node:
                self.show(node, other)

    def show_all(self, node):
        """Show a node's token to everybody who is there."""
        for other in self.nodes:
            if other is not node and other.running:
                self.show(other, node)

    def show(self, viewer, node):
        node_id = node.process.node_id
        key = (viewer.node_id, viewer.life, node_id, node.token)
        if self.open(viewer.node_id, node_id) and node.running and key not in self.shown:
            delay = self.delay()
            self.shown[key] = self.now + delay
            self.later(delay, viewer, e.Present(node_id, node.token, True))

    def hide(self, viewer, node_id, token, delay):
        key = (viewer.node_id, viewer.life, node_id, token)
        if key in self.shown:
            known = self.shown.pop(key)  # what is shown of one token comes in order
            self.later(max(delay, known - self.now + 1), viewer, e.Present(node_id, token, False))

    def end(self, node, outcome, noticed=0):
        self.check_life(node)
        node.outcome, node.jumped = outcome, node.protocol.count.jumped
        token, node.protocol = node.token, None
        self.up -= 1
        if any(other.process is node.process and other.running for other in self.nodes):
            return  # its process goes on
        node.ghost = (token, self.now + noticed)
        for other in self.nodes:
            self.hide(other, node.process.node_id, token, noticed + self.delay())

    def save(self, node):
        p = node.protocol
        kept = {round: tuple(sent) for round, sent in p.questions.kept.items()} if p.rules.barrier else {}
        count = type(p.count)(**{**vars(p.count), "refused": Counter(p.count.refused)})
        # of messages that are early and lost with the process nothing is left
        node.saved = (p.done, kept, dict(p.mailbox.tally), count)

    # -- faults -------------------------------------------------------------------------------------------------------

    def do_crash(self, node_id, back, from_nothing):
        node = self.nodes[node_id]
        if not node.running:
            return
        self.end(node, None, noticed=self.random.choice([0, 0, LEASE]))
        if back is None:
            node.dead_for_good = True
            return
        self.last_fault = max(self.last_fault, node.ghost[1], back)
        self.at_start(max(back, self.now), node_id, from_nothing)

    def do_stop(self, node_id, length):
        node = self.nodes[node_id]
        if not node.running:
            return
        node.stopped_until = self.now + length
        life = node.life
        self.last_fault = max(self.last_fault, self.now + length)
        if length > LEASE:
            self.at(self.now + LEASE, self.lose_token, node, life)

        def go_on():
            if node.life != life or not node.running:
                return
            waiting, node.waiting = node.waiting, []
            for event in waiting:
                self.step(node, event)
            self.reappear(node)

        self.at(self.now + length, go_on)

    def lose_token(self, node, life):
        if node.life == life and node.running:
            for other in self.nodes:
                self.hide(other, node.node_id, node.token, self.delay())

    def reappear(self, node):
        """Show a node's token again; where that does not work, the node opens its connections anew after a while."""
        for other in self.nodes:
            if other is not node and other.running:
                if self.random.random() >= self.what.amnesia:
                    self.show(other, node)
                else:
                    self.last_fault = max(self.last_fault, self.now + 10 * SECOND)
                    self.at(self.now + 10 * SECOND, self.renew, node, node.life)

    def renew(self, node, life):
        if node.life != life or not node.running:
            return
        if self.now < node.stopped_until:
            self.at(node.stopped_until, self.renew, node, life)
            return
        for other in self.nodes:
            self.hide(other, node.node_id, node.token, 0)
            self.hide(node, other.node_id, other.token, 0)
        node.renewals += 1
        self.step(node, e.Renewed(node.token))
        self.at(self.now + 1, self.show_both, node, life)

    def show_both(self, node, life):
        if node.life == life and node.running:
            self.show_all(node)
            for other in self.nodes:
                if other is not node and other.running:
                    self.show(node, other)

    def do_jump(self, node_id, length):
        self.nodes[node_id].skew += length
        for name, at in list(self.nodes[node_id].timers.items()):
            self.set_timer(self.nodes[node_id], name, at)

    def do_split(self, group, length):
        self.splits.append(group)
        self.last_fault = max(self.last_fault, self.now + length)
        if length > LEASE:
            self.at(self.now + LEASE, self.notice_split, group)

        def heal():
            self.splits.remove(group)
            for one in self.nodes:
                if one.running:
                    self.reappear(one)

        self.at(self.now + length, heal)

    def notice_split(self, group):
        for one in self.nodes:
            for other in self.nodes:
                if other.running and one.running and not self.open(one.node_id, other.node_id):
                    self.hide(one, other.node_id, other.token, self.delay())

    def open(self, a, b):
        return not self.splits or all((a in group) == (b in group) for group in self.splits)

    # -- the network --------------------------------------------------------------------------------------------------

    def delay(self):
        least, most = self.what.delay
        return least + int((most - least) * self.random.random())

    def lost(self, a, b):
        return not self.open(a, b) or (self.what.loss and self.random.random() < self.what.loss)

    def send(self, sender, receiver, round, graph):
        message = (round, sender.node_id, receiver)
        for _ in range(2 if self.what.doubling and self.random.random() < self.what.doubling else 1):
            self.messages["sent"] += 1
            if self.lost(sender.node_id, receiver):
                self.messages["lost"] += 1
            else:
                self.at(self.now + self.delay(), self.deliver, receiver, sender.node_id, round, graph, message)

    def deliver(self, receiver, sender, round, graph, message):
        node = self.nodes[receiver]
        if not node.running:
            self.messages["nobody"] += 1
            return
        if self.now < node.stopped_until:  # it waits in the stopped process's buffers
            self.at(node.stopped_until, self.deliver, receiver, sender, round, graph, message)
            return
        self.messages["arrived"] += 1
        node.arrivals += 1
        node.distinct.add((round, sender))
        self.step(node, e.Arrived(sender, round, graph, message))

    def handshake(self, node):
        round, start, finished, gone = node.protocol.handshake()
        said = e.Introduced(node.node_id, node.process.node_id, node.token, round, start, (), finished, gone)
        if self.what.liar is not None:
            self.handshakes.append(said)
        return said

    def question(self, asker, to, patience, reach, fallback):
        """Ask somebody: `reach(node, reply)` at the other end; exactly one answer comes back, or `fallback` in time."""
        life, over = asker.life, []

        def answer(event):
            if not over and asker.life == life and asker.running:
                over.append(1)
                self.step(asker, event)

        def reply(event):
            if not over and not self.lost(to, asker.node_id):
                self.at(self.now + self.delay(), answer, event)

        def arrive():
            node = self.nodes[to]
            if node.running and self.now >= node.stopped_until:
                reach(node, reply)

        if not self.lost(asker.node_id, to):
            self.at(self.now + self.delay(), arrive)
        self.at(self.now + patience, answer, fallback)

    def set_timer(self, node, name, at):
        node.timers[name] = at
        life = node.life

        def fire():
            if node.life == life and node.running and node.timers.get(name) == at:
                if self.now < node.stopped_until:
                    self.at(node.stopped_until, fire)
                    return
                del node.timers[name]
                self.step(node, e.Timer(name))

        self.at(max(self.now, at - node.skew), fire)

    # -- actions ------------------------------------------------------------------------------------------------------

    def on_timer(self, node, action):
        self.set_timer(node, action.name, action.at)

    def on_send(self, node, action):
        self.check_jump(node, action.round)
        graph = node.protocol.view(action.round).graph
        for node_id in action.to:
            self.send(node, node_id, action.round, graph)

    def on_train(self, node, action):
        self.check_jump(node, action.round)
        self.later(self.what.compute[node.node_id], node, e.Trained(action.round))

    def on_mix(self, node, action):
        self.check_inbox(node, action.round, action.messages)
        self.at(self.now + 1000, self.mixed, node, node.life, action.round)

    def on_greet(self, node, action):
        if action.node_id is not None:
            node.greeted[action.node_id] += 1
        for to in range(self.what.n) if action.node_id is None else (action.node_id,):
            if to != node.node_id:
                self.greet(node, to)

    def on_ask(self, node, action):
        self.asked += 1
        self.ask(node, action.topic, action.to, action.round, action.patience)

    def on_answer(self, node, action):
        action.reply(action.word)

    def on_answer_message(self, node, action):
        self.send(node, action.to, action.round, node.protocol.view(action.round).graph)
        action.reply("sent")

    def on_give(self, node, action):
        action.reply(("model", node.node_id))

    def on_adopt(self, node, action):
        self.later(1000, node, e.Adopted())

    def on_conclude(self, node, action):
        self.check_jump(node, self.what.rounds)
        self.later(50_000, node, e.Concluded())

    def on_leave(self, node, action):
        self.end(node, "left")

    def on_fail(self, node, action):
        if "learnt nothing" in action.reason:
            self.check_jump(node, self.what.rounds)  # it believes that the others are at their end
        self.end(node, action.reason)

    def on_nothing(self, node, action):
        pass

    def mixed(self, node, life, round):
        if node.life != life or not node.running:
            return
        if self.now < node.stopped_until:
            self.at(node.stopped_until, self.mixed, node, life, round)
            return
        self.step(node, e.Mixed(round))
        if node.running and node.protocol.done % self.what.save_every == 0:
            self.save(node)

    def greet(self, node, to):
        handshake = self.handshake(node)

        def reach(other, reply):
            self.step(other, handshake)
            if other.running:
                reply(self.handshake(other))

        self.question(node, to, GREETING, reach, e.Ungreeted(to))

    def ask(self, node, topic, to, round, patience):
        def reach(other, reply):
            def answered(content):
                reply(e.Answered(topic, to, round, content))

            self.step(other, e.Asked(topic, node.node_id, round, answered))

        self.question(node, to, patience, reach, e.Answered(topic, to, round, None))

    # -- a member that lies -------------------------------------------------------------------------------------------

    def lie(self):
        """Something that only a malicious member does, in the liar's own name."""
        liar = self.nodes[self.what.liar]
        victim = self.nodes[self.random.randrange(self.what.n)]
        if not liar.running or not victim.running or victim is liar or not self.open(liar.node_id, victim.node_id):
            return
        getattr(self, f"lie_{self.random.choice(LIES)}")(liar, victim)

    def lie_progress(self, liar, victim):
        """It says to be anywhere."""
        round = self.random.choice([10**9, self.what.rounds, self.what.rounds - 1, 3, -1])
        start = self.random.choice([0, 0, 2, self.what.rounds, 10**9])
        finished, gone = self.random.random() < 0.2, self.random.random() < 0.1
        self.step(victim, e.Introduced(liar.node_id, liar.node_id, liar.token, round, start, (), finished, gone))

    def lie_messages(self, liar, victim):
        """Old and future messages, again and again."""
        for _ in range(5):
            round = self.random.choice([0, 1, victim.protocol.round, self.what.rounds - 1, 10**9])
            graph = bytes(8) if self.what.private else bytes([round % 251]) * 8
            self.messages["sent"] += 1
            self.deliver(victim.node_id, liar.node_id, round, graph, (round, liar.node_id, victim.node_id))
            if not victim.running:
                return

    def lie_questions(self, liar, victim):
        for topic in ("again", "model", "offer"):
            self.step(victim, e.Asked(topic, liar.node_id, self.random.choice([-5, 0, 2, 10**12]), lambda _: None))
            if not victim.running:
                return

    def lie_answers(self, liar, victim):
        """Answers that nobody asked for."""
        topic, word = self.random.choice(["again", "model", "offer"]), self.random.choice([e.NOTHING, e.ACCEPTED, None])
        self.step(victim, e.Answered(topic, liar.node_id, victim.protocol.round, word))

    def lie_tokens(self, liar, victim):
        """It flickers."""
        token = f"another {self.random.randrange(40)}"
        self.step(victim, e.Present(liar.node_id, token, self.random.random() < 0.7))

    def lie_carrier(self, liar, victim):
        """It says that its messages come over somebody else's connection."""
        other = self.nodes[self.random.randrange(self.what.n)]
        self.step(victim, e.Introduced(liar.node_id, other.node_id, other.token, 0, 0))

    def lie_differs(self, liar, victim):
        self.step(victim, e.Introduced(liar.node_id, liar.node_id, liar.token, 0, 0, ("everything",)))

    def lie_repeat(self, liar, victim):
        """What somebody said of itself before is said again."""
        if self.handshakes:
            self.step(victim, self.random.choice(self.handshakes))

    def lie_more(self):
        """A lie under one of the liar's node ids: about graphs, or about where its process is."""
        liar = self.nodes[self.more.choice(sorted(self.what.liars))]
        victim = self.nodes[self.more.randrange(self.what.n)]
        lie = self.lie_graph if not self.what.ids or self.more.random() < 0.4 else self.lie_ids
        there = liar.running and victim.running and self.open(liar.node_id, victim.node_id)
        if there and victim.node_id not in self.what.liars and self.now >= victim.stopped_until:
            lie(liar, victim)

    def lie_graph(self, liar, victim):
        """Messages of the current and the next rounds, drawn from another graph."""
        p, w = victim.protocol, self.what
        here = max(p.done, p.round)
        for round in {here, here + 1, here + self.more.randint(0, p.rules.ahead), here - 1}:
            if not victim.running or not 0 <= round < w.rounds:
                continue
            why = "wrong-graph" if p.coin is None else "wrong-coin"
            before, near = p.count.refused[why], here <= round <= here + p.rules.ahead or round in p._ready
            self.messages["sent"] += 1
            message = (round, liar.node_id, victim.node_id, "wrong graph")
            self.deliver(victim.node_id, liar.node_id, round, b"another.", message)
            refused = p.count.refused[why] - before
            assert refused == near, f"a wrong graph in round {round}, {here} is open: {refused} messages refused"

    def lie_ids(self, liar, victim):
        """All node ids of its process say to be far ahead, carried by the process or by others."""
        round = self.more.choice([self.what.rounds, self.what.rounds - 1, victim.protocol.round + 3])
        others = self.more.sample(self.nodes, len(self.what.liars))
        for node_id in sorted(self.what.liars):
            process = liar.process if self.more.random() < 0.8 else others.pop()
            if victim.running:
                at = min(round, self.what.rounds)
                self.step(
                    victim, e.Introduced(node_id, process.node_id, process.token, at, 0, (), self.more.random() < 0.2)
                )

    # -- laws ---------------------------------------------------------------------------------------------------------

    def check_inbox(self, node, round, messages):
        """No message counts twice or in another round."""
        assert round == node.protocol.round
        senders = [sender for sender, _ in messages]
        assert senders == sorted(set(senders)), f"a message counts twice: {senders}"
        for sender, message in messages:
            assert "wrong graph" not in message, f"a message with a wrong graph counts: {message}"
            assert message == (round, sender, node.node_id), f"a message in another round: {message} in {round}"
        w = self.what
        if not w.private and w.cap is None:
            assert set(senders) <= node.protocol.view(round).expected, "a message of somebody unexpected counts"
        if w.cap is not None:
            assert len(senders) <= w.cap, f"{len(senders)} messages count, more than the cap of {w.cap}"
        if w.close == "barrier":
            assert set(senders) == node.protocol.view(round).expected, "not what the simulator would mix"
        node.inboxes[round] = senders

    def check_jump(self, node, round):
        """Rounds are left out only where another node, and not one that lies, is really that far."""
        if round > node.reached + 1:
            lying = self.what.liars
            others = (other.reached for other in self.nodes if other is not node and other.node_id not in lying)
            real = max(node.reached, *others) if self.what.n > 2 else self.what.rounds
            assert round <= real + 1, f"node {node.node_id} goes to round {round}, but the others are in {real}"
        node.reached = max(node.reached, round)

    def check_life(self, node):
        """What must hold whenever a protocol ends."""
        self.check_books(node)
        p, n = node.protocol, self.what.n
        assert held(p) <= 200 + 40 * n, f"node {node.node_id} holds {held(p)} things"
        seen = sum(p.mailbox.tally[kind] for kind in ("counted", "skipped", "late")) - node.seen_before
        assert seen <= len(node.distinct), f"{seen} messages were counted or late, but {len(node.distinct)} came"
        assert len(p.adaptive_timeout._waits) <= seen, (
            f"the pace has seen {len(p.adaptive_timeout._waits)} messages of {seen}"
        )
        for node_id, times in node.greeted.items():
            most = 12 + 2 * (self.now - node.born) // SECOND + (40 + MORE_LIES if node_id in self.what.liars else 0)
            assert times <= most, f"node {node_id} was greeted {times} times by node {node.node_id}"

    def check_books(self, node):
        """Every message that arrived is in exactly one tally."""
        p = node.protocol
        tallied = sum(p.mailbox.tally.values()) + sum(p.count.refused.values()) - self.said(p)
        assert all(v >= 0 for v in p.mailbox.tally.values()), f"less than no messages: {p.mailbox.tally}"
        found = tallied - node.base
        assert found == node.arrivals, f"{found} messages are in the books, {node.arrivals} came: {p.mailbox.tally}"

    @staticmethod
    def said(protocol):
        """Refused hellos are no messages."""
        return protocol.count.refused["implausible-handshake"]

    def check(self):
        w = self.what
        for node in self.nodes:
            assert not node.running, (
                f"node {node.node_id} hangs in {node.protocol.phase}, round {node.protocol.round} of {w.rounds}"
            )
            if node.dead_for_good:
                continue
            assert node.outcome is not None
            if node.outcome != "left" and w.close != "barrier":
                allowed = ["no other node was found", "learnt nothing"]
                if any(fault[1] == "jump" for fault in w.faults):  # its last life seems to be shown for long
                    allowed.append("another process runs as node")
                if (
                    w.liar is not None
                ):  # who comes when all others have left finds the liar alone, and says what it is told
                    allowed.append("runs another experiment")
                assert any(words in node.outcome for words in allowed), node.outcome
            if node.outcome == "left" and w.close == "barrier" and not w.crashes:
                assert sorted(node.inboxes) == list(range(w.rounds))
        on_the_way = sum(1 for _, _, do, _ in self.heap if do == self.deliver)
        assert (
            self.messages["sent"]
            == self.messages["lost"] + self.messages["nobody"] + self.messages["arrived"] + on_the_way
        )
        if w.calm and w.cap is None:
            assert all(node.outcome == "left" for node in self.nodes), [node.outcome for node in self.nodes]
            late = any(node.jumped for node in self.nodes)  # who is so slow that it leaves rounds out is missed in them
            if not w.private and max(w.compute) < SECOND // 4 and not late:
                assert self.asked == 0, "a control message although nothing was late"

    def check_liar(self, without):
        """One that lies is all that is wrong: nobody else notices much, compared with the same schedule without it."""
        w = self.what
        for node in self.nodes:
            if node.node_id not in w.liars:
                assert node.outcome == "left", f"node {node.node_id}: {node.outcome}"
        assert self.now <= without.now + 4 * w.deadline, (
            f"it took {self.now / SECOND} instead of {without.now / SECOND} s"
        )


def held(thing):
    """How many things a protocol holds: the lengths of all its containers, whatever they are called."""
    if isinstance(thing, dict):
        size, inside = len(thing), thing.values()
    elif isinstance(thing, set | frozenset | deque | list | tuple):
        size, inside = len(thing), thing
    elif hasattr(thing, "__dict__") and not callable(thing):
        size, inside = 0, (value for name, value in vars(thing).items() if name not in NOT_HELD)
    else:
        return 0
    for value in inside:
        if type(value) not in PLAIN:
            size += held(value)
    return size


def with_part(**parts):
    """A protocol some of whose parts are of another class."""

    class Broken(Rounds):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            for name, kind in parts.items():
                getattr(self, name).__class__ = kind

    return Broken


def run(seed, protocol=Rounds, topology=None):
    """Play the schedule of a seed, perhaps over another topology, and check the laws; what came out."""
    gc.disable()  # looking for cycles of references takes a third of the time
    try:
        schedule = drawn(seed)
        if topology is not None:
            schedule = replace(schedule, topology=topology, private=False)
        world = World(schedule, protocol).play()
        world.check()
        if schedule.honest_but_one:
            world.check_liar(World(replace(schedule, liar=None, ids=()), protocol).play())
        return world
    finally:
        gc.enable()
