"""Frames: what was sealed is opened unchanged; whatever else comes is refused with a reason, and never crashes."""

import tracemalloc

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from epidemic.algorithms import WIDTH, Column
from epidemic.core.errors import BadInput
from epidemic.deploy.wire import CONTROL_BYTES, HEADER_BYTES, MAGIC, REASONS, STATE_TRANSFER, MessageFormat, Refused
from epidemic.record import CONTROL_BYTES as ACCOUNTED_OFFER
from epidemic.record import HEADER_BYTES as ACCOUNTED_HEADER

RUN = bytes(range(16))
KEYS = {i: Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in range(4)}
FORMAT = MessageFormat.in_rounds(RUN, (Column("x", (50,), "float32"), Column("y", (3, 2), "float64")))


def key_of(node_id):
    if node_id == 3:
        raise Refused("revoked")
    return KEYS[node_id].public_key() if node_id in KEYS else None


def numbers(seed=0, **changed):
    rng = np.random.default_rng(seed)
    x = {"x": rng.normal(size=50).astype("<f4"), "y": rng.normal(size=6).astype("<f8"), **changed}
    return {name: value.view(np.uint8) for name, value in x.items()}


def sealed(format=FORMAT, round=7, sender=1, graph=b"12345678", key=None, **changed):
    return bytes(format.seal(round, sender, numbers(**changed), key or KEYS[sender], graph=graph))


def reason(frame, format=FORMAT):
    with pytest.raises(Refused) as refusal:
        format.open(frame, key_of)
    return refusal.value.reason


def test_a_frame_is_header_and_numbers_and_costs_what_is_accounted():
    frame = sealed()
    assert (HEADER_BYTES, CONTROL_BYTES) == (ACCOUNTED_HEADER, ACCOUNTED_OFFER) == (256, 128)
    assert len(frame) == HEADER_BYTES + 50 * 4 + 6 * 8 == FORMAT.frame_bytes
    assert len(FORMAT.seal_offer(3, 1, 2, KEYS[1])) == CONTROL_BYTES


@given(st.integers(0, 2**62), st.sampled_from([0, 1, 2]), st.binary(min_size=8, max_size=8), st.integers(0, 99))
def test_what_was_sealed_is_opened_unchanged_without_copying(round, sender, graph, seed):
    frame = bytes(FORMAT.seal(round, sender, numbers(seed), KEYS[sender], graph=graph))
    message = FORMAT.open(frame, key_of)
    assert (message.counter, message.sender, message.graph) == (round, sender, graph)
    for name, raw in numbers(seed).items():
        assert bytes(message.columns[name]) == raw.tobytes()
        assert message.columns[name].obj is frame


def test_every_refusal_has_its_reason():
    frame = sealed()
    assert reason(b"") == reason(b"\x80\x04pickle") == reason(frame[:100]) == "malformed"
    assert reason(frame[:-1]) == "malformed"
    assert reason(frame + b"\0") == "oversized"
    assert reason(b"EPL\x01" + frame[4:]) == "malformed"
    assert reason(sealed(MessageFormat.in_rounds(bytes(16), FORMAT.columns))) == "wrong-run"
    other = MessageFormat.in_rounds(RUN, (Column("x", (62,), "float32"),))
    assert reason(bytes(other.seal(7, 1, {"x": np.zeros(248, np.uint8)}, KEYS[1], graph=bytes(8)))) == "wrong-shape"
    swapped = MessageFormat.in_rounds(RUN, (Column("x", (50,), "float16"), Column("y", (3, 2), "float64")))
    half = {"x": np.zeros(100, np.uint8), "y": np.zeros(48, np.uint8)}
    assert reason(bytes(swapped.seal(7, 1, half, KEYS[1], graph=bytes(8)))) == "wrong-dtype"
    assert reason(sealed(sender=9, key=KEYS[1])) == "unknown-sender"
    assert reason(sealed(sender=3)) == "revoked"
    assert reason(sealed(sender=2, key=KEYS[1])) == "wrong-signature"  # a member that signs as somebody else
    assert reason(frame[:-1] + bytes([frame[-1] ^ 1])) == "wrong-signature"  # changed on the way


