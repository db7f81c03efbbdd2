"""What malicious nodes train on where an adversary poisons data: changed copies of their own samples, beside the samples as they are.

Nobody else's samples are touched: copies stand behind all others, and only batches of malicious nodes refer to them.

Shapes: k hosted nodes, r local steps, b batch size, N training samples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epidemic.adversary import Adversary
from epidemic.core.rng import Streams
from epidemic.data import Dataset, Samples
from epidemic.runtime.batches import Batches


def with_poison(
    adversary: Adversary, data: Dataset, parts: list[NDArray[np.int64]], malicious: NDArray[np.int64]
) -> tuple[Dataset, NDArray[np.int64] | None]:
    """The data with changed copies of the samples of malicious nodes, and which copy belongs to which sample; None: there are none.   # (N,)"""
    adversary.check_data(data)
    theirs = np.unique(np.concatenate([parts[i] for i in malicious]))
    copies = adversary.poisoned(data.train.take(theirs), data) if len(theirs) else None
    if copies is None:
        return data, None
    copy_of = np.arange(len(data.train))
    copy_of[theirs] = len(data.train) + np.arange(len(theirs))
    return replace(data, train=_joined(data.train, copies)), copy_of


def _joined(first: Samples, second: Samples) -> Samples:
    def both(one: Any, other: Any) -> Any:
        return None if one is None or other is None else np.concatenate([one, other])

    return Samples(
        both(first.inputs, second.inputs), both(first.targets, second.targets), both(first.groups, second.groups)
    )


class PoisonedBatches(Batches):
    """The same batches, but of malicious nodes with a share of copies, from the round on in which they become malicious."""

    def __init__(
        self, batches: Batches, adversary: Adversary, malicious: NDArray[np.int64], copy_of: NDArray[np.int64]
    ) -> None:
        self._batches, self._adversary, self._malicious, self._copy_of = batches, adversary, malicious, copy_of

    def index(self, streams: Streams, round: int) -> NDArray[np.int64]:
        """The sample numbers of round `round`.   # (k, r, b)"""
        found = self._batches.index(streams, round)
        if round < self._adversary.start:
            return found
        size = found.shape[2]
        some = max(1, int(self._adversary.poison_share * size + 0.5))
        found = found.copy()
        found[self._malicious, :, :some] = self._copy_of[found[self._malicious, :, :some]]
        return found
