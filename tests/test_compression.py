"""Codecs: exact sizes, what comes back, what strangers may send, and how a coordinate that few speak of is averaged."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import epidemic as ep
from epidemic import theory
from epidemic.algorithms import Column
from epidemic.compression import CODECS, BFloat16, Float16, Int8, RandomK, TopK, Uncompressed, codec_from
from epidemic.compression.base import LONG, SAMPLE, smallest
from epidemic.compression.rounded import BUCKET, LEVELS
from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers
from epidemic.mixing import weights
from epidemic.runtime.inbox import MatrixInbox, MessageInbox, Received
from epidemic.runtime.message_coding import SENT, Coder

WORKERS = Workers(1)
GN_LENET = 89_834
EVERY = [
    Uncompressed(),
    Float16(),
    BFloat16(),
    Int8(),
    TopK(0.02),
    TopK(0.3),
    RandomK(0.02),
    RandomK(0.3),
    RandomK(0.8),
]


def rows_of(k, d, seed, dtype=torch.float32):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((k, d)) * 10.0 ** rng.integers(-3, 3, (k, d))).to(dtype)


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "size"),
    [
        (Uncompressed(), 359_336),
        (Float16(), 179_668),
        (BFloat16(), 179_668),
        (Int8(), 90_538),
        (TopK(0.01), 7_184),  # indices
        (TopK(0.1), 47_162),  # a bitmap
        (TopK(0.25), 101_062),
        (RandomK(0.01), 3_600),
        (RandomK(0.1), 35_940),
        (RandomK(0.25), 89_840),
    ],
)
def test_a_model_of_the_paper_takes_exactly_these_bytes(codec, size):
    assert codec.bytes(GN_LENET, "float32") == size
    assert codec.encode(rows_of(2, GN_LENET, 1), [1, 2]).shape == (2, size)


@pytest.mark.parametrize("codec", EVERY, ids=repr)
@given(st.integers(1, 5), st.integers(1, 1500), st.integers(0, 2**31), st.sampled_from(["float32", "float64"]))
@settings(max_examples=25)
def test_what_is_said_survives_the_bytes_and_rows_do_not_depend_on_each_other(codec, k, d, seed, dtype):
    rows, keys = rows_of(k, d, seed, getattr(torch, dtype)), [seed + i for i in range(k)]
    raw = codec.encode(rows, keys)
    assert raw.dtype == torch.uint8
    assert raw.shape == (k, codec.bytes(d, dtype))
    said = codec.decode(raw, d, dtype)
    assert said.rows.shape == (k, d)
    assert said.rows.dtype == rows.dtype
    for i in range(k):  # a host of one node makes and reads the same bytes
        alone = codec.encode(rows[i : i + 1], keys[i : i + 1])
        assert torch.equal(alone[0], raw[i])
        read = codec.decode(alone, d, dtype)
        assert torch.equal(read.rows[0], said.rows[i])
        assert codec.problem(memoryview(alone.numpy().tobytes()), d, dtype, 1e6) is None
    if said.mask is not None:
        assert said.mask.sum(1).tolist() == [codec.kept(d)] * k
        assert torch.equal(said.rows, torch.where(said.mask, rows, torch.zeros_like(rows)))  # the true values
    if codec.exact:
        assert torch.equal(said.rows, rows)


@given(st.floats(0.001, 1), st.integers(1, 10_000))
def test_the_smaller_layout_of_top_k_is_taken(share, d):
    codec = TopK(share)
    k = codec.kept(d)
    assert 1 <= k <= d
    assert codec.bytes(d, "float32") == min(8 * k, 4 * k + math.ceil(d / 8))


def test_shares_that_floating_point_puts_just_below_a_whole_number_count_as_it():
    assert [TopK(0.29).kept(100), RandomK(0.07).kept(100), RandomK(0.001).kept(10)] == [29, 7, 1]


# -- what they guarantee ----------------------------------------------------------------------------------------------


def test_casts_round_to_nearest():
    x = rows_of(4, 5000, 3)
    x = x[:, x.abs().amin(0) > 1e-4]
    for codec, bits in ((Float16(), 11), (BFloat16(), 8)):
        found = codec.decode(codec.encode(x, range(4)), x.shape[1], "float32").rows
        assert float(((found - x) / x).abs().max()) <= 2.0**-bits


def test_int8_has_no_bias_and_less_variance_than_its_bound():
    """5 sigma over 4000 messages of one row, in every coordinate."""
    d, messages = 700, 4000
    x = rows_of(1, d, 5)
    raw = Int8().encode(x.repeat(messages, 1), range(messages))
    found = Int8().decode(raw, d, "float32").rows.double()
    whole = torch.nn.functional.pad(x, (0, 2 * BUCKET - d)).reshape(2, BUCKET)
    step = (whole.abs().amax(1) / LEVELS).repeat_interleave(BUCKET)[:d].double()
    assert float((found - x).abs().div(step).max()) <= 1 + 1e-5  # one of the two levels beside it
    error = (found.mean(0) - x[0]).abs()
    assert (error <= 5 * step / 2 / messages**0.5 + step * 2**-16).all()
    for bucket in range(2):
        part = slice(bucket * BUCKET, min(d, (bucket + 1) * BUCKET))
        norm = float(x[0, part].double().square().sum())
        variance = float((found[:, part] - x[0, part]).square().sum(1).mean())
        assert variance <= min(BUCKET / LEVELS**2, BUCKET**0.5 / LEVELS) * norm
        assert variance <= float(step[part].square().sum()) / 4 * 1.05


def test_int8_is_exact_where_numbers_are_levels_and_where_there_is_nothing():
    x = torch.arange(-127, 128).float()[None] * 0.5
    assert torch.equal(Int8().decode(Int8().encode(x, [7]), 255, "float32").rows, x)
    zero = torch.zeros(1, 600)
    assert torch.equal(Int8().decode(Int8().encode(zero, [7]), 600, "float32").rows, zero)


def test_masks_of_random_k_are_uniform():
    """Every coordinate, and every pair of coordinates, as often as in a uniform subset, at 5 sigma."""
    d, messages, codec = 10, 4000, RandomK(0.3)
    keys = [Streams(1).key("compression", t, 5) for t in range(messages)]
    mask = codec.decode(codec.encode(torch.ones(messages, d), keys), d, "float32").mask.double()
    assert float((mask.mean(0) - 0.3).abs().max()) < 5 * (0.3 * 0.7 / messages) ** 0.5
    pairs = (mask.T @ mask / messages)[~torch.eye(d, dtype=torch.bool)]
    p = 0.3 * 2 / 9
    assert float((pairs - p).abs().max()) < 5 * (p * (1 - p) / messages) ** 0.5


@given(st.integers(2, 300), st.integers(0, 2**31), st.floats(0.01, 1))
def test_top_k_takes_the_largest_changes_and_of_equal_ones_the_first(d, seed, share):
    rng = np.random.default_rng(seed)
    x, before = (torch.from_numpy(rng.integers(-3, 4, (1, d))).float() for _ in range(2))
    codec = TopK(share)
    mask = codec.decode(codec.encode(x, [0], before.clone()), d, "float32").mask[0].numpy()
    change = (x - before)[0].abs().numpy()
    order = np.lexsort((np.arange(d), -change))[: codec.kept(d)]
    assert np.flatnonzero(mask).tolist() == sorted(order.tolist())


def test_top_k_keeps_this_share_of_the_energy_of_gaussian_numbers():
    x = torch.from_numpy(Streams(1)("gaussian").normals(1, 100_000)).float()
    for share, energy in ((0.01, 0.086), (0.1, 0.44)):
        codec = TopK(share)
        found = codec.decode(codec.encode(x, [0]), x.shape[1], "float32").rows
        assert float(found.square().sum() / x.square().sum()) == pytest.approx(energy, abs=0.006)


@pytest.mark.parametrize("d", [1, 2, 100, LONG - 1, LONG, LONG + 1, 3 * LONG + 7])
@pytest.mark.parametrize("kind", ["any", "few values", "equal", "ascending", "unfair sample"])
@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_the_smallest_are_found_as_by_a_stable_sort(d, kind, dtype):
    rng = np.random.default_rng(d)
    rows = {
        "any": rng.integers(0, 2**31, (2, d)),
        "few values": rng.integers(0, 3, (2, d)),
        "equal": np.full((2, d), 7),
        "ascending": np.tile(np.arange(d), (2, 1)),
        "unfair sample": np.tile(np.where(np.arange(d) % max(1, d // SAMPLE), 5 + np.arange(d), 0), (2, 1)),
    }[kind].astype(dtype)
    for kept in sorted({1, min(2, d), max(1, d // 100), max(1, d // 4), max(1, d - 1), d}):
        where = smallest(rows, kept)
        for row, one in zip(rows, where, strict=True):
            assert one.tolist() == sorted(np.argsort(row, kind="stable")[:kept].tolist())


def test_top_k_takes_what_is_no_number_for_infinite():
    x = torch.tensor([[1.0, float("nan"), -2.0, float("-inf"), -0.0, float("inf"), -float("nan")]])
    for kept, where in ((1, [1]), (2, [1, 3]), (4, [1, 3, 5, 6]), (5, [1, 2, 3, 5, 6])):
        for dtype in (torch.float32, torch.float64):
            codec = TopK(kept / 7)
            said = codec.decode(codec.encode(x.to(dtype), [0]), 7, str(dtype).removeprefix("torch."))
            assert np.flatnonzero(said.mask[0].numpy()).tolist() == where


@pytest.mark.parametrize(("codec", "number"), [(Float16(), 65_520.0), (Float16(), -1e9), (BFloat16(), 3.4e38)])
def test_a_number_that_a_message_cannot_hold_is_refused_in_a_line(codec, number):
    """It would arrive as an infinite one, and every receiver's model with it."""
    x = torch.tensor([[1.0, 65_504.0, number]])
    with pytest.raises(
        ep.RunFailed, match=r'compression.kind = "b?float16": a model has a number of magnitude .*; use kind = "int8"'
    ):
        codec.encode(x, [0])
    gone = torch.tensor([[1.0, float("inf"), float("nan")]])  # diverged: said by its loss
    assert not codec.decode(codec.encode(gone, [0]), 3, "float32").rows.isfinite().all()


