"""A user's own aggregator, named in a file: kind = "python"."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec
from torch import Tensor

from epidemic.aggregation.base import Aggregator, Heard
from epidemic.core.config import call_own, import_object
from epidemic.core.errors import BadInput
from epidemic.core.settings import Settings

MISSING = "derive it from ep.Aggregator and write __call__(heard)"
"""What an object must have to be an aggregator, for people."""


class PythonAggregator(
    Aggregator, Settings, frozen=True, dict=True, tag_field="kind", tag="python", forbid_unknown_fields=True
):
    """A user's own: `factory` = "module:name" is called with `options` and returns an aggregator.

    An experiment is identified by the name and the options, not by the code behind them.
    """

    factory: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    @cached_property
    def made(self) -> Aggregator:
        """Call the factory and return the user's aggregator."""
        where = f"aggregation.factory = {self.factory!r}"
        found = call_own(import_object(self.factory, "aggregation.factory"), self.options, where)
        if not isinstance(found, Aggregator):
            what = found.__name__ if isinstance(found, type) else type(found).__name__
            raise BadInput(f"{where} must return an aggregator, not {what}: {MISSING}")
        return found

    def __call__(self, heard: Heard) -> Tensor:
        """What the user's object makes of it."""
        return self.made(heard)
