"""More rounds for a deployment: each folder's experiment.toml gets the new number, and its node continues from its last round."""

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
    """Refuse a new number of rounds that the experiment of this folder cannot have."""
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
            f"rounds = {now.rounds} is fewer than the {before.rounds} of {folder / 'experiment.toml'}; use"
            f" {before.rounds} or more"
        )


def check_not_running(folder: Path, experiment: Experiment) -> None:
    """Refuse to change the folder of a node that is running on this machine."""
    if RunDirectory(folder / "run", experiment, experiment.seeds[0]).in_use:
        raise BadInput(f"the node of {folder} is still running; wait until it ends, or stop it (SIGTERM saves)")


def write_rounds(folder: Path, rounds: int) -> bool:
    """Write the number of rounds to a folder's experiment.toml, for the next start of its node; returns whether it changed."""
    path = folder / "experiment.toml"
    experiment = load(path)
    if experiment.rounds == rounds:
        return False
    write_bytes(path, to_toml(msgspec.structs.replace(experiment, rounds=rounds)).encode())
    return True


def extend_cluster(root: Path, rounds: int) -> None:
    """Write the number of rounds for all nodes of a cluster's directory; nothing is written if one of them cannot have it."""
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
    write_rounds(root, rounds)  # last, so that the whole can be repeated after a failure


def finished_folders(folders: Sequence[Path]) -> list[Path]:
    """Those folders whose nodes have finished all rounds of their experiment.toml."""
    found = []
    for folder in folders:
        experiment = load(folder / "experiment.toml")
        if RunDirectory(folder / "run", experiment, experiment.seeds[0]).finished:
            found.append(folder)
    return found
