"""The transport with real sessions: what it takes, what it lets go, and that every pair finds each other again."""

import os
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import closing

import psutil_free as memory
import pytest
import zenoh
from carriers import Carriers

from epidemic.deploy.access import configuration
from epidemic.deploy.addresses import Addresses, free_addresses
from epidemic.deploy.keys import Authority, Identity
from epidemic.deploy.opening import Unreachable
from epidemic.deploy.transport import LARGEST_QUESTION, MOST_QUESTIONS, Transport


def until(condition, patience=30):
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


@pytest.fixture
def pair(tmp_path):
    """Nodes 0 and 1 of three, connected; and how to open a session with a certificate and without our software."""
    authority = Authority.create(tmp_path / "keys")
    hosts = free_addresses(2)
    identities = [Identity.load(authority.issue(f"node-{i}", ["127.0.0.1"])) for i in range(3)]
    opened = []

    def raw(node_id):
        config = configuration(
            identities[node_id], Addresses(None, tuple(hosts)), mode="peer", nodes=3, largest=2**21, insecure=False
        )
        config.insert_json5("access_control", "{enabled: false}")
        opened.append(zenoh.open(config))
        return opened[-1], f"epidemic/{identities[node_id].cluster}"

    one = Transport(identities[0], Addresses(hosts[0]), nodes=3, largest=2**20)
    two = Transport(identities[1], Addresses(hosts[1], (hosts[0],)), nodes=3, largest=2**20)
    with closing(one), closing(two):
        until(lambda: one.links() == two.links() == 1)
        yield one, two, raw
        for session in opened:
            session.close()


def ask(transport, topic, node_id, question=b"?", timeout=5.0, largest=2**20):
    answer = Future()
    transport.ask(topic, node_id, question, timeout, answer.set_result, largest)
    return answer.result(timeout + 5)


def test_a_message_comes_with_its_senders_place_and_one_too_large_is_not_copied(pair):
    one, two, _ = pair
    taken, dropped = [], []
    one.receive(lambda sender, frame, node_ids: taken.append((sender, frame, node_ids)), dropped.append, 1000)
    until(lambda: two.send(0, two.payload(b"x" * 1000)))
    assert two.send(0, two.payload(b"x" * 1001))
    until(lambda: taken and dropped)
    assert taken == [(1, b"x" * 1000, (0,))]
    assert dropped == [1]
    assert not two.send(2, two.payload(b"nobody is there"))


def test_a_message_says_for_which_places_of_a_process_it_is(pair):
    one, two, raw = pair
    taken = []
    one.receive(lambda sender, frame, node_ids: taken.append(node_ids), lambda sender: None, 100)
    until(lambda: two.send(0, two.payload(b"x"), (0, 2)))
    session, prefix = raw(2)
    publisher = session.declare_publisher(f"{prefix}/to/0/2")
    until(lambda: publisher.matching_status.matching)
    for strange in (b"2,2,77,-1,x,\xff,0", b"1" * 1000, b"", b","):
        publisher.put(b"x", attachment=strange)
    until(lambda: len(taken) == 5)
    assert taken == [(0, 2), (2, 0), (0,), (), ()]


def test_a_question_is_answered_once_however_much_comes_back(pair):
    """A thousand answers of a megabyte to one question: one is taken, and nothing of the others stays."""
    one, _, raw = pair
    session, prefix = raw(2)
    waiting = threading.Event()

    def flood(query):
        waiting.wait()
        for i in range(1000):
            query.reply(f"{prefix}/ask/handshake/2/0", i.to_bytes(4, "little") + bytes(2**20))
        query.drop()

    session.declare_queryable(f"{prefix}/ask/handshake/2/0", flood)
    waiting.set()
    until(lambda: ask(one, "handshake", 2, largest=2**21) is not None)
    weight = memory.resident(os.getpid())
    answers = []
    for _ in range(2):
        one.ask("handshake", 2, b"?", 20.0, answers.append, 2**21)
    until(lambda: len(answers) == 2)
    assert all(len(answer) == 4 + 2**20 for answer in answers)
    assert len(answers) == 2
    assert ask(one, "handshake", 2, timeout=20.0, largest=2**20) is None  # all are too long
    assert memory.resident(os.getpid()) - weight < 150e6


