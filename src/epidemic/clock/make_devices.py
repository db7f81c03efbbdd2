"""Device files generated from laws with a seed, and the two that are in the package.

`python -m epidemic.clock.make_devices` writes the latter again, to the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from epidemic.clock.churn import Churn, DiurnalChurn, ExponentialChurn, LognormalChurn
from epidemic.clock.devices import MOST_DEVICES, SHIPPED, Line
from epidemic.clock.draws import MOST_SECONDS, SECOND, FloatArray, microseconds, normals_by_node
from epidemic.clock.timelines import Timeline
from epidemic.core.errors import BadInput, argument, require_int, require_real, suggestion
from epidemic.core.files import write_bytes
from epidemic.core.rng import Stream, Streams

MOST_SESSIONS = 10_000
"""Most sessions of one device in a period."""


def _constant(stream: Stream, n: int, value: float) -> FloatArray:
    return np.full(n, value)


def _uniform(stream: Stream, n: int, low: float, high: float) -> FloatArray:
    if low > high:
        raise BadInput(f"uniform:{low:g}:{high:g} must have the smaller number first")
    return low + (high - low) * stream.uniforms(n)


def _lognormal(stream: Stream, n: int, median: float, sigma: float) -> FloatArray:
    require_real("the sigma of a lognormal law", sigma, 0, 2)
    return median * np.exp(sigma * normals_by_node(stream, n))


LAWS: dict[str, tuple[Callable[..., FloatArray], tuple[str, ...]]] = {
    "constant": (_constant, ("VALUE",)),
    "uniform": (_uniform, ("LOW", "HIGH")),
    "lognormal": (_lognormal, ("MEDIAN", "SIGMA")),
    "none": (_constant, ()),
}
CHURN_LAWS: dict[str, tuple[type[Churn], tuple[str, ...]]] = {
    "exponential": (ExponentialChurn, ("MEAN_ON", "MEAN_OFF")),
    "lognormal": (LognormalChurn, ("MEDIAN_ON", "MEDIAN_OFF", "SIGMA")),
    "diurnal": (DiurnalChurn, ("LOW", "HIGH")),
    "always": (Churn, ()),
}


def make(
    nodes: int, seed: int, *, speed: str, up: str, down: str = "same", on: str = "always", period: float = 86400.0
) -> list[Line]:
    """Generate devices from laws such as "lognormal:5:0.6".

    Args:
        nodes: Number of devices.
        seed: Seed of the draws.
        speed: Milliseconds per sample, one forward pass: constant:VALUE, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA, or none.
        up: Mbit/s out, likewise.
        down: Mbit/s in, likewise, or same: as out.
        on: exponential:MEAN_ON:MEAN_OFF, lognormal:MEDIAN_ON:MEDIAN_OFF:SIGMA (seconds), diurnal:LOW:HIGH (shares), or always.
        period: Seconds after which the sessions repeat.

    Returns:
        The devices.
    """
    require_int(argument("nodes"), nodes, 1, MOST_DEVICES)
    require_real(argument("period"), period, 1, MOST_SECONDS)
    streams = Streams(seed)
    ms = _drawn(argument("speed"), speed, nodes, streams("devices-speed"), 1.0)
    out = _drawn(argument("up"), up, nodes, streams("devices-up"), 1000.0)
    into = out if down == "same" else _drawn(argument("down"), down, nodes, streams("devices-down"), 1000.0)
    sessions = _sessions(on, period, nodes, streams)
    width = len(str(nodes - 1))
    return [
        Line(
            id=f"device-{i:0{width}}",
            ms_per_sample=ms[i],
            up_kbps=out[i],
            down_kbps=into[i],
            on=sessions[i],
            period_s=None if sessions[i] is None else float(period),
        )
        for i in range(nodes)
    ]


def written(lines: Iterable[Line]) -> bytes:
    """The content of a device file."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _parsed(option: str, text: str, laws: Mapping[str, tuple[object, tuple[str, ...]]]) -> tuple[str, list[float]]:
    """Parse a law into its name and numbers."""
    name, *words = text.split(":")
    if name not in laws:
        raise BadInput(f"{option} {text!r} is not a known law{suggestion(name, laws)}")
    wanted = laws[name][1]
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = [math.nan]
    if len(numbers) != len(wanted) or not all(math.isfinite(x) and x >= 0 for x in numbers):
        raise BadInput(f"{option} {text!r} must have the form {':'.join([name, *wanted])}, with numbers of at least 0")
    return name, numbers


