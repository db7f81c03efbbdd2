"""Running deployed nodes, from their folders to their results. One process may host several of them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from epidemic.callbacks import Callback, Callbacks
from epidemic.callbacks.base import listeners
from epidemic.core.config import look_beside
from epidemic.core.errors import BadInput, EpidemicError, Interrupted
from epidemic.core.formatting import score
from epidemic.core.workers import Workers, available_threads
from epidemic.deploy.addresses import Addresses, read_addresses
from epidemic.deploy.agreement import Agreement, check_deployable, check_hosting
from epidemic.deploy.assembly import assembly_of
from epidemic.deploy.extending import check_rounds, write_rounds
from epidemic.deploy.hosted import HostedNode
from epidemic.deploy.keys import Identity
from epidemic.deploy.opening import Unreachable
from epidemic.deploy.peer_exchange import meeting_of
from epidemic.deploy.process import Process
from epidemic.deploy.training import LearnersTraining, Training
from epidemic.deploy.transport import Transport
from epidemic.experiment import Experiment, check_node_setting, load, python_files, same_experiment
from epidemic.record import Record, Summary
from epidemic.runtime.exported import columns_of
from epidemic.runtime.interrupt import Stop, gentle_stop
from epidemic.runtime.population import Population
from epidemic.runtime.recorder import Host, RunListener, RunRecorder
from epidemic.runtime.run_directory import RunDirectory
from epidemic.runtime.setup import Setup
from epidemic.runtime.start import Start, StartWeights, read_start

Say = Callable[[str], None]


def run_node(
    folders: Path | Sequence[Path],
    settings: list[str] | None = None,
    *,
    insecure: bool = False,
    threads: int = 0,
    here: int = 1,
    say: Say = lambda _: None,
    training: Training | None = None,
) -> list[Summary | None]:
    """Run the nodes of these folders in this process until they finish.

    Args:
        folders: A node's folder, or several.
        settings: Changed settings, as KEY=VALUE.
        insecure: Whether connections are not encrypted; loopback addresses only.
        threads: Threads for computing, unless the experiment sets them; 0: one per core.
        here: How many processes of this network share the machine.
        say: Called with lines about the progress.
        training: Who trains; our learner if not given.

    Returns:
        The result of each node; None for those that had finished before.
    """
    training = LearnersTraining() if training is None else training
    folders = [folders] if isinstance(folders, Path) else list(folders)
    identities = [Identity.load(folder) for folder in folders]
    experiment = experiment_of(folders, settings or [])
    _check_node_ids(folders, identities, experiment)
    experiment.check_names()
    training.check(experiment)
    seed = experiment.seeds[0]
    start, weights = _start_of(folders)
    threads = experiment.runtime.threads or threads or available_threads()
    run_directories = [RunDirectory(folder / "run", experiment, seed) for folder in folders]
    given = [word for setting in settings or [] for word in ("--set", setting)]
    how = f"resume with: {shlex.join(['epidemic', 'node', *map(str, folders), *(['--insecure'] if insecure else []), *given])}"
    workers = Workers(1, inside=threads) if len(folders) == 1 else Workers(threads)
    try:
        for run_directory in run_directories:
            run_directory.check(resume=True)
            run_directory.open()
        for folder in folders:
            if write_rounds(folder, experiment.rounds):
                say(f"rounds = {experiment.rounds} from now on, written to {folder / 'experiment.toml'}")
        before = [run_directory.finished for run_directory in run_directories]
        for folder, run_directory in zip(folders, run_directories, strict=True):
            if run_directory.finished:
                more = f"; if the others have more rounds, resume with: epidemic node {shlex.quote(str(folder))} --set rounds=N"
                say(f"finished already: {run_directory.path}{more if experiment.free is None else ''}")
        while left := [i for i, run_directory in enumerate(run_directories) if not run_directory.finished]:
            node_ids, begun_on = [identities[i].node_id for i in left], run_directories[left[0]].known_device()
            setup = training.setup(experiment, node_ids, begun_on, weights, say)
            with gentle_stop(training.stop) as stop:
                host = _hosting(setup, [run_directories[i] for i in left], workers, stop, training)
                if start is not None:
                    for i in left:
                        run_directories[i].amend({"start": msgspec.to_builtins(start)})
                some = [(identities[i], run_directories[i]) for i in left]
                agreement = training.agreement(setup, start, run_directories[left[0]])
                _run(host, agreement, some, how, training, insecure=insecure, here=here, say=say)
        return [
            None if was else run_directory.summary() for was, run_directory in zip(before, run_directories, strict=True)
        ]
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted before the first round; {how}") from None
    finally:
        for run_directory in run_directories:
            run_directory.close()
        workers.close()


def _hosting(
    setup: Setup, run_directories: Sequence[RunDirectory], workers: Workers, stop: Stop, training: Training
) -> Host:
    """Everything that computes for these nodes; writes what is about to run."""
    _check_samples(setup, run_directories)
    fresh = [run_directory for run_directory in run_directories if run_directory.run_info() is None]
    for run_directory in fresh:
        run_directory.announce()
    known = next(
        (found for run_directory in run_directories if (found := run_directory.known_choice()) is not None), None
    )
    learner, choice = training.learner(setup, workers, known)
    for run_directory, node_id, own in zip(run_directories, setup.hosted.tolist(), setup.samples.tolist(), strict=True):
        told = own if setup.experiment.mixing_rule == "samples" else None
        if run_directory in fresh:
            classes, samples, device = setup.data.classes, setup.sizes, setup.task.device.type
            run_directory.begin(
                choice, setup.data.note, classes=classes, samples=samples, node=node_id, told=told, device=device
            )
            run_directory.amend(columns_of(setup.data))
    return Host(Population(setup, learner, workers), learner, workers, stop)


def _check_samples(setup: Setup, run_directories: Sequence[RunDirectory]) -> None:
    """If aggregation weights depend on sample counts: check that the peers will accept these."""
    if setup.experiment.mixing_rule != "samples":
        return
    most = setup.experiment.network.most_samples
    for run_directory, own in zip(run_directories, setup.samples.tolist(), strict=True):
        if own > most:
            raise BadInput(
                f"{own} training samples here are more than network.most_samples = {most}, which others would refuse;"
                " raise it in the experiment of all nodes"
            )
        before = (run_directory.run_info() or {}).get("samples", own)
        if before != own:
            raise BadInput(
                f"{own} training samples here, but this node started with {before} and told its peers, which use the first"
                f' number (mixing = "samples"); restore the data, or start again without {run_directory.root}'
            )


def experiment_of(folders: Sequence[Path], settings: list[str]) -> Experiment:
    """The common experiment of all folders. Modules in the folders take precedence over others of the same name."""
    look_beside(folders[0] / "experiment.toml", first=True)
    modules = python_files(folders[0])
    first = load(folders[0] / "experiment.toml")
    for setting in settings:
        check_node_setting(setting, own_data=first.own_data)
    experiment = load(folders[0] / "experiment.toml", settings)
    for folder in folders:
        check_rounds(folder, load(folder / "experiment.toml"), experiment)
        different = same_experiment(load(folder / "experiment.toml", settings).table(), experiment.table())
        if different:
            raise BadInput(f"{folder} holds another experiment than {folders[0]} (in {', '.join(different[:5])})")
        others = python_files(folder)
        for name in sorted({*modules, *others}):
            if modules.get(name) != others.get(name):
                raise BadInput(f"{folder} holds another {name} than {folders[0]}; copy the one that all nodes have")
    check_deployable(experiment)
    return experiment


def _check_node_ids(folders: Sequence[Path], identities: Sequence[Identity], experiment: Experiment) -> None:
    node_ids = [identity.node_id for identity in identities]
    for folder, node_id in zip(folders, node_ids, strict=True):
        if node_id >= experiment.nodes:
            raise BadInput(
                f"{folder / 'node.pem'} is for node {node_id}, but the experiment has nodes 0 to {experiment.nodes - 1}"
            )
    check_hosting(experiment, len(node_ids))
    if len(set(node_ids)) < len(node_ids):
        raise BadInput(f"two of these folders are of the same node: {', '.join(map(str, folders))}")
    if len({identity.cluster for identity in identities}) > 1:
        raise BadInput(f"these folders are of different authorities: {', '.join(map(str, folders))}")


def _start_of(folders: Sequence[Path]) -> tuple[Start | None, StartWeights | None]:
    """The common initial weights of the runs in these folders."""
    first, weights = read_start(folders[0])
    for folder in folders[1:]:
        if read_start(folder)[0] != first:
            raise BadInput(
                f"{folder} starts from something else than {folders[0]}; make both with one 'epidemic cluster next'"
            )
    return first, weights


def _run(
    host: Host,
    agreement: Agreement,
    nodes: Sequence[tuple[Identity, RunDirectory]],
    how: str,
    training: Training,
    *,
    insecure: bool,
    here: int,
    say: Say,
) -> None:
    """Run these nodes until they finish. If some were stopped in their final evaluation, only that is done; the others run next."""
    experiment = host.population.setup.experiment
    assembly = assembly_of(host, agreement, [identity.node_id for identity, _ in nodes], training.make_node)
    hosted: list[HostedNode] = []
    told = []
    for position, (identity, run_directory) in enumerate(nodes):
        told.append(Callbacks([_Teller(say, identity.node_id, len(nodes)), *listeners(experiment)]))
        listener = RunListener(told[-1].recorded, told[-1].evaluating, told[-1].finished)
        hosted.append(
            assembly.node(
                identity, position, RunRecorder(host, run_directory, how, node_id=position, listener=listener)
            )
        )
    restored = [node.recorder.restore() for node in hosted]
    done = [i for i, node in enumerate(hosted) if node.ended(restored[i])]
    for i in done:
        _start(told[i], host, hosted[i].recorder)
        hosted[i].recorder.conclude()
    if done:
        return
    addresses = read_addresses(hosted[0].identity.folder / "node.toml")
    meeting = meeting_of(experiment, hosted[0].identity, addresses)
    process: Process | None = None
    transport: Transport | None = None
    for node in hosted:
        node.mark("running")
    try:
        say("opening the network" + (f" on {addresses.listen}" if addresses.listen else ""))
        transport = _open_transport(
            hosted[0].identity,
            addresses,
            experiment,
            assembly.format.frame_bytes,
            host.stop,
            insecure=insecure,
            here=here,
            knows_all=meeting is None,
            say=say,
        )
        if addresses.connect:
            say(f"looking for the others at {', '.join(addresses.connect[:8])}{', ...' * (len(addresses.connect) > 8)}")
        for node, callbacks, extra in zip(hosted, told, restored, strict=True):
            _start(callbacks, host, node.recorder)
            assembly.join(node, extra, addresses, transport.token, meeting)
            node.recorder.extra = node.extra
            if extra is not None:
                say(f"resuming after {node.stands}")
        process = Process(host, hosted, transport, agreement, assembly, say, meeting)
        process.run()
    except KeyboardInterrupt:
        unfinished = [
            node
            for node, (_, run_directory) in zip(hosted, nodes, strict=True)
            if not (node.over or run_directory.finished)
        ]
        stopped = [_interrupted(node, process) for node in unfinished]
        if stopped:  # those that had finished were only waiting for their peers
            raise stopped[0] from None
    except BaseException as problem:
        known = isinstance(problem, EpidemicError)
        reason = " ".join(str(problem).split())
        for node in hosted:
            if not node.over:
                node.mark("failed", reason if known else f"unexpected {type(problem).__name__}: {reason}")
        raise
    finally:
        if transport is not None:  # one that stays open keeps the process from ending
            transport.close()


def _start(callbacks: Callbacks, host: Host, recorder: RunRecorder) -> None:
    callbacks.started(host.population.setup, host.learner, recorder.done)
    if recorder.records:
        callbacks.resumed(tuple(recorder.records))


def _interrupted(node: HostedNode, process: Process | None) -> Interrupted:
    """Save a node that was stopped."""
    if process is not None:
        process.learning.rewind(node)
    found = node.recorder.interrupted(node.stands)
    node.mark("stopped", f"interrupted after {node.stands}")
    return found


class _Teller(Callback):
    """A callback that logs a node's evaluations."""

    def __init__(self, say: Say, node_id: int, hosted: int) -> None:
        self._say = say
        self._who = f"node {node_id}: " if hosted > 1 else ""

    def recorded(self, record: Record) -> None:
        found = score(record.accuracy, record.loss)
        when = f"round {record.round}"
        if record.time is not None:
            when = f"second {record.time.seconds:.0f}, {record.round} trainings"
        self._say(f"{self._who}{when}: {found}, {record.alive} nodes alive")


def _open_transport(
    identity: Identity,
    addresses: Addresses,
    experiment: Experiment,
    largest: int,
    stop: Stop,
    *,
    insecure: bool,
    here: int,
    knows_all: bool,
    say: Say,
) -> Transport:
    """Open the network; retry while a relay is not there yet."""
    end = time.monotonic() + experiment.network.patience
    said, opened = False, None
    while True:
        try:
            with stop.held():
                opened = Transport(
                    identity,
                    addresses,
                    nodes=experiment.nodes,
                    largest=largest,
                    insecure=insecure,
                    here=here,
                    knows_all=knows_all,
                )
            return opened
        except KeyboardInterrupt:
            if opened is not None:  # one that stays open keeps the process from ending
                opened.close()
            raise
        except Unreachable as problem:
            if time.monotonic() > end:
                raise BadInput(
                    f"{problem}; given up after {experiment.network.patience:g} s (network.patience)"
                ) from None
            if not said:
                say(f"{problem}; trying again")
            said = True
            time.sleep(0.5)
