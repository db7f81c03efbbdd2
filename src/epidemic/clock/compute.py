"""Durations of local steps, by kind. All times are seconds of one local step; a training of k steps takes k times as long.

For every kind, node i's cost in its c-th training is `medians[i] * exp(spread * z)` with a standard normal z keyed by (i, c); a kind only defines medians
and spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from epidemic.clock.devices import Device
from epidemic.clock.draws import MOST_SECONDS, FloatArray, normals_by_node
from epidemic.core.errors import BadInput, require_real
from epidemic.core.rng import Streams
from epidemic.core.settings import Settings

FORWARDS = 3
"""Cost of a step in forward passes: one forward, and a backward that counts twice."""


class Compute(Settings, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the kinds of compute time."""

    @property
    def spread(self) -> float:
        """The sigma by which trainings of the same node differ."""
        return 0.0

    @property
    def needs_devices(self) -> bool:
        """Whether speeds are read from the device file."""
        return False

    def medians(self, n: int, streams: Streams, devices: Sequence[Device], batch_size: int) -> FloatArray:
        """The median seconds of a local step of each node.   # (n,)"""
        raise NotImplementedError


class ConstantCompute(Compute, frozen=True, tag="constant"):
    """Every step of every node takes `seconds`."""

    seconds: float = 0.1

    def __post_init__(self) -> None:
        _require_seconds("seconds", self.seconds)

    def medians(self, n: int, streams: Streams, devices: Sequence[Device], batch_size: int) -> FloatArray:
        """The same median for all nodes, in seconds.   # (n,)"""
        return np.full(n, float(self.seconds))


class _Lognormal(Compute, frozen=True):
    median: float
    sigma: float
    mean_one: bool = False
    """Whether `median` is the mean instead: draws are divided by the mean of the lognormal law."""

    def __post_init__(self) -> None:
        _require_seconds("median", self.median)
        require_real("clock.compute.sigma", self.sigma, 0, 2)

    @property
    def _typical(self) -> float:
        return self.median * (math.exp(-(self.sigma**2) / 2) if self.mean_one else 1.0)


class PerNodeCompute(_Lognormal, frozen=True, tag="per-node"):
    """Nodes differ: the cost of a step is drawn once per node, `median * exp(sigma z)`."""

    def medians(self, n: int, streams: Streams, devices: Sequence[Device], batch_size: int) -> FloatArray:
        """One draw per node, in seconds.   # (n,)"""
        return self._typical * np.exp(self.sigma * normals_by_node(streams("clock-compute"), n))


class PerStepCompute(_Lognormal, frozen=True, tag="per-step"):
    """Trainings differ, nodes are alike: the cost of a step is drawn for each training, `median * exp(sigma z)`."""

    @property
    def spread(self) -> float:
        """The sigma by which trainings of the same node differ."""
        return float(self.sigma)

    def medians(self, n: int, streams: Streams, devices: Sequence[Device], batch_size: int) -> FloatArray:
        """The same median for all nodes, in seconds.   # (n,)"""
        return np.full(n, self._typical)


class DeviceCompute(Compute, frozen=True, tag="devices"):
    """Speeds of the device file: a step on a batch of b samples takes 3 * b * ms_per_sample."""

    @property
    def needs_devices(self) -> bool:
        """Return True: speeds are read from the device file."""
        return True

    def medians(self, n: int, streams: Streams, devices: Sequence[Device], batch_size: int) -> FloatArray:
        """The medians from the devices' speeds, in seconds.   # (n,)"""
        for device in devices:
            if device.ms_per_sample is None:
                raise BadInput(
                    f'{device.place} has no ms_per_sample, which clock.compute.kind = "devices" needs;'
                    ' add it, or use another kind, for example "constant"'
                )
        return np.array([FORWARDS * batch_size * device.ms_per_sample / 1000 for device in devices])  # type: ignore[operator]


Unslowed = ConstantCompute | PerNodeCompute | PerStepCompute | DeviceCompute


class SlowedCompute(Compute, frozen=True, tag="slowed"):
    """Another kind, in which the slowest `fraction` of the nodes (random among equals) are `factor` times slower still."""

    inner: Unslowed
    fraction: float
    factor: float

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Unslowed):
            raise BadInput(
                f'clock.compute.inner = {self.inner!r} must be another kind, for example {{kind = "constant", seconds = 0.1}}'
            )
        require_real("clock.compute.fraction", self.fraction, 0, 1)
        require_real("clock.compute.factor", self.factor, 1, 1e6)

    @property
    def spread(self) -> float:
        """The spread of the inner kind."""
        return self.inner.spread

    @property
    def needs_devices(self) -> bool:
        """Whether the inner kind reads the device file."""
        return self.inner.needs_devices

    def slowed(self, n: int) -> int:
        """How many of n nodes are slowed: fraction * n, rounded."""
        return math.floor(self.fraction * n + 0.5)

    def medians(self, n: int, streams: Streams, devices: Sequence[Device], batch_size: int) -> FloatArray:
        """The medians of the inner kind, with the slowest multiplied, in seconds.   # (n,)"""
        seconds = self.inner.medians(n, streams, devices, batch_size)
        lot = streams("clock-slowed").words(n)
        slowest_first = np.lexsort((lot, -seconds))
        seconds[slowest_first[: self.slowed(n)]] *= self.factor
        return seconds


COMPUTES: dict[str, type[Compute]] = {
    "constant": ConstantCompute,
    "per-node": PerNodeCompute,
    "per-step": PerStepCompute,
    "slowed": SlowedCompute,
    "devices": DeviceCompute,
}


def _require_seconds(name: str, seconds: float) -> None:
    require_real(f"clock.compute.{name}", seconds, 1e-6, MOST_SECONDS)