# -- what strangers may send ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [c for c in EVERY if not c.exact], ids=repr)
@given(st.data())
@settings(max_examples=60)
def test_any_bytes_are_refused_or_decode_to_sane_numbers(codec, data):
    d = data.draw(st.integers(1, 600))
    raw = data.draw(st.binary(min_size=codec.bytes(d, "float32"), max_size=codec.bytes(d, "float32")))
    problem = codec.problem(memoryview(raw), d, "float32", 1e3)
    assert problem in (None, "malformed", "insane")
    if problem is None:
        said = codec.decode(torch.frombuffer(bytearray(raw), dtype=torch.uint8)[None], d, "float32")
        assert said.rows.shape == (1, d)
        assert bool((said.rows.abs() <= 1e3 * (1 + 1e-6)).all())
        if said.mask is not None:
            assert int(said.mask.sum()) == codec.kept(d)


def changed(codec, d, change):
    raw = codec.encode(rows_of(1, d, 1), [3])[0].numpy().copy()
    change(raw)
    return codec.problem(memoryview(raw.tobytes()), d, "float32", 1e6)


def put(dtype, at, value):
    def change(raw):
        start = at % len(raw)
        raw[start : start + np.dtype(dtype).itemsize] = np.frombuffer(np.array(value, dtype).tobytes(), np.uint8)

    return change


