"""A small driver of methods without rounds, for their laws: a heap, and rows that are arrays or fractions.

`play(method, rows, ...)` gives a `World`. What happens in it is told by functions: whom `peers(node, count)` gives, how long the
count-th training of a node takes and what comes out of it, how long a message takes (None: it is lost), how long it occupies its uplink.
"""

import heapq
import random
from collections import Counter
from fractions import Fraction

import numpy as np

from epidemic.algorithms.asynchronous import Message

PERIOD = 1_000_000


def chance(seed, purpose, node, count):
    return random.Random(f"{seed} {purpose} {node} {count}").random()


def el_local(n, s, seed=0):
    """s distinct others, anew each time."""

    def peers(node, count):
        drawn = random.Random(f"{seed} peers {node} {count}").sample(range(n - 1), s)
        return [other + (other >= node) for other in drawn]

    return peers


def disagreement(rows):
    """The mean squared distance to the mean."""
    mean = sum(rows) / len(rows)
    return sum(((row - mean) ** 2).sum() if isinstance(row, np.ndarray) else (row - mean) ** 2 for row in rows) / len(rows)  # fmt: skip


class Me:
    """One node's view of a world."""

    def __init__(self, world, id, model):
        self.world, self.id, self.model, self.nodes, self.static = world, id, model, world.n, world.static
        self.trainings, self.sent, self.queue, self.sending = 0, 0, [], False
        self.alarms = {}
        self.busy = False

    @property
    def now(self):
        return self.world.now

    def peers(self, count):
        return self.world.peers(self.id, count)

    def chance(self, purpose, count):
        return chance(self.world.seed, purpose, self.id, count)

    def train(self, row=None):
        assert not self.busy, "a node trains one thing at a time"
        if self.now >= self.world.last_training:
            return
        self.busy = True
        count, self.trainings = self.trainings, self.trainings + 1
        result = self.world.learn(self.id, count, self.model if row is None else row)
        self.world.at(self.now + self.world.takes(self.id, count), 3, self.id, "trained", result)

    def send(self, to, row, *, tag="", note=(), part=None):
        if part is not None:  # what is not sent must never be read
            sent = np.full_like(row, np.nan)
            sent[part :: self.world.parts] = row[part :: self.world.parts]
            row = sent
        for other in to:
            assert other != self.id
            self.queue.append((other, Message(self.id, row, tag, note, part, self.now)))
            self.world.tally["sent"] += 1
        self.leave()

    def leave(self):
        while self.queue and not self.sending:
            other, message = self.queue.pop(0)
            uplink, delay = self.world.uplink, self.world.delay(self.id, other, self.sent)
            self.sent += 1
            if delay is None:
                self.world.tally["lost"] += 1
            else:
                self.world.at(self.now + uplink + delay, 2, other, "received", message)
            if uplink:
                self.sending = True
                self.world.at(self.now + uplink, 2, self.id, "left", None)

    def withdraw(self):
        self.world.tally["withdrawn"] += len(self.queue)
        self.queue.clear()

    def wake_at(self, time, tag=""):
        assert time >= self.now
        self.alarms[tag] = time
        self.world.at(time, 4, self.id, "woken", (tag, time))

    def cancel(self, tag):
        self.alarms.pop(tag, None)

    def mix(self, terms):
        self.world.mixed.append([weight for weight, _ in terms])
        return sum((Fraction(weight) if isinstance(row, Fraction) else weight) * row for weight, row in terms)

    def aggregate(self, own, messages, weights=()):
        rows = [own, *(message.row for message in messages)]
        return self.mix(list(zip(weights or [1 / len(rows)] * len(rows), rows, strict=True)))

    def patch(self, base, parts):
        new = base.copy()
        for part, terms in parts.items():
            here = slice(part, None, self.world.parts)
            new[here] = sum(weight * row[here] for weight, row in terms)
        return new

    def used(self, messages):
        self.world.tally["used"] += len(list(messages))

    def dropped(self, messages):
        self.world.tally["dropped"] += len(list(messages))


class World:
    """All nodes of a method, and what happens to them."""

    def __init__(self, method, rows, peers, *, learn=lambda node, count, row: row, takes=lambda node, count: 0,
                 delay=lambda sender, to, count: 0, uplink=0, seed=0, static=False, last_training=float("inf")):  # fmt: skip
        self.n, self.peers, self.learn, self.takes, self.delay, self.uplink = (
            len(rows),
            peers,
            learn,
            takes,
            delay,
            uplink,
        )
        self.seed, self.static, self.parts, self.last_training = seed, static, method.parts, last_training
        self.now, self.heap, self.number = 0, [], 0
        self.tally, self.mixed, self.heard = Counter(), [], Counter()
        self.nodes = [method.node(Me(self, id, row)) for id, row in enumerate(rows)]
        for node in self.nodes:
            node.started()

    def at(self, time, order, node, what, detail):
        heapq.heappush(self.heap, (time, order, node, self.number, what, detail))
        self.number += 1

    def run(self, until=float("inf")):
        """Everything that happens before a time."""
        while self.heap and self.heap[0][0] < until:
            self.now, _, id, _, what, detail = heapq.heappop(self.heap)
            self.happen(self.nodes[id], what, detail)
        held = sum(node.messages_held() for node in self.nodes)
        assert self.tally["received"] == self.tally["used"] + self.tally["dropped"] + held
        return self

    def happen(self, node, what, detail):
        context = node.context
        if what == "left":
            context.sending = False
            context.leave()
        elif what == "trained":
            context.busy = False
            node.trained(detail)
        elif what == "received":
            self.tally["received"] += 1
            self.heard[context.id] += 1
            node.received(detail)
        elif context.alarms.get(detail[0]) == detail[1]:
            del context.alarms[detail[0]]
            node.woken(detail[0])

    @property
    def rows(self):
        return [node.context.model for node in self.nodes]
