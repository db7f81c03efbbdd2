"""What every node has sent and received."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.host.plan import Plan
from epidemic.record import CONTROL_BYTES, HEADER_BYTES, MeanMax, Traffic


@dataclass
class Counters:
    """What every node has sent and received so far.   # (n,) each"""

    model: NDArray[np.int64]
    header: NDArray[np.int64]
    control: NDArray[np.int64]
    degrees: dict[int, NDArray[np.int64]] = field(default_factory=dict)  # in how many rounds it received so many models

    @staticmethod
    def zero(n: int) -> Counters:
        """Nothing yet."""
        model, header, control = (np.zeros(n, dtype=np.int64) for _ in range(3))
        return Counters(model, header, control)

    def count(self, plan: Plan, model_bytes: int) -> None:
        """Add a round."""
        delivery = plan.delivery
        models = delivery.models_sent + np.bincount(plan.donors, minlength=len(self.model))
        self.model += models * model_bytes
        self.header += models * HEADER_BYTES
        self.control += delivery.offers_sent * CONTROL_BYTES
        received = delivery.graph.in_degree
        for degree in np.unique(received[delivery.alive]):
            nodes = self.degrees.setdefault(int(degree), np.zeros(len(received), dtype=np.int64))
            nodes += (received == degree) & delivery.alive

    def sent(self, models: int, model_bytes: int, offers: int = 0) -> None:
        """Add what the one hosted node really sent."""
        self.model[0] += models * model_bytes
        self.header[0] += models * HEADER_BYTES
        self.control[0] += offers * CONTROL_BYTES

    def received(self, models: int) -> None:
        """Add a round in which the one hosted node received so many models."""
        self.degrees.setdefault(models, np.zeros(1, dtype=np.int64))[0] += 1

    def traffic(self) -> Traffic:
        """Over the nodes."""
        total = self.model + self.header + self.control
        parts = (self.model, self.header, self.control, total)
        return Traffic(*(MeanMax(float(part.mean()), int(part.max())) for part in parts))

    def tensors(self) -> dict[str, Tensor]:
        """For the checkpoint."""
        found = {f"sent.{k}": torch.from_numpy(getattr(self, k)) for k in ("model", "header", "control")}
        return {**found, **{f"degree.{k}": torch.from_numpy(v) for k, v in self.degrees.items()}}

    @staticmethod
    def restored(tensors: dict[str, Tensor]) -> Counters:
        """From the checkpoint."""
        model, header, control = (tensors[f"sent.{k}"].numpy() for k in ("model", "header", "control"))
        degrees = {int(k.removeprefix("degree.")): t.numpy() for k, t in tensors.items() if k.startswith("degree.")}
        return Counters(model, header, control, degrees)