@pytest.mark.parametrize(
    ("codec", "change", "problem"),
    [
        (Float16(), put("<f2", 0, np.inf), "insane"),
        (BFloat16(), put("<u2", 2, 0x7FC0), "insane"),
        (Int8(), put("<f4", 0, np.nan), "insane"),
        (Int8(), put("<f4", 0, np.inf), "insane"),
        (Int8(), put("<f4", 0, 1e5), "insane"),  # times 127
        (Int8(), put("<f4", 0, -1.0), "malformed"),
        (Int8(), put("i1", -1, -128), "malformed"),
        (RandomK(0.1), put("<f4", 8, 2e6), "insane"),
        (RandomK(0.1), put("<u8", 0, 2**64 - 1), None),
        (TopK(0.01), put("<i4", 0, -1), "malformed"),
        (TopK(0.01), put("<i4", 4 * 9, 1000), "malformed"),
        (TopK(0.01), lambda raw: raw.__setitem__(slice(4, 8), raw[:4]), "malformed"),  # one coordinate twice
        (TopK(0.01), put("<f4", 40, np.nan), "insane"),
        (TopK(0.3), lambda raw: raw.__setitem__(slice(0, 2), 255), "malformed"),  # more bits than values
        (TopK(0.3), put("<f4", -4, np.inf), "insane"),
    ],
)
def test_bytes_that_no_sane_sender_makes_are_refused(codec, change, problem):
    assert changed(codec, 1000, lambda raw: None) is None
    assert changed(codec, 1000, change) == problem


