"""What training and evaluating a model take for a moment, counted from one forward pass: where there is no GPU, that can be known of one all the same."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from epidemic.core.workers import Workers
from epidemic.learner import STRATEGIES, Stacked, obstacle_to_stacking, rule
from epidemic.learner.nature import Watched
from epidemic.learner.stacked import SAMPLES, most_evaluated, most_trained
from epidemic.learner.task import EVALUATION_BATCH
from epidemic.runtime.setup import Setup

GPU = "cuda"
COPIES = 3
"""Of what a pass makes, and of a row. Of 16 stacked FEMNIST CNNs on a CPU that is 594 MB, and 590 MB were taken."""


class Footprint(msgspec.Struct, frozen=True):
    """Of a model, in bytes where nothing else is said."""

    numbers: int  # of a row
    row: int
    sample: int  # of the inputs, as the model takes them
    made: int  # of a sample, by all steps of a forward pass: what they leave for the gradient
    at_once: int  # of a sample, by two steps that follow each other
    batch: int  # samples
    steps: int  # of training in a round
    convolved: bool
    stacked: bool  # on a GPU; otherwise one row after the other
    hidden: bool = False  # some steps (an LSTM, attention) make more than their results, which is not counted

    def training(self, rows: int, threads: int) -> int:
        """What so many rows take while they are trained: the inputs of all their steps; and three times what a pass makes and the rows themselves.

        Once as they are, once as gradients, once in the order in which products are computed.
        """
        together = self._at_work(rows, threads, most_trained(rows, self.numbers, convolved=self.convolved))
        return together * (self.steps * self.batch * self.sample + COPIES * (self.batch * self.made + self.row))

    def evaluating(self, rows: int, threads: int) -> int:
        """The same of their evaluation, in which a step's numbers go when the next one's are there."""
        together = self._at_work(rows, threads, most_evaluated(rows, self.numbers))
        samples = SAMPLES if self.stacked else EVALUATION_BATCH
        return threads * samples * self.sample + together * samples * self.at_once

    def _at_work(self, rows: int, threads: int, most: int) -> int:
        """How many rows are worked on at once: each thread has a chunk, or one."""
        return min(rows, threads * (most if self.stacked else 1))


def footprint_of(setup: Setup, workers: Workers) -> Footprint:
    """Of an experiment whose nodes are here, with the strategy that a GPU would have."""
    task, algorithm = setup.task, setup.experiment.algorithm
    inputs, _ = task.batch(torch.arange(2, device=task.device) % len(task.train[0]))
    module, given = copy.deepcopy(task.module).train(), inputs.clone()
    state = torch.get_rng_state()
    try:
        with torch.no_grad(), _Made() as seen:
            module(given)
    finally:
        torch.set_rng_state(state)
    pairs = [a + b for a, b in zip([0, *seen.sizes], seen.sizes, strict=False)]
    return Footprint(
        numbers=task.layout.size,
        row=task.layout.size * task.layout.dtype.itemsize,
        sample=inputs[0].numel() * inputs.element_size(),
        made=sum(seen.sizes) // len(inputs),
        at_once=max(pairs, default=0) // len(inputs),
        batch=algorithm.batch_size,
        steps=algorithm.local_steps,
        convolved=task.nature.products > 0,
        stacked=_stacked(setup, workers),
        hidden=seen.hidden,
    )


def _stacked(setup: Setup, workers: Workers) -> bool:
    """Whether a GPU would train many rows at once; what only a clock could tell is taken to be so."""
    experiment, wanted = setup.experiment, setup.experiment.runtime.strategy
    if wanted in STRATEGIES:
        return wanted == "stacked"
    nature, size = setup.task.nature, setup.task.layout.size
    if rule(nature, experiment.nodes, experiment.algorithm.batch_size, GPU, size)[0] != "stacked":
        return False
    index = torch.from_numpy(setup.batches.index(setup.streams, 0)[:1]).to(setup.task.device)
    return obstacle_to_stacking(Stacked(setup.task, workers), setup.initial, index) is None


class _Made(Watched):
    """Notes the bytes of every tensor that whatever runs inside makes; views, and what is changed in place, are none."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.hidden = False  # whether something with several results was called, such as an LSTM: what it makes inside is not seen

    def saw(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], found: Any) -> None:
        given = {one.untyped_storage().data_ptr() for one in args if isinstance(one, Tensor)}
        several = isinstance(found, tuple | list)
        made = [one for one in (found if several else [found]) if isinstance(one, Tensor)]
        made = [one for one in made if one.untyped_storage().data_ptr() not in given]
        self.sizes += [one.numel() * one.element_size() for one in made]
        self.hidden = self.hidden or (several and bool(made))
