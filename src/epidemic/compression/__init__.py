"""Codecs: how the models in messages are compressed, one file per kind, listed here.

May be imported by `algorithms/`, `runtime/` and everything above them. To add a codec: a frozen Struct derived from `Codec` in a file of its own (`bytes`,
`encode`, `decode`, `problem`), and its row in `CODECS`.
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
    """Read the codec of a TOML table, for example {kind = "random-k", share = 0.25}.

    Args:
        table: The settings, with `kind`.
        where: Its dotted path in the file, for messages.

    Returns:
        The codec as a frozen value.
    """
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
