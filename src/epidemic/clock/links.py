"""Link capacities, and latencies that do not depend on message size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from epidemic.clock.devices import Device
from epidemic.clock.draws import LONGEST, MBIT, MOST_SECONDS, FloatArray, microseconds, normal_of
from epidemic.core.errors import BadInput, plain, require_choice, require_real
from epidemic.core.rng import Streams
from epidemic.core.settings import Settings

Delay = Callable[[int, int], int]
"""Microseconds from a sender to a receiver."""

MOST_SITES = 4096
LARGEST_MATRIX = 2**28
"""Most bytes of a file of latencies."""
REMEMBERED_PAIRS = 2**17


class LognormalLatency(Settings, frozen=True, tag_field="kind", tag="lognormal", forbid_unknown_fields=True):
    """Drawn once per pair of nodes, the same in both directions: `median * exp(sigma z)` seconds."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        require_real("clock.links.latency.median", self.median, 1e-6, MOST_SECONDS)
        require_real("clock.links.latency.sigma", self.sigma, 0, 2)

    def delay(self, streams: Streams, where: Path) -> Delay:
        """A function of sender and receiver that returns microseconds."""

        @lru_cache(maxsize=REMEMBERED_PAIRS)
        def drawn(low: int, high: int) -> int:
            z = normal_of(streams.key("clock-latency", low, high))
            return min(max(microseconds(self.median * math.exp(self.sigma * z)), 1), LONGEST)

        return lambda sender, receiver: drawn(sender, receiver) if sender < receiver else drawn(receiver, sender)

    def described(self, where: Path) -> dict[str, float]:
        """The settings as numbers, in seconds."""
        return {"median": self.median, "sigma": self.sigma}


