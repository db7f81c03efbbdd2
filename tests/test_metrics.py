"""Metrics: each is what its definition says, in both strategies, for any number of threads; what is undefined is not 0."""

import json
import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import epidemic as ep
from epidemic.core.workers import Workers
from epidemic.learner import PerNode, Stacked, Task, accuracy, cross_entropy
from epidemic.learner import task as tasks
from epidemic.metrics import SHIPPED, Whole, auc, balanced_accuracy, macro_f1, mean_absolute_error, perplexity, r2
from epidemic.models import MLP

A = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 1.0]])


@st.composite
def judged(draw, classes=(2, 5)):
    """Outputs on a coarse grid, so that there are ties, and targets."""
    c, n = draw(st.integers(*classes)), draw(st.integers(1, 12))
    outputs = draw(st.lists(st.lists(st.integers(-2, 2), min_size=c, max_size=c), min_size=n, max_size=n))
    targets = draw(st.lists(st.integers(0, c - 1), min_size=n, max_size=n))
    return torch.tensor(outputs, dtype=torch.float32), torch.tensor(targets)


def test_by_hand():
    """Guesses 0, 1, 0, 2 for 0, 1, 1, 2."""
    y = torch.tensor([0, 1, 1, 2])
    assert macro_f1(A, y) == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
    assert balanced_accuracy(A, y) == pytest.approx((1 + 0.5 + 1) / 3)
    assert perplexity(torch.zeros(4, 3), y) == pytest.approx(3)
    two = torch.tensor([[0.0, 0.1], [0.0, 0.4], [0.0, 0.35], [0.0, 0.8]])
    assert auc(two, torch.tensor([0, 0, 1, 1])) == 0.75
    assert auc(two[:, 1:], torch.tensor([0, 0, 1, 1])) == 0.75
    assert auc(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1])) == 0.5
    q = torch.tensor([[3.0], [-0.5], [2.0], [7.0]])
    guess = torch.tensor([[2.5], [0.0], [2.0], [8.0]])
    assert mean_absolute_error(guess, q).tolist() == [0.5, 0.5, 0.0, 1.0]
    assert r2(guess, q) == pytest.approx(0.9486081370449679)
    assert r2(guess[:, 0], q) == r2(guess, q[:, 0]) == r2(guess, q)


def test_what_is_undefined_is_no_number():
    assert auc(A, torch.tensor([0, 0, 1, 1])) is None
    assert auc(A[:, :2], torch.tensor([1, 1, 1, 1])) is None
    assert r2(torch.zeros(3, 1), torch.ones(3, 1)) is None
    assert math.isnan(auc.number("m", A, torch.tensor([0, 0, 1, 1])))
    assert math.isnan(macro_f1.number("m", A * math.nan, torch.tensor([0, 0, 1, 1])))
    assert macro_f1(A, torch.tensor([0, 1, 0, 0])) == pytest.approx((0.8 + 1 + 0) / 3)
    assert macro_f1(A[:3], torch.tensor([0, 1, 0])) == 1.0  # nobody has or guesses the third class


def test_certain_models_are_still_ranked():
    """Where every probability is rounded to 1, the odds still differ."""
    outputs = torch.tensor([[0.0, 800.0, 0.0], [0.0, 900.0, 1.0], [900.0, 0.0, 1.0], [0.0, 0.0, 9.0]])
    assert auc(outputs, torch.tensor([0, 1, 0, 2])) == pytest.approx((3 / 4 + 1 + 1) / 3)


@settings(max_examples=25)
@given(judged())
def test_auc_counts_pairs(found):
    outputs, targets = found
    n, c = outputs.shape
    rows, y, per_class = outputs.tolist(), targets.tolist(), []
    for k in range(c) if c > 2 else [1]:
        odds = [math.exp(o[k]) / sum(math.exp(v) for j, v in enumerate(o) if j != k) for o in rows]
        pairs = [odds[i] / odds[j] for i in range(n) for j in range(n) if y[i] == k != y[j]]
        won = [1.0 if d > 1 + 1e-9 else 0.5 if d > 1 - 1e-9 else 0.0 for d in pairs]
        per_class.append(sum(won) / len(won) if won else math.nan)
    wanted = sum(per_class) / len(per_class)
    assert auc(outputs, targets) == (None if math.isnan(wanted) else pytest.approx(wanted, abs=1e-12))


@settings(max_examples=25)
@given(judged())
def test_f1_and_balanced_accuracy_by_their_definitions(found):
    outputs, targets = found
    guesses, y = outputs.argmax(1).tolist(), targets.tolist()
    f1, recall = [], []
    for k in {*guesses, *y}:
        both = sum(g == k == t for g, t in zip(guesses, y, strict=True))
        precision, share = both / max(1, guesses.count(k)), both / max(1, y.count(k))
        f1.append(2 * precision * share / (precision + share) if both else 0.0)
        recall += [share] if k in y else []
    assert macro_f1(outputs, targets) == pytest.approx(sum(f1) / len(f1))
    assert balanced_accuracy(outputs, targets) == pytest.approx(sum(recall) / len(recall))


