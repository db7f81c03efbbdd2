"""Traced operations as one function of PyTorch's own interpreter, which runs without Python's lock.

A thread that calls tensor operations one by one from Python gives its lock back and asks for it again around each of them; two threads that do
so with small tensors wait for each other half of the time. `script` hands all operations over at once. They are the same operations in the
same order, none is rewritten, so results are the same to the last bit.

PyTorch has no public way to hand over a graph. What is used here is looked for first, and where anything is missing or cannot be said in the
interpreter's types, `script` gives back the traced module itself: the same numbers, more slowly.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

Run = Callable[..., list[Tensor]]
"""Tensors in, one by one; tensors out."""

_NAMES = itertools.count()
_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


def script(traced: GraphModule) -> Run:
    """The operations of a traced module whose output is a list of tensors.

    Args:
        traced: What `tracing.trace` gives of work that returns a list of tensors.

    Returns:
        A function of its tensors, one by one, for any thread. It takes no gradients of what it does.
    """
    try:
        function = _Translation(traced).function()
    except Exception:  # a private way of PyTorch's, and operations of anybody's making
        return _plainly(traced)
    constants = [getattr(traced, str(node.target)) for node in traced.graph.nodes if node.op == "get_attr"]
    own = threading.local()

    def run(*tensors: Tensor) -> list[Tensor]:
        if not hasattr(own, "set"):  # of each thread its own: no operation may be exchanged for another
            torch._C._set_graph_executor_optimize(False)
            own.set = True
        with torch.no_grad():
            found: list[Tensor] = function(*tensors, *constants)
        return found

    return run


def _plainly(traced: GraphModule) -> Run:
    def run(*tensors: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return list(traced(*tensors))

    return run


class _Translation:
    """A graph of the tracer's as one of the interpreter's."""

    def __init__(self, traced: GraphModule) -> None:
        self.graph: Any = torch._C.Graph()  # what it has is not all declared
        self._values: dict[Node, Any] = {}
        nodes = list(traced.graph.nodes)
        for kind in ("placeholder", "get_attr"):  # constants come after the arguments
            for node in nodes:
                if node.op == kind:
                    self._values[node] = self.graph.addInput(f"input_{len(self._values)}")
        for node in nodes:
            if node.op == "call_function":
                self._values[node] = self._call(node)
            elif node.op == "output":
                (tensors,) = node.args
                self.graph.registerOutput(self._list(tensors, torch._C.ListType(torch._C.TensorType.get())))

    def function(self) -> Any:
        torch._C._jit_pass_lint(self.graph)
        return torch._C._create_function_from_graph(f"epidemic_{next(_NAMES)}", self.graph)

    def _call(self, node: Node) -> Any:
        """The value of an operation; a list of values where it has several."""
        if node.target is operator.getitem:
            before, which = node.args
            return self._values[before][which]  # type: ignore[index]
        schema = node.target._schema  # type: ignore[union-attr]
        if (
            not node.all_input_nodes
            and not schema.is_mutable
            and isinstance(node.args[0] if node.args else None, int | float)
        ):
            return self.graph.insertConstant(node.target(*node.args, **node.kwargs))  # type: ignore[operator]
        given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
        inputs = [self._value(given.get(a.name, a.default_value), a.type) for a in schema.arguments]
        made = self.graph.create(schema.name, inputs, len(schema.returns))
        self.graph.insertNode(made)
        if made.schema() == "(no schema)":
            raise NotImplementedError(f"{schema.name} of these arguments")
        outputs = list(made.outputs())
        for value, returned in zip(outputs, schema.returns, strict=True):
            value.setType(returned.type)
        if len(outputs) == 1 and isinstance(schema.returns[0].type, torch._C.ListType):
            many = len([user for user in node.users if user.target is operator.getitem])
            size = 1 + max((int(user.args[1]) for user in node.users), default=-1)  # type: ignore[arg-type]
            if many != len(node.users):
                raise NotImplementedError("a list that is used as a whole")
            return [self._element(outputs[0], i) for i in range(size)]
        return outputs if len(outputs) > 1 else outputs[0]

    def _element(self, values: Any, i: int) -> Any:
        made = self.graph.create("aten::__getitem__", [values, self.graph.insertConstant(i)], 1)
        self.graph.insertNode(made)
        (one,) = made.outputs()
        return one

    def _value(self, given: Any, wanted: Any) -> Any:
        if isinstance(given, Node):
            return self._values[given]
        if isinstance(given, list | tuple) and any(isinstance(one, Node) for one in given):
            return self._list(given, wanted)
        if isinstance(given, torch._C.Generator):
            raise NotImplementedError("a generator")
        if given is None or isinstance(given, bool | int | float | str | torch.device):
            kind = str(wanted)
            if isinstance(given, int) and not isinstance(given, bool) and "float" in kind:
                given = float(given)
            return self.graph.insertConstant(given)
        if isinstance(given, torch.memory_format):
            return self.graph.insertConstant(_FORMATS.index(given))
        if isinstance(given, torch.dtype | torch.layout):
            return self.graph.insertConstant(given)
        if isinstance(given, list | tuple):
            kind = str(wanted)
            return self.graph.insertConstant([float(one) if "float" in kind else one for one in given])
        raise NotImplementedError(f"an argument of type {type(given).__name__}")

    def _list(self, given: Any, wanted: Any) -> Any:
        inner = wanted.getElementType() if isinstance(wanted, torch._C.OptionalType) else wanted
        made = self.graph.create("prim::ListConstruct", [self._value(one, inner.getElementType()) for one in given], 1)
        self.graph.insertNode(made)
        (values,) = made.outputs()
        values.setType(inner)
        return values
