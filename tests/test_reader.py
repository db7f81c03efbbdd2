"""The reader and the outbox: what comes in is looked at once and bounded; what goes out waits for nobody else's link."""

import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from epidemic.algorithms import Column
from epidemic.deploy.outbox import MOST_QUEUED, Outbox
from epidemic.deploy.reader import MOST_UNKNOWN, Reader
from epidemic.deploy.replays import Replays
from epidemic.deploy.wire import STATE_TRANSFER, MessageFormat, Refused

FORMAT = MessageFormat.in_rounds(bytes(16), (Column("x", (6,), "float32"),))
KEYS = [Ed25519PrivateKey.generate() for _ in range(4)]


class Keyring:
    """Certified keys, as they are learnt; `gate` holds the reader up."""

    def __init__(self):
        self.known = {1: 1, 2: 1}  # places, and whose connection leads to them
        self.gate = threading.Event()
        self.gate.set()
        self.looking = threading.Semaphore(0)

    def key_of(self, node_id):
        self.looking.release()
        self.gate.wait()
        if node_id == 0:
            raise Refused("revoked")
        return KEYS[node_id].public_key() if node_id in self.known else None

    def knows(self, node_id):
        return node_id in self.known

    def carrier_of(self, node_id):
        return self.known.get(node_id, node_id)


class Messages:
    """A reader with what came out of it."""

    def __init__(self, **options):
        self.keyring, self.taken, self.said = Keyring(), [], []
        self.repeated, self.forged = [], []
        told = {"repeated": lambda *what: self.repeated.append(what), "forged": self.forged.append}
        self.reader = Reader(
            FORMAT, self.keyring, lambda message, node_ids: self.taken.append((message.sender, message.counter, node_ids)),
            self.said.append, **{"nodes": 4, "hosted": 1, **told, **options},
        )  # fmt: skip

    def settled(self):
        """Once everything was looked at."""
        self.reader.close()
        return self


def frame(sender, round=0, key=None):
    signer = KEYS[sender if key is None else key]
    return bytes(FORMAT.seal(round, sender, {"x": np.zeros(24, np.uint8)}, signer, graph=bytes(8)))


def test_what_is_in_order_is_handed_on_with_whom_it_is_for():
    messages = Messages()
    messages.reader.put(1, frame(1, 5), (0, 3))
    messages.reader.put(1, frame(2, 6), (3,))  # node 2 is carried by node 1
    assert messages.settled().taken == [(1, 5, (0, 3)), (2, 6, (3,))]
    assert +messages.reader.refused == {}


def test_a_message_over_the_link_of_somebody_else_is_refused():
    messages = Messages()
    messages.reader.put(2, frame(2), (0,))  # its own link, but it is carried by node 1
    messages.reader.put(3, frame(1), (0,))  # passed on by node 3
    assert messages.settled().taken == []
    assert messages.reader.refused == {"wrong-link": 2}


COUNTED = MessageFormat.in_rounds(bytes(16), FORMAT.columns, most_samples=1000)


def test_the_first_number_of_samples_that_a_sender_tells_stays():
    def told(sender, samples):
        zeros = {"x": np.zeros(24, np.uint8)}
        return bytes(COUNTED.seal(0, sender, zeros, KEYS[sender], graph=bytes(8), numbers=(samples,)))

    messages, seen = Messages(), []
    reader = Reader(
        COUNTED, messages.keyring, lambda message, _: seen.append((message.sender, COUNTED.samples_of(message))), messages.said.append,
        nodes=4, hosted=1, samples={2: 20},
    )  # fmt: skip
    for sender, samples in [(1, 10), (1, 10), (1, 11), (1, 1000), (1, 10), (2, 21), (2, 20)]:
        reader.put(1, told(sender, samples), (0,))
    reader.close()
    messages.settled()
    assert seen == [(1, 10), (1, 10), (1, 10), (2, 20)]  # that of node 2 is known from the partition
    assert reader.refused == {"wrong-samples": 3}
    assert messages.said == ["refused a message: wrong-samples (further ones are only counted)"]


