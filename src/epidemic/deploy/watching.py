"""Observers: asking running nodes for their status."""

from __future__ import annotations

import time
from pathlib import Path

from epidemic.core.errors import require_int
from epidemic.deploy.addresses import Addresses, read_addresses, split_address
from epidemic.deploy.keys import Identity
from epidemic.deploy.status import LARGEST_STATUS, Status, open_statuses
from epidemic.deploy.transport import Transport
from epidemic.experiment import Experiment, read_toml

MOST_NODES = 2**16
"""Most nodes of a deployment that are asked; a file that says more is wrong or malicious."""
LARGEST_ANSWER = 2**26
"""Most bytes in which one process may describe its nodes."""


class StatusWatcher:
    """An observer with a certificate of its own."""

    def __init__(self, folder: Path, *, insecure: bool = False) -> None:
        self._identity = Identity.load(folder)
        addresses = read_addresses(folder / "node.toml")
        if addresses.listen is not None:  # a node's own folder
            host, port = split_address(addresses.listen)
            here = f"127.0.0.1:{port}" if host == "0.0.0.0" else addresses.listen  # noqa: S104
            addresses = Addresses(None, (here, *addresses.connect), addresses.relay)
        self._nodes = _nodes_of(folder / "experiment.toml")
        self._transport = Transport(self._identity, addresses, nodes=self._nodes, insecure=insecure)

    def ask(self, timeout: float = 2.0) -> list[Status]:
        """The status of every node that answers, in ascending order of ids."""
        largest = min(LARGEST_STATUS * self._nodes, LARGEST_ANSWER)
        answers = self._transport.ask_all("status", b"", timeout, largest)
        found = {s.node_id: s for raw in answers.values() for s in open_statuses(raw, self._identity, self._nodes)}
        return [found[node_id] for node_id in sorted(found)]

    def wait(self, patience: float) -> list[Status]:
        """The same, after giving nodes `patience` seconds to be found."""
        end = time.monotonic() + patience
        best: list[Status] = []
        while True:
            now = self.ask(min(2.0, patience))
            settled = bool(now) and len(now) == len(best)
            best = now if len(now) >= len(best) else best
            if settled or time.monotonic() >= end:
                return best
            time.sleep(0.3)

    def close(self) -> None:
        """Close the connection to the network."""
        self._transport.close()


def _nodes_of(path: Path) -> int:
    """The number of nodes of an experiment; the rest of the file, and modules that it names, are not read."""
    nodes = read_toml(path).get("nodes", Experiment().nodes)
    require_int(f"{path}: nodes", nodes, 1, MOST_NODES)
    return int(nodes)
