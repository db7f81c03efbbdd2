"""How accuracy is measured: one logit, several labels, sequences and pixels; what cannot be told is refused."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import epidemic as ep
from epidemic.core.errors import BadInput
from epidemic.learner.accuracies import accuracy, accuracy_measure

RNG = np.random.default_rng(5)
X = RNG.standard_normal((96, 6)).astype(np.float32)
W = RNG.standard_normal((6, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def _drawn_alike():
    """The models of these tests start from the same weights every time."""
    torch.manual_seed(1)


def experiment(y, model, loss, x=X, **more):
    """Four nodes on data in which every target is a function of the inputs; the test samples are those of training."""
    return ep.Experiment(
        nodes=4, rounds=20, topology=ep.ELLocal(s=2), data=((x, y), (x, y)), partition=ep.IID(), model=model, loss=loss,
        algorithm=ep.LocalSGD(lr=0.3, local_steps=4, batch_size=8), eval=ep.Eval(every=20), **more,
    )  # fmt: skip


def final_outputs(given):
    """What every node's final model puts out for all samples, and the run."""
    run = ep.simulate(given, progress=False)
    found = []
    for weights in run.models:
        module = copy.deepcopy(given.model)
        module.load_state_dict(weights)
        with torch.no_grad():
            found.append(module.eval()(torch.from_numpy(X)))
    return found, run


@pytest.mark.parametrize("strategy", ["stacked", "per-node"])
@pytest.mark.parametrize("width", [1, 0])
def test_one_logit_is_right_where_its_sign_is_that_of_the_class(strategy, width):
    """An output for two classes, with or without an axis of its own: 0.87 was reported where 0.96 was true."""
    y = (X @ W[:, 0] > -1.5).astype(np.int64)
    layers = [nn.Linear(6, 1), *([] if width else [nn.Flatten(0)])]
    loss = lambda o, t: F.binary_cross_entropy_with_logits(o.reshape(t.shape), t.to(o.dtype))  # noqa: E731
    given = experiment(y, nn.Sequential(*layers), loss, runtime=ep.Runtime(strategy=strategy))
    outputs, run = final_outputs(given)
    right = [float(((o.reshape(-1) > 0).numpy() == (y == 1)).mean()) for o in outputs]
    assert run.seeds[0].summary.final_accuracy.mean == pytest.approx(np.mean(right), abs=1e-6)
    assert run.records[-1].accuracy.mean == pytest.approx(np.mean(right), abs=1e-6)
    assert np.mean(right) > 0.9 > (y == 0).mean()


def test_a_probability_is_compared_with_one_half():
    """A model that ends in a sigmoid, with BCELoss: all of its outputs are above 0."""
    y = (X @ W[:, 0] > 0).astype(np.int64)
    model = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid())
    given = experiment(y, model, lambda o, t: F.binary_cross_entropy(o[:, 0], t.to(o.dtype)))
    outputs, run = final_outputs(given)
    right = [float(((o[:, 0] > 0.5).numpy() == (y == 1)).mean()) for o in outputs]
    assert run.records[-1].accuracy.mean == pytest.approx(np.mean(right), abs=1e-6)
    assert run.records[-1].accuracy.mean > 0.8


@pytest.mark.parametrize("strategy", ["stacked", "per-node"])
def test_several_labels_count_one_by_one(strategy):
    """Whole-number targets of (N, labels) zeros and ones, with the loss as PyTorch has it."""
    y = (X @ W > 0).astype(np.int32)
    y[0] = 1  # not one-hot
    given = experiment(y, nn.Linear(6, 4), nn.BCEWithLogitsLoss(), runtime=ep.Runtime(strategy=strategy))
    outputs, run = final_outputs(given)
    right = [float(((o > 0).numpy() == (y == 1)).mean()) for o in outputs]
    assert run.records[-1].accuracy.mean == pytest.approx(np.mean(right), abs=1e-6)
    assert run.records[-1].accuracy.mean > 0.8


