"""The models of `benchmarks.models`: each with data of its shape and a batch size. Written as users write theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

import epidemic as ep
from epidemic.core.rng import Streams
from epidemic.data import Dataset, Samples


class Transformer(nn.Module):
    """Two layers of attention over 32 tokens, and a linear layer on their mean."""

    def __init__(self, dropout: float = 0.0, width: int = 128, vocabulary: int = 256, classes: int = 10) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(32, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes.   # (b, 32) -> (b, classes)"""
        scores: Tensor = self.last(self.layers(self.tokens(x) + self.places).mean(1))
        return scores


class Recurrent(nn.Module):
    """An LSTM over 32 tokens, and a linear layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, 64)
        self.cell = nn.LSTM(64, 128, batch_first=True)
        self.last = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes.   # (b, 32) -> (b, 10)"""
        scores: Tensor = self.last(self.cell(self.tokens(x))[0][:, -1])
        return scores


class Adapted(nn.Module):
    """A frozen linear layer and a trained difference of low rank (LoRA)."""

    def __init__(self, frozen: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The layer and its difference.   # (..., in) -> (..., out)"""
        out: Tensor = self.frozen(x) + self.up(self.down(x))
        return out


def adapters() -> nn.Module:
    """LoRA adapters of both linear layers of each block of a frozen transformer, and its trained last layer."""
    model = Transformer().requires_grad_(False)
    for layer in model.layers.layers:
        layer.linear1, layer.linear2 = Adapted(layer.linear1), Adapted(layer.linear2)
        layer.activation_relu_or_gelu = 0  # PyTorch's short cut for evaluation would look into the linear layers
    model.last.requires_grad_(True)
    return model


class Residual(nn.Module):
    """Two convolutions with GroupNorm, beside which the input goes past them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.GroupNorm(2, after))
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.GroupNorm(2, after))
        self.past = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures to pictures.   # (b, before, h, w) -> (b, after, h / stride, w / stride)"""
        return torch.relu(self.second(torch.relu(self.first(x))) + self.past(x))


def resnet18() -> nn.Module:
    """ResNet-18 for pictures of 32 x 32, with GroupNorm: 11 million parameters."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Residual(a, b, 1 if a == b else 2) for a, b in pairwise(widths)]
    first = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(2, 64), nn.ReLU())
    return nn.Sequential(first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def dropout_cnn() -> nn.Module:
    """The convolutional network with dropout of many an introduction, for MNIST: 1.2 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A model to be measured, and what it learns from."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int = 8
    classes: int = 10
    tokens: bool = False
    """Whether the inputs are whole numbers below 256."""
    slow: bool = False
    """Whether a step takes so long that it is measured seldom and with few nodes."""

    def data(self, size: int = 512) -> Dataset:
        """Noise: what is computed does not depend on what is in it."""
        stream = Streams(0)("noise")
        if self.tokens:
            x = stream.integers(256, size, *self.shape).astype(np.int64)
        else:
            x = stream.normals(size, *self.shape).astype(np.float32)
        y = stream.integers(self.classes, size).astype(np.int64)
        names = tuple(map(str, range(self.classes)))
        return Dataset(Samples(x, y), Samples(x[:100], y[:100]), names)


_DIGIT, _COLOURS, _TEXT = (1, 28, 28), (3, 32, 32), (32,)
SUBJECTS = {
    "transformer": Subject(Transformer, _TEXT, tokens=True),
    "transformer, batch 32": Subject(Transformer, _TEXT, 32, tokens=True),
    "transformer, dropout": Subject(lambda: Transformer(0.1), _TEXT, tokens=True),
    "mlp 784-512-512": Subject(lambda: ep.MLP((512, 512)).build(_DIGIT, 10), _DIGIT),
    "mlp 784-512-512, batch 64": Subject(lambda: ep.MLP((512, 512)).build(_DIGIT, 10), _DIGIT, 64),
    "mlp 3072-1024-1024": Subject(lambda: ep.MLP((1024, 1024)).build(_COLOURS, 10), _COLOURS),
    "cnn, dropout": Subject(dropout_cnn, _DIGIT),
    "small-cnn": Subject(lambda: ep.SmallCNN().build(_DIGIT, 10), _DIGIT),
    "small-cnn, batch 32": Subject(lambda: ep.SmallCNN().build(_DIGIT, 10), _DIGIT, 32),
    "femnist-cnn": Subject(lambda: ep.FEMNISTCNN().build(_DIGIT, 62), _DIGIT, 16, 62),
    "gn-lenet": Subject(lambda: ep.GNLeNet().build(_COLOURS, 10), _COLOURS),
    "mlp 784-32": Subject(lambda: ep.MLP((32,)).build(_DIGIT, 10), _DIGIT),
    "lstm": Subject(Recurrent, _TEXT, tokens=True),
    "lora": Subject(adapters, _TEXT, tokens=True),
    "resnet-18": Subject(resnet18, _COLOURS, slow=True),
}