def test_bits_beyond_the_last_coordinate_are_refused():
    codec = TopK(0.5)
    raw = codec.encode(rows_of(1, 11, 1), [3])[0].numpy().copy()
    full = int(np.flatnonzero(np.unpackbits(raw[:1], bitorder="little"))[0])
    raw[0] ^= 1 << full
    raw[1] |= 1 << 5  # coordinate 13 of 11
    assert codec.problem(memoryview(raw.tobytes()), 11, "float32", 1e6) == "malformed"


# -- averaging --------------------------------------------------------------------------------------------------------


def coder(codec, d, fill="count", dtype="float32"):
    return Coder(codec, Column("x", (d,), dtype), Streams(1), fill, differences=False)


def inboxes(graph, x, code, round=0):
    """Those of a host of all nodes and of hosts of one each."""
    raw = code.encode(x, round, np.arange(len(x)), None, WORKERS)
    message, w = {"x": x, "x" + SENT: raw}, weights("uniform", graph)
    exchange = MatrixInbox(message, w, np.arange(len(x)), WORKERS, lambda _, like: torch.empty_like(like), code)
    received = [
        Received(at[1:].tolist(), [{"x": raw[j]} for j in at[1:]], share, 0 if graph.clique is not None else None)
        for at, share in w.by_row()
    ]
    return exchange, MessageInbox(message, received, WORKERS, code)


@st.composite
def graphs(draw):
    n = draw(st.integers(1, 9))
    if draw(st.booleans()):
        return Graph.complete(n)
    linked = np.array(draw(st.lists(st.booleans(), min_size=n * n, max_size=n * n))).reshape(n, n)
    np.fill_diagonal(linked, False)
    return Graph.from_edges(n, *np.nonzero(linked))


@settings(max_examples=100)
@given(
    graphs(), st.sampled_from(EVERY), st.sampled_from(["count", "own"]), st.integers(1, 70), st.integers(0, 2**31),
    st.sampled_from(["float32", "float64"]),
)  # fmt: skip
def test_a_host_of_all_and_hosts_of_one_average_compressed_messages_alike_to_the_last_bit(
    g, codec, fill, d, seed, dtype
):
    x = rows_of(g.n, d, seed, getattr(torch, dtype))
    exchange, post = inboxes(g, x, coder(codec, d, fill, dtype), seed % 1000)
    assert torch.equal(exchange.mean("x"), post.mean("x"))
    for a, b in zip(exchange.each("x"), post.each("x"), strict=True):
        assert torch.equal(a.received, b.received)
        assert torch.equal(a.own, b.own)


@given(graphs(), st.sampled_from([RandomK(0.4), TopK(0.4)]), st.integers(1, 40), st.integers(0, 2**31))
def test_each_coordinate_is_averaged_over_the_messages_that_have_it(g, codec, d, seed):
    x = rows_of(g.n, d, seed, torch.float64)
    said = codec.decode(codec.encode(x, [Streams(1).key("compression", 0, i) for i in range(g.n)]), d, "float64")
    count, own = (inboxes(g, x, coder(codec, d, fill, "float64"))[0].mean("x") for fill in ("count", "own"))
    for i in range(g.n):
        heard = g.into(i).tolist()
        for c in range(d):
            there = [j for j in heard if said.mask[j, c]]
            assert float(count[i, c]) == pytest.approx(
                float((x[i, c] + sum(x[j, c] for j in there)) / (1 + len(there))), rel=1e-9, abs=1e-9
            )
            filled = [x[j, c] if j in there else x[i, c] for j in heard]
            assert float(own[i, c]) == pytest.approx(
                float((x[i, c] + sum(filled)) / (1 + len(heard))), rel=1e-9, abs=1e-9
            )
            if not there:
                assert count[i, c] == own[i, c] == x[i, c]


def test_the_own_row_stays_exact():
    x = rows_of(4, 50, 1)
    lonely = Graph.empty(4)
    for codec in EVERY:
        assert torch.equal(inboxes(lonely, x, coder(codec, 50))[0].mean("x"), x)


