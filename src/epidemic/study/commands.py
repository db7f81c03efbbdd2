"""A run as a command in a process of its own: `epidemic run --resume DIR`, on one process or several ranks.

Tasks of Slurm and batches on ranks both start runs like this. Only the standard library is imported, because tasks do so before they start.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from epidemic.core.errors import Interrupted, RunFailed
from epidemic.runtime.interrupt import AT_ONCE, signals_to

INTERRUPTED = 130
PATIENCE = 3
"""Requests to end after which a run is killed."""
LAST_WORDS = 5.0
"""Seconds to wait for the last output of a run that has ended."""
KEPT = 1 << 16
"""Bytes of that output which are kept."""
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def resume_command(run: Path, ranks: int = 1, settings: Sequence[str] = ()) -> list[str]:
    """The command that resumes the run in a directory, on so many ranks, with these settings (key=value)."""
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
    """Run such a command in its own session until it ends: Ctrl-C and SIGTERM reach this process, which asks it to save.

    Every request is passed on; at the third one it is killed. It has ended when this function returns or raises.

    Raises:
        Interrupted: It has saved, because this process or it was asked to.
        RunFailed: It failed, or could not be started; the reason is its last line of output.
    """
    asked = _Asked()
    with signals_to(asked):
        try:
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=ended_with_us(),
            )
        except OSError as problem:
            raise RunFailed(f"its process could not be started: {problem}") from None
        asked.of(process)
        said = bytearray()
        reader = threading.Thread(target=_listen, args=(process, said), daemon=True)
        reader.start()
        process.wait()
        reader.join(LAST_WORDS)
    last = last_line(bytes(said))
    if asked.times or process.returncode == INTERRUPTED:
        raise Interrupted(last.removeprefix("error: ") or "interrupted")
    if process.returncode:
        raise RunFailed(reason(process.returncode, last))


class _Asked:
    """Counts requests to end and passes them on. Raises nothing, so that no child process is lost between two lines."""

    def __init__(self) -> None:
        self.times = 0
        self._last = -AT_ONCE
        self._process: subprocess.Popen[bytes] | None = None

    def of(self, process: subprocess.Popen[bytes]) -> None:
        """Set the process that requests go to, including earlier ones."""
        self._process = process
        if self.times:
            process.terminate()

    def __call__(self, *_: Any) -> None:
        """Handle a signal: ask the process to end, and kill it after repeated requests."""
        now = time.monotonic()
        if now - self._last >= AT_ONCE:  # a terminal and who starts commands may both hand on the same wish
            self.times, self._last = self.times + 1, now
        if self._process is not None:
            self._process.terminate() if self.times < PATIENCE else self._process.kill()


def _listen(process: subprocess.Popen[bytes], said: bytearray) -> None:
    """Keep the end of its output; a child of it may hold the pipe open after it has ended."""
    assert process.stderr is not None
    with process.stderr as pipe:
        while chunk := pipe.read1(65536):  # type: ignore[attr-defined]
            said += chunk
            del said[:-KEPT]


def last_line(said: bytes) -> str:
    """The last line of a command's output."""
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def reason(code: int, last: str) -> str:
    """Why a run ended early, in one line: from its exit code, or minus the signal that killed it, and its last line of output."""
    if code < 0:
        lack = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
        return f"its process was killed by {signal.Signals(-code).name}{lack}"
    return last.removeprefix("error: ") or f"its process ended with exit code {code}"
