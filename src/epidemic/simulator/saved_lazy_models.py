"""Lazy models in a checkpoint: the values of those still referenced, by number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from epidemic.runtime.lazy_models import LazyModel, LazyTraining
from epidemic.simulator.clocked_rounds import LazyAggregation, LazyLocalUpdate

START = "promise."


def keep(lazy_models: Iterable[LazyModel]) -> dict[str, Tensor]:
    """The values as tensors for a checkpoint, grouped by name and size, with the numbers of their lazy models."""
    groups: dict[tuple[str, tuple[int, ...]], tuple[list[int], list[Tensor]]] = {}
    for lazy_model in lazy_models:
        for name, value in _parts(lazy_model):
            ids, values = groups.setdefault((name, tuple(value.shape)), ([], []))
            ids.append(lazy_model.id)
            values.append(value)
    found: dict[str, Tensor] = {}
    for number, ((name, _), (ids, values)) in enumerate(groups.items()):
        found[f"{START}{number}.ids.{name}"] = torch.tensor(ids)
        found[f"{START}{number}.values.{name}"] = torch.stack(values)
    return found


def fill(lazy_models: Iterable[LazyModel], tensors: dict[str, Tensor]) -> None:
    """Set the values of lazy models recreated by a replay."""
    by_id = {lazy_model.id: lazy_model for lazy_model in lazy_models}
    for key, ids in tensors.items():
        if not key.startswith(START) or ".ids." not in key:
            continue
        name = key.split(".ids.", 1)[1]
        values = tensors[key.replace(".ids.", ".values.", 1)]
        for number, value in zip(ids.tolist(), values, strict=True):
            if number in by_id:
                _give(by_id[number], name, value.clone())


def _parts(lazy_model: LazyModel) -> Iterator[tuple[str, Tensor]]:
    value = lazy_model.value
    if isinstance(lazy_model, LazyLocalUpdate):
        state, message, loss = value
        yield from ((f"state.{name}", row) for name, row in state.items())
        yield from ((f"message.{name}", row) for name, row in message.items())
        yield "loss", loss
    elif isinstance(value, dict):
        yield from ((f"state.{name}", row) for name, row in value.items())
    else:
        yield "row", value
        if isinstance(lazy_model, LazyTraining):
            yield "loss", torch.tensor(lazy_model.loss, dtype=torch.float64)


def _give(lazy_model: LazyModel, name: str, value: Tensor) -> None:
    kind, _, column = name.partition(".")
    held: Any = lazy_model.value
    if isinstance(lazy_model, LazyLocalUpdate):
        state, message, loss = ({}, {}, None) if held is None else held
        {"state": state, "message": message}.get(kind, {})[column] = value
        lazy_model.value = (state, message, value if kind == "loss" else loss)
    elif isinstance(lazy_model, LazyAggregation) or isinstance(held, dict):
        lazy_model.value = {**(held or {}), column: value}
    elif kind == "loss":
        assert isinstance(lazy_model, LazyTraining)
        lazy_model.loss = float(value)
    else:
        lazy_model.value = value
