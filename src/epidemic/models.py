"""The models of the paper and small ones for the embedded data, built to fit the data.

A model specification is a frozen value; `build(shape, outputs)` returns the `torch.nn.Module`. Initial weights are PyTorch's default.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from epidemic.core.config import call_own, import_object
from epidemic.core.errors import BadInput, require_int
from epidemic.core.settings import Settings

Shape = tuple[int, ...]


class Model(Settings, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the models that a file names by kind: settings from which a module is built."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """A module for inputs of this shape and so many outputs."""
        raise NotImplementedError


def _image(shape: Shape, kind: str, divisor: int) -> tuple[int, int]:
    """Channels and pixels after halving; refuses inputs that are no images of a suitable size."""
    if len(shape) != 3 or shape[1] % divisor or shape[2] % divisor:
        raise BadInput(
            f'model.kind = "{kind}" needs pictures (channels, height, width) with sides that {divisor} divides;'
            f" the data has inputs of shape {shape}"
        )
    return shape[0], (shape[1] // divisor) * (shape[2] // divisor)


class GNLeNet(Model, frozen=True, tag="gn-lenet"):
    """LeNet with group normalisation, the paper's model for CIFAR-10: 89,834 parameters there."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        channels, pixels = _image(shape, "gn-lenet", 8)

        def block(before: int, after: int) -> list[nn.Module]:
            convolution = nn.Conv2d(before, after, 5, padding=2)
            return [convolution, nn.GroupNorm(2, after), nn.ReLU(), nn.MaxPool2d(2)]

        blocks = [*block(channels, 32), *block(32, 32), *block(32, 64)]
        return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * pixels, outputs))


class FEMNISTCNN(Model, frozen=True, tag="femnist-cnn"):
    """The paper's model for FEMNIST: 1,690,046 parameters there."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        channels, pixels = _image(shape, "femnist-cnn", 4)
        return nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * pixels, 512), nn.ReLU(), nn.Linear(512, outputs),
        )  # fmt: skip


class Logistic(Model, frozen=True, tag="logistic"):
    """Logistic regression on the raw inputs, without hidden layers."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(_features(shape), outputs))


class MLP(Model, frozen=True, tag="mlp"):
    """Fully connected layers with ReLU between them."""

    hidden: tuple[int, ...] = (32,)

    def __post_init__(self) -> None:
        for width in self.hidden:
            require_int("model.hidden", width, 1)

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        widths = [_features(shape), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


class SmallCNN(Model, frozen=True, tag="small-cnn"):
    """Two convolutions of 3 x 3 and a linear layer, for small pictures."""

    channels: tuple[int, int] = (8, 16)

    def __post_init__(self) -> None:
        for width in self.channels:
            require_int("model.channels", width, 1)

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise BadInput(
                f'model.kind = "small-cnn" needs pictures (channels, height, width) of at least 4 x 4; the data has {shape}'
            )
        first, second = self.channels
        pixels = (shape[1] // 4) * (shape[2] // 4)
        return nn.Sequential(
            nn.Conv2d(shape[0], first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(second * pixels, outputs),
        )  # fmt: skip


class Point(Model, frozen=True, tag="point"):
    """A single vector x; its output is x - input. With squared error this is the quadratic problem of theory checks."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        return _Point(_features(shape))


class _Point(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones(features, dtype=torch.float64) / features**0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x - inputs


class PythonModel(Model, frozen=True, tag="python"):
    """A user's own: "module:factory" is called with `options` and returns a torch.nn.Module."""

    factory: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        made = call_own(import_object(self.factory, "model.factory"), self.options, f"model.factory = {self.factory!r}")
        if not isinstance(made, nn.Module):
            what = f"the class {made.__name__}" if isinstance(made, type) else type(made).__name__
            raise BadInput(f"model.factory = {self.factory!r} must return a torch.nn.Module, not {what}")
        return made


def unused_methods(module: nn.Module) -> str | None:
    """A line on the methods of PyTorch Lightning that a user has written into a model, which nothing calls here; None without any."""
    found = [name for name in ("training_step", "configure_optimizers") if _written_by_user(type(module), name)]
    if not found:
        return None
    return (
        f"the model's {' and '.join(found)} {'is' if len(found) == 1 else 'are'} not used: nodes train it with the experiment's"
        " loss and algorithm (optimizer, lr, momentum, schedule)"
    )


def _written_by_user(kind: type, method: str) -> bool:
    """Whether a class has its own method, not the one that Lightning gives every module."""
    owner = next((one for one in kind.__mro__ if method in vars(one)), None)
    return owner is not None and owner.__module__.partition(".")[0] not in ("lightning", "pytorch_lightning")


def _features(shape: Shape) -> int:
    size = 1
    for side in shape:
        size *= side
    return size


MODELS: dict[str, type[Model]] = {
    "gn-lenet": GNLeNet,
    "femnist-cnn": FEMNISTCNN,
    "logistic": Logistic,
    "mlp": MLP,
    "small-cnn": SmallCNN,
    "point": Point,
    "python": PythonModel,
}
