"""Going on with more rounds than a run was begun with: what it did stays as it is, and what only its end had is taken back.

The result has the same bytes as a run that had all the rounds from the start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from epidemic.errors import BadInput
from epidemic.files import read_json
from epidemic.host.checkpoint import CHECKPOINT, MODELS, read_checkpoint, write_checkpoint
from epidemic.learner import Layout

RECORDS, TIMINGS, SUMMARY, NODES = "records.jsonl", "timings.jsonl", "summary.json", "nodes.json"


def rounds_of(info: dict[str, Any] | None, otherwise: int) -> int:
    """The rounds that run.json says a seed was begun with."""
    found = (info or {}).get("experiment", {}).get("rounds", otherwise)
    return found if isinstance(found, int) else otherwise


def ended_early(path: Path) -> bool:
    """Whether a callback ended the seed in this directory; it is finished then, however many rounds are wanted."""
    return bool((read_json(path / SUMMARY) or {}).get("ended_early"))


def check_longer(path: Path, begun: int, wanted: int) -> None:
    """Refuse to go on with the seed in this directory where `wanted` rounds cannot be had."""
    if wanted < begun:
        raise BadInput(
            f"rounds = {wanted} is fewer than the {begun} of the run in {path};"
            f" go on with {begun} or more, or choose another directory"
        )
    if "clock" in (read_json(path / "run.json") or {}).get("experiment", {}):
        raise BadInput(
            f"{path} cannot go on to {wanted} rounds: under a clock, nodes that are done have stopped while others went on;"
            " choose another directory to run all of them"
        )
    if begun and (path / SUMMARY).is_file() and not (path / CHECKPOINT).is_file() and not ended_early(path):
        raise BadInput(
            f"{path} cannot go on from {begun} to {wanted} rounds: its {CHECKPOINT} was deleted, or never kept;"
            " choose another directory to run all of them"
        )


def take_back_the_end(path: Path, layout: Layout, every: int) -> None:
    """Make the seed in this directory, finished or not, one that can go on.

    Models are evaluated every so many rounds; a last round in between was evaluated only because it was the last. Whatever stops the
    process on the way, what is there then is whole, and this can be done again.
    """
    found = read_checkpoint(path, layout)
    if found is not None:
        progress = found.progress
        if progress.recorded % every:
            progress.recorded -= progress.recorded % every
            progress.records_bytes = _without_last_line(path / RECORDS, progress.records_bytes)
            progress.timings_bytes = _without_last_line(path / TIMINGS, progress.timings_bytes)
        write_checkpoint(path, progress, found.tensors, {name: found.fed(name) for name in found.state})
    for name in (SUMMARY, NODES, MODELS):
        (path / name).unlink(missing_ok=True)


def _without_last_line(path: Path, size: int) -> int:
    """Where the last of the lines in the first `size` bytes begins."""
    with path.open("rb") as file:
        return file.read(size)[:-1].rfind(b"\n") + 1