def test_a_question_to_nobody_or_that_nobody_answers_in_time_ends_with_none(pair):
    one, two, _ = pair
    held = []
    two.answer("slow", lambda question, respond: held.append(respond))
    two.answer("quick", lambda question, respond: respond(question))
    until(lambda: ask(one, "quick", 1, b"there?") == b"there?")
    assert ask(one, "slow", 1, timeout=0.5) is None
    assert ask(one, "slow", 2) is None
    assert held
    held[0](b"too late")  # harms nobody


def test_questions_that_are_too_long_or_too_many_get_no_answer(pair):
    one, two, _ = pair
    asked, gate = [], threading.Event()

    def reply(question, respond):
        asked.append(len(question))
        gate.wait()
        respond(b"yes")

    two.answer("handshake", reply)
    two.answer("other", lambda question, respond: respond(b"yes"))
    until(lambda: ask(one, "handshake", 1, timeout=0.2) is None and asked)
    assert ask(one, "handshake", 1, bytes(LARGEST_QUESTION + 1)) is None
    answers = []
    for _ in range(3 * MOST_QUESTIONS):
        one.ask("handshake", 1, b"?", 30.0, answers.append, 10)
    until(lambda: len(answers) >= 2 * MOST_QUESTIONS)  # refused at once
    assert set(answers) == {None}
    gate.set()
    until(lambda: len(answers) == 3 * MOST_QUESTIONS)
    assert 0 < answers.count(b"yes") <= MOST_QUESTIONS
    assert max(asked) <= 1
    assert ask(one, "other", 1) == b"yes"


def test_of_all_places_each_answers_for_itself_only(pair):
    """Node 2, with other software, answers for node 1 as well, and many times for itself."""
    one, two, raw = pair
    two.answer("status", lambda question, respond: respond(b"I am 1"))
    session, prefix = raw(2)

    def lie(query):
        for i in range(5):
            query.reply(f"{prefix}/ask/status/1/0", b"I am 1, too")
            query.reply(f"{prefix}/ask/status/999/0", b"I am 999")
            query.reply(f"{prefix}/ask/status/2/0", b"I am 2, %d" % i)
            query.reply(f"{prefix}/ask/status/2/0", b"long" * 100)

    session.declare_queryable(f"{prefix}/ask/status/2/*", lie)
    until(lambda: len(one.ask_all("status", b"", 2.0, 100)) == 2)
    assert one.ask_all("status", b"", 2.0, 100) == {1: b"I am 1", 2: b"I am 2, 0"}


def test_renewed_it_has_everything_declared_again_under_a_new_token(pair):
    one, two, _ = pair
    seen, taken = [], []
    two.watch("alive", lambda *change: seen.append(change))
    one.receive(lambda sender, frame, node_ids: taken.append(frame), lambda sender: None, 100)
    one.answer("handshake", lambda question, respond: respond(question))
    one.appear("alive", 0)
    before = one.token
    until(lambda: seen == [(0, before, True)] and two.send(0, two.payload(b"1")))
    one.renew()
    assert one.token != before
    until(lambda: seen[1:] == [(0, before, False), (0, one.token, True)])
    until(lambda: ask(two, "handshake", 0, b"?") == b"?")
    until(lambda: two.send(0, two.payload(b"2")))
    until(lambda: taken[-1:] == [b"2"])
    now = one.token
    two.renew()  # the watcher itself
    until(lambda: seen[3:] == [(0, now, False), (0, now, True)])


def test_a_node_behind_a_relay_that_is_not_there_may_try_again(tmp_path):
    identity = Identity.load(Authority.create(tmp_path / "keys").issue("node-0", []))
    with pytest.raises(Unreachable, match="no answer at 127"):
        Transport(identity, Addresses(None, tuple(free_addresses(1)), relay=True), nodes=2)


def test_every_pair_is_together_again_after_most_of_them_stood_still(tmp_path):
    """Seven of eight are stopped in the middle of their messages for longer than a lease: their links end and begin all at once."""
    there = Carriers(tmp_path / "keys", 8)
    try:
        there.until(lambda: not there.strangers("seen"))
        for process in there.processes[1:]:
            os.kill(process.pid, signal.SIGSTOP)
        there.until(lambda: not there.tell(0, "seen"))
        for process in there.processes[1:]:
            os.kill(process.pid, signal.SIGCONT)
        there.until(lambda: not there.strangers("seen"))
        there.until(lambda: not there.strangers("asks"))
        there.strangers("hears")
        there.until(lambda: not there.strangers("hears"))
    finally:
        there.close()


