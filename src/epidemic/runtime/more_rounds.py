"""Going on with more rounds than a run was begun with: what it did stays as it is, and what only its end had is taken back.

The result has the same bytes as a run that had all the rounds from the start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from epidemic.core.errors import BadInput
from epidemic.core.files import read_json
from epidemic.counting import without_rounds
from epidemic.learner import Layout
from epidemic.runtime.checkpoint import CHECKPOINT, MODELS, Progress, read_checkpoint, write_checkpoint

RECORDS, TIMINGS, SUMMARY, NODES = "records.jsonl", "timings.jsonl", "summary.json", "nodes.json"

NEXT_RUN = "make a new run with the same keys, from its models, by 'epidemic cluster next'"
"""What a deployment does instead."""


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
    info = read_json(path / "run.json") or {}
    table = info.get("experiment", {})
    deployed = "node" in info
    if deployed and without_rounds(table):
        raise BadInput(
            f"{path} cannot go on to {wanted} rounds: its method has none and ends after clock.stop; {NEXT_RUN}"
        )
    if "clock" in table and not deployed:
        raise BadInput(
            f"{path} cannot go on to {wanted} rounds: under a clock, nodes that are done have stopped while others went on;"
            " choose another directory to run all of them"
        )
    if begun and (path / SUMMARY).is_file() and not (path / CHECKPOINT).is_file() and not ended_early(path):
        fix = NEXT_RUN if deployed else "choose another directory to run all of them"
        raise BadInput(
            f"{path} cannot go on from {begun} to {wanted} rounds: its {CHECKPOINT} was deleted, or never kept; {fix}"
        )


def recorded_before(progress: Progress, every: int) -> int:
    """The last round with a record that a longer run has, too, whose models are evaluated every so many rounds; -1: none."""
    return progress.recorded - (progress.recorded % every if progress.recorded > 0 else 0)


def take_back_the_end(path: Path, layout: Layout, every: int) -> None:
    """Make the seed in this directory, finished or not, one that can go on.

    Models are evaluated every so many rounds; a last round in between was evaluated only because it was the last. Whatever stops the
    process on the way, what is there then is whole, and this can be done again.
    """
    found = read_checkpoint(path, layout)
    if found is not None:
        progress = found.progress
        if recorded_before(progress, every) < progress.recorded:
            progress.recorded = recorded_before(progress, every)
            progress.records_bytes = _without_last_line(path / RECORDS, progress.records_bytes)
            progress.timings_bytes = _without_last_line(path / TIMINGS, progress.timings_bytes)
        write_checkpoint(path, progress, found.tensors, {name: found.fed(name) for name in found.state})
    for name in (SUMMARY, NODES, MODELS):
        (path / name).unlink(missing_ok=True)


def _without_last_line(path: Path, size: int) -> int:
    """Where the last of the lines in the first `size` bytes begins."""
    with path.open("rb") as file:
        return file.read(size)[:-1].rfind(b"\n") + 1
