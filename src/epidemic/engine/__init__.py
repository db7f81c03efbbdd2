"""Executing experiments: all nodes on this machine."""

from __future__ import annotations

from epidemic.engine.simulation import Run, SeedRun, simulate

__all__ = ["Run", "SeedRun", "simulate"]
