"""A trace gives what the function gives, for any arguments of the same shapes, and without PyTorch's compiler."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from epidemic.learner.tracing import flat, trace


def again(work, *arguments):
    return trace(work, arguments)(*flat(arguments))


def test_other_values_of_the_same_shapes_may_come():
    def work(weights, x):
        return {"sum": weights["a"] @ x, "both": [x.max(0)[0], weights["b"] + 1]}

    weights = {"a": torch.randn(3, 4), "b": torch.randn(2)}
    traced = trace(work, (weights, torch.randn(4, 5)))
    others = ({"a": torch.randn(3, 4), "b": torch.randn(2)}, torch.randn(4, 5))
    found, expected = traced(*flat(others)), work(*others)
    assert torch.equal(found["sum"], expected["sum"])
    assert all(torch.equal(a, b) for a, b in zip(found["both"], expected["both"], strict=True))


def test_constants_are_fresh_in_every_call_and_may_decide():
    def work(x):
        steps = torch.tensor(1.0)
        steps.add_(2)
        return x * steps if steps.item() > 2 else x

    traced = trace(work, (torch.ones(3),))
    for _ in range(3):
        assert torch.equal(traced(torch.full((3,), 2.0)), torch.full((3,), 6.0))


def test_a_tensor_that_the_function_brings_along_stays_what_it_is():
    table = torch.arange(4.0)
    assert torch.equal(again(lambda x: x + table, torch.ones(4)), torch.ones(4) + table)


def test_what_is_changed_in_place_is_changed_in_the_trace():
    def work(x):
        y = x.clone()
        y.view(-1)[0] = 7.0
        return y

    traced = trace(work, (torch.zeros(2, 2),))
    assert torch.equal(traced(torch.ones(2, 2)), torch.tensor([[7.0, 1.0], [1.0, 1.0]]))


def test_a_course_that_depends_on_values_is_refused():
    with pytest.raises(RuntimeError, match="takes a value out of a tensor"):
        trace(lambda x: x + 1 if x.max() > 0 else x, (torch.ones(3),))


def test_a_constant_that_took_something_in_decides_nothing():
    def work(x):
        total = torch.tensor([0.0])
        total.view(1).add_(x.sum())
        return x if total.item() > 0 else -x

    with pytest.raises(RuntimeError, match="takes a value out of a tensor"):
        trace(work, (torch.ones(3),))


def test_an_output_that_does_not_depend_on_a_parameter_has_no_gradient():
    def work(weights, x):
        return torch.func.vmap(torch.func.grad_and_value(lambda w, v: (w["a"] * v).sum()))(weights, x)

    weights = {"a": torch.randn(2, 3), "unused": torch.randn(2, 3)}
    gradients, _ = again(work, weights, torch.ones(2, 3))
    assert torch.equal(gradients["a"], torch.ones(2, 3))
    assert not gradients["unused"].any()


def per_row_gradients(module, loss):
    def of_one(weights, x, y):
        return loss(torch.func.functional_call(module, weights, (x,)), y)

    return torch.func.vmap(torch.func.grad_and_value(of_one))


def compare_with_make_fx():
    """In a process of its own, since it imports the compiler at the end."""
    from torch import nn

    from epidemic.models import GNLeNet

    torch.manual_seed(0)
    cases = [
        (nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(4, 5, 12)),
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)),
         torch.randn(4, 5, 3, 4, 4)),
        (nn.Sequential(nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 3)), torch.randn(4, 5, 12)),
        (GNLeNet().build((3, 32, 32), 3), torch.randn(4, 2, 3, 32, 32)),
    ]  # fmt: skip
    traced = []
    for module, x in cases:
        weights = {name: torch.randn(4, *value.shape) / 4 for name, value in module.named_parameters()}
        arguments = (weights, x, torch.randint(3, x.shape[:2]))
        work = per_row_gradients(module, F.cross_entropy)
        traced.append((work, arguments, trace(work, arguments)(*flat(arguments))))
    assert "torch._dynamo" not in sys.modules, "the compiler was imported"
    from torch.fx.experimental.proxy_tensor import make_fx

    for work, arguments, (gradients, losses) in traced:
        expected_gradients, expected_losses = make_fx(work)(*arguments)(*arguments)
        assert torch.equal(losses, expected_losses)
        assert all(torch.equal(gradients[name], expected_gradients[name]) for name in expected_gradients)


def test_gradients_are_those_of_make_fx_to_the_bit_without_its_compiler():
    command = [sys.executable, "-c", "import test_tracing; test_tracing.compare_with_make_fx()"]
    subprocess.run(command, cwd=Path(__file__).parent, check=True)
