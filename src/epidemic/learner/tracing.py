"""Tracing: which plain tensor operations a function amounts to, for arguments of these shapes.

PyTorch's own `make_fx` gives the same graphs, but imports the compiler of PyTorch for it, which takes longer than importing the rest of PyTorch and
72 MB in every process. Nothing of it is needed where all shapes are known.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._functorch import eager_transforms
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary


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
        """Remember where a tensor, or each of several, comes from."""
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
    """Let `torch.func.grad` take gradients without importing the compiler, which it does only to switch a part of it off.

    Where the compiler is there already, or PyTorch does it in another way, all is left as it is.
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
    """The tensors of arguments, in order."""
    return [tensor for one in arguments for tensor in (one.values() if isinstance(one, dict) else [one])]


_RESHAPING = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.expand.default}


def _without_idle_steps(graph: Graph) -> Graph:
    """The same graph without the steps that give what they are given: a third of those that vmap leaves behind.

    What is left of the views takes any strides: the batches of a later local step do not lie side by side, as those of the first one do.
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