def test_where_voices_count_by_samples_the_header_tells_how_many_and_is_as_long():
    counted = MessageFormat.in_rounds(RUN, FORMAT.columns, most_samples=1000)

    def telling(*told):
        return bytes(counted.seal(7, 1, numbers(), KEYS[1], graph=b"12345678", numbers=told))

    for samples in (1, 127, 128, 1000):
        assert len(telling(samples)) == FORMAT.frame_bytes
        assert counted.samples_of(counted.open(telling(samples), key_of)) == samples
    for samples in (0, -1, 1001, 2**63):
        assert reason(telling(samples), counted) == "wrong-samples"
    for samples in (True, 5.0, "5", None):
        assert reason(telling(samples), counted) == "malformed"
    assert reason(sealed(), counted) == "wrong-kind"  # a message that does not tell
    assert reason(telling(5, 6), counted) == "wrong-kind"
    told = telling(5)
    assert reason(told) == "wrong-kind"  # one that tells what nobody asked for
    last = 4 + int.from_bytes(told[4:6], "little")
    assert told[last] == 5
    assert reason(told[:last] + b"\x06" + told[last + 1 :], counted) == "wrong-signature"  # the number is signed
    assert FORMAT.samples_of(FORMAT.open(sealed(), key_of)) == 0  # it is not told


def test_with_a_committed_coin_the_header_has_the_link_and_is_as_long():
    committed = MessageFormat.in_rounds(RUN, FORMAT.columns, graph_bytes=32)
    link = bytes(range(32))
    frame = bytes(committed.seal(2**62, 1, numbers(), KEYS[1], graph=link))
    assert len(frame) == FORMAT.frame_bytes
    assert committed.open(frame, key_of).graph == link
    assert reason(frame) == reason(sealed(), committed) == "malformed"  # a link that nobody asked for, or none
    for length in (0, 8, 31, 33):
        assert reason(bytes(committed.seal(7, 1, numbers(), KEYS[1], graph=bytes(length))), committed) == "malformed"
    at = frame.index(link)
    changed = frame[:at] + b"\xff" + frame[at + 1 :]
    assert reason(changed, committed) == "wrong-signature"  # the link is signed
    given = bytes(committed.seal(7, 1, numbers(), KEYS[1], kind=STATE_TRANSFER))
    assert committed.open(given, key_of).kind == STATE_TRANSFER  # a model that was asked for has none
    assert (
        reason(bytes(committed.seal(7, 1, numbers(), KEYS[1], kind=STATE_TRANSFER, graph=link)), committed)
        == "malformed"
    )


def as_type(values, dtype):
    """Numbers as they are sent: 16 bits of a float32 for bfloat16, which NumPy does not have."""
    wide = np.array(values, dtype=np.float64 if dtype == "float64" else np.float32)
    raw = (wide.view(np.uint32) >> 16).astype("<u2") if dtype == "bfloat16" else wide.astype(dtype)
    return raw.view(np.uint8)


