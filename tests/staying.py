"""Long simulated schedules: whatever went wrong, the nodes come together again and stay together.

A schedule is like those of `simulated`, but it does not end: after the last fault the nodes get a stated time to find each other again
(`Long.settling`), and then they are watched for a while. The laws, for every closing rule:

  together    all live nodes that can reach each other are within 2 rounds of each other (`Long.allowed` says where it is more)
  heard       each node counts at least 95 % of the messages that its peers sent it for the rounds that it closes, but for those of slow senders;
              85 % where in-neighbours are unknown; half of them where a slow node keeps its neighbours waiting
  rounds      each node closes at least 95 % of the rounds that it passes; half of them by quorum, with a cap or beside a slow node, where those
              who get their messages late are left behind and leave rounds out
  company     no node closes a round without a message while a peer that it could wait for is alive and a little behind,
              unless its deadline has passed
  slow        a node ten times slower than the others does not make a round last longer than the deadline allows, and its messages
              count whenever it takes part

Nodes that are slower than the others by more than the time that is always granted are watched by the last law only: nobody waits for them.
"""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import simulated
from epidemic.protocol.rounds import BEHIND, LEAD, Rounds

SECOND = simulated.SECOND
ENDLESS = 100_000
"""Rounds: more than any schedule comes to."""
WATCHED = 4 * SECOND
"""How long nodes are watched after they have settled."""
SPREAD = 2
"""How many rounds they may be apart."""
NUMBER = [2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 8, 10, 12]


@dataclass
class LongSchedule(simulated.Schedule):
    """A schedule without an end."""

    slow: int | None = None  # who trains ten times as long as the others
    delayed: list = field(default_factory=list)  # (from, to, node, microseconds): messages to it take longer
    save_every: int = 5


