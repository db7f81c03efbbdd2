"""Effects: whether code of a user's own does more than compute with tensors.

A traced step repeats tensor operations only. A model or loss that also counts its calls, writes a log or waits must be called as it is, every time. That is
read from its code, without calling it: names of modules other than those that compute, attributes or globals that are set, `print` and `open`. What cannot
be read counts as an effect. PyTorch's own classes and functions have none that a trace would lose.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

PURE = frozenset(
    {"torch", "epidemic", "math", "cmath", "operator", "functools", "itertools", "collections", "typing", "types", "einops", "numbers"}
)  # fmt: skip
"""Packages whose functions only compute."""
TALKING = frozenset({"print", "open", "input", "exec", "eval", "setattr", "delattr", "globals", "__import__"})
SETTING = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"})


def has_effects(module: nn.Module, loss: Callable[..., Any]) -> bool:
    """Return whether the forward passes of a model, its hooks or its loss may do more than compute."""
    reader = _Reader()
    hooks = [
        hook for one in module.modules() for hooks in (one._forward_hooks, one._forward_pre_hooks) for hook in hooks.values()
    ]  # fmt: skip
    methods = [(type(one).forward, type(one)) for one in module.modules()]
    return any(
        reader.acts(function, owner) for function, owner in [*methods, (loss, None), *((h, None) for h in hooks)]
    )


class _Reader:
    """Reads functions and what they call, each once."""

    def __init__(self) -> None:
        self._read: set[tuple[int, type | None]] = set()

    def acts(self, given: Any, owner: type | None = None) -> bool:
        """Whether calling it may do more than compute; `owner`: the class whose methods it reaches by `self`."""
        if isinstance(given, functools.partial):
            return self.acts(given.func, owner)
        if isinstance(given, MethodType):
            return self.acts(given.__func__, type(given.__self__))
        if _pure(given):
            return False
        if isinstance(given, nn.Module):
            return has_effects(given, _nothing)
        given = inspect.unwrap(given) if callable(given) else given
        if not isinstance(given, FunctionType):
            called = inspect.getattr_static(type(given), "__call__", None)
            return not isinstance(called, FunctionType) or self.acts(called, type(given))
        if (id(given), owner) in self._read:
            return False
        self._read.add((id(given), owner))
        return any(self._code_acts(code, given, owner) for code in _codes(given.__code__))

    def _code_acts(self, code: CodeType, function: FunctionType, owner: type | None) -> bool:
        inside = {cell: value.cell_contents for cell, value in _cells(function)}
        for step in dis.get_instructions(code):
            if step.opname in SETTING or (step.opname == "STORE_DEREF" and step.argval in code.co_freevars):
                return True
            name = step.argval
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF") and isinstance(name, str):
                found = inside.get(name, function.__globals__.get(name))
                if name in TALKING and name not in function.__globals__:
                    return True
                if self._reaches(found):
                    return True
            elif (
                step.opname in ("LOAD_ATTR", "LOAD_METHOD")
                and owner is not None
                and any(self.acts(method, owner) for method in _methods(owner, str(name)))
            ):
                return True
        return False

    def _reaches(self, found: Any) -> bool:
        """Whether something that is named may have effects."""
        if isinstance(found, ModuleType):
            return found.__name__.partition(".")[0] not in PURE
        if isinstance(found, BuiltinFunctionType):
            return found.__module__ is not None and found.__module__.partition(".")[0] not in PURE | {"builtins"}
        return isinstance(found, FunctionType | MethodType | functools.partial) and self.acts(found)


def _methods(owner: type, name: str) -> Iterator[FunctionType]:
    """All methods and properties of this name, also those that `super()` reaches."""
    for base in owner.__mro__:
        found = vars(base).get(name)
        found = found.fget if isinstance(found, property) else found
        found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
        if isinstance(found, FunctionType) and not _pure(found):
            yield found


def _pure(given: Any) -> bool:
    """Whether it belongs to a package that only computes."""
    home = getattr(given, "__module__", None) or ""
    return home.partition(".")[0] in PURE


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _cells(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of enclosing functions that have a value."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            _ = cell.cell_contents
        except ValueError:
            continue
        yield name, cell


def _nothing(*_: Any) -> None:
    """Stands for a loss that has no effect."""
