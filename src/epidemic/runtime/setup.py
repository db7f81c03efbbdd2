"""From an experiment and a seed to everything that a run needs: data, partition, model, initial weights."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from epidemic.core.errors import BadInput, EpidemicError
from epidemic.core.formatting import count
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers, blocks
from epidemic.data import Dataset, Partition, Samples, stratified
from epidemic.experiment import Experiment
from epidemic.experiment.compatibility import require_compatible
from epidemic.learner import (
    LOSSES,
    AdamUpdate,
    Choice,
    Learner,
    Loss,
    Metric,
    PerPosition,
    SGDUpdate,
    Task,
    accuracy_measure,
    choose,
    squared_error,
)
from epidemic.metrics import SHIPPED, Whole
from epidemic.models import Model, PythonModel
from epidemic.runtime.batches import Batches
from epidemic.runtime.devices import choose_device
from epidemic.runtime.parts import check_parts
from epidemic.runtime.poison import PoisonedBatches, with_poison
from epidemic.runtime.sizes import check_model_size, check_sizes, outputs_of
from epidemic.runtime.start import StartWeights


@dataclass(frozen=True, eq=False)
class Setup:
    """One seed of an experiment, ready to run."""

    experiment: Experiment
    seed: int
    streams: Streams
    hosted: NDArray[np.int64]  # (k,) the nodes hosted here
    data: Dataset  # its training samples may be only those of the hosted nodes
    parts: list[NDArray[np.int64]]  # the training samples of each hosted node
    batches: Batches
    task: Task
    evaluated: tuple[Tensor, Tensor]  # the subset evaluated during training
    test: tuple[Tensor, Tensor]  # the full test set
    initial: Tensor  # (d,) the initial model of all nodes
    sizes: NDArray[np.int64] | None  # (n,) training samples of each node; None if other nodes have data of their own
    malicious: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The nodes whose messages an adversary writes, ascending.   # (b,)"""

    @property
    def samples(self) -> NDArray[np.int64]:
        """The number of training samples of each hosted node.   # (k,)"""
        return np.array([len(part) for part in self.parts], dtype=np.int64)


def prepare(
    experiment: Experiment,
    seed: int,
    data: Dataset | None = None,
    node_ids: Sequence[int] | None = None,
    *,
    begun_on: str | None = None,
    cut: bool = False,
    weights: StartWeights | None = None,
) -> Setup:
    """Load and partition the data, build and check the model, for all nodes or for `node_ids`; a resumed run uses the device it started on.

    With `cut`, training samples that none of these nodes holds are dropped. With `weights`, all nodes start from these.
    """
    if experiment.own_training:
        require_compatible(experiment)  # a simulation, or what would be like one
    device = choose_device(experiment.runtime.device, begun_on)
    data = experiment.load_data() if data is None else data
    streams = Streams(seed)
    check_model_size(experiment, data)
    module = initial_module(experiment, data, streams)
    if weights is not None:
        weights.put(module, experiment.network.largest)
    check_sizes(experiment, module, data, experiment.nodes if node_ids is None else len(node_ids), device)
    hosted = np.arange(experiment.nodes) if node_ids is None else np.array(node_ids, dtype=np.int64)
    malicious = malicious_nodes(experiment, streams)
    parts, sizes = _shares(experiment, data, streams, hosted, malicious)
    copy_of: NDArray[np.int64] | None = None
    if len(malicious) and experiment.adversary is not None:
        data, copy_of = with_poison(experiment.adversary, data, parts, malicious)
    span = _span(data)  # of all samples: measurements must not depend on where they are made
    if cut:
        data, parts = _cut(data, parts)
    loss, own = experiment.loss_function(data), experiment.own_metrics()
    task = Task(module, data, loss, own, device, _kind(experiment, data, loss, own, device))
    evaluated, test = task.tensors(evaluation_subset(data.evaluated, experiment)), task.tensors(data.test)
    outputs, targets = _check_model(task, data, experiment)
    if span is not None and (data.classes or loss is not squared_error):
        measure = accuracy_measure(outputs, targets, span, len(data.classes), loss)
        if isinstance(measure, PerPosition):
            measure.check(torch.cat([evaluated[1], test[1]]))
        task.measure_accuracy(measure)
    _check_whole(task, evaluated)
    algorithm, initial = experiment.algorithm, task.layout.row(task.module)
    check_parts(experiment, len(initial))  # before rounds are planned for each part
    batches = Batches(
        [part if len(part) else np.zeros(1, dtype=np.int64) for part in parts],  # nodes without samples never train
        algorithm.local_steps,
        algorithm.batch_size,
        nodes=experiment.nodes,
        hosted=hosted,
        sampling=getattr(algorithm, "sampling", "replacement"),
    )
    if copy_of is not None and experiment.adversary is not None:
        batches = PoisonedBatches(batches, experiment.adversary, malicious, copy_of)
    return Setup(
        experiment,
        seed,
        streams,
        hosted,
        data,
        parts,
        batches,
        task,
        evaluated,
        test,
        initial,
        sizes,
        malicious,
    )


