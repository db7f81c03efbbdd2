"""Who has no business here gets nowhere: shown with real sessions against running nodes."""

import datetime as dt
import shutil
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import closing

import msgspec
import psutil_free as memory
import pytest
import zenoh
from zenoh.handlers import Callback

import epidemic as ep
from conftest import experiment
from epidemic.algorithms import Column
from epidemic.clock import CloseAdaptive
from epidemic.core.rng import Streams
from epidemic.deploy.access import configuration
from epidemic.deploy.addresses import Addresses, read_addresses
from epidemic.deploy.agreement import agreement_of
from epidemic.deploy.handshake import Handshake, seal_handshakes
from epidemic.deploy.keys import Authority, Identity
from epidemic.deploy.outbox import raw_bytes
from epidemic.deploy.transport import Transport
from epidemic.deploy.wire import STATE_TRANSFER, MessageFormat
from epidemic.runtime.plan import intended_graph, view_of
from epidemic.runtime.setup import prepare

WHAT = experiment(
    nodes=4,
    rounds=100_000,
    topology=ep.ELLocal(2),
    model=ep.Logistic(),
    algorithm=ep.LocalSGD(local_steps=1),
    eval=ep.Eval(every=1000, samples=100),
    network=ep.Network(close=CloseAdaptive(deadline=5.0)),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Three nodes of four that run until they are stopped."""
    from conftest import Deployment
    from epidemic.deploy.addresses import free_addresses

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
    from epidemic.deploy import keys

    certificate = keys._read_certificate(folder / "node.pem")
    return Identity(
        folder,
        names.get("name", "node-3"),
        keys._read_key(folder / "node.key"),
        certificate,
        keys._read_certificate(folder / "authority.pem"),
        keys.Revocations(0, []),
    )


def answers(session, there, asker="observer"):
    """What a session learns from the nodes."""
    cluster = Identity.load(there.folders[0]).cluster
    replies = session.get(f"epidemic/{cluster}/ask/status/*/{asker}", timeout=1.5)
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
    from epidemic.deploy import keys

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


def test_a_member_cannot_listen_to_the_messages_of_others(running):
    """Node 3's certificate is good, but messages leave towards their receiver only."""
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


def knock(there, folder, frames, node_id=0, sender=3, arrive=None):
    """Send frames to a node as messages; its refusals and messages before and after all were looked at."""
    before = there.statuses()[node_id]
    transport = Transport(Identity.load(folder), Addresses(None, addresses(there)), nodes=4, largest=2**20)
    with closing(transport):
        cluster = Identity.load(folder).cluster
        publisher = transport._lines.main.session.declare_publisher(
            f"epidemic/{cluster}/to/{node_id}/{sender}", congestion_control=zenoh.CongestionControl.BLOCK
        )
        end = time.monotonic() + 10
        while not publisher.matching_status.matching:
            assert time.monotonic() < end
            time.sleep(0.01)
        transport.appear("alive", 3)  # a link whose other end never shows itself would be opened anew

        def all_refused(found):
            return node_id in found and found[node_id].refused - before.refused >= count

        count = len(frames)
        for frame in frames:
            publisher.put(frame)
        if arrive is None:
            there.until(all_refused, 60)
        else:
            running_on = there.statuses()[node_id].round + 20
            there.until_round(running_on, [node_id])
    after = there.statuses()[node_id]
    return Counter(after.refusals) - Counter(before.refusals), before, after


def ask(transport, topic, node_id, question, timeout=3.0):
    """What a place answers; None if it does not."""
    answer = Future()
    transport.ask(topic, node_id, question, timeout, answer.set_result, 2**20)
    return answer.result(timeout + 5)


def format_of(setup):
    return MessageFormat.in_rounds(agreement_of(setup).run, (Column("x", tuple(setup.initial.shape), "float32"),))


def test_a_member_that_signs_as_somebody_else_is_refused(running):
    setup = prepare(WHAT, 1, None, [3])
    format, own = format_of(setup), Identity.load(running.folders[3])
    numbers = {"x": raw_bytes(setup.initial)}
    frames = [
        bytes(format.seal(10, 1, numbers, own.key, graph=bytes(8))) for _ in range(5)
    ]  # "from node 1", by node 3's key
    refused, _, _ = knock(running, running.folders[3], frames)
    assert refused == {"wrong-link": 5}  # before any signature: node 1 has a connection of its own
    stranger = [bytes(format.seal(10, 3, numbers, own.key, graph=bytes(8)))]  # node 3 has not introduced itself
    refused, _, _ = knock(running, running.folders[3], stranger)
    assert refused == {"unknown-sender": 1}


def test_a_member_cannot_even_send_in_the_name_of_somebody_else(running):
    """Messages are taken from a link only for the sender whose certificate it has."""
    setup = prepare(WHAT, 1, None, [3])
    own = Identity.load(running.folders[3])
    frame = bytes(format_of(setup).seal(10, 1, {"x": raw_bytes(setup.initial)}, own.key, graph=bytes(8)))
    refused, _, _ = knock(running, running.folders[3], [frame] * 20, sender=1, arrive=0)
    assert refused == {}


class Member:
    """Node 3, with software of its own: its certificate is good, and it does what it likes."""

    def __init__(self, there, what=WHAT, node_id=3):
        self.there, self.what, self.node_id = there, what, node_id
        self.identity = Identity.load(there.folders[node_id])
        setup = prepare(what, 1, None, [node_id])
        self.setup, self.agreement, self.format = setup, agreement_of(setup), format_of(setup)
        found = tuple(read_addresses(folder / "node.toml").listen for folder in there.folders[:3])
        self.transport = Transport(self.identity, Addresses(None, found), nodes=what.nodes, largest=2**22)
        self.publishers = {}

    def handshake(self, **changed):
        """What it says of itself: by default that it never sends anything, so that nobody waits for it."""
        values = {
            "node_id": self.node_id, "carrier": self.node_id, "token": self.transport.token, "certificate": self.identity.encoded,
            "run": self.agreement.run, "round": 0, "start": self.what.rounds, "finished": False, "gone": False, **changed,
        }  # fmt: skip
        agreement = values.pop("agreement", self.agreement)
        return seal_handshakes([(Handshake(**values), self.identity)], agreement)

    def introduce(self, node_ids=range(3), **changed):
        for node_id in node_ids:
            assert ask(self.transport, "handshake", node_id, self.handshake(**changed))

    def views(self, rounds):
        streams = Streams(self.what.seeds[0])
        return [view_of(intended_graph(self.what, streams, t), t, self.node_id) for t in rounds]

    def message(self, round, graph, numbers=None, kind=""):
        row = self.setup.initial if numbers is None else self.setup.initial * 0 + numbers
        columns = {"x": raw_bytes(row)}
        return bytes(self.format.seal(round, self.node_id, columns, self.identity.key, kind=kind, graph=graph))

    def send(self, node_id, frame):
        if node_id not in self.publishers:
            key = f"epidemic/{self.identity.cluster}/to/{node_id}/{self.node_id}"
            publisher = self.transport._lines.main.session.declare_publisher(
                key, congestion_control=zenoh.CongestionControl.BLOCK
            )
            end = time.monotonic() + 30
            while not publisher.matching_status.matching:
                assert time.monotonic() < end
                time.sleep(0.01)
            self.publishers[node_id] = publisher
        self.publishers[node_id].put(frame)

    def wish(self, topic, node_id, round):
        """What a node answers to a question that is in order."""
        question = self.format.seal_offer(round, self.node_id, node_id, self.identity.key)
        return ask(self.transport, topic, node_id, question)

    def close(self):
        self.transport.close()


@pytest.fixture
def member(running):
    with closing(Member(running)) as found:
        yield found


def refusals(there, node_id=0):
    return Counter(there.statuses()[node_id].refusals)


def go_on(there, rounds=20, node_ids=range(3)):
    """Everybody is there and learns."""
    before = there.until(lambda found: set(node_ids) <= found.keys())
    there.until(lambda found: all(p in found and found[p].round >= before[p].round + rounds for p in node_ids), 120)
    assert all(child.running for child in there.cluster.children)


def test_a_hello_with_a_certificate_of_another_place_is_refused(running, member):
    before = refusals(running)
    assert ask(member.transport, "handshake", 0, member.handshake(node_id=1, carrier=1))  # "I am node 1"
    assert refusals(running) - before == {"wrong-signature": 1}
    for bad in (b"", b"\x93\x01\x02", b"\x80" * 300_000, member.handshake()[:-1]):
        ask(member.transport, "handshake", 0, bad)
    assert running.statuses()[0].alive == 3
    for topic in ("model", "again"):  # nothing is given to who cannot sign for a node
        assert len(ask(member.transport, topic, 0, b"please") or b"") < 10


def test_huge_finite_numbers_are_refused_and_nobody_ends(running, member):
    member.introduce()
    before = refusals(running)
    view = member.views([running.statuses()[0].round + 3])[0]
    for node_id in range(3):
        for value in (3e38, -3e38, 1.1e6):
            member.send(node_id, member.message(view.round, view.digest, value))
    running.until(lambda found: found[0].refusals.get("insane", 0) >= before["insane"] + 3)
    go_on(running)


def test_a_member_that_repeats_its_old_message_slows_nobody_down(running, member):
    member.introduce()
    now = running.statuses()[0].round
    mine = [view for view in member.views(range(now, now + 8)) if 0 in view.targets]
    frames = [member.message(view.round, view.digest) for view in mine]
    before = running.statuses()
    for _ in range(60):
        for frame in frames:
            member.send(0, frame)
        running.until_round(running.statuses()[0].round + 1, [0])
    after = running.statuses()
    counted = Counter(after[0].messages) - Counter(before[0].messages)
    assert counted["duplicate"] + counted["beyond"] > 30 * len(frames)
    assert counted["late"] <= len(frames) + after[1].late + after[2].late  # each of its messages is late once
    assert after[0].limit < WHAT.network.longest / 2
    gained = [after[i].round - before[i].round for i in range(3)]
    assert min(gained) > max(gained) / 2  # the victim keeps up with the others, and they with it
    go_on(running)


def test_a_model_that_was_asked_for_cannot_be_passed_on_as_a_message(running, member):
    member.transport.appear("alive", 3)
    member.introduce()
    given = None
    end = time.monotonic() + 30
    while given is None or len(given) < 100:
        assert time.monotonic() < end, given
        given = member.wish("model", 1, running.statuses()[1].round)
    message = member.format.open(given, lambda _: Identity.load(running.folders[1]).key.public_key())
    assert (message.sender, message.kind) == (1, STATE_TRANSFER)
    before = refusals(running)
    member.send(0, given)
    running.until(lambda found: Counter(found[0].refusals)["wrong-link"] > before["wrong-link"])
    own = member.message(running.statuses()[0].round + 4, b"", kind=STATE_TRANSFER)  # its own, for a round that is near
    member.send(0, own)
    running.until(lambda found: Counter(found[0].refusals)["wrong-kind"] > before["wrong-kind"])
    go_on(running)


def test_endless_and_ugly_words_in_terms_leave_the_log_short_and_plain(running, member):
    sizes = [(running.folders[i] / "node.log").stat().st_size for i in range(3)]
    evil = [
        {"k" * 60_000: 1},
        {"a\n\x1b[2J\x1b]0;x\x07[red]": "\r\n\u202e" * 20},
        {f"key-{i}\n": "v" * 900 for i in range(60)},
    ]
    for i in range(60):
        other = msgspec.structs.replace(member.agreement, experiment={**evil[i % 3], "i": i}, version="9\n" * 99)
        member.introduce(run=other.run, agreement=other)
    go_on(running)
    for i in range(3):
        path = running.folders[i] / "node.log"
        assert path.stat().st_size - sizes[i] < 6000
        lines = path.read_bytes().decode().split("\n")
        assert all(line.isprintable() for line in lines)
        assert sum("refused node 3" in line for line in lines) <= 1  # said once for each place
        assert sum("refused the handshake of node 3: implausible" in line for line in lines) <= 1
        assert sum("refused" in line and "node 3" in line for line in lines) >= 1


def test_answers_that_are_too_long_or_too_many_do_no_harm(running, member):
    """Nodes greet whoever appears; this one answers with megabytes, a hundred times, and with rubbish."""
    asked = []
    prefix = f"epidemic/{member.identity.cluster}/ask/handshake/3"

    def reply(query):
        asked.append(1)
        key = str(query.key_expr)
        content = (bytes(2**20 + 1), b"\xc1" * 100, member.handshake(round=10**9))[len(asked) % 3]
        for _ in range(100 if len(content) < 2**20 else 3):
            query.reply(key, content)
        query.drop()

    process = running.cluster.children[0].process.pid
    weight = memory.resident(process)
    queryable = member.transport._lines.main.session.declare_queryable(f"{prefix}/*", Callback(reply, indirect=True))
    member.transport.appear("alive", 3)
    end = time.monotonic() + 90
    while len(asked) < 9:
        assert time.monotonic() < end
        time.sleep(0.05)
    go_on(running)
    assert all(status.alive == 3 for node_id, status in running.statuses().items() if node_id < 3)
    assert memory.resident(process) - weight < 60e6
    queryable.undeclare()


@pytest.mark.parametrize("lie", [{"round": 10**9}, {"round": 40, "finished": True}, {"round": 39, "start": 0}])
def test_a_fresh_node_believes_no_single_member_about_where_the_others_are(deploy, lie):
    """The member says that it is at the end, or beyond; nobody goes where no honest node is, or reports a success without learning."""
    from epidemic.deploy.addresses import free_addresses

    what = msgspec.structs.replace(
        WHAT, rounds=40, network=ep.Network(close=CloseAdaptive(deadline=2.0), patience=20.0)
    )
    there = deploy(what, hosts=free_addresses(3))
    there.start(there.folders[:3])
    with closing(Member(there, what)) as liar:
        liar.transport.answer("handshake", lambda _, respond: respond(liar.handshake(**{"start": 40, **lie})))
        liar.transport.appear("alive", 3)
        there.finish()
    assert there.cluster.problems() == {}
    jumped = [there.node(i)["jumped"] for i in range(3)]
    learnt = [sum(there.node(i)["in_degree"].values()) for i in range(3)]
    assert [a + b for a, b in zip(jumped, learnt, strict=True)] == [40] * 3
    assert min(jumped) == 0  # who is ahead of all honest ones is moved by nothing; who is behind may follow one of them
    assert min(learnt) > 20


def test_a_node_alone_with_a_liar_learns_by_itself(deploy):
    from epidemic.deploy.addresses import free_addresses

    what = msgspec.structs.replace(WHAT, rounds=20, network=ep.Network(close=CloseAdaptive(deadline=0.5), patience=5.0))
    there = deploy(what, hosts=free_addresses(3))
    there.start(there.folders[:1])
    with closing(Member(there, what)) as liar:
        liar.transport.answer("handshake", lambda _, respond: respond(liar.handshake(round=20, start=0, finished=True)))
        liar.transport.appear("alive", 3)
        there.finish()
    assert there.cluster.problems() == {}
    assert there.node(0)["jumped"] == 0
    assert there.node(0)["in_degree"] == {"0": 20}


def test_numbers_just_small_enough_to_be_taken_end_nobody(deploy):
    """The mixture is finite, but training with it explodes: the victims go on with their own models."""
    from epidemic.deploy.addresses import free_addresses

    what = msgspec.structs.replace(WHAT, model=ep.MLP(hidden=(16, 16, 16, 16)), eval=ep.Eval(every=10, samples=100))
    there = deploy(what, hosts=free_addresses(3))
    there.start(there.folders[:3])
    there.until_round(10, range(3))
    with closing(Member(there, what)) as member:
        member.introduce()
        sent = -1
        for _ in range(15):
            now = there.statuses()[0].round
            for view in member.views(range(max(now, sent + 1), now + 9)):
                sent = view.round
                for node_id in view.targets:
                    member.send(node_id, member.message(view.round, view.digest, 9.9e5))
            there.until_round(now + 4, range(3))
    found = there.until(lambda found: all(found[i].refusals.get("insane", 0) for i in range(3)))
    assert all(status.messages["counted"] > 0 for status in found.values())
    go_on(there, 40)
    for i in range(3):
        assert sum("gave an invalid model" in line for line in there.log(i)) == 1
    assert all(found.loss is not None and found.loss < 20 for found in there.statuses().values())


def test_a_revoked_node_is_not_heard_any_more_and_cannot_come_back(deploy):
    what = msgspec.structs.replace(WHAT, rounds=100_000, nodes=4)
    there = deploy(what).start()
    there.until_round(20, range(4))
    (there.folders[0] / "revoked.json").write_text("{")  # half of it is copied, so far
    there.until(lambda _: any("is damaged" in line and "the list read before counts" in line for line in there.log(0)))
    there.until_round(there.statuses()[0].round + 20, [0])
    Authority.load(there.root).revoke("node-2")  # writes the list into all folders here
    there.until(lambda found: all(found[i].alive == 3 for i in (0, 1, 3) if i in found) and 0 in found, 30)
    there.until(lambda _: any("revoked certificates has changed" in line for line in there.log(0)))
    before = there.until(lambda found: 0 in found)[0].refusals.get("revoked", 0)  # it may just open its network anew
    there.until(lambda found: 0 in found and (found[0].refusals.get("revoked", 0) > before or 2 not in found), 30)
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
        assert answers(session, there, "2") == []
    # a new certificate for the same place is welcome
    folder = Authority.load(there.root).issue("node-2", ["127.0.0.1"])
    from epidemic.deploy.folders import take_over

    take_over(there.root, "node-2", folder)
    assert folder.name == "node-2.1"
    there.cluster.add(2, folder)
    there.until(lambda found: len(found) == 4 and found[0].alive == 4, 30)


def test_a_revoked_node_that_was_not_given_the_list_learns_it_from_the_others_and_says_so(deploy, tmp_path):
    there = deploy(WHAT).start()
    there.until_round(20, range(4))
    shutil.copytree(there.root / "authority", tmp_path / "elsewhere" / "authority")
    Authority.load(tmp_path / "elsewhere").revoke("node-2")
    for node_id in (0, 1, 3):  # node 2 is left out
        shutil.copy(tmp_path / "elsewhere" / "authority" / "revoked.json", there.folders[node_id] / "revoked.json")
    revoked = there.cluster.children[2].process
    revoked.join(90)
    assert revoked.exitcode == 2
    assert "the certificate here (node-2) was revoked" in there.cluster.problems()[2]
    there.until_round(there.until(lambda found: 0 in found)[0].round + 20, (0, 1, 3))
