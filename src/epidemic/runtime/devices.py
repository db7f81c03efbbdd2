"""The device that computes: the one named, or with "auto" a GPU if there is one. Results differ in the last digits between devices."""

from __future__ import annotations

import torch

from epidemic.core.errors import BadInput

AUTO = "auto"


def choose_device(wanted: str, begun_on: str | None = None) -> torch.device:
    """The device for `runtime.device`; a resumed run uses the type that it started on."""
    name = begun_on or _available()[-1] if wanted == AUTO else wanted
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        there = ", ".join(_available())
        if wanted == AUTO:
            raise BadInput(
                f'this run was started on "{name}", which is not available here (there is: {there});'
                " resume on that machine, or choose another directory"
            ) from None
        raise BadInput(f'runtime.device = "{wanted}" is not available here; there is: {there}; or "auto"') from None
    if begun_on is not None and device.type != torch.device(begun_on).type:
        raise BadInput(
            f'runtime.device = "{wanted}": this run was started on "{begun_on}", and results differ between devices;'
            f' resume with runtime.device = "{begun_on}", or choose another directory'
        )
    return device


def _available() -> list[str]:
    """The available devices, the fastest last."""
    there = {"mps": torch.backends.mps.is_available(), "cuda": torch.cuda.is_available()}
    return ["cpu", *(name for name, found in there.items() if found)]
