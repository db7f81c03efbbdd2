"""An experiment with objects of the user's own, as bytes for another process of the same program.

Objects are pickled: classes and functions by module and name, their content by value, so they must be importable. These bytes go from a process to those
that it started itself, never over a network or into a file.
"""

from __future__ import annotations

import importlib.util
import io
import pickle
from typing import Any

import msgspec

from epidemic.core.errors import BadInput, plain
from epidemic.experiment.spec import Experiment


class _Importable(pickle.Unpickler):
    """An unpickler that refuses what another process could not import."""

    def find_class(self, module: str, name: str) -> Any:
        """The class or function of this name."""
        if module in ("__main__", "__mp_main__"):
            raise BadInput(f"{name} is defined in the script or notebook itself")
        try:
            found = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise BadInput(f"there is no module {module} to import {name} from")
        return super().find_class(module, name)


def sent(experiment: Experiment) -> bytes:
    """Pickle an experiment for `received`.

    Raises:
        BadInput: It holds an object that another process cannot import.
    """
    for name in experiment.__struct_fields__:
        part = getattr(experiment, name)
        try:
            _Importable(io.BytesIO(pickle.dumps(part))).load()
        except BadInput as problem:
            reason = str(problem)
        except Exception as problem:  # copying a foreign object may raise anything
            reason = plain(" ".join(f"{type(problem).__name__}: {problem}".split()))
        else:
            continue
        raise BadInput(
            f"{name}: an object of your own that other processes cannot import ({reason}); define it in a module and import it"
            " from there, or use jobs = 1"
        )
    raw = pickle.dumps(experiment)
    if msgspec.json.encode(received(raw).table()) != msgspec.json.encode(experiment.table()):
        raise BadInput("an object of your own is not the same in another process, which creates it again; use jobs = 1")
    return raw


def received(raw: bytes) -> Experiment:
    """Unpickle an experiment made by `sent`."""
    experiment: Experiment = pickle.loads(raw)  # noqa: S301 - from the process that started this one
    return experiment
