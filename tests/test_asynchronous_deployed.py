"""What a deployed process does for nodes without rounds, piece by piece: frames, handles, messages in and out, and what cannot be deployed."""

import gc
import threading

import msgspec
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import epidemic as ep
from epidemic.algorithms import Column
from epidemic.algorithms.async_el import AsyncEL
from epidemic.clock import Clock, CloseDeadline, CloseQuorum, CloseSchedule, ExponentialChurn
from epidemic.core.errors import BadInput, RunFailed
from epidemic.deploy.agreement import check_deployable
from epidemic.deploy.hosted import AsynchronousNode
from epidemic.deploy.hosted_models import Holding, HostedModels, sane
from epidemic.deploy.messages import MOST_WAITING, Messages, _Job
from epidemic.deploy.outbox import Outbox
from epidemic.deploy.reader import most_of_one
from epidemic.deploy.wire import LARGEST_NUMBER, MAGIC, STATE_TRANSFER, Header, MessageFormat, Refused, sealed
from epidemic.protocol import events as e
from epidemic.protocol.node import MessageKind
from epidemic.record import HEADER_BYTES
from epidemic.runtime.lazy_models import GivenModel
from epidemic.runtime.mixing_arithmetic import add

COLUMN = Column("x", (6,), "float32")
KEYS = [Ed25519PrivateKey.generate() for _ in range(3)]
KINDS = (MessageKind(notes=1), MessageKind("piece", part=True), MessageKind("word", row=False, notes=2))
FORMAT = MessageFormat.without_rounds(bytes(16), COLUMN, KINDS, sizes=(4, 2), largest=100.0)
ROW = torch.arange(6, dtype=torch.float32)


def raw(row):
    return {"x": row.numpy().view(np.uint8)}


def key_of(node_id):
    return KEYS[node_id].public_key() if 0 <= node_id < 3 else None


def opened(frame):
    return FORMAT.open(bytes(frame), key_of)


def refused(frame):
    with pytest.raises(Refused) as refusal:
        opened(frame)
    return refusal.value.reason


# -- frames -----------------------------------------------------------------------------------------------------------


def test_messages_of_every_kind_arrive_as_they_were_sent_and_are_as_long_as_they_need_to_be():
    whole = FORMAT.seal(7, 1, raw(ROW), KEYS[1], numbers=(3,))
    piece = FORMAT.seal(8, 1, raw(ROW[:2]), KEYS[1], kind="piece", part=1)
    word = FORMAT.seal(9, 2, {}, KEYS[2], kind="word", numbers=(0, LARGEST_NUMBER))
    assert [len(frame) - HEADER_BYTES for frame in (whole, piece, word)] == [24, 8, 0]
    found = opened(whole)
    assert (found.counter, found.sender, found.kind, found.numbers, found.part) == (7, 1, "", (3,), None)
    assert bytes(found.columns["x"]) == ROW.numpy().tobytes()
    assert (opened(piece).kind, opened(piece).part, opened(piece).numbers) == ("piece", 1, ())
    assert opened(word).columns == {}
    assert opened(word).numbers == (0, LARGEST_NUMBER)


