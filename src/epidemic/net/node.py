"""Node: one deployed node, from its folder to its results.

It trains, sends its model to the targets of its round, closes the round, mixes what arrived, goes on. Who dies is expected no more;
who comes back asks a live node where the others are; who falls behind leaves rounds out. Nothing it does needs a server.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import torch

from epidemic.algorithm import Rows
from epidemic.errors import BadInput, Interrupted, RunFailed
from epidemic.experiment import Experiment, check_node_setting, load
from epidemic.host.counters import Counters
from epidemic.host.findings import Clock, nodes_of, record_of, summary_of
from epidemic.host.interrupt import Stop, gentle_stop
from epidemic.host.setup import Setup, make_learner, prepare
from epidemic.host.store import Progress, Store
from epidemic.learner import Learner
from epidemic.net.desk import Desk, Say
from epidemic.net.keys import Identity
from epidemic.net.mailbox import Mailbox, closed
from epidemic.net.member import Member, Turn, raw_bytes
from epidemic.net.pace import Pace
from epidemic.net.post import Outgoing, Post
from epidemic.net.terms import check_deployable, terms_of
from epidemic.net.transport import Addresses, Transport, Unreachable, read_addresses
from epidemic.net.wire import Format, Letter, Refused
from epidemic.record import Record, Summary
from epidemic.rng import Streams
from epidemic.workers import Workers, available_threads

BEHIND = 3
"""So many rounds behind two others, a node goes on where they are."""


class Status(msgspec.Struct, frozen=True):
    """How a node is, for whoever asks."""

    place: int
    state: str
    round: int
    rounds: int
    accuracy: float | None
    loss: float | None
    bytes: int  # sent so far
    alive: int  # nodes, itself included
    nodes: int
    late: int
    lost: int
    refused: int
    jumped: int  # rounds that it left out
    undelivered: int  # letters that nobody was there to take, or whose link was stuck
    limit: float  # seconds that it would wait for letters now
    longest_wait: float  # seconds that it has waited for letters at most
    letters: dict[str, int]
    refusals: dict[str, int]


def run_node(
    folder: Path,
    settings: list[str] | None = None,
    *,
    insecure: bool = False,
    threads: int = 0,
    say: Say = lambda _: None,
) -> Summary | None:
    """Run the node of this folder to its end; None if it had finished before. It has `threads` unless its file says otherwise."""
    identity = Identity.load(folder)
    for setting in settings or []:
        check_node_setting(setting, own_data=load(folder / "experiment.toml").network.data == "own")
    addresses = read_addresses(folder / "node.toml")
    experiment = load(folder / "experiment.toml", settings)
    check_deployable(experiment)
    if identity.place >= experiment.nodes:
        raise BadInput(
            f"{folder / 'node.pem'} is for place {identity.place}, but the experiment has nodes 0 to {experiment.nodes - 1}"
        )
    seed = experiment.seeds[0]
    store = Store(folder / "run", experiment, seed)
    workers = Workers(1, inside=experiment.runtime.threads or threads or available_threads())
    try:
        store.check(resume=True)
        store.open()
        if store.finished:
            say(f"finished already: {store.path}")
            return None
        data = experiment.load_data()
        setup = prepare(experiment, seed, data, identity.place)
        if store.run_info() is None:
            store.announce()
        learner, choice = make_learner(setup, workers, store.known_choice())
        if store.run_info() is None:
            store.begin(choice, data.note, node=identity.place)
        return Node(setup, learner, workers, store, identity, addresses, insecure=insecure, say=say).run()
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted before the first round; go on with: epidemic node {folder}") from None
    finally:
        store.close()
        workers.close()


class Node:
    """One node, while it runs."""

    def __init__(
        self,
        setup: Setup,
        learner: Learner,
        workers: Workers,
        store: Store,
        identity: Identity,
        addresses: Addresses,
        *,
        insecure: bool,
        say: Say,
    ) -> None:
        self.setup = setup
        self.experiment: Experiment = setup.experiment
        self.network = setup.experiment.network
        self.place = identity.place
        self.identity = identity
        self.addresses = addresses
        self.insecure = insecure
        self.learner = learner
        self.store = store
        self.say = say
        self.member = Member(setup, learner, workers, self.place)
        self.terms = terms_of(setup)
        self.format = Format(self.terms.run, self.member.columns)
        n = self.experiment.nodes
        cap = self.experiment.faults.cap
        self.cap = None if cap is None or cap >= n - 1 else cap  # as in the simulator
        self.barrier = self.network.close == "barrier"
        self.kept = min(n, 16) if self.barrier else 4  # rounds whose letters can be sent again
        self.pace = Pace(self.network.deadline)
        self.desk = Desk(
            identity,
            self.terms,
            self.format,
            Mailbox(ahead=max(8, self.kept), room=max(64, 4 * n), cap=self.cap),
            self.pace,
            nodes=n,
            barrier=self.barrier,
            say=say,
        )
        self.lost = self.jumped = 0
        self.longest_wait = 0.0
        self.state = "starting"
        self.clock = Clock()
        self.stop = Stop()
        self.secret = _secret_streams() if self.network.coin == "private" else None
        self.done, self.recorded = 0, -1
        self.train_loss: float | None = None
        self.alive = n
        self.counters = Counters.zero(1)
        self.records: list[Record] = []
        self._sent_before: list[Outgoing] = []
        self._warned = False
        self._restore()
        self.desk.start = self.done
        self.desk.mailbox.begin_with(self.done)

    # -- from start to end --------------------------------------------------------------------------------------------

    def run(self) -> Summary:
        """All rounds, then the final evaluation."""
        with gentle_stop() as stop:
            self.stop = stop
            try:
                if self.done == self.recorded == self.experiment.rounds:  # it was stopped in the final evaluation
                    return self._conclude()
                with self._connected():
                    self._gather()
                    self._rounds()
                    return self._finish()
            except KeyboardInterrupt:
                raise self._interrupted(whole=not stop.broke) from None

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Open the network, and attend to it in the background."""
        largest = self.format.frame_bytes
        transport = self._open_transport(largest)
        post = Post(transport, self.place, nodes=self.experiment.nodes, kept=self.kept)
        for letter in self._sent_before:
            post.keep(letter)
        self.transport, self.post = transport, post
        try:
            with self.stop.held():  # an interrupt in the middle of Zenoh's code would get lost
                transport.answer("status", self.place, lambda _, respond: respond(msgspec.json.encode(self.status())))
                self.desk.open(transport, post, offers=self.cap is not None)
            yield
        finally:
            post.close()
            transport.close()
            self.desk.close()

    def _open_transport(self, largest: int) -> Transport:
        """Open the network; a relay that is not there yet is tried again."""
        end = time.monotonic() + self.network.patience
        while True:
            try:
                with self.stop.held():
                    return Transport(
                        self.identity,
                        self.addresses,
                        nodes=self.experiment.nodes,
                        largest=largest,
                        insecure=self.insecure,
                    )
            except Unreachable as problem:
                if time.monotonic() > end:
                    raise BadInput(
                        f"{problem}; given up after {self.network.patience:g} s (network.patience)"
                    ) from None
                self.say(f"{problem}; trying again")
                time.sleep(1.0)

    def _gather(self) -> None:
        """Wait for the others; where they have begun without this node, catch up with them."""
        self.state = "looking"
        founders = {p for p in self.addresses.founders if p < self.experiment.nodes} - {self.place}
        barrier = self.barrier
        if barrier:
            founders = set(range(self.experiment.nodes)) - {self.place}
        start = said = time.monotonic()
        while True:
            with self.desk.changed:
                alive, front, late = self.desk.peers.alive, self.desk.peers.front, self.desk.peers.began_without_us
                differing = dict(self.desk.peers.differing)
                waited = time.monotonic() - start
                begun = front >= 0 and not barrier and waited > 1 and not self.desk.peers.strangers()
                complete = founders - differing.keys() <= alive and (alive or differing)
                if complete or begun or waited > self.network.patience:
                    break
                if len(differing) > self.experiment.nodes // 2:
                    break
                self.desk.changed.wait(0.1)
            if time.monotonic() - said > 5:
                said = time.monotonic()
                missing = sorted(founders - alive)
                links = (
                    "" if alive else f"; nobody answers at {', '.join(self.addresses.connect) or 'this address'} yet"
                )
                self.say(f"waiting for {_listed(missing)}{links}")
        self._check_terms(differing, alive)
        if not alive:
            raise BadInput(
                f"no other node was found within {self.network.patience:g} s (network.patience) at"
                f" {', '.join(self.addresses.connect) or 'this address'}; look at the addresses in"
                f" {self.identity.folder / 'node.toml'}, the others' certificates, and whether they run"
            )
        if barrier and not founders <= alive:
            raise BadInput(
                f"{_listed(sorted(founders - alive))} did not come within {self.network.patience:g} s (network.patience);"
                ' with network.close = "barrier" everyone must be there'
            )
        self.say(f"{1 + len(alive)} of {self.experiment.nodes} nodes are there")
        if late and front > self.done and not barrier:
            self._rejoin(front)
            with self.stop.held():  # tell the others from when to expect this node
                self.transport.ask("hello", None, self.desk.hello(), 1.0)

    def _check_terms(self, differing: dict[int, list[str]], alive: frozenset[int]) -> None:
        """Give up if most of the others do something else."""
        if differing and len(differing) > len(alive):
            place, different = sorted(differing.items())[0]
            raise BadInput(
                f"node {place} runs another experiment: {'; '.join(different[:4])}; use the same folder for all"
            )

    def _rejoin(self, front: int) -> None:
        """Go on where the others are, with one of their models or the own one."""
        if self.experiment.faults.on_return == "adopt":
            with self.desk.changed:
                donors = self.desk.peers.learning
            for i in _secret_streams()("adoption").permutation(len(donors))[:5]:
                place = donors[int(i)]
                wish = self.format.seal_offer(front, self.place, place, self.identity.key)
                with self.stop.held():
                    self.post.asked()
                    answers = self.transport.ask("model", place, wish, min(5.0, self.network.deadline))
                for answer in answers:
                    try:
                        letter = self.format.open(answer, self.desk.key_of)
                    except Refused as refusal:
                        self.desk.refuse(refusal.reason)
                        continue
                    with self.stop.held(), self.desk.changed:
                        self.member.adopt(letter.tensors)
                        self._go_to(
                            max(front, letter.round, self.desk.peers.front) + 1, f"with the model of node {place}"
                        )
                    return
            self.say("nobody gave a model; going on with the own one")
        with self.stop.held():
            self._go_to(front + 1, "with its own model")

    def _go_to(self, round: int, how: str) -> None:
        self.say(f"the others are in round {round - 1}: going on from {round} instead of {self.done}, {how}")
        self.jumped += max(0, min(round, self.experiment.rounds) - self.done)
        with self.desk.changed:
            self.done = self.desk.start = min(round, self.experiment.rounds)
            self.desk.mailbox.begin_with(self.done)

    def _rounds(self) -> None:
        experiment, rounds = self.experiment, self.experiment.rounds
        saved = time.monotonic()
        while True:
            due = self.done % experiment.eval.every == 0 or self.done == rounds
            if due and self.recorded < self.done:
                self._record()
            by_rounds = experiment.checkpoint.rounds and self.done % experiment.checkpoint.rounds == 0
            by_time = experiment.checkpoint.seconds and time.monotonic() - saved >= experiment.checkpoint.seconds
            if self.done and (by_rounds or by_time or self.done == rounds):
                with self.stop.held():
                    self._save()
                saved = time.monotonic()
            if self.done == rounds:
                return
            self._round()

    # -- one round ----------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        self._check_certificates()
        before = {name: rows.clone() for name, rows in self.member.state.items()}
        try:
            found = self._exchange()
        except KeyboardInterrupt:
            self.member.state = before  # the round is done again when the node goes on
            with self.desk.changed:
                self.desk.mailbox.skip()
            raise
        if found is None:
            return
        turn, message, letters = found
        self.state = "mixing"
        with self.stop.held():
            with self.clock("mix"):
                self.member.absorb(turn, message, {sender: letter.tensors for sender, letter in letters.items()})
            self._count_sent()
            self.counters.received(len(letters))
            self.done = turn.round + 1

    def _check_certificates(self) -> None:
        """Follow the list of revoked names; end if the own certificate counts no more."""
        try:
            with self.desk.changed:
                changed = self.identity.refresh()
                if changed:
                    self.desk.peers.revocations_changed()
        except BadInput as problem:  # it is just being copied, perhaps
            if not self._warned:
                self.say(f"{problem}; the list read before counts")
            self._warned = True
            return
        if changed:
            self.say(f"the list of revoked certificates has changed: {', '.join(self.identity.revoked.names)}")
        self._warned = False
        self.identity.still_good()

    def _exchange(self) -> tuple[Turn, Rows, dict[int, Letter]] | None:
        """Train, send, wait for letters; None if the others have come to their end meanwhile."""
        began = time.monotonic()
        turn = self._begin(self.done)
        self.state = "training"
        with self.stop.held(), self.clock("train"):
            message = self._train(turn.round)
        if not self.barrier:
            with self.desk.changed:
                front = self.desk.mailbox.front(self.desk.peers.alive)
                behind = front >= turn.round + BEHIND
                if behind:
                    self.desk.mailbox.skip()
            if behind:
                self._go_to(front + 1, "with its own model")
                if self.done >= self.experiment.rounds:
                    return None
                turn = self._begin(self.done)
        with self.clock("send"):
            self._send(turn, message)
        self.pace.worked(time.monotonic() - began)
        self.state = "waiting"
        with self.clock("wait"):
            letters = self._wait(turn)
        return turn, message, letters

    def _begin(self, round: int) -> Turn:
        """Plan a round and open the mailbox for it."""
        turn = self.member.turn(round, self.secret)
        with self.desk.changed:
            self.desk.round = round
            known = turn.expected is not None and self.cap is None
            self.desk.mailbox.open(round, turn.expected.tolist() if known and turn.expected is not None else None)
        return turn

    def _train(self, round: int) -> Rows:
        try:
            message, loss = self.member.emit(round)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as problem:
            reason = " ".join(str(problem).split())
            raise RunFailed(f"round {round}: training failed: {type(problem).__name__}: {reason}") from problem
        self._check_finite("training loss", loss)
        self.train_loss = loss
        return message

    def _check_finite(self, what: str, loss: float) -> None:
        if loss != loss or loss in (float("inf"), float("-inf")):
            kept = "; the last checkpoint is kept" if self.store.has_checkpoint else ""
            raise RunFailed(
                f"round {self.desk.round}: the {what} is no longer a finite number; lower algorithm.lr{kept}"
            )

    def _send(self, turn: Turn, message: Rows) -> None:
        tensors = {name: raw_bytes(rows[0]) for name, rows in message.items()}
        frame = self.format.seal(turn.round, self.place, turn.digest, tensors, self.identity.key)
        letter = Outgoing(turn.round, frame, frozenset(turn.targets.tolist()))
        with self.desk.changed:
            alive = self.desk.peers.alive
        if self.cap is None:
            self.post.send(letter, alive)
            return
        most = self.experiment.faults.max_retries
        self.post.offer(
            letter,
            alive,
            lambda place: self.format.seal_offer(turn.round, self.place, place, self.identity.key),
            lambda: self.desk.round > turn.round,
            retries=self.experiment.nodes if most == "unlimited" else most,
            stream=_secret_streams()("cap"),
            patience=self.pace.limit,
        )

    def _wait(self, turn: Turn) -> dict[int, Letter]:
        """Wait until the round is over; its letters."""
        start, limit = time.monotonic(), self.pace.limit
        asked = start
        barrier, cap = self.barrier, self.cap
        wanted = getattr(self.experiment.topology, "s", self.experiment.nodes) if cap is None else cap
        unknown = turn.expected is None or cap is not None
        while True:
            self._grant_wishes(turn.round)
            with self.desk.changed:
                alive = self.desk.peers.alive
                now = time.monotonic()
                missing = self.desk.mailbox.missing(None if barrier else self.desk.peers.expected(turn.round))
                moved_on = unknown and self.desk.mailbox.front(alive) > turn.round
                silent = len(missing)
                if unknown or (not alive and not barrier):  # nobody to expect: wait for the usual time
                    silent = 0 if unknown and cap is not None and self.desk.mailbox.heard >= cap else -1
                if closed(
                    close=self.network.close,
                    missing=silent,
                    heard=self.desk.mailbox.heard,
                    wanted=wanted,
                    overdue=now - start >= limit or moved_on,
                ):
                    letters = self.desk.mailbox.take()
                    break
                self.desk.changed.wait(min(0.2, max(0.001, limit - (now - start))) if not barrier else 0.2)
            if self.desk.broken:
                raise RunFailed(self.desk.broken)
            if missing & alive and time.monotonic() - asked > self.pace.suspicious and not self.desk.asking:
                asked, self.desk.asking = time.monotonic(), True
                self.post.background(partial(self.desk.ask_again, turn.round, sorted(missing & alive)))
        took = time.monotonic() - start
        self.longest_wait = max(self.longest_wait, took)
        for _, arrived in letters.values():
            self.pace.waited(arrived - start)
        with self.desk.changed:
            self.desk.ready = {round: since for round, since in self.desk.ready.items() if round > turn.round - 8}
            self.desk.ready[turn.round] = start
            self.lost += len(missing & alive)
            self.desk.peers.missed(missing & alive)
        self.alive = 1 + len(alive)
        found = {}
        for sender, (letter, _) in letters.items():
            if letter.graph == turn.digest:
                found[sender] = letter
            else:
                self.desk.refuse("wrong-graph")
                with self.desk.changed:
                    self.desk.mailbox.tally["counted"] -= 1
        return found

    def _count_sent(self) -> None:
        models, offers = self.post.taken()
        self.counters.sent(models, self.format.body_bytes, offers)

    # -- what is written down -----------------------------------------------------------------------------------------

    def _record(self) -> None:
        self.state = "evaluating"
        self.post.flush(self.pace.limit)
        self._count_sent()
        with self.clock("evaluate"):
            found = self.learner.evaluate(self.member.state["x"], self.setup.evaluated)
            self._check_finite("loss", float(found.loss[0]))
            record = record_of(
                self.setup,
                found,
                None,
                hosted=1,
                round=self.done,
                alive=self.alive,
                train_loss=self.train_loss,
                disagreement=None,
                bytes=self.counters.traffic(),
            )
        with self.stop.held():
            self.store.append(record, {"round": self.done, "seconds": self.clock.taken()})
            self.records.append(record)
            self.recorded = self.done
        found_text = (
            f"loss {record.loss.mean:.4f}" if record.accuracy is None else f"accuracy {record.accuracy.mean:.2%}"
        )
        self.say(f"round {self.done}: {found_text}, {self.alive} nodes alive")

    def _finish(self) -> Summary:
        """Tell the others, write everything down, and wait for those who may still need this node."""
        self.post.flush(self.network.deadline)
        self._count_sent()
        self.desk.round = self.experiment.rounds
        self.transport.appear("done", self.place)
        summary = self._conclude()
        with suppress(KeyboardInterrupt):
            self._linger()
        return summary

    def _conclude(self) -> Summary:
        """The full test set, and everything written down."""
        self.state = "final test"
        x = self.member.state["x"]
        final = self.learner.evaluate(x, self.setup.test)
        summary = summary_of(self.setup, self.records, final, None, rounds=self.done, bytes=self.counters.traffic())
        entries = nodes_of(self.setup, final, self.counters, self.place)
        status = self.status()
        entries[0] |= {
            "longest_wait": status.longest_wait,
            "letters": status.letters,
            "refusals": status.refusals,
            "lost": status.lost,
            "jumped": status.jumped,
            "undelivered": status.undelivered,
        }
        self.store.finish(summary, entries, self.setup.task.layout, x)
        self.state = "done"
        return summary

    def _grant_wishes(self, round: int) -> None:
        """Give the current model to those who asked, while nothing changes it."""
        for respond in self.desk.wishes():
            tensors = {"x": raw_bytes(self.member.state["x"][0])}
            respond(bytes(self.format.seal(round, self.place, bytes(8), tensors, self.identity.key)))
            self.post.sent_model()

    def _linger(self) -> None:
        """Stay until the others have finished, too, for as long as a round may take."""
        end = time.monotonic() + self.network.deadline
        while time.monotonic() < end or self.barrier:
            self._grant_wishes(self.experiment.rounds)
            with self.desk.changed:
                if self.desk.peers.alive <= self.desk.finished_places:
                    return
                self.desk.changed.wait(0.1)

    def status(self) -> Status:
        """How this node is."""
        with self.desk.changed:
            last = self.records[-1] if self.records else None
            refusals = self.desk.refused + self.desk.peers.tally
            letters = {k: v for k, v in self.desk.mailbox.tally.items() if v}
            return Status(
                place=self.place,
                state=self.state,
                round=max(self.desk.round, self.done),
                rounds=self.experiment.rounds,
                accuracy=None if last is None or last.accuracy is None else last.accuracy.mean,
                loss=None if last is None else last.loss.mean,
                bytes=int(self.counters.model[0] + self.counters.header[0] + self.counters.control[0]),
                alive=1 + len(self.desk.peers.alive),
                nodes=self.experiment.nodes,
                late=letters.get("late", 0),
                lost=self.lost,
                refused=sum(refusals.values()),
                jumped=self.jumped,
                undelivered=self.post.undelivered if hasattr(self, "post") else 0,
                limit=round(self.pace.limit, 3),
                longest_wait=round(self.longest_wait, 3),
                letters=letters,
                refusals=dict(refusals),
            )

    # -- stopping and going on ----------------------------------------------------------------------------------------

    def _save(self) -> None:
        with self.clock("checkpoint"):
            tensors = {f"state.{name}": rows for name, rows in self.member.state.items()} | self.counters.tensors()
            if self.train_loss is not None:
                tensors["train_loss"] = torch.tensor(self.train_loss, dtype=torch.float64)
            tensors["alive"] = torch.tensor(self.alive)
            if self.barrier:
                for letter in self.post.kept if hasattr(self, "post") else self._sent_before:
                    tensors[f"sent.frame.{letter.round}"] = torch.frombuffer(letter.frame, dtype=torch.uint8)
            with self.desk.changed:
                tallies = {f"letters.{k}": v for k, v in self.desk.mailbox.tally.items()}
                tallies |= {f"refused.{k}": v for k, v in (self.desk.refused + self.desk.peers.tally).items()}
                tallies |= {"lost": self.lost, "jumped": self.jumped}
            self.store.save_checkpoint(Progress(round=self.done, recorded=self.recorded, tallies=tallies), tensors)

    def _restore(self) -> None:
        found = self.store.restore()
        if found is None:
            return
        progress, tensors = found
        device = self.setup.task.device
        self.member.state = {
            k.removeprefix("state."): t.to(device) for k, t in tensors.items() if k.startswith("state.")
        }
        self.counters = Counters.restored(tensors)
        self.train_loss = float(tensors["train_loss"]) if "train_loss" in tensors else None
        self.alive = int(tensors["alive"])
        self.done, self.recorded = progress.round, progress.recorded
        self.records = self.store.records()
        for key, count in progress.tallies.items():
            kind, _, what = key.partition(".")
            if kind == "letters" and what != "early":  # those are lost with the process
                self.desk.mailbox.tally[what] = count
            elif kind == "refused":
                self.desk.refused[what] = count
        self.lost, self.jumped = progress.tallies.get("lost", 0), progress.tallies.get("jumped", 0)
        for key, frame in sorted(tensors.items()):
            if key.startswith("sent.frame."):
                round = int(key.removeprefix("sent.frame."))
                targets = self.member.turn(round, self.secret).targets
                self._sent_before.append(Outgoing(round, bytearray(frame.numpy()), frozenset(targets.tolist())))
        self._sent_before.sort(key=lambda letter: letter.round)
        self.say(f"going on after round {self.done}")

    def _interrupted(self, *, whole: bool) -> Interrupted:
        """Save, unless the user was too impatient for the round to end: then the last checkpoint counts."""
        if whole and self.recorded >= 0:
            with suppress(KeyboardInterrupt), self.stop.held():
                if hasattr(self, "post"):
                    self._count_sent()
                self._save()
        return Interrupted(
            f"interrupted after round {self.done} of {self.experiment.rounds}; go on with: epidemic node {self.identity.folder}"
        )


def _secret_streams() -> Streams:
    """Randomness that nobody else can know."""
    return Streams(int.from_bytes(secrets.token_bytes(7), "little"))


def _listed(places: list[int]) -> str:
    return (
        ("node " if len(places) == 1 else "nodes ")
        + ", ".join(map(str, places[:12]))
        + (", ..." if len(places) > 12 else "")
    )
