"""The relay: forwards messages between nodes that cannot reach each other. It holds no model and decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.deploy.addresses import Addresses, read_addresses
from epidemic.deploy.keys import Identity
from epidemic.deploy.transport import Transport
from epidemic.experiment import Experiment, load
from epidemic.learner import Layout
from epidemic.record import HEADER_BYTES
from epidemic.runtime.message_coding import coder_of
from epidemic.runtime.message_coding import message_bytes as numbers_in
from epidemic.runtime.setup import initial_module

PAUSE = 0.5
"""Seconds between checks of the list of revocations."""


def message_bytes(experiment: Experiment) -> int:
    """The size of a message in bytes: header and columns, compressed or not, of a model built as the nodes build it.

    Needs the data, which determines the model's shape.
    """
    return _sizes(experiment)[0]


def most_bytes(experiment: Experiment) -> int:
    """The size of the largest frame in bytes: a message, or an uncompressed model for a returning node."""
    return max(_sizes(experiment))


def _sizes(experiment: Experiment) -> tuple[int, int]:
    if experiment.own_training:
        raise BadInput(
            "what travels is known to your script alone, which says how many bytes a message has when it starts"
        )
    streams = Streams(experiment.seeds[0])
    layout = Layout(initial_module(experiment, experiment.load_data(), streams))
    columns = experiment.algorithm.columns(layout.size, str(layout.dtype).removeprefix("torch."))
    coder = coder_of(experiment, columns, streams)
    return HEADER_BYTES + numbers_in(columns, coder), HEADER_BYTES + numbers_in(columns, None)


def largest_message(folder: Path, addresses: Addresses, experiment: Experiment) -> int:
    """The largest message that a relay accepts, in bytes: from node.toml, or from the experiment."""
    if addresses.largest is not None:
        return addresses.largest
    try:
        return most_bytes(experiment)
    except BadInput as problem:
        raise BadInput(
            f"{folder / 'node.toml'} does not say how large a message is, and it cannot be computed here ({problem}); add:"
            f" largest = BYTES, at least {HEADER_BYTES} more than the numbers of the model take"
        ) from None


def run_relay(folder: Path, *, insecure: bool = False, say: Callable[[str], None] = lambda _: None) -> None:
    """Forward messages until interrupted (KeyboardInterrupt), or until its own certificate is no longer valid (BadInput)."""
    identity = Identity.load(folder)
    if not identity.name.startswith("relay"):
        raise BadInput(
            f"{folder} has the certificate of {identity.name}; make one with 'epidemic keys add DIR --relay'"
        )
    addresses = read_addresses(folder / "node.toml")
    if addresses.listen is None:
        raise BadInput(f'{folder / "node.toml"} gives no address to listen on; add: listen = "0.0.0.0:7447"')
    experiment = load(folder / "experiment.toml")
    largest = largest_message(folder, addresses, experiment)
    transport = Transport(identity, addresses, nodes=experiment.nodes, largest=largest, insecure=insecure, routes=True)
    say(f"listening on {addresses.listen} for messages of up to {largest} bytes; Ctrl-C ends it")
    before, warned = -1, ""
    try:
        while True:
            found = identity.refresh()
            identity.still_good()
            if found.problem and found.problem != warned:
                say(f"{found.problem}; the list read before counts")
            warned = found.problem
            if (
                found.changed
            ):  # access rules are read when the network is opened, so reopen it to lock out revoked nodes
                say("the list of revoked certificates has changed; opening the network again")
                transport.renew()
            now = transport.links()
            if now != before:
                say(f"{now} connected")
            before = now
            time.sleep(PAUSE)
    finally:
        transport.close()