def drawn(seed):
    """The schedule of a seed."""
    r = Random(seed)
    n = r.choice(NUMBER + ([16, 24] if seed % 8 == 0 else []))
    topology = r.choice(["el-local", "el-local", "el-oracle", "ring"]) if n > 2 else "el-local"
    s = r.randint(1, min(4, n - 1))
    if topology == "el-oracle" and n * s % 2:
        s = 2
    close = r.choice(["adaptive", "adaptive", "quorum", "barrier"])
    private = close != "barrier" and topology == "el-local" and r.random() < 0.25
    cap = r.randint(1, 3) if close != "barrier" and not private and r.random() < 0.1 else None
    each = r.choice([30_000, 60_000, 200_000])
    made = LongSchedule(
        seed, n, ENDLESS, topology, s, close, private, cap,
        deadline=r.choice([2, 5]) * SECOND, patience=60 * SECOND,
        compute=[int(each * r.uniform(0.8, 1.2)) for _ in range(n)],
        delay=r.choice([(1_000, 2_000), (1_000, 20_000)]), loss=0.0, doubling=r.choice([0.0, 0.0, 0.1]),
    )  # fmt: skip
    if n > 2 and r.random() < 0.2:
        made.slow = r.randrange(n)
        made.compute[made.slow] *= 10
    kinds = ["pause", "pause", "delay", "split", "stop", "jump", "crash", "crash"]
    if close == "barrier":
        kinds = ["pause", "delay", "split", "stop"]  # who is gone for good ends a barrier
    for _ in range(r.choice([0, 1, 1, 2, 3])):
        at, who = r.randint(2 * SECOND, 5 * SECOND), r.randrange(n)
        length = r.choice([SECOND // 2, 3 * SECOND // 2, 3 * SECOND, 9 * SECOND])
        what = r.choice(kinds)
        if what == "pause":  # all but a few
            running = r.sample(range(n), r.randint(1, max(1, n // 3)))
            made.faults += [(at, "stop", i, length) for i in range(n) if i not in running]
        elif what == "delay":
            made.delayed.append((at, at + SECOND // 4, who, min(length, 4 * SECOND)))
        elif what == "split":
            made.faults.append((at, "split", frozenset(i for i in range(n) if r.random() < 0.5), length))
        elif what == "stop":
            made.faults.append((at, "stop", who, length))
        elif what == "jump":
            made.faults.append((at, "jump", who, r.choice([SECOND, 30 * SECOND])))
        else:
            back = None if r.random() < 0.3 else at + r.randint(0, 3 * SECOND)
            made.faults.append((at, "crash", who, back, r.random() < 0.3))
    made.amnesia = r.choice([0.0, 0.0, 0.5])
    return made


class Long(simulated.World):
    """A population that is watched after the last fault."""

    def __init__(self, schedule, protocol=Rounds):
        super().__init__(schedule, protocol)
        self.watching = False
        self.sent = {}  # (receiver, round): who sent it a message, that is not slow
        self.counted = Counter()  # by node: messages that counted while it was watched
        self.given = Counter()  # by node: messages that it was sent for these rounds
        self.of_slow = Counter()  # messages of the slow node while it was watched: sent, counted
        self.closings = []  # (node, round, senders) while they were watched
        self.spread = 0
        self.worst = None

    def settling(self):
        """The stated time after the last fault within which the nodes have come together again."""
        w = self.what
        return 3 * w.deadline + simulated.LEASE + 5 * SECOND

    def play(self):
        w = self.what
        for node_id in range(w.n):
            self.at_start(self.random.randint(0, SECOND // 2), node_id, False)
        for time, what, *rest in w.faults:
            self.at(time, getattr(self, f"do_{what}"), *rest)
        ends = [until + extra for _, until, _, extra in w.delayed]
        self.last_fault = max([2 * SECOND, *ends, *(fault[0] for fault in w.faults)])
        while self.heap:
            time, _, do, args = simulated.heapq.heappop(self.heap)
            self.now = time
            start = self.last_fault + self.settling()
            if not self.watching and time > start:
                self.watching = True
                self.at(time, self.look)
            if time > start + (3 * WATCHED if w.private or w.cap is not None else WATCHED):
                break
            do(*args)
        return self

    def send(self, sender, receiver, round, graph):
        if sender.node_id != self.what.slow:
            self.sent.setdefault((receiver, round), set()).add(sender.node_id)
        elif self.watching:
            self.of_slow["sent"] += 1
        super().send(sender, receiver, round, graph)

    def at(self, time, do, *args):
        if do == self.deliver:
            for start, until, node, extra in self.what.delayed:
                if start <= self.now < until and args[0] == node:
                    time += extra
        super().at(time, do, *args)

    def on_mix(self, node, action):
        senders = {sender for sender, _ in action.messages}
        if not senders:
            self.check_company(node, action.round)
        if self.watching:
            self.closings.append((node.node_id, action.round, senders))
        self.check_waited(node)
        super().on_mix(node, action)

    # -- laws ---------------------------------------------------------------------------------------------------------

    def check_jump(self, node, round):
        node.reached = max(node.reached, round)

    def check_waited(self, node):
        w = self.what
        if w.close != "barrier" and self.watching:
            took = self.now + node.skew - node.waiting_since
            most = w.deadline + SECOND // 100
            assert took <= most, (
                f"node {node.node_id} waited for {took / SECOND} s, the deadline is {w.deadline / SECOND} s"
            )

    def step(self, node, event):
        before = None if node.protocol is None else node.protocol.round
        if before is not None and node.protocol.phase != "waiting":
            node.waiting_since = self.now + node.skew
        super().step(node, event)
        if node.protocol is not None and node.protocol.round != before:
            node.waiting_since = self.now + node.skew  # rounds were left out

    def check_company(self, node, round):
        """Law "company"."""
        w, p = self.what, node.protocol
        if w.private or w.cap is not None:
            return
        if self.now + node.skew - node.waiting_since >= w.deadline:
            return
        alive = p.membership.alive(p.now)
        for node_id in p.view(round).expected & alive:
            other = self.nodes[node_id]
            if not other.running or not other.protocol.begun or not self.open(node.node_id, node_id):
                continue
            behind = round - other.protocol.round
            takes_part = other.protocol.start <= round and not p.membership.given_up(node_id, p.now)
            assert not (0 <= behind < LEAD and takes_part), (
                f"node {node.node_id} closes round {round} alone, {node_id} is in {other.protocol.round}"
            )

    def live(self):
        """Who is watched."""
        return [
            node for node in self.nodes if node.running and node.node_id != self.what.slow and not self.lost_track(node)
        ]

    def lost_track(self, node):
        """Whether a node that has come back meets too few others to believe where they are: it waits out its patience."""
        others = sum(other.running for other in self.nodes) - 1
        return not node.protocol.begun and others < min(2, self.what.n - 1)

    def look(self):
        """Law "together"."""
        live = self.live()
        rounds = {node.node_id: max(node.protocol.round, node.protocol.done) for node in live}
        for a in live:
            for b in live:
                apart = rounds[a.node_id] - rounds[b.node_id]
                if apart > SPREAD and (apart := apart - self.allowed(a, b, rounds[a.node_id])) > self.spread:
                    self.spread, self.worst = apart, (self.now, dict(rounds))
        self.at(self.now + SECOND // 10, self.look)

    def allowed(self, a, b, round):
        """By how many rounds a node may be ahead of another one.

        Waiting passes from neighbour to neighbour: on a ring it takes a round for each hop. Who has no in-neighbours waits for nobody.
        Where in-neighbours are unknown it takes a round more, and a quorum that came together is not held up by those without a
        message. Who has only the slow node to wait for falls behind by the rounds that fit into its training.
        """
        w, unknown = self.what, self.what.private or self.what.cap is not None
        most = SPREAD + unknown
        if unknown and w.close == "quorum":
            most = LEAD
        if w.topology == "ring":
            most = max(most, min((a.node_id - b.node_id) % w.n, (b.node_id - a.node_id) % w.n))
        if w.slow is not None:
            most += w.compute[w.slow] // min(w.compute) + BEHIND
        alive = a.protocol.membership.alive(a.protocol.now)
        while not unknown and round and not a.protocol.view(round - 1).expected & alive:
            round, most = round - 1, most + 1
        return most

    def check(self):
        w = self.what
        if all(node.dead_for_good for node in self.nodes):
            return  # nobody is left to stay together
        assert self.watching, "the schedule ended before the nodes were watched"
        for node in self.nodes:
            if not node.running and not node.dead_for_good:
                raise AssertionError(f"node {node.node_id} is no longer there: {node.outcome}")
        assert not self.spread, f"nodes are apart by {self.spread} rounds too many: {self.worst}"
        self.check_rounds()
        for node_id, round, senders in self.closings:
            given = self.sent.get((node_id, round), set())
            enough = w.n
            if w.close == "quorum":  # it does not wait for more
                enough = simulated.closing("quorum", w.deadline).needed(w.s if w.private else len(given))
            enough = min(enough, w.cap or w.n)
            self.given[node_id] += min(enough, len(given))
            self.counted[node_id] += min(enough, len(given & senders))
            self.of_slow["counted"] += w.slow in senders
        for node in self.live():
            given, counted = self.given[node.node_id], self.counted[node.node_id]
            share = 0.5 if w.slow is not None else 0.85 if w.private or w.cap is not None else 0.95
            assert counted >= share * given - 1, f"node {node.node_id} counted {counted} of {given} messages"
        if w.slow is not None and self.nodes[w.slow].running and w.close != "quorum":  # a quorum waits for nobody slow
            sent, counted = self.of_slow["sent"], self.of_slow["counted"]
            assert counted >= 0.6 * sent - 2 * w.s, f"{counted} of {sent} messages of the slow node counted"

    def check_rounds(self):
        """Law "rounds"."""
        w, closed = self.what, {}
        for node_id, round, _ in self.closings:
            closed.setdefault(node_id, []).append(round)
        share = 0.5 if w.close == "quorum" or w.cap is not None or w.slow is not None else 0.95
        for node in self.live():
            rounds = closed.get(node.node_id, [])
            assert rounds, f"node {node.node_id} closes no rounds"
            passed = rounds[-1] - rounds[0] + 1
            left_out = passed - len(rounds)
            assert left_out <= (1 - share) * passed + 1, f"node {node.node_id} leaves out {left_out} of {passed} rounds"


World = Long


def run(seed, protocol=Rounds):
    """Play the long schedule of a seed and check the laws; what came out."""
    gc.disable()
    try:
        world = Long(drawn(seed), protocol).play()
        world.check()
        return world
    finally:
        gc.enable()
