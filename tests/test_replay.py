"""Deployed nodes compute what the simulator computes: populations of one, two or three replay the golden transcript, message by message."""

import json

import msgspec
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import epidemic as ep
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers
from epidemic.deploy.learning import rows_of
from epidemic.deploy.outbox import raw_bytes
from epidemic.deploy.wire import STATE_TRANSFER, MessageFormat
from epidemic.experiment import Network
from epidemic.protocol.mailbox import Mailbox
from epidemic.record import HEADER_BYTES
from epidemic.runtime.inbox import MessageInbox, Received
from epidemic.runtime.plan import intended_graph, shares, view_of
from epidemic.runtime.population import Population
from epidemic.runtime.setup import make_learner, prepare
from test_transcript import EXPERIMENTS, GOLDEN, projections


def populations(experiment, size=1):
    """All nodes of an experiment, in populations of so many (the last may be smaller)."""
    workers, data = Workers(1), experiment.load_data()
    found = []
    for first in range(0, experiment.nodes, size):
        setup = prepare(experiment, experiment.seeds[0], data, range(first, min(first + size, experiment.nodes)))
        found.append(Population(setup, make_learner(setup, workers)[0]))
    return found


def views(experiment, round, streams=None):
    """The round as each node sees it."""
    graph = intended_graph(experiment, Streams(experiment.seeds[0]) if streams is None else streams, round)
    return [view_of(graph, round, node_id) for node_id in range(experiment.nodes)]


class Replay:
    """The nodes of a run with a wire between them; each has its key and its mailbox."""

    def __init__(self, experiment, size):
        self.experiment = experiment
        self.populations = populations(experiment, size)
        self.where = {int(i): (p, at) for p in self.populations for at, i in enumerate(p.ids)}
        self.columns = self.populations[0].columns
        self.keys = [Ed25519PrivateKey.generate() for _ in self.where]
        self.coder = self.populations[0].coder
        self.format = MessageFormat.in_rounds(
            bytes(16), self.columns, largest=experiment.network.largest, coder=self.coder
        )
        self.boxes = [Mailbox() for _ in self.where]
        self.workers = Workers(1)
        self.sent = np.zeros(len(self.where), dtype=int)

    def sealed(self, round, node_id, graph, row, kind=""):
        raw = {name: raw_bytes(numbers) for name, numbers in row.items()}
        return bytes(self.format.seal(round, node_id, raw, self.keys[node_id], graph=graph, kind=kind))

    def opened(self, frame):
        return self.format.open(frame, lambda node_id: self.keys[node_id].public_key())

    def adopt(self, round, taker, donor):
        """One takes the model of another, sealed and opened."""
        giver, at = self.where[donor]
        given = {name: rows[0] for name, rows in giver.give(np.array([at])).items()}
        frame = self.sealed(round, donor, b"", given, STATE_TRANSFER)
        self.sent[donor] += len(frame)
        rows = rows_of(self.opened(frame), self.columns)
        population, at = self.where[taker]
        population.adopt(np.array([at]), {name: row[None].clone() for name, row in rows.items()})

    def local_update(self, round, seen, alive):
        """Those alive train: what each of them sends."""
        messages = {}
        for population in self.populations:
            who = np.flatnonzero(alive[population.ids])
            if len(who):
                degrees = np.array([len(seen[node_id].targets) for node_id in population.ids[who]])
                message, _ = population.local_update(round, degrees, None, who)
                message = {name: rows.clone() for name, rows in message.items()}
                for i, node_id in enumerate(population.ids[who].tolist()):
                    messages[node_id] = {name: rows[i : i + 1] for name, rows in message.items()}
        return messages

    def aggregate(self, seen, messages, received):
        """Those who trained take what came."""
        for population in self.populations:
            node_ids = [node_id for node_id in population.ids.tolist() if node_id in messages]
            if node_ids:
                inputs = [
                    Received(
                        list(received[node_id]),
                        [rows_of(one_message, self.columns, self.coder) for one_message in received[node_id].values()],
                        shares(self.experiment, seen[node_id], node_id, list(received[node_id])),
                    )
                    for node_id in node_ids
                ]
                own = {
                    name: torch.cat([messages[node_id][name] for node_id in node_ids]) for name in messages[node_ids[0]]
                }
                who = np.array([self.where[node_id][1] for node_id in node_ids])
                population.aggregate(MessageInbox(own, inputs, self.workers, self.coder), who)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_deployed_nodes_replay_the_golden_transcript(name, size):
    """Processes host one node or a few; messages go through frames and mailboxes, shuffled and repeated.

    The network loses and redirects what the transcript says was not heard, and keeps down who is crashed there.
    """
    experiment, golden = EXPERIMENTS[name], json.loads((GOLDEN / f"{name}.json").read_text())
    replay = Replay(experiment, size)
    nodes, faults, streams = experiment.nodes, experiment.faults, Streams(experiment.seeds[0])
    shuffle = Streams(1)("test")
    for population in replay.populations:
        np.testing.assert_allclose(projections(population.models), golden["initial"] * len(population), atol=1e-6)
    for t, then in enumerate(golden["rounds"]):
        alive = faults.alive(nodes, t, streams)
        for taker, donor in np.transpose(faults.adoptions(nodes, t, streams)).tolist():
            replay.adopt(t, taker, donor)
        seen = views(experiment, t)
        assert {view.digest.hex() for view in seen} == {then["digest"]}
        for population in replay.populations:
            assert population.batches(t).tolist() == [then["batches"][i] for i in population.ids]
        messages = replay.local_update(t, seen, alive)
        frames = {
            i: replay.sealed(t, i, seen[i].digest, {name: rows[0] for name, rows in message.items()})
            for i, message in messages.items()
        }
        flying = [(i, j) for j, heard in enumerate(then["heard"]) for i in heard]
        replay.sent += [len(frames[i]) * then["models_sent"][i] if i in frames else 0 for i in range(nodes)]
        for i in frames:
            replay.boxes[i].open(t, None)  # the transcript's cap redirects messages
        for at in shuffle.permutation(2 * len(flying)):
            i, j = flying[at % len(flying)]
            one_message = replay.opened(frames[i])
            replay.boxes[j].put(one_message.counter, one_message.sender, one_message)
        received = {i: replay.boxes[i].take() for i in frames}
        assert all(list(received[i]) == then["heard"][i] for i in frames)
        for i, heard in received.items():
            weights = shares(experiment, seen[i], i, list(heard))
            np.testing.assert_allclose(weights, np.array(then["weights"][i])[[i, *heard]], atol=1e-12)
        replay.aggregate(seen, messages, received)
        models = torch.cat([population.models for population in replay.populations])
        np.testing.assert_allclose(projections(models), then["models"], atol=1e-5)
        assert sum(box.tally["duplicate"] for box in replay.boxes) >= len(flying)
    assert int(replay.sent.max()) == golden["bytes"]["model"] + golden["bytes"]["header"]
    assert replay.format.frame_bytes == HEADER_BYTES + models.shape[1] * 4


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "algorithm",
    [
        ep.PushSum(lr=0.1),
        ep.GradientTracking(lr=0.1, local_steps=2),
        ep.PushPull(lr=0.1),
        ep.ExactDiffusion(lr=0.1),
        ep.QGMomentum(lr=0.1),
        ep.LocalSGD(lr=0.01, optimizer="adamw", weight_decay=0.1, clip=1.0, schedule=ep.CosineDecay(rounds=5, warmup=2)),
    ],
    ids=lambda algorithm: algorithm.called,
)  # fmt: skip
def test_every_algorithm_is_that_of_the_simulator_message_by_message(algorithm, size):
    """Whatever its columns are; only what is declared goes through the frames."""
    topology = ep.ELOracle(4) if algorithm.balanced else ep.ELLocal(4)
    experiment = ep.Experiment(
        nodes=7, rounds=5, topology=topology, data=ep.Digits(), partition=ep.IID(), model=ep.Logistic(), algorithm=algorithm,
        runtime=ep.Runtime(strategy="per-node", threads=1), eval=ep.Eval(every=5, samples=10),
    )  # fmt: skip
    replay = Replay(experiment, size)
    for t in range(5):
        seen = views(experiment, t)
        messages = replay.local_update(t, seen, np.ones(7, dtype=bool))
        frames = {
            i: replay.sealed(t, i, seen[i].digest, {n: rows[0] for n, rows in m.items()}) for i, m in messages.items()
        }
        received = {j: {i: replay.opened(frames[i]) for i in sorted(seen[j].expected)} for j in range(7)}
        replay.aggregate(seen, messages, received)
    models = torch.cat([population.models for population in replay.populations])
    torch.testing.assert_close(models, ep.simulate(experiment).models.rows, rtol=0, atol=1e-6)
    assert replay.format.frame_bytes == HEADER_BYTES + replay.populations[0].message_bytes


