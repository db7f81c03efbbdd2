"""One run as a task of Slurm: a process of its own that is told to save when the time is up, and goes on when the task is started again.

submitit pickles what a task is to do into the directory of the sweep and loads it on the other machine. So that this says
nothing that could not be read, a task is a command line and two lines of text: plain strings, and this class by its name.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epidemic.core.errors import RunFailed
from epidemic.study.commands import INTERRUPTED, ended_with_us, last_line, reason

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

ENDED = "task.json"
"""In the directory of a run: why its task ended before the run did."""


class Ended(msgspec.Struct, frozen=True):
    """Why a task ended before its run did."""

    why: str
    stopped: bool = False  # by a user: the run is saved, and nothing is wrong with it


class SlurmTask:
    """What submitit calls on the machine that Slurm has chosen."""

    def __init__(self, command: Sequence[str], run: str, before: str = "") -> None:
        """Prepare a task; `command` resumes the run in the directory `run`; `before`: its last output when it was requeued."""
        self.command, self.run, self.before = list(command), run, before
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._said = b""

    def __call__(self) -> None:
        """Start the run, wait for it, and write why it ended if that was early."""
        (Path(self.run) / ENDED).unlink(missing_ok=True)
        self._start()
        code = self._wait()
        os.close(self._pipe)
        if code:
            raise RunFailed(self._tell(reason(code, self._last), stopped=code == INTERRUPTED))

    def checkpoint(self) -> DelayedSubmission | None:
        """Have the run save and end, before the time limit; submitit requeues the task that this returns, and fails at None.

        This is called by a signal handler, in the middle of `__call__`. Nothing that it does takes a lock there.
        """
        from submitit.helpers import DelayedSubmission

        if self._process is None:
            return DelayedSubmission(self)
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        code = self._wait()
        words = f"{code}: {self._last}"
        if code not in (0, INTERRUPTED, -signal.SIGTERM):
            self._tell(reason(code, self._last))
        elif code and words == self.before:  # it would repeat for ever
            self._tell("it came no further in its time than the time before; give it more, for example --slurm time=8h")
        else:
            return DelayedSubmission(SlurmTask(self.command, self.run, words))
        return None

    def _start(self) -> None:
        reading, writing = os.pipe()
        # Slurm's signal before the limit goes to all processes of the task. It is this one that answers it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
        try:
            self._process = subprocess.Popen(  # noqa: S603
                self.command,
                stdin=subprocess.DEVNULL,
                stderr=writing,
                # The run saves and ends if this process is killed, even where Slurm loses sight of it.
                preexec_fn=ended_with_us(),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(writing)
        self._pipe = reading

    def _wait(self) -> int:
        """Pass on what the run says until it ends; its exit code, or minus the signal that killed it.

        `Popen.wait` holds a lock, for which a signal handler that interrupts it would wait for ever.
        """
        assert self._process is not None
        while chunk := os.read(self._pipe, 65536):
            os.write(2, chunk)
            self._said = (self._said + chunk)[-4000:]
        if self._process.returncode is None:
            _, status = os.waitpid(self._process.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode

    @property
    def _last(self) -> str:
        """The last line of the run's output."""
        return last_line(self._said)

    def _tell(self, why: str, *, stopped: bool = False) -> str:
        with suppress(OSError):  # a full disk may be the reason
            (Path(self.run) / ENDED).write_bytes(msgspec.json.encode(Ended(why, stopped)) + b"\n")
        return why
