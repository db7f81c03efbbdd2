"""Every kind of data is read, end to end, and broken files are refused in one line."""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import msgspec
import numpy as np
import pytest

import epidemic as ep
from epidemic.core.config import build_kind
from epidemic.core.errors import BadInput, RunFailed
from epidemic.core.rng import Streams
from epidemic.data import (
    CIFAR10,
    FEMNIST,
    MNIST,
    SOURCES,
    Arrays,
    Digits,
    Fashion,
    FashionMNIST,
    ImageFolder,
    PythonData,
    Synthetic,
    stratified,
)
from epidemic.data import cifar as cifar_module
from epidemic.data.fetch import Download, downloads, fetch


def test_embedded_fashion():
    data = Fashion().load()
    assert data.train.inputs.shape == (8000, 1, 14, 14)
    assert np.bincount(data.train.targets).tolist() == [800] * 10
    assert np.bincount(data.test.targets).tolist() == [200] * 10
    assert data.train.inputs.dtype == np.uint8


def test_embedded_digits():
    data = Digits().load()
    assert len(data.train) + len(data.test) == 1797
    assert data.input_shape == (1, 8, 8)
    assert np.bincount(data.test.targets).min() >= 34
    low, high = data.train.inputs.min() * data.scale + data.shift, data.train.inputs.max() * data.scale + data.shift
    assert (low, high) == (-1, 1)


def test_a_validation_split_is_stratified_and_disjoint():
    plain, split = Digits().load(), Digits(validation=0.2).load()
    assert len(split.validation) == round(0.2 * len(plain.train))
    assert len(split.train) + len(split.validation) == len(plain.train)
    assert np.bincount(split.validation.targets).min() >= 20
    assert split.evaluated is split.validation
    together = np.concatenate([split.train.inputs, split.validation.inputs]).reshape(len(plain.train), -1)
    assert np.array_equal(
        np.unique(together, axis=0), np.unique(plain.train.inputs.reshape(len(plain.train), -1), axis=0)
    )


def test_a_stratified_subset_has_every_class_in_proportion():
    targets = np.repeat(np.arange(4), [400, 300, 200, 100])[Streams(1)("x").permutation(1000)]
    chosen = stratified(targets, 100, "evaluation")
    assert np.bincount(targets[chosen]).tolist() == [40, 30, 20, 10]
    assert np.array_equal(chosen, stratified(targets, 100, "evaluation"))
    assert stratified(targets, 5000, "evaluation").size == 1000


def test_synthetic_classes_are_separable_by_their_centres():
    data = Synthetic(features=20, classes=3, samples=600, spread=2.0).load()
    assert data.train.inputs.shape == (600, 20)
    assert len(data.test) == 120
    centres = np.stack([data.train.inputs[data.train.targets == k].mean(0) for k in range(3)])
    nearest = ((data.test.inputs[:, None] - centres) ** 2).sum(-1).argmin(1)
    assert (nearest == data.test.targets).mean() > 0.95


def test_the_quadratic_problem_has_the_constants_it_says():
    source = Synthetic(problem="quadratic", features=6, groups=12, samples=1200, spread=2.0, noise=0.5)
    data, known = source.load(), source.known()
    assert known.heterogeneity == pytest.approx(4.0)
    assert known.noise == pytest.approx(0.25 * 6, rel=0.1)
    assert np.abs(data.train.inputs.mean(0)).max() < 1e-12  # the optimum is the origin


def _idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", d) for d in array.shape)
    return header + array.astype(np.uint8).tobytes()


def _write_idx(path, compress):
    stream = Streams(1)("pixels")
    for split, size in (("train", 50), ("t10k", 20)):
        images = stream.integers(256, size, 28, 28)
        labels = np.arange(size) % 10
        for name, array in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
            if compress:
                (path / f"{name}.gz").write_bytes(gzip.compress(_idx(array)))
            else:
                (path / name).write_bytes(_idx(array))


