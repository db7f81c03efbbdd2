"""Running deployed nodes: from their folders to their results. One process may host several of them."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from epidemic.errors import BadInput, Interrupted
from epidemic.experiment import Experiment, check_node_setting, load, same_experiment
from epidemic.host.interrupt import Stop, gentle_stop
from epidemic.host.journal import Ear, Host, Journal
from epidemic.host.population import Population
from epidemic.host.setup import Setup, make_learner, prepare
from epidemic.host.store import Store
from epidemic.net.addresses import Addresses, read_addresses
from epidemic.net.keys import Identity
from epidemic.net.process import Process
from epidemic.net.seat import Seat
from epidemic.net.terms import check_deployable, terms_of
from epidemic.net.transport import Transport, Unreachable
from epidemic.net.views import Views
from epidemic.net.wire import Format
from epidemic.protocol.events import SECOND
from epidemic.protocol.rounds import Rounds, Rules
from epidemic.record import Record, Summary
from epidemic.rng import Streams
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
    """Run the nodes of these folders to their end, in this process: what came out of each; None if it had finished before.

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
    seed = experiment.seeds[0]
    threads = experiment.runtime.threads or threads or available_threads()
    stores = [Store(folder / "run", experiment, seed) for folder in folders]
    more = [word for setting in settings or [] for word in ("--set", setting)]
    how = f"go on with: {shlex.join(['epidemic', 'node', *map(str, folders), *(['--insecure'] if insecure else []), *more])}"
    workers = Workers(1, inside=threads) if len(folders) == 1 else Workers(threads)
    try:
        for store in stores:
            store.check(resume=True)
            store.open()
        left = [i for i, store in enumerate(stores) if not store.finished]
        for i in sorted(set(range(len(stores))) - set(left)):
            say(f"finished already: {stores[i].path}")
        if not left:
            return [None] * len(folders)
        open_stores, identities = [stores[i] for i in left], [identities[i] for i in left]
        data = experiment.load_data()
        setup = prepare(experiment, seed, data, [identity.place for identity in identities])
        fresh = [store for store in open_stores if store.run_info() is None]
        for store in fresh:
            store.announce()
        known = next((found for store in open_stores if (found := store.known_choice()) is not None), None)
        learner, choice = make_learner(setup, workers, known)
        for store, identity in zip(open_stores, identities, strict=True):
            if store in fresh:
                store.begin(choice, data.note, node=identity.place)
        with gentle_stop() as stop:
            host = Host(Population(setup, learner), learner, workers, stop)
            addresses = read_addresses(identities[0].folder / "node.toml")
            summaries = _run(host, identities, open_stores, addresses, how, insecure=insecure, here=here, say=say)
        ended = dict(zip(left, summaries, strict=True))
        return [ended.get(i) for i in range(len(folders))]
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted before the first round; {how}") from None
    finally:
        for store in stores:
            store.close()
        workers.close()


def _experiment(folders: Sequence[Path], settings: list[str]) -> Experiment:
    """The experiment that all folders have in common."""
    first = load(folders[0] / "experiment.toml")
    for setting in settings:
        check_node_setting(setting, own_data=first.network.data == "own")
    for folder in folders[1:]:
        different = same_experiment(load(folder / "experiment.toml").table(), first.table())
        if different:
            raise BadInput(f"{folder} holds another experiment than {folders[0]} (in {', '.join(different[:5])})")
    experiment = load(folders[0] / "experiment.toml", settings)
    check_deployable(experiment)
    return experiment


def _check_places(folders: Sequence[Path], identities: Sequence[Identity], experiment: Experiment) -> None:
    places = [identity.place for identity in identities]
    for folder, place in zip(folders, places, strict=True):
        if place >= experiment.nodes:
            raise BadInput(
                f"{folder / 'node.pem'} is for place {place}, but the experiment has nodes 0 to {experiment.nodes - 1}"
            )
    if len(set(places)) < len(places):
        raise BadInput(f"two of these folders are of the same place: {', '.join(map(str, folders))}")
    if len({identity.cluster for identity in identities}) > 1:
        raise BadInput(f"these folders are of different authorities: {', '.join(map(str, folders))}")


