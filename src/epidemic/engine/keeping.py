"""Promises in a checkpoint: the values of those that somebody holds, by their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from epidemic.engine.in_rounds import Absorption, Emission
from epidemic.host.promises import Promise, Training

START = "promise."


def keep(promises: Iterable[Promise]) -> dict[str, Tensor]:
    """Tensors of a checkpoint: those of one name and size together, and whose they are."""
    groups: dict[tuple[str, tuple[int, ...]], tuple[list[int], list[Tensor]]] = {}
    for promise in promises:
        for name, value in _parts(promise):
            ids, values = groups.setdefault((name, tuple(value.shape)), ([], []))
            ids.append(promise.id)
            values.append(value)
    found: dict[str, Tensor] = {}
    for number, ((name, _), (ids, values)) in enumerate(groups.items()):
        found[f"{START}{number}.ids.{name}"] = torch.tensor(ids)
        found[f"{START}{number}.values.{name}"] = torch.stack(values)
    return found


def fill(promises: Iterable[Promise], tensors: dict[str, Tensor]) -> None:
    """Give promises that were made again the values that they had."""
    by_id = {promise.id: promise for promise in promises}
    for key, ids in tensors.items():
        if not key.startswith(START) or ".ids." not in key:
            continue
        name = key.split(".ids.", 1)[1]
        values = tensors[key.replace(".ids.", ".values.", 1)]
        for number, value in zip(ids.tolist(), values, strict=True):
            if number in by_id:
                _give(by_id[number], name, value.clone())


def _parts(promise: Promise) -> Iterator[tuple[str, Tensor]]:
    value = promise.value
    if isinstance(promise, Emission):
        state, message, loss = value
        yield from ((f"state.{name}", row) for name, row in state.items())
        yield from ((f"message.{name}", row) for name, row in message.items())
        yield "loss", loss
    elif isinstance(value, dict):
        yield from ((f"state.{name}", row) for name, row in value.items())
    else:
        yield "row", value
        if isinstance(promise, Training):
            yield "loss", torch.tensor(promise.loss, dtype=torch.float64)


def _give(promise: Promise, name: str, value: Tensor) -> None:
    kind, _, column = name.partition(".")
    held: Any = promise.value
    if isinstance(promise, Emission):
        state, message, loss = ({}, {}, None) if held is None else held
        {"state": state, "message": message}.get(kind, {})[column] = value
        promise.value = (state, message, value if kind == "loss" else loss)
    elif isinstance(promise, Absorption) or isinstance(held, dict):
        promise.value = {**(held or {}), column: value}
    elif kind == "loss":
        assert isinstance(promise, Training)
        promise.loss = float(value)
    else:
        promise.value = value