def carrying(values, dtype, **options):
    """A format of one tensor, and a frame with these numbers in it."""
    format = MessageFormat.in_rounds(RUN, (Column("x", (len(values),), dtype),), **options)
    return format, bytes(format.seal(0, 1, {"x": as_type(values, dtype)}, KEYS[1], graph=bytes(8)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("largest", [np.inf, 1e3])
@pytest.mark.parametrize("dtype", WIDTH)
def test_numbers_that_are_not_finite_are_refused_in_every_type(value, largest, dtype):
    format, frame = carrying([1, 2, value, 3, 4], dtype, largest=largest)
    assert reason(frame, format) == "insane"


@pytest.mark.parametrize("dtype", WIDTH)
def test_numbers_are_taken_up_to_the_largest_magnitude_and_refused_beyond_it(dtype):
    for value in (1024.0, -1024.0):
        format, frame = carrying([0, value, 1], dtype, largest=1024.0)
        assert format.open(frame, key_of).sender == 1
    for value in (1032.0, -1032.0, 60000.0):
        format, frame = carrying([0, value, 1], dtype, largest=1024.0)
        assert reason(frame, format) == "insane"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_finite_numbers_that_would_explode_are_refused(dtype):
    format, frame = carrying([3e38] * 40, dtype, largest=1e6)
    assert reason(frame, format) == "insane"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_sane_numbers_are_taken_although_their_squares_add_up_to_more(dtype):
    format, frame = carrying([9e5] * 5000, dtype, largest=1e6)
    assert format.open(frame, key_of).counter == 0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_largest_finite_numbers_are_accepted_where_nothing_is_too_large(dtype):
    format = MessageFormat.in_rounds(RUN, (Column("x", (5,), dtype),))
    raw = np.full(5, np.finfo(dtype).max, dtype=dtype)
    frame = bytes(format.seal(0, 1, {"x": raw.view(np.uint8)}, KEYS[1], graph=bytes(8)))
    assert bytes(format.open(frame, key_of).columns["x"]) == raw.tobytes()


def test_offers_are_signed_and_bound_to_their_run():
    raw = FORMAT.seal_offer(5, 1, 2, KEYS[1])
    offer = FORMAT.open_offer(raw, key_of)
    assert (offer.round, offer.sender, offer.receiver) == (5, 1, 2)
    for bad, why in (
        (raw + b"\0", "oversized"),
        (raw[:50], "malformed"),
        (FORMAT.seal_offer(5, 1, 2, KEYS[2]), "wrong-signature"),
        (MessageFormat.in_rounds(bytes(16), FORMAT.columns).seal_offer(5, 1, 2, KEYS[1]), "wrong-run"),
        (sealed()[:128], "malformed"),
    ):
        with pytest.raises(Refused) as refusal:
            FORMAT.open_offer(bad, key_of)
        assert refusal.value.reason == why


@settings(max_examples=400)
@given(st.binary(max_size=700))
def test_random_bytes_are_refused(raw):
    assert reason(raw) in REASONS
    assert reason(MAGIC + raw) in REASONS


@settings(max_examples=400)
@given(st.data())
def test_no_mutation_of_a_frame_is_accepted(data):
    frame = bytearray(sealed())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at] ^= data.draw(st.integers(1, 255))
    if bytes(frame) != sealed():
        assert reason(bytes(frame)) in REASONS


def test_a_hundred_thousand_bad_frames_are_refused_and_leave_nothing_behind():
    rng = np.random.default_rng(1)
    good = sealed()
    counted = dict.fromkeys(REASONS, 0)
    for i in range(100_000):
        if i == 80_000:  # tracing doubles the time; whatever a frame leaves behind, 20,000 of them leave as well
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
        kind = i % 4
        if kind == 0:
            frame = rng.bytes(int(rng.integers(0, 600)))
        elif kind == 1:
            frame = bytearray(good)
            frame[int(rng.integers(len(frame)))] ^= int(rng.integers(1, 256))
        elif kind == 2:
            frame = good[: int(rng.integers(len(good)))]
        else:  # header in disorder behind a good beginning
            frame = MAGIC + int(rng.integers(0, 300)).to_bytes(2, "little") + rng.bytes(len(good) - 6)
        try:
            FORMAT.open(bytes(frame), key_of)
            raise AssertionError("a bad frame was accepted")
        except Refused as refusal:
            counted[refusal.reason] += 1
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert sum(counted.values()) == 100_000
    assert counted["malformed"] > 50_000
    assert counted["wrong-signature"] > 10_000
    assert grown < 10_000


def test_a_message_that_does_not_fit_a_header_is_an_error_that_says_so():
    with pytest.raises(BadInput, match="shorter names"):
        MessageFormat.in_rounds(
            RUN, tuple(Column(f"a rather long name of a tensor {i}", (3,), "float32") for i in range(9))
        )
    with pytest.raises(BadInput, match="'int64' is not known"):
        MessageFormat.in_rounds(RUN, (Column("x", (3,), "int64"),))
