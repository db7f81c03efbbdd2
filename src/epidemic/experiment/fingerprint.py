"""Fingerprints: 16 hex digits that identify a user's own object, because a table cannot hold the object itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn


def fingerprint(value: Any) -> str:
    """16 hex digits that change when a user's own object changes, as far as this is visible from outside."""
    digest = hashlib.blake2b(digest_size=8)

    def add(value: Any, depth: int = 0) -> None:
        digest.update(f"{type(value).__module__}.{type(value).__qualname__}\0".encode())
        if isinstance(value, torch.Tensor):
            value = (
                value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
                if value.numel()
                else value.numpy()
            )
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
        elif isinstance(value, nn.Module):
            digest.update(repr(value).encode())
            add(dict(value.state_dict()), depth + 1)
        elif isinstance(value, Mapping):
            for key in value:
                add(key, depth + 1)
                add(value[key], depth + 1)
        elif isinstance(value, list | tuple):
            for part in value:
                add(part, depth + 1)
        elif hasattr(value, "__code__"):  # a function: its code and closure
            digest.update(value.__code__.co_code + repr(value.__code__.co_consts[1:]).encode())
        elif isinstance(value, msgspec.Struct):
            add(msgspec.structs.asdict(value), depth + 1)
        elif hasattr(value, "__dict__") and depth < 8 and not isinstance(value, type):
            add({k: v for k, v in sorted(vars(value).items()) if not k.startswith("__")}, depth + 1)
        else:
            digest.update(repr(value).encode())

    add(value)
    return digest.hexdigest()
