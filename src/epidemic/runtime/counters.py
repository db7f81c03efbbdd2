"""Counters of what every node has sent and received."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.peer_sampling import Control
from epidemic.record import CONTROL_BYTES, ENTRY_BYTES, HEADER_BYTES, MeanMax, Traffic
from epidemic.runtime.plan import Plan


def control_bytes(control: Control) -> NDArray[np.int64]:
    """Bytes that each node sent to find peers.   # (n,)"""
    return np.asarray(control.messages * CONTROL_BYTES + control.entries * ENTRY_BYTES, dtype=np.int64)


@dataclass
class Counters:
    """What every node has sent and received.   # (n,) each"""

    model: NDArray[np.int64]
    header: NDArray[np.int64]
    control: NDArray[np.int64]
    wasted: NDArray[np.int64]
    degrees: dict[int, NDArray[np.int64]] = field(
        default_factory=dict
    )  # by number of models received: rounds of each node

    @staticmethod
    def zero(n: int) -> Counters:
        """Counters of n nodes, all zero."""
        model, header, control, wasted = (np.zeros(n, dtype=np.int64) for _ in range(4))
        return Counters(model, header, control, wasted)

    def count(self, plan: Plan, message_bytes: int | Sequence[int], model_bytes: int | None = None) -> None:
        """Add a round.

        Args:
            plan: The round's plan.
            message_bytes: The size of a message, or of one message for each part of the models.
            model_bytes: The size of a model for a returning node, if it differs from a message.
        """
        sizes = (message_bytes,) if isinstance(message_bytes, int) else message_bytes
        given = np.bincount(plan.donors, minlength=len(self.model))
        self.model += given * (sum(sizes) if model_bytes is None else model_bytes)
        self.header += given * HEADER_BYTES
        if plan.control is not None:
            self.control += control_bytes(plan.control)
        alive = plan.delivery.alive
        received = np.zeros(len(self.model), dtype=np.int64)
        for passage, size in zip(plan.passages, sizes, strict=True):
            delivery = passage.delivery
            sent = delivery.models_sent
            self.model += -(-sent * size // delivery.pieces)  # rounded up to whole bytes
            self.header += sent * HEADER_BYTES
            self.control += delivery.offers_sent * CONTROL_BYTES
            self.wasted += (sent - delivery.graph.sent) * (size + HEADER_BYTES)
            received += delivery.graph.in_degree
        for degree in np.unique(received[alive]):
            nodes = self.degrees.setdefault(int(degree), np.zeros(len(received), dtype=np.int64))
            nodes += (received == degree) & alive

    def sent(self, messages: int, numbers: int, offers: int = 0, told: int = 0) -> None:
        """Add what the one hosted node sent: `numbers` bytes in so many messages; `told`: bytes sent to find peers."""
        self.model[0] += numbers
        self.header[0] += messages * HEADER_BYTES
        self.control[0] += offers * CONTROL_BYTES + told

    def received(self, models: int) -> None:
        """Add a round in which the one hosted node received so many models."""
        self.degrees.setdefault(models, np.zeros(1, dtype=np.int64))[0] += 1

    @property
    def rounds(self) -> NDArray[np.int64]:
        """The rounds in which each node took part.   # (n,)"""
        return sum(self.degrees.values(), np.zeros_like(self.model))

    def traffic(self, counted: NDArray[np.bool_] | None = None) -> Traffic:
        """Mean, minimum and maximum over the nodes, or over those that are counted."""
        if counted is not None:
            model, header, control, wasted = (
                part[counted] for part in (self.model, self.header, self.control, self.wasted)
            )
            return Counters(model, header, control, wasted).traffic()
        total = self.model + self.header + self.control
        parts = (self.model, self.header, self.control, total, *([self.wasted] if self.wasted.any() else []))
        return Traffic(*(MeanMax(float(part.mean()), int(part.max())) for part in parts))

    def tensors(self) -> dict[str, Tensor]:
        """The counters as tensors for a checkpoint."""
        kinds = ("model", "header", "control", *(["wasted"] if self.wasted.any() else []))
        found = {f"sent.{k}": torch.from_numpy(getattr(self, k)) for k in kinds}
        return {**found, **{f"degree.{k}": torch.from_numpy(v) for k, v in self.degrees.items()}}

    @staticmethod
    def restored(tensors: dict[str, Tensor]) -> Counters:
        """The counters from the tensors of a checkpoint."""
        model, header, control = (tensors[f"sent.{k}"].numpy() for k in ("model", "header", "control"))
        wasted = tensors["sent.wasted"].numpy() if "sent.wasted" in tensors else np.zeros_like(model)
        degrees = {int(k.removeprefix("degree.")): t.numpy() for k, t in tensors.items() if k.startswith("degree.")}
        return Counters(model, header, control, wasted, degrees)
