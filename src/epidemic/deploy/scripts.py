"""Scripts as nodes: every process of a local cluster runs the same training script, which joins by the folder that it finds in its environment."""

from __future__ import annotations

import io
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from epidemic.core import children
from epidemic.core.errors import BadInput, EpidemicError, Interrupted, plain
from epidemic.deploy.joining import FOLDER
from epidemic.deploy.processes import LONGEST_LINE, LocalCluster
from epidemic.deploy.runtime import compute_in_stretches, enough_threads


class TimedLines(io.TextIOBase):
    """What a script prints, each line with the seconds since the start."""

    def __init__(self, log: IO[str]) -> None:
        self._log, self._began, self._part = log, time.time(), ""
        self._lock = threading.RLock()

    def writable(self) -> bool:
        """It can be written to."""
        return True

    def write(self, text: str) -> int:
        """Take text; lines appear when they are whole."""
        with self._lock:
            *lines, self._part = (self._part + text).split("\n")
            for line in lines:
                with suppress(OSError, ValueError):
                    self._log.write(f"{time.time() - self._began:9.2f}  {plain(line, LONGEST_LINE)}\n")
        return len(text)

    def end(self) -> None:
        """Write what is left of a line."""
        if self._part:
            self.write("\n")


class ScriptCluster(LocalCluster):
    """All nodes of a run in processes of this machine, each of which runs the script."""

    def __init__(self, folders: Sequence[Path], script: Path, *, insecure: bool = False) -> None:
        """One process for each folder."""
        self._script = script.resolve()
        super().__init__(folders, insecure=insecure)

    def _process(self, node_ids: range, folders: Sequence[Path]) -> Any:
        arguments = (str(folders[0].resolve()), str(self._script), dict(os.environ), self._threads, self._here)
        return self._context.Process(target=_child, args=arguments, daemon=False)


def _child(folder: str, script: str, environment: dict[str, str], threads: int, here: int) -> None:
    """The life of a process: what the script prints goes to node.log, the reason of its end to the exit code."""
    children.on_its_own(lambda: os.kill(os.getpid(), signal.SIGTERM))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)  # not those that the first process of all was started with
    enough_threads(here, here)
    compute_in_stretches()
    torch.set_num_threads(threads)
    os.environ[FOLDER] = folder
    with (Path(folder) / "node.log").open("a", encoding="utf-8", buffering=1) as log:
        lines = TimedLines(log)
        sys.stdout = sys.stderr = lines
        sys.argv = [script]
        sys.path.insert(0, str(Path(script).parent))
        print("starting", script)
        code = _run(Path(folder), script)
        lines.end()
    os._exit(code)  # Zenoh's threads need no farewell


def _run(folder: Path, script: str) -> int:
    """Run the script; its exit code."""
    try:
        runpy.run_path(script, run_name="__main__")
        if not any((folder / "run").glob("seed-*/summary.json")):
            raise BadInput(
                f"{script} ended before its node had finished: exchange in every round of node.rounds(), inside `with"
                " ep.join() as node:`"
            )
        return 0
    except (Interrupted, KeyboardInterrupt) as stop:
        print(str(stop) or "interrupted")
        return 130
    except EpidemicError as problem:
        print(f"error: {' '.join(str(problem).split())}")
        return 2 if isinstance(problem, BadInput) else 1
    except SystemExit as end:
        if end.code in (None, 0):
            return 0
        print(f"error: {script} ended with {end.code}")
        return end.code if isinstance(end.code, int) else 1
    except Exception as problem:
        traceback.print_exc()
        print(f"error: {type(problem).__name__} in {script}: {problem}")
        return 1
