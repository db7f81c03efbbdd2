"""Running deployed nodes: from their folders to their results. One process may host several of them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from epidemic.callbacks import Callback, Callbacks
from epidemic.callbacks.named import listeners
from epidemic.config import look_beside
from epidemic.errors import BadInput, EpidemicError, Interrupted, plain
from epidemic.experiment import Experiment, check_node_setting, load, python_files, same_experiment
from epidemic.host.interrupt import Stop, gentle_stop
from epidemic.host.journal import Ear, Host, Journal
from epidemic.host.population import Population
from epidemic.host.setup import Setup, make_learner, prepare
from epidemic.host.start import Start, Weights, read_start
from epidemic.host.store import Store
from epidemic.models import unused_methods
from epidemic.net.acquaintances import meeting_of
from epidemic.net.addresses import Addresses, read_addresses
from epidemic.net.assembly import assembly_of
from epidemic.net.extending import check_rounds, write_rounds
from epidemic.net.hosted import HostedNode
from epidemic.net.keys import Identity
from epidemic.net.opening import Unreachable
from epidemic.net.process import Process
from epidemic.net.terms import Terms, check_deployable, check_hosting, terms_of
from epidemic.net.transport import Transport
from epidemic.record import Record, Summary
from epidemic.shown import score
from epidemic.workers import Workers, available_threads

Say = Callable[[str], None]


def run_node(
    folders: Path | Sequence[Path],
    settings: list[str] | None = None,
    *,
    insecure: bool = False,
    threads: int = 0,
    here: int = 1,
    say: Say = lambda _: None,
) -> list[Summary | None]:
    """Run the nodes of these folders to their end, in this process; what came out of each, None of those that had finished before.

    Args:
        folders: A node's folder, or several.
        settings: What is different here, as KEY=VALUE.
        insecure: Whether connections are not encrypted; loopback addresses only.
        threads: How many to compute with, unless the experiment says so; 0: one per core.
        here: How many processes of this network share the machine.
        say: Who is told what happens.
    """
    folders = [folders] if isinstance(folders, Path) else list(folders)
    identities = [Identity.load(folder) for folder in folders]
    experiment = _experiment(folders, settings or [])
    _check_places(folders, identities, experiment)
    experiment.check_names()
    seed = experiment.seeds[0]
    start, weights = _start_of(folders)
    threads = experiment.runtime.threads or threads or available_threads()
    stores = [Store(folder / "run", experiment, seed) for folder in folders]
    given = [word for setting in settings or [] for word in ("--set", setting)]
    how = f"go on with: {shlex.join(['epidemic', 'node', *map(str, folders), *(['--insecure'] if insecure else []), *given])}"
    workers = Workers(1, inside=threads) if len(folders) == 1 else Workers(threads)
    try:
        for store in stores:
            store.check(resume=True)
            store.open()
        for folder in folders:
            if write_rounds(folder, experiment.rounds):
                say(f"rounds = {experiment.rounds} from now on, written to {folder / 'experiment.toml'}")
        before = [store.finished for store in stores]
        for folder, store in zip(folders, stores, strict=True):
            if store.finished:
                more = f"; if the others have more rounds, go on with: epidemic node {shlex.quote(str(folder))} --set rounds=N"
                say(f"finished already: {store.path}{more if experiment.free is None else ''}")
        data = None
        while left := [i for i, store in enumerate(stores) if not store.finished]:
            if data is None:
                say("loading the data")
                data = experiment.load_data()
                if data.note:
                    say(f"data: {plain(data.note, 500)}")
            say("preparing the model")
            places, begun_on = [identities[i].place for i in left], stores[left[0]].known_device()
            setup = prepare(experiment, seed, data, places, begun_on=begun_on, weights=weights)
            if (unused := unused_methods(setup.task.module)) is not None:
                say(unused)
            with gentle_stop() as stop:
                host = _hosting(setup, [stores[i] for i in left], workers, stop)
                if start is not None:
                    for i in left:
                        stores[i].amend({"start": msgspec.to_builtins(start)})
                some = [(identities[i], stores[i]) for i in left]
                _run(host, terms_of(setup, start), some, how, insecure=insecure, here=here, say=say)
        return [None if was else store.summary() for was, store in zip(before, stores, strict=True)]
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted before the first round; {how}") from None
    finally:
        for store in stores:
            store.close()
        workers.close()


def _hosting(setup: Setup, stores: Sequence[Store], workers: Workers, stop: Stop) -> Host:
    """Everything that computes for these nodes; what is about to run is written down."""
    _check_samples(setup, stores)
    fresh = [store for store in stores if store.run_info() is None]
    for store in fresh:
        store.announce()
    known = next((found for store in stores if (found := store.known_choice()) is not None), None)
    learner, choice = make_learner(setup, workers, known)
    for store, place, own in zip(stores, setup.hosted.tolist(), setup.samples.tolist(), strict=True):
        told = own if setup.experiment.mixing_rule == "samples" else None
        if store in fresh:
            classes, samples, device = setup.data.classes, setup.sizes, setup.task.device.type
            store.begin(choice, setup.data.note, classes=classes, samples=samples, node=place, told=told, device=device)
    return Host(Population(setup, learner, workers), learner, workers, stop)


def _check_samples(setup: Setup, stores: Sequence[Store]) -> None:
    """Where voices count by their samples: that a number is one which the others take, now and when it goes on."""
    if setup.experiment.mixing_rule != "samples":
        return
    most = setup.experiment.network.most_samples
    for store, own in zip(stores, setup.samples.tolist(), strict=True):
        if own > most:
            raise BadInput(
                f"{own} training samples here are more than network.most_samples = {most}, which others would refuse;"
                " raise it in the experiment of all nodes"
            )
        before = (store.run_info() or {}).get("samples", own)
        if before != own:
            raise BadInput(
                f"{own} training samples here, but this node began with {before} and told the others so, who go by the first"
                f' number (mixing = "samples"); put the data back, or begin anew without {store.root}'
            )


def _experiment(folders: Sequence[Path], settings: list[str]) -> Experiment:
    """The experiment that all folders have in common. Modules that were put into them come before others of the same name."""
    look_beside(folders[0] / "experiment.toml", first=True)
    modules = python_files(folders[0])
    first = load(folders[0] / "experiment.toml")
    for setting in settings:
        check_node_setting(setting, own_data=first.network.data == "own")
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


def _check_places(folders: Sequence[Path], identities: Sequence[Identity], experiment: Experiment) -> None:
    places = [identity.place for identity in identities]
    for folder, place in zip(folders, places, strict=True):
        if place >= experiment.nodes:
            raise BadInput(
                f"{folder / 'node.pem'} is for place {place}, but the experiment has nodes 0 to {experiment.nodes - 1}"
            )
    check_hosting(experiment, len(places))
    if len(set(places)) < len(places):
        raise BadInput(f"two of these folders are of the same place: {', '.join(map(str, folders))}")
    if len({identity.cluster for identity in identities}) > 1:
        raise BadInput(f"these folders are of different authorities: {', '.join(map(str, folders))}")


def _start_of(folders: Sequence[Path]) -> tuple[Start | None, Weights | None]:
    """What the runs of these folders start from, which is the same for all of them."""
    first, weights = read_start(folders[0])
    for folder in folders[1:]:
        if read_start(folder)[0] != first:
            raise BadInput(
                f"{folder} starts from something else than {folders[0]}; make both with one 'epidemic cluster next'"
            )
    return first, weights


def _run(
    host: Host,
    terms: Terms,
    nodes: Sequence[tuple[Identity, Store]],
    how: str,
    *,
    insecure: bool,
    here: int,
    say: Say,
) -> None:
    """Run these nodes to their end. Where some were stopped in their final evaluation, only that is done; the others come next."""
    experiment = host.population.setup.experiment
    assembly = assembly_of(host, terms, [identity.place for identity, _ in nodes])
    hosted: list[HostedNode] = []
    told = []
    for position, (identity, store) in enumerate(nodes):
        told.append(Callbacks([_Teller(say, identity.place, len(nodes)), *listeners(experiment)]))
        ear = Ear(told[-1].recorded, told[-1].evaluating, told[-1].finished)
        hosted.append(assembly.node(identity, position, Journal(host, store, how, place=position, ear=ear)))
    restored = [node.journal.restore() for node in hosted]
    done = [i for i, node in enumerate(hosted) if node.ended(restored[i])]
    for i in done:
        _start(told[i], host, hosted[i].journal)
        hosted[i].journal.conclude()
    if done:
        return
    addresses = read_addresses(hosted[0].identity.folder / "node.toml")
    meeting = meeting_of(experiment, hosted[0].identity, addresses)
    process: Process | None = None
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
            _start(callbacks, host, node.journal)
            assembly.join(node, extra, addresses, transport.token, meeting)
            node.journal.extra = node.extra
            if extra is not None:
                say(f"going on after {node.stands}")
        process = Process(host, hosted, transport, terms, assembly, say, meeting)
        process.run()
    except KeyboardInterrupt:
        unfinished = [node for node, (_, store) in zip(hosted, nodes, strict=True) if not (node.over or store.finished)]
        stopped = [_interrupted(node, process) for node in unfinished]
        if stopped:  # those who had finished were only waiting for the others
            raise stopped[0] from None
    except BaseException as problem:
        known = isinstance(problem, EpidemicError)
        reason = " ".join(str(problem).split())
        for node in hosted:
            if not node.over:
                node.mark("failed", reason if known else f"unexpected {type(problem).__name__}: {reason}")
        raise


def _start(callbacks: Callbacks, host: Host, journal: Journal) -> None:
    callbacks.started(host.population.setup, host.learner, journal.done)
    if journal.records:
        callbacks.resumed(tuple(journal.records))


def _interrupted(node: HostedNode, process: Process | None) -> Interrupted:
    """Save a node that was stopped."""
    if process is not None:
        process.learning.rewind(node)
    found = node.journal.interrupted(node.stands)
    node.mark("stopped", f"interrupted after {node.stands}")
    return found


class _Teller(Callback):
    """Says what a node has found."""

    def __init__(self, say: Say, place: int, hosted: int) -> None:
        self._say = say
        self._who = f"node {place}: " if hosted > 1 else ""

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
    """Open the network; a relay that is not there yet is tried again."""
    end = time.monotonic() + experiment.network.patience
    said = False
    while True:
        try:
            with stop.held():
                return Transport(
                    identity,
                    addresses,
                    nodes=experiment.nodes,
                    largest=largest,
                    insecure=insecure,
                    here=here,
                    knows_all=knows_all,
                )
        except Unreachable as problem:
            if time.monotonic() > end:
                raise BadInput(
                    f"{problem}; given up after {experiment.network.patience:g} s (network.patience)"
                ) from None
            if not said:
                say(f"{problem}; trying again")
            said = True
            time.sleep(0.5)
