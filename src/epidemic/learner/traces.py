"""What has been traced in this process, so that experiments of the same kind do not trace again; and random draws taken out of a trace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from epidemic.learner.task import Task

Traces = dict[tuple[Any, ...], Any]

MOST_KINDS = 8
_TRACES: OrderedDict[Hashable, Traces] = OrderedDict()  # by kind of task: tracing takes longer than a short run

_DRAWS = {
    torch.ops.aten.bernoulli.p: "bernoulli_",
    torch.ops.aten.bernoulli_.float: "bernoulli_",
    torch.ops.aten.uniform_.default: "uniform_",
    torch.ops.aten.normal_.default: "normal_",
    torch.ops.aten.exponential_.default: "exponential_",
}
"""Operations that fill a tensor with random numbers, and the methods that do the same with a generator that is given."""
_FILL_WHAT_IS_THERE = frozenset(list(_DRAWS)[1:])


def traces_of(task: Task) -> Traces:
    """What has been traced of tasks of the same kind in this process; what a trace holds as a constant must not differ between them."""
    if task.kind is None or task.layout.constants:
        return {}
    found = _TRACES.setdefault(task.kind, {})
    _TRACES.move_to_end(task.kind)
    while len(_TRACES) > MOST_KINDS:
        _TRACES.popitem(last=False)
    return found


@dataclass(frozen=True)
class Draw:
    """Random numbers that traced work is given: their shape, and how they are drawn."""

    like: Tensor
    """Without numbers: the shape, the strides and the type."""
    fill: Callable[..., Tensor]
    arguments: tuple[float, ...]

    def __call__(self, generator: torch.Generator) -> Tensor:
        """Fresh numbers from this generator."""
        return self.fill(torch.empty_like(self.like, device=generator.device), *self.arguments, generator=generator)


def draws_taken_out(traced: GraphModule) -> list[Draw]:
    """Make further arguments of all random numbers of a trace, in the order in which they are drawn.

    The generator of PyTorch is one for all threads. With numbers that are drawn before, each thread has a generator of its own, and draws
    the same ones as the operations would have drawn.

    Raises:
        NotImplementedError: If an operation draws in another way than by filling a fresh tensor.
    """
    graph, draws = traced.graph, []
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.nodes):
        if node.op != "call_function" or torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        before, *arguments = node.args
        if _idle(node):
            continue
        fresh = node.target not in _FILL_WHAT_IS_THERE or (
            before.op == "call_function" and "empty" in str(before.target)
        )
        if (
            node.target not in _DRAWS
            or node.kwargs
            or not fresh
            or not all(isinstance(a, float | int) for a in arguments)
        ):
            raise NotImplementedError(f"{node.target} draws random numbers")
        shape, stride = node.meta["looks"]
        with graph.inserting_after(last):
            last = graph.placeholder(f"draw_{len(draws)}")
        last.meta.update(node.meta)
        like = torch.empty_strided(shape, stride, dtype=node.meta["dtype"], device="meta")
        draws.append(Draw(like, getattr(Tensor, _DRAWS[node.target]), tuple(arguments)))
        node.replace_all_uses_with(last)
        graph.erase_node(node)
        if node.target in _FILL_WHAT_IS_THERE:
            before.replace_all_uses_with(last)
            graph.erase_node(before)
    graph.eliminate_dead_code()
    traced.recompile()
    return draws


def _idle(node: Node) -> bool:
    """Whether it is an attention without dropout, which could draw and does not."""
    named = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    if "dropout_p" not in named:
        return False
    given = dict(zip(named, node.args, strict=False)) | node.kwargs
    return given.get("dropout_p", 0.0) == 0.0
