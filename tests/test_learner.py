"""Laws of the learner: both strategies do the same arithmetic, whatever the model and the number of threads."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers, blocks
from epidemic.data import Dataset, Samples
from epidemic.learner import (
    LOSSES,
    Layout,
    Learner,
    PerNode,
    SGDUpdate,
    Stacked,
    Task,
    accuracy,
    choose,
    obstacle_to_stacking,
    rule,
    squared_error,
)
from epidemic.models import FEMNISTCNN, MLP, MODELS, GNLeNet, Logistic, Point, SmallCNN

WORKERS = Workers(2)


def _data(shape=(1, 8, 8), classes=4, size=60, dtype=np.float32):
    stream = Streams(1)("data")
    x = stream.normals(size, *shape).astype(dtype)
    y = stream.integers(classes, size).astype(np.int64)
    return Dataset(Samples(x, y), Samples(x[:20], y[:20]), tuple(map(str, range(classes))))


def _task(module, data=None, loss=LOSSES["cross-entropy"], metrics=None):
    return Task(module, data or _data(), loss, metrics or {"accuracy": accuracy}, torch.device("cpu"))


def _module(kind, dtype, shape=(1, 8, 8), classes=4):
    torch.manual_seed(0)
    return MODELS[kind]().build(shape, classes).to(dtype)


def _rows(task, k):
    torch.manual_seed(1)
    row = task.layout.row(task.module)
    return row + 0.05 * torch.randn(k, len(row), dtype=row.dtype)


def _index(k, r, b, size=60):
    return torch.from_numpy(Streams(2)("index").integers(size, k, r, b).astype(np.int64))


def _obstacle(task):
    return obstacle_to_stacking(Stacked(task, WORKERS), task.layout.row(task.module), _index(2, 1, 4))


def _choose(task, wanted, nodes, batch=4):
    row = task.layout.row(task.module)
    return choose(task, WORKERS, wanted, row, _index(min(nodes, 200), 1, batch), SGDUpdate(0.1), nodes)[0]


@pytest.mark.parametrize(("kind", "shape", "classes", "count"), [("gn-lenet", (3, 32, 32), 10, 89_834), ("femnist-cnn", (1, 28, 28), 62, 1_690_046)])  # fmt: skip
def test_the_papers_models_have_exactly_their_parameters(kind, shape, classes, count):
    module = MODELS[kind]().build(shape, classes)
    assert sum(p.numel() for p in module.parameters()) == count
    assert list(module.buffers()) == []
    assert module(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize("kind", ["gn-lenet", "femnist-cnn", "logistic", "mlp", "small-cnn"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("step", [SGDUpdate(0.1), SGDUpdate(0.05, 0.9, 0.01)])
def test_the_strategies_agree(kind, dtype, tolerance, step):
    task = _task(_module(kind, dtype))
    results = []
    for strategy in (Stacked(task, WORKERS), PerNode(task, WORKERS)):
        x = _rows(task, 5)
        loss = strategy.sgd(x, step.memory(x), _index(5, 3, 6), step, [0] * 5)
        judged = strategy.evaluate(x, *task.tensors(_data().test))
        results.append(
            (x, loss, judged.loss, judged.metrics["accuracy"], *strategy.gradients(x, _index(5, 1, 6)[:, 0], [0] * 5))
        )
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("strategy", [Stacked, PerNode])
def test_sgd_is_that_of_pytorch(strategy):
    """The reference: torch.optim.SGD on an ordinary module, node by node."""
    module = _module("mlp", torch.float64)
    task = _task(module)
    x, index = _rows(task, 3), _index(3, 4, 6)
    start = x.clone()
    step = SGDUpdate(0.1, 0.9, 0.01)
    strategy(task, WORKERS).sgd(x, step.memory(x), index, step, [0] * 3)
    for i in range(3):
        plain = copy.deepcopy(module)
        plain.load_state_dict(task.layout.state_dict(start[i]))
        optimiser = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        for r in range(4):
            inputs, targets = task.batch(index[i, r])
            optimiser.zero_grad()
            nn.functional.cross_entropy(plain(inputs), targets).backward()
            optimiser.step()
        torch.testing.assert_close(x[i], task.layout.row(plain), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("strategy", [Stacked, PerNode])
@pytest.mark.parametrize("kind", ["mlp", "small-cnn"])
def test_results_do_not_depend_on_the_number_of_threads(strategy, kind):
    """To the last bit."""
    task = _task(_module(kind, torch.float32))
    found = []
    for threads in (1, 2, 5):
        workers = Workers(threads)
        x = _rows(task, 101)
        loss = strategy(task, workers).sgd(x, {}, _index(101, 2, 6), SGDUpdate(0.1), [0] * 101)
        judged = strategy(task, workers).evaluate(x, *task.tensors(_data().test))
        found.append((x, loss, judged.loss))
        workers.close()
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_rows_do_not_depend_on_their_neighbours():
    """A node is a population of one: alone it gets what it gets among others (up to rounding)."""
    task = _task(_module("mlp", torch.float64))
    x, index = _rows(task, 6), _index(6, 2, 5)
    together, alone = x.clone(), x[3:4].clone()
    Stacked(task, WORKERS).sgd(together, {}, index, SGDUpdate(0.1), [0] * 6)
    Stacked(task, WORKERS).sgd(alone, {}, index[3:4], SGDUpdate(0.1), [0])
    torch.testing.assert_close(together[3:4], alone, atol=1e-12, rtol=1e-12)


class _Odd(nn.Module):
    """Frozen parameters, float and integer buffers."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 8)
        self.norm = nn.BatchNorm1d(8)
        self.frozen = nn.Linear(8, 8)
        for p in self.frozen.parameters():
            p.requires_grad = False
        self.b = nn.Linear(8, 4)

    def forward(self, x):
        return self.b(self.frozen(self.norm(self.a(x.flatten(1)))))


