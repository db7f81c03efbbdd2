"""The weighted average: what EL, D-PSGD and most methods do."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from epidemic.aggregation.base import Aggregator


class Mean(Aggregator, msgspec.Struct, frozen=True, tag_field="kind", tag="mean", forbid_unknown_fields=True):
    """The average by the round's mixing weights."""

    linear: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
