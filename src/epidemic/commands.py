"""A run as a command in a process of its own: `epidemic run --resume DIR`, on one process or several ranks.

Tasks of Slurm and batches on ranks both start runs like this. Only the standard library is imported, because tasks do so before they start.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from epidemic.errors import Interrupted, RunFailed

INTERRUPTED = 130
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def going_on(run: Path, ranks: int = 1, settings: Sequence[str] = ()) -> list[str]:
    """The command that goes on with the run in a directory, on so many ranks, with these settings (key=value)."""
    words = [sys.executable, "-m", "epidemic", "run", "--resume", str(run.resolve()), "--quiet"]
    words += ["--ranks", str(ranks)] if ranks > 1 else []
    return [*words, *(word for setting in settings for word in ("--set", setting))]


def ended_with_us() -> Callable[[], None] | None:
    """What a child does before its command, so that it saves and ends when this process is killed; None where only Linux could."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)

    def tie() -> None:
        library.prctl(_DIES_WITH_PARENT, signal.SIGTERM)

    return tie


def execute(command: Sequence[str]) -> None:
    """Run such a command to its end, in a session of its own: Ctrl-C is for this process, which asks it to save.

    Raises:
        Interrupted: It has saved, because this process or it was asked to.
        RunFailed: It failed; the reason is the last line that it said.
    """
    process = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=ended_with_us(),
    )
    asked = False
    while True:
        try:
            _, said = process.communicate()
            break
        except KeyboardInterrupt:
            asked = True
            process.terminate()
    last = last_line(said)
    if asked or process.returncode == INTERRUPTED:
        raise Interrupted(last.removeprefix("error: ") or "interrupted")
    if process.returncode:
        raise RunFailed(reason(process.returncode, last))


def last_line(said: bytes) -> str:
    """The last line of what a command has said."""
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def reason(code: int, last: str) -> str:
    """Why a run ended early, in one line: by its exit code, or minus the signal that killed it, and the last line that it said."""
    if code < 0:
        lack = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
        return f"its process was killed by {signal.Signals(-code).name}{lack}"
    return last.removeprefix("error: ") or f"its process ended with exit code {code}"
