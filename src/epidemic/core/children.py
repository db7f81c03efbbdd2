"""Child processes: nodes of a cluster, ranks of a simulation, workers of a batch.

Only the parent receives Ctrl-C. It asks its children to save and end; they also end when the parent has ended.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any


def process_context(module: str) -> Any:
    """How processes are started: forked from one that has imported this module, all of PyTorch with it, and has no threads.

    So PyTorch is imported once for all of them. That one process is kept for the next ones, with the environment that it was started with.
    """
    if not hasattr(os, "fork"):
        return multiprocessing.get_context("spawn")
    multiprocessing.set_forkserver_preload([module])
    return multiprocessing.get_context("forkserver")


def start(process: Any) -> None:
    """Start a process that Ctrl-C does not reach, not even before it has a session of its own."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)


def on_its_own(parent_gone: Callable[[], object] | None = None) -> None:
    """Give a child process a session of its own; a thread calls `parent_gone` when the parent has ended. To be called first in the child."""
    with suppress(AttributeError, PermissionError):
        os.setsid()
    parent = multiprocessing.parent_process()

    def attend() -> None:
        if parent is not None and parent_gone is not None:
            parent.join()
            parent_gone()

    threading.Thread(target=attend, daemon=True).start()


def wait_for_any(processes: Sequence[Any], seconds: float) -> bool:
    """Wait until one of the running processes has ended, at most so many seconds. Return whether any still runs."""
    running = [process.sentinel for process in processes if process.is_alive()]
    if not running:
        return False
    multiprocessing.connection.wait(running, seconds)
    return any(process.is_alive() for process in processes)


def ask_to_end(processes: Sequence[Any]) -> None:
    """Send SIGTERM, which asks to save and end, to the running processes."""
    for process in processes:
        if process.is_alive():
            process.terminate()


def stop(processes: Sequence[Any], patience: float) -> None:
    """Ask all to save and end; kill those that still run after `patience` seconds. All have ended when this returns."""
    ask_to_end(processes)
    end = time.monotonic() + patience
    while time.monotonic() < end and wait_for_any(processes, 0.2):
        pass
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()
