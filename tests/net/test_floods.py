"""A certified member floods one node of a running cluster: it is paused, closed and said once, and everybody trains every round."""

import time
from contextlib import closing

import msgspec
import numpy as np
import psutil_free as memory
import pytest
from test_security import WHAT, Member
from zenoh.handlers import Callback

import epidemic as ep
from epidemic.clock import CloseAdaptive
from epidemic.deploy.addresses import free_addresses

FLOODED = msgspec.structs.replace(WHAT, rounds=3000, network=ep.Network(close=CloseAdaptive(deadline=5.0)))
SAID = "node 3 sends more than any honest node"


@pytest.fixture
def victims(deploy):
    """Three nodes that learn, and the fourth, which is the attacker."""
    there = deploy(FLOODED, hosts=free_addresses(3))
    there.start(there.folders[:3])
    there.until_round(20, range(3))
    with closing(Member(there, FLOODED)) as member:
        end = time.monotonic() + 60
        while member.transport.links() < 3:
            assert time.monotonic() < end
            time.sleep(0.05)
        yield there, member


def survived(there, weight):
    """Everybody trains every round to the end; the victim has said once that it was flooded, and the others nothing."""
    process = there.cluster.children[0].process.pid
    assert memory.resident(process) - weight < 60e6
    there.finish(300)
    assert there.cluster.problems() == {}
    for node_id in range(3):
        node = there.node(node_id)
        assert sum(node["in_degree"].values()) + node["jumped"] == FLOODED.rounds
        assert sum(SAID in line for line in there.log(node_id)) == (node_id == 0)
        assert ("flood" in node["refusals"]) == (node_id == 0)
    return there.node(0)


def until_closed(there, member, flood):
    """Flood until the victim has closed the connection; how much that took."""
    sent, end = 0, time.monotonic() + 120
    while member.transport.links() >= 3:
        assert time.monotonic() < end
        for _ in range(500):
            flood(sent)
            sent += 1
    return sent


def test_greetings(victims):
    there, member = victims
    weight = memory.resident(there.cluster.children[0].process.pid)
    key = f"epidemic/{member.identity.cluster}/ask/handshake/0/3"
    words = [member.handshake(round=i, start=FLOODED.rounds) for i in range(50)]
    session = member.transport._lines.main.session

    def greet(i):
        session.get(key, Callback(lambda _: None, indirect=False), payload=words[i % 50], timeout=1.0)

    sent = until_closed(there, member, greet)
    assert there.statuses()[0].refusals["flood"] >= 20  # those that it owed when it was closed
    assert sent >= 120
    survived(there, weight)


def test_old_messages(victims):
    there, member = victims
    member.introduce()
    weight = memory.resident(there.cluster.children[0].process.pid)
    now = there.statuses()[0].round
    frames = [
        member.message(view.round, view.digest) for view in member.views(range(now, now + 8)) if 0 in view.targets
    ]
    sent = until_closed(there, member, lambda i: member.send(0, frames[i % len(frames)]))
    found = there.statuses()[0]
    repeated = found.messages["duplicate"]
    assert repeated >= 10_000 - 200
    assert found.refusals["flood"] >= 1000
    assert sent >= repeated + found.refusals["flood"] - 1000  # those of honest nodes, which ask again now and then
    survived(there, weight)


def test_bad_frames(victims):
    there, member = victims
    good, rng = member.message(10, bytes(8)), np.random.default_rng(2)

    def bad(i):
        if i % 3 == 0:
            return rng.bytes(int(rng.integers(0, 400)))
        if i % 3 == 1:
            frame = bytearray(good[: int(rng.integers(1, len(good)))])
            frame[int(rng.integers(len(frame)))] ^= 0xFF
            return bytes(frame)
        return good + bytes(int(rng.integers(1, 5000))) if i % 100 == 2 else good[:300]  # some are oversized

    different = [bad(i) for i in range(3000)]  # making them takes longer than sending them
    weight = memory.resident(there.cluster.children[0].process.pid)
    until_closed(there, member, lambda i: member.send(0, different[i % 3000]))
    refused = there.statuses()[0].refusals
    assert sum(refused.values()) >= 11_000  # all that came before the connection was closed
    assert refused["oversized"] >= 30
    survived(there, weight)


def test_messages_with_wrong_signatures_close_a_connection_soon(victims):
    there, member = victims
    member.introduce()
    weight = memory.resident(there.cluster.children[0].process.pid)
    wrong = bytearray(member.message(there.statuses()[0].round, bytes(8)))
    wrong[-1] ^= 1

    def forge(i):
        now = there.experiment.rounds - 1 - i % 3  # far away: a few a second are looked at
        member.send(0, bytes(wrong) if i % 2 else member.message(now, bytes(8))[:-1] + b"\1")

    until_closed(there, member, forge)
    assert 0 < there.statuses()[0].refusals["wrong-signature"] <= 150  # each costs as much as a hundred messages
    survived(there, weight)