@pytest.mark.parametrize("cls", [MNIST, FashionMNIST])
@pytest.mark.parametrize("compress", [True, False])
def test_idx_files(tmp_path, cls, compress):
    _write_idx(tmp_path, compress)
    data = cls(path=str(tmp_path)).load()
    assert data.train.inputs.shape == (50, 1, 28, 28)
    assert data.test.targets.tolist() == [i % 10 for i in range(20)]
    assert len(data.classes) == 10


def test_fashion_mnist_finds_debians_package(tmp_path, monkeypatch):
    _write_idx(tmp_path, True)
    monkeypatch.setattr("epidemic.data.idx.DEBIAN", tmp_path)
    monkeypatch.setenv("EPIDEMIC_DATA", str(tmp_path / "none"))
    assert len(FashionMNIST().load().train) == 50


def test_broken_idx_files(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        MNIST(path=str(tmp_path / "no")).load()
    with pytest.raises(BadInput, match="has no train-images-idx3-ubyte"):
        MNIST(path=str(tmp_path)).load()
    _write_idx(tmp_path, True)
    target = tmp_path / "train-images-idx3-ubyte.gz"
    whole = target.read_bytes()
    target.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="truncated or corrupt"):
        MNIST(path=str(tmp_path)).load()
    target.write_bytes(gzip.compress(b"\0\0\x08\x03" + bytes(12)) + b"rubbish")
    with pytest.raises(BadInput, match="truncated or corrupt"):
        MNIST(path=str(tmp_path)).load()
    target.write_bytes(gzip.compress(b"hello"))
    with pytest.raises(BadInput, match="not an IDX file"):
        MNIST(path=str(tmp_path)).load()
    target.write_bytes(gzip.compress(_idx(np.zeros((50, 28, 28)))[:-7]))
    with pytest.raises(BadInput, match="39193 bytes of data where 39200 belong"):
        MNIST(path=str(tmp_path)).load()


def test_data_that_is_not_here_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("EPIDEMIC_DATA", str(tmp_path))
    with pytest.raises(BadInput, match=r"run 'epidemic data fetch mnist' or set data\.path"):
        MNIST().load()


# -- CIFAR-10 ---------------------------------------------------------------------------------------------------------

BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


def _cifar_batch(name, size=20):
    images = Streams(2)(name).integers(256, size, 3072).astype(np.uint8)
    return images, (np.arange(size) % 10)


def _cifar_tar(path, content):
    with tarfile.open(path, "w:gz") as archive:
        for name in BATCHES:
            inner, raw = content(name)
            info = tarfile.TarInfo(f"cifar-10/{inner}")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return hashlib.md5(path.read_bytes()).hexdigest()


def _pickled(name):
    images, labels = _cifar_batch(name)
    return name, pickle.dumps({b"data": images, b"labels": labels.tolist()}, protocol=3)


def _binary(name):
    images, labels = _cifar_batch(name)
    return f"{name}.bin", np.concatenate([labels[:, None].astype(np.uint8), images], axis=1).tobytes()


def _check_cifar(data):
    assert data.train.inputs.shape == (100, 3, 32, 32)
    assert data.test.inputs.shape == (20, 3, 32, 32)
    images, labels = _cifar_batch("data_batch_2")
    assert np.array_equal(data.train.inputs[20:40].reshape(20, -1), images)
    assert data.train.targets[20:40].tolist() == labels.tolist()
    assert data.classes[3] == "cat"


@pytest.mark.parametrize(
    ("name", "content"), [("cifar-10-python.tar.gz", _pickled), ("cifar-10-binary.tar.gz", _binary)]
)
def test_cifar_archives(tmp_path, monkeypatch, name, content, twenty_a_file):
    found = _cifar_tar(tmp_path / name, content)
    with pytest.raises(BadInput, match="not that of an official CIFAR-10 archive"):
        CIFAR10(path=str(tmp_path)).load()
    monkeypatch.setitem(cifar_module.ARCHIVES, name, found)
    _check_cifar(CIFAR10(path=str(tmp_path)).load())
    _check_cifar(CIFAR10(path=str(tmp_path / name)).load())


