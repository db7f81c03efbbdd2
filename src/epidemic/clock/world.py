"""The world: answers the simulated clock's questions about a run, in whole microseconds.

Every answer is a function of (purpose, node, the node's own count), so the order of questions is irrelevant. Costs of trainings are drawn in blocks,
because they are needed millions of times.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from epidemic.clock.draws import MBIT, SECOND, FloatArray, whole
from epidemic.clock.links import Delay
from epidemic.clock.timelines import Timeline
from epidemic.core.rng import Streams

TRAININGS = 256
"""Costs of trainings of a node drawn at once: one draw takes as long as sixty answers."""


class World:
    """Speeds, links and availability of the n nodes of one run. Made by `Clock.world`.

    Attributes:
        n: Number of nodes.
        uplink: Bytes per microsecond out of each node; inf: unlimited.   # (n,)
        downlink: Bytes per microsecond into each node; inf: unlimited.   # (n,)
        latency: Microseconds from a sender to a receiver, besides the time for the message's bytes.
    """

    def __init__(
        self,
        *,
        seconds: FloatArray,
        spread: float,
        uplink: FloatArray,
        downlink: FloatArray,
        delay: Delay,
        timeline: Timeline | None,
        streams: Streams,
        about: Mapping[str, Any],
    ) -> None:
        self.n = len(seconds)
        self.uplink, self.downlink = uplink, downlink
        self.latency = delay
        self._median = seconds * SECOND
        self._spread = spread
        self._timeline = timeline
        self._streams = streams
        self._about = about
        self._fixed: list[int] = whole(self._median).tolist()
        self._block = [-1] * self.n  # index of the block that each node keeps
        self._costs = [array("q")] * self.n

    def step_cost(self, node: int, count: int) -> int:
        """Microseconds of one local step in the node's count-th training (from 0)."""
        if not self._spread:
            return self._fixed[node]
        if self._block[node] != count // TRAININGS:
            self._draw(node, count // TRAININGS)
        return self._costs[node][count % TRAININGS]

    def _draw(self, node: int, block: int) -> None:
        z = self._streams("clock-steps", node, block).normals(TRAININGS)
        self._costs[node] = array("q", whole(self._median[node] * np.exp(self._spread * z)).tobytes())
        self._block[node] = block

    def on_at_start(self, node: int) -> bool:
        """Whether the node is online at time 0."""
        return self.on_at(node, 0)

    def on_at(self, node: int, time: int) -> bool:
        """Whether the node is online at this time; sessions are half-open, [a, b)."""
        return self._timeline is None or self._timeline.on_at(node, time)

    def next_change(self, node: int, after: int) -> int | None:
        """The first microsecond after `after` at which the node leaves or returns; None: never."""
        return None if self._timeline is None else self._timeline.next_change(node, after)

    def describe(self) -> dict[str, Any]:
        """A summary as plain numbers: seconds, Mbit/s, shares of time. A missing rate is unlimited."""
        on = np.ones(self.n) if self._timeline is None else self._timeline.availability()
        about: dict[str, Any] = {
            "step_s": {**_range(self._median / SECOND), **({"sigma": self._spread} if self._spread else {})},
            **self._about,
            "availability": _range(on) | {"mean": float(on.mean())},
            "on_at_start": sum(self.on_at_start(node) for node in range(self.n)),
        }
        for name, rates in (("uplink_mbit", self.uplink), ("downlink_mbit", self.downlink)):
            if math.isfinite(rates.max()):
                about[name] = _range(rates / MBIT)
        return about


def _range(values: FloatArray) -> dict[str, float]:
    return {"min": float(values.min()), "median": float(np.median(values)), "max": float(values.max())}
