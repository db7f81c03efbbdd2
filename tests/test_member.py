"""A deployed node computes what the simulator computes: it replays the golden transcript, letter by letter."""

import json

import msgspec
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from epidemic.net.mailbox import Mailbox
from epidemic.net.member import Member, raw_bytes

from epidemic.experiment import Network, Runtime
from epidemic.host.setup import make_learner, prepare
from epidemic.net.wire import HEADER_BYTES, Format
from epidemic.rng import Streams
from epidemic.workers import Workers
from test_transcript import EXPERIMENTS, GOLDEN, projections


def members(experiment):
    experiment = msgspec.structs.replace(experiment, runtime=Runtime(strategy="per-node"))  # each hosts a single model
    workers = Workers(1)
    data = experiment.load_data()
    found = []
    for place in range(experiment.nodes):
        setup = prepare(experiment, experiment.seeds[0], data, place)
        found.append(Member(setup, make_learner(setup, workers)[0], workers, place))
    return found


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_deployed_nodes_replay_the_golden_transcript(name):
    """Each node hosts itself alone; letters go through frames and mailboxes, shuffled and repeated.

    The network loses and redirects what the transcript says was not heard, and keeps down who is crashed there.
    """
    experiment, golden = EXPERIMENTS[name], json.loads((GOLDEN / f"{name}.json").read_text())
    nodes = members(experiment)
    keys = [Ed25519PrivateKey.generate() for _ in nodes]
    format = Format(bytes(16), nodes[0].columns)
    boxes = [Mailbox() for _ in nodes]
    shuffle = Streams(1)("test")
    sent = np.zeros(len(nodes), dtype=int)
    for node in nodes:
        np.testing.assert_allclose(projections(node.state["x"]), golden["initial"], atol=1e-6)
    for t, then in enumerate(golden["rounds"]):
        faults = experiment.faults
        alive = faults.alive(experiment.nodes, t, nodes[0].setup.streams)
        for taker, donor in np.transpose(faults.adoptions(experiment.nodes, t, nodes[0].setup.streams)).tolist():
            frame = format.seal(t, donor, bytes(8), {"x": raw_bytes(nodes[donor].state["x"][0])}, keys[donor])
            sent[donor] += len(frame)
            nodes[taker].adopt(format.open(bytes(frame), lambda i: keys[i].public_key()).tensors)
        messages, frames, turns = {}, {}, {}
        for i in np.flatnonzero(alive).tolist():
            node, turn = nodes[i], nodes[i].turn(t)
            assert turn.digest.hex() == then["digest"]
            assert node.setup.batches.index(node.setup.streams, t).tolist() == [then["batches"][i]]
            messages[i], _ = node.emit(t)
            tensors = {k: raw_bytes(v[0]) for k, v in messages[i].items()}
            frames[i], turns[i] = bytes(format.seal(t, i, turn.digest, tensors, keys[i])), turn
        flying = [(i, j) for j, heard in enumerate(then["heard"]) for i in heard]
        sent[: len(nodes)] += [len(frames[i]) * then["models_sent"][i] if i in frames else 0 for i in range(len(nodes))]
        for i in np.flatnonzero(alive).tolist():
            boxes[i].open(t, None)  # the transcript's cap redirects letters
        for at in shuffle.permutation(2 * len(flying)):
            i, j = flying[at % len(flying)]
            letter = format.open(frames[i], lambda place: keys[place].public_key())
            boxes[j].put(letter.round, letter.sender, letter)
        for i in np.flatnonzero(alive).tolist():
            letters = boxes[i].take()
            assert list(letters) == then["heard"][i]
            nodes[i].absorb(turns[i], messages[i], {s: letter.tensors for s, letter in letters.items()})
        models = torch.cat([node.state["x"] for node in nodes])
        np.testing.assert_allclose(projections(models), then["models"], atol=1e-5)
        assert sum(box.tally["duplicate"] for box in boxes) >= len(flying)
    assert int(sent.max()) == golden["bytes"]["model"] + golden["bytes"]["header"]
    assert format.frame_bytes == HEADER_BYTES + nodes[0].state["x"].numel() * 4


@pytest.mark.parametrize("name", ["el-local", "el-oracle"])
def test_a_node_expects_exactly_those_who_send_to_it(name):
    nodes = members(EXPERIMENTS[name])
    for t in range(5):
        turns = [node.turn(t) for node in nodes]
        for j, turn in enumerate(turns):
            assert turn.expected.tolist() == [i for i, other in enumerate(turns) if j in other.targets]


def test_with_a_private_coin_nobody_knows_the_targets_but_their_law_is_the_same():
    node = members(EXPERIMENTS["el-local"])[3]
    drawn = [node.turn(t, Streams(12345)) for t in range(600)]
    assert all(turn.expected is None and turn.intended is None and turn.digest == bytes(8) for turn in drawn)
    counts = np.bincount(np.concatenate([turn.targets for turn in drawn]), minlength=7)
    assert counts[3] == 0
    assert all(len(set(turn.targets.tolist())) == 2 for turn in drawn)
    mean, sd = 600 * 2 / 6, (600 * (1 / 3) * (2 / 3)) ** 0.5
    assert (abs(np.delete(counts, 3) - mean) < 5 * sd).all()
    assert [t.targets.tolist() for t in drawn] != [node.turn(t).targets.tolist() for t in range(600)]


def test_own_data_is_all_used_by_the_node_and_refused_by_the_simulator():
    import msgspec

    import epidemic as ep

    experiment = msgspec.structs.replace(EXPERIMENTS["el-local"], network=Network(data="own"))
    setup = prepare(experiment, 1, None, place=4)
    assert [len(part) for part in setup.parts] == [len(setup.data.train)]
    assert setup.batches.index(setup.streams, 0).shape == (1, 2, 3)
    with pytest.raises(ep.BadInput, match='"own" is for deployed nodes'):
        ep.simulate(experiment)
