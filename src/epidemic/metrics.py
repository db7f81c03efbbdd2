"""Metrics: measurements of every node's model besides loss and accuracy.

There are two kinds. One returns a number for each sample, averaged for a node:

    def top3(outputs, targets):                      # (batch, classes), (batch,) -> (batch,)
        return (outputs.topk(3).indices == targets[:, None]).any(1).float()

The other needs all outputs of a node at once:

    @ep.metrics.whole
    def rare(outputs, targets):                      # (samples, classes), (samples,) -> a number
        return float((outputs.argmax(1) == 9).float().mean())

A metric is called from several threads, and must have no side effects. Undefined values (the AUC of a class without samples) are None or NaN, and are shown
as a dash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from epidemic.core.config import import_object
from epidemic.core.errors import BadInput, EpidemicError, RunFailed, suggestion

PerSample = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> one number per sample."""


class Whole:
    """A metric over all outputs of a node; made by `whole`."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        if not callable(function):
            raise BadInput(f"whole({function!r}) needs a function of (outputs, targets)")
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def __call__(self, outputs: Tensor, targets: Tensor) -> Any:
        """Return the metric over all outputs of a node."""
        return self.function(outputs, targets)

    def number(self, name: str, outputs: Tensor, targets: Tensor) -> float:
        """The metric of one node as a number, not a number where it is undefined; `name` is for messages."""
        if not bool(torch.isfinite(outputs).all()):
            return math.nan  # the model has diverged, and the run says so
        try:
            found = self.function(outputs, targets)
        except EpidemicError as problem:
            raise type(problem)(f"metric {name!r}: {problem}") from None
        except Exception as problem:
            reason = " ".join(str(problem).split())
            raise RunFailed(f"metric {name!r} failed: {type(problem).__name__}: {reason}") from problem
        if found is None:
            return math.nan
        try:
            return float(found)
        except (TypeError, ValueError, RuntimeError):
            looks = f"shape {tuple(found.shape)}" if hasattr(found, "shape") else type(found).__name__
            raise RunFailed(
                f"metric {name!r} must give a single number for all outputs of a node, not {looks}"
            ) from None


Metric = PerSample | Whole


def whole(function: Callable[[Tensor, Tensor], Any]) -> Whole:
    """Mark a function as a metric over all outputs of a node, instead of one that returns a number per sample.

    Args:
        function: Takes the outputs of a node's model for all samples and their targets, on the CPU: (samples, classes) and
            (samples,). Returns a number, or None if it is undefined.

    Returns:
        The metric, which can be called like the function.

    Example:
        >>> import epidemic as ep
        >>> rare = ep.metrics.whole(lambda outputs, targets: float((outputs.argmax(1) == 9).float().mean()))
        >>> experiment = ep.Experiment(metrics={"rare": rare, "f1": "macro-f1"})
    """
    return function if isinstance(function, Whole) else Whole(function)


# -- those that come with the library ---------------------------------------------------------------------------------


@whole
def macro_f1(outputs: Tensor, targets: Tensor) -> float:
    """The mean over classes of F1 = 2 TP / (2 TP + FP + FN). Classes that have no sample and were never predicted are left out."""
    classes = _classes(outputs, targets, "macro-f1")
    guesses = outputs.argmax(1)
    right = torch.bincount(targets[guesses == targets], minlength=classes).double()
    both = (torch.bincount(guesses, minlength=classes) + torch.bincount(targets, minlength=classes)).double()
    return float((2 * right / both)[both > 0].mean())


@whole
def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The mean over the classes that are there of the share of their samples that is recognised."""
    classes = _classes(outputs, targets, "balanced-accuracy")
    right = torch.bincount(targets[outputs.argmax(1) == targets], minlength=classes).double()
    there = torch.bincount(targets, minlength=classes).double()
    return float((right / there)[there > 0].mean())


@whole
def auc(outputs: Tensor, targets: Tensor) -> float | None:
    """The probability that a sample of a class is ranked above one of the others, ties counting half: the area under the ROC curve.

    With two classes, of the second one; with more, the mean over classes, each against the rest, ranked by their log-odds. Undefined if a class has no sample.
    """
    if outputs.dim() == 2 and outputs.shape[1] == 1 and not targets.is_floating_point():
        return _auc_of(outputs[:, 0].double(), targets.flatten() == 1)  # one output, for the second of two classes
    classes = _classes(outputs, targets, "auc")
    odds = _log_odds(outputs.double())
    found = [_auc_of(odds[:, c], targets == c) for c in (range(classes) if classes > 2 else [1])]
    return None if None in found else sum(f for f in found if f is not None) / len(found)


def _log_odds(outputs: Tensor) -> Tensor:
    """log p / (1 - p) for each class.   # (samples, classes)

    The largest output is set against the others alone, because 1 - p would lose its digits. Sums go over sorted outputs, so that samples
    whose outputs are the same but for their order are tied.
    """
    outputs = outputs - outputs.amax(1, keepdim=True)
    ordered = outputs.sort(1).values
    p = outputs - ordered.logsumexp(1, keepdim=True)  # its logarithm
    largest = -ordered[:, :-1].logsumexp(1, keepdim=True)
    return torch.where(outputs == 0, largest, p - torch.log1p(-p.exp()))


