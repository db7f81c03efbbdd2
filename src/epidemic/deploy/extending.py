"""More rounds for a deployment: every node is told the new number, by its folder's experiment.toml, and goes on from its last round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from epidemic.core.errors import BadInput
from epidemic.core.files import write_bytes
from epidemic.experiment import Experiment, load, to_toml
from epidemic.runtime.more_rounds import NEXT_RUN
from epidemic.runtime.run_directory import RunDirectory


def check_rounds(folder: Path, before: Experiment, now: Experiment) -> None:
    """Refuse another number of rounds where the experiment in this folder cannot have it."""
    if now.rounds == before.rounds:
        return
    if now.free is not None:
        raise BadInput(
            f'rounds = {now.rounds}: algorithm.kind = "{now.free.called}" has no rounds and ends after clock.stop; {NEXT_RUN}'
        )
    if now.network.coin == "committed":
        raise BadInput(
            f'rounds = {now.rounds}: with network.coin = "committed" the nodes have committed to the targets of {before.rounds} rounds; {NEXT_RUN}'
        )
    if now.rounds < before.rounds:
        raise BadInput(
            f"rounds = {now.rounds} is fewer than the {before.rounds} of {folder / 'experiment.toml'}; go on with"
            f" {before.rounds} or more"
        )


def check_not_running(folder: Path, experiment: Experiment) -> None:
    """Refuse to touch the folder of a node that runs on this machine."""
    if RunDirectory(folder / "run", experiment, experiment.seeds[0]).in_use:
        raise BadInput(f"the node of {folder} is still running; wait for its end, or stop it (SIGTERM saves)")


def write_rounds(folder: Path, rounds: int) -> bool:
    """Write a number of rounds into a folder's experiment.toml, so that the node has it whenever it is started; whether it was another one."""
    path = folder / "experiment.toml"
    experiment = load(path)
    if experiment.rounds == rounds:
        return False
    write_bytes(path, to_toml(msgspec.structs.replace(experiment, rounds=rounds)).encode())
    return True


def extend_cluster(root: Path, rounds: int) -> None:
    """Tell all nodes in the directory of a cluster that they have so many rounds. Nothing is written if one of them cannot."""
    before = load(root / "experiment.toml")
    check_rounds(root, before, msgspec.structs.replace(before, rounds=rounds))
    folders = sorted(path.parent for path in root.glob("*/experiment.toml"))
    for folder in folders:
        if (folder / "node.pem").is_file() and (folder / "run").is_dir():
            experiment = msgspec.structs.replace(load(folder / "experiment.toml"), rounds=rounds)
            check_not_running(folder, experiment)
            RunDirectory(folder / "run", experiment, experiment.seeds[0]).check(resume=True)
    for folder in folders:
        if (folder / "node.pem").is_file():
            write_rounds(folder, rounds)
    write_rounds(root, rounds)  # last: before, the whole can be done again


def finished_folders(folders: Sequence[Path]) -> list[Path]:
    """Those of these folders whose nodes have finished as many rounds as their experiment.toml says."""
    found = []
    for folder in folders:
        experiment = load(folder / "experiment.toml")
        if RunDirectory(folder / "run", experiment, experiment.seeds[0]).finished:
            found.append(folder)
    return found