@settings(max_examples=25)
@given(judged())
def test_perplexity_is_the_inverse_of_the_mean_probability_of_what_was_right(found):
    outputs, targets = found
    right = outputs.double().softmax(1)[torch.arange(len(targets)), targets]
    assert perplexity(outputs, targets) == pytest.approx(float(right.prod() ** (-1 / len(targets))))


# -- evaluation -------------------------------------------------------------------------------------------------------


def _data(size=523, classes=4):
    stream = np.random.default_rng(1)
    x, y = stream.normal(size=(size, 6)).astype(np.float32), stream.integers(0, classes, size)
    samples = ep.Samples(x, y)
    return ep.Dataset(samples, samples, tuple("abcd"[:classes]))


def _evaluated(strategy, data, metrics, threads=1, rows=7):
    torch.manual_seed(3)
    module = MLP(hidden=(5,)).build((6,), 4)
    kind = ("tests of metrics", "accuracy" in metrics, any(isinstance(m, Whole) for m in metrics.values()))
    task = Task(module, data, cross_entropy, metrics, torch.device("cpu"), kind)
    x = task.layout.row(module).repeat(rows, 1) + torch.randn(rows, task.layout.size)
    workers = Workers(threads)
    try:
        return strategy(task, workers).evaluate(x, *task.tensors(data.test)), task, x
    finally:
        workers.close()


def test_whole_metrics_see_all_outputs_of_a_node_in_both_strategies(monkeypatch):
    monkeypatch.setattr(tasks, "GATHERED", 3 * 523 * 4)
    data = _data()
    metrics = {"accuracy": accuracy, "f1": macro_f1, "auc": auc, "n": Whole(lambda out, y: torch.tensor(len(y)))}
    found = [_evaluated(strategy, data, metrics) for strategy in (Stacked, PerNode)]
    plain = [_evaluated(strategy, data, {"accuracy": accuracy})[0] for strategy in (Stacked, PerNode)]
    for (seen, task, x), bare in zip(found, plain, strict=True):
        assert torch.equal(seen.loss, bare.loss)  # what is measured besides has no influence
        assert torch.equal(seen.metrics["accuracy"], bare.metrics["accuracy"])
        assert seen.metrics["n"].tolist() == [523.0] * 7
        task.module.load_state_dict(task.layout.state_dict(x[2]))
        outputs = task.module(torch.from_numpy(data.test.inputs)).detach()
        targets = torch.from_numpy(data.test.targets)
        assert float(seen.metrics["f1"][2]) == pytest.approx(macro_f1(outputs, targets), abs=1e-6)
        assert float(seen.metrics["auc"][2]) == pytest.approx(auc(outputs, targets), abs=1e-6)
    for name in ("f1", "auc"):
        torch.testing.assert_close(found[0][0].metrics[name], found[1][0].metrics[name], atol=1e-6, rtol=0)


def test_outputs_are_gathered_block_by_block(monkeypatch):
    """Never more at once than is allowed, whatever the number of nodes."""
    monkeypatch.setattr(tasks, "GATHERED", 3 * 523 * 4)
    sizes = []
    cat = torch.cat
    monkeypatch.setattr(
        torch, "cat", lambda parts, *a, **k: sizes.append(cat(parts, *a, **k).numel()) or cat(parts, *a, **k)
    )
    _evaluated(Stacked, _data(), {"f1": macro_f1})
    assert sorted(size for size in sizes if size >= 523 * 4) == [523 * 4, 3 * 523 * 4, 3 * 523 * 4]


@pytest.mark.parametrize("strategy", [Stacked, PerNode])
def test_the_number_of_threads_has_no_influence(strategy):
    metrics = {"f1": macro_f1, "auc": auc, "perplexity": perplexity}
    one, four = (_evaluated(strategy, _data(), metrics, threads)[0] for threads in (1, 4))
    for name in metrics:
        assert torch.equal(one.metrics[name], four.metrics[name])


# -- runs -------------------------------------------------------------------------------------------------------------


def small(**changes):
    fields = {
        "nodes": 4, "rounds": 2, "topology": ep.Ring(), "data": ep.Digits(), "partition": ep.IID(), "model": ep.Logistic(),
        "eval": ep.Eval(every=1, samples=100), "runtime": ep.Runtime(strategy="per-node"),
    }  # fmt: skip
    return ep.Experiment(**{**fields, **changes})


