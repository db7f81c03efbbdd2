"""Callbacks that an experiment file names."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from epidemic import callbacks
from epidemic.callbacks.base import Callback
from epidemic.core.config import call_own, import_object
from epidemic.core.errors import BadInput, suggestion
from epidemic.experiment import CallbackName, Experiment


def named_callbacks(experiment: Experiment) -> list[Callback]:
    """The callbacks that an experiment names, made anew."""
    return [_made(cast(CallbackName, one)) for one in experiment.callbacks]


def listeners(experiment: Experiment) -> list[Callback]:
    """The callbacks of a deployed node, whose run they cannot end."""
    found = named_callbacks(experiment)
    for one, named in zip(found, experiment.callbacks, strict=True):
        if type(one).stop is not Callback.stop:
            raise BadInput(
                f"callbacks: {cast(CallbackName, named).use!r} ends runs early, which a deployed node cannot do alone;"
                " leave it out of what is deployed"
            )
    return found


def check_shipped(experiment: Experiment) -> None:
    """Refuse built-in callbacks that deployed nodes cannot use; a user's modules may exist only where the nodes are."""
    shipped = [one for one in experiment.callbacks if ":" not in cast(CallbackName, one).use]
    listeners(msgspec.structs.replace(experiment, callbacks=shipped))


def _made(one: CallbackName) -> Callback:
    """A class or a function is called with the options; an object is taken as it is."""
    where = f"callbacks: {one.use!r}"
    found = _found(one.use)
    made = found
    if isinstance(found, type) or not isinstance(found, Callback):
        made = call_own(found, one.options, where)
    elif one.options:
        raise BadInput(f"{where} is an object already and takes no options; name its class")
    if not isinstance(made, Callback):
        what = made.__name__ if isinstance(made, type) else type(made).__name__
        raise BadInput(f"{where} must be or give an epidemic.Callback, not {what}; derive yours from it")
    return made


def _found(name: str) -> Any:
    if ":" in name:
        return import_object(name, "callbacks")
    known = [n for n in callbacks.__all__ if n not in ("Callback", "Callbacks", "all_of")]
    if name not in known:
        near = suggestion(name, known)
        raise BadInput(f'callbacks: {name!r} is neither known nor of the form "module:name"{near}')
    return getattr(callbacks, name)
