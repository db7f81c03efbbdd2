"""What the shell offers when Tab is pressed. Nothing here may be slow: no PyTorch, no reading of data."""

from __future__ import annotations

ITEMS = (
    *("table1", "table2", "table3", "fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8"),
    *("contraction", "drift", "cap", "spectra", "async", "rivals", "all"),
)
"""Those of `epidemic reproduce`, whose module is slow to import; a test compares them."""


def topologies(incomplete: str) -> list[str]:
    """The kinds of topologies, and what compares them."""
    from epidemic.topology import TOPOLOGIES

    return [kind for kind in (*TOPOLOGIES, "compare") if kind.startswith(incomplete)]


def items(incomplete: str) -> list[str]:
    """What can be reproduced."""
    return [item for item in ITEMS if item.startswith(incomplete)]


def scales(incomplete: str) -> list[str]:
    """At which size."""
    return [scale for scale in ("smoke", "laptop", "paper") if scale.startswith(incomplete)]


def downloads(incomplete: str) -> list[str]:
    """The data sets that can be fetched."""
    from epidemic.data.fetch import DOWNLOADS

    return [name for name in DOWNLOADS if name.startswith(incomplete)]