@pytest.fixture
def acquaintances(tmp_path):
    """Nodes 0, 1 and 2, which connect to nobody by themselves, with their addresses."""
    authority = Authority.create(tmp_path / "keys")
    hosts = free_addresses(3)
    made = []
    for i, host in enumerate(hosts):
        identity = Identity.load(authority.issue(f"node-{i}", ["127.0.0.1"]))
        made.append(Transport(identity, Addresses(host), nodes=4, largest=2**20, knows_all=False))
        made[-1].watch("alive", lambda node_id, token, there: None)
        made[-1].appear("alive", i)
    yield made, hosts
    for one in made:
        one.close()


def test_lines_lead_to_those_who_are_asked_for_and_nobody_sees_further(acquaintances):
    (a, b, c), hosts = acquaintances
    a.connect("node-1", hosts[1])
    b.connect("node-2", hosts[2])
    until(lambda: a.ends() == {"node-1": {1}} and b.ends() == {"node-2": {2}})
    time.sleep(0.5)
    assert a._lines.watches["alive"].node_ids - {0} == {1}  # b passes on nothing
    assert b._lines.watches["alive"].node_ids - {1} == {0, 2}
    got = []
    for one in (a, b, c):
        one.receive(lambda sender, raw, node_ids: got.append((sender, node_ids)), lambda _: None, 2**20)
    until(lambda: a.send(1, a.payload(b"x")) and b.send(0, b.payload(b"x")) and b.send(2, b.payload(b"x")))
    assert not a.send(2, a.payload(b"x"))  # nobody is there whom it could go to
    until(lambda: {(0, (1,)), (1, (0,)), (1, (2,))} <= set(got))


def test_who_says_to_be_at_another_ones_address_does_not_cut_its_line(acquaintances):
    (a, _, _), hosts = acquaintances
    a.connect("node-1", hosts[1])
    a.connect("node-3", hosts[1])  # place 3 lies about where it is
    until(lambda: a.ends() == {"node-1": {1}, "node-3": {1}})
    a.disconnect("node-3")
    until(lambda: a.ends() == {"node-1": {1}})
    assert 1 in a._lines.watches["alive"].node_ids


def test_lines_at_whose_end_nobody_is_are_let_go_and_others_are_not(acquaintances, monkeypatch):
    (a, _, _), hosts = acquaintances
    (dead,) = free_addresses(1)
    a.connect("first 1", hosts[1])
    a.connect("first dead", dead)
    a.connect("node-3", dead)
    until(lambda: set(a.ends()) == {"first 1", "first dead", "node-3"} and a.ends()["first 1"] == {1})
    monkeypatch.setattr("epidemic.deploy.links.NOBODY", 0.2)
    time.sleep(0.3)
    a.let_go("first ")
    assert a.ends() == {"first 1": {1}, "node-3": set()}  # the protocol decides about places


def test_lines_are_opened_again_with_the_network_and_tell_everything_once(acquaintances):
    (a, b, _), hosts = acquaintances
    told = []
    b.watch("done", lambda node_id, token, there: told.append((node_id, token, there)))
    a.connect("node-1", hosts[1])
    a.appear("done", 0)
    until(lambda: a.ends() == {"node-1": {1}} and told)
    old = a.token
    a.renew()
    until(lambda: a.ends() == {"node-1": {1}} and (0, a.token, True) in told and (0, old, False) in told)
    a.disconnect("node-1")
    until(lambda: a.ends() == {} and (0, a.token, False) in told)
    assert a._lines.watches["alive"].node_ids <= {0}


def test_there_are_never_more_lines_than_a_process_can_have(acquaintances, monkeypatch):
    (a, _, _), _ = acquaintances
    monkeypatch.setattr("epidemic.deploy.links.MOST_LINES", 5)
    for i, address in enumerate(free_addresses(9)):
        a.connect(f"node-{i}", address)
    assert len(a._lines._wanted) == 5
