"""What Python and notebooks use: runs, comparisons and sweeps that show their progress and can be drawn and tabulated.

The engine computes and knows nothing of figures and tables; here its results meet `report/`.
"""

from __future__ import annotations

from epidemic.api.many import Comparison, Sweep, compare, sweep
from epidemic.api.runs import Run, RunSummary, simulate

__all__ = ["Comparison", "Run", "RunSummary", "Sweep", "compare", "simulate", "sweep"]
