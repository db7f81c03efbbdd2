"""Running experiments with all nodes on this machine: in rounds, or event by event under the simulated clock.

- Rounds: `simulation` (the seeds of an experiment), `rounds` (one seed), `on_ranks` and `sharing` (the same on several processes).
- Time: `timed_run` (one seed), `assembly` (from an experiment to its clockwork), `clockwork` (the event loop), `links` (how messages travel),
  `node_context` (what a simulated node can know and ask for), `clocked_rounds` and `deployed_protocol` (nodes in rounds), `membership`, `trace`, `dry_run`.
- `results`: the results of a run.

May be imported by `study/`, `api/`, `estimate/` and `cli/`; it imports neither these nor `deploy/`. Whatever depends on a method belongs in `algorithms/`,
whatever depends on a topology in `topology/`: a new one needs no change here.
"""

from __future__ import annotations

from epidemic.simulator.results import Models, SeedRun, SimulationResult
from epidemic.simulator.simulation import simulate

__all__ = ["Models", "SeedRun", "SimulationResult", "simulate"]