def test_every_refusal_is_counted_and_each_reason_said_once():
    messages = Messages()
    for raw in (b"", b"x" * 500, frame(2, key=1), frame(0), frame(2, key=1)):
        messages.reader.put(1, raw, (0,))
    messages.settled()
    assert messages.reader.refused == {"malformed": 1, "oversized": 1, "wrong-signature": 2, "revoked": 1}
    assert len(messages.said) == 4


def test_who_sends_more_than_can_be_looked_at_fills_only_its_own_room():
    messages = Messages()
    messages.keyring.gate.clear()
    messages.reader.put(1, frame(1), (0,))
    messages.keyring.looking.acquire()  # it is being looked at, and does not wait any more
    most = messages.reader._most
    given_up = []
    for _ in range(most + 10):
        messages.reader.put(1, frame(1), (0,))
    messages.reader.put(1, frame(1), (), given_up.append)
    messages.reader.put(3, frame(3), (0,))
    assert messages.reader.refused == {"overflow": 11}
    assert given_up == [None]  # who waits for a model is told that there is none
    messages.keyring.gate.set()
    messages.settled()
    assert len(messages.taken) == most + 1
    assert messages.reader.refused == {"overflow": 11, "unknown-sender": 1}


def test_a_process_of_several_nodes_has_room_for_the_messages_of_each():
    assert Messages(hosted=3).settled().reader._most == 3 * Messages().settled().reader._most


def test_large_messages_have_less_room_than_small_ones():
    keyring = Keyring()
    large = MessageFormat.in_rounds(bytes(16), (Column("x", (2**22,), "float32"),))
    reader = Reader(large, keyring, lambda *_: None, lambda _: None, nodes=4, hosted=1)
    reader.close()
    assert reader._most == 4


def test_messages_of_an_unknown_sender_count_once_it_has_introduced_itself():
    messages = Messages()
    messages.reader.put(3, frame(3, 1), (0,))
    messages.settled()
    messages.reader.look_again()  # somebody else was introduced
    assert messages.reader.refused == {"unknown-sender": 1}  # counted once
    messages.keyring.known[3] = 3
    messages.reader.look_again()
    messages.reader.look_again()
    assert messages.taken == [(3, 1, (0,))]  # taken once
    assert +messages.reader.refused == {}


def test_an_unknown_sender_whose_message_is_not_in_order_after_all_is_counted_once():
    messages = Messages()
    messages.reader.put(2, frame(3), (0,))
    messages.settled()
    messages.keyring.known[3] = 3  # not node 2
    messages.reader.look_again()
    assert messages.taken == []
    assert +messages.reader.refused == {"wrong-link": 1}


def test_few_messages_of_unknown_senders_are_kept():
    messages = Messages()
    for round in range(20):
        messages.reader.put(3, frame(3, round), (0,))
    messages.settled()
    messages.keyring.known[3] = 3
    messages.reader.look_again()
    assert [round for _, round, _ in messages.taken] == list(range(20 - MOST_UNKNOWN, 20))
    assert +messages.reader.refused == {"unknown-sender": 20 - MOST_UNKNOWN}


def test_a_model_that_was_asked_for_goes_to_who_asked_and_never_counts_as_a_message():
    messages = Messages()
    given = []
    messages.reader.put(1, frame(1), (), given.append)
    messages.reader.put(1, b"rubbish", (), given.append)
    messages.reader.put(3, frame(3), (), given.append)  # not known: it is not kept for later, either
    messages.settled()
    assert given[0].sender == 1
    assert given[1:] == [None, None]
    messages.keyring.known[3] = 3
    messages.reader.look_again()
    assert messages.taken == []
    assert len(given) == 3


def near():
    return 0, 20


def test_what_was_verified_before_is_dropped_before_its_signature_and_counted():
    messages = Messages(replays=Replays(near))
    messages.keyring.gate.clear()
    for _ in range(5):
        messages.reader.put(1, frame(1, 5), (0,))
    messages.keyring.gate.set()
    messages.keyring.looking.acquire()
    messages.settled()
    for _ in range(1000):
        messages.reader.put(1, frame(1, 5), (0,))
    assert messages.taken == [(1, 5, (0,))]
    assert messages.repeated == [((0,), "duplicate")] * 1004
    assert messages.keyring.looking._value == 0  # one signature in all
    assert messages.reader.refused == {}


