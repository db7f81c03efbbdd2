"""Data is decoded once; what comes from the cache is the same, checked, and never a reason for a run to fail."""

import io
import mmap
import os
import subprocess
import sys
import warnings
from pathlib import Path

import msgspec
import numpy as np
import PIL
import pytest
import torch
from PIL import Image

import epidemic as ep
from epidemic.cli.app import main
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.data import CIFAR10, FEMNIST, MNIST, ImageFolder, ImageTable
from epidemic.data import cache as cache_module
from epidemic.learner import LOSSES, Task

LONG_AGO = 1_600_000_000


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache of this test's own."""
    monkeypatch.setenv("EPIDEMIC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _settle(root, when=LONG_AGO):
    """As if the files had been there for long."""
    for path in root.rglob("*"):
        os.utime(path, (when, when))


def _picture(path, name, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(Streams(1)(name).integers(256, 8, 6, 3).astype(np.uint8)).save(out, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(out.getvalue())


def _folder(root, splits=("train", "test")):
    for split in splits:
        for name in ("cat", "dog"):
            for i in range(10):
                _picture(root / split / name / f"{i}.png", f"{split}{name}{i}")
    _settle(root)
    return ImageFolder(path=str(root))


def _flat(root):
    return _folder(root, ("",))


def _parquet(root):
    import pyarrow
    import pyarrow.parquet

    root.mkdir()
    out = io.BytesIO()
    Image.new("RGB", (32, 32), (200, 30, 30)).save(out, "JPEG")
    rows = [{"img": {"bytes": out.getvalue(), "path": None}, "label": k % 10} for k in range(40)]
    for split in ("train", "test"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / f"{split}-00000-of-00001.parquet")
    _settle(root)
    return CIFAR10(path=str(root))


def _image_table(root):
    return ImageTable(path=_parquet(root).path, classes=("5", *(str(k) for k in range(10) if k != 5)))


def _femnist(root):
    for split, size in (("train", 4), ("test", 2)):
        (root / split).mkdir(parents=True)
        data = {u: {"x": [[0.1] * 784] * size, "y": list(range(size))} for u in ("a", "b")}
        content = {"users": ["a", "b"], "num_samples": [size] * 2, "user_data": data}
        (root / split / "all_data.json").write_bytes(msgspec.json.encode(content))
    _settle(root)
    return FEMNIST(path=str(root))


def _idx(root):
    root.mkdir()
    for split, size in (("train", 20), ("t10k", 10)):
        images, labels = Streams(1)(split).integers(256, size, 28, 28).astype(np.uint8), np.arange(size, dtype=np.uint8)
        for name, array in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels % 10)):
            shape = b"".join(d.to_bytes(4, "big") for d in array.shape)
            (root / name).write_bytes(bytes([0, 0, 8, array.ndim]) + shape + array.tobytes())
    _settle(root)
    return MNIST(path=str(root))


MAKERS = [_folder, _flat, _parquet, _image_table, _femnist, _idx]


def _mapped(array):
    """Whether an array lies in a mapped file."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def _from_cache(data):
    return _mapped(data.train.inputs)


def _entry(home):
    [path] = home.glob("*.safetensors")
    return path


def _same(a, b):
    assert (a.classes, a.scale, a.shift, a.note) == (b.classes, b.scale, b.shift, b.note)
    for x, y in ((a.train, b.train), (a.test, b.test), (a.validation, b.validation)):
        assert (x is None) == (y is None)
        for name in ("inputs", "targets", "groups") if x is not None else ():
            one, other = getattr(x, name), getattr(y, name)
            assert (one is None) == (other is None)
            if one is not None:
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("validation", [0.0, 0.25])
@pytest.mark.parametrize("make", MAKERS)
def test_what_comes_from_the_cache_is_what_was_decoded(tmp_path, home, monkeypatch, make, validation):
    source = msgspec.structs.replace(make(tmp_path / "data"), validation=validation)
    first, second = source.load(), source.load()
    monkeypatch.setenv("EPIDEMIC_CACHE", "off")
    decoded = source.load()
    assert not _from_cache(decoded)
    for data in (first, second):
        assert _from_cache(data), "the process that decodes shares its pages with those that come later"
        _same(data, decoded)


def test_the_second_start_does_not_read_the_pictures(tmp_path, home, monkeypatch):
    source = _folder(tmp_path / "data")
    first = source.load()
    monkeypatch.setattr("epidemic.data.images.decode_image", None)
    _same(source.load(), first)


def test_another_validation_share_needs_no_decoding(tmp_path, home, monkeypatch):
    source = _folder(tmp_path / "data")
    source.load()
    monkeypatch.setattr("epidemic.data.images.decode_image", None)
    assert len(msgspec.structs.replace(source, validation=0.5).load().validation) == 10


def test_a_cache_that_is_off_writes_nothing(tmp_path, monkeypatch):
    source = _folder(tmp_path / "data")
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("EPIDEMIC_CACHE", "off")
    assert not _from_cache(source.load())
    assert not (tmp_path / "home").exists()


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="the places of Linux")
def test_the_cache_is_where_the_user_keeps_caches(monkeypatch, tmp_path):
    monkeypatch.delenv("EPIDEMIC_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_module.cache_home() == tmp_path / ".cache/epidemic"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_module.cache_home() == tmp_path / "xdg/epidemic"


# -- what an entry was made from --------------------------------------------------------------------------------------


def test_changed_content_is_noticed_even_with_the_size_and_date_of_before(tmp_path, home):
    source = _folder(tmp_path / "data")
    before = source.load()
    path = tmp_path / "data/train/cat/0.png"
    size = path.stat().st_size
    path.write_bytes((tmp_path / "data/train/dog/7.png").read_bytes().ljust(size, b"\0")[:size])
    os.utime(path, (LONG_AGO, LONG_AGO))
    after = source.load()
    assert _from_cache(after)
    assert not np.array_equal(after.train.inputs[0], before.train.inputs[0])
    np.testing.assert_array_equal(after.train.inputs[0], before.train.inputs[17])
    _entry(home)  # the one before is gone


def test_a_new_class_without_pictures_is_noticed(tmp_path, home):
    source = _folder(tmp_path / "data")
    assert source.load().classes == ("cat", "dog")
    for split in ("train", "test"):
        (tmp_path / "data" / split / "emu").mkdir()
    assert source.load().classes == ("cat", "dog", "emu")


def test_files_that_changed_a_moment_ago_are_not_kept_because_the_next_change_might_not_show(tmp_path, home):
    source = _folder(tmp_path / "data")
    os.utime(tmp_path / "data/train/cat/0.png")
    assert not _from_cache(source.load())
    assert not list(home.glob("*.safetensors"))


def test_other_settings_and_another_pillow_have_entries_of_their_own(tmp_path, home, monkeypatch):
    source = _folder(tmp_path / "data")
    source.load()
    assert msgspec.structs.replace(source, channels=1).load().input_shape == (1, 8, 6)
    assert len(list(home.glob("*.safetensors"))) == 2
    monkeypatch.setattr(PIL, "__version__", "0.0")
    source.load()
    assert len(list(home.glob("*.safetensors"))) == 3


def test_files_that_change_while_they_are_decoded_are_not_kept(tmp_path, home, monkeypatch):
    from epidemic.data import images

    source, decode = _folder(tmp_path / "data"), images.decode_image

    def decode_and_touch(*args, **kwargs):
        _settle(tmp_path / "data", LONG_AGO + 10)
        return decode(*args, **kwargs)

    monkeypatch.setattr(images, "decode_image", decode_and_touch)
    assert not _from_cache(source.load())
    assert not list(home.glob("*.safetensors"))


def test_what_cannot_be_read_leaves_no_entry(tmp_path, home):
    source = _folder(tmp_path / "data")
    (tmp_path / "data/train/cat/0.png").write_bytes(b"no picture")
    _settle(tmp_path / "data")
    for _ in range(2):
        with pytest.raises(BadInput, match="holds a broken picture"):
            source.load()
    assert not list(home.glob("*.safetensors*"))


# -- damage, and places that cannot be written ------------------------------------------------------------------------


def _flip(position):
    def damage(raw):
        raw = bytearray(raw)
        raw[position] ^= 1
        return bytes(raw)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        *(pytest.param(_flip(at), id=f"byte {at}") for at in (0, 7, 8, 20, 100, 300, 600, 700, -2000, -1)),
        pytest.param(lambda raw: raw[:-1], id="a byte short"),
        pytest.param(lambda raw: raw[:5], id="nearly nothing"),
        pytest.param(lambda raw: b"", id="empty"),
        pytest.param(lambda raw: raw + b"\0", id="a byte more"),
        pytest.param(lambda raw: bytes(len(raw)), id="zeros"),
        pytest.param(lambda raw: b"\2\0\0\0\0\0\0\0{}", id="an empty header"),
        pytest.param(lambda raw: b"\x18\0\0\0\0\0\0\0" + b'{"__metadata__": "words"}', id="a header of words"),
    ],
)
def test_a_damaged_entry_is_noticed_said_and_made_anew(tmp_path, home, caplog, damage):
    source = _folder(tmp_path / "data")
    first = source.load()
    path = _entry(home)
    whole = path.read_bytes()
    path.unlink()  # not in place: `first` is mapped
    path.write_bytes(damage(whole))
    _same(source.load(), first)
    assert [record.getMessage().count("is damaged") for record in caplog.records] == [1]
    caplog.clear()
    again = source.load()
    assert _from_cache(again)
    assert not caplog.records
    _same(again, first)


def test_a_cache_that_cannot_be_written_is_said_and_fails_nothing(tmp_path, monkeypatch, caplog):
    source = _folder(tmp_path / "data")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EPIDEMIC_CACHE", str(tmp_path / "file" / "cache"))
    assert len(source.load().train) == 20
    [record] = caplog.records
    assert "cannot be written (Not a directory)" in record.getMessage()
    assert "set EPIDEMIC_CACHE" in record.getMessage()


FULL = """
import resource, sys
from epidemic.data import ImageFolder
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
print(len(ImageFolder(path=sys.argv[1]).load().train))
"""


def test_a_full_disk_leaves_nothing_behind_and_fails_nothing(tmp_path, home):
    _folder(tmp_path / "data")
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path / "data"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["20"]
    assert "cannot be written (File too large)" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(home.glob("*.safetensors*"))


# -- several processes ------------------------------------------------------------------------------------------------

NODE = """
import sys
import numpy as np
from pathlib import Path
from epidemic.data import Dataset, Samples, Source
from epidemic.core.progress import told_to

class Slow(Source, frozen=True, tag="slow"):
    def files(self):
        return [Path(self.path)]

    def read(self):
        print("decodes", flush=True)
        sys.stdin.readline()
        samples = Samples(np.arange(12, dtype=np.uint8).reshape(4, 3), np.arange(4))
        return Dataset(samples, samples, ("a", "b", "c", "d"))

waited = []

def hear(what, done, total):
    if not waited:
        waited.append(print("waits", flush=True))

with told_to(hear):
    print(Slow(path=sys.argv[1]).load().train.inputs.sum(), flush=True)
"""


@pytest.fixture
def start(tmp_path, home):
    """Processes that load the same data at once: they say what they do, and decode until they get a line."""
    (tmp_path / "data").write_text("words")
    os.utime(tmp_path / "data", (LONG_AGO, LONG_AGO))
    running = []

    def one():
        process = subprocess.Popen(
            [sys.executable, "-c", NODE, tmp_path / "data"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        return process

    yield one
    for process in running:
        process.kill()
        process.communicate()


def _line(process):
    return process.stdout.readline().strip()


def test_of_processes_that_start_at_once_one_decodes(start):
    first = start()
    assert _line(first) == "decodes"
    others = [start(), start()]
    assert [_line(p) for p in others] == ["waits", "waits"]
    first.stdin.write("\n")
    first.stdin.flush()
    assert [_line(p) for p in (first, *others)] == ["66"] * 3
    assert [p.wait() for p in (first, *others)] == [0] * 3


def test_when_the_process_that_decodes_is_killed_another_takes_over(start, home):
    first = start()
    assert _line(first) == "decodes"
    other = start()
    assert _line(other) == "waits"
    [lock] = home.glob("*.lock")
    part = lock.with_suffix(".safetensors.00000000.part")
    part.write_bytes(b"half an en")
    first.kill()
    assert _line(other) == "decodes"
    other.stdin.write("\n")
    other.stdin.flush()
    assert _line(other) == "66"
    assert not part.exists()
    assert _line(start()) == "66", "it is in the cache now"


# -- those who use it -------------------------------------------------------------------------------------------------


def test_pytorch_shares_the_mapped_pages(tmp_path, home):
    data = msgspec.structs.replace(_flat(tmp_path / "data"), validation=0.25).load()
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = Task(module, data, LOSSES["cross-entropy"], {}, torch.device("cpu"))
        held = [*zip(task.train, (data.train.inputs, data.train.targets), strict=True)]
        for samples in (data.test, data.validation):
            held += zip(task.tensors(samples), (samples.inputs, samples.targets), strict=True)
    for tensor, array in held:
        assert _mapped(array)
        assert tensor.data_ptr() == array.ctypes.data


def test_writing_into_data_from_the_cache_stays_in_the_process(tmp_path, home):
    source = _folder(tmp_path / "data")
    data = source.load()
    before = data.train.inputs.copy()
    data.train.inputs[:] = 0
    np.testing.assert_array_equal(source.load().train.inputs, before)


def test_a_run_is_the_same_with_and_without_the_cache(tmp_path, home, monkeypatch):
    experiment = ep.Experiment(
        nodes=4, rounds=2, data=_folder(tmp_path / "data"), partition=ep.Dirichlet(min_samples=2), model=ep.Logistic(),
        topology=ep.ELLocal(2),
    )  # fmt: skip
    experiment.load_data()
    cached = ep.simulate(experiment)
    monkeypatch.setenv("EPIDEMIC_CACHE", "off")
    decoded = ep.simulate(experiment)
    assert torch.equal(cached.models.rows, decoded.models.rows)


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_lists_and_clears(tmp_path, home, capsys, monkeypatch):
    assert main(["data", "cache"]) == 0
    assert "holds no decoded data" in capsys.readouterr().out
    _folder(tmp_path / "data").load()
    (home / "bad.safetensors").write_bytes(b"rubbish")
    (home / "mine.txt").write_text("not of the cache")
    assert main(["data", "cache"]) == 0
    shown = capsys.readouterr().out
    assert "image-folder" in shown
    assert "damaged" in shown
    assert " 40 " in shown
    assert main(["data", "cache", "--clear"]) == 0
    assert "freed" in capsys.readouterr().out
    assert [path.name for path in home.iterdir()] == ["mine.txt"]
    monkeypatch.setenv("EPIDEMIC_CACHE", "off")
    assert main(["data", "cache"]) == 0
    assert "the cache is off" in capsys.readouterr().out


def test_progress_is_said_after_two_seconds_and_then_now_and_then(monkeypatch, capsys):
    from epidemic.core import progress

    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    tell = progress.Loading()
    for clock[0] in np.arange(100.0, 110.0, 0.5):
        tell("pictures", int(clock[0] * 1000) - 100_000, 10_000)
    said = capsys.readouterr().err.splitlines()
    assert said == ["reading pictures: 2,000 of 10,000", "reading pictures: 7,000 of 10,000"]
    clock[0] = 111.0
    tell("something else", 0, 5)
    assert capsys.readouterr().err == ""


class Masks(ep.Arrays, frozen=True, tag="masks"):
    """Arrays that are worth a place in the cache."""

    def files(self):
        return [Path(self.path)]


def test_whole_number_targets_of_several_dimensions_come_back_as_they_were(home, tmp_path):
    y = np.arange(24, dtype=np.int32).reshape(4, 2, 3)
    x = np.zeros((4, 2), np.float32)
    path = tmp_path / "data" / "masks.npz"
    path.parent.mkdir()
    np.savez(path, train_x=x, train_y=y, test_x=x, test_y=y)
    _settle(path.parent)
    for _ in range(2):
        data = Masks(path=str(path)).load()
        assert data.train.targets.dtype == data.test.targets.dtype == np.int64
        assert (data.train.targets == y).all()
    assert list(home.rglob("*.safetensors"))
