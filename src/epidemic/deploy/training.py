"""Who trains the hosted nodes of a process: our learner, on the experiment's data, or a script of the user's own (`own_loop.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from epidemic.core.errors import BadInput, plain
from epidemic.core.workers import Workers
from epidemic.data import Dataset
from epidemic.deploy.agreement import Agreement, agreement_of
from epidemic.deploy.hosted import SynchronousNode
from epidemic.experiment import Experiment
from epidemic.learner import Choice, Learner
from epidemic.models import unused_methods
from epidemic.runtime.interrupt import Stop
from epidemic.runtime.run_directory import RunDirectory
from epidemic.runtime.setup import Setup, make_learner, prepare
from epidemic.runtime.start import Start, StartWeights

Say = Callable[[str], None]


class Training(Protocol):
    """What a process asks of whoever trains."""

    @property
    def stop(self) -> Stop | None:
        """How it is interrupted; None: by signals."""
        ...

    @property
    def make_node(self) -> Callable[..., SynchronousNode]:
        """What a hosted node of a method with rounds is."""
        ...

    def check(self, experiment: Experiment) -> None:
        """Refuse an experiment that somebody else trains."""
        ...

    def setup(
        self,
        experiment: Experiment,
        node_ids: Sequence[int],
        begun_on: str | None,
        weights: StartWeights | None,
        say: Say,
    ) -> Setup:
        """Everything that a run of these nodes needs."""
        ...

    def learner(self, setup: Setup, workers: Workers, known: Choice | None) -> tuple[Learner, Choice]:
        """Who is asked to train."""
        ...

    def agreement(self, setup: Setup, start: Start | None, run_directory: RunDirectory) -> Agreement:
        """What the nodes must have in common."""
        ...


class LearnersTraining:
    """Our learner trains, on the data of the experiment."""

    stop: Stop | None = None
    make_node = SynchronousNode

    def __init__(self) -> None:
        self._data: Dataset | None = None

    def check(self, experiment: Experiment) -> None:
        """Refuse an experiment whose training is a script."""
        if experiment.own_training:
            raise BadInput(
                'algorithm.kind = "own-loop" is trained by a script of your own: start that with EPIDEMIC_FOLDER set to this'
                " folder; it joins by epidemic.join()"
            )

    def setup(
        self,
        experiment: Experiment,
        node_ids: Sequence[int],
        begun_on: str | None,
        weights: StartWeights | None,
        say: Say,
    ) -> Setup:
        """Load the data once, and prepare the model."""
        if self._data is None:
            say("loading the data")
            self._data = experiment.load_data()
            if self._data.note:
                say(f"data: {plain(self._data.note, 500)}")
        say("preparing the model")
        setup = prepare(experiment, experiment.seeds[0], self._data, node_ids, begun_on=begun_on, weights=weights)
        if (unused := unused_methods(setup.task.module)) is not None:
            say(unused)
        return setup

    def learner(self, setup: Setup, workers: Workers, known: Choice | None) -> tuple[Learner, Choice]:
        """The learner, by a strategy known from before or chosen now."""
        return make_learner(setup, workers, known)

    def agreement(self, setup: Setup, start: Start | None, run_directory: RunDirectory) -> Agreement:
        """Settings, data and initial model."""
        return agreement_of(setup, start)
