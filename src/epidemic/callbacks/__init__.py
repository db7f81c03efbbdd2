"""Callbacks: who wants to know how a run goes on. Derive from `Callback`, or take one of those here.

    run = ep.simulate(experiment, callbacks=[MyCallback(), ep.callbacks.EarlyStopping(patience=5)])

In a file: `callbacks = ["module:name", ...]`.
"""

from epidemic.callbacks.base import Callback, Callbacks, all_of

__all__ = ["Callback", "Callbacks", "all_of"]
