"""Numbers as a page shows them: by the rules of `epidemic.core.formatting`, with room around the ±."""

from __future__ import annotations

from functools import partial

from epidemic.core.formatting import decimals as shown
from epidemic.core.formatting import half_width, interval, mean_alone, mean_and_half

__all__ = ["half_width", "mean_alone", "mean_and_half", "shown", "shown_interval"]

shown_interval = partial(interval, between=" ± ")
