"""What nodes must agree on to learn together, and how they find differences."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import torch

from epidemic import __version__
from epidemic.callbacks.base import check_shipped
from epidemic.core.errors import BadInput, plain
from epidemic.data import Source
from epidemic.experiment import Experiment, node_agreement, own_modules
from epidemic.experiment.compatibility import require_compatible
from epidemic.runtime.plan import check_first_round
from epidemic.runtime.setup import Setup
from epidemic.runtime.start import Start

PROTOCOL = 1
"""Version of the protocol between nodes."""
MOST_NAMES, LONGEST_NAME = 64, 48
"""Names of classes or features sent in full, and characters of each; a digest stands for all of them."""


class Names(msgspec.Struct, frozen=True):
    """The names of the classes, or of the features, in order."""

    count: int = 0
    digest: str = ""
    first: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)], ...], msgspec.Meta(max_length=MOST_NAMES)
    ] = ()

    @classmethod
    def of(cls, names: Sequence[str]) -> Names:
        """A digest of all names, with the first names in full as far as there is room."""
        digest = hashlib.blake2b(msgspec.json.encode(list(names)), digest_size=8).hexdigest() if names else ""
        return cls(len(names), digest, tuple(name[:LONGEST_NAME] for name in names[:MOST_NAMES]))

    def __str__(self) -> str:
        """A short printable form, safe for names from the network."""
        words: list[str] = []
        for name in self.first:
            if sum(map(len, words)) + len(name) > 40:
                break
            words.append(plain(name, 24))
        left = self.count - len(words)
        return f"[{', '.join([*words, *([f'... {left} more'] if left > 0 else [])])}]"


class Agreement(msgspec.Struct, frozen=True):
    """What nodes must agree on."""

    experiment: dict[str, Any]  # by dotted key
    graphs: str  # digest of the first rounds' graphs, as this installation draws them
    model: str  # digest of the initial model, with names, shapes and types
    data: str  # digest of the training labels, if all nodes share one data set
    inputs: Annotated[tuple[int, ...], msgspec.Meta(max_length=16)] = ()  # shape of one input
    classes: Names = Names()
    features: Names = Names()  # of the columns of a table
    modules: dict[str, str] = {}  # digests of the user's own modules, by name
    protocol: int = PROTOCOL
    version: str = __version__  # for information, not compared

    @property
    def run(self) -> bytes:
        """16 bytes that identify the run."""
        same = msgspec.structs.replace(self, version="")
        return hashlib.blake2b(msgspec.json.encode(same, order="sorted"), digest_size=16).digest()


def agreement_of(setup: Setup, start: Start | None = None) -> Agreement:
    """The agreement for this seed of the experiment; `start`: the initial weights, unless it is the first run of a cluster."""
    experiment, streams = setup.experiment, setup.streams
    own = experiment.own_data
    graphs = hashlib.blake2b(digest_size=8)
    for round in range(min(3, experiment.rounds)):
        graphs.update(experiment.topology.graph(experiment.nodes, round, streams).digest().encode())
    model = hashlib.blake2b(digest_size=8)
    for entry in setup.task.layout.entries:
        model.update(f"{entry.name}\0{tuple(entry.shape)}\0{setup.task.layout.dtype}\0".encode())
    model.update(setup.initial.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    labels = hashlib.blake2b(digest_size=8)
    if not own:
        targets = setup.data.train.targets
        labels.update(f"{setup.data.train.inputs.shape}\0{targets.dtype}\0{targets.shape}\0".encode())
        labels.update(targets.astype(targets.dtype.newbyteorder("<")).tobytes())
    same = {
        **_short_agreement(node_agreement(experiment)),
        "seed": setup.seed,
        **({} if start is None else start.agreement),
    }
    may_differ = {"callbacks", "data"} if own else {"callbacks"}
    table = {key: value for key, value in experiment.table().items() if key not in may_differ}
    return Agreement(
        same, graphs.hexdigest(), model.hexdigest(), "" if own else labels.hexdigest(),
        setup.data.input_shape, Names.of(setup.data.classes), Names.of(setup.data.features),
        {module.name: module.digest for module in own_modules(table)},
    )  # fmt: skip


def _short_agreement(agreement: dict[str, Any]) -> dict[str, Any]:
    """The agreement with long lists replaced: lists of classes or columns by names, scales by a digest."""
    scale = {key: value for key, value in agreement.items() if key.startswith("data.scale.")}
    kept = {
        key: value
        for key, value in agreement.items()
        if key not in scale and not (key in ("data.classes", "data.features") and isinstance(value, list))
    }
    if scale:
        kept["data.scale"] = hashlib.blake2b(msgspec.json.encode(scale, order="sorted"), digest_size=8).hexdigest()
    return kept


def differences(here: Agreement, there: Agreement) -> list[str]:
    """The differences between two agreements, one line each; empty if they are compatible."""
    found = []
    if here.protocol != there.protocol:
        found.append(
            f"protocol {here.protocol} here, {there.protocol} there (versions {here.version}, {there.version})"
        )
    for key in sorted({*here.experiment, *there.experiment}):
        a, b = (t.experiment.get(key, "not set") for t in (here, there))
        if a != b:
            found.append(f"{key} = {_short(a)} here, {_short(b)} there{_remedy(key, a, b)}")
    for name in sorted({*here.modules, *there.modules}):
        if here.modules.get(name) != there.modules.get(name):
            lacking = [
                sampler for sampler, agreement in (("here", here), ("there", there)) if name not in agreement.modules
            ]
            missing = f" (it is not beside the experiment {lacking[0]})" if lacking else ""
            found.append(f"the module {name} differs{missing}")
    if here.classes != there.classes:
        found.append(
            f"classes {here.classes} here, {there.classes} there: name all of them, in one order, in data.classes of all nodes"
        )
    if here.features != there.features:
        found.append(
            f"features {here.features} here, {there.features} there: list the same in data.features of all nodes"
        )
    elif here.inputs != there.inputs:
        found.append(f"inputs of shape {_short(here.inputs)} here, {_short(there.inputs)} there")
    if here.data != there.data and here.classes == there.classes:
        found.append("the training data differs")
    if not found:  # otherwise it follows from another difference
        if here.graphs != there.graphs:
            found.append(f"the libraries draw different graphs (versions {here.version} here, {there.version} there)")
        if here.model != there.model:
            found.append("the initial models differ (perhaps another version of PyTorch)")
    return found


def _remedy(key: str, here: Any, there: Any) -> str:
    """How to resolve a difference where one of two nodes lacks a setting of the other."""
    if key == "rounds" and type(here) is int and type(there) is int:
        return f" (start every node with --set rounds={_short(max(here, there))})"
    if key == "frozen-base":
        return " (load the same pretrained weights on all nodes, and freeze the same)"
    if key == "initial-values":
        return (
            " (what travels must start alike: load one weights file in every script, or seed before the model is made)"
        )
    if key.startswith("attached"):
        return " (attach the same tensors on all nodes: one model, one adapter rank, one type)"
    if key == "start.run":
        return " (runs with the same keys are counted by 'epidemic cluster next', from the folder of the run before)"
    if key == "start.weights":
        return " (give all nodes the same file with 'epidemic cluster next --weights FILE')"
    return ""


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."


def check_deployable(experiment: Experiment) -> None:
    """Refuse an experiment that deployed nodes cannot run."""
    if sys.byteorder != "little":
        raise BadInput("this machine stores numbers in another byte order than the network's; use a little-endian one")
    if not experiment.portable:
        raise BadInput(
            'an experiment with objects of your own cannot be deployed; name them in the file (kind = "python")'
        )
    check_shipped(experiment)
    if len(experiment.seeds) != 1:
        raise BadInput(
            f"seeds = {list(experiment.seeds)}: a deployed run has one seed; use --set 'seeds=[{experiment.seeds[0]}]'"
        )
    if experiment.nodes < 2:
        raise BadInput(f"nodes = {experiment.nodes}: a deployed run needs at least 2")
    require_compatible(experiment, "deployment")
    check_first_round(experiment)
    if experiment.own_data and isinstance(experiment.data, Source):
        contradiction = experiment.data.differs_by_place()
        if contradiction is not None:
            raise BadInput(contradiction)


def check_hosting(experiment: Experiment, hosted: int) -> None:
    """Refuse to host so many nodes in one process if the experiment does not allow it."""
    require_compatible(experiment, "deployment", hosted=hosted)
