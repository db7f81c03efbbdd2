"""A committed coin between real processes: who floods the others is counted no more often than it was drawn."""

from contextlib import closing

import numpy as np
import pytest
from test_security import Member, ask

import epidemic as ep
from conftest import experiment
from epidemic.clock import CloseAdaptive, CloseQuorum
from epidemic.deploy.secrets import KEPT_IN
from epidemic.deploy.wire import MessageFormat
from epidemic.protocol.commitment import LINK_BYTES, Chain
from epidemic.runtime.plan import committed_targets

CLOSE = {"adaptive": CloseAdaptive(deadline=2.0), "quorum": CloseQuorum(q=0.5, deadline=2.0)}


def committed(**changed):
    network = ep.Network(coin="committed", close=CLOSE[changed.pop("close", "adaptive")])
    return experiment(**{"nodes": 6, "rounds": 40, "topology": ep.ELLocal(3), "network": network, **changed})


def secrets(there, node_ids):
    return [(there.folders[i] / KEPT_IN).read_bytes() for i in node_ids]


@pytest.mark.parametrize("close", ["adaptive", "quorum"])
def test_nodes_learn_without_knowing_whom_to_expect_and_check_who_sends(deploy, close):
    what = committed(close=close)
    there = deploy(what).start(processes=3).finish()  # two nodes in each process: messages inside it are checked alike
    assert there.cluster.problems() == {}
    nodes = [there.node(i) for i in range(6)]
    assert [node["bytes"]["control"] for node in nodes] == [0] * 6
    sent = [node["bytes"]["header"] // 256 for node in nodes]  # with the link a header is as long as without
    took_part = [sum(node["in_degree"].values()) for node in nodes]
    assert sent == [3 * rounds for rounds in took_part]
    assert sum(took_part) > 0.8 * 6 * 40
    assert sum(node["messages"]["counted"] for node in nodes) > 0.5 * sum(sent)
    assert [node.get("refusals", {}) for node in nodes] == [{}] * 6
    assert len(set(secrets(there, range(6)))) == 6
    assert all((there.folders[i] / KEPT_IN).stat().st_mode & 0o777 == 0o600 for i in range(6))
    simulated = ep.simulate(what).seeds[0].summary.final_accuracy.mean
    assert abs(np.mean([there.summary(i)["final_accuracy"]["mean"] for i in range(6)]) - simulated) < 0.06


def test_a_node_that_is_killed_comes_back_with_the_chain_that_it_committed_to(deploy):
    what = committed(nodes=4, rounds=100_000, topology=ep.ELLocal(2))
    there = deploy(what).start()
    there.until_round(10, range(4))
    before = secrets(there, range(4))
    there.cluster.kill(2)
    there.until(lambda found: found[0].alive == 3, 30)
    there.cluster.restart(2)
    found = there.until(lambda found: 2 in found and all(s.alive == 4 for s in found.values()) and len(found) == 4, 60)
    counted = {node_id: status.messages["counted"] for node_id, status in found.items() if "counted" in status.messages}
    here = max(status.round for status in found.values())
    found = there.until_round(here + 15, range(4))
    assert all(found[node_id].messages["counted"] > before for node_id, before in counted.items())
    assert all(status.refusals == {} for status in found.values())
    assert secrets(there, range(4)) == before


class Flooder(Member):
    """A certified member that sends to everybody in every round, as early as it can."""

    def __init__(self, there, what, node_id):
        super().__init__(there, what, node_id)
        column = self.format.columns
        self.format = MessageFormat.in_rounds(self.agreement.run, column, graph_bytes=LINK_BYTES)
        self.chain = Chain(bytes([node_id]) * 32, self.agreement.run, node_id, what.rounds)
        self.sent, self.drawn = set(), 0
        self.transport.answer("handshake", lambda _, respond: respond(self.handshake()))
        self.transport.appear("alive", node_id)

    def handshake(self, **changed):
        return super().handshake(**{"start": 0, "round": -1, "commitment": self.chain.commitment, **changed})

    def flood(self, now, victims):
        for round in range(now, min(now + 9, self.what.rounds)):
            link = self.chain.link(round)
            targets = committed_targets(self.what, self.node_id, round, link)
            frame = None
            for victim in victims:
                if (round, victim) not in self.sent:
                    frame = frame or self.message(round, link)
                    self.sent.add((round, victim))
                    self.drawn += victim in targets
                    self.send(victim, frame)


def test_two_of_eight_that_flood_everybody_ahead_of_time_get_no_more_than_they_drew(deploy):
    from epidemic.deploy.addresses import free_addresses

    honest, rounds, s = range(6), 60, 3
    what = committed(nodes=8, rounds=rounds, topology=ep.ELLocal(s))
    there = deploy(what, hosts=free_addresses(6))
    there.start(there.folders[:6])
    with closing(Flooder(there, what, 6)) as one, closing(Flooder(there, what, 7)) as two:
        there.until(lambda found: all(i in found and found[i].alive == 8 for i in honest))
        for liar in (one, two):
            liar.introduce(honest)
        found = there.statuses()
        while not all(found[i].round >= rounds for i in honest if i in found):
            now = min(found[i].round for i in honest if i in found)
            for liar in (one, two):
                liar.flood(max(0, now), honest)
            found = there.until(lambda found, now=now: all(found[i].round > now for i in honest if i in found))
        there.finish()
    assert there.cluster.problems() == {}
    nodes = [there.node(i) for i in honest]
    trained = [sum(node["in_degree"].values()) for node in nodes]
    assert sum(trained) > 0.95 * 6 * rounds
    assert min(trained) > 0.9 * rounds
    drawn, sent = one.drawn + two.drawn, len(one.sent) + len(two.sent)
    assert drawn <= 2 * s * rounds  # nobody can send to more than s
    counted = sum(node["messages"]["counted"] for node in nodes)
    refused = sum(node["refusals"].get("not-drawn", 0) for node in nodes)
    assert refused > 0.8 * (sent - drawn)
    by_honest = sum(node["bytes"]["header"] // 256 for node in nodes)  # all that they sent, to the liars as well
    assert counted <= by_honest + drawn
    assert abs(drawn - sent * s / 7) < 5 * (sent * s / 7 * (1 - s / 7)) ** 0.5  # a fair share of what they sent
    assert all("wrong-coin" not in node["refusals"] for node in nodes)
    assert all(sum("has not drawn this node" in line for line in there.log(i)) == 1 for i in honest)


def test_who_shows_a_wrong_link_or_commits_anew_is_refused_and_said_once(deploy):
    what = committed(nodes=4, rounds=100_000, topology=ep.ELLocal(2))
    from epidemic.deploy.addresses import free_addresses

    there = deploy(what, hosts=free_addresses(3))
    there.start(there.folders[:3])
    there.until_round(3, range(3))
    with closing(Flooder(there, what, 3)) as liar:
        there.until(lambda found: all(i in found and found[i].alive == 4 for i in range(3)))
        liar.introduce()
        now = there.statuses()[0].round
        for i in range(5):
            liar.send(0, liar.message(now + 3 + i, bytes([i]) * 32))
        other = Chain(b"x" * 32, liar.agreement.run, 3, what.rounds)
        for _ in range(3):
            assert ask(liar.transport, "handshake", 0, liar.handshake(commitment=other.commitment, round=99_000))
        # the same in a frame of another run's form
        short = MessageFormat.in_rounds(liar.agreement.run, liar.format.columns)
        zeros = {"x": np.zeros(liar.format.body_bytes, np.uint8)}
        frame = bytes(short.seal(now, 3, zeros, liar.identity.key, graph=bytes(8)))
        liar.send(0, frame)
        found = there.until(lambda found: found[0].refusals.get("malformed", 0) == 1)
    assert found[0].refusals == {"wrong-coin": 5, "other-commitment": 3, "malformed": 1}
    there.until_round(found[0].round + 10, range(3))
    log = there.log(0)
    assert sum("its hash chain differs from the first one" in line for line in log) == 1
    assert sum("does not show the link" in line for line in log) == 1
    assert all(status.round < 50_000 for status in there.statuses().values())