def _run(
    host: Host,
    identities: Sequence[Identity],
    stores: Sequence[Store],
    addresses: Addresses,
    how: str,
    *,
    insecure: bool,
    here: int,
    say: Say,
) -> list[Summary]:
    setup, terms = host.population.setup, terms_of(host.population.setup)
    experiment = setup.experiment
    format = Format(terms.run, host.population.columns, experiment.network.largest)
    hidden = {identity.place: _secret_streams() for identity in identities} if _private(setup) else {}
    views = Views(experiment, setup.streams, hidden)
    seats = []
    for position, (identity, store) in enumerate(zip(identities, stores, strict=True)):
        ear = Ear(_teller(say, identity.place, len(identities)))
        seats.append(Seat(identity, position, Journal(host, store, how, place=position, ear=ear), format))
    restored = [seat.journal.restore() for seat in seats]
    done = [seat for seat in seats if seat.journal.over and seat.journal.recorded == experiment.rounds]
    if done:  # stopped in the final evaluation
        for seat in done:
            seat.journal.conclude()
        if len(done) == len(seats):
            return [store.summary() for store in stores]
        raise Interrupted(f"nodes {', '.join(str(s.place) for s in done)} have finished; {how}")
    process: Process | None = None
    with ExitStack() as marks:
        for seat in seats:
            marks.enter_context(seat.journal.marked())
        try:
            transport = _open_transport(
                identities[0],
                addresses,
                experiment,
                format.frame_bytes,
                host.stop,
                insecure=insecure,
                here=here,
                say=say,
            )
            for seat, extra in zip(seats, restored, strict=True):
                tally, count, kept = seat.restored(extra, partial(views.targets, seat.place))
                seat.rounds = Rounds(
                    _rules(experiment, seat.place, addresses),
                    partial(views, seat.place),
                    _drawing(_secret_streams()),
                    transport.token,
                    done=seat.journal.done,
                    kept=kept,
                    tally=tally,
                    count=count,
                )
                seat.journal.extra = seat.extra
                if extra is not None:
                    say(f"going on after round {seat.journal.done}")
            process = Process(host, seats, transport, terms, views, say)
            process.run()
        except KeyboardInterrupt:
            left = [seat for seat, store in zip(seats, stores, strict=True) if not (seat.over or store.finished)]
            for seat in left:
                if process is not None:
                    process.learning.rewind(seat)
            stopped = [seat.journal.interrupted() for seat in left]
            if stopped:  # those who had finished were only waiting for the others
                raise stopped[0] from None
    return [store.summary() for store in stores]


def _private(setup: Setup) -> bool:
    return setup.experiment.network.coin == "private"


def _teller(say: Say, place: int, hosted: int) -> Callable[[Record], None]:
    def tell(record: Record) -> None:
        found = f"loss {record.loss.mean:.4f}" if record.accuracy is None else f"accuracy {record.accuracy.mean:.2%}"
        who = f"node {place}: " if hosted > 1 else ""
        say(f"{who}round {record.round}: {found}, {record.alive} nodes alive")

    return tell


def _rules(experiment: Experiment, place: int, addresses: Addresses) -> Rules:
    network, faults, n = experiment.network, experiment.faults, experiment.nodes
    return Rules(
        place,
        n,
        experiment.rounds,
        close=network.close,
        deadline=int(network.deadline * SECOND),
        patience=int(network.patience * SECOND),
        founders=frozenset(p for p in addresses.founders if p < n) - {place},
        adopt=faults.on_return == "adopt",
        cap=faults.cap_of(n),
        retries=n if faults.max_retries == "unlimited" else faults.max_retries,
    )


def _open_transport(
    identity: Identity,
    addresses: Addresses,
    experiment: Experiment,
    largest: int,
    stop: Stop,
    *,
    insecure: bool,
    here: int,
    say: Say,
) -> Transport:
    """Open the network; a relay that is not there yet is tried again."""
    end = time.monotonic() + experiment.network.patience
    said = False
    while True:
        try:
            with stop.held():
                return Transport(
                    identity, addresses, nodes=experiment.nodes, largest=largest, insecure=insecure, here=here
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


def _secret_streams() -> Streams:
    """Randomness that nobody else can know."""
    return Streams(int.from_bytes(secrets.token_bytes(7), "little"))


def _drawing(streams: Streams) -> Callable[[int], int]:
    """Random whole numbers, one after the other."""
    stream = streams("choice")
    return lambda below: int(stream.integers(below, 1)[0])
