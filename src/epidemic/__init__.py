"""Epidemic Learning: machine learning by many nodes that hold private data and have no server."""

from __future__ import annotations

__version__ = "0.1.0"
