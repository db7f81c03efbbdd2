"""Executing experiments: all nodes on this machine."""

from __future__ import annotations

from epidemic.engine.results import Models, Run, SeedRun
from epidemic.engine.simulation import simulate

__all__ = ["Models", "Run", "SeedRun", "simulate"]
