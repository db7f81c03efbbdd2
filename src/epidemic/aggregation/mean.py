"""The weighted average: what EL, D-PSGD and most methods do."""

from __future__ import annotations

from typing import ClassVar

from epidemic.aggregation.base import Aggregator
from epidemic.core.settings import Settings


class Mean(Aggregator, Settings, frozen=True, tag_field="kind", tag="mean", forbid_unknown_fields=True):
    """The average by the round's mixing weights."""

    linear: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