def malicious_nodes(experiment: Experiment, streams: Streams) -> NDArray[np.int64]:
    """The nodes whose messages an adversary writes; none where there is no adversary.   # (b,)"""
    if experiment.adversary is None:
        return np.zeros(0, dtype=np.int64)
    return experiment.adversary.members(experiment.nodes, streams)


def _kind(
    experiment: Experiment, data: Dataset, loss: Loss, own: Mapping[str, Metric], device: torch.device
) -> Hashable:
    """A key of how models are computed, if only our own parts are used; a user's objects may differ each time."""
    model = experiment.model
    measured = tuple(metric for metric in own.values() if not isinstance(metric, Whole))  # others are not traced
    if (
        not isinstance(model, Model)
        or isinstance(model, PythonModel)
        or any(metric not in SHIPPED.values() for metric in measured)
        or loss not in LOSSES.values()
    ):
        return None
    shape = (data.input_shape, data.train.targets.shape[1:], len(data.classes), data.train.inputs.dtype.str)
    return (type(model).__name__, msgspec.json.encode(model), loss, device, shape, measured, len(measured) < len(own))


def _shares(
    experiment: Experiment, data: Dataset, streams: Streams, hosted: NDArray[np.int64], malicious: NDArray[np.int64]
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64] | None]:
    """The training samples of the hosted nodes, and the number of those of each node, as far as known here."""
    if experiment.network.data == "own":
        if len(hosted) != 1:
            raise BadInput(
                'network.data = "own" is for deployed nodes, each in a process of its own with the data of its place;'
                ' several nodes in one process share one data set: use "partition"'
            )
        return [np.arange(len(data.train))], None
    if not isinstance(experiment.partition, Partition):
        raise BadInput(f"partition = {experiment.partition!r} must be a partition, for example Dirichlet()")
    if len(malicious) and experiment.adversary is not None and not experiment.adversary.holds_data:
        honest = np.setdiff1d(np.arange(experiment.nodes), malicious)
        found = experiment.partition.split(data.train, len(honest), streams("partition"))
        parts = [np.zeros(0, dtype=np.int64)] * experiment.nodes
        for node, part in zip(honest.tolist(), found, strict=True):
            parts[node] = part
    else:
        parts = experiment.partition.split(data.train, experiment.nodes, streams("partition"))
    return [parts[i] for i in hosted], np.array([len(part) for part in parts], dtype=np.int64)


def _cut(data: Dataset, parts: list[NDArray[np.int64]]) -> tuple[Dataset, list[NDArray[np.int64]]]:
    """Keep only the training samples that these nodes hold, in their order; returns them and each node's samples in them."""
    kept = np.unique(np.concatenate(parts))
    return replace(data, train=data.train.take(kept)), [np.searchsorted(kept, part) for part in parts]


def make_learner(setup: Setup, workers: Workers, known: Choice | None = None) -> tuple[Learner, Choice]:
    """Make the learner, with a known strategy or one chosen now."""
    prepared = None
    if known is None:
        experiment = setup.experiment
        index = torch.from_numpy(setup.batches.index(setup.streams, 0)).to(setup.task.device)
        own = getattr(experiment.algorithm, "step", None)
        step = own if isinstance(own, SGDUpdate | AdamUpdate) else SGDUpdate(0.01)
        try:
            known, prepared = choose(
                setup.task, workers, experiment.runtime.strategy, setup.initial, index, step, experiment.nodes
            )
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as problem:
            if isinstance(problem, BadInput):
                raise
            reason = " ".join(str(problem).split())
            raise BadInput(f"the model cannot be trained: {type(problem).__name__}: {reason}") from problem
    random = known.draws_random_numbers
    return Learner(setup.task, workers, known.strategy, draws_random_numbers=random, prepared=prepared), known


