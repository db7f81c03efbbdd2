"""Files of tensors in pieces: the bytes that safetensors writes, whatever the pieces; and a checkpoint of any size of pieces is the same."""

import functools
import json
from contextlib import contextmanager
from functools import partial

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import epidemic as ep
from epidemic.core.errors import RankLost, RunFailed
from epidemic.learner import Layout
from epidemic.runtime import checkpoint
from epidemic.runtime.ranks import Alone
from epidemic.runtime.saved_models import save_models
from epidemic.runtime.tensor_files import TYPES, Fed, Head, TensorFile, portions, write_tensors
from saved import content

DTYPES = [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.uint8, torch.bool]


@given(rows=st.integers(0, 40), width=st.integers(1, 300), most=st.integers(16, 500))
def test_portions_are_all_numbers_once_in_their_order(rows, width, most):
    cells = [
        (i, j)
        for part, columns in portions(rows, width, most)
        for i in range(rows)[part]
        for j in range(width)[columns]
    ]
    assert cells == [(i, j) for i in range(rows) for j in range(width)]
    for part, columns in portions(rows, width, most):
        assert (part.stop - part.start) * (columns.stop - columns.start) <= max(most, 16)


@settings(max_examples=40)
@given(st.data())
def test_a_file_in_pieces_has_the_bytes_of_one_that_safetensors_writes(tmp_path_factory, data):
    names = data.draw(st.lists(st.text('abé.\n"', min_size=1, max_size=4), min_size=1, max_size=5, unique=True))
    shapes = st.lists(st.integers(0, 4), max_size=3)
    made = {name: torch.rand(data.draw(shapes)).mul(9).to(data.draw(st.sampled_from(DTYPES))) for name in names}
    path = tmp_path_factory.mktemp("pieces")
    safetensors.torch.save_file(made, path / "whole", {"about": 'some "thing"'})
    fed = {name: tensor for name, tensor in made.items() if tensor.dim() and data.draw(st.booleans())}
    small = {name: tensor for name, tensor in made.items() if name not in fed}
    step = data.draw(st.integers(1, 3))

    def feed(tensor, put):
        for start in range(0, len(tensor), step):
            put(tensor[start : start + step])

    given = {name: Fed(Head.of(tensor), functools.partial(feed, tensor)) for name, tensor in fed.items()}
    write_tensors(path / "parts", small, given, lambda _: {"about": 'some "thing"'})
    assert (path / "parts").read_bytes() == (path / "whole").read_bytes()
    assert not list(path.glob("*.part"))


def test_all_types_stand_in_the_order_of_safetensors(tmp_path):
    every = {f"{i}": torch.zeros(3, dtype=dtype) for i, dtype in enumerate(reversed(TYPES))}
    safetensors.torch.save_file(every, tmp_path / "whole", {"a": "b"})
    write_tensors(tmp_path / "parts", every, {}, lambda _: {"a": "b"})
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("piece", [16, 100, 1000, 1 << 20])
def test_models_and_checkpoints_do_not_depend_on_the_size_of_pieces(tmp_path, monkeypatch, piece):
    experiment = ep.Experiment(
        nodes=5, rounds=4, topology=ep.ELLocal(2), data=ep.Digits(), model=ep.MLP((7,)), checkpoint=ep.Checkpoint(rounds=3),
        algorithm=ep.LocalSGD(lr=0.1, momentum=0.9), eval=ep.Eval(every=2, samples=50),
    )  # fmt: skip
    ep.simulate(experiment, tmp_path / "whole")
    for module in ("tensor_files", "checkpoint", "ranks"):
        monkeypatch.setattr(f"epidemic.runtime.{module}.PIECE", piece)
    monkeypatch.setattr(portions, "__defaults__", (piece,))
    ep.simulate(experiment, tmp_path / "pieces")
    whole, parts = tmp_path / "whole/seed-1", tmp_path / "pieces/seed-1"
    assert (parts / "models.safetensors").read_bytes() == (whole / "models.safetensors").read_bytes()
    assert content(parts / "checkpoint.safetensors") == content(whole / "checkpoint.safetensors")
    longer = ep.Experiment(**{**{f: getattr(experiment, f) for f in experiment.__struct_fields__}, "rounds": 6})
    ep.simulate(longer, tmp_path / "pieces", resume=True)
    monkeypatch.undo()
    ep.simulate(longer, tmp_path / "at once")
    assert (tmp_path / "pieces/seed-1/models.safetensors").read_bytes() == (
        tmp_path / "at once/seed-1/models.safetensors"
    ).read_bytes()


def test_models_are_what_safetensors_would_write_of_them(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    layout = Layout(module)
    x = torch.rand(6, layout.size)
    save_models(tmp_path / "m", layout, x, Alone(6))
    raw = (tmp_path / "m").read_bytes()
    said = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    tensors = {name: view.contiguous() for name, view in layout.views(x).items()} | layout.constants
    safetensors.torch.save_file(tensors, tmp_path / "w", said)
    assert raw == (tmp_path / "w").read_bytes()


def test_what_fails_on_the_way_leaves_what_was_there(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"before")
    head = Head(torch.float32, (4, 2))

    def broken(put):
        put(torch.zeros(2, 2))
        raise RunFailed("the disk is full")

    with pytest.raises(RunFailed, match="the disk is full"):
        write_tensors(path, {}, {"x": Fed(head, broken)}, lambda _: {})
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert path.read_bytes() == b"before"


def test_a_type_that_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(RunFailed, match="x holds complex128, which cannot be saved"):
        TensorFile(tmp_path / "a", {"x": Head(torch.complex128, (1,))}, {})


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_still_the_one_that_was_found(tmp_path):
    """Somebody exports models of a run that goes on."""
    layout = Layout(torch.nn.Linear(3, 2))

    def write(round):
        rows = torch.full((4, 8), float(round))
        state = {"x": Fed(Head.of(rows), partial(Alone(4).streamed, rows))}
        checkpoint.write_checkpoint(tmp_path, checkpoint.Progress(round=round, recorded=round), {}, state)

    write(5)
    found = checkpoint.read_checkpoint(tmp_path, layout)
    write(9)
    assert found.progress.round == 5
    assert found.whole()["x"].unique().tolist() == [5.0]
    assert checkpoint.read_checkpoint(tmp_path, layout).whole()["x"].unique().tolist() == [9.0]


def test_nothing_half_written_stays_if_another_rank_is_lost_just_after_the_file_was_begun(tmp_path):
    """Ranks hear at the end of `together` that another one is gone; the file is there by then."""

    @contextmanager
    def lost():
        yield
        raise RankLost("rank 1 is gone")

    path = tmp_path / "checkpoint.safetensors"
    with pytest.raises(RankLost):
        write_tensors(path, {"x": torch.zeros(3)}, {}, lambda _: {}, together=lost)
    assert not list(tmp_path.iterdir())
