"""An experiment with objects of a user's own, as bytes for another process of the same program.

Objects travel as `pickle` writes them: their classes and functions by module and name, what they hold by value. So they must be
importable. These bytes go from a process to those that it started itself, never over a network or into a file.
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
    """Reads the bytes back, and refuses what another process could not import."""

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
    """The bytes of an experiment, from which `received` makes the same again.

    Raises:
        BadInput: It holds an object that another process cannot import.
    """
    for name in experiment.__struct_fields__:
        part = getattr(experiment, name)
        try:
            _Importable(io.BytesIO(pickle.dumps(part))).load()
        except BadInput as problem:
            reason = str(problem)
        except Exception as problem:  # whatever an object of somebody else's says to being copied
            reason = plain(" ".join(f"{type(problem).__name__}: {problem}".split()))
        else:
            continue
        raise BadInput(
            f"{name}: an object of your own that other processes cannot import ({reason}); define it in a module and import it"
            " from there, or use jobs = 1"
        )
    raw = pickle.dumps(experiment)
    if msgspec.json.encode(received(raw).table()) != msgspec.json.encode(experiment.table()):
        raise BadInput("an object of your own is not the same in another process, where it is made anew; use jobs = 1")
    return raw


def received(raw: bytes) -> Experiment:
    """The experiment that was sent."""
    experiment: Experiment = pickle.loads(raw)  # noqa: S301 - from the process that started this one
    return experiment