def initial_module(experiment: Experiment, data: Dataset, streams: Streams) -> nn.Module:
    """The initial model, with weights drawn from the run's stream."""
    model = experiment.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.key("init") % 2**63)
        if isinstance(model, Model):
            return model.build(data.input_shape, outputs_of(data))
        if isinstance(model, nn.Module):
            return copy.deepcopy(model)
        try:
            made = model() if callable(model) else model
        except Exception as problem:
            raise BadInput(f"model failed: {type(problem).__name__}: {' '.join(str(problem).split())}") from problem
    if not isinstance(made, nn.Module):
        raise BadInput(f"model = {model!r} must be a torch.nn.Module or a function that returns one")
    return made


def evaluation_subset(samples: Samples, experiment: Experiment) -> Samples:
    """The fixed, stratified subset that is evaluated during training."""
    size = experiment.eval.samples
    if size == "all" or size >= len(samples):
        return samples
    return samples.take(stratified(samples.targets, size, "evaluation"))


def _span(data: Dataset) -> tuple[int, int] | None:
    """The smallest and the largest target of all samples; None if they are not integers."""
    every = [part.targets for part in (data.train, data.test, data.validation) if part is not None and len(part)]
    if any(targets.dtype.kind not in "iu" for targets in every):
        return None
    return min(int(targets.min()) for targets in every), max(int(targets.max()) for targets in every)


def _check_model(task: Task, data: Dataset, experiment: Experiment) -> tuple[Tensor, Tensor]:
    """Run two samples through the model and check the outputs against the labels; returns outputs and targets."""
    inputs, targets = task.batch(torch.arange(2, device=task.device) % len(task.train[0]))
    module = copy.deepcopy(task.module).eval()
    try:
        with torch.no_grad():
            outputs = module(inputs)
    except Exception as problem:
        reason = " ".join(str(problem).split())
        raise BadInput(f"the model cannot take inputs of shape {tuple(inputs.shape[1:])}: {reason}") from None
    if not isinstance(outputs, Tensor):
        raise BadInput(f"the model must return a tensor, not {type(outputs).__name__}")
    expected = (2, len(data.classes)) if data.classes else tuple(targets.shape)
    fits = tuple(outputs.shape) == expected or {tuple(outputs.shape), expected} == {(2,), (2, 1)}
    if task.loss in LOSSES.values() and not fits:
        what = count(len(data.classes), "class") if data.classes else f"targets of shape {expected[1:]}"
        raise BadInput(f"the model returns outputs of shape {tuple(outputs.shape[1:])}, but the data has {what}")
    called = (
        f"the loss {experiment.loss!r}" if isinstance(experiment.loss, str) and ":" in experiment.loss else "the loss"
    )
    try:
        loss = task.loss(outputs, targets)
    except Exception as problem:
        raise BadInput(f"{called} cannot take the model's outputs: {' '.join(str(problem).split())}") from None
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        given = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise BadInput(f"{called} must be the mean over the batch, a single number, not {given}")
    for name, metric in task.metrics.items():
        try:
            found = metric(outputs, targets)
        except EpidemicError as problem:
            raise BadInput(f"metric {name!r}: {problem}") from None
        except Exception as problem:
            raise BadInput(
                f"metric {name!r} failed: {type(problem).__name__}: {' '.join(str(problem).split())}"
            ) from None
        if not isinstance(found, Tensor) or tuple(found.shape) != (2,):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise BadInput(f"metric {name!r} must give a tensor of one number per sample, not {shape} for 2 samples")
    return outputs, targets


def _check_whole(task: Task, evaluated: tuple[Tensor, Tensor]) -> None:
    """Call metrics over all outputs of a node once, with the initial model, to check them."""
    if not task.whole:
        return
    module = copy.deepcopy(task.module).eval()
    inputs, targets = evaluated
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        outputs = torch.cat([module(task.floats(inputs[part])).cpu() for part in blocks(len(inputs), 200)])
    try:
        task.judge(outputs, targets.cpu())
    except EpidemicError as problem:
        raise BadInput(str(problem)) from problem
