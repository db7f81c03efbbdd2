"""Data as people have it: sample sets of PyTorch, names as labels, tables, tables of pictures, declared classes."""

import io
import json
from decimal import Decimal

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

import epidemic as ep
from epidemic.cli import main
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.data import as_dataset, image_tables
from epidemic.learner.task import squared_error
from epidemic.runtime.setup import prepare


def refused(data, classes=None):
    with pytest.raises(BadInput) as caught:
        as_dataset(data, "data", classes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- sample sets ------------------------------------------------------------------------------------------------------


class Listed(TorchDataset):
    """Samples from a list."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


class Pictures(TorchDataset):
    """Pillow pictures of equal size, labelled by name or number."""

    def __init__(self, labels, mode="RGB", classes=None, size=(6, 4)):
        self.labels, self.mode, self.shape = labels, mode, size
        if classes is not None:
            self.classes = classes

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return Image.new(self.mode, self.shape, i), self.labels[i]


def test_pictures_with_names_as_labels():
    data = as_dataset((Pictures(["dog", "cat", "eel", "cat"]), Pictures(["eel", "dog"])), "data")
    assert data.classes == ("cat", "dog", "eel")  # sorted
    assert data.train.targets.tolist() == [1, 0, 2, 0]
    assert data.test.targets.tolist() == [2, 1]
    assert data.train.inputs.shape == (4, 3, 4, 6)
    assert data.train.inputs.dtype == np.uint8
    assert data.train.inputs[3, 0].max() == 3
    assert data.scale == 1 / 255
    assert as_dataset((Pictures([0, 1], "L"),) * 2, "data").input_shape == (1, 4, 6)
    assert as_dataset((Pictures([0, 1], "P"),) * 2, "data").input_shape == (3, 4, 6)


def test_a_sample_set_names_its_classes_and_a_part_of_it_has_the_same():
    whole = Pictures([0, 1, 1, 0], classes=["no", "yes"])
    data = as_dataset((Subset(whole, [0, 1, 2]), Subset(whole, [3])), "data")
    assert data.classes == ("no", "yes")
    assert as_dataset((whole, whole), "data", ("yes", "no")).train.targets.tolist() == [1, 0, 0, 1]
    assert "train has the classes" in refused((whole, Pictures([0, 1], classes=["yes", "no"])))
    assert "training sample 0 has the label '2'" in refused((Pictures([2, 0], classes=["no", "yes"]), whole))
    assert "'no', which is not among data.classes" in refused((whole, whole), ("yes", "perhaps"))


def test_numbers_that_a_model_cannot_take_are_named():
    double = TensorDataset(torch.tensor([[1.0], [1e39]], dtype=torch.float64), torch.tensor([0, 1]))
    assert "sample 1 of" in refused((double, double))
    assert "has the number 1e+39; the largest that a model can take is 3.4e+38" in refused((double, double))


def test_tensors_run_from_end_to_end_and_are_told_apart():
    stream = Streams(1)("x")
    x = torch.from_numpy(stream.normals(60, 5)).float()
    y = (x[:, 0] > 0).long()
    train, test = TensorDataset(x[:40], y[:40]), TensorDataset(x[40:], y[40:])
    what = ep.Experiment(
        nodes=4, rounds=20, data=(train, test), topology=ep.Ring(), model=ep.Logistic(), partition=ep.IID(),
        algorithm=ep.LocalSGD(lr=0.3), runtime=ep.Runtime(strategy="per-node"),
    )  # fmt: skip
    assert ep.simulate(what).records[-1].accuracy.mean > 0.75
    other = ep.Experiment(data=(TensorDataset(x[:40] + 1, y[:40]), test))
    assert other.table()["data"] != ep.Experiment(data=(train, test)).table()["data"]


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(2), 0


class NoLength(TorchDataset):
    def __getitem__(self, i):
        return torch.zeros(2), 0


class Samples(TorchDataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


class Vast(Samples):
    def __len__(self):
        return 2**60


GOOD = Samples([(np.zeros(2), 0), (np.ones(2), 1)])


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (Endless(), "(train) is a Endless, which has no samples by number or no length (it may have no end)"),
        ((i for i in range(3)), "(train) is a generator, which has no samples by number"),
        (NoLength(), "no length"),
        (DataLoader(GOOD), "give its data set, loader.dataset"),
        (Samples([]), "has no samples"),
        (Vast([(np.zeros(9), 0)]), "GiB of memory"),
        (Samples([{"x": 1}]), "sample 0 of data (train) must be (input, label), not a dict"),
        (Samples([(1, 2, 3)]), "not a tuple of 3"),
        (Samples([(np.zeros(2), 0), (np.zeros(3), 0)]), "sample 1 of data (train) is float32 of shape (3,)"),
        (Samples([(np.zeros(2), 0), (np.zeros(2), "a")]), "sample 1 of data (train) has a label of type str"),
        (Samples([("text", 0)]), "has an input of type"),
        ((np.zeros((2, 2)), np.zeros(2, int)), "is a pair of a data set and a tuple"),
    ],
)
def test_what_is_no_sample_set_is_named(train, message):
    assert message in refused((train, GOOD))


def test_a_function_may_return_a_pair_of_sample_sets(tmp_path, monkeypatch):
    (tmp_path / "torch_pair.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\ndef make():\n"
        "    one = TensorDataset(torch.zeros(4, 2), torch.arange(4) % 2)\n    return one, one\n"
    )
    monkeypatch.chdir(tmp_path)
    data = ep.PythonData(function="torch_pair:make", classes=("no", "yes")).load()
    assert (data.classes, len(data.train)) == (("no", "yes"), 4)


def test_a_sample_that_fails_and_a_single_set_are_named():
    class Broken(Samples):
        def __getitem__(self, i):
            raise OSError("disk\ngone")

    assert "sample 0 of data (train) cannot be read: OSError: disk gone" in refused((Broken([1]), GOOD))
    assert "is a single Samples; give a pair" in refused(GOOD)
    assert "two torch.utils.data.Dataset" in refused(3)


# -- labels -----------------------------------------------------------------------------------------------------------

X = np.ones((4, 2))


def arrays(y, test=None):
    y = np.asarray(y)
    test = y if test is None else np.asarray(test)
    return (np.ones((len(y), 2)), y), (np.ones((len(test), 2)), test)


@pytest.mark.parametrize(
    ("labels", "declared", "classes", "numbers"),
    [
        (["b", "a", "b"], None, ("a", "b"), [1, 0, 1]),
        (["b", "a", "b"], ("c", "b", "a"), ("c", "b", "a"), [1, 2, 1]),
        ([b"b", b"a"], None, ("a", "b"), [1, 0]),
        ([1, 0, 1], ("benign", "malignant", "unclear"), ("benign", "malignant", "unclear"), [1, 0, 1]),
        ([7, 5], ("5", "6", "7"), ("5", "6", "7"), [2, 0]),  # names that are numbers are names
        ([True, False], None, ("false", "true"), [1, 0]),
        ([True, False], ("true", "false"), ("true", "false"), [0, 1]),
        ([True, False], ("well", "ill"), ("well", "ill"), [1, 0]),
        ([0, 2], None, ("0", "1", "2"), [0, 2]),
    ],
)
def test_labels_become_numbers(labels, declared, classes, numbers):
    data = as_dataset(arrays(labels), "data", declared)
    assert data.classes == classes
    assert data.train.targets.tolist() == numbers
    assert data.train.targets.dtype == np.int64


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64, np.uint64, np.bool_])
def test_masks_and_token_ids_stay_whole_numbers(kind, tmp_path):
    """Targets of several dimensions, as arrays, in a file, as tensors of a sample set and in a Dataset; with samples set aside, too."""
    x, y = np.zeros((4, 2), np.float32), np.arange(24).reshape(4, 2, 3).astype(kind)
    np.savez(tmp_path / "masks.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    samples = [(torch.zeros(2), torch.from_numpy(one)) for one in y]
    held = ep.Dataset(ep.Samples(x, y), ep.Samples(x, y))
    file = ep.Arrays(path=str(tmp_path / "masks.npz"), validation=0.25)
    for given in (((x, y), (x, y)), (Listed(samples), Listed(samples)), held, file):
        data = file.load() if given is file else ep.Experiment(data=given).load_data()
        for part in filter(None, (data.train, data.test, data.validation)):
            assert part.targets.dtype == np.int64
            assert part.targets.shape[1:] == (2, 3)
        assert (data.test.targets == y.astype(np.int64)).all()
        assert data.classes == ()


def test_whole_numbers_beyond_64_bits_are_named():
    y = np.full((2, 2), 2**63, dtype=np.uint64)
    assert refused(arrays(y)) == f"train_y has the number {2**63}; whole numbers up to {2**63 - 1} are possible"


def test_a_loss_is_given_whole_numbers_unless_it_takes_floats_only():
    """Cross-entropy over positions wants integers, binary cross-entropy floats; squared error has always had floats."""
    x, y = np.zeros((4, 3), np.float32), np.array([[0, 1], [1, 1], [1, 0], [0, 0]])
    cross = torch.nn.functional.cross_entropy
    for loss, model, kind in [
        (lambda o, t: cross(o.view(len(o), 2, 2), t), torch.nn.Linear(3, 4), torch.int64),
        (torch.nn.BCEWithLogitsLoss(), torch.nn.Linear(3, 2), torch.float32),
        ("auto", torch.nn.Linear(3, 2), torch.float32),
    ]:
        experiment = ep.Experiment(
            nodes=2, topology=ep.Ring(), data=((x, y), (x, y)), partition=ep.IID(), loss=loss, model=model
        )
        setup = prepare(experiment, 1)
        for targets in (setup.task.train[1], setup.evaluated[1], setup.test[1], setup.task.batch(torch.arange(2))[1]):
            assert targets.dtype == kind


def test_what_should_be_known_about_labels_is_said():
    assert as_dataset(arrays([0, 3]), "data").note == 'no sample is of the classes "1", "2" (of 4)'
    assert "taken as the classes" in as_dataset(arrays([True, False]), "data").note
    assert 'class "c"' in as_dataset(arrays(["a", "b"]), "data", ("a", "b", "c")).note
    assert "taken as quantities" in as_dataset(arrays(np.array([[3], [4]])), "data").note
    assert as_dataset(arrays([0, 1]), "data").note == ""


@pytest.mark.parametrize(
    ("data", "declared", "message"),
    [
        (arrays(["a", "b"]), ("a", "c"), "training sample 1 has the label 'b', which is not among data.classes"),
        (arrays(["a", "b"], ["a", "z"]), ("a", "b"), "test sample 1 has the label 'z'"),
        (arrays([0, 2]), ("no", "yes"), '\'2\', but data.classes = ["no", "yes"] has the numbers 0 to 1'),
        (arrays([0, 1], ["a", "b"]), None, "give both the same"),
        (arrays([0.5, 1.5]), ("a", "b"), "the targets are quantities to predict"),
        (arrays(["a", "a"]), None, "at least two classes"),
        (arrays(["a", " "]), None, "is no name of a class"),
        (arrays(["a", "b" * 300]), None, "is no name of a class"),
        (arrays(np.array(["a", None], dtype=object)), None, "training sample 1 has the label None"),
        (arrays(np.eye(3, dtype=int)), None, "one-hot; give the numbers of the classes, train_y.argmax(1)"),
        (arrays([0, 1], np.array([[0], [1]])), None, "shape"),
    ],
)
def test_wrong_labels_are_named(data, declared, message):
    assert message in refused(data, declared)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["a"], "at least two"),
        (["a", "a"], "names 'a' twice"),
        (["a", ""], "is no name"),
        (3, "data.classes = 3 must be a list"),
        ([1, 2], "must be a text"),
    ],
)
def test_wrong_declarations_are_named(classes, message):
    from epidemic.experiment import experiment_from

    with pytest.raises(BadInput) as caught:
        experiment_from({"data": {"kind": "arrays", "path": "x.npz", "classes": classes}})
    assert message in str(caught.value)


def test_a_dataset_of_ones_own_takes_declared_classes(tmp_path, monkeypatch):
    (tmp_path / "named_data.py").write_text(
        "import numpy as np, epidemic as ep\ndef make():\n    s = ep.Samples(np.ones((2, 2)), np.array([0, 1]))\n"
        "    return ep.Dataset(s, s, ('b', 'a'))\n"
    )
    monkeypatch.chdir(tmp_path)
    data = ep.PythonData(function="named_data:make", classes=("a", "b")).load()
    assert (data.classes, data.train.targets.tolist()) == (("a", "b"), [1, 0])


def test_other_files_than_npz_say_what_to_use(tmp_path):
    for name, message in (("a.csv", 'data.kind = "table"'), ("a.parquet", "image-table"), ("a.npy", "np.savez")):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(BadInput, match=message):
            ep.Arrays(path=str(tmp_path / name)).load()


# -- one quantity to predict ------------------------------------------------------------------------------------------


def test_a_quantity_may_have_an_axis_of_its_own_or_not():
    outputs, targets = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0.0, 0.0, 1.0])
    expected = 0.5 * (1 + 4 + 9) / 3
    for a in (outputs, outputs[:, 0]):
        for b in (targets, targets[:, None]):
            assert squared_error(a, b).item() == pytest.approx(expected)
    for a, b in (
        (torch.ones(3, 2), torch.ones(3)),
        (torch.ones(1, 2), torch.ones(1)),
        (torch.ones(3, 1), torch.ones(3, 2)),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            squared_error(a, b)


def test_the_same_for_many_models_at_once():
    outputs, targets = torch.randn(3, 4, 1), torch.randn(3, 4)
    each = 0.5 * (outputs[:, :, 0] - targets).square().mean(1)
    assert torch.allclose(torch.func.vmap(squared_error)(outputs, targets), each)


def test_one_dimensional_targets_are_learnt():
    x = Streams(1)("x").normals(80, 3)
    y = x @ [1.0, -2.0, 0.5] + 3
    what = ep.Experiment(
        nodes=2, rounds=60, data=((x[:60], y[:60]), (x[60:], y[60:])), topology=ep.Ring(), model=ep.Logistic(),
        partition=ep.IID(), algorithm=ep.LocalSGD(lr=0.1), runtime=ep.Runtime(strategy="per-node"),
    )  # fmt: skip
    assert ep.simulate(what).records[-1].loss.mean < 1e-3  # broadcast, it would not fall below the variance of y


# -- tables -----------------------------------------------------------------------------------------------------------


def table(tmp_path, text, **settings):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return ep.Table(**{"path": str(path), "target": "y", **settings})


ROWS = "a,b,y\n" + "".join(f"{i},{2 * i + 1},{'yes' if i % 2 else 'no'}\n" for i in range(20))


def test_a_table_of_numbers_with_a_class_to_predict(tmp_path):
    data = table(tmp_path, ROWS).load()
    assert data.classes == ("no", "yes")
    assert data.features == ("a", "b")
    assert (len(data.train), len(data.test)) == (16, 4)
    assert data.train.inputs.dtype == np.float32
    assert np.abs(data.train.inputs.mean(0)).max() < 1e-6  # of the training samples alone
    assert np.abs(data.train.inputs.std(0) - 1).max() < 1e-6
    raw = table(tmp_path, ROWS, normalise=False, features=["b"], test=0.5).load()
    assert raw.train.inputs.shape == (10, 1)
    assert set(raw.train.inputs[:, 0]) | set(raw.test.inputs[:, 0]) == set(range(1, 41, 2))
    given = table(tmp_path, ROWS, scale={"a": (1.0, 2.0), "b": (0.0, 1.0)}).load()
    odd = given.train.inputs[:, 0] * 2 + 1
    assert (given.train.inputs[:, 1] == 2 * odd + 1).all()
    assert table(tmp_path, ROWS.replace("a,b,y", "\ufeffa,b,y")).load().features == ("a", "b")
    assert table(tmp_path, ROWS.replace(",", ";"), separator=";").load().features == ("a", "b")


def test_what_a_target_is_follows_from_its_column(tmp_path):
    base = "a,b,y\n" + "".join(f"{i},1,{{{i}}}\n" for i in range(10))
    whole = base.format(*(i % 3 for i in range(10)))
    assert table(tmp_path, whole).load().classes == ("0", "1", "2")
    assert table(tmp_path, whole, classes=("0", "1", "2", "3")).load().classes == ("0", "1", "2", "3")
    quantity = table(tmp_path, whole, quantity=True).load()
    assert (quantity.classes, quantity.train.targets.dtype, quantity.train.targets.ndim) == ((), np.float32, 1)
    assert table(tmp_path, base.format(*(i / 4 for i in range(10)))).load().classes == ()
    assert table(tmp_path, base.format(*(i % 2 == 0 for i in range(10)))).load().classes == ("false", "true")


def test_a_folder_with_a_table_for_training_and_one_for_testing(tmp_path):
    import pandas

    frame = pandas.DataFrame({"y": ["u", "v", "u"], "a": [1.0, 2.0, 3.0], "who": ["x", "x", "z"]})
    frame.to_parquet(tmp_path / "train.parquet")
    frame[:2].astype({"y": "category"}).to_csv(tmp_path / "test.csv", index=False)
    data = ep.Table(path=str(tmp_path), target="y", group="who").load()
    assert (data.classes, data.features) == (("u", "v"), ("a",))
    assert data.train.groups.tolist() == [0, 0, 1]
    assert (len(data.train), len(data.test)) == (3, 2)
    with pytest.raises(BadInput, match=r"data\.test = 0\.5, but .* has a file of its own"):
        ep.Table(path=str(tmp_path), target="y", test=0.5).load()
    (tmp_path / "test.csv").unlink()
    with pytest.raises(BadInput, match=r"has neither test\.csv nor test\.parquet"):
        ep.Table(path=str(tmp_path), target="y").load()


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("a,b,y\n1,x,0\n2,3,1\n", {}, "column 'b' holds text ('x' in row 1); turn it into numbers, or leave it out"),
        ("a,b,y\n1,2,0\n,3,1\n,4,1\n", {}, "row 2 has no value in column 'a' (and 1 more rows); fill it in"),
        ("a,b,y\n1,2,0\n2,3,\n", {}, "row 2 has no value in column 'y'"),
        ("a,b,z\n1,2,0\n", {}, "has no column 'y'; known: a, b, z"),
        ("a,bb,y\n1,2,0\n", {"features": ["bbb"]}, "has no column 'bbb'; did you mean 'bb'?"),
        ("a,b,y\n1,2,u\n1,2,w\n", {"classes": ["u", "v"]}, "row 2 has the label 'w', which is not among data.classes"),
        ("a,b,y\n1,inf,0\n", {}, "row 1 has inf in column 'b'"),
        ("a,b,y\n1,1e39,0\n", {}, "row 1 has 1e+39 in column 'b'; use numbers up to 3.4e+38"),
        ("a,y\n1,0.5\n1,1e39\n", {}, "row 2 has the number 1e+39; the largest that a model can take is 3.4e+38"),
        ("a;b;y\n1;2;0\n", {}, 'if columns are not separated by ",", set data.separator'),
        (",a,y\n0,1,0\n1,1,1\n", {}, "a column without a name (a saved index?)"),
        ("a,y\n", {}, "has no rows"),
        ("", {}, "cannot be read as a table"),
        ("y,group\n1,2\n", {"group": "group"}, "there is nothing to learn from"),
        ("a,y\n1,0.5\n1,0.5\n", {"classes": ["u", "v"]}, "holds a quantity"),
        ("a,y\n1,u\n1,v\n", {"quantity": True}, "a quantity needs numbers only"),
        ("a,y\n1,0\n1,1\n", {"scale": {"b": (0.0, 1.0)}}, "data.scale must name each feature"),
        ("a,y\n1,0\n", {"features": ["y"]}, "is the target or group"),
        ("a,y\n1,0\n", {"scale": {"a": (0.0, 1.0)}, "normalise": False}, "contradict"),
        ("a,y\n1,0\n", {"scale": {"a": (0.0, 0.0)}}, "must be greater than 0"),
        ("a,y\n1,0\n", {"test": 0.0}, "data.test = 0.0 must be greater than 0"),
    ],
)
def test_wrong_tables_are_named(tmp_path, text, settings, message):
    with pytest.raises(BadInput) as caught:
        table(tmp_path, text, **settings).load()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_decimals_of_a_parquet_table_are_numbers(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    prices = [Decimal(f"{i}.25") for i in range(10)]
    kinds = [Decimal(i % 2) for i in range(10)]
    made = pa.table({"price": pa.array(prices, pa.decimal128(9, 2)), "kind": pa.array(kinds, pa.decimal128(9, 0))})
    pyarrow.parquet.write_table(made, tmp_path / "t.parquet")
    path = str(tmp_path / "t.parquet")
    data = ep.Table(path=path, target="kind", normalise=False).load()
    assert data.classes == ("0", "1")
    assert sorted(data.train.inputs[:, 0].tolist() + data.test.inputs[:, 0].tolist()) == [i + 0.25 for i in range(10)]
    quantity = ep.Table(path=path, target="price").load()
    assert (quantity.classes, quantity.train.targets.dtype) == ((), np.float32)
    gaps = pa.table({"price": pa.array([*prices[:9], None], pa.decimal128(9, 2)), "kind": made["kind"]})
    pyarrow.parquet.write_table(gaps, tmp_path / "t.parquet")
    with pytest.raises(BadInput, match="row 10 has no value in column 'price'"):
        ep.Table(path=path, target="kind").load()


def test_check_says_what_a_table_holds_and_how_to_give_its_scale(tmp_path, capsys):
    path = table(tmp_path, ROWS).path
    assert main(["data", "check", "table", "--path", path, "--set", "target=y"]) == 0
    said = capsys.readouterr().out
    assert "16 training and 4 test samples of shape (2,), 2 classes" in said
    assert "classes: no, yes" in said
    import tomllib

    scale = tomllib.loads(said[said.index("scale = ") :].strip())["scale"]
    given = table(tmp_path, ROWS, scale={k: tuple(v) for k, v in scale.items()}).load()
    assert np.allclose(given.train.inputs, table(tmp_path, ROWS).load().train.inputs, atol=1e-5)


def test_nodes_with_tables_of_their_own_must_have_the_same_scale(tmp_path):
    """Normalised by their own rows, the same number would mean something else on every node."""
    from epidemic.deploy.agreement import agreement_of, check_deployable
    from epidemic.experiment import node_agreement
    from epidemic.runtime.setup import prepare

    def deployed(**settings):
        made = table(tmp_path, ROWS, **settings)
        return ep.Experiment(
            nodes=2, topology=ep.ELLocal(1), data=made, model=ep.Logistic(), network=ep.Network(data="own")
        )

    with pytest.raises(BadInput, match=r"use data\.normalise = false, or give all of them the same data\.scale"):
        check_deployable(deployed())
    scales = [{"a": (0.0, 1.0), "b": (float(i), 1.0)} for i in range(2)]
    found = []
    for settings in (
        {"normalise": False},
        {"scale": scales[0]},
        {"scale": scales[1]},
        {"scale": scales[0], "test": 0.5},
    ):
        check_deployable(deployed(**settings))
        found.append(agreement_of(prepare(deployed(**settings), 1, node_ids=[0])))
    assert found[1].run == found[3].run  # what else is set may differ
    assert len({one.run for one in found}) == 3
    assert found[0].features.first == ("a", "b")
    wide = deployed(scale={f"column {i}": (0.0, 1.0) for i in range(5000)})
    assert len(node_agreement(wide)) > 5000
    assert "data.scale" in found[1].experiment  # one digest, so that a hello has room for any number of columns


# -- tables of pictures -----------------------------------------------------------------------------------------------


def png(i, size=(6, 4)):
    stored = io.BytesIO()
    Image.new("RGB", size, (i, 0, 0)).save(stored, "PNG")
    return stored.getvalue()


def write_pictures(path, labels, names=None, image="image", label="label", pictures=None):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    stored = [{"bytes": png(i), "path": None} for i in range(len(labels))] if pictures is None else pictures
    made = pa.table({image: pa.array(stored, kind), label: pa.array(labels), "more": pa.array(["x"] * len(labels))})
    if names is not None:
        features = {image: {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
        made = made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(made, path)


def test_pictures_as_hugging_face_stores_them(tmp_path):
    names = ["benign", "malignant"]
    write_pictures(tmp_path / "data/train-00000-of-00002.parquet", [0, 1, 1], names, "scan", "finding")
    write_pictures(tmp_path / "data/train-00001-of-00002.parquet", [1], names, "scan", "finding")
    write_pictures(tmp_path / "data/test-00000-of-00001.parquet", [1, 0], names, "scan", "finding")
    data = ep.ImageTable(path=str(tmp_path)).load()
    assert data.classes == ("benign", "malignant")
    assert data.train.inputs.shape == (4, 3, 4, 6)
    assert data.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 0]
    assert data.train.targets.tolist() == [0, 1, 1, 1]
    assert data.test.targets.tolist() == [1, 0]
    turned = ep.ImageTable(path=str(tmp_path), classes=("malignant", "unclear", "benign"), channels=1).load()
    assert turned.train.targets.tolist() == [2, 0, 0, 0]
    assert turned.input_shape == (1, 4, 6)
    with pytest.raises(BadInput, match="training sample 1 has the label 'malignant', which is not among"):
        ep.ImageTable(path=str(tmp_path), classes=("benign", "unclear")).load()
    assert len(ep.ImageTable(path=str(tmp_path)).files()) == 3


def test_pictures_without_metadata_and_in_one_file(tmp_path):
    path = tmp_path / "all.parquet"
    write_pictures(path, ["cat", "dog"] * 5)
    data = ep.ImageTable(path=str(path)).load()
    assert (data.classes, len(data.train), len(data.test)) == (("cat", "dog"), 8, 2)
    write_pictures(tmp_path / "train.parquet", [0, 1])
    write_pictures(tmp_path / "validation.parquet", [1])
    assert "validation" in ep.ImageTable(path=str(tmp_path)).load().note


@pytest.mark.parametrize(
    ("written", "settings", "message"),
    [
        ({"labels": [0, 1], "pictures": [{"bytes": png(0)}, {"bytes": png(1, (5, 4))}]}, {}, "all must be 4 x 6"),
        (
            {"labels": [0, 1], "pictures": [{"bytes": png(0)}, {"bytes": b"x"}]},
            {},
            "train.parquet: row 2 holds a broken picture (cannot identify image file)",
        ),
        (
            {"labels": [0, 1], "pictures": [{"bytes": png(0)}, {"path": "x.png"}]},
            {},
            "row 2 has no picture in column 'image' (a path alone is not enough)",
        ),
        ({"labels": [0, -1], "names": ["a", "b"]}, {}, "has the label '-1', but the classes of the data"),
        ({"labels": [0, None]}, {}, "rows without a label"),
        ({"labels": [0.5, 1.0]}, {}, "holds no labels but double"),
        ({"labels": [0, 1], "names": ["a", "a"]}, {}, "names 'a' twice"),
        ({"labels": [0, 1], "label": "kind"}, {}, "no column of labels that is known as such; set data.label"),
        ({"labels": [0, 1]}, {"image": "pic"}, "data.image = 'pic' is no column"),
        ({"labels": [0, 1]}, {"image": "more"}, "column 'more' holds no encoded pictures"),
    ],
)
def test_wrong_tables_of_pictures_are_named(tmp_path, written, settings, message):
    write_pictures(tmp_path / "train.parquet", **written)
    with pytest.raises(BadInput) as caught:
        ep.ImageTable(path=str(tmp_path), **settings).load()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_are_counted_over_all_batches_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(image_tables, "BATCH", 4)
    monkeypatch.setattr(image_tables, "BLOCK", 2)
    stored = [{"bytes": png(i)} for i in range(11)]
    write_pictures(tmp_path / "train.parquet", [0, 1] * 5 + [0], pictures=stored)
    write_pictures(tmp_path / "test.parquet", [0, 1])
    data = ep.ImageTable(path=str(tmp_path)).load()
    assert data.train.inputs[:, 0, 0, 0].tolist() == list(range(11))
    for what, wrong in (("holds a broken picture", {"bytes": b"x"}), ("has no picture", {"bytes": None})):
        write_pictures(tmp_path / "train.parquet", [0, 1] * 5 + [0], pictures=[*stored[:9], wrong, stored[10]])
        with pytest.raises(BadInput, match=rf"train\.parquet: row 10 {what}"):
            ep.ImageTable(path=str(tmp_path)).load()


def test_a_damaged_table_of_pictures_is_named(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(BadInput, match="not a readable Parquet file"):
        ep.ImageTable(path=str(tmp_path)).load()
    with pytest.raises(BadInput, match=r"has no train-\*\.parquet"):
        ep.ImageTable(path=str(tmp_path.parent / tmp_path.name / "..")).load()


# -- declared classes -------------------------------------------------------------------------------------------------


def folders(root, names, count=3):
    for name in names:
        (root / name).mkdir(parents=True)
        for i in range(count):
            (root / name / f"{i}.png").write_bytes(png(i))
    return str(root)


def test_a_site_that_lacks_a_class_numbers_the_others_right(tmp_path):
    declared = ("benign", "malignant", "unclear")
    data = ep.ImageFolder(path=folders(tmp_path / "a", ["malignant", "unclear"]), classes=declared).load()
    assert data.classes == declared
    assert set(data.train.targets) | set(data.test.targets) == {1, 2}
    alone = ep.ImageFolder(path=folders(tmp_path / "b", ["malignant"]), classes=declared)
    assert set(alone.load().train.targets) == {1}
    assert len(alone.files()) == 4
    with pytest.raises(BadInput, match="a folder 'malignant', which is not among"):
        ep.ImageFolder(path=alone.path, classes=("benign", "unclear")).load()
    with pytest.raises(BadInput, match=r"found 1; if others have the other classes, name all of them in data\.classes"):
        ep.ImageFolder(path=alone.path).load()


def test_a_folder_of_testing_pictures_that_is_not_used_is_said(tmp_path):
    folders(tmp_path / "train", ["a", "b"])
    path = folders(tmp_path / "test", ["a", "b", "c"]).removesuffix("/test")
    assert 'test/c" is left out' in ep.ImageFolder(path=path).load().note


# -- shown ------------------------------------------------------------------------------------------------------------


def test_class_names_are_shown_wherever_classes_are(tmp_path, monkeypatch, capsys):
    names = ["_dog$ x$", "[red]cat", "<eel>", "a very long name of a class"]
    x = Streams(1)("x").normals(40, 3)
    y = np.array(names)[np.arange(40) % 4]
    np.savez(tmp_path / "own.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text(
        "nodes = 4\nrounds = 1\n[topology]\nkind = 'ring'\n[model]\nkind = 'logistic'\n[partition]\nkind = 'iid'\n"
        "[runtime]\nstrategy = 'per-node'\n"
        "[data]\nkind = 'arrays'\npath = 'own.npz'\n"
    )
    assert main(["data", "show", "e.toml"]) == 0
    said = capsys.readouterr().out
    assert "[red]cat (10)" in said.replace("\n", " ")
    assert main(["data", "show", "e.toml", "--plot", "classes.svg"]) == 0
    assert "a very long name" in (tmp_path / "classes.svg").read_text()
    assert main(["run", "e.toml", "--out", "out", "--quiet"]) == 0
    assert json.loads((tmp_path / "out/seed-1/run.json").read_text())["classes"] == sorted(names)
    assert main(["report", "out", "-o", "page.html"]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "&lt;eel&gt;" in page
    assert "<eel>" not in page
    assert "[red]cat" in page


def test_a_note_on_the_data_is_said_when_a_run_starts(tmp_path, monkeypatch, capsys):
    x, y = np.ones((8, 2)), np.array([0, 2] * 4)
    np.savez(tmp_path / "own.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text(
        "nodes = 2\nrounds = 1\n[topology]\nkind = 'ring'\n[model]\nkind = 'logistic'\n[partition]\nkind = 'iid'\n"
        "[runtime]\nstrategy = 'per-node'\n"
        "[data]\nkind = 'arrays'\npath = 'own.npz'\n"
    )
    assert main(["run", "e.toml", "--out", "out"]) == 0
    assert 'warning: data: no sample is of the class "1" (of 3)' in capsys.readouterr().err


# -- labels that look like something else -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "classes", "wanted"),
    [([1, 2, 1, 2], ("1", "2", "3+"), [0, 1, 0, 1]), ([-1, 1, 1, -1], ("-1", "1"), [0, 1, 1, 0])],
)
def test_labels_are_found_by_name_where_a_name_is_a_number(labels, classes, wanted):
    x, y = np.zeros((4, 2), np.float32), np.array(labels)
    assert as_dataset(((x, y), (x, y)), "data", classes).train.targets.tolist() == wanted


def test_a_label_that_is_no_name_is_refused_where_a_name_is_a_number():
    x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    assert "has the label '0', which is not among data.classes" in refused(((x, y), (x, y)), ("1", "2", "3+"))


@pytest.mark.parametrize("names", [["a", "a"], ["", "a"]])
def test_names_that_the_data_brings_along_are_checked(names):
    pictures = Pictures([0, 1, 0, 1], classes=names)
    assert "the classes of the data" in refused((pictures, pictures))


def test_words_that_pandas_takes_for_nothing_are_classes(tmp_path):
    rows = [f"{i},{['NA', 'None', 'x'][i % 3]}" for i in range(60)]
    assert table(tmp_path, "\n".join(["a,y", *rows])).load().classes == ("NA", "None", "x")


def test_rows_with_more_fields_than_names_are_refused(tmp_path):
    rows = [f"{i},1.5,{i % 2}" for i in range(20)]
    with pytest.raises(BadInput, match="has more fields in its rows than names in its first line"):
        table(tmp_path, "\n".join(["a,y", *rows])).load()


class Mirrored(Listed):
    """Pictures that are mirrored by the toss of a coin, every time that they are read."""

    def __getitem__(self, index):
        x, y = self.samples[index]
        return (x.flip(-1) if torch.rand(()) < 0.5 else x), y


def test_random_transformations_are_said_to_be_drawn_once(capsys):
    torch.manual_seed(3)
    samples = [(torch.rand(1, 4, 4), i % 2) for i in range(12)]
    plain, mirrored = Listed(samples), Mirrored(samples)
    assert as_dataset((plain, plain), "data").note == ""
    note = as_dataset((mirrored, plain), "data").note
    assert "of data (train) is another one when it is read again (a random transformation?)" in note
    assert "data (test)" in as_dataset((plain, mirrored), "data").note
    experiment = ep.Experiment(
        nodes=2, rounds=1, topology=ep.Ring(), data=(mirrored, plain), partition=ep.IID(), model=ep.Logistic()
    )
    ep.simulate(experiment, progress=True)
    assert capsys.readouterr().err.count("every sample is read once, and stays as it was drawn then") == 1


def test_reading_again_comes_after_everything_was_read():
    """So that what is drawn while reading is what was always drawn."""
    order = []

    class Noting(Listed):
        def __getitem__(self, index):
            order.append((id(self), index))
            return super().__getitem__(index)

    train, test = (Noting([(torch.zeros(2), i % 2) for i in range(size)]) for size in (9, 3))
    as_dataset((train, test), "data")
    once = [(id(train), i) for i in range(9)] + [(id(test), i) for i in range(3)]
    assert order == once + once[:8] + once[9:]
