"""A user's own adversary, named in a file: kind = "python"."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec
from torch import Tensor

from epidemic.adversary.base import Informed, Scene
from epidemic.core.config import call_own, import_object
from epidemic.core.errors import BadInput


class PythonAdversary(Informed, frozen=True, kw_only=True, dict=True, tag="python"):
    """`factory` = "module:name" is called with `options` and returns a function of a scene that gives the message.

    An experiment is told apart by the name and the options, not by the code behind them. One that needs more derives from `ep.Adversary`.
    """

    factory: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    @cached_property
    def made(self) -> Callable[[Scene], Tensor | None]:
        """The function that the user's factory returns."""
        where = f"adversary.factory = {self.factory!r}"
        found = call_own(import_object(self.factory, "adversary.factory"), self.options, where)
        if not callable(found):
            raise BadInput(f"{where} must return a function of a scene, not {type(found).__name__}")
        made: Callable[[Scene], Tensor | None] = found
        return made

    def message(self, scene: Scene) -> Tensor | None:
        """What the user's function gives.   # (d,) or (k, d)"""
        return self.made(scene)
