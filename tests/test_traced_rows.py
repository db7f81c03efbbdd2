"""Gradients of one row as traced operations: the same numbers as PyTorch's own, for any thread; and what is left to PyTorch."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from epidemic.core.workers import Workers
from epidemic.data import Dataset, Samples
from epidemic.learner import LOSSES, AdamUpdate, PerNode, SGDUpdate, Task, allocator, choose, rule, script
from epidemic.learner.per_node import traced_gradient
from epidemic.learner.tracing import trace

NODES, STEPS, BATCH = 6, 2, 5


def data(tokens=False):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (60, 6)) if tokens else rng.normal(size=(60, 1, 8, 8)).astype(np.float32)
    samples = Samples(x, rng.integers(0, 4, 60))
    return Dataset(samples, samples, ("a", "b", "c", "d"))


def task_of(module, tokens=False):
    return Task(module, data(tokens), LOSSES["cross-entropy"], {}, torch.device("cpu"))


def index():
    return torch.from_numpy(np.random.default_rng(1).integers(0, 60, (NODES, STEPS, BATCH)))


class Attention(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(9, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.layer(self.tokens(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.cell, self.last = nn.Embedding(9, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.cell(self.tokens(x))[0][:, -1])


class Whimsical(nn.Module):
    """Draws from Python's generator: no tensor shows it."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 4)

    def forward(self, x):
        return self.last(x.flatten(1)) * random.random()


class HalfUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(64, 4), nn.Linear(64, 4)
        self.norm = nn.BatchNorm1d(64)  # so that it is not traced

    def forward(self, x):
        return self.used(self.norm(x.flatten(1)))


def mlp(*extra):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), *extra, nn.Linear(16, 4))


def convolutions(*extra):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), *extra, nn.Flatten(), nn.Linear(36, 4)
    )


MODELS = {
    "mlp": (mlp, False),
    "convolutions": (convolutions, False),
    "attention": (Attention, True),
    "dropout": (lambda: mlp(nn.Dropout(0.5)), False),
    "two dropouts": (lambda: convolutions(nn.Dropout(0.25), nn.Dropout2d(0.5)), False),
}


def trained(task, threads, *, traced, step):
    workers = Workers(threads)
    learner = PerNode(task, workers, draws_random_numbers=task.nature.random)
    if not traced:
        learner._traces = {("alone", BATCH): None}
    x = task.layout.row(task.module).repeat(NODES, 1)
    losses = learner.sgd(x, step.memory(x), index(), step, list(range(NODES)))
    workers.close()
    return x, losses


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("step", [SGDUpdate(0.1), SGDUpdate(0.1, 0.9, 0.01, True, 0.5), AdamUpdate(0.01)])
def test_traced_rows_are_those_of_pytorch_whatever_the_threads(name, step):
    """Random numbers are those that PyTorch draws when each node's training is seeded."""
    torch.manual_seed(0)
    build, tokens = MODELS[name]
    task = task_of(build(), tokens)
    assert traced_gradient(task, index()[0, 0]) is not None
    (plain, losses), *others = (
        trained(task, threads, traced=traced, step=step) for threads, traced in ((1, False), (1, True), (3, True))
    )
    for x, found in others:
        assert torch.allclose(x, plain, atol=1e-6)
        assert torch.allclose(found, losses, atol=1e-6)
    assert torch.equal(others[0][0], others[1][0])


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_draws_by_node(dropout):
    torch.manual_seed(0)
    task = task_of(Attention(dropout), True)
    step = SGDUpdate(0.1)
    one, three = (trained(task, threads, traced=True, step=step)[0] for threads in (1, 3))
    assert torch.equal(one, three)
    gradient = traced_gradient(task, index()[0, 0])
    assert len(gradient.draws) == (4 if dropout else 0)
    generators = [torch.Generator().manual_seed(seed) for seed in (7, 7, 8)]
    for draw in gradient.draws:
        a, b, c = (draw(generator) for generator in generators)
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_the_interpreter_gives_the_bits_of_the_operations_one_by_one(monkeypatch):
    """And where it cannot take them, they are called one by one."""
    torch.manual_seed(0)
    task = task_of(convolutions())
    inputs, targets = task.batch(index()[0, 0])
    row = list(task.layout.views(task.layout.row(task.module)).values())
    made = []
    translation = script._Translation

    class Seen(translation):
        def function(self):
            made.append(super().function())
            return made[-1]

    monkeypatch.setattr(script, "_Translation", Seen)
    fast = traced_gradient(task, index()[0, 0]).run(*row, inputs, targets)
    assert len(made) == 1
    monkeypatch.setattr(script, "_Translation", None)
    slow = traced_gradient(task, index()[0, 0]).run(*row, inputs, targets)
    assert len(made) == 1
    assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))
    assert not any(tensor.requires_grad for tensor in fast)


