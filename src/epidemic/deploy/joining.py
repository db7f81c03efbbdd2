"""`epidemic.join`: a training script becomes a deployed node.

The script's thread trains and waits; a thread of the node does everything else (network, aggregation, saving). They take turns (`turns.py`), so that the
attached tensors are never touched while the script computes.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from epidemic.core.errors import BadInput, EpidemicError, Interrupted, RunFailed, plain, require_real
from epidemic.deploy.attached import Attached, Names
from epidemic.deploy.keys import Identity
from epidemic.deploy.node import run_node
from epidemic.deploy.optimiser_state import give_state, state_of
from epidemic.deploy.own_loop import ScriptsTraining, evaluation_of
from epidemic.deploy.turns import Turns
from epidemic.experiment import load
from epidemic.runtime.checkpoint import MODELS
from epidemic.runtime.run_directory import RunDirectory
from epidemic.runtime.saved_models import read_models

FOLDER = "EPIDEMIC_FOLDER"
"""The environment variable that names a node's folder."""
LONGEST_LINE = 2000
"""Characters of a line that a node says; words of other nodes may be in it."""
AVERAGE_OF_FACTORS = (
    "both factors of the adapters travel: the average of A and the average of B are not the factors of the average of B A;"
    ' attach(model, freeze_lora="A") makes it exact'
)


def join(
    folder: str | Path | None = None,
    *,
    settings: Sequence[str] = (),
    insecure: bool = False,
    quiet: bool = False,
) -> JoinedNode:
    """Make this script a node of a deployment: it trains as it likes, and exchanges what it has learnt.

    Args:
        folder: The node's folder, as `epidemic cluster init` makes it, of an experiment with `algorithm.kind = "own-loop"`. None: the one that
            the environment variable EPIDEMIC_FOLDER names, which `epidemic cluster up --script` sets.
        settings: What is different on this machine, as KEY=VALUE; the same as with `epidemic node --set`.
        insecure: Whether connections are not encrypted; loopback addresses only.
        quiet: Whether nothing is said on standard error.

    Returns:
        A context manager; leaving it ends the node. An exception or Ctrl-C inside saves, and the same script started again goes on.

    Example:
        >>> with ep.join("node-3") as node:
        ...     node.attach(model)
        ...     for round in node.rounds():
        ...         loss = train(model)
        ...         node.report(loss=loss)
        ...         node.exchange()
    """
    return JoinedNode(folder, settings, insecure=insecure, quiet=quiet)


