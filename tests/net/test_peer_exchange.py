"""Real processes of which each knows a part of the others (topology.view): they meet, learn, survive, and are not misled."""

import re
import time
from collections import Counter

import msgspec
import numpy as np
import pytest

import epidemic as ep
from conftest import experiment
from epidemic.clock import CloseAdaptive
from epidemic.core.errors import BadInput
from epidemic.deploy.addresses import read_addresses
from epidemic.deploy.agreement import agreement_of
from epidemic.deploy.contacts import Book, seal_contact
from epidemic.deploy.folders import make_cluster
from epidemic.deploy.handshake import Handshake, seal_handshakes
from epidemic.deploy.keys import Identity
from epidemic.deploy.peer_exchange import TOPIC
from epidemic.deploy.transport import Transport
from epidemic.runtime.setup import prepare

PRIVATE = ep.Network(coin="private", close=CloseAdaptive(deadline=2.0), patience=30.0)


def views(service, **changed):
    common = {
        "nodes": 10,
        "rounds": 60,
        "topology": ep.ELLocal(2, view=service),
        "network": PRIVATE,
        "data": ep.Digits(),
        "model": ep.Logistic(),
        "algorithm": ep.LocalSGD(lr=0.05, local_steps=10),
    }
    return experiment(**{**common, **changed})


@pytest.mark.parametrize(
    "service", [ep.Cyclon(size=3, shuffle=2), ep.Jelasity(size=4), ep.Spray(a=2)], ids=["cyclon", "jelasity", "spray"]
)
def test_nodes_that_know_few_others_learn_like_the_simulated_ones(deploy, service):
    what = views(service)
    there = deploy(what)
    told = [read_addresses(folder / "node.toml") for folder in there.folders]
    assert all(len(one.connect) <= 6 for one in told)  # nobody is told of everybody
    there.start().finish()
    assert there.cluster.problems() == {}
    simulated = ep.simulate(what).seeds[0].summary.final_accuracy
    final = [there.summary(i)["final_accuracy"]["mean"] for i in range(10)]
    assert simulated.mean > 0.8
    assert abs(np.mean(final) - simulated.mean) < 0.08
    for i in range(10):
        node = there.node(i)
        assert node["refusals"] == {}
        assert node["bytes"]["control"] > 1000  # exchanges, with their signatures
        assert node["messages"]["counted"] > 20


def test_the_dead_are_forgotten_and_who_comes_back_goes_on_with_its_view(deploy):
    saving = ep.Checkpoint(rounds=5)
    what = views(ep.Cyclon(size=4, shuffle=2), rounds=130, eval=ep.Eval(every=130, samples=100), checkpoint=saving)
    there = deploy(what).start()
    there.until_round(12, range(10))
    dead = (3, 7, 8)
    for node_id in dead:
        there.cluster.children[node_id].process.kill()
    there.until(lambda found: all(found[p].round >= 60 for p in range(10) if p not in dead and p in found), 90)
    there.start([there.folders[3]])
    again = there.until(lambda found: 3 in found and found[3].round > 60, 60)
    assert again[3].known >= 1
    assert there.cluster.wait(120)
    assert (there.run(3) / "summary.json").exists()
    assert any("resuming after round" in line for line in there.log(3))


def test_a_member_cannot_mislead_a_node_by_exchanges(deploy, tmp_path):
    """Certified, and malicious: forged contacts, floods, nonsense. Nobody is connected to a place that did not sign where it is."""
    what = views(ep.Cyclon(size=3, shuffle=2), nodes=6, rounds=300, eval=ep.Eval(every=300, samples=100))
    there = deploy(what)
    liar = Identity.load(there.folders[5])
    there.start(there.folders[:5])
    there.until_round(5)
    victim = read_addresses(there.folders[0] / "node.toml").listen
    there.statuses()
    transport = Transport(liar, read_addresses(there.folders[5] / "node.toml"), nodes=6, knows_all=False)
    try:
        seen = []
        transport.watch("alive", lambda node_id, token, shown: seen.append(node_id))
        transport.connect("victim", victim)
        end = time.monotonic() + 20
        while 0 not in seen and time.monotonic() < end:
            time.sleep(0.05)
        assert 0 in seen
        book = Book(liar, seal_contact(liar, "127.0.0.1:9", 1), 6)
        answers = []
        forged = msgspec.msgpack.encode([5, 0, [[1, 0]], [b"nobody"]])
        for raw in (b"", b"\xc1" * 100, forged, book.seal(bytes(16), 5, 0, ((5, 0),), liar.key), b"\0" * 2**17):
            for _ in range(20):
                transport.ask(TOPIC, 0, raw, 5.0, answers.append, 2**18)
        end = time.monotonic() + 20
        while len(answers) < 100 and time.monotonic() < end:
            time.sleep(0.05)
        assert set(answers) <= {b"", None}  # nobody was answered anything
        run, handshakes = member(what, liar, transport, there)
        for contact, raw in handshakes:
            transport.ask("handshake", 0, raw, 5.0, lambda _: None, 2**20)
            time.sleep(0.3)
            book = Book(liar, contact, 6)
            for _ in range(30):
                said = book.seal(run, 5, 0, ((5, 2**31), (5, 0)), liar.key)
                transport.ask(TOPIC, 0, said, 5.0, answers.append, 2**18)
        time.sleep(6)  # longer than connections linger
    finally:
        transport.close()
    found = there.until_round(30, range(5), 90)
    assert found[0].refusals["malformed"] > 0
    assert found[0].known <= 3
    assert found[0].alive >= 3  # whoever says to be at others' addresses cuts nobody off
    there.cluster.stop()


