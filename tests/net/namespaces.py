"""Several hosts on one machine: network namespaces joined by a network that loses, delays or cuts packets, and lets so many bytes a second leave each host.

Each host has a TUN device, and a thread passes packets on between them, so that neither netem nor any kernel module is needed.
"""

import ctypes
import fcntl
import heapq
import math
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from epidemic.deploy.processes import LocalCluster, _child

ADDRESS = {side: f"10.77.0.{node_id}" for node_id, side in enumerate("abcdefgh", 1)}
CLONE_NEWNET = 0x40000000


def enter(namespace):
    """Put the calling thread, and whatever it starts, into a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{namespace}").open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def go_first():
    """Let the calling thread, and whatever it starts, go before others: what is measured should not depend on who else is busy here."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)


def _tun(namespace):
    """A TUN device in a namespace."""
    found = []

    def make():
        enter(namespace)
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, 0x400454CA, struct.pack("16sH", b"link0", 0x0001 | 0x1000))  # TUNSETIFF, TUN without header
        found.append(fd)

    thread = threading.Thread(target=make)  # the namespace belongs to the thread
    thread.start()
    thread.join()
    return found[0]


class Link:
    """A namespace for each host, and what is between them."""

    def __init__(self, name, sides="ab", mtu=1500):
        self.names = {side: f"{name}{side}" for side in sides}
        self.loss, self.delay, self.cut = 0.0, 0.0, False
        self.rate = math.inf  # bytes a second that leave a host
        self.packets = self.dropped = 0
        self._random = random.Random(1)
        for namespace in self.names.values():
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "add", namespace], check=True, capture_output=True)
        self._fds = {side: _tun(namespace) for side, namespace in self.names.items()}
        for side, namespace in self.names.items():
            own = f"addr add {ADDRESS[side]}/24 dev link0"
            for words in ("link set lo up", own, f"link set link0 mtu {mtu}", "link set link0 up"):
                subprocess.run(["ip", "-n", namespace, *words.split()], check=True, capture_output=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self):
        go_first()
        to = {socket.inet_aton(ADDRESS[side]): fd for side, fd in self._fds.items()}
        free = dict.fromkeys(to.values(), 0.0)  # when the uplink of a host is free again
        waiting, number = [], 0
        while not self._stop.is_set():
            pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.1
            for fd in select.select(list(free), [], [], min(pause, 0.1))[0]:
                try:
                    packet = os.read(fd, 65536)
                except BlockingIOError:
                    continue
                other = to.get(packet[16:20])  # where IPv4 says whom it is for
                if other is None:
                    continue
                self.packets += 1
                if self.cut or self._random.random() < self.loss:
                    self.dropped += 1
                    continue
                number += 1
                free[fd] = max(free[fd], time.monotonic()) + len(packet) / self.rate
                heapq.heappush(waiting, (free[fd] + self.delay, number, other, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, fd, packet = heapq.heappop(waiting)
                if not self.cut:
                    try:
                        os.write(fd, packet)
                    except OSError:
                        self.dropped += 1

    def close(self):
        self._stop.set()
        self._thread.join()
        for fd in self._fds.values():
            os.close(fd)
        for namespace in self.names.values():
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _child_there(namespace, environment, *arguments):
    if namespace is not None:
        enter(namespace)
    os.environ.update(environment)
    go_first()
    _child(*arguments)


class ClusterThere(LocalCluster):
    """Nodes in the namespaces that their places belong to (None: where this process is), each with an environment of its own."""

    def __init__(self, folders, namespaces, environments=None):
        self._namespaces = namespaces
        self._environments = environments or [{}] * len(folders)
        super().__init__(folders)

    def _process(self, node_ids, folders):
        there = (self._namespaces[node_ids[0]], self._environments[node_ids[0]])
        arguments = (*there, [str(folder) for folder in folders], False, 1, self._here)
        return self._context.Process(target=_child_there, args=arguments, daemon=False)


def _made(what, **options):
    """A link; skipped, loudly, where this is not allowed."""
    try:
        made = Link(f"el{os.getpid() % 1000}", **options)
    except (OSError, subprocess.CalledProcessError, IndexError) as problem:
        pytest.skip(f"no network namespaces or TUN devices here ({problem}): {what} not tested")
    yield made
    made.close()


@pytest.fixture
def link():
    """A link between two hosts."""
    yield from _made("partitions, loss and delay are")


@pytest.fixture
def eight():
    """A network of eight hosts, whose packets are large enough that their headers hardly count."""
    yield from _made("that simulated time is real time is", sides="abcdefgh", mtu=16000)