def test_lists_and_numbers_go_through_the_interpreter():
    def work(a, b):
        first, second = a.split(2)
        return [torch.cat([second, first]) * 3, (a.unbind(0)[1] + b).to(torch.float64), torch.stack([a, a]) / 2]

    a, b = torch.randn(4, 3), torch.randn(3)
    traced = trace(work, (a, b))
    script._Translation(traced).function()
    for one, other in zip(script.script(traced)(a, b), work(a, b), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype


def test_what_no_trace_shows_is_left_to_pytorch():
    state = random.getstate()
    assert traced_gradient(task_of(Whimsical()), index()[0, 0]) is None
    assert traced_gradient(task_of(HalfUsed()), index()[0, 0]) is None
    assert traced_gradient(task_of(Recurrent(), True), index()[0, 0]) is None
    random.setstate(state)


def test_a_parameter_that_is_not_used_stays_as_it_is():
    torch.manual_seed(0)
    task = task_of(HalfUsed())
    x, _ = trained(task, 1, traced=True, step=SGDUpdate(0.1, momentum=0.9))
    before, after = (task.layout.views(row) for row in (task.layout.row(task.module), x[0]))
    assert torch.equal(before["idle.weight"], after["idle.weight"])
    assert not torch.equal(before["used.weight"], after["used.weight"])


@pytest.mark.parametrize(
    ("module", "tokens", "reason"), [(Attention, True, "attention"), (Recurrent, True, "recurrent layers")]
)
def test_the_rule_knows_layers_that_stack_badly(module, tokens, reason):
    task = task_of(module(), tokens)
    found, why = rule(task.nature, 96, 8, "cpu", task.layout.size)
    assert (found, reason in why) == ("per-node", True)
    choice, _ = choose(task, Workers(1), "auto", task.layout.row(task.module), index(), SGDUpdate(0.1), 96)
    assert choice.strategy == "per-node"


def test_the_allocator_is_left_alone_where_the_user_has_set_it(monkeypatch):
    allocator.keep_freed_memory.cache_clear()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "100000")
    assert not allocator.keep_freed_memory()
    allocator.keep_freed_memory.cache_clear()


def test_evaluation_of_dropout_does_not_touch_the_shared_generator():
    """It draws nothing then, and all threads take part."""
    torch.manual_seed(0)
    task = task_of(mlp(nn.Dropout(0.5)))
    assert task.nature.random
    assert not task.nature.random_evaluated
    x = task.layout.row(task.module).repeat(3, 1)
    one, three = (
        PerNode(task, Workers(threads), draws_random_numbers=True).evaluate(x, *task.train) for threads in (1, 3)
    )
    assert torch.equal(one.loss, three.loss)
    module = copy.deepcopy(task.module).eval()
    loss = nn.functional.cross_entropy(module(task.train[0]), task.train[1]).detach()
    assert float(one.loss[0]) == pytest.approx(float(loss), rel=1e-5)