class MatrixLatency(Settings, frozen=True, tag_field="kind", tag="matrix", forbid_unknown_fields=True):
    """From a text file of comma-separated milliseconds: a row for each sending site, a column for each receiving one.

    Node i is at site i modulo the number of sites; two nodes at one site have the latency on the diagonal.
    """

    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise BadInput(f"clock.links.latency.path = {self.path!r} must name a file of milliseconds")

    def delay(self, streams: Streams, where: Path) -> Delay:
        """A function of sender and receiver that returns microseconds."""
        rows = [[microseconds(ms / 1000) for ms in row] for row in self.read(where).tolist()]
        sites = len(rows)
        return lambda sender, receiver: rows[sender % sites][receiver % sites]

    def described(self, where: Path) -> dict[str, float]:
        """A summary of the matrix in seconds, without the diagonal if there are several sites."""
        found = self.read(where) / 1000
        apart = found[~np.eye(len(found), dtype=bool)] if len(found) > 1 else found.ravel()
        return {
            "sites": len(found),
            "min": float(apart.min()),
            "median": float(np.median(apart)),
            "max": float(apart.max()),
        }

    def read(self, where: Path) -> FloatArray:
        """Read the matrix, in milliseconds.   # (sites, sites)"""
        path = where / self.path
        try:
            if path.stat().st_size > LARGEST_MATRIX:
                raise BadInput(f"{path} must be at most {LARGEST_MATRIX >> 20} MiB large; it is no file of latencies")
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            reason = getattr(problem, "strerror", None) or "it is not a text"
            raise BadInput(f"clock.links.latency.path = {str(path)!r} cannot be read: {reason}") from None
        rows = [
            _numbers(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip(", \t")
        ]
        if not 1 <= len(rows) <= MOST_SITES:
            raise BadInput(f"{path} has {len(rows)} rows of latencies; it must have 1 to {MOST_SITES}")
        for number, row in enumerate(rows, start=1):
            if len(row) != len(rows):
                raise BadInput(
                    f"{path}: row {number} has {len(row)} numbers, but there are {len(rows)} rows; it must be square"
                )
        return np.array(rows)


def _numbers(line: str, place: str) -> list[float]:
    found = []
    for column, text in enumerate(line.replace(",", " ").split(), start=1):
        try:
            value = float(text)
        except ValueError:
            raise BadInput(f"{place}, column {column}: {plain(text, 40)!r} is not a number of milliseconds") from None
        if not 0 <= value <= MOST_SECONDS:  # also refuses NaN
            raise BadInput(
                f"{place}, column {column}: {value:g} ms must be at least 0 and at most {MOST_SECONDS:g};"
                " put an estimate (the median, for example) where a measurement is missing"
            )
        found.append(value)
    return found


Latency = float | LognormalLatency | MatrixLatency
LATENCIES: dict[str, type[Any]] = {"lognormal": LognormalLatency, "matrix": MatrixLatency}


class Links(Settings, frozen=True, forbid_unknown_fields=True):
    """The capacity of every node's link, in Mbit/s, and the latency of messages, in seconds."""

    uplink: float = 0.0
    """Mbit/s out of every node; 0: unlimited. Not together with a device file that has up_kbps."""
    downlink: float = 0.0
    """Mbit/s into every node; 0: unlimited."""
    latency: Latency = 0.0
    """Seconds, or a table with a kind: lognormal or matrix."""
    model: Literal["uplink", "duplex", "fair"] = "uplink"
    """uplink: messages of a sender leave one after the other. duplex: they also arrive one after the other. fair: all transfers share the links."""
    order: Literal["random", "ascending"] = "random"
    """The order in which messages sent at once to several receivers leave."""

    def __post_init__(self) -> None:
        require_choice("clock.links.model", self.model, ["uplink", "duplex", "fair"])
        require_choice("clock.links.order", self.order, ["random", "ascending"])
        for name in ("uplink", "downlink"):
            require_real(f"clock.links.{name}", getattr(self, name), 0, 1e9)
        if self.downlink and self.model == "uplink":
            raise BadInput(
                f'clock.links.downlink = {self.downlink:g} has no part in model = "uplink"; use "duplex" or "fair"'
            )
        if not isinstance(self.latency, LognormalLatency | MatrixLatency):
            require_real("clock.links.latency", self.latency, 0, MOST_SECONDS)

    def delay(self, streams: Streams, where: Path) -> Delay:
        """A function of sender and receiver that returns microseconds."""
        if isinstance(self.latency, LognormalLatency | MatrixLatency):
            return self.latency.delay(streams, where)
        constant = microseconds(self.latency)
        return lambda sender, receiver: constant

    def described(self, where: Path) -> dict[str, float]:
        """The latency as plain numbers, in seconds."""
        if isinstance(self.latency, LognormalLatency | MatrixLatency):
            return self.latency.described(where)
        return {"median": float(self.latency)}

    def uplinks(self, n: int, devices: Sequence[Device]) -> FloatArray:
        """Bytes per microsecond out of each node; inf: unlimited.   # (n,)"""
        return _rates("uplink", self.uplink, "up_kbps", n, devices)

    def downlinks(self, n: int, devices: Sequence[Device]) -> FloatArray:
        """Bytes per microsecond into each node; inf: unlimited.   # (n,)"""
        return _rates("downlink", self.downlink, "down_kbps", n, devices)


def _rates(name: str, mbit: float, field: str, n: int, devices: Sequence[Device]) -> FloatArray:
    """The rates of the devices if given, otherwise the same for all.   # (n,)"""
    with_rate = [device for device in devices if getattr(device, field) is not None]
    if not with_rate:
        return np.full(n, mbit * MBIT if mbit else math.inf)
    if mbit:
        raise BadInput(f"clock.links.{name} = {mbit:g}, but {with_rate[0].place} has {field} already; leave one out")
    if len(with_rate) < len(devices):
        without = next(device for device in devices if getattr(device, field) is None)
        raise BadInput(f"{without.place} has no {field}, but others have; give it to all devices or to none")
    return np.array([getattr(device, field) for device in devices]) * MBIT / 1000
