"""Models and losses that do more than compute are called as they are, every time: nothing that they do is lost in a trace."""

import math
import time
from functools import partial
from time import sleep

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import epidemic as ep
from epidemic.learner.effects import has_effects

CALLS = []


def scaled(x):
    return x * math.sqrt(2)


def noted(x):
    CALLS.append(time.monotonic())
    return x


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.calls, self.kept = nn.Linear(64, 10), 0, []
        self.scale = 2.0

    def squeezed(self, x):
        return F.relu(x) / self.scale

    def forward(self, x):
        parts = [scaled(self.squeezed(self.first(x.flatten(1))))]
        parts.append(parts[0].tanh())
        return sum(parts)


class Counts(Plain):
    def forward(self, x):
        self.calls += 1
        return self.first(x.flatten(1)) * min(self.calls, 3)


class CountsElsewhere(Plain):
    def squeezed(self, x):
        self.calls += 1
        return x


class Notes(Plain):
    def forward(self, x):
        return noted(super().forward(x))


class Sleeps(Plain):
    def forward(self, x):
        sleep(0)
        return super().forward(x)


class Prints(Plain):
    def forward(self, x):
        print("forward")
        return super().forward(x)


def hooked():
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    module[1].register_forward_hook(lambda *_: CALLS.append(time.monotonic()))
    return module


@pytest.mark.parametrize(
    "module", [Plain(), nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), nn.GRU(3, 4), ep.SmallCNN().build((1, 8, 8), 3)]
)
def test_what_only_computes_has_none(module):
    assert not has_effects(module, F.cross_entropy)
    assert not has_effects(module, lambda outputs, targets: F.cross_entropy(outputs, targets, label_smoothing=0.1))
    assert not has_effects(module, nn.CrossEntropyLoss())


@pytest.mark.parametrize("module", [Counts(), CountsElsewhere(), Notes(), Sleeps(), Prints(), hooked()])
def test_what_counts_notes_waits_or_prints_has_some(module):
    assert has_effects(module, F.cross_entropy)


def test_losses_are_read_too():
    def outer(outputs, targets, inner=noted):
        return F.cross_entropy(outputs, targets)

    def notes(outputs, targets):
        return noted(F.cross_entropy(outputs, targets))

    assert not has_effects(nn.Linear(2, 2), outer)
    assert has_effects(nn.Linear(2, 2), notes)
    assert has_effects(nn.Linear(2, 2), partial(notes))


class Inherits(Counts):
    def forward(self, x):
        return 2 * super().forward(x)


def test_what_super_reaches_is_read():
    assert has_effects(Inherits(), F.cross_entropy)


class Trained(Plain):
    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            CALLS.append(time.monotonic())
        return super().forward(x)


def test_a_forward_pass_with_effects_is_called_in_every_local_step():
    experiment = ep.Experiment(
        nodes=2, rounds=3, topology=ep.Ring(), partition=ep.IID(), model=Trained(), data=ep.Digits(),
        algorithm=ep.LocalSGD(local_steps=4), runtime=ep.Runtime(strategy="per-node"),
    )  # fmt: skip
    CALLS.clear()
    ep.simulate(experiment)
    assert len(CALLS) >= 2 * 3 * 4
