"""The simulator on several ranks of `torch.distributed`: each hosts a block of the nodes, the first one writes the run directory.

A problem that one rank finds before a round ends all of them with one line. What does not work on several ranks is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import torch
from blake3 import blake3

from epidemic import __version__
from epidemic.callbacks import Callback, Callbacks
from epidemic.callbacks.base import named_callbacks
from epidemic.core.errors import BadInput, Interrupted, spoken
from epidemic.core.workers import Workers, available_threads, blocks, ranks_here
from epidemic.data import Dataset
from epidemic.experiment import Experiment, same_experiment
from epidemic.experiment.compatibility import require_compatible
from epidemic.learner import Choice, Task
from epidemic.record import Record, Summary
from epidemic.runtime.exported import columns_of
from epidemic.runtime.interrupt import Stop, agreed_stop
from epidemic.runtime.plan import check_first_round
from epidemic.runtime.population import Population
from epidemic.runtime.recorder import Host
from epidemic.runtime.run_directory import RunDirectory
from epidemic.runtime.setup import Setup, make_learner, prepare
from epidemic.sharding.shard import ShardedRanks
from epidemic.simulator.results import SeedRun, SimulationResult
from epidemic.simulator.rounds import RoundLoop, elsewhere, how_to_resume


def on_ranks(
    experiment: Experiment,
    out: str | Path | None,
    resume: bool,
    callback: Callbacks,
    deciding: bool,
    data: Dataset | None,
) -> SimulationResult:
    """Run all seeds of an experiment, with the other ranks of this process's group; see `simulate`.

    Only the first rank writes to `out`, calls callbacks, and has the models at the end.
    """
    ranks = ShardedRanks(experiment.nodes)
    with ranks.together():
        refuse(experiment, callback, ranks.count)
    _check_alike(ranks, {"": experiment})
    first = ranks.rank == 0
    callback = callback if first else Callbacks([])
    run_directories = [
        RunDirectory(Path(out), experiment, seed) if out is not None and first else None for seed in experiment.seeds
    ]
    threads = experiment.runtime.threads or max(1, available_threads() // ranks_here())
    workers = Workers(threads)
    try:
        with agreed_stop() as stop:
            with ranks.together():
                for run_directory in run_directories:
                    if run_directory is not None:
                        run_directory.check(resume=resume)
            seed_of = _SeedsOnRanks(experiment, ranks, workers, stop, callback, deciding, data)
            return SimulationResult(
                experiment,
                [
                    seed_of(seed, run_directory)
                    for seed, run_directory in zip(experiment.seeds, run_directories, strict=True)
                ],
            )
    finally:
        workers.close()


def refuse(experiment: Experiment, callbacks: Callbacks, count: int) -> None:
    """Refuse what does not work on several ranks, naming the alternative."""
    require_compatible(experiment, "ranks", ranks=count)
    for one in callbacks.callbacks:
        told = [name for name in ("planned", "advanced") if getattr(type(one), name) is not getattr(Callback, name)]
        if told and not type(one).__module__.startswith("epidemic."):
            raise BadInput(
                f"callback {type(one).__name__} needs all nodes' models ({told[0]}), which no process has on {count} ranks;"
                " run it in one process, or use `recorded`"
            )


def refuse_prepared(task: Task, choice: Choice) -> None:
    """Refuse what only the data and the chosen way of training show."""
    if choice.strategy == "stacked" and (task.nature.products or task.kind is None):
        what = "convolutions" if task.nature.products else "models, losses and metrics of one's own"
        raise BadInput(
            f"runtime.strategy: stacked {what} differ in the last digits between numbers of ranks;"
            f' use {spoken("", "--set ")}runtime.strategy="per-node"'
        )


@contextmanager
def in_turn(
    experiments: Mapping[str, Experiment], callbacks: Callbacks, check: Callable[[], None]
) -> Iterator[Callable[[str], None]]:
    """Run several experiments one after the other, each on all ranks of this process's group.

    Nothing begins before all ranks have the same experiments and can share each of them, and `check`, which only the first rank calls, has passed.

    Returns:
        A function to call before each experiment, with its name; it ends all ranks if any was interrupted.
    """
    nodes = min((experiment.nodes for experiment in experiments.values()), default=1)
    ranks = ShardedRanks(nodes)
    _check_alike(ranks, experiments)
    with ranks.together():
        for name, experiment in experiments.items():
            try:
                refuse(experiment, Callbacks([*named_callbacks(experiment), *callbacks.callbacks]), ranks.count)
            except BadInput as problem:
                raise BadInput(f"{name}: {problem}") from None
        if ranks.rank == 0:
            check()
    with agreed_stop() as stop:

        def before(name: str) -> None:
            try:
                ranks.heed(stop)
            except KeyboardInterrupt:
                raise Interrupted(f"interrupted before {name} began; repeat it with resume to continue") from None

        yield before


def _check_alike(ranks: ShardedRanks, experiments: Mapping[str, Experiment]) -> None:
    """Refuse ranks that were started with different experiments or versions."""
    tables = [[name, experiment.table()] for name, experiment in experiments.items()]
    raw = msgspec.json.encode({"experiments": tables, "versions": [__version__, str(torch.__version__)]})
    theirs, mine = msgspec.json.decode(ranks.told(raw)), msgspec.json.decode(raw)
    with ranks.together():
        names = [[name for name, _ in one["experiments"]] for one in (theirs, mine)]
        if names[0] != names[1]:
            raise BadInput("these methods differ from those of the first rank; give all ranks the same")
        for (name, first), (_, own) in zip(theirs["experiments"], mine["experiments"], strict=True):
            different = same_experiment(first, own) + [
                key for key in ("checkpoint",) if first.get(key) != own.get(key)
            ]  # when all save together
            if different or list(first.get("seeds", [])) != list(own.get("seeds", [])):
                what = (f"{name}: " if name else "") + (", ".join(different[:5]) or "seeds")
                raise BadInput(
                    f"this is a different experiment than that of the first rank (in {what}); give all ranks the same"
                )
        if theirs["versions"] != mine["versions"]:
            raise BadInput(
                f"this rank has epidemic and PyTorch {' and '.join(mine['versions'])}, the first one"
                f" {' and '.join(theirs['versions'])}; install the same"
            )


class _SeedsOnRanks:
    """Runs one seed after the other."""

    def __init__(
        self,
        experiment: Experiment,
        ranks: ShardedRanks,
        workers: Workers,
        stop: Stop,
        callback: Callbacks,
        deciding: bool,
        data: Dataset | None,
    ) -> None:
        self.experiment, self.ranks, self.workers, self.stop = experiment, ranks, workers, stop
        self.callback, self.deciding, self.data = callback, deciding, data
        self.known: Choice | None = None

    def __call__(self, seed: int, run_directory: RunDirectory | None) -> SeedRun:
        try:
            with self.ranks.together():
                if run_directory is not None:
                    run_directory.open()
            done = self._finished(seed, run_directory)
            return self._run(seed, run_directory) if done is None else done
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted before seed {seed} began; {how_to_resume(run_directory, self.deciding)}"
            ) from None
        finally:
            if run_directory is not None:
                run_directory.close()

    def _finished(self, seed: int, run_directory: RunDirectory | None) -> SeedRun | None:
        """The result of a seed that finished earlier; None if it must still run."""
        word = b""
        with self.ranks.together():
            if run_directory is not None and run_directory.finished:
                word = msgspec.json.encode((run_directory.records(), run_directory.summary()))
        said = self.ranks.told(word)
        if not said:
            return None
        records, summary = msgspec.json.decode(said, type=tuple[list[Record], Summary])
        return SeedRun(seed, records, summary, None if run_directory is None else run_directory.path, elsewhere)

    def _run(self, seed: int, run_directory: RunDirectory | None) -> SeedRun:
        ranks = self.ranks
        begun_on, known = "", self.known
        with ranks.together():
            if run_directory is not None:
                begun_on, known = run_directory.known_device() or "", run_directory.known_choice()
        device = ranks.told(begun_on.encode()).decode() or None
        with ranks.together():
            # Of data read for this seed only, keep the samples of the nodes on this rank.
            whole = self.experiment.load_data() if self.data is None else self.data
            start = _digest_of(whole)
            setup = prepare(self.experiment, seed, whole, ranks.hosted().tolist(), begun_on=device, cut=True)
            check_first_round(self.experiment)
            del whole
            if run_directory is not None and (run_directory.run_info() is None or run_directory.behind):
                run_directory.announce()
            if run_directory is not None and run_directory.behind:
                run_directory.lengthen(setup.task.layout)
        _check_same_start(ranks, setup, start)
        with ranks.together():
            if ranks.rank == 0:
                learner, known = make_learner(setup, self.workers, known)
        said = ranks.told(b"" if known is None else msgspec.json.encode(known))
        self.known = msgspec.json.decode(said, type=Choice)
        with ranks.together():
            if ranks.rank != 0:
                learner, _ = make_learner(setup, self.workers, self.known)
            population = Population(setup, learner, self.workers)
            refuse_prepared(setup.task, self.known)
            if run_directory is not None and run_directory.run_info() is None:
                note, classes, kind = setup.data.note, setup.data.classes, setup.task.device.type
                run_directory.begin(self.known, note, classes=classes, samples=setup.sizes, device=kind)
                run_directory.amend(columns_of(setup.data))
            if run_directory is not None:
                run_directory.amend({"ranks": {"count": ranks.count}})
        host = Host(population, learner, self.workers, self.stop, ranks)
        ranks.routings.clear()
        try:
            found = RoundLoop(host, run_directory, self.callback, how_to_resume(run_directory, self.deciding)).run()
        except Interrupted:
            if not self.stop.broke:  # otherwise this rank stopped alone, and the others cannot follow
                self._write_routings(run_directory)
            raise
        self._write_routings(run_directory)
        return found if ranks.rank == 0 else SeedRun(seed, found.records, found.summary, None, elsewhere)

    def _write_routings(self, run_directory: RunDirectory | None) -> None:
        """Write how many aggregations used each routing since the seed started or resumed."""
        with self.ranks.together():
            if run_directory is not None:
                run_directory.amend(
                    {"ranks": {"count": self.ranks.count, "exchange": dict(sorted(self.ranks.routings.items()))}}
                )


def _digest_of(data: Dataset) -> bytes:
    """A digest of the training and test data, to compare between ranks."""
    digest = blake3()
    for samples in (data.train, data.test):
        for numbers in (samples.inputs, samples.targets):
            digest.update(f"{numbers.dtype}{numbers.shape}".encode())
            for part in blocks(len(numbers), 4096):
                digest.update(np.ascontiguousarray(numbers[part]).tobytes())
    return digest.digest()


def _check_same_start(ranks: ShardedRanks, setup: Setup, data: bytes) -> None:
    """Refuse ranks whose data or initial model differs from the first one's."""
    assert setup.sizes is not None
    own = {
        "data": blake3(data + setup.sizes.tobytes()).hexdigest(),
        "initial models": blake3(setup.initial.cpu().numpy().tobytes()).hexdigest(),
    }
    theirs = msgspec.json.decode(ranks.told(msgspec.json.encode(own)), type=dict[str, str])
    with ranks.together():
        for name, digest in own.items():
            if theirs[name] != digest:
                raise BadInput(f"the {name} here differ from those of the first rank; give all ranks the same")
