"""Many runs: methods side by side, sweeps over a grid, batches in processes, on ranks or on a cluster, and the paper's tables and figures.

`comparison.py` and `sweep.py` make the runs, `batch.py` executes them, `commands.py` executes one as a command of its own, `slurm/`
submits them to a cluster, `reproduce/` has every item of the paper, and says beforehand what it costs.
May be imported by `api/` and `cli/`. To add an item to reproduce: an `Item` in a file of `reproduce/`, listed in its `__init__`.
"""
