"""Callbacks: objects that are told about the progress of a run, and may end it. Derive from `Callback`, or use one of those here.

    run = ep.simulate(experiment, callbacks=[MyCallback(), ep.callbacks.EarlyStopping(patience=5)])

In a file: `callbacks = ["module:name", ...]`. Optional packages are imported on first use.

May be imported by: `simulator/`, `deploy/` and everything above them. A callback reads records and models; it never changes them.
To add one: a class derived from `Callback` in a file of its own here; list it in `_HOME` and `__all__` of this file, so that experiment files can name it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from epidemic.callbacks.base import Callback, Callbacks, all_of

if TYPE_CHECKING:
    from epidemic.callbacks.early_stopping import EarlyStopping
    from epidemic.callbacks.trackers import TensorBoard, WandB

_HOME = {"EarlyStopping": "early_stopping", "TensorBoard": "trackers", "WandB": "trackers"}

__all__ = ["Callback", "Callbacks", "EarlyStopping", "TensorBoard", "WandB", "all_of"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'epidemic.callbacks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"epidemic.callbacks.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
