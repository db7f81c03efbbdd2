"""Populations: nodes that are hosted together do what each would do alone, and who takes no part stays as it is."""

import numpy as np
import pytest
import torch

import epidemic as ep
from epidemic.core.workers import Workers
from epidemic.mixing import weights
from epidemic.runtime.inbox import MatrixInbox, MessageInbox, Received
from epidemic.runtime.population import Population
from epidemic.runtime.setup import make_learner, prepare

WORKERS = Workers(1)
N = 7
SOME = np.array([0, 2, 5])
OTHERS = np.array([1, 3, 4, 6])
ALGORITHMS = [
    ep.LocalSGD(lr=0.1, local_steps=2, batch_size=4, momentum=0.5),
    ep.LocalSGD(lr=0.1, batch_size=4, order="combine-then-adapt"),
    ep.PushSum(lr=0.1, batch_size=4, momentum=0.5),
    ep.LocalSGD(lr=0.01, local_steps=2, batch_size=4, optimizer="adam", clip=1.0, schedule=ep.StepDecay(rounds=1)),
    ep.QGMomentum(lr=0.1, batch_size=4),
    ep.ExactDiffusion(lr=0.1, batch_size=4),
    ep.GradientTracking(lr=0.1, local_steps=2, batch_size=4),
    ep.PushPull(lr=0.1, batch_size=4),
]


def population(algorithm, strategy="per-node", **changes):
    fields = {
        "nodes": N, "topology": ep.ELOracle(4), "data": ep.Digits(), "partition": ep.IID(), "model": ep.Logistic(),
        "algorithm": algorithm, "runtime": ep.Runtime(strategy=strategy),
    }  # fmt: skip
    setup = prepare(ep.Experiment(**{**fields, **changes}), 1)
    return Population(setup, make_learner(setup, WORKERS)[0])


def exchange(nodes, message, who=None):
    """Everybody (or everybody of some) hears everybody."""
    ids = nodes.ids if who is None else nodes.ids[who]
    graph = ep.Graph.complete(len(ids)).explicit()
    return MatrixInbox(message, weights("uniform", graph), ids, WORKERS, nodes.memory)


def play(nodes, rounds=2):
    """Some whole rounds, so that no two nodes are alike."""
    for t in range(rounds):
        message, _ = nodes.local_update(t, np.full(N, 3))
        graph = ep.ELLocal(3).graph(N, t, ep.Streams(5))
        nodes.aggregate(
            MatrixInbox(message, weights("uniform", graph), nodes.ids, WORKERS, nodes.memory), None, message
        )


