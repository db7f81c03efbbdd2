"""A picture of a device file: how fast devices are, what their links carry, and when they are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from epidemic.clock import Device
from epidemic.core.errors import BadInput
from epidemic.report.style import BLUE, GREEN, ORANGE, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LANES = 60
"""So many devices get a lane of their own."""
MOMENTS = 720
UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def devices_figure(devices: Sequence[Device], title: str) -> Figure:
    """Speeds and bandwidths side by side, availability below; only what the devices state."""
    panels = [draw for draw in (_speeds, _bandwidths) if draw(None, devices)]
    there = any(device.on is not None for device in devices)
    if not panels and not there:
        raise BadInput(
            f"{title}: none of them says how fast it is, what its link carries or when it is on; nothing to draw"
        )
    figure = new_figure(10.5 if len(panels) != 1 else 7.5, 3.6 * bool(panels) + 5.2 * there)
    parts: Any = (figure, figure)
    if panels and there:
        parts = figure.subfigures(2, 1, height_ratios=[3.6, 5.2])
    top, bottom = parts
    if panels:
        for axes, draw in zip(np.ravel(top.subplots(1, len(panels))), panels, strict=True):
            draw(axes, devices)
    if there:
        share, lanes = bottom.subplots(2, 1, sharex=True, height_ratios=[1, 1.6])
        _availability(share, lanes, devices)
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    return figure


def _speeds(axes: Any, devices: Sequence[Device]) -> bool:
    values = [device.ms_per_sample for device in devices if device.ms_per_sample is not None]
    if values and axes is not None:
        _shares(axes, values, BLUE, None)
        polish(axes, "Speed", "milliseconds per sample (one forward pass)", "share of devices with at most this")
    return bool(values)


def _bandwidths(axes: Any, devices: Sequence[Device]) -> bool:
    up = [device.up_kbps / 1000 for device in devices if device.up_kbps is not None]
    down = [device.down_kbps / 1000 for device in devices if device.down_kbps is not None]
    if axes is not None and up == down:
        _shares(axes, up, ORANGE, "up and down")
    elif axes is not None:
        for values, colour, label in ((up, ORANGE, "up"), (down, GREEN, "down")):
            if values:
                _shares(axes, values, colour, label)
    if axes is not None and (up or down):
        polish(axes, "Bandwidth", "Mbit/s", "share of devices with at most this")
        axes.legend(frameon=False, loc="upper left")
    return bool(up or down)


def _shares(axes: Any, values: list[float], colour: str, label: str | None) -> None:
    """The share of devices with at most this value, on a logarithmic axis with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    x = np.sort(values)
    low, high = x[0] / 1.3, x[-1] * 1.3
    y = np.arange(1, len(x) + 1) / len(x)
    axes.step([low, *x, high], [0, *y, 1], where="post", color=colour, linewidth=2, label=label)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 1.04)
    known = axes.get_xlim() if len(axes.lines) > 1 else (low, high)
    axes.set_xlim(min(low, known[0]), max(high, known[1]))


def _availability(share: Any, lanes: Any, devices: Sequence[Device]) -> None:
    """The share of devices that are on, above a lane for each of the first ones."""
    from matplotlib.ticker import MaxNLocator

    horizon = max(_length(device) for device in devices)
    unit, name = next((u, n) for u, n in UNITS if horizon >= 2 * u or u == 1.0)
    times = np.arange(MOMENTS) * horizon / MOMENTS
    on = np.zeros(MOMENTS)
    for device in devices:
        on += _on(device, times)
    share.fill_between(times / unit, on / len(devices), step="post", color=BLUE, alpha=0.35, linewidth=0)
    share.step(times / unit, on / len(devices), where="post", color=BLUE, linewidth=1.4)
    share.set_ylim(0, 1.04)
    polish(share, f"Availability (mean {on.mean() / len(devices):.0%})", "", "share on")
    shown = devices[:LANES]
    for lane, device in enumerate(shown):
        lanes.broken_barh(_bars(device, horizon, unit), (lane - 0.4, 0.8), color=BLUE, linewidth=0)
    lanes.set_ylim(len(shown) - 0.4, -0.6)
    lanes.set_xlim(0, horizon / unit)
    which = f"first {LANES} of {len(devices):,} devices" if len(devices) > LANES else "device"
    polish(lanes, "Sessions, a lane for each device", name, which)
    lanes.grid(False, axis="y")
    lanes.xaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 3, 6, 10]))  # hours of a day


def _length(device: Device) -> float:
    """Seconds until its sessions repeat, or end."""
    if device.on is None or (device.period_s is None and not len(device.on)):
        return 1.0
    return float(device.on[-1, 1]) if device.period_s is None else device.period_s


def _on(device: Device, times: NDArray[np.float64]) -> NDArray[np.bool_]:
    if device.on is None:
        return np.ones(len(times), dtype=bool)
    if not len(device.on):
        return np.zeros(len(times), dtype=bool)
    place = times if device.period_s is None else times % device.period_s
    session = np.searchsorted(device.on[:, 0], place, side="right") - 1
    found: NDArray[np.bool_] = (session >= 0) & (place < device.on[session, 1])
    return found


def _bars(device: Device, horizon: float, unit: float) -> list[tuple[float, float]]:
    """The starts and lengths of the bars in a lane."""
    if device.on is None:
        return [(0.0, horizon / unit)]
    period = device.period_s
    turns = 1 if period is None else int(np.ceil(horizon / period))
    return [
        ((turn * (period or 0) + start) / unit, (end - start) / unit)
        for turn in range(turns)
        for start, end in device.on.tolist()
    ]
