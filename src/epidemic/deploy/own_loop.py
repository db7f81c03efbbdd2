"""A hosted node whose training is a script of the user's own: its setup without data, what it keeps for the script, and its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers
from epidemic.data import Dataset, Samples
from epidemic.deploy.agreement import Agreement, agreement_of
from epidemic.deploy.attached import Attached
from epidemic.deploy.hosted import SynchronousNode
from epidemic.deploy.training import Say
from epidemic.deploy.turns import Turns
from epidemic.experiment import Experiment
from epidemic.learner import Choice, Evaluation, Learner, Task
from epidemic.learner.callers import CallersLearner
from epidemic.protocol.rules import Count
from epidemic.runtime.batches import Batches
from epidemic.runtime.interrupt import Stop
from epidemic.runtime.recorder import ExtraState
from epidemic.runtime.run_directory import RunDirectory
from epidemic.runtime.setup import Setup
from epidemic.runtime.start import Start, StartWeights

KEPT, FOUND = "script.", "script-found"
"""What a checkpoint calls what a script wants to be kept, and the numbers that it reported last."""
INITIAL = "attached"
"""What run.json calls the digest of the values that a run began with."""
CHOICE = Choice("own-loop", "a script of the user's own trains", draws_random_numbers=False)


class ScriptsTask(Task):
    """No module, no data and no loss: only where the attached tensors lie in a row."""

    def __init__(self, attached: Attached) -> None:
        self.kind = None
        self.module = nn.Module()
        self.layout = attached.layout
        self.metrics, self.whole = {}, {}
        self.device = torch.device("cpu")
        self.train = (torch.zeros(0), torch.zeros(0))


class NoBatches(Batches):
    """A script draws its batches itself."""

    def __init__(self) -> None:
        pass

    def index(self, streams: Streams, round: int) -> NDArray[np.int64]:
        """One training of one sample, of no meaning.   # (1, 1, 1)"""
        return np.zeros((1, 1, 1), dtype=np.int64)


class OwnLoopNode(SynchronousNode):
    """A hosted node that keeps what a script wants to be kept."""

    def __init__(self, *args: Any, turns: Turns) -> None:
        super().__init__(*args)
        self._turns = turns

    def mixed(self, round: int, heard: Sequence[int]) -> None:
        """Tell the script whom its node heard."""
        last = self.recorder.models if round + 1 == self.recorder.experiment.rounds else None
        self._turns.mixed(tuple(heard), last)

    def extra(self) -> ExtraState:
        """What every node keeps, and what the script wants to be kept."""
        extra, found = super().extra(), self._turns.found()
        extra.tensors |= {f"{KEPT}{name}": tensor for name, tensor in self._turns.kept.items()}
        if found is not None:
            accuracy = float(found.metrics["accuracy"][0]) if "accuracy" in found.metrics else float("nan")
            extra.tensors[FOUND] = torch.tensor([float(found.loss[0]), accuracy], dtype=torch.float64)
        return extra

    def restored(self, extra: ExtraState | None) -> tuple[dict[str, int], Count, dict[int, tuple[int, ...]]]:
        """The same, given back to the script."""
        self._give_back(extra)
        return super().restored(extra)

    def ended(self, extra: ExtraState | None) -> bool:
        """Whether it was stopped in its final evaluation, which then needs the numbers of before."""
        ended = super().ended(extra)
        if ended:
            self._give_back(extra)
        return ended

    def _give_back(self, extra: ExtraState | None) -> None:
        tensors = {} if extra is None else extra.tensors
        kept = {name.removeprefix(KEPT): tensor for name, tensor in tensors.items() if name.startswith(KEPT)}
        numbers = tensors[FOUND].tolist() if FOUND in tensors else None
        self._turns.restored(kept, None if numbers is None else evaluation_of(*numbers))


def evaluation_of(loss: float, accuracy: float | None) -> Evaluation:
    """Numbers of a script as those of a model; an accuracy that is not a number is none."""
    metrics = {} if accuracy is None or accuracy != accuracy else {"accuracy": torch.tensor([accuracy]).double()}
    return Evaluation(torch.tensor([loss], dtype=torch.float64), metrics)


class ScriptsTraining:
    """A script trains; the node's thread waits for it."""

    def __init__(self, attached: Attached, turns: Turns) -> None:
        self._attached, self._turns = attached, turns
        self.stop: Stop | None = turns.stop
        self.make_node: Callable[..., SynchronousNode] = partial(OwnLoopNode, turns=turns)

    def check(self, experiment: Experiment) -> None:
        """Refuse an experiment that says what is trained."""
        if not experiment.own_training:
            kind = getattr(getattr(experiment.algorithm, "__struct_config__", None), "tag", "")
            raise BadInput(
                f'algorithm.kind = "{kind}" is trained by the node itself (epidemic node FOLDER); a script needs an experiment'
                ' with algorithm.kind = "own-loop"'
            )

    def setup(
        self,
        experiment: Experiment,
        node_ids: Sequence[int],
        begun_on: str | None,
        weights: StartWeights | None,
        say: Say,
    ) -> Setup:
        """What a run needs that trains nothing."""
        if weights is not None:
            raise BadInput(f"{weights.path}: a script loads its own weights; make the folders without --weights")
        attached = self._attached
        say(f"what travels: {attached}")
        if (problem := attached.problem(experiment.network.largest)) is not None:
            raise BadInput(f"attach: {problem}; look at the model, or raise it for all nodes")
        codec = attached.codec
        if codec is not None and experiment.compression is None:
            experiment = msgspec.structs.replace(experiment, compression=codec)
        row = torch.empty(attached.layout.size, dtype=attached.layout.dtype)
        attached.read(row)
        nothing = Samples(np.zeros((0, 1), np.float32), np.zeros(0, np.float32))
        none = (torch.zeros(0), torch.zeros(0))
        return Setup(
            experiment,
            experiment.seeds[0],
            Streams(experiment.seeds[0]),
            np.array(node_ids, dtype=np.int64),
            Dataset(nothing, nothing),
            [np.zeros(0, dtype=np.int64)],
            NoBatches(),
            ScriptsTask(attached),
            none,
            none,
            row,
            None,
        )

    def learner(self, setup: Setup, workers: Workers, known: Choice | None) -> tuple[Learner, Choice]:
        """One that asks the script."""
        return CallersLearner(setup.task.layout, self._turns.train, self._turns.found), CHOICE

    def agreement(self, setup: Setup, start: Start | None, run_directory: RunDirectory) -> Agreement:
        """Settings, what travels, what is frozen, and the values that the run began with."""
        values = (run_directory.run_info() or {}).get(INITIAL, self._attached.values)
        run_directory.amend({INITIAL: values})
        terms = {**self._attached.terms, "initial-values": values}
        found = agreement_of(setup, start)
        return msgspec.structs.replace(found, experiment=found.experiment | terms, model="")