@pytest.mark.parametrize(("phi", "factor"), [(0.5, 0.267410), (0.25, 0.465010), (0.1, 0.715687)])
def test_masks_of_each_senders_own_contract_as_published(phi, factor):
    """(96, 7), around the old mean: exact, and by Monte Carlo at 5 sigma."""
    assert theory.beta_with_loss(96, 7, 1 - phi) == pytest.approx(factor, abs=5e-7)
    n, d, rounds, found = 96, 100, 30, []
    codec, topology, streams = RandomK(phi), ep.ELLocal(7), Streams(3)
    for t in range(rounds):
        x = torch.from_numpy(streams("rows", t).normals(n, d))
        x -= x.mean(0)
        mixed = inboxes(topology.graph(n, t, streams), x, coder(codec, d, dtype="float64"), t)[0].mean("x")
        found.append(float(mixed.square().sum() / x.square().sum()))
    assert abs(np.mean(found) - factor) < 5 * np.std(found, ddof=1) / rounds**0.5
    assert np.std(found, ddof=1) / rounds**0.5 < 0.01


def test_one_mask_for_all_would_contract_less():
    """1 - phi (1 - factor) for half of the coordinates: published as 0.566119 for EL-Local and 0.557895 for EL-Oracle."""
    assert 1 - 0.5 * (1 - theory.beta(96, 7)) == pytest.approx(0.566119, abs=5e-7)
    assert 1 - 0.5 * (1 - theory.alpha(96, 7)) == pytest.approx(0.557895, abs=5e-7)
    assert theory.beta_with_loss(96, 7, 0.5) < 0.48 * 0.566119


def test_filling_with_the_own_value_mixes_more_slowly():
    """phi = 0.25: 0.664 against 0.464."""
    n, d, rounds = 96, 100, 30
    topology, streams = ep.ELLocal(7), Streams(4)
    for fill, factor in (("count", 0.465), ("own", 0.664)):
        found = []
        for t in range(rounds):
            x = torch.from_numpy(streams("rows", t).normals(n, d))
            x -= x.mean(0)
            code = coder(RandomK(0.25), d, fill, "float64")
            mixed = inboxes(topology.graph(n, t, streams), x, code, t)[0].mean("x")
            found.append(float(mixed.square().sum() / x.square().sum()))
        assert abs(np.mean(found) - factor) < 5 * np.std(found, ddof=1) / rounds**0.5 + 5e-4


def test_int8_adds_as_much_disagreement_as_predicted():
    """E[A / (A + 1)^2] step^2 / 6 a coordinate, where the nodes agree: rounding alone is left. step^2 / 6 is the mean over places between levels."""
    n, d, rounds = 48, 512, 12
    streams, topology, extra, expected = Streams(5), ep.ELLocal(5), [], []
    for t in range(rounds):
        x = torch.from_numpy(streams("row", t).uniforms(1, d) * 2 - 1).repeat(n, 1)
        graph = topology.graph(n, t, streams)
        mixed = inboxes(graph, x, coder(Int8(), d, dtype="float64"), t)[0].mean("x")
        degree = graph.in_degree
        step = float(x.abs().max()) / LEVELS
        extra.append(float((mixed - x).square().mean()) / step**2)
        expected.append(float((degree / (degree + 1) ** 2).mean()) / 6)
    assert abs(np.mean(extra) - np.mean(expected)) < 5 * np.std(np.subtract(extra, expected), ddof=1) / rounds**0.5


# -- tables -----------------------------------------------------------------------------------------------------------


def test_every_kind_is_built_from_a_table():
    for kind, cls in CODECS.items():
        table = {"kind": kind, **({"share": 0.25} if kind in ("random-k", "top-k") else {})}
        assert type(codec_from(table)) is cls


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "int4"}, r"compression.kind = 'int4' is not known; did you mean 'int8'"),
        ({"kind": "random-k"}, "compression.share is missing"),
        ({"kind": "random-k", "share": 0}, "compression.share = 0.0 must be greater than 0"),
        ({"kind": "top-k", "share": 1.5}, "compression.share = 1.5 must be at most 1"),
        ({"kind": "top-k", "share": 0.5, "fill": "mean"}, "compression.fill = 'mean' must be one of"),
        ({"kind": "int8", "share": 0.5}, "compression.share is not a known key"),
    ],
)
def test_wrong_tables_are_refused_in_a_line(table, message):
    with pytest.raises(ep.BadInput, match=message):
        codec_from(table)


def test_rows_that_are_no_numbers_stay_visible():
    """A model that has diverged is not hidden by its messages."""
    x = torch.tensor([[1.0, float("nan"), float("inf"), -2.0] * 10])
    for codec in (codec for codec in EVERY if not isinstance(codec, RandomK)):
        said = codec.decode(codec.encode(x, [1]), 40, "float32").rows
        assert not bool(torch.isfinite(said).all())
