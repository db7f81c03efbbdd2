"""When nodes leave and return, by kind, and what happens to their work. All times are seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from epidemic.clock.devices import Device
from epidemic.clock.draws import BLOCK, MOST_SECONDS, SECOND, FloatArray, TimeArray, microseconds, whole
from epidemic.clock.timelines import Cycle, Cycles, Renewals, Shifts, Timeline
from epidemic.core.errors import BadInput, require_choice, require_int, require_real
from epidemic.core.rng import Stream, Streams
from epidemic.core.settings import Settings

SLICES = 360
"""Parts of a diurnal period; nodes leave and return between them."""


class Churn(Settings, frozen=True, tag_field="kind", forbid_unknown_fields=True, kw_only=True):
    """Base of the kinds of churn."""

    training: Literal["pause", "abort", "finish"] = "pause"
    """What happens to a training when its node goes offline: it continues later, is lost, or is finished all the same."""
    transfers: Literal["drop", "finish"] = "drop"
    """What happens to messages on their way from or to a node that goes offline."""

    def __post_init__(self) -> None:
        require_choice("clock.churn.training", self.training, ["pause", "abort", "finish"])
        require_choice("clock.churn.transfers", self.transfers, ["drop", "finish"])

    @property
    def needs_devices(self) -> bool:
        """Whether sessions are read from the device file."""
        return False

    def timeline(self, n: int, streams: Streams, devices: Sequence[Device]) -> Timeline:
        """When each of n nodes is online."""
        raise NotImplementedError


class _Alternating(Churn, frozen=True):
    """Alternating sessions and pauses. The start falls at a random point of them, so the share of online nodes is constant in time."""

    def lengths(self, on: bool, stream: Stream, size: int) -> FloatArray:
        """The lengths of `size` sessions (on), or of pauses, in seconds.   # (size,)"""
        raise NotImplementedError

    def rest(self, on: bool, stream: Stream) -> float:
        """The rest of the session or pause at the start, in seconds."""
        raise NotImplementedError

    @property
    def share(self) -> float:
        """The share of time that a node is online."""
        raise NotImplementedError

    def timeline(self, n: int, streams: Streams, devices: Sequence[Device]) -> Timeline:
        """Independent renewals for each node."""
        starts_on = (streams("clock-churn").uniforms(n) < self.share).tolist()

        def lengths(node: int, block: int) -> TimeArray:
            stream = streams("clock-churn", node, block)
            seconds = np.empty(BLOCK)
            seconds[::2] = self.lengths(starts_on[node], stream, BLOCK // 2)
            seconds[1::2] = self.lengths(not starts_on[node], stream, BLOCK // 2)
            if block == 0:
                seconds[0] = self.rest(starts_on[node], stream)
            return whole(seconds * SECOND)

        return Renewals(starts_on, lengths, self.share)


class ExponentialChurn(_Alternating, frozen=True, tag="exponential"):
    """Sessions and pauses of exponential lengths: leaving and returning have constant rates."""

    mean_on: float
    mean_off: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_seconds("mean_on", self.mean_on)
        _require_seconds("mean_off", self.mean_off)

    def lengths(self, on: bool, stream: Stream, size: int) -> FloatArray:
        """Exponential lengths in seconds.   # (size,)"""
        mean = self.mean_on if on else self.mean_off
        return -mean * np.log1p(-stream.uniforms(size))

    def rest(self, on: bool, stream: Stream) -> float:
        """An exponential length: the law has no memory."""
        return float(self.lengths(on, stream, 1)[0])

    @property
    def share(self) -> float:
        """The share of time online: the mean session over the sum of both means."""
        return self.mean_on / (self.mean_on + self.mean_off)


class LognormalChurn(_Alternating, frozen=True, tag="lognormal"):
    """Sessions and pauses of lognormal lengths."""

    median_on: float
    median_off: float
    sigma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_seconds("median_on", self.median_on)
        _require_seconds("median_off", self.median_off)
        _require_sigma(self.sigma)

    def lengths(self, on: bool, stream: Stream, size: int) -> FloatArray:
        """Lognormal lengths in seconds.   # (size,)"""
        return (self.median_on if on else self.median_off) * np.exp(self.sigma * stream.normals(size))

    def rest(self, on: bool, stream: Stream) -> float:
        """The rest of a length that is met at a random time."""
        return _met(self.median_on if on else self.median_off, self.sigma, stream)

    @property
    def share(self) -> float:
        """The share of time online; the ratio of the means is that of the medians."""
        return self.median_on / (self.median_on + self.median_off)


class ConstantCount(Churn, frozen=True, tag="constant-count"):
    """Always `online` nodes are online, with sessions of lognormal lengths; a node that leaves is replaced by a random one that is offline."""

    online: int
    median: float
    sigma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("clock.churn.online", self.online, 1)
        _require_seconds("median", self.median)
        _require_sigma(self.sigma)

    def timeline(self, n: int, streams: Streams, devices: Sequence[Device]) -> Timeline:
        """One process for all nodes."""
        if self.online > n - 1:
            raise BadInput(
                f"clock.churn.online = {self.online} must be at most nodes - 1 = {n - 1}; leave churn out if no node ever leaves"
            )
        first = streams("clock-churn").permutation(n)[: self.online].tolist()
        at_start = set(first)

        def lengths(node: int, block: int) -> TimeArray:
            stream = streams("clock-churn", node, block)
            seconds = self.median * np.exp(self.sigma * stream.normals(BLOCK))
            if block == 0 and node in at_start:
                seconds[0] = _met(self.median, self.sigma, stream)
            return whole(seconds * SECOND)

        return Shifts(first, n, lengths, lambda block: streams("clock-churn-next", block))


class DiurnalChurn(Churn, frozen=True, tag="diurnal"):
    """Day and night: the number of online nodes oscillates between the shares `low` and `high` once a `period`.

    Node i's inclination at time t is sin(2 pi t / period + phase_i) + bias_i, with a uniform phase and a bias of the law Beta(2, 5). The nodes with the
    greatest inclination are online; some may never be. Recomputed at the start of each 360th of a period.
    """

    period: float = 3600.0
    low: float = 0.1
    high: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("clock.churn.period", self.period, 0.001, MOST_SECONDS)
        require_real("clock.churn.low", self.low, 0, 1)
        require_real("clock.churn.high", self.high, 0, 1)
        if self.low > self.high:
            raise BadInput(f"clock.churn.low = {self.low:g} must be at most high = {self.high:g}")

    def counts(self, n: int) -> TimeArray:
        """How many of n nodes are online in each slice of the period, at least one.   # (SLICES,)"""
        swing = (1 + np.sin(2 * math.pi * np.arange(SLICES) / SLICES)) / 2
        return np.clip(np.rint(n * (self.low + (self.high - self.low) * swing)), 1, n).astype(np.int64)

    def timeline(self, n: int, streams: Streams, devices: Sequence[Device]) -> Timeline:
        """The same cycle in every period."""
        u = streams("clock-churn").uniforms(n, 7)
        phase, bias = 2 * math.pi * u[:, 0], beta_2_5(u[:, 1:])
        on = np.zeros((n, SLICES), dtype=bool)
        for part, count in enumerate(self.counts(n).tolist()):
            inclination = np.sin(2 * math.pi * part / SLICES + phase) + bias
            on[np.argsort(-inclination, kind="stable")[:count], part] = True
        period = microseconds(self.period)
        times = [part * period // SLICES for part in range(SLICES + 1)]
        return Cycles([Cycle([(times[a], times[a + 1]) for a in np.flatnonzero(row)], period) for row in on])


class DeviceChurn(Churn, frozen=True, tag="devices"):
    """The sessions of the device file; devices without any (no field `on`) are always online."""

    @property
    def needs_devices(self) -> bool:
        """Return True: sessions are read from the device file."""
        return True

    def timeline(self, n: int, streams: Streams, devices: Sequence[Device]) -> Timeline:
        """The cycles of the devices."""
        if all(device.on is None for device in devices):
            raise BadInput(
                'clock.churn.kind = "devices", but none of the devices says when it is on; give the file the field on,'
                ' or use another kind, for example "exponential"'
            )
        return Cycles([device.cycle() for device in devices])


Comings = ExponentialChurn | LognormalChurn | ConstantCount | DiurnalChurn | DeviceChurn
CHURNS: dict[str, type[Churn]] = {
    "exponential": ExponentialChurn,
    "lognormal": LognormalChurn,
    "constant-count": ConstantCount,
    "diurnal": DiurnalChurn,
    "devices": DeviceChurn,
}


def beta_2_5(uniforms: FloatArray) -> FloatArray:
    """A draw of the law Beta(2, 5) from each row of six uniform ones: the second smallest.   # (n, 6) -> (n,)"""
    return np.sort(uniforms, axis=1)[:, 1]


def _met(median: float, sigma: float, stream: Stream) -> float:
    """The rest of a lognormal length that is met at a random time; long ones are met more often."""
    met = median * math.exp(sigma**2 + sigma * float(stream.normals(1)[0]))
    return met * (1 - float(stream.uniforms(1)[0]))


def _require_seconds(name: str, seconds: float) -> None:
    require_real(f"clock.churn.{name}", seconds, 1e-6, MOST_SECONDS)


def _require_sigma(sigma: float) -> None:
    require_real("clock.churn.sigma", sigma, 0, 3)