def _drawn(option: str, text: str, n: int, stream: Stream, factor: float) -> Sequence[float | None]:
    """Draws of a law with six digits, the same on every machine; None for each device if there is no law."""
    name, numbers = _parsed(option, text, LAWS)
    if name == "none":
        return [None] * n
    drawn = LAWS[name][0](stream, n, *numbers) * factor
    if drawn.min() <= 0:
        raise BadInput(f"{option} {text!r} gives {drawn.min():g}; all values must be greater than 0")
    return [float(f"{x:.6g}") for x in drawn]


def _sessions(text: str, period: float, n: int, streams: Streams) -> Sequence[tuple[tuple[float, float], ...] | None]:
    name, numbers = _parsed(argument("on"), text, CHURN_LAWS)
    if name == "always":
        return [None] * n
    law, words = CHURN_LAWS[name]
    settings: dict[str, Any] = dict(zip(map(str.lower, words), numbers, strict=True))
    churn: Churn
    if name == "diurnal":
        churn = DiurnalChurn(period=period, **settings)
    else:
        churn = law(**settings)
        if period / sum(numbers[:2]) > MOST_SESSIONS:
            raise BadInput(
                f"{argument('on')} {text!r} gives more than {MOST_SESSIONS:,} sessions in {argument('period')} {period:g}; use longer ones or a shorter period"
            )
    timeline = churn.timeline(n, streams, ())
    return [_cut(timeline, i, microseconds(period)) for i in range(n)]


def _cut(timeline: Timeline, node: int, period: int) -> tuple[tuple[float, float], ...]:
    """A node's sessions in the first period."""
    edges = [0] if timeline.on_at(node, 0) else []
    time = timeline.next_change(node, 0)
    while time is not None and time < period:
        edges.append(time)
        time = timeline.next_change(node, time)
    if len(edges) % 2:
        edges.append(period)
    return tuple((a / SECOND, b / SECOND) for a, b in zip(edges[::2], edges[1::2], strict=True))


# -- the two that come with the package: synthetic, after the numbers that DivShare (arXiv 2410.12918) publishes of its settings ------


def stragglers_60() -> list[Line]:
    """60 devices: 53 with 60 Mbit/s, and 7 stragglers with 10 to 13, evenly spaced."""
    fast = [Line(id=f"fast-{i:02}", up_kbps=60_000.0, down_kbps=60_000.0) for i in range(53)]
    rates = [10_000.0 + 500.0 * i for i in range(7)]
    return fast + [Line(id=f"straggler-{i}", up_kbps=rate, down_kbps=rate) for i, rate in enumerate(rates)]


def ten_regions() -> list[Line]:
    """60 devices, six in each of ten regions, whose links grow from 21 to 405 Mbit/s in equal ratios.

    The published numbers are rates between regions; here a region's devices have one rate each, and two devices communicate at the smaller of both.
    """
    rates = [float(round(21_000 * (405 / 21) ** (region / 9))) for region in range(10)]
    return [
        Line(id=f"region-{region}-{i}", up_kbps=rates[region], down_kbps=rates[region])
        for region in range(10)
        for i in range(6)
    ]


SHIPPED_LINES = {"stragglers-60": stragglers_60, "ten-regions": ten_regions}


def write_shipped(directory: Path) -> None:
    """Write the device files of the package."""
    for name, lines in SHIPPED_LINES.items():
        write_bytes(directory / SHIPPED[name].name, written(lines()))


if __name__ == "__main__":
    write_shipped(SHIPPED["stragglers-60"].parent)