class Tagger(nn.Module):
    """A class for each of 3 positions, of 5."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(6, 15), last

    def forward(self, x):
        scores = self.linear(x).view(len(x), 3, 5)
        return scores if self.last else scores.transpose(1, 2)


@pytest.mark.parametrize("strategy", ["stacked", "per-node"])
@pytest.mark.parametrize("last", [True, False])
def test_positions_count_one_by_one_and_ignored_ones_do_not(strategy, last):
    """Sequences of class numbers; classes on the last axis or on the first, as PyTorch's cross-entropy has them."""
    y = (np.abs(X[:, :3]) * 2).astype(np.int64).clip(0, 4)
    y[::4, 1] = -100
    loss = lambda o, t: F.cross_entropy(o.transpose(1, 2) if last else o, t)  # noqa: E731
    given = experiment(y, Tagger(last), loss, runtime=ep.Runtime(strategy=strategy))
    outputs, run = final_outputs(given)
    guesses = [o.argmax(2 if last else 1).numpy() for o in outputs]
    shares = [((g == y) & (y >= 0)).sum(1) / (y >= 0).sum(1) for g in guesses]
    assert run.records[-1].accuracy.mean == pytest.approx(np.mean(shares), abs=1e-6)


def test_masks_are_judged_pixel_by_pixel():
    """A mask of truth values, and one output for each pixel with an axis of channels."""
    pictures = RNG.standard_normal((40, 1, 4, 4)).astype(np.float32)
    masks = pictures[:, 0] > 0.2
    loss = lambda o, t: F.binary_cross_entropy_with_logits(o[:, 0], t.to(o.dtype))  # noqa: E731
    run = ep.simulate(experiment(masks, nn.Conv2d(1, 1, 1), loss, x=pictures), progress=False)
    assert run.records[-1].accuracy.mean > 0.9


def test_as_many_positions_as_classes_are_told_apart_by_the_loss():
    outputs, targets = torch.zeros(2, 3, 3), torch.tensor([[0, 1, 2], [2, 2, 1]])
    first = accuracy_measure(outputs, targets, (0, 2), 0, lambda o, t: F.cross_entropy(o, t))
    last = accuracy_measure(outputs, targets, (0, 2), 0, lambda o, t: F.cross_entropy(o.transpose(1, 2), t))
    scores = F.one_hot(targets, 3).float()  # classes on the last axis
    assert last(scores, targets).tolist() == [1.0, 1.0]
    assert first(scores.transpose(1, 2), targets).tolist() == [1.0, 1.0]
    with pytest.raises(BadInput, match="either axis could be that of the classes"):
        accuracy_measure(outputs, targets, (0, 2), 0, lambda o, t: o.sum() * 0)


def test_classes_with_an_output_each_are_measured_as_ever():
    bce = F.cross_entropy
    assert accuracy_measure(torch.zeros(2, 4), torch.tensor([0, 3]), (0, 3), 4, bce) is accuracy
    assert accuracy_measure(torch.zeros(2, 9), torch.tensor([0, 3]), (0, 3), 4, bce) is accuracy


@pytest.mark.parametrize(
    ("outputs", "loss", "reason"),
    [
        ((3,), lambda o, t: o.square().mean(), r"outputs of shape \(3,\) .* 4 classes; give one output for each class"),
        ((1,), lambda o, t: (o[:, 0] - t).square().mean(), r"outputs of shape \(1,\) .* 4 classes"),
    ],
)
def test_labels_whose_outputs_tell_no_class_are_refused(outputs, loss, reason):
    y = np.arange(96) % 4
    with pytest.raises(BadInput, match=reason):
        ep.simulate(experiment(y, nn.Linear(6, *outputs), loss), progress=False)


def test_a_loss_that_prefers_nothing_is_refused():
    with pytest.raises(BadInput, match="the loss prefers no sign"):
        ep.simulate(
            experiment(np.arange(96) % 2, nn.Linear(6, 1), lambda o, t: F.cross_entropy(o, t * 0)), progress=False
        )


def test_quantities_have_no_accuracy():
    """Floats, and whole numbers under squared error, which are quantities as they were before."""
    counts = np.stack([np.arange(96) % 5, np.arange(96) % 3], axis=1)
    for y in (counts.astype(np.float32), counts):
        assert ep.simulate(experiment(y, nn.Linear(6, 2), "auto"), progress=False).records[-1].accuracy is None


def test_a_sample_without_a_position_that_counts_is_refused():
    y = (np.abs(X[:, :3]) * 2).astype(np.int64).clip(0, 4)
    y[7] = -100
    with pytest.raises(BadInput, match="evaluated sample 7 has a negative target at every position"):
        ep.simulate(experiment(y, Tagger(False), F.cross_entropy), progress=False)
