"""`--ranks`: starts the processes that compute one simulation together on this machine, and says in one line how they ended."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from epidemic.core import children
from epidemic.core.errors import BadInput, Interrupted, RunFailed, require_int
from epidemic.runtime.interrupt import signals_to

GRACE = 20.0
"""Seconds that the other ranks have to end by themselves when one has failed."""
MOST = 1024
INTERRUPTED = 130
ALONE = ("sweep", "reproduce", "cluster", "node")
"""Commands that train and are not shared among ranks."""

Ending = tuple[int, str, bool]
"""Exit code, message, and whether it is that another rank was lost."""


def run_on_ranks(count: int, words: Sequence[str]) -> None:
    """Run the command `epidemic WORDS` on so many ranks; raises what went wrong, in the words of the rank that knows."""
    require_int("--ranks", count, 1, MOST)
    context = multiprocessing.get_context("spawn")
    connections: list[Any] = []
    processes: list[Any] = []
    with _forwarding(processes) as signals:
        for rank in range(count):
            connection, child_end = context.Pipe()
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(count),
                "WORLD_SIZE": str(count),
            }
            process = context.Process(target=_rank, args=(child_end, list(words), place), name=f"rank {rank}")
            process.start()
            child_end.close()
            connections.append(connection)
            processes.append(process)
        store = _meeting_point()  # PyTorch is loaded here while ranks load it, too
        for connection in connections:
            with suppress(OSError):  # one that has ended already is noticed below
                connection.send(store.port)
        endings = _endings(processes, connections)
    _conclude(endings, [process.exitcode or 0 for process in processes], bool(signals))


def share(
    count: int,
    words: Sequence[str],
    options: Sequence[tuple[str, object]],
    settings: Sequence[str],
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """The command `epidemic WORDS`, with the options that have a value, on so many ranks."""
    if started_as_a_rank():
        raise BadInput(
            "--ranks starts ranks, and this process is one of several already (WORLD_SIZE); leave one of the two out"
        )
    if count == 1:  # a single process waits for no other
        options = [(option, value) for option, value in options if option != "--rank-timeout"]
    given = [word for option, value in options if value is not None for word in (option, str(value))]
    changed = [word for setting in settings for word in ("--set", setting)]
    try:
        run_on_ranks(count, [*words, *given, *changed, *["--quiet"] * quiet, *["--json"] * as_json])
    except Interrupted as stop:
        more = f" --ranks {count}" if "resume with: " in str(stop) else ""
        raise Interrupted(f"{stop}{more}") from None


def check_timeout(seconds: float | None, ranks: int | None) -> None:
    """Refuse a --rank-timeout that is invalid, or useless without ranks."""
    if seconds is None:
        return
    if not 1 <= seconds <= 1e6:
        raise BadInput(f"--rank-timeout {seconds:g} must be between 1 and 1,000,000 seconds")
    if ranks is None and not started_as_a_rank():
        raise BadInput("--rank-timeout is how long a rank waits for the others, and there are none; add --ranks N")


def check_command(words: Sequence[str]) -> None:
    """Refuse to do, in each of several ranks, what one process should do: only `run` and `compare` are shared among them."""
    if words[:1] and words[0] in ALONE and started_as_a_rank():
        raise BadInput(
            f"epidemic {words[0]} would be done by each of {os.environ['WORLD_SIZE']} ranks; only 'epidemic run' and 'epidemic compare'"
            " are shared among them: start it without torchrun"
        )


def started_as_a_rank() -> bool:
    """Whether this process was started as one of several ranks; PyTorch is loaded only where that may be."""
    if "RANK" not in os.environ:
        return False
    from epidemic.core import workers

    return workers.started_as_a_rank()


def silent() -> bool:
    """Whether another rank prints the output."""
    return started_as_a_rank() and os.environ["RANK"] != "0"


def _meeting_point() -> Any:
    """The store through which ranks connect. It is held here, on a port chosen by the system, so no two commands share one."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@contextmanager
def _forwarding(processes: Sequence[Any]) -> Iterator[list[int]]:
    """Inside, Ctrl-C and SIGTERM are forwarded to all ranks, and listed."""
    came: list[int] = []

    def forward(number: int, _: Any) -> None:
        came.append(number)
        children.ask_to_end(processes)

    with signals_to(forward):
        yield came


def _endings(processes: Sequence[Any], connections: Sequence[Any]) -> list[Ending | None]:
    """Wait for all; after one has failed, the others end soon or are terminated. None: it ended without a message."""
    deadline: float | None = None
    endings: list[Ending | None] = [None] * len(processes)
    while any(process.is_alive() for process in processes):
        children.wait_for_any(processes, 0.5)
        failed = any(p.exitcode not in (None, 0, INTERRUPTED) for p in processes)
        if failed and deadline is None:
            deadline = time.monotonic() + GRACE
        if deadline is not None and time.monotonic() > deadline:
            for rank, process in enumerate(processes):
                if process.is_alive():
                    process.kill()
                    endings[rank] = (1, f"rank {rank} did not answer", True)
    for rank, (process, connection) in enumerate(zip(processes, connections, strict=True)):
        process.join()
        with suppress(EOFError, OSError):
            if connection.poll():
                endings[rank] = connection.recv()
    return endings


def _conclude(endings: Sequence[Ending | None], codes: Sequence[int], signalled: bool) -> None:
    """Raise the error of the ranks: a rank's own error comes before what others noticed of it."""
    if not any(codes):
        return
    known = [(rank, ending) for rank, ending in enumerate(endings) if ending is not None and ending[0]]
    if signalled:
        for _, (code, text, lost) in known:
            if code not in (0, INTERRUPTED) and not lost:  # what could not be saved must be known
                raise {2: BadInput}.get(code, RunFailed)(text)
        said = next((text for _, (code, text, _) in known if code == INTERRUPTED), "interrupted")
        raise Interrupted(said)
    silent = [rank for rank, ending in enumerate(endings) if ending is None and codes[rank]]
    kept = next((text.partition(";")[2] for rank, (_, text, lost) in known if lost and rank == 0), "")
    for _, (code, text, lost) in known:
        if not lost:
            raise {2: BadInput, INTERRUPTED: Interrupted}.get(code, RunFailed)(text)
    if silent:
        code = codes[silent[0]]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        kept = kept or " --resume continues from the last checkpoint, if there is one"
        raise RunFailed(f"rank {silent[0]} ended without a word ({how});{kept}")
    raise RunFailed(next(text for _, (_, text, _) in known if text))


def _rank(child_end: Any, words: list[str], place: dict[str, str]) -> None:
    """Run one rank to its end; the function that each process of `--ranks` executes."""
    children.on_its_own(lambda: os._exit(1))
    os.environ.update(place)
    from epidemic.cli.app import outcome

    with suppress(ImportError):  # the command says so, in one line
        import torch.distributed  # noqa: F401
    # torch's word for a store that is there already, so that no rank tries to be the one that holds it
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(child_end.recv()), TORCHELASTIC_USE_AGENT_STORE="True")

    ending = outcome(words)
    sys.stdout.flush()
    child_end.send(ending)
    child_end.close()
    os._exit(ending[0])  # what a broken process group leaves behind does not hold anybody up