class JoinedNode:
    """A deployed node whose training is the caller's code; `epidemic.join` makes it."""

    def __init__(
        self, folder: str | Path | None, settings: Sequence[str], *, insecure: bool = False, quiet: bool = False
    ) -> None:
        found = os.environ.get(FOLDER) if folder is None else folder
        if found is None:
            raise BadInput(
                f"join() has no folder: give one that 'epidemic cluster init' made, set {FOLDER}, or start the script with"
                " 'epidemic cluster up --script'"
            )
        self.folder = Path(found)
        self._settings, self._insecure, self._quiet = list(settings), insecure, quiet
        self.node_id = Identity.load(self.folder).node_id
        self.experiment = load(self.folder / "experiment.toml", self._settings)
        self.extra: dict[str, Tensor] = {}
        """Tensors of your own that are saved with the model at every exchange, for example the optimiser's state; those saved last after `attach`."""
        self._optimisers: dict[str, torch.optim.Optimizer] = {}
        self._turns = Turns()
        self._attached: Attached | None = None
        self._thread: threading.Thread | None = None
        self._round: int | None = None  # that the script trains in
        self._exchanged = 0
        self._all_done = False
        self._before: Any = None

    def __repr__(self) -> str:
        return f"JoinedNode({str(self.folder)!r}, node {self.node_id} of {self.experiment.nodes})"

    # -- what a script calls ------------------------------------------------------------------------------------------

    def attach(
        self,
        what: nn.Module | Mapping[str, Tensor],
        *,
        names: Names = None,
        freeze_lora: Literal["A", "B"] | None = None,
    ) -> None:
        """Say what travels, and start the node; after a restart, `extra` holds what was saved and `rounds` goes on.

        Of a model, its trainable parameters and float buffers travel; frozen parameters stay, and must be the same on all nodes. All nodes must
        begin with the same values.

        Args:
            what: A model, or a dict of tensors, which are changed in place.
            names: Patterns such as "*lora*"; tensors that no pattern matches stay private.
            freeze_lora: Freeze this factor of all adapters first: with A the same everywhere, the average of B is exact.
        """
        if self._attached is not None:
            raise BadInput("attach() was called twice; give it one model, or one dict of all tensors")
        self._attached = Attached.of(what, names, freeze_lora)
        if self._attached.both_factors:
            self._say(AVERAGE_OF_FACTORS)
        self._thread = threading.Thread(target=self._live, name=f"node {self.node_id}", daemon=True)
        self._thread.start()
        self.extra = {name: tensor.clone() for name, tensor in self._turns.wait_ready().items()}

    def rounds(self) -> Iterator[int]:
        """The rounds that are left, one after the other; rounds that the others have finished without this node are left out.

        Yields:
            The number of the round, from 0 on. What is attached has the values to train from.
        """
        attached = self._started()
        while (found := self._turns.next_round()) is not None:
            self._round, row = found
            attached.write(row[0])
            yield self._round
            if self._round is not None:
                raise BadInput(
                    f"round {self._round} of rounds() ended without node.exchange(); call it once in every round, after training"
                )
        self._give_last()
        self._all_done = True

    def exchange(self) -> tuple[int, ...]:
        """Send what is attached, wait as the closing rule says, and put the aggregate into the attached tensors.

        Returns:
            The ids of the nodes that were heard in this round.
        """
        attached = self._started()
        if self._round is None:
            raise BadInput("exchange() needs a round: call it once in every round of node.rounds()")
        if self._turns.found() is None:
            raise BadInput(
                "exchange() without numbers: call node.report(loss=...) before the first one; records, status and the live page show them"
            )
        if (problem := attached.problem(self.experiment.network.largest)) is not None:
            raise RunFailed(f"round {self._round}: {problem}; lower the learning rate, or look at the data")
        for prefix, optimiser in self._optimisers.items():
            self.extra = {name: tensor for name, tensor in self.extra.items() if not name.startswith(prefix)}
            self.extra |= {f"{prefix}{name}": tensor for name, tensor in state_of(optimiser).items()}
        kept = {name: _kept(name, tensor) for name, tensor in self.extra.items()}
        self._turns.hand_over(attached.read, kept)
        self._round, self._exchanged = None, self._exchanged + 1
        found = self._turns.next_round()
        heard = self._turns.heard
        if found is None:
            self._give_last()
        else:
            attached.write(found[1][0])
        return heard

    def report(self, *, loss: float | Tensor, accuracy: float | Tensor | None = None) -> None:
        """Numbers for records, status and the live page; those reported last count.

        Args:
            loss: Of this node's model, on whatever data the script chooses.
            accuracy: Between 0 and 1.
        """
        value = _number(loss)
        if not math.isfinite(value):
            raise BadInput(
                f"report(loss={value}) must be a finite number; lower the learning rate, or look at the data"
            )
        share = None if accuracy is None else _number(accuracy)
        if share is not None:
            require_real("report: accuracy", share, 0, 1)
        self._turns.report(evaluation_of(value, share))

    def keep(self, optimiser: torch.optim.Optimizer) -> None:
        """Keep an optimiser's state with the model, in `extra`; after a restart, the optimiser has the state that was saved last.

        Call it after `attach`. Of several, the order of the calls must be the same after a restart.
        """
        self._started()
        prefix = f"optimiser-{len(self._optimisers)}."
        give_state(optimiser, {n.removeprefix(prefix): t for n, t in self.extra.items() if n.startswith(prefix)})
        self._optimisers[prefix] = optimiser

    @property
    def heard(self) -> tuple[int, ...]:
        """Whom this node heard in the last exchange."""
        return self._turns.heard

    # -- the context --------------------------------------------------------------------------------------------------

    def __enter__(self) -> JoinedNode:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM saves, like Ctrl-C
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave(error)
        finally:
            if self._before is not None:
                signal.signal(signal.SIGTERM, self._before)

    def _leave(self, error: BaseException | None) -> None:
        if self._thread is None:
            if error is None:
                raise BadInput("the script left join() without node.attach(model): nothing was learnt together")
            return
        if error is None and not self._all_done and not self._exchanged and self._round is None:
            with suppress(EpidemicError):
                self._stop()
            raise BadInput(
                "the script left join() without a single node.exchange(): train in `for round in node.rounds():` and call it"
                " there"
            )
        if error is None and self._all_done:
            try:
                self._turns.wait_end()  # others may still need this node's messages
            except BaseException:
                self._stop()
                raise
            self._thread.join()
            return
        self._stop()
        if not self._turns.failed:
            self._say("stopped and saved; the same script started again goes on")

    def _stop(self) -> None:
        """Save, and end the node."""
        assert self._thread is not None
        self._turns.stop.request()
        self._thread.join()

    # -- the node's thread --------------------------------------------------------------------------------------------

    def _live(self) -> None:
        attached = self._attached
        assert attached is not None
        try:
            training = ScriptsTraining(attached, self._turns)
            threads = torch.get_num_threads()
            (summary,) = run_node(
                self.folder, self._settings, insecure=self._insecure, threads=threads, say=self._say, training=training
            )
            self._turns.end(last=self._finished_before() if summary is None else None)
        except Interrupted:
            self._turns.end()
        except BaseException as problem:
            self._turns.end(problem)

    def _finished_before(self) -> Tensor:
        """The final model of a run that had finished already.   # (1, d)"""
        path = RunDirectory(self.folder / "run", self.experiment, self.experiment.seeds[0]).path / MODELS
        return read_models(path).flat

    def _give_last(self) -> None:
        """Put the final aggregate into what is attached."""
        last = self._turns.last
        if last is not None and self._attached is not None:
            self._attached.write(last[0])

    def _started(self) -> Attached:
        if self._attached is None:
            raise BadInput("call node.attach(model) first: it says what travels")
        return self._attached

    def _say(self, text: str) -> None:
        if not self._quiet:
            with suppress(OSError, ValueError):  # nobody reads it any more
                print(f"node {self.node_id}: {plain(text, LONGEST_LINE)}", file=sys.stderr, flush=True)


def _number(value: float | Tensor) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)


def _kept(name: str, tensor: Any) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise BadInput(
            f"node.extra[{name!r}] is {type(tensor).__name__}; only tensors are kept (torch.tensor makes one of a number)"
        )
    return tensor.detach().to("cpu", copy=True).contiguous()
