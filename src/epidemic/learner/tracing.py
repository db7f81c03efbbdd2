"""Tracing: which plain tensor operations a function amounts to, for arguments of these shapes.

PyTorch's own `make_fx` gives the same graphs, but imports the compiler of PyTorch for it, which takes longer than importing the rest of PyTorch and
72 MB in every process. Nothing of it is needed where all shapes are known.
"""

from __future__ import annotations

import operator
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._functorch import eager_transforms
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from epidemic.learner.task import Task


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes every operation that reaches the tensors below all transforms into a graph."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = graph
        self.constants = torch.nn.Module()
        self._nodes = WeakTensorKeyDictionary()  # of tensors that were seen
        self._known = WeakTensorKeyDictionary()  # tensors that come out the same in every call

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """The compiler has nothing to skip, and is not imported for it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        seen: list[Tensor] = []
        map_aggregate((args, kwargs), lambda a: seen.append(a) if isinstance(a, Tensor) else None)
        known = bool(seen) and all(tensor in self._known for tensor in seen)
        if torch.Tag.data_dependent_output in func.tags and not known:
            raise RuntimeError(
                f"{func} takes a value out of a tensor: what follows from it would hold for one call only"
            )
        if func is torch.ops.aten.lift_fresh.default:  # each call needs a fresh copy, since it may change it
            func, known = torch.ops.aten.lift_fresh_copy.default, True
        call = self.graph.call_function(func, map_aggregate(args, self.node), map_aggregate(kwargs, self.node))
        result = func(*args, **kwargs)
        if func._schema.is_mutable and not known:  # what it changed may be one of these, or share memory with one
            self._known.clear()
        self.add(result, call, known and torch.Tag.nondeterministic_seeded not in func.tags)
        return result

    def add(self, value: Any, node: Node, known: bool = False) -> None:
        """Remember the origin of a tensor, or of each of several."""
        if isinstance(value, Tensor):
            node.meta["looks"] = tuple(value.shape), tuple(value.stride())
            node.meta["dtype"] = value.dtype
            self._nodes[value] = node
            if known:
                self._known[value] = True
        elif isinstance(value, tuple | list):
            for i, one in enumerate(value):
                if isinstance(one, Tensor):
                    self.add(one, self.graph.call_function(operator.getitem, (node, i)), known)

    def node(self, value: Any) -> Any:
        """What stands for a tensor in the graph; anything else stands for itself."""
        if not isinstance(value, Tensor):
            return value
        found = self._nodes.get(value)  # type: ignore[no-untyped-call]
        if found is None:  # a constant of the model, say
            name = f"constant_{len(list(self.constants.buffers()))}"
            self.constants.register_buffer(name, value)
            found = self.graph.create_node("get_attr", name)
            self.add(value, found)
        return found


def trace(work: Callable[..., Any], arguments: tuple[Any, ...]) -> GraphModule:
    """The operations of `work(*arguments)` as a module that takes the tensors of such arguments one by one, as `flat` gives them.

    Args:
        work: gives tensors, in tuples, lists and dictionaries; its course must not depend on what is in the tensors.
        arguments: tensors, and dictionaries of tensors.

    Returns:
        A module without parameters that gives what `work` gives, for any arguments of the same shapes.

    Raises:
        RuntimeError: where the course of `work` depends on values.
    """
    recorder = _Recorder(Graph())
    for i, tensor in enumerate(flat(arguments)):
        recorder.add(tensor, recorder.graph.placeholder(f"argument_{i}"))
    with _no_compiler(), recorder:
        result = work(*arguments)
    recorder.graph.output(map_aggregate(result, recorder.node))
    recorder.graph.eliminate_dead_code()
    return GraphModule(recorder.constants, _without_idle_steps(recorder.graph))


@contextmanager
def _no_compiler() -> Iterator[None]:
    """Let `torch.func.grad` take gradients without importing the compiler, which it only does to switch a part of it off.

    Does nothing if the compiler is already imported, or if PyTorch works differently.
    """
    name = "_autograd_grad"
    original = getattr(eager_transforms, name, None)
    if original is None or "torch._dynamo" in sys.modules:
        yield
        return

    def gradients(
        outputs: Sequence[Tensor], inputs: Sequence[Tensor], *others: Any, create_graph: bool = True, **more: Any
    ) -> Any:
        """The gradients of the sum of `outputs`; 0 for inputs that they do not depend on."""
        depend = [output for output in outputs if output.requires_grad]
        if others or more or not depend:
            return original(outputs, inputs, *others, create_graph=create_graph, **more)
        found = torch.autograd.grad(depend, inputs, create_graph=create_graph, allow_unused=True)
        return tuple(torch.zeros_like(value) if one is None else one for one, value in zip(found, inputs, strict=True))

    setattr(eager_transforms, name, gradients)
    try:
        yield
    finally:
        setattr(eager_transforms, name, original)


def flat(arguments: tuple[Any, ...]) -> list[Tensor]:
    """The tensors in the arguments, in order."""
    return [tensor for one in arguments for tensor in (one.values() if isinstance(one, dict) else [one])]


_RESHAPING = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.expand.default}


def _without_idle_steps(graph: Graph) -> Graph:
    """The graph without steps that return their input: a third of those that vmap leaves behind.

    The remaining views accept any strides: the batches of a later local step are not contiguous, as those of the first one are.
    """
    for node in graph.nodes:
        before = node.args[0] if node.args else None
        if node.op != "call_function" or not isinstance(before, Node):
            continue
        looks = node.meta.get("looks")
        same_shape = node.target in _RESHAPING and looks is not None and looks == before.meta.get("looks")
        if same_shape or node.target == torch.ops.aten.detach.default:
            node.replace_all_uses_with(before)
            graph.erase_node(node)
        elif node.target == torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    return graph


# -- what is kept of traces, and what is taken out of them --------------------------------------------------------------

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
    graph = traced.graph
    draws: list[Draw] = []
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
    return bool(given.get("dropout_p", 0.0) == 0.0)
