"""The modelled world of the simulated clock: how fast nodes compute, what links carry, when nodes are online, and when rounds close."""

from __future__ import annotations

from epidemic.clock.churn import (
    CHURNS,
    Churn,
    ConstantCount,
    DeviceChurn,
    DiurnalChurn,
    ExponentialChurn,
    LognormalChurn,
)
from epidemic.clock.compute import (
    COMPUTES,
    Compute,
    ConstantCompute,
    DeviceCompute,
    PerNodeCompute,
    PerStepCompute,
    SlowedCompute,
)
from epidemic.clock.devices import SHIPPED, Device, read_devices
from epidemic.clock.draws import SECOND, microseconds
from epidemic.clock.links import LATENCIES, Links, LognormalLatency, MatrixLatency
from epidemic.clock.spec import Clock, clock_from
from epidemic.clock.world import World
from epidemic.protocol.closing_rules import (
    CLOSES,
    Close,
    CloseAdaptive,
    CloseBarrier,
    CloseDeadline,
    CloseGlobal,
    CloseQuorum,
    CloseSchedule,
    LateMessages,
)

__all__ = [
    "CHURNS",
    "CLOSES",
    "COMPUTES",
    "LATENCIES",
    "SECOND",
    "SHIPPED",
    "Churn",
    "Clock",
    "Close",
    "CloseAdaptive",
    "CloseBarrier",
    "CloseDeadline",
    "CloseGlobal",
    "CloseQuorum",
    "CloseSchedule",
    "Compute",
    "ConstantCompute",
    "ConstantCount",
    "Device",
    "DeviceChurn",
    "DeviceCompute",
    "DiurnalChurn",
    "ExponentialChurn",
    "LateMessages",
    "Links",
    "LognormalChurn",
    "LognormalLatency",
    "MatrixLatency",
    "PerNodeCompute",
    "PerStepCompute",
    "SlowedCompute",
    "World",
    "clock_from",
    "microseconds",
    "read_devices",
]
