"""What a run will cost, before any of it runs: time by timing a few rounds of some nodes, memory and bytes by counting.

`epidemic plan` and `reproduce --dry-run` both ask here. `measuring.py` times, `planning.py` counts memory and puts both together.
May be imported by: `study/` and `cli/`.
To add a cost: a field of `MemoryEstimate` or `RunEstimate` with its unit, and a test that compares it with a real run.
"""

from __future__ import annotations

from epidemic.estimate.planning import Gpus, RunEstimate, plan

__all__ = ["Gpus", "RunEstimate", "plan"]