def copy(state):
    return {name: rows.clone() for name, rows in state.items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_who_takes_no_part_stays_as_it_is(algorithm):
    nodes = population(algorithm)
    play(nodes)
    before = copy(nodes.state)
    message, loss = nodes.local_update(2, np.full(len(SOME), 2), who=SOME)
    assert loss.shape == (3,)
    assert all(len(rows) == 3 for rows in message.values())
    nodes.aggregate(exchange(nodes, message, SOME), SOME, message)
    assert nodes.state.keys() == before.keys()
    for name, rows in nodes.state.items():
        assert torch.equal(rows[OTHERS], before[name][OTHERS])
        assert not torch.equal(rows[SOME], before[name][SOME]) or name == "w"


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_parts_train_as_the_whole_does(algorithm):
    whole, parts = population(algorithm), population(algorithm)
    play(whole)
    play(parts)
    degree = np.array([4, 1, 2, 3, 0, 4, 2])
    message, loss = whole.local_update(2, degree)
    for who in (SOME, OTHERS):
        part, part_loss = parts.local_update(2, degree[who], who=who)
        assert same(part, {name: rows[who] for name, rows in message.items()})
        assert torch.equal(part_loss, loss[who])
    assert same(parts.state, whole.state)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_those_who_trained_together_may_mix_one_after_the_other(algorithm):
    """As places of one process do, whose messages come at other times."""
    whole, parts = population(algorithm), population(algorithm)
    for nodes in (whole, parts):
        play(nodes)
    message, _ = whole.local_update(2, np.full(N, 2))
    parts.local_update(2, np.full(N, 2))
    sent = copy(message)
    graph = ep.Graph.from_edges(N, np.arange(N), (np.arange(N) + 3) % N)
    w = weights("uniform", graph)
    whole.aggregate(MatrixInbox(message, w, whole.ids, WORKERS, whole.memory))
    for who in (SOME, OTHERS):
        own = {name: rows[who] for name, rows in sent.items()}
        heard = [(int(i) - 3) % N for i in who]
        received = [Received([j], [{name: rows[j] for name, rows in sent.items()}], np.full(2, 0.5)) for j in heard]
        parts.aggregate(MessageInbox(own, received, WORKERS), who)
    assert parts.state.keys() == whole.state.keys()
    for name, rows in whole.state.items():
        torch.testing.assert_close(parts.state[name], rows, rtol=0, atol=1e-6)


class Twice(ep.Defaults):
    """Keeps one tensor under two names, of which it trains one, and one whose rows are all the same memory."""

    local_steps = 1
    batch_size = 2

    def init(self, x):
        return {"x": x, "first": x, "flat": torch.zeros(1).expand(len(x))}

    def local_update(self, state, learner, context):
        x = state["x"] + 1
        return {**state, "x": x, "flat": state["flat"] + 1}, {"x": x}, torch.zeros(len(x))

    def aggregate(self, state, inbox):
        return {**state, "x": inbox.mean("x")}


def test_a_tensor_under_two_names_is_two_for_those_who_take_part_alone():
    nodes = population(Twice())
    initial = nodes.models.clone()
    nodes.local_update(0, np.full(len(SOME), 2), who=SOME)
    assert torch.equal(nodes.state["x"][SOME], initial[SOME] + 1)
    assert torch.equal(nodes.state["first"], initial)
    assert torch.equal(nodes.state["x"][OTHERS], initial[OTHERS])
    assert nodes.state["flat"].tolist() == [1, 0, 1, 0, 0, 1, 0]


def test_nobody_may_take_part():
    nodes = population(ALGORITHMS[2])
    before, nobody = copy(nodes.state), np.zeros(0, dtype=np.int64)
    message, loss = nodes.local_update(0, nobody, who=nobody)
    nodes.aggregate(exchange(nodes, message, nobody), nobody, message)
    assert len(loss) == 0
    assert same(nodes.state, before)


@pytest.mark.parametrize("which", [SOME, np.array([3]), np.arange(2, 5), np.array([4, 3]), np.arange(N)], ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_a_snapshot_is_a_copy_that_can_be_put_back(algorithm, which):
    nodes = population(algorithm)
    play(nodes)
    whole, some = copy(nodes.state), nodes.snapshot(which)
    others = np.setdiff1d(np.arange(N), which)
    assert torch.equal(nodes.models_of(which), nodes.models[which])
    nodes.local_update(2, np.full(N, 3))
    nodes.restore(which, some)
    nodes.restore(others, {name: rows[others] for name, rows in whole.items()})
    assert {n: r for n, r in nodes.state.items() if n not in ("learnt", "gamma")}.keys() == whole.keys()
    assert all(torch.equal(nodes.state[name], rows) for name, rows in whole.items())
    some["x"].zero_()
    assert torch.equal(nodes.state["x"], whole["x"])


def test_adopting_takes_the_model_of_another_and_keeps_what_is_ones_own():
    nodes = population(ALGORITHMS[0])
    play(nodes)
    before = copy(nodes.state)
    nodes.adopt(np.array([1, 6]), nodes.give(np.array([4, 0])))
    assert torch.equal(nodes.models[[1, 6]], before["x"][[4, 0]])
    assert torch.equal(nodes.state["velocity"], before["velocity"])
    kept = [0, 2, 3, 4, 5]
    assert torch.equal(nodes.state["x"][kept], before["x"][kept])


def test_messages_have_the_bytes_of_their_columns():
    assert population(ep.LocalSGD()).message_bytes == 4 * 650
    assert population(ep.PushSum()).message_bytes == 4 * 650 + 4


# -- algorithms that are wrong ----------------------------------------------------------------------------------------


class Own(ep.Defaults):
    """Sends its model; each test breaks a part of it."""

    local_steps = 1
    batch_size = 2

    def init(self, x):
        return {"x": x}

    def local_update(self, state, learner, context):
        return state, {"x": state["x"]}, torch.zeros(len(state["x"]))

    def aggregate(self, state, inbox):
        return {"x": inbox.mean("x")}


def breaking(name, does):
    return type("Broken", (Own,), {name: does})()


def emitting(message=None, state=None, loss=None):
    def local_update(self, had, learner, context):
        x, k = had["x"], len(had["x"])
        return (
            had if state is None else state(x),
            {"x": x} if message is None else message(x),
            torch.zeros(k) if loss is None else loss(x),
        )

    return breaking("local_update", local_update)


def raising(name):
    def fails(self, *_):
        raise KeyError("no such\nthing")

    return breaking(name, fails)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (emitting(lambda x: {}), "algorithm: local_update gave nothing for column 'x'; columns() declares float32 (7, 650)"),
        (emitting(lambda x: {"x": x[:, :3]}), "algorithm: local_update gave float32 (7, 3) for column 'x'; columns() declares float32 (7, 650)"),
        (emitting(lambda x: {"x": x[0]}), "algorithm: local_update gave float32 (650,) for column 'x'"),
        (emitting(lambda x: {"x": x.double()}), "algorithm: local_update gave float64 (7, 650) for column 'x'; columns() declares float32"),
        (emitting(lambda x: {"x": x, "y": x}), "algorithm: local_update gave 'y', which columns() does not declare; add it there"),
        (emitting(loss=lambda x: 0.0), "algorithm: local_update gave float as the loss; it needs one number for each of 7 nodes"),
        (emitting(loss=lambda x: torch.zeros(())), "algorithm: local_update gave () as the loss"),
        (emitting(state=lambda x: {"x": x, "count": 3}), "algorithm: local_update gave int for 'count' of the state; it needs a row for each of 7 nodes"),
        (breaking("init", lambda self, x: {"x": x[0]}), "algorithm: init gave (650,) for 'x' of the state"),
        (breaking("aggregate", lambda self, state, inbox: {"x": inbox.mean("x")[:2]}), "algorithm: aggregate gave (2, 650) for 'x' of the state"),
        (breaking("aggregate", lambda self, state, inbox: {"y": inbox.mean("x")}), "model failed: KeyError: 'x'"),
        (breaking("aggregate", lambda self, state, inbox: {"x": inbox.mean("y")}), "experiment, seed 1, round 0: aggregate failed: KeyError: 'y'"),
        (raising("local_update"), "experiment, seed 1, round 0: training failed: KeyError: 'no such\\nthing'"),
        (raising("columns"), "columns failed: KeyError"),
        (raising("init"), "init failed: KeyError"),
        (raising("model"), "model failed: KeyError"),
        (breaking("local_update", lambda self, state, learner, context: state), "training failed: ValueError"),
        (breaking("columns", lambda self, size, dtype: (ep.Column("x", (size,), "int8"),)), "the type of column 'x' = 'int8'"),
    ],
)  # fmt: skip
def test_an_algorithm_that_is_wrong_ends_the_run_with_one_line(algorithm, message):
    with pytest.raises(ep.EpidemicError) as failure:
        ep.simulate(
            ep.Experiment(
                nodes=N, rounds=2, topology=ep.ELLocal(3), data=ep.Digits(), partition=ep.IID(), model=ep.Logistic(), algorithm=algorithm
            )
        )  # fmt: skip
    assert message in str(failure.value)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("step", ["give", "adopt"])
def test_an_algorithm_that_cannot_be_returned_to_says_so(step):
    nodes = population(raising(step))
    with pytest.raises(ep.RunFailed, match=f"{step} failed: KeyError"):
        nodes.adopt(np.array([1]), nodes.give(np.array([0])))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("local_steps", 0, "algorithm.local_steps = 0 must be at least 1"),
        ("batch_size", 2.5, "algorithm.batch_size = 2.5 must be a whole number"),
        ("sampling", "twice", "algorithm.sampling = 'twice'"),
    ],
)
def test_settings_of_ones_own_algorithm_are_checked(name, value, message):
    with pytest.raises(ep.BadInput) as refusal:
        ep.Experiment(algorithm=breaking(name, value))
    assert message in str(refusal.value)


def test_what_an_algorithm_of_ones_own_refuses_is_refused():
    def check(self, topology, mixing):
        raise ep.BadInput(f"not with mixing = {mixing}")

    with pytest.raises(ep.BadInput, match="not with mixing = uniform"):
        ep.Experiment(algorithm=breaking("check", check), mixing="uniform")
    with pytest.raises(ep.BadInput, match="algorithm: check failed: TypeError"):
        ep.Experiment(algorithm=breaking("check", lambda self: None))