@pytest.fixture
def twenty_a_file(monkeypatch):
    monkeypatch.setattr(cifar_module, "RECORDS", 20)


@pytest.mark.usefixtures("twenty_a_file")
def test_cifar_unpacked_binary(tmp_path):
    for name in BATCHES:
        inner, raw = _binary(name)
        (tmp_path / inner).write_bytes(raw)
    _check_cifar(CIFAR10(path=str(tmp_path)).load())
    (tmp_path / "data_batch_3.bin").write_bytes(raw[:-100])
    with pytest.raises(BadInput, match="not a whole number of 3073-byte records"):
        CIFAR10(path=str(tmp_path)).load()
    (tmp_path / "data_batch_3.bin").write_bytes(raw[:-3073])
    with pytest.raises(BadInput, match="has 19 pictures where 20 belong"):
        CIFAR10(path=str(tmp_path)).load()
    (tmp_path / "data_batch_3.bin").write_bytes(bytes([77]) + raw[1:])
    with pytest.raises(BadInput, match="has a label 77"):
        CIFAR10(path=str(tmp_path)).load()


def test_cifar_pickles_are_read_only_with_the_published_checksum(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in BATCHES:
        raw = _pickled(name)[1]
        (folder / name).write_bytes(raw)
        if name != "data_batch_1":
            monkeypatch.setitem(cifar_module.PICKLES, name, hashlib.md5(raw).hexdigest())
    with pytest.raises(BadInput, match="it is not unpickled"):
        CIFAR10(path=str(tmp_path)).load()
    monkeypatch.setitem(cifar_module.PICKLES, "data_batch_1", hashlib.md5(_pickled("data_batch_1")[1]).hexdigest())
    _check_cifar(CIFAR10(path=str(tmp_path)).load())


class _Evil:
    def __reduce__(self):
        return print, ("this must never be printed",)


def test_even_a_pickle_with_the_right_checksum_cannot_run_code(tmp_path, monkeypatch, capsys):
    raw = pickle.dumps({b"data": _Evil()})
    for name in BATCHES:
        (tmp_path / name).write_bytes(raw)
        monkeypatch.setitem(cifar_module.PICKLES, name, hashlib.md5(raw).hexdigest())
    with pytest.raises(BadInput, match=r"builtins\.print is not allowed"):
        CIFAR10(path=str(tmp_path)).load()
    assert capsys.readouterr().out == ""


def _png(pixels):
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_cifar_parquet(tmp_path):
    import pyarrow
    import pyarrow.parquet

    folder = tmp_path / "plain_text"
    folder.mkdir()
    for split, names in (("train", BATCHES[:5]), ("test", BATCHES[5:])):
        rows = []
        for name in names:
            images, labels = _cifar_batch(name)
            pictures = images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            rows += [
                {"img": {"bytes": _png(p), "path": None}, "label": int(y)}
                for p, y in zip(pictures, labels, strict=True)
            ]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")
    _check_cifar(CIFAR10(path=str(tmp_path)).load())
    assert CIFAR10(path=str(tmp_path)).load().note == "", "PNG loses nothing"
    path = folder / "train-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(BadInput, match="is not a readable Parquet file"):
        CIFAR10(path=str(tmp_path)).load()
    path.unlink()
    with pytest.raises(BadInput, match=r"has no train-\*\.parquet"):
        CIFAR10(path=str(tmp_path)).load()


def test_a_jpeg_copy_says_so_wherever_its_results_are(tmp_path):
    import json

    import PIL.Image
    import pyarrow
    import pyarrow.parquet

    encoded = io.BytesIO()
    PIL.Image.new("RGB", (32, 32), (200, 30, 30)).save(encoded, "JPEG")
    rows = [{"img": {"bytes": encoded.getvalue(), "path": None}, "label": k % 10} for k in range(40)]
    for split in ("train", "test"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{split}-00000-of-00001.parquet")
    source = CIFAR10(path=str(tmp_path))
    assert "JPEG" in source.load().note
    ep.simulate(
        ep.Experiment(
            nodes=2,
            rounds=1,
            data=source,
            partition=ep.IID(),
            model=ep.Logistic(),
            topology=ep.Complete(),
            runtime=ep.Runtime(strategy="per-node"),
        ),
        tmp_path / "run",
    )
    assert "JPEG" in json.loads((tmp_path / "run/seed-1/run.json").read_text())["data"]
    assert "JPEG" in ep.read_results(tmp_path / "run").runs[0].seeds[0].info.data


def test_a_directory_without_cifar(tmp_path):
    with pytest.raises(BadInput, match="holds no CIFAR-10: looked for"):
        CIFAR10(path=str(tmp_path)).load()


# -- FEMNIST, folders, arrays, functions ------------------------------------------------------------------------------


def _femnist(root, writers=6):
    for split, size in (("train", 4), ("test", 2)):
        (root / split).mkdir(parents=True)
        for file in range(2):
            users = [f"w{file}{i}" for i in range(writers // 2)]
            data = {u: {"x": [[0.5] * 784] * size, "y": list(range(size))} for u in users}
            content = {"users": users, "num_samples": [size] * len(users), "user_data": data}
            (root / split / f"all_data_{file}.json").write_bytes(msgspec.json.encode(content))


def test_femnist(tmp_path):
    _femnist(tmp_path)
    data = FEMNIST(path=str(tmp_path)).load()
    assert data.train.inputs.shape == (24, 1, 28, 28)
    assert len(data.classes) == 62
    assert data.train.groups.max() == 5
    file = tmp_path / "train" / "all_data_0.json"
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    with pytest.raises(BadInput, match="it may be truncated"):
        FEMNIST(path=str(tmp_path)).load()
    file.write_bytes(whole.replace(b"[0,1,2,3]", b"[0,1,2]", 1))
    with pytest.raises(BadInput, match="4 images but 3 labels"):
        FEMNIST(path=str(tmp_path)).load()
    with pytest.raises(BadInput, match=r"has no \.json files"):
        FEMNIST(path=str(tmp_path / "train")).load()


def test_image_folder(tmp_path):
    stream = Streams(1)("pixels")
    for split, size in (("train", 5), ("test", 2)):
        for name in ("cat", "dog"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for i in range(size):
                (folder / f"{i}.png").write_bytes(_png(stream.integers(256, 8, 6, 3).astype(np.uint8)))
    data = ImageFolder(path=str(tmp_path)).load()
    assert data.train.inputs.shape == (10, 3, 8, 6)
    assert data.classes == ("cat", "dog")
    assert ImageFolder(path=str(tmp_path), channels=1).load().input_shape == (1, 8, 6)
    flat = ImageFolder(path=str(tmp_path / "train")).load()
    assert (len(flat.train), len(flat.test)) == (8, 2)
    (tmp_path / "train" / "cat" / "9.png").write_bytes(b"no picture")
    with pytest.raises(BadInput, match="holds a broken picture"):
        ImageFolder(path=str(tmp_path)).load()
    (tmp_path / "train" / "cat" / "9.png").write_bytes(_png(np.zeros((4, 4, 3), np.uint8)))
    with pytest.raises(BadInput, match="a picture of 4 x 4 pixels; all must be 8 x 6"):
        ImageFolder(path=str(tmp_path)).load()
    with pytest.raises(BadInput, match="at least two; found 0"):
        ImageFolder(path=str(tmp_path / "test" / "cat")).load()
    with pytest.raises(BadInput, match=r"data\.path is missing"):
        ImageFolder()
    with pytest.raises(BadInput, match=r"data\.channels = '2' is not known"):
        ImageFolder(path=".", channels=2)


def test_arrays(tmp_path):
    path = tmp_path / "own.npz"
    x, y = np.ones((6, 3)), np.array([0, 1, 2, 0, 1, 2])
    np.savez(
        path, train_x=x, train_y=y, test_x=x[:2], test_y=y[:2], train_groups=np.array(["a", "b", "a", "b", "c", "c"])
    )
    data = Arrays(path=str(path)).load()
    assert data.train.inputs.dtype == np.float32
    assert data.classes == ("0", "1", "2")
    assert data.train.groups.tolist() == [0, 1, 0, 1, 2, 2]
    np.savez(path, train_x=x, train_y=y / 2, test_x=x[:2], test_y=y[:2] / 2)
    assert Arrays(path=str(path)).load().classes == ()
    np.savez(path, train_x=x, train_y=y, test_x=x[:2])
    with pytest.raises(BadInput, match="has no array 'test_y'"):
        Arrays(path=str(path)).load()
    np.savez(path, train_x=x, train_y=y[:4], test_x=x[:2], test_y=y[:2])
    with pytest.raises(BadInput, match="6 training inputs but 4 targets"):
        Arrays(path=str(path)).load()
    np.savez(path, train_x=x * np.nan, train_y=y, test_x=x[:2], test_y=y[:2])
    with pytest.raises(BadInput, match="not finite"):
        Arrays(path=str(path)).load()
    np.savez(path, train_x=np.array([object()]), train_y=y, test_x=x, test_y=y)
    with pytest.raises(BadInput, match="plain arrays"):
        Arrays(path=str(path)).load()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BadInput, match="not a readable"):
        Arrays(path=str(path)).load()


def test_a_users_own_function(tmp_path, monkeypatch):
    (tmp_path / "my_data.py").write_text(
        "import numpy as np\ndef make(size=4):\n    x = np.zeros((size, 2)); y = np.arange(size) % 2\n    return (x, y), (x, y)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert len(PythonData(function="my_data:make", options={"size": 8}).load().train) == 8
    for reference, message in (
        ("my_data", "module:name"),
        ("nowhere:x", "cannot be imported"),
        ("my_data:x", "has no x"),
    ):
        with pytest.raises(BadInput, match=message):
            PythonData(function=reference).load()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "cifar"}, "did you mean 'cifar10'?"),
        ({"kind": "digits", "path": "x"}, "embedded in the package"),
        ({"kind": "synthetic", "features": 0}, "data.features = 0 must be at least 1"),
        ({"kind": "synthetic", "problem": "cubic"}, "data.problem"),
        ({"kind": "digits", "validation": 1.5}, "data.validation = 1.5 must be at most 0.9"),
        ({"kind": "arrays"}, "data.path is missing"),
        ({"kind": "python"}, "data.function is missing"),
    ],
)
def test_wrong_tables(table, message):
    with pytest.raises(BadInput) as caught:
        build_kind(table, SOURCES, "data")
    assert message in str(caught.value)


# -- fetching ---------------------------------------------------------------------------------------------------------

CONTENT = bytes(Streams(3)("content").integers(256, 300_000).astype(np.uint8))


class _Server(BaseHTTPRequestHandler):
    break_after = None
    honour_range = True
    requests: ClassVar[list] = []

    def do_GET(self):
        wanted = self.headers.get("Range")
        type(self).requests.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.honour_range else 0
        if self.path == "/missing":
            self.send_error(404)
            return
        if start >= len(CONTENT):
            self.send_error(416)
            return
        body = CONTENT[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.break_after is None else body[: self.break_after])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(_Server, "requests", [])
    http = HTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


def test_fetch_goes_on_after_breaking_off_and_never_leaves_a_half_file(server, tmp_path, monkeypatch):
    good = Download("file.bin", f"{server}/file.bin", hashlib.md5(CONTENT).hexdigest())
    seen = []
    monkeypatch.setattr(_Server, "break_after", 100_000)
    with pytest.raises(RunFailed, match="run the same command again"):
        fetch(good, tmp_path, lambda *a: seen.append(a))
    assert not (tmp_path / "file.bin").exists()
    assert 0 < (tmp_path / "file.bin.part").stat().st_size <= 100_000
    monkeypatch.setattr(_Server, "break_after", None)
    assert fetch(good, tmp_path, lambda *a: seen.append(a))
    assert _Server.requests[-1] == "bytes=100000-"
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert seen[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert not (tmp_path / "file.bin.part").exists()
    assert not fetch(good, tmp_path, lambda *_: None)  # it is here already


def test_fetch_starts_again_when_the_server_cannot_go_on(server, tmp_path, monkeypatch):
    good = Download("file.bin", f"{server}/file.bin", hashlib.md5(CONTENT).hexdigest())
    (tmp_path / "file.bin.part").write_bytes(b"other")
    monkeypatch.setattr(_Server, "honour_range", False)
    assert fetch(good, tmp_path, lambda *_: None)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_fetch_keeps_nothing_with_a_wrong_checksum(server, tmp_path):
    bad = Download("file.bin", f"{server}/file.bin", "0" * 32)
    with pytest.raises(RunFailed, match="not the expected 0000"):
        fetch(bad, tmp_path, lambda *_: None)
    assert list(tmp_path.iterdir()) == []


def test_fetch_failures(server, tmp_path):
    with pytest.raises(RunFailed, match="answered 404"):
        fetch(Download("x", f"{server}/missing", "0"), tmp_path, lambda *_: None)
    with pytest.raises(RunFailed, match="cannot be fetched"):
        fetch(Download("x", "http://127.0.0.1:1/x", "0"), tmp_path, lambda *_: None)
    with pytest.raises(BadInput, match="'femnist' cannot be fetched"):
        downloads("femnist")
    complete = Download("file.bin", f"{server}/file.bin", hashlib.md5(CONTENT).hexdigest())
    (tmp_path / "file.bin.part").write_bytes(CONTENT)  # whole, but the rename did not happen
    assert fetch(complete, tmp_path, lambda *_: None)


# -- end to end -------------------------------------------------------------------------------------------------------


def _make_cifar(root):
    for name in BATCHES:
        inner, raw = _binary(name)
        (root / inner).write_bytes(raw)


def _make_folder(root):
    stream = Streams(1)("pixels")
    for name in ("cat", "dog", "eel"):
        (root / name).mkdir()
        for i in range(12):
            (root / name / f"{i}.png").write_bytes(_png(stream.integers(256, 8, 8, 3).astype(np.uint8)))


def _make_arrays(root):
    x, y = Streams(1)("x").normals(60, 5), np.arange(60) % 3
    np.savez(root / "own.npz", train_x=x, train_y=y, test_x=x[:9], test_y=y[:9])


def _make_table(root):
    rows = [f"{i},{i % 7},{('ill', 'well')[i % 2]}" for i in range(60)]
    (root / "own.csv").write_text("\n".join(["age,dose,outcome", *rows]))


def _make_image_table(root):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    stream = Streams(1)("pixels")
    pictures = [{"bytes": _png(stream.integers(256, 8, 8, 3).astype(np.uint8))} for _ in range(40)]
    kind = pa.struct([("bytes", pa.binary())])
    made = pa.table({"image": pa.array(pictures, kind), "label": [("cat", "dog")[i % 2] for i in range(40)]})
    parquet.write_table(made, root / "own.parquet")


def _make_module(root):
    (root / "spiral_data.py").write_text(
        "import numpy as np\ndef make():\n    x = np.arange(80.0).reshape(40, 2) / 80; y = np.arange(40) % 2\n    return (x, y), (x, y)\n"
    )


END_TO_END = {
    "fashion": (None, {}, "iid"),
    "digits": (None, {"validation": 0.1}, "dirichlet"),
    "synthetic": (None, {"samples": 200}, "dirichlet-hsu"),
    "mnist": (lambda root: _write_idx(root, True), {}, "iid"),
    "fashion-mnist": (lambda root: _write_idx(root, False), {}, "shards"),
    "cifar10": (_make_cifar, {}, "iid"),
    "femnist": (_femnist, {}, "natural"),
    "image-folder": (_make_folder, {}, "iid"),
    "image-table": (_make_image_table, {"path": "own.parquet"}, "dirichlet"),
    "table": (_make_table, {"path": "own.csv", "target": "outcome"}, "dirichlet"),
    "arrays": (_make_arrays, {}, "iid"),
    "python": (_make_module, {"function": "spiral_data:make"}, "iid"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_data_runs_end_to_end(kind, tmp_path, monkeypatch, capsys, twenty_a_file):
    """From the files on disk through the command line to a summary."""
    import json

    from epidemic.cli import main

    make, fields, partition = END_TO_END[kind]
    monkeypatch.chdir(tmp_path)
    if make is not None:
        make(tmp_path)
    if kind in ("mnist", "fashion-mnist", "cifar10", "femnist", "image-folder", "arrays"):
        fields = {**fields, "path": str(tmp_path / "own.npz" if kind == "arrays" else tmp_path)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    (tmp_path / "e.toml").write_text(
        "nodes = 4\nrounds = 2\n[topology]\nkind = 'ring'\n[model]\nkind = 'logistic'\n[algorithm]\nlr = 0.01\n[eval]\nevery = 2\nsamples = 20\n"
        "[runtime]\nstrategy = 'per-node'\n"
        f"[partition]\nkind = '{partition}'\nmin_samples = 1\n[data]\nkind = '{kind}'\n" + "\n".join(lines)
    )
    assert main(["run", "e.toml", "--out", "out", "--quiet", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)["seeds"][0]
    assert summary["rounds"] == 2
    assert 0 <= summary["final_accuracy"]["mean"] <= 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (((np.array([["a"]]), np.array([0])),) * 2, "train_x must be an array of numbers"),
        (((np.ones((2, 1)), np.array([["a"], ["b"]])),) * 2, "train_y must be an array with one label"),
        ((([[1], [1, 2]], [0, 1]),) * 2, "something that is no array"),
        (((np.float64(3), np.array([0])),) * 2, "with an axis of samples"),
        (((np.ones((2, 1)), np.array([0, 10**9])),) * 2, "but one is 1000000000; number the classes from 0"),
        (((np.ones((2, 1)), np.array([0, -1])),) * 2, "but one is -1"),
        (
            ((np.ones((2, 1)), np.array([0, 1])), (np.ones((2, 1)), np.array([0.9, 0.1]))),
            "training targets are of type int64",
        ),
        (
            ((np.ones((2, 1), np.uint8), np.array([0, 1])), (np.ones((2, 1)), np.array([0, 1]))),
            "training inputs are of type uint8",
        ),
        (((np.ones((2, 1)), np.array([np.nan, 1.0])),) * 2, "targets that are not finite"),
        (((np.array([[1.0], [-1e39]]), np.zeros(2)),) * 2, "train_x: sample 1 has the number -1e+39; the largest"),
        (((np.ones((2, 1)), np.array([0.5, 1e300])),) * 2, "train_y: sample 1 has the number 1e+300; the largest"),
    ],
)
def test_wrong_arrays_are_named(data, message):
    import epidemic as ep

    with pytest.raises(BadInput) as caught:
        ep.Experiment(data=data).load_data()
    assert message in str(caught.value)


def test_a_plain_npy_file_is_no_npz(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(3))
    (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    with pytest.raises(BadInput, match="not a readable"):
        Arrays(path=str(tmp_path / "x.npz")).load()
    with pytest.raises(BadInput, match="is a directory; give the"):
        Arrays(path=str(tmp_path)).load()
