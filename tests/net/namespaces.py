"""Two hosts on one machine: network namespaces joined by a link that loses, delays or cuts packets.

The link is a pair of TUN devices with a thread between them, so that neither netem nor any kernel module is needed.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

from epidemic.net.processes import Cluster, _child

ADDRESS = {"a": "10.77.0.1", "b": "10.77.0.2"}
CLONE_NEWNET = 0x40000000


def enter(namespace):
    """Put the calling thread, and whatever it starts, into a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{namespace}").open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


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
    """The namespaces a and b, and the wire between them."""

    def __init__(self, name):
        self.names = {side: f"{name}{side}" for side in "ab"}
        self.loss, self.delay, self.cut = 0.0, 0.0, False
        self.packets = self.dropped = 0
        self._random = random.Random(1)
        for namespace in self.names.values():
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "add", namespace], check=True, capture_output=True)
        self._fds = {side: _tun(namespace) for side, namespace in self.names.items()}
        for side, namespace in self.names.items():
            other = ADDRESS["b" if side == "a" else "a"]
            for words in ("link set lo up", f"addr add {ADDRESS[side]} peer {other} dev link0", "link set link0 up"):
                subprocess.run(["ip", "-n", namespace, *words.split()], check=True, capture_output=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self):
        a, b = self._fds["a"], self._fds["b"]
        other, waiting, number = {a: b, b: a}, [], 0
        while not self._stop.is_set():
            pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.1
            for fd in select.select([a, b], [], [], min(pause, 0.1))[0]:
                try:
                    packet = os.read(fd, 65536)
                except BlockingIOError:
                    continue
                self.packets += 1
                if self.cut or self._random.random() < self.loss:
                    self.dropped += 1
                    continue
                number += 1
                heapq.heappush(waiting, (time.monotonic() + self.delay, number, other[fd], packet))
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


def _child_there(namespace, *arguments):
    enter(namespace)
    _child(*arguments)


class ClusterThere(Cluster):
    """Nodes in the namespaces that their places belong to."""

    def __init__(self, folders, namespaces):
        self._namespaces = namespaces
        super().__init__(folders)

    def _process(self, places, folders):
        arguments = (self._namespaces[places[0]], [str(folder) for folder in folders], False, 1, self._here)
        return self._context.Process(target=_child_there, args=arguments, daemon=False)


@pytest.fixture
def link(request):
    """A link between two hosts; skipped, loudly, where this is not allowed."""
    try:
        made = Link(f"el{os.getpid() % 1000}")
    except (OSError, subprocess.CalledProcessError, IndexError) as problem:
        pytest.skip(f"no network namespaces or TUN devices here ({problem}): partitions, loss and delay are not tested")
    yield made
    made.close()