def test_one_liar_that_floods_exchanges_isolates_nobody(deploy):
    """Certified, and connected to everybody: all that it says in exchanges is itself. Every honest node goes on knowing an honest one."""
    service = ep.Spray(a=2)
    what = views(service, nodes=8, rounds=5000, eval=ep.Eval(every=5000, samples=100))
    there = deploy(what)
    liar, addresses = Identity.load(there.folders[7]), read_addresses(there.folders[7] / "node.toml")
    there.start(there.folders[:7])
    transport = Transport(liar, addresses, nodes=8, knows_all=False)
    try:
        book = Book(liar, seal_contact(liar, addresses.listen, int(time.time())), 8)
        agreement = agreement_of(prepare(what, 1, what.load_data(), [7]))
        handshake = Handshake(7, 7, transport.token, liar.encoded, agreement.run, 0, 0, False, False, book.own)
        entries = ((7, 0),) * service.sampler(8, 7, lambda _: 0).most
        answered = Counter()

        def flood(node_id):
            return book.seal(agreement.run, 7, node_id, entries, liar.key)

        def answer(question, respond):
            respond(flood(msgspec.msgpack.decode(msgspec.msgpack.decode(question)[0])[1]))

        transport.watch("alive", lambda node_id, token, shown: None)
        transport.answer(TOPIC, answer)
        transport.appear("alive", 7)
        for i in range(7):
            transport.connect(f"victim {i}", read_addresses(there.folders[i] / "node.toml").listen)
        end = time.monotonic() + 60
        while len(answered) < 7 or min(answered.values()) < 3:
            assert time.monotonic() < end, answered
            for i in range(7):
                if not answered[i]:
                    transport.ask(
                        "handshake", i, seal_handshakes([(handshake, liar)], agreement), 2.0, lambda _: None, 2**20
                    )
                transport.ask(TOPIC, i, flood(i), 2.0, lambda raw, i=i: answered.update([i] if raw else []), 2**18)
            time.sleep(0.4)  # how often a liar asks
        found = there.until(lambda found: set(range(7)) <= found.keys())
    finally:
        transport.close()
    assert all(found[i].known >= 2 for i in range(7)), {i: found[i].known for i in range(7)}  # one of them is honest
    assert any(found[i].refusals.get("own-entries", 0) > 0 for i in range(7))
    there.cluster.stop()


def member(what, liar, transport, there):
    """What names the run, and hellos in order, by which a member says to be where others are, one address after the other."""
    agreement = agreement_of(prepare(what, 1, what.load_data(), [liar.node_id]))
    transport.appear("alive", liar.node_id)
    found = []
    for i, node_id in enumerate((1, 2, 3, 4)):
        contact = seal_contact(liar, read_addresses(there.folders[node_id] / "node.toml").listen, int(time.time()) + i)
        handshake = Handshake(5, 5, transport.token, liar.encoded, agreement.run, 0, 0, False, False, contact)
        found.append((contact, seal_handshakes([(handshake, liar)], agreement)))
    return agreement.run, found


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"network": ep.Network()}, "network.coin=private"),
        ({"topology": ep.ELLocal(2, view=ep.Jelasity(size=300)), "nodes": 400}, "use smaller views"),
    ],
    ids=["coin", "size"],
)
def test_what_cannot_be_deployed_with_views_is_said_before_anything_is_made(tmp_path, changed, said):
    with pytest.raises(BadInput, match=re.escape(said)):
        make_cluster(views(ep.Cyclon(size=3, shuffle=2), **changed), ["127.0.0.1:1"], tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_views_and_a_relay_are_refused(tmp_path):
    with pytest.raises(BadInput, match="goes through a relay"):
        make_cluster(views(ep.Cyclon(size=3, shuffle=2)), ["h:1"], tmp_path / "made", relay="h:2")


def test_several_nodes_with_views_in_one_process_are_refused(deploy):
    from epidemic.deploy.node import run_node

    there = deploy(views(ep.Cyclon(size=3, shuffle=2)))
    with pytest.raises(BadInput, match="cannot share a process"):
        run_node(there.folders[:2])
