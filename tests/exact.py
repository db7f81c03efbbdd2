"""A tiny learning problem whose every number is exact, so that its bytes are the same on any processor.

Inputs are small whole numbers, weights begin at 0, the loss is piecewise linear, and lr, batch size, weights of averages and numbers of
samples are powers of 2: all numbers are multiples of small powers of 1/2.
"""

import numpy as np
import torch
from torch import Tensor, nn

CLASSES, FEATURES = 4, 4


def linear():
    """A linear model that begins at 0."""
    module = nn.Linear(FEATURES, CLASSES)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return module


def margin(outputs: Tensor, targets: Tensor) -> Tensor:
    """How much each other class comes nearer to the right one than 1, mean over the batch."""
    right = (targets.unsqueeze(-1) == torch.arange(CLASSES)).to(outputs.dtype)
    short = torch.relu(1 + outputs - (outputs * right).sum(-1, keepdim=True)) * (1 - right)
    return short.sum(-1).mean()


def arrays():
    """Samples of four classes, as the arrays of an .npz file."""
    k = np.arange(80)
    y = k % CLASSES
    x = np.stack([(k * (i + 3)) % 5 - 2 + (y == i) for i in range(FEATURES)], axis=1).astype(np.float32)
    return {"train_x": x[:64], "train_y": y[:64], "test_x": x[64:], "test_y": y[64:]}


EXPERIMENT = """\
name = "exact"
nodes = 4
rounds = 4
seeds = [1, 2]
topology = {kind = "el-oracle", s = 1}
algorithm = {lr = 0.125, batch_size = 4, momentum = 0.5}
data = {kind = "arrays", path = "data.npz"}
partition = {kind = "dirichlet", alpha = 1.0, min_samples = 4}
model = {kind = "python", factory = "exact:linear"}
loss = "exact:margin"
eval = {every = 2}
"""


def write(directory, text=EXPERIMENT):
    """The file of the experiment and its data in a directory; the path of the file."""
    np.savez(directory / "data.npz", **arrays())
    path = directory / "exact.toml"
    path.write_text(text)
    return path