def _auc_of(scores: Tensor, positive: Tensor) -> float | None:
    """From the sum of the ranks of the positive ones, equal scores sharing the mean of theirs (Mann and Whitney)."""
    ours = int(positive.sum())
    others = len(positive) - ours
    if not ours or not others:
        return None
    _, place, count = torch.unique(scores, return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    ranks = (last - (count - 1) / 2)[place]
    return (float(ranks[positive].sum()) - ours * (ours + 1) / 2) / (ours * others)


@whole
def perplexity(outputs: Tensor, targets: Tensor) -> float:
    """exp of the mean cross-entropy: between how many classes the model is undecided."""
    _classes(outputs, targets, "perplexity")
    return float(torch.nn.functional.cross_entropy(outputs.double(), targets).exp())


def mean_absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The distance of output and target, mean over what is to be predicted.   # (batch, ...) -> (batch,)"""
    return _errors(outputs, targets, "mean-absolute-error").abs().mean(1)


@whole
def r2(outputs: Tensor, targets: Tensor) -> float | None:
    """1 - squared errors / squared distances from the mean, each summed over everything. Undefined if the targets are all alike."""
    errors = _errors(outputs.double(), targets, "r2")
    spread = targets.double().reshape(len(targets), -1)
    total = float((spread - spread.mean(0)).square().sum())
    return 1 - float(errors.square().sum()) / total if total else None


SHIPPED: dict[str, Metric] = {
    "macro-f1": macro_f1,
    "balanced-accuracy": balanced_accuracy,
    "auc": auc,
    "perplexity": perplexity,
    "mean-absolute-error": mean_absolute_error,
    "r2": r2,
}
"""The metrics that a file can name without a module."""


def _classes(outputs: Tensor, targets: Tensor, name: str) -> int:
    """The number of classes, if this is a problem of classes."""
    if targets.is_floating_point() or targets.dim() != 1:
        raise BadInput(f"{name} needs data with classes, not quantities")
    if outputs.dim() != 2 or outputs.shape[1] < 2:
        raise BadInput(f"{name} needs an output for each class, not outputs of shape {tuple(outputs.shape[1:])}")
    return int(outputs.shape[1])


def _errors(outputs: Tensor, targets: Tensor, name: str) -> Tensor:
    """Output minus target, if this is a problem of quantities.   # (batch, quantities)"""
    if not targets.is_floating_point() and targets.dim() == 1:
        raise BadInput(f"{name} needs quantities to predict, not classes")
    if outputs.numel() != targets.numel():
        shapes = f"{tuple(outputs.shape[1:])} for targets of shape {tuple(targets.shape[1:])}"
        raise BadInput(f"{name} needs an output for each quantity, not outputs of shape {shapes}")
    return (outputs.reshape(targets.shape) - targets).reshape(len(targets), -1)


# -- names ------------------------------------------------------------------------------------------------------------


def named_metrics(metrics: object) -> dict[str, str | Metric]:
    """Metrics by name, from a table or a list of names; refuses what cannot be metrics, without importing anything."""
    if isinstance(metrics, list | tuple):
        names = [m.rpartition(":")[2] if isinstance(m, str) else repr(m) for m in metrics]
        if len(set(names)) < len(names):
            raise BadInput(f"metrics = {list(metrics)!r} has a name twice; use a table, {{one = ..., other = ...}}")
        metrics = dict(zip(names, metrics, strict=True))
    if not isinstance(metrics, Mapping):
        raise BadInput(f'metrics = {metrics!r} must be names, for example ["macro-f1"] or {{f1 = "macro-f1"}}')
    for name, metric in metrics.items():
        _check(name, metric)
    return dict(metrics)


def _check(name: object, metric: object) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise BadInput(f"metrics: {name!r} must be a name")
    where = f"metrics.{name}"
    if not isinstance(metric, str) and not callable(metric):
        raise BadInput(f"{where} = {metric!r} must be a name or a function of (outputs, targets)")
    if metric == "accuracy" or name == "accuracy":
        raise BadInput(f"{where}: accuracy is recorded anyway; leave it out, or call yours otherwise")
    if isinstance(metric, str) and metric not in SHIPPED and ":" not in metric:
        raise BadInput(
            f'{where} = {metric!r} is neither known nor of the form "module:name"{suggestion(metric, SHIPPED)}'
        )


def metric_from(name: str, metric: str | Metric) -> Metric:
    """The metric that a name stands for; a function stands for itself."""
    if not isinstance(metric, str):
        return metric
    if metric in SHIPPED:
        return SHIPPED[metric]
    found = import_object(metric, f"metrics.{name}")
    if isinstance(found, type) or not callable(found):
        what = found.__name__ if isinstance(found, type) else type(found).__name__
        raise BadInput(f"metrics.{name} = {metric!r} must name a function of (outputs, targets), not {what}")
    made: Metric = found
    return made