@pytest.mark.parametrize("name", ["el-local", "el-oracle"])
def test_a_node_expects_exactly_those_who_send_to_it(name):
    for t in range(5):
        seen = views(EXPERIMENTS[name], t)
        for j, view in enumerate(seen):
            assert view.expected == {i for i, other in enumerate(seen) if j in other.targets}


def test_with_a_private_coin_nobody_knows_the_targets_but_their_law_is_the_same():
    experiment = EXPERIMENTS["el-local"]

    def drawn(streams, private):
        return [view_of(intended_graph(experiment, streams, t), t, 3, private=private) for t in range(600)]

    seen = drawn(Streams(12345), True)
    assert all(view.expected is None and view.intended is None and view.digest == bytes(8) for view in seen)
    counts = np.bincount(np.concatenate([view.targets for view in seen]), minlength=7)
    assert counts[3] == 0
    assert all(len(set(view.targets)) == 2 for view in seen)
    mean, sd = 600 * 2 / 6, (600 * (1 / 3) * (2 / 3)) ** 0.5
    assert (abs(np.delete(counts, 3) - mean) < 5 * sd).all()
    assert [view.targets for view in seen] != [view.targets for view in drawn(Streams(1), False)]


def test_own_data_is_all_used_by_the_node_and_refused_where_it_is_not_the_only_one():
    experiment = msgspec.structs.replace(EXPERIMENTS["el-local"], network=Network(data="own"))
    setup = prepare(experiment, 1, None, [4])
    assert [len(part) for part in setup.parts] == [len(setup.data.train)]
    assert setup.batches.index(setup.streams, 0).shape == (1, 2, 3)
    with pytest.raises(ep.BadInput, match='"own" is for deployed nodes'):
        ep.simulate(experiment)
    with pytest.raises(ep.BadInput, match="each in a process of its own"):
        prepare(experiment, 1, None, [4, 5])
