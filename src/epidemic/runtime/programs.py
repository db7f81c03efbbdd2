"""Models as programs: an exported model with its architecture, for ONNX Runtime or `torch.export`, without this package.

The module is built anew from the run's experiment and gets the exported weights. A program takes any number of samples at once, as they are in the data: it
scales them itself.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from epidemic.core.errors import BadInput, plain
from epidemic.core.files import read_json, write_bytes
from epidemic.core.rng import Streams
from epidemic.data import Dataset
from epidemic.experiment import load
from epidemic.runtime.exported import KEY
from epidemic.runtime.setup import initial_module

INPUT, OUTPUT = "inputs", "outputs"
"""What an ONNX file calls what goes in and what comes out."""
EXAMPLES = 2
"""Samples that the model is traced with; one alone would fix the number of samples."""


def module_of(run: Path, state: Mapping[str, Tensor]) -> tuple[nn.Module, tuple[int, ...]]:
    """The model of a run with these weights, for inputs as they are in the data, and the shape of one.

    The run's data must be here, because it decides shapes and scales.

    Args:
        run: The directory of a seed.
        state: The state dict of an exported model.
    """
    info, file = read_json(run / "run.json"), run.parent / "experiment.toml"
    if info is None or not file.is_file():
        raise BadInput(f"{run} does not say how its model is built; export it as .safetensors and load that in Python")
    experiment = load(file)
    data = experiment.load_data()
    module = initial_module(experiment, data, Streams(int(info["seed"])))
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as problem:
        reason = plain(" ".join(str(problem).split()), 300)
        raise BadInput(
            f"the model that {file} describes has other tensors than {run} ({reason}); is its code another one now?"
        ) from None
    return FromRaw(module, data).eval(), data.input_shape


class FromRaw(nn.Module):
    """A model that takes inputs as they are in the data: columns that were not scaled, pictures as numbers from 0 to 255."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, module: nn.Module, data: Dataset) -> None:
        super().__init__()
        self.module = module
        mean, deviation = [-data.shift / data.scale], [1 / data.scale]
        if data.scales:
            mean, deviation = (list(part) for part in zip(*data.scales, strict=True))
        precise = torch.float64 if data.scales else torch.float32  # columns may be far from zero
        self.register_buffer("mean", torch.tensor(mean, dtype=precise))
        self.register_buffer("deviation", torch.tensor(deviation, dtype=precise))

    def forward(self, inputs: Tensor) -> Any:
        """Scale the inputs and apply the model.   # (N, ...) floats"""
        return self.module(((inputs.to(self.mean.dtype) - self.mean) / self.deviation).float())


def write_program(path: Path, module: nn.Module, shape: tuple[int, ...], about: Mapping[str, str]) -> None:
    """Write a model with its architecture.

    Args:
        path: A .onnx or .pt2 file.
        module: The model, in evaluation mode.
        shape: Of one input, without the axis of samples.
        about: What the file says of itself.
    """
    example = torch.zeros(EXAMPLES, *shape)
    samples = torch.export.Dim("samples")
    try:
        with _quiet(), torch.no_grad():
            program = torch.export.export(module, (example,), dynamic_shapes=({0: samples},))
            content = (_onnx if path.suffix == ".onnx" else _torch)(program, about)
    except BadInput:
        raise
    except Exception as problem:  # whatever PyTorch raises where it cannot trace a model
        reason = plain(" ".join(str(problem).split()), 300)
        raise BadInput(
            f"the model cannot be written as a program ({type(problem).__name__}: {reason}); export it as .safetensors instead"
        ) from None
    write_bytes(path, content)


def _torch(program: Any, about: Mapping[str, str]) -> bytes:
    """As `torch.export.load` reads it; the description is an extra file of that name."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files=dict(about))
    return buffer.getvalue()


def _onnx(program: Any, about: Mapping[str, str]) -> bytes:
    """As ONNX Runtime reads it; the description is in its metadata."""
    for name in ("onnx", "onnxscript"):
        try:
            __import__(name)
        except ImportError:
            raise BadInput(
                "ONNX files need onnx and onnxscript, which are not installed; use: pip install 'epidemic-learning[onnx]'"
            ) from None
    names: dict[str, Any] = {"input_names": [INPUT], "output_names": [OUTPUT]}
    found = torch.onnx.export(program, dynamo=True, verbose=False, **names)
    assert found is not None
    model = found.model_proto
    for key, text in about.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, text
    content: bytes = model.SerializeToString()
    return content


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing of what the exporters print or log is for whoever exports a model."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


__all__ = ["INPUT", "KEY", "OUTPUT", "module_of", "write_program"]
