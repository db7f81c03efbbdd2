"""How the models in messages are made smaller, by kind: one file each, listed here.

May be imported by `algorithms/`, `runtime/` and everything above them. To add a codec: a frozen Struct derived from `Codec` in a file of its own
(`bytes`, `encode`, `decode`, `problem`), and its row in `CODECS`.
"""

from __future__ import annotations

from epidemic.compression.base import FILLS, Codec, Fill, Partial, Said, sane
from epidemic.compression.rounded import BFloat16, Float16, Int8, Uncompressed
from epidemic.compression.sparse import RandomK, TopK
from epidemic.core.config import build_kind

CODECS: dict[str, type[Codec]] = {
    "none": Uncompressed,
    "float16": Float16,
    "bfloat16": BFloat16,
    "int8": Int8,
    "top-k": TopK,
    "random-k": RandomK,
}


def codec_from(table: object, where: str = "compression") -> Codec:
    """The codec that a TOML table describes, for example {kind = "random-k", share = 0.25}."""
    return build_kind(table, CODECS, where)


__all__ = [
    "CODECS",
    "FILLS",
    "BFloat16",
    "Codec",
    "Fill",
    "Float16",
    "Int8",
    "Partial",
    "RandomK",
    "Said",
    "TopK",
    "Uncompressed",
    "codec_from",
    "sane",
]
