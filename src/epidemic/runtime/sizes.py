"""Memory checks: the least that a run needs against the available memory, before anything is allocated."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from epidemic.core.errors import BadInput
from epidemic.core.formatting import count
from epidemic.core.memory import require_memory
from epidemic.data import Dataset
from epidemic.experiment import Experiment
from epidemic.models import Model, PythonModel


def outputs_of(data: Dataset) -> int:
    """The number of outputs of a model per sample: one for each class, or the length of a target."""
    return len(data.classes) or int(np.prod(data.train.targets.shape[1:], dtype=int))


def check_model_size(experiment: Experiment, data: Dataset) -> None:
    """Refuse a built-in model that alone does not fit into memory, without building it."""
    model = experiment.model
    if not isinstance(model, Model) or isinstance(model, PythonModel):
        return
    table = experiment.table()["model"]
    what = "model = {" + ", ".join(f"{key} = {value!r}" for key, value in table.items()) + "}"
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            size, width = _numbers(model.build(data.input_shape, outputs_of(data)))
    except (RuntimeError, TypeError, OverflowError):
        raise BadInput(f"{what} is larger than any machine; use a smaller one") from None
    require_memory(f"{what}, {size:,} numbers,", size * width, "use a smaller one")


def check_sizes(experiment: Experiment, module: nn.Module, data: Dataset, hosted: int, device: torch.device) -> None:
    """Refuse nodes or batches that do not fit into memory, by the least that a round needs."""
    size, width = _numbers(module)
    on_device = _memory_of(device)
    require_memory(
        f"nodes = {hosted} with models of {size:,} numbers, before and after averaging,",
        2 * hosted * size * width,
        "use fewer, or a smaller model",
        on_device,
    )
    algorithm = experiment.algorithm
    steps, batch = algorithm.local_steps, algorithm.batch_size
    shown = f"algorithm.batch_size = {batch}"
    require_memory(
        f"{shown} with local_steps = {steps} for {count(experiment.nodes, 'node')}",
        8 * experiment.nodes * steps * batch,
        "use less",
    )
    inputs = batch * math.prod(data.input_shape)
    require_memory(f"{shown}, {inputs:,} numbers a batch,", inputs * width, "use a smaller one", on_device)


def small_shares(parts: list[NDArray[np.int64]], batch: int) -> str | None:
    """A warning if nodes hold fewer samples than a batch; None if all have enough."""
    sizes = np.array([len(part) for part in parts if len(part)])  # malicious nodes may hold none
    few = int((sizes < batch).sum())
    if not few:
        return None
    who = "the node holds" if len(sizes) == 1 else f"{few} of {len(sizes)} nodes hold"
    return f"{who} fewer samples than algorithm.batch_size = {batch} (the fewest: {sizes.min()}); a batch of theirs has samples more than once"


def _numbers(module: nn.Module) -> tuple[int, int]:
    """The number of values of a model, and the bytes of each."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum(t.numel() for t in tensors), max((t.element_size() for t in tensors), default=4)


def _memory_of(device: torch.device) -> int | None:
    """The memory of a GPU in bytes; None if it shares the machine's own."""
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else None
