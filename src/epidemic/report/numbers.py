"""Numbers as a page shows them: by the rules of `epidemic.shown`, with room around the ±."""

from __future__ import annotations

from functools import partial

from epidemic.shown import decimals as shown
from epidemic.shown import half_width, interval

__all__ = ["half_width", "shown", "shown_interval"]

shown_interval = partial(interval, between=" ± ")