def forged(number=1, sender=1, tensors=None, tag="", note=(3,), part=-1, body=None, graph=b"", key=1):
    """A frame that is signed, whatever it says."""
    from blake3 import blake3

    body = ROW.numpy().tobytes() if body is None else body
    tensors = (("x", (len(body) // 4,), "float32"),) if tensors is None else tensors
    header = Header(bytes(16), tag, number, sender, graph, blake3(body).digest(), tensors, note, part)
    return sealed(header, HEADER_BYTES, KEYS[key]) + body


def test_what_is_of_no_kind_that_the_method_sends_is_refused():
    assert opened(forged()).numbers == (3,)
    assert refused(forged(tag="other")) == "wrong-kind"
    assert refused(forged(note=())) == "wrong-kind"
    assert refused(forged(note=(1, 2))) == "wrong-kind"
    assert refused(forged(part=0)) == "wrong-kind"
    assert refused(forged(tag="piece", note=(), part=2, body=bytes(8))) == "wrong-kind"
    assert refused(forged(tag="piece", note=(), part=-2, body=bytes(8))) == "wrong-kind"
    assert refused(forged(tag="piece", note=(), part=0, body=bytes(8))) == "wrong-shape"  # that part has four numbers
    assert refused(forged(body=bytes(20))) == "wrong-shape"
    assert refused(forged(tensors=(("x", (6,), "float64"),))) == "wrong-dtype"
    assert refused(forged(tag="word", note=(1, 2))) == "wrong-kind"  # words carry nothing
    assert refused(forged(tensors=(), body=b"", tag="word", note=(1, 2))[:-1]) == "malformed"


def test_what_is_signed_by_another_changed_or_insane_is_refused():
    assert refused(forged(key=2)) == "wrong-signature"
    assert refused(forged(sender=7)) == "unknown-sender"
    frame = bytearray(forged())
    frame[-1] ^= 1
    assert refused(frame) == "wrong-signature"
    assert refused(forged(body=np.full(6, 101.0, np.float32).tobytes())) == "insane"
    assert refused(forged(body=np.full(6, np.nan, np.float32).tobytes())) == "insane"
    assert refused(forged(note=(-1,))) == "implausible"
    assert refused(forged(note=(LARGEST_NUMBER + 1,))) == "implausible"
    assert refused(forged(number=-1)) == "malformed"
    assert refused(forged() + b"\0") == "oversized"
    assert refused(forged(graph=b"12345678")) == "malformed"
    assert refused(MAGIC + bytes(60)) == "malformed"


def test_a_model_that_was_asked_for_is_whole_and_says_nothing_else():
    frame = FORMAT.seal(3, 1, raw(ROW), KEYS[1], kind=STATE_TRANSFER)
    assert opened(frame).kind == STATE_TRANSFER
    assert refused(forged(tag=STATE_TRANSFER)) == "wrong-kind"  # with an age
    assert refused(forged(tag=STATE_TRANSFER, note=(), tensors=(), body=b"")) == "wrong-kind"
    with pytest.raises(BadInput, match="models for returning nodes"):
        MessageFormat.without_rounds(bytes(16), COLUMN, (MessageKind(STATE_TRANSFER),), ())


def test_the_fullest_header_has_room_and_what_has_none_is_said():
    assert FORMAT.frame_bytes == HEADER_BYTES + 24
    with pytest.raises(BadInput, match="at most 16 ASCII"):
        MessageFormat.without_rounds(bytes(16), COLUMN, (MessageKind("x" * 17),), ())
    with pytest.raises(BadInput, match="at most 4 whole numbers"):
        MessageFormat.without_rounds(bytes(16), COLUMN, (MessageKind(notes=5),), ())
    with pytest.raises(
        RunFailed, match=r"node 1 sends a message \(tag = 'x', a row, note = \(\), part = None\) of no kind"
    ):
        FORMAT.check_own(1, "x", True, (), None)


# -- handles ----------------------------------------------------------------------------------------------------------


def test_a_mixture_is_added_in_the_order_of_its_terms():
    torch.manual_seed(1)
    rows = [torch.randn(1000) for _ in range(4)]
    weights = [0.1, 0.7, -0.3, 0.5]
    handles = HostedModels()
    found = handles.value(handles.mix([(w, GivenModel(row)) for w, row in zip(weights, rows, strict=True)]))
    expected = torch.mul(rows[0], weights[0])
    for weight, row in zip(weights[1:], rows[1:], strict=True):
        add(expected, row, weight)
    assert torch.equal(found, expected)


def test_parts_of_models_and_parts_that_came_are_mixed_alike():
    which = [torch.tensor([0, 2, 5]), torch.tensor([1, 3, 4])]
    handles = HostedModels(which)
    base, other = GivenModel(torch.arange(6.0)), GivenModel(torch.arange(6.0) * 10)
    came = handles.cut(other, 1)
    assert handles.value(came).tolist() == [10, 30, 40]
    whole = handles.value(handles.patch(base, {1: [(0.5, base), (0.5, other)]}))
    assert torch.equal(whole, handles.value(handles.patch(base, {1: [(0.5, base), (0.5, came)]})))
    assert whole.tolist() == [0, 5.5, 2, 16.5, 22, 5]


def test_long_chains_are_computed_once_by_whichever_thread_and_then_hold_nothing():
    handles, holding = HostedModels(), Holding(10_000)
    model = GivenModel(torch.zeros(3))
    for _ in range(5000):
        model = handles.mix([(1.0, model), (1.0, holding.take(1, torch.ones(3)))])
    assert holding.of(1) == 5000
    found = []
    threads = [threading.Thread(target=lambda: found.append(handles.value(model))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(row is found[0] for row in found)
    assert found[0].tolist() == [5000] * 3
    gc.collect()
    assert holding.of(1) == 0


def test_of_one_sender_no_more_is_held_than_allowed():
    holding = Holding(2)
    rows = [holding.take(1, ROW), holding.take(1, ROW)]
    assert holding.take(1, ROW) is None
    assert holding.take(2, ROW) is not None
    rows.pop()
    assert holding.take(1, ROW) is not None


def test_sane_numbers_are_finite_and_not_too_large():
    assert sane(torch.tensor([99.0, 99.0]), 100)  # together they are longer than that
    assert not sane(torch.tensor([101.0]), 100)
    assert not sane(torch.tensor([float("nan")]), 100)


# -- messages ----------------------------------------------------------------------------------------------------------


class Link:
    """A transport whose links can be held up."""

    def __init__(self):
        self.gate, self.began, self.sent = threading.Event(), threading.Event(), []
        self.gate.set()

    def payload(self, frame):
        return bytes(frame)

    def send(self, carrier, payload, node_ids):
        self.began.set()
        self.gate.wait()
        self.sent.append((carrier, payload, node_ids))
        return True


class Hosted(AsynchronousNode):
    """What of a hosted node messages ask for."""

    def __init__(self, node_id):
        self.node_id, self.format, self.books = node_id, FORMAT, []
        self.identity = type("Identity", (), {"key": KEYS[node_id]})
        membership = type("Roster", (), {"carrier": staticmethod(lambda node_id: node_id)})
        self.member = type("Member", (), {"membership": membership})

    def sent(self, messages, left, *, local=False, each=None):
        self.books.append((messages, left, local, each))


class SendMessage:
    """Messages of two nodes of one process, and what came of them."""

    def __init__(self):
        self.link, self.events, self.refused, self.failed = Link(), [], [], []
        self.outbox = Outbox(self.link, nodes=4, senders=2 * FORMAT.parts)
        self.nodes = {0: Hosted(0), 1: Hosted(1)}
        desk = type("Desk", (), {"put": staticmethod(lambda node_id, event: self.events.append((node_id, event)))})
        which = [torch.tensor([0, 1, 2, 3]), torch.tensor([4, 5])]
        self.messages = Messages(
            self.nodes, HostedModels(which), COLUMN, torch.device("cpu"), desk, self.outbox, self.link, self.refused.append,
            self.failed.append,
        )  # fmt: skip

    def end(self):
        self.messages.flush(5)
        self.messages.close()
        self.outbox.close()
        return self


@pytest.fixture
def post():
    made = SendMessage()
    yield made
    made.link.gate.set()
    made.messages.close()
    made.outbox.close()


def test_a_message_leaves_signed_for_others_and_as_it_is_for_places_of_the_process(post):
    row = GivenModel(ROW)
    assert post.messages.carry_out(post.nodes[0], e.SendMessage(5, (1, 2, 3), row, "", (9,), None))
    post.end()
    ((node_id, event),) = post.events
    assert (node_id, event.sender, event.number, event.message.row) == (1, 0, 5, row)
    assert sorted(carrier for carrier, _, _ in post.link.sent) == [2, 3]
    message = opened(post.link.sent[0][1])
    assert (message.sender, message.counter, message.numbers) == (0, 5, (9,))
    assert sorted(post.nodes[0].books) == [(1, True, False, 24), (1, True, False, 24), (1, True, True, 24)]


def test_a_part_is_sent_alone_and_a_word_without_numbers(post):
    post.messages.carry_out(post.nodes[0], e.SendMessage(5, (1, 2), GivenModel(ROW), "piece", (), 1))
    post.messages.carry_out(post.nodes[0], e.SendMessage(6, (2,), None, "word", (1, 2), None))
    post.end()
    assert [len(payload) - HEADER_BYTES for _, payload, _ in post.link.sent] == [8, 0]
    ((_, event),) = post.events
    assert event.message.part == 1
    assert HostedModels([torch.tensor([0]), torch.tensor([4, 5])]).value(event.message.row).tolist() == [4, 5]


def test_what_has_not_begun_to_leave_is_taken_back(post):
    post.link.gate.clear()
    for number in range(1, 4):
        post.messages.carry_out(post.nodes[0], e.SendMessage(number, (2,), GivenModel(ROW), "", (0,), None))
    post.messages.carry_out(post.nodes[1], e.SendMessage(9, (2,), GivenModel(ROW), "", (0,), None))
    done = threading.Event()
    post.messages._put(_Job(post.nodes[0], done.set))
    assert done.wait(5)  # all are signed, and wait for the link ...
    assert post.link.began.wait(5)  # ... but for the first, which is on its way
    post.messages.carry_out(post.nodes[0], e.Withdraw())
    post.link.gate.set()
    post.end()
    assert [(opened(p).sender, opened(p).counter) for _, p, _ in post.link.sent] == [(0, 1), (1, 9)]


def test_flushing_waits_for_what_is_still_computed_and_sealed_but_no_longer_than_it_may(post):
    hold = threading.Event()
    post.messages._put(_Job(post.nodes[0], lambda: hold.wait(60)))
    post.messages.carry_out(post.nodes[0], e.SendMessage(1, (2,), GivenModel(ROW), "", (0,), None))
    post.messages.flush(0.05)
    assert post.link.sent == []
    threading.Timer(0.1, hold.set).start()
    post.messages.flush(60)
    assert len(post.link.sent) == 1


def test_a_node_that_sends_faster_than_can_be_signed_loses_its_oldest_messages(post):
    hold = threading.Event()
    post.messages._put(_Job(post.nodes[0], hold.wait))
    most = MOST_WAITING * FORMAT.parts
    for number in range(1, most + 4):
        post.messages.carry_out(post.nodes[0], e.SendMessage(number, (2,), None, "word", (0, 0), None))
    assert len(post.messages._jobs) <= most + 1
    assert [book[1] for book in post.nodes[0].books] in ([False] * 3, [False] * 2)
    hold.set()


def test_what_comes_is_handed_on_and_no_more_of_one_sender_than_can_be_held(post):
    most = 2 * most_of_one(FORMAT)  # two nodes
    messages = [opened(FORMAT.seal(i, 2, raw(ROW), KEYS[2], numbers=(i,))) for i in range(3 + most)]
    for message in messages:
        post.messages.came(message, (0,))
    assert len(post.events) == most
    assert post.refused == ["overflow"] * 3
    node_id, event = post.events[1]
    assert (node_id, event.sender, event.number, event.note, event.message.sent_at) == (0, 2, 1, (1,), 1)
    assert event.message.row.value.tolist() == ROW.tolist()
    post.events.clear()
    del event
    post.messages.came(messages[0], (1, 3))  # what was let go can come again; place 3 is not here
    assert [node_id for node_id, _ in post.events] == [1]


def test_a_message_of_no_kind_is_an_error_of_the_method(post):
    with pytest.raises(RunFailed, match="of no kind that its method lists"):
        post.messages.carry_out(post.nodes[0], e.SendMessage(1, (2,), GivenModel(ROW), "", (), None))


# -- what cannot be deployed ------------------------------------------------------------------------------------------


def test_a_run_that_would_not_end_or_is_drawn_by_the_simulator_is_refused():
    def tried(clock, **changed):
        check_deployable(
            ep.Experiment(nodes=4, topology=ep.ELLocal(2), algorithm=AsyncEL(), clock=clock, seeds=(1,), **changed)
        )

    tried(Clock(stop=5))
    with pytest.raises(BadInput, match=r"has no rounds after which a deployed run would end: give it clock\.stop"):
        tried(Clock())
    with pytest.raises(BadInput, match=r"clock\.megabytes = 3 is for simulations"):
        tried(Clock(stop=5, megabytes=3))
    with pytest.raises(BadInput, match=r"clock\.churn is drawn by the simulator only"):
        tried(Clock(stop=5, churn=ExponentialChurn(mean_on=5, mean_off=5)))
    with pytest.raises(BadInput, match=r'network\.close\.kind = "quorum" has no meaning'):
        tried(Clock(stop=5), network=ep.Network(close=CloseQuorum(q=0.5, deadline=1)))


def test_rounds_under_a_clock_are_deployed_only_if_they_end_as_the_clock_says():
    def tried(clock, **changed):
        check_deployable(ep.Experiment(nodes=4, topology=ep.ELLocal(2), clock=clock, seeds=(1,), **changed))

    tried(Clock())
    for close in (CloseDeadline(seconds=1.0, late="carry"), CloseQuorum(q=0.5, deadline=2)):
        tried(Clock(close=close), network=ep.Network(close=close))
        tried(Clock(), network=ep.Network(close=close))
        with pytest.raises(
            BadInput, match=r'clock\.close = {kind = "(deadline|quorum)", .* contradict each other; give both the same'
        ):
            tried(Clock(close=close))
    with pytest.raises(BadInput, match=r'clock\.close\.kind = "schedule" needs one clock .* use "deadline"'):
        tried(Clock(close=CloseSchedule(seconds=1.0)))
    with pytest.raises(BadInput, match=r"clock\.stop is for simulations: deployed rounds end after rounds"):
        tried(Clock(stop=5))
    with pytest.raises(BadInput, match=r"clock\.churn is drawn by the simulator only"):
        tried(Clock(close=CloseDeadline(seconds=1.0), churn=ExponentialChurn(mean_on=5, mean_off=5)))


def test_statuses_of_older_nodes_are_read():
    from epidemic.deploy.status import Status

    names = {field.name for field in msgspec.structs.fields(Status) if field.required}
    assert not {"trained", "left"} & names
