"""Who has no business here gets nowhere: shown with real sessions against running nodes."""

import datetime as dt
import shutil
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import closing

import msgspec
import numpy as np
import psutil_free as memory
import pytest
import zenoh
from epidemic.net.member import raw_bytes
from epidemic.net.peers import Hello, seal_hello

import epidemic as ep
from conftest import experiment
from epidemic.host.setup import prepare
from epidemic.net.access import configuration
from epidemic.net.addresses import Addresses, read_addresses
from epidemic.net.keys import Authority, Identity
from epidemic.net.terms import terms_of
from epidemic.net.transport import Transport
from epidemic.net.wire import Column, Format

WHAT = experiment(
    nodes=4,
    rounds=100_000,
    topology=ep.ELLocal(2),
    model=ep.Logistic(),
    algorithm=ep.LocalSGD(local_steps=1),
    eval=ep.Eval(every=1000, samples=100),
    network=ep.Network(deadline=5.0),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Three nodes of four that run until they are stopped."""
    from conftest import Deployment
    from epidemic.net.addresses import free_addresses

    there = Deployment(WHAT, tmp_path_factory.mktemp("security") / "cluster", hosts=free_addresses(3))
    there.start(there.folders[:3])
    there.until_round(5, range(3))
    yield there
    there.close()


def addresses(there):
    return tuple(read_addresses(there.folders[i] / "node.toml").listen for i in range(3))


def raw_session(folder, connect, **changed):
    """A session as an attacker would open it, with whatever certificates a folder has."""
    identity = changed.pop("identity", None) or Identity.load(folder)
    config = configuration(
        identity,
        Addresses(None, connect),
        mode="client",
        nodes=4,
        largest=2**20,
        insecure=changed.pop("insecure", False),
    )
    config.insert_json5("access_control", "{enabled: false}")
    config.insert_json5("connect/timeout_ms", "2000")
    for key, value in changed.items():
        config.insert_json5(key.replace("__", "/"), value)
    return zenoh.open(config)


def forged(folder, **names):
    """An identity that does not check itself, as an attacker's software would not."""
    from epidemic.net import keys

    certificate = keys._read_certificate(folder / "node.pem")
    return Identity(
        folder,
        names.get("name", "node-3"),
        keys._read_key(folder / "node.key"),
        certificate,
        keys._read_certificate(folder / "authority.pem"),
        keys.Revocations(0, []),
    )


def answers(session, there):
    """What a session learns from the nodes."""
    cluster = Identity.load(there.folders[0]).cluster
    replies = session.get(f"epidemic/{cluster}/ask/status/*", timeout=1.5)
    return [reply.ok for reply in replies if reply.ok is not None]


def test_a_member_is_answered(running):
    with raw_session(running.root / "observer", addresses(running)[:1]) as session:
        assert len(answers(session, running)) >= 1


def test_a_stranger_without_a_certificate_is_refused(running, tmp_path):
    folder = tmp_path / "stranger"
    shutil.copytree(running.root / "observer", folder)
    config = zenoh.Config()
    config.insert_json5("mode", '"client"')
    config.insert_json5("connect/endpoints", f'["tls/{addresses(running)[0]}"]')
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("transport/link/tls/root_ca_certificate", f'"{folder / "authority.pem"}"')
    config.insert_json5("transport/link/tls/verify_name_on_connect", "false")
    with pytest.raises(zenoh.ZError, match="Unable to connect"):
        zenoh.open(config)


def test_plaintext_is_refused(running):
    config = zenoh.Config()
    config.insert_json5("mode", '"client"')
    config.insert_json5("connect/endpoints", f'["tcp/{addresses(running)[0]}"]')
    config.insert_json5("scouting/multicast/enabled", "false")
    with pytest.raises(zenoh.ZError, match="Unable to connect"):
        zenoh.open(config)


def test_a_certificate_of_another_authority_is_refused(running, tmp_path):
    folder = Authority.create(tmp_path / "others").issue("node-3", [])
    with pytest.raises(zenoh.ZError, match="Unable to connect"):
        raw_session(folder, addresses(running)[:1])
    shutil.copy(
        running.root / "authority" / "authority.pem", folder / "authority.pem"
    )  # it trusts us, we do not trust it
    with pytest.raises(zenoh.ZError, match="Unable to connect"):
        raw_session(folder, addresses(running)[:1], identity=forged(folder))


def test_an_expired_certificate_is_refused(running, tmp_path, monkeypatch):
    from epidemic.net import keys

    copy = tmp_path / "root"
    shutil.copytree(running.root / "authority", copy / "authority")
    past = keys._now() - dt.timedelta(days=10)
    monkeypatch.setattr(keys, "_now", lambda: past)
    folder = Authority.load(copy).issue("node-3", [], days=1)
    monkeypatch.undo()
    with pytest.raises(ep.BadInput, match="expired on"):
        Identity.load(folder)
    with pytest.raises(zenoh.ZError, match="Unable to connect"):
        raw_session(folder, addresses(running)[:1], identity=forged(folder))


def test_a_member_cannot_listen_to_the_letters_of_others(running):
    """Node 3's certificate is good, but letters leave towards their receiver only."""
    cluster = Identity.load(running.folders[3]).cluster
    heard = []
    config = configuration(
        Identity.load(running.folders[3]),
        Addresses(None, addresses(running)),
        mode="peer",
        nodes=4,
        largest=2**20,
        insecure=False,
    )
    config.insert_json5("access_control", "{enabled: false}")
    with zenoh.open(config) as session:
        subscriber = session.declare_subscriber(
            f"epidemic/{cluster}/to/**", lambda sample: heard.append(str(sample.key_expr))
        )
        before = running.statuses()[0].round
        running.until_round(before + 20, [0])
        subscriber.undeclare()
    assert heard == []


def knock(there, folder, frames, place=0, sender=3, arrive=None):
    """Send frames to a node as letters; its refusals and letters before and after all were looked at."""
    before = there.statuses()[place]
    transport = Transport(Identity.load(folder), Addresses(None, addresses(there)), nodes=4, largest=2**20)
    with closing(transport):
        cluster = Identity.load(folder).cluster
        publisher = transport._session.declare_publisher(
            f"epidemic/{cluster}/to/{place}/{sender}", congestion_control=zenoh.CongestionControl.BLOCK
        )
        end = time.monotonic() + 10
        while not publisher.matching_status.matching:
            assert time.monotonic() < end
            time.sleep(0.01)
        count = 0
        for frame in frames:
            publisher.put(frame)
            count += 1
        if arrive is None:
            there.until(lambda found: found[place].refused - before.refused >= count, 60)
        else:
            running_on = there.statuses()[place].round + 20
            there.until_round(running_on, [place])
    after = there.statuses()[place]
    return Counter(after.refusals) - Counter(before.refusals), before, after


def ask(transport, topic, place, question, timeout=3.0):
    """What a place answers; None if it does not."""
    answer = Future()
    transport.ask(topic, place, question, timeout, answer.set_result, 2**20)
    return answer.result(timeout + 5)


def format_of(setup):
    return Format(terms_of(setup).run, (Column("x", tuple(setup.initial.shape), "float32"),))


def test_a_member_that_signs_as_somebody_else_is_refused(running):
    setup = prepare(WHAT, 1, None, 3)
    format, own = format_of(setup), Identity.load(running.folders[3])
    numbers = {"x": raw_bytes(setup.initial)}
    frames = [bytes(format.seal(10, 1, bytes(8), numbers, own.key)) for _ in range(5)]  # "from node 1", by node 3's key
    refused, _, _ = knock(running, running.folders[3], frames)
    assert refused == {"wrong-signature": 5}
    stranger = [bytes(format.seal(10, 3, bytes(8), numbers, own.key))]  # node 3 has not introduced itself
    refused, _, _ = knock(running, running.folders[3], stranger)
    assert refused == {"unknown-sender": 1}


def test_a_member_cannot_even_send_in_the_name_of_somebody_else(running):
    """Letters are taken from a link only for the sender whose certificate it has."""
    setup = prepare(WHAT, 1, None, 3)
    own = Identity.load(running.folders[3])
    frame = bytes(format_of(setup).seal(10, 1, bytes(8), {"x": raw_bytes(setup.initial)}, own.key))
    refused, _, _ = knock(running, running.folders[3], [frame] * 20, sender=1, arrive=0)
    assert refused == {}


def test_a_hello_with_a_certificate_of_another_place_is_refused(running):
    own = Identity.load(running.folders[3])
    terms = terms_of(prepare(WHAT, 1, None, 3))
    transport = Transport(own, Addresses(None, addresses(running)), nodes=4)
    with closing(transport):
        before = running.statuses()[0].refusals.get("wrong-signature", 0)
        hello = seal_hello(Hello(1, "0" * 16, own.encoded, terms, -1, 0), own)  # "I am node 1"
        assert ask(transport, "hello", 0, hello)
        assert running.statuses()[0].refusals["wrong-signature"] == before + 1
        for bad in (b"", b"\x93\x01\x02", b"\x80" * 300_000, hello[:-1]):
            ask(transport, "hello", 0, bad)
        assert running.statuses()[0].alive == 3
        for topic in ("model", "again"):  # nothing is given to who cannot sign for a node
            assert len(ask(transport, topic, 0, b"please") or b"") < 10


def test_a_hundred_thousand_bad_frames_do_a_running_node_no_harm(running):
    setup = prepare(WHAT, 1, None, 3)
    format, own = format_of(setup), Identity.load(running.folders[3])
    good = bytes(format.seal(10, 1, bytes(8), {"x": raw_bytes(setup.initial)}, own.key))
    rng = np.random.default_rng(2)

    def frames(count):
        for i in range(count):
            if i % 3 == 0:
                yield rng.bytes(int(rng.integers(0, 400)))
            elif i % 3 == 1:
                frame = bytearray(good[: int(rng.integers(1, len(good)))])
                frame[int(rng.integers(len(frame)))] ^= 0xFF
                yield bytes(frame)
            elif i % 100 == 2:
                yield good + bytes(int(rng.integers(1, 5000)))  # oversized
            else:
                yield good[:300]

    process = running.cluster.children[0].process.pid
    knock(running, running.folders[3], frames(5000))
    weight = memory.resident(process)
    refused, before, after = knock(running, running.folders[3], frames(100_000))
    assert sum(refused.values()) == 100_000  # all counted
    assert refused["oversized"] >= 300
    assert memory.resident(process) - weight < 60e6
    assert after.round > before.round  # it went on learning
    assert after.alive == 3
    assert running.cluster.children[0].running


def test_a_revoked_node_is_not_heard_any_more_and_cannot_come_back(deploy):
    what = msgspec.structs.replace(WHAT, rounds=100_000, nodes=4)
    there = deploy(what).start()
    there.until_round(20, range(4))
    (there.folders[0] / "revoked.json").write_text("{")  # half of it is copied, so far
    there.until_round(there.statuses()[0].round + 20, [0])
    assert any("is damaged" in line and "the list read before counts" in line for line in there.log(0))
    Authority.load(there.root).revoke("node-2")  # writes the list into all folders here
    there.until(lambda found: all(found[i].alive == 3 for i in (0, 1, 3) if i in found) and 0 in found, 30)
    assert any("revoked certificates has changed" in line for line in there.log(0))
    before = there.statuses()[0].refusals.get("revoked", 0)
    there.until(lambda found: found[0].refusals.get("revoked", 0) > before or 2 not in found, 30)
    there.cluster.kill(2)
    there.cluster.restart(2)
    there.cluster.children[2].process.join(30)
    assert there.cluster.children[2].process.exitcode == 2
    assert "was revoked" in there.cluster.problems()[2]
    # with software that does not look at the list it gets nowhere either: a node started since then does not talk to it
    there.cluster.kill(1)
    there.cluster.restart(1)
    there.until(lambda found: 1 in found and found[1].alive == 3, 30)
    address = read_addresses(there.folders[1] / "node.toml").listen
    with raw_session(there.folders[2], (address,), identity=forged(there.folders[2], name="node-2")) as session:
        assert answers(session, there) == []
    # a new certificate for the same place is welcome
    folder = Authority.load(there.root).issue("node-2", ["127.0.0.1"])
    from epidemic.net.folders import take_over

    take_over(there.root, "node-2", folder)
    assert folder.name == "node-2.1"
    there.cluster.add(2, folder)
    there.until(lambda found: len(found) == 4 and found[0].alive == 4, 30)
