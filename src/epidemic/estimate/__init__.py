"""What runs would cost, before any of it runs: time by timing a few rounds of some nodes, memory and bytes by counting.

`epidemic plan` and `reproduce --dry-run` both ask here.
"""

from __future__ import annotations

from epidemic.estimate.gpus import Gpus, Wanted, parse_gpus
from epidemic.estimate.planning import Plan, plan
from epidemic.estimate.pricing import Cost, costs

__all__ = ["Cost", "Gpus", "Plan", "Wanted", "costs", "parse_gpus", "plan"]
