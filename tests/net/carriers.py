"""Bare carriers as real processes: a transport each that sends messages to all the others, and does as it is told through a pipe."""

import multiprocessing
import os
import threading
import time
from pathlib import Path

from epidemic.deploy.addresses import Addresses, free_addresses
from epidemic.deploy.keys import Authority, Identity
from epidemic.deploy.link_monitor import LinkMonitor
from epidemic.deploy.transport import Transport


class Carrier:
    """What runs in the process."""

    def __init__(self, folder, addresses, nodes):
        identity = Identity.load(Path(folder))
        self.node_id, self.nodes = identity.node_id, nodes
        self.tokens, self.lock = set(), threading.Lock()
        self.transport = Transport(identity, addresses, nodes=nodes, largest=2**20)
        self.heard = set()
        self.transport.watch("alive", self.noticed)
        self.transport.receive(lambda sender, frame, node_ids: self.heard.add(sender), lambda sender: None, 2**20)
        self.transport.answer("handshake", lambda question, respond: respond(question))
        self.transport.appear("alive", self.node_id)
        for node_id in set(range(nodes)) - {self.node_id}:
            threading.Thread(target=self.send, args=(node_id,), daemon=True).start()
        threading.Thread(target=self.look, daemon=True).start()

    def noticed(self, node_id, token, there):
        with self.lock:
            (self.tokens.add if there else self.tokens.discard)((node_id, token))

    def send(self, node_id):
        payload = self.transport.payload(bytes(300_000))
        while True:
            self.transport.send(node_id, payload)
            time.sleep(0.2)

    def look(self):
        """As a node does it."""
        sight = LinkMonitor(self.node_id)
        while True:
            for node_id in self.seen():
                sight.saw(node_id, time.monotonic())
            if sight.lost(self.transport.unseen(), time.monotonic()):
                self.transport.renew()
            time.sleep(1)

    def seen(self):
        with self.lock:
            return {node_id for node_id, _ in self.tokens} - {self.node_id}

    def hears(self):
        """From whom messages have come since this was asked last."""
        found, self.heard = self.heard, set()
        return found

    def asks(self):
        """Who answers."""
        found, answered = set(), threading.Semaphore(0)
        others = set(range(self.nodes)) - {self.node_id}

        def took(node_id, answer):
            if answer == b"there?":
                found.add(node_id)
            answered.release()

        for node_id in others:
            self.transport.ask(
                "handshake", node_id, b"there?", 5.0, lambda answer, node_id=node_id: took(node_id, answer), 100
            )
        for _ in others:
            answered.acquire()
        return found


def _live(folder, addresses, nodes, pipe):
    carrier = Carrier(folder, addresses, nodes)
    while True:
        try:
            word = pipe.recv()
        except EOFError:
            os._exit(0)
        if word == "renew":
            pipe.send(carrier.transport.renew())
        else:
            pipe.send(getattr(carrier, word)())


class Carriers:
    """All of them, from outside."""

    def __init__(self, root, nodes):
        authority = Authority.create(root)
        hosts = free_addresses(nodes)
        context = multiprocessing.get_context("forkserver")
        self.processes, self.pipes = [], []
        for node_id, own in enumerate(hosts):
            folder = authority.issue(f"node-{node_id}", ["127.0.0.1"])
            here, there = context.Pipe()
            where = Addresses(own, tuple(host for host in hosts if host != own))
            process = context.Process(target=_live, args=(str(folder), where, nodes, there), daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self.pipes.append(here)

    def tell(self, node_id, word):
        self.pipes[node_id].send(word)
        return self.pipes[node_id].recv()

    def strangers(self, word):
        """Of every ordered pair, those where the first does not see (hear, ask) the second."""
        node_ids = range(len(self.processes))
        return {(a, b) for a in node_ids for b in set(node_ids) - {a} - self.tell(a, word)}

    def until(self, condition, patience=240):
        end = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < end, f"not in time; do not see each other: {self.strangers('seen')}"
            time.sleep(0.2)

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()