def test_layout_splits_a_model_into_row_and_constants():
    module = _Odd()
    layout = Layout(module)
    names = [e.name for e in layout.entries]
    assert names == [
        "a.weight",
        "a.bias",
        "norm.weight",
        "norm.bias",
        "b.weight",
        "b.bias",
        "norm.running_mean",
        "norm.running_var",
    ]
    assert layout.trainable == 64 * 8 + 8 + 16 + 36
    assert layout.size == layout.trainable + 16
    assert set(layout.constants) == {"frozen.weight", "frozen.bias", "norm.num_batches_tracked"}
    other = _Odd()
    other.load_state_dict(layout.state_dict(layout.row(module)))
    x = torch.randn(3, 1, 8, 8)
    module.eval(), other.eval()
    torch.testing.assert_close(module(x), other(x))


def test_batchnorm_runs_per_node_and_its_statistics_are_in_the_row():
    task = _task(_Odd())
    assert not task.nature.random
    assert "buffers" in _obstacle(task)
    x = task.layout.row(task.module).repeat(4, 1)
    before = x[:, task.layout.trainable :].clone()
    PerNode(task, WORKERS).sgd(x, {}, _index(4, 2, 6), SGDUpdate(0.1), [0] * 4)
    after = x[:, task.layout.trainable :]
    assert (after != before).all()
    plain = _Odd()
    plain.load_state_dict(task.module.state_dict())
    optimiser = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.1)
    for r in range(2):
        inputs, targets = task.batch(_index(4, 2, 6)[1, r])
        optimiser.zero_grad()
        nn.functional.cross_entropy(plain(inputs), targets).backward()
        optimiser.step()
    torch.testing.assert_close(x[1], task.layout.row(plain), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_frozen_first_layer_is_trained_stacked_like_any_other(steps):
    """Fine-tuning: weights that all nodes share are multiplied with all batches at once, also in later local steps."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4)).double()
    module[1].requires_grad_(False)
    task = _task(module)
    index, found = _index(3, steps, 4), []
    assert _obstacle(task) is None
    for strategy in (Stacked(task, Workers(1)), PerNode(task, Workers(1))):
        rows = _rows(task, 3)
        losses = strategy.sgd(rows, {}, index, SGDUpdate(0.1), [0, 0, 0])
        found.append((rows, losses))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-12)


def _dropout():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 4))


def test_dropout_is_seeded_by_node_and_does_not_depend_on_threads():
    task = _task(_dropout())
    assert task.nature.random
    assert "random numbers" in _obstacle(task)
    found = []
    state = torch.get_rng_state()
    for threads in (1, 3):
        x = task.layout.row(task.module).repeat(6, 1)
        same = _index(1, 2, 6).expand(6, 2, 6)
        PerNode(task, Workers(threads), draws_random_numbers=True).sgd(x, {}, same, SGDUpdate(0.1), [5, 5, 7, 8, 9, 10])
        found.append(x)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0][0], found[0][1])  # the same seed
    assert not torch.equal(found[0][0], found[0][2])  # another seed
    assert torch.equal(torch.get_rng_state(), state)  # the caller's generator is left alone


class _Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 4)

    def forward(self, x):
        out = self.a(x.flatten(1))
        return out if out.sum() > 0 else 2 * out


def test_what_vmap_cannot_take_runs_per_node():
    task = _task(_Branching())
    assert "vmap cannot take the model" in _obstacle(task)
    assert _choose(task, "auto", 3).strategy == "per-node"
    with pytest.raises(BadInput, match='"stacked" is not possible'):
        _choose(task, "stacked", 3)


class _FunctionalConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.ones(2, 1, 3, 3))
        self.out = nn.Linear(2 * 36, 4)

    def forward(self, x):
        return self.out(nn.functional.conv2d(x, weight=self.kernel).flatten(1))


def test_convolutions_are_counted_however_they_are_called():
    module = _FunctionalConvolution()
    nature = _task(module).nature
    assert (nature.convolved, nature.products) == (2 * 36, 2 * 36 * 9)
    transposed = nn.Sequential(nn.ConvTranspose2d(1, 3, 2, stride=2), nn.Flatten(), nn.Linear(3 * 256, 4))
    nature = _task(transposed).nature
    assert (nature.convolved, nature.products) == (3 * 256, 64 * 3 * 4)
    assert (_task(_module("mlp", torch.float32)).nature.convolved, _task(_Odd()).nature.convolved) == (0, 0)


@pytest.mark.parametrize(
    ("kind", "shape", "classes", "nodes", "batch", "strategy"),
    [
        ("logistic", (1, 8, 8), 4, 2, 8, "stacked"),
        ("mlp", (1, 28, 28), 10, 1000, 8, "stacked"),
        ("small-cnn", (1, 8, 8), 4, 2, 8, "per-node"),
        ("small-cnn", (1, 8, 8), 4, 16, 8, "stacked"),
        ("mlp", (1, 28, 28), 10, 16, 8, "stacked"),
        ("mlp", (1, 28, 28), 10, 16, 512, "per-node"),
        ("small-cnn", (1, 28, 28), 10, 100, 8, "stacked"),
        ("small-cnn", (1, 28, 28), 10, 16, 8, "per-node"),
        ("small-cnn", (1, 28, 28), 10, 100, 32, "per-node"),
        ("gn-lenet", (3, 32, 32), 10, 16, 8, "per-node"),
        ("femnist-cnn", (1, 28, 28), 62, 100, 16, "per-node"),
    ],
)
def test_the_rule_is_a_function_of_model_batch_nodes_and_device(
    kind, shape, classes, nodes, batch, strategy, monkeypatch
):
    def no_clock():
        raise AssertionError("the rule looked at a clock")

    monkeypatch.setattr("time.perf_counter", no_clock)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            task = _task(_module(kind, torch.float32, shape, classes), _data(shape, classes))
            nature, size = task.nature, task.layout.size
            found, reason = rule(nature, nodes, batch, "cpu", size)
            assert found == strategy, reason
            assert rule(nature, nodes, batch, "cuda", size)[0] == "stacked"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("hosted", [1, 7, 40])
def test_the_choice_does_not_depend_on_how_many_nodes_are_hosted(hosted):
    """A deployed node of an experiment chooses as the simulator of all of it."""
    for kind, nodes in (("logistic", 40), ("small-cnn", 40), ("small-cnn", 3)):
        task = _task(_module(kind, torch.float32))
        row, index = task.layout.row(task.module), _index(40, 1, 4)
        everyone, _ = choose(task, WORKERS, "auto", row, index[:nodes], SGDUpdate(0.1), nodes)
        some, _ = choose(task, WORKERS, "auto", row, index[:hosted], SGDUpdate(0.1), nodes)
        assert some == everyone


def test_timing_is_there_for_who_asks_and_the_reason_is_given():
    task = _task(_module("logistic", torch.float32))
    choice = _choose(task, "timed", 200)
    assert choice.strategy == "stacked"
    assert "timed: stacked" in choice.reason
    assert _choose(task, "per-node", 2).strategy == "per-node"


def test_training_goes_on_from_what_the_choice_has_traced():
    """The first round gives the same as with a learner that was not prepared."""
    task, index = _task(_module("mlp", torch.float32)), _index(60, 2, 4)
    choice, prepared = choose(task, WORKERS, "auto", task.layout.row(task.module), index, SGDUpdate(0.1), 60)
    found = []
    for traced in (prepared, None):
        x = _rows(task, 60)
        Learner(task, WORKERS, choice.strategy, draws_random_numbers=False, prepared=traced).sgd(
            x, index, SGDUpdate(0.1), [0] * 60
        )
        found.append(x)
    assert torch.equal(*found)


@pytest.mark.parametrize("size", [0, 10**12])
def test_a_piece_has_the_same_surroundings_in_a_worker_and_here(size):
    """As many threads inside PyTorch, and gradients, whatever holds where it is asked for; which stays as it was."""
    before = torch.get_num_threads()
    workers = Workers(2)
    try:
        torch.set_num_threads(3)
        with torch.no_grad():
            found = workers.map(lambda i: (i, torch.get_num_threads(), torch.is_grad_enabled()), range(5), size=size)
            assert not torch.is_grad_enabled()
        assert found == [(i, 1, True) for i in range(5)]
        assert torch.get_num_threads() == 3
    finally:
        workers.close()
        torch.set_num_threads(before)


def test_own_losses_and_metrics():
    data = _data()

    def hinge(outputs, targets):
        right = outputs.gather(-1, targets[:, None])
        return (1 - right + outputs).clamp(min=0).mean()

    def confident(outputs, targets):
        return outputs.softmax(-1).amax(-1)

    task = _task(_module("mlp", torch.float64), data, hinge, {"accuracy": accuracy, "confidence": confident})
    x = _rows(task, 3)
    results = [s(task, WORKERS).evaluate(x, *task.tensors(data.test)) for s in (Stacked, PerNode)]
    torch.testing.assert_close(results[0].loss, results[1].loss)
    torch.testing.assert_close(results[0].metrics["confidence"], results[1].metrics["confidence"])
    assert 0.25 < results[0].metrics["confidence"].mean() < 1


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_cross_entropy_is_that_of_pytorch(scale):
    torch.manual_seed(0)
    outputs = (scale * torch.randn(6, 5, dtype=torch.float64)).requires_grad_()
    targets = torch.tensor([0, 4, 2, 2, 1, 3])
    ours, theirs = LOSSES["cross-entropy"](outputs, targets), nn.functional.cross_entropy(outputs, targets)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)
    (a,) = torch.autograd.grad(ours, outputs)
    (b,) = torch.autograd.grad(theirs, outputs)
    torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_squared_error_is_half_the_squared_distance():
    assert squared_error(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2, 2)) == 6.25
    module = Point().build((2,), 2)
    assert module(torch.ones(3, 2)).shape == (3, 2)


def test_evaluation_is_the_mean_over_all_samples_whatever_the_batches():
    task = _task(_module("mlp", torch.float64))
    x = _rows(task, 2)
    data = _data(size=523)
    inputs, targets = task.tensors(data.train)
    module = copy.deepcopy(task.module)
    module.load_state_dict(task.layout.state_dict(x[1]))
    outputs = module(inputs.double()).detach()
    for strategy in (Stacked, PerNode):
        found = strategy(task, WORKERS).evaluate(x, inputs, targets)
        assert found.loss[1] == pytest.approx(float(nn.functional.cross_entropy(outputs, targets)), abs=1e-9)
        assert float(found.metrics["accuracy"][1]) == (outputs.argmax(1) == targets).double().mean()


@pytest.mark.parametrize(("side", "alone"), [(14, False), (28, True)])
def test_models_with_large_convolutions_are_evaluated_one_after_the_other(side, alone):
    data = _data(shape=(1, side, side), size=30)
    task = _task(_module("small-cnn", torch.float32, shape=(1, side, side)), data)
    x = _rows(task, 3)
    stacked = Stacked(task, WORKERS)
    found = stacked.evaluate(x, *task.tensors(data.train))
    expected = PerNode(task, WORKERS).evaluate(x, *task.tensors(data.train))
    assert any(key[0] == "evaluate" for key in stacked._traced) != alone
    assert torch.allclose(found.loss, expected.loss, rtol=1e-5)
    assert torch.equal(found.loss, expected.loss) or not alone
    for i in range(3):  # the pictures of one channel that are declared to lie channel by channel are the same pictures
        module = copy.deepcopy(task.module)
        module.load_state_dict(task.layout.state_dict(x[i]))
        outputs = module(task.tensors(data.train)[0]).detach()
        loss = nn.functional.cross_entropy(outputs, task.tensors(data.train)[1])
        assert float(found.loss[i]) == pytest.approx(float(loss), rel=1e-5)


class _WithView(nn.Module):
    """As many write it: `view` needs numbers that lie picture by picture."""

    def __init__(self, channels, side):
        super().__init__()
        self.convolution = nn.Conv2d(channels, 16, 3, padding=1)
        self.last = nn.Linear(16 * (side // 2) ** 2, 4)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.convolution(x).relu(), 2)
        return self.last(x.view(x.size(0), -1))


@pytest.mark.parametrize("strategy", [Stacked, PerNode])
@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32), (1, 8)])
def test_models_that_need_numbers_picture_by_picture_are_given_them_so(strategy, channels, side):
    data = _data(shape=(channels, side, side))
    torch.manual_seed(0)
    task = _task(_WithView(channels, side), data)
    assert not task.nature.any_layout
    assert _task(_module("small-cnn", torch.float32, (channels, side, side)), data).nature.any_layout
    x = _rows(task, 2)
    learner = strategy(task, WORKERS)
    learner.sgd(x, {}, _index(2, 1, 4), SGDUpdate(0.01), [0, 0])
    found = learner.evaluate(x, *task.tensors(data.test))
    module = copy.deepcopy(task.module)
    module.load_state_dict(task.layout.state_dict(x[1]))
    outputs = module(task.tensors(data.test)[0]).detach()
    assert float(found.loss[1]) == pytest.approx(
        float(nn.functional.cross_entropy(outputs, task.tensors(data.test)[1])), rel=1e-5
    )


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (GNLeNet(), (1, 14, 14), "sides that 8 divides"),
        (FEMNISTCNN(), (64,), "needs pictures"),
        (SmallCNN(), (1, 2, 2), "at least 4 x 4"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused(model, shape, message):
    with pytest.raises(BadInput, match=message):
        model.build(shape, 10)


def test_models_can_be_configured():
    assert len(list(MLP((5, 6)).build((4,), 2).parameters())) == 6
    assert len(list(MLP(()).build((4,), 2).parameters())) == len(list(Logistic().build((4,), 2).parameters()))
    with pytest.raises(BadInput, match=r"model\.hidden = 0"):
        MLP((0,))
    with pytest.raises(BadInput, match=r"model\.channels = 0"):
        SmallCNN((0, 1))


def test_impossible_modules():
    with pytest.raises(BadInput, match="no trainable parameters"):
        Layout(nn.ReLU())
    with pytest.raises(BadInput, match="mixes"):
        Layout(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()))


def test_blocks_cover_everything_once():
    assert blocks(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert blocks(0, 3) == []


def test_learner_forwards_to_its_strategy():
    task = _task(_module("logistic", torch.float64))
    for strategy, cls in (("stacked", Stacked), ("per-node", PerNode)):
        learner = Learner(task, WORKERS, strategy, draws_random_numbers=False)
        a, b = _rows(task, 3), _rows(task, 3)
        assert torch.equal(
            learner.sgd(a, _index(3, 2, 4), SGDUpdate(0.1), [0] * 3),
            cls(task, WORKERS).sgd(b, {}, _index(3, 2, 4), SGDUpdate(0.1), [0] * 3),
        )
        assert torch.equal(a, b)