def test_a_forged_message_does_not_keep_the_true_one_out():
    messages = Messages(replays=Replays(near))
    wrong = bytearray(frame(1, 5))
    wrong[-1] ^= 1  # the header is in order, the numbers are not
    model = bytes(FORMAT.seal(5, 1, {"x": np.zeros(24, np.uint8)}, KEYS[1], kind=STATE_TRANSFER))
    for raw in (frame(1, 5, key=3), bytes(wrong), model, frame(1, 5)):
        messages.reader.put(1, raw, (0,))
    assert messages.settled().taken == [(1, 5, (0,))]
    assert messages.reader.refused == {"wrong-signature": 2, "wrong-kind": 1}  # nobody asked for a model
    assert messages.forged == [1, 1]


def test_a_model_that_nobody_asked_for_costs_no_signature_and_answers_no_question_about_a_round():
    messages = Messages()
    model = bytes(FORMAT.seal(5, 1, {"x": np.zeros(24, np.uint8)}, KEYS[1], kind=STATE_TRANSFER))
    messages.reader.put(1, model, (0,))
    assert messages.reader.refused == {"wrong-kind": 1}
    assert messages.keyring.looking._value == 0
    messages.reader.put(1, model, (0,), asked_for=True)
    assert messages.settled().taken == []
    assert messages.reader.refused == {"wrong-kind": 2}


def test_a_message_that_was_asked_for_again_is_looked_at_again():
    messages = Messages(replays=Replays(near))
    messages.reader.put(1, frame(1, 5), (0,))
    messages.reader.put(1, frame(1, 5), (0,), asked_for=True)
    messages.settled()
    messages.reader.put(1, frame(1, 5), (0,))
    assert messages.taken == [(1, 5, (0,))] * 2  # the mailbox knows whether it was kept
    assert messages.repeated == [((0,), "duplicate")]


def test_a_message_over_the_link_of_somebody_else_costs_no_signature():
    messages = Messages()
    messages.reader.put(3, frame(1), (0,))
    assert messages.reader.refused == {"wrong-link": 1}
    assert messages.keyring.looking._value == 0
    messages.settled()


class Links:
    """A transport whose link to place 1 is stuck until it is let go."""

    def __init__(self):
        self.free, self.sent, self.lock = threading.Event(), [], threading.Lock()
        self.stuck = threading.Event()

    def send(self, carrier, payload, node_ids):
        if carrier == 1:
            self.stuck.set()
            self.free.wait()
        with self.lock:
            self.sent.append((carrier, payload, node_ids))
        return carrier != 3


@pytest.mark.parametrize("senders", [1, 3])
def test_a_link_that_is_stuck_holds_up_nobody_else_and_fills_no_memory(senders):
    links = Links()
    outbox, books = Outbox(links, nodes=4, senders=senders), []

    def sent(messages, left):
        books.append((messages, left))

    room = MOST_QUEUED * senders
    outbox.send(1, (1,), "first", sent)
    links.stuck.wait()  # it is on its way, and does not wait any more
    for i in range(room + 5):
        outbox.send(1, (1, 2), i, sent)
    assert books == [(2, False)] * 5  # told at once that it will not go
    outbox.send(2, (2,), "other", sent)
    links.free.set()
    outbox.flush(60)
    outbox.close()
    assert [what for carrier, what, _ in links.sent if carrier == 1] == ["first", *range(room)]  # in order
    assert (2, "other", (2,)) in links.sent
    assert sorted(books) == sorted([(2, False)] * 5 + [(1, True)] + [(2, True)] * room + [(1, True)])


def test_who_is_not_there_is_told_to_the_books():
    outbox, books = Outbox(Links(), nodes=4, senders=1), []
    outbox.send(3, (3, 2), "message", lambda messages, left: books.append((messages, left)))
    outbox.flush(60)
    outbox.close()
    assert books == [(2, False)]
