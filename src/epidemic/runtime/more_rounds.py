"""Continuing a run with more rounds: what only its end wrote is removed, the rest stays.

The result has the same bytes as a run that had all the rounds from the start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from epidemic.core.errors import BadInput
from epidemic.core.files import read_json
from epidemic.core.formatting import count
from epidemic.counting import without_rounds
from epidemic.learner import Layout
from epidemic.runtime.checkpoint import CHECKPOINT, MODELS, Progress, read_checkpoint, write_checkpoint

RECORDS, TIMINGS, SUMMARY, NODES = "records.jsonl", "timings.jsonl", "summary.json", "nodes.json"

NEXT_RUN = "make a new run with the same keys, from its models, by 'epidemic cluster next'"
"""What to do with a deployment instead."""


def rounds_of(info: dict[str, Any] | None, otherwise: int) -> int:
    """The rounds in run.json of a seed."""
    found = (info or {}).get("experiment", {}).get("rounds", otherwise)
    return found if isinstance(found, int) else otherwise


def ended_early(path: Path) -> bool:
    """Whether a callback ended the seed in this directory; it is then finished, however many rounds are wanted."""
    return bool((read_json(path / SUMMARY) or {}).get("ended_early"))


def check_longer(path: Path, begun: int, wanted: int) -> None:
    """Refuse to continue the seed in this directory to `wanted` rounds if that is impossible."""
    if wanted < begun:
        raise BadInput(
            f"rounds = {wanted} is fewer than the {begun} of the run in {path};"
            f" continue to {begun} or more, or choose another directory"
        )
    info = read_json(path / "run.json") or {}
    table = info.get("experiment", {})
    deployed = "node" in info
    if deployed and without_rounds(table):
        raise BadInput(
            f"{path} cannot continue to {count(wanted, 'round')}: its method is asynchronous and ends after clock.stop; {NEXT_RUN}"
        )
    if "clock" in table and not deployed:
        raise BadInput(
            f"{path} cannot go on to {count(wanted, 'round')}: under a clock, nodes that are done have stopped while others went on;"
            " choose another directory to run all of them"
        )
    if begun and (path / SUMMARY).is_file() and not (path / CHECKPOINT).is_file() and not ended_early(path):
        fix = NEXT_RUN if deployed else "choose another directory to run all of them"
        raise BadInput(
            f"{path} cannot continue from {begun} to {count(wanted, 'round')}: its {CHECKPOINT} was deleted, or never kept; {fix}"
        )


def recorded_before(progress: Progress, every: int) -> int:
    """The last recorded round that a longer run evaluates too, every `every` rounds; -1: none."""
    return progress.recorded - (progress.recorded % every if progress.recorded > 0 else 0)


def take_back_the_end(path: Path, layout: Layout, every: int) -> None:
    """Make the seed in this directory, finished or not, one that can continue.

    Models are evaluated every so many rounds; a last round in between was evaluated only because it was the last. If the process stops on the way, the
    directory is still valid, and this can be repeated.
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
    """The position of the last line in the first `size` bytes."""
    with path.open("rb") as file:
        return file.read(size)[:-1].rfind(b"\n") + 1