def test_names_functions_and_metrics_of_a_run(tmp_path):
    bare = ep.simulate(small())
    own = {"f1": "macro-f1", "top3": lambda out, y: (out.topk(3).indices == y[:, None]).any(1).float()}
    run = ep.simulate(small(metrics={**own, "none": ep.metrics.whole(lambda out, y: None)}), tmp_path / "run")
    last = run.records[-1]
    assert last.metrics["top3"].min >= last.accuracy.min
    assert 0 < last.metrics["f1"].mean <= 1
    assert last.metrics["none"].mean is None
    assert run.seeds[0].summary.final_metrics["f1"].mean == pytest.approx(
        run.seeds[0].summary.final_accuracy.mean, abs=0.1
    )
    nodes = json.loads((tmp_path / "run/seed-1/nodes.json").read_text())
    assert list(nodes[0]["final_metrics"]) == ["top3", "f1", "none"]
    assert nodes[0]["final_metrics"]["none"] is None
    for with_, without in zip(run.records, bare.records, strict=True):
        assert msgspec.structs.replace(with_, metrics={}) == without


def test_quantities(tmp_path):
    x = np.linspace(-1, 1, 200, dtype=np.float32)[:, None]
    data = ((x, 2 * x), (x, 2 * x))
    found = ep.simulate(small(data=data, metrics=["mean-absolute-error", "r2"], rounds=5)).records
    assert found[-1].metrics["mean-absolute-error"].mean < found[0].metrics["mean-absolute-error"].mean
    assert found[-1].metrics["r2"].mean > found[0].metrics["r2"].mean


def test_infinite_ones_are_none():
    run = ep.simulate(small(metrics={"m": ep.metrics.whole(lambda out, y: math.inf)}, rounds=0))
    assert run.records[0].metrics["m"].mean is None


def _late(what):
    """Good on the outputs of the initial model, and not on others."""
    seen = []

    def metric(outputs, targets):
        seen.append(outputs.clone())
        if torch.equal(outputs, seen[0]):
            return 1.0
        return what()

    return ep.metrics.whole(metric)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"m": ep.metrics.whole(lambda out, y: 1 / 0)}, "metric 'm' failed: ZeroDivisionError: division by zero"),
        ({"m": ep.metrics.whole(lambda out, y: out)}, "metric 'm' must give a single number for all outputs of a node, not shape"),
        ({"m": ep.metrics.whole(lambda out, y: "good")}, "metric 'm' must give a single number for all outputs of a node, not str"),
        ({"m": lambda out, y: out}, "metric 'm' must give a tensor of one number per sample, not (2, 10) for 2 samples"),
        ({"m": lambda out, y: 0.5}, "metric 'm' must give a tensor of one number per sample, not float for 2 samples"),
        ({"m": lambda out, y: 1 / 0}, "metric 'm' failed: ZeroDivisionError"),
        (["r2"], "metric 'r2': r2 needs quantities to predict, not classes"),
        (["mean-absolute-error"], "metric 'mean-absolute-error': mean-absolute-error needs quantities"),
        ({"m": "nowhere_at_all:f"}, "metrics.m = 'nowhere_at_all:f' cannot be imported: there is no module nowhere_at_all"),
        ({"m": "math:pi"}, "metrics.m = 'math:pi' must name a function of (outputs, targets), not float"),
        ({"m": "epidemic:Graph"}, "metrics.m = 'epidemic:Graph' must name a function of (outputs, targets), not Graph"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_before_anything_runs(tmp_path, metrics, message):
    with pytest.raises(ep.BadInput) as caught:
        ep.simulate(small(metrics=metrics), tmp_path / "run")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("run/seed-1/run.json"))


@pytest.mark.parametrize("name", ["macro-f1", "auc", "perplexity", "balanced-accuracy"])
def test_metrics_of_classes_need_classes(name):
    x = np.zeros((9, 2), np.float32)
    with pytest.raises(ep.BadInput, match=f"metric '{name}': {name} needs data with classes, not quantities"):
        ep.simulate(small(data=((x, x), (x, x)), metrics=[name]))


def test_what_fails_later_ends_the_run_in_one_line(tmp_path):
    with pytest.raises(ep.RunFailed, match=r"^metric 'm' failed: ZeroDivisionError: division by zero$"):
        ep.simulate(small(metrics={"m": _late(lambda: 1 / 0)}), tmp_path)
    assert json.loads((tmp_path / "seed-1/state.json").read_text())["state"] == "failed"


def test_a_run_that_diverges_is_not_blamed_on_a_metric():
    def picky(outputs, targets):
        assert torch.isfinite(outputs).all()
        return 1.0

    algorithm = ep.LocalSGD(lr=1e38)
    with pytest.raises(ep.RunFailed, match="is no longer a finite number; lower"):
        ep.simulate(small(algorithm=algorithm, metrics={"m": ep.metrics.whole(picky)}))


def test_all_that_come_with_it_are_marked_right():
    assert {name for name, metric in SHIPPED.items() if not isinstance(metric, Whole)} == {"mean-absolute-error"}
    assert ep.metrics.whole(macro_f1) is macro_f1
    with pytest.raises(ep.BadInput, match="needs a function"):
        ep.metrics.whole(5)
