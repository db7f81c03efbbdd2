"""Many runs as tasks of a Slurm cluster, through `submitit` (extra `slurm`): one array job, a task for each run, all in one shared directory.

Nothing is imported here, because every task imports this package before it starts its run.
May be imported by: `cli/` and `study/`. To add an option of tasks: `submit.py`, which checks it and words it for Slurm.
"""
