"""Experiment: everything that decides a run, as one frozen value.

In Python its fields also take a user's own objects: a topology or algorithm with the right methods, a torch.nn.Module or a function that makes one, a
Dataset or a pair of torch.utils.data.Dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from numpy.typing import ArrayLike
from torch import nn

from epidemic.adversary import ADVERSARIES, Adversary
from epidemic.aggregation import AGGREGATORS, Aggregator, Mean
from epidemic.aggregation import MISSING as NO_AGGREGATOR
from epidemic.algorithms import (
    ALGORITHMS,
    MISSING,
    Algorithm,
    AsynchronousMethod,
    LocalSGD,
    asynchronous_method,
    check_algorithm,
)
from epidemic.clock import Clock, CloseAdaptive
from epidemic.compression import CODECS, Codec
from epidemic.core.config import build, call_own, import_object, to_table
from epidemic.core.errors import BadInput, plain, require_choice, require_int, require_real, suggestion
from epidemic.core.formatting import count, html_table
from epidemic.core.rng import Streams
from epidemic.core.settings import Settings
from epidemic.data import (
    PARTITIONS,
    SOURCES,
    Dataset,
    Dirichlet,
    Fashion,
    Partition,
    SampleSet,
    Source,
    as_dataset,
    prepared,
)
from epidemic.experiment.compatibility import require_compatible
from epidemic.experiment.fingerprint import fingerprint
from epidemic.faults import Faults
from epidemic.learner import CHOICES, LOSSES, Loss, Metric
from epidemic.metrics import metric_from, named_metrics
from epidemic.mixing import RULES
from epidemic.models import MLP, MODELS, Model
from epidemic.participation import PARTICIPATIONS, Everybody, Participation
from epidemic.protocol.closing_rules import Closing, check_spelling, close_from
from epidemic.topology import TOPOLOGIES, ELLocal, GivesGraphs, Wrapper, check_topology, natural_mixing

FORMAT = 1
"""The version of the file format; files of another version are refused."""


TRAINED = ("data", "partition", "model", "loss")
"""Settings that say what is trained and on what; an experiment whose nodes are scripts of the users' own has none of them."""

OwnData = Dataset | tuple[tuple[ArrayLike, ArrayLike], tuple[ArrayLike, ArrayLike]] | tuple[SampleSet, SampleSet]
"""Data of a user's own: a Dataset, ((x, y), (test_x, test_y)), or two torch.utils.data.Dataset, (train, test)."""


class Eval(Settings, frozen=True, forbid_unknown_fields=True):
    """When and on what the models are evaluated while training."""

    every: int = 10
    """Rounds between evaluations; the last round is always evaluated."""
    samples: int | Literal["all"] = 1000
    """Size of the fixed, stratified subset of the test samples. The full test set is used at the end."""
    per_node: bool = False
    """Whether records hold the accuracy, loss and metrics of every single node."""

    def __post_init__(self) -> None:
        require_int("eval.every", self.every, 1)
        if not isinstance(self.per_node, bool):
            raise BadInput(f"eval.per_node = {self.per_node!r} must be true or false")
        if self.samples != "all":
            require_int("eval.samples", self.samples, 1)


class Checkpoint(Settings, frozen=True, forbid_unknown_fields=True):
    """When the state is saved, besides on Ctrl-C: every so many rounds (0: never) or seconds (0: never)."""

    rounds: int = 0
    seconds: float = 60.0

    def __post_init__(self) -> None:
        require_int("checkpoint.rounds", self.rounds, 0)
        require_real("checkpoint.seconds", self.seconds, 0)


class Runtime(Settings, frozen=True, forbid_unknown_fields=True):
    """How a run is computed. Strategy and device affect the last digits of results; the number of threads does not."""

    device: str = "cpu"
    """cpu, cuda, cuda:1, mps; auto: a GPU if there is one."""
    strategy: Literal["auto", "timed", "stacked", "per-node"] = "auto"
    """auto: by a rule, the same on every machine. timed: both are measured here, and the faster one is used."""
    threads: int = 0
    """0: one per core."""

    def __post_init__(self) -> None:
        if not isinstance(self.device, str):
            raise BadInput(f'runtime.device = {self.device!r} must be a text, for example "cpu" or "auto"')
        require_choice("runtime.strategy", self.strategy, CHOICES)
        require_int("runtime.threads", self.threads, 0, 4096)


class Network(Settings, frozen=True, forbid_unknown_fields=True):
    """How deployed nodes communicate; unused in simulations."""

    coin: Literal["shared", "committed", "private"] = "shared"
    """shared: every node computes each round's graph from the seed. committed (EL-Local): a node's targets are secret until it sends, and receivers then
    check them. private (EL-Local): they stay secret, and nobody can check them; for use with views only.
    """
    close: Closing = msgspec.field(default_factory=CloseAdaptive)
    """The rule by which a node closes a round: barrier, quorum, deadline or adaptive, with the same settings as clock.close."""
    patience: float = 60.0
    """Seconds to look for peers at the start."""
    largest: float = 1e6
    """The largest magnitude of a received number; messages or aggregates with larger ones do not count."""
    most_samples: int = 1_000_000
    """With mixing = "samples", the largest number of training samples that peers may state."""
    witnesses: int = 0
    """How many other processes must report a round before a node believes that peers are there, and skips rounds; 0: two, or a third of those alive if that
    is more.
    """
    data: Literal["partition", "own"] = "partition"
    """partition: a node trains on its share of the data. own: on all data on its own machine."""

    def __post_init__(self) -> None:
        require_choice("network.coin", self.coin, ["shared", "committed", "private"])
        check_spelling(self.close, "network.close")
        if not isinstance(self.close, Closing):
            raise BadInput(f"network.close = {self.close!r} must be of one of its kinds; see epidemic.clock")
        require_choice("network.data", self.data, ["partition", "own"])
        require_real("network.patience", self.patience, above=0)
        require_real("network.largest", self.largest, above=0)
        require_int("network.most_samples", self.most_samples, 1, 10**9)
        require_int("network.witnesses", self.witnesses, 0, 10**6)
        if self.blind and self.close.waits_for_all:
            raise BadInput(
                f'network.close.kind = "{self.close.kind}" needs coin = "shared": with "{self.coin}" in-neighbours are unknown'
            )

    @property
    def blind(self) -> bool:
        """Whether each node draws its own targets, so that in-neighbours are unknown."""
        return self.coin != "shared"

    @property
    def longest(self) -> float:
        """The longest wait for messages that the closing rule allows, in seconds."""
        return self.close.longest / 1e6


def network_from(table: object) -> Network:
    """Read the network settings of a file's table; a close table without a kind is "adaptive"."""
    if isinstance(table, Mapping):
        if "deadline" in table:
            raise BadInput("network.deadline is called network.close.deadline; use network.close.deadline = 30.0")
        if "close" in table:
            table = {**table, "close": close_from(table["close"], "network.close", "adaptive")}
    return build(table, Network, "network")


class CallbackName(Settings, frozen=True, forbid_unknown_fields=True):
    """A callback named in a file, with its options."""

    use: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def entry(self) -> str | dict[str, Any]:
        """The form of the entry in a file."""
        return {"use": self.use, "options": self.options} if self.options else self.use


def _callback_names(callbacks: object) -> tuple[CallbackName, ...]:
    """Convert names and tables to callback names."""
    if not isinstance(callbacks, list | tuple):
        raise BadInput(f'callbacks = {callbacks!r} must be a list of names, for example ["my_module:MyCallback"]')
    found = []
    for i, one in enumerate(callbacks):
        if not isinstance(one, str | Mapping | CallbackName):
            raise BadInput(
                f'callbacks[{i}] = {one!r} must be "module:name" or a table with use; give objects to simulate(callbacks=...)'
            )
        found.append(build({"use": one} if isinstance(one, str) else one, CallbackName, f"callbacks[{i}]"))
    return tuple(found)


class Experiment(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is learnt, by which nodes, how, and with which faults: everything that decides a run.

    A frozen value; every field has a default. `ep.load(path)` reads one from a TOML file, `msgspec.structs.replace(experiment, rounds=50)` returns a changed
    one.

    Args:
        name: Its name in tables and figures.
        nodes: Number of nodes.
        rounds: Number of rounds; each is local training, then one exchange of models.
        seeds: One run for each.
        topology: Which node sends to which: `ELLocal`, `ELOracle`, `Ring`, ..., or your own with a method graph(n, round, streams).
        algorithm: What nodes do with models: `LocalSGD`, `PushSum`, or your own.
        mixing: The mixing weights; "auto" is the rule that belongs to the topology.
        data: `Fashion`, `CIFAR10`, ..., a `Dataset`, arrays ((x, y), (test_x, test_y)), or a function that returns one of these.
        partition: Which node holds which samples: `IID`, `Dirichlet`, `Shards`, ...
        model: `MLP`, `SmallCNN`, ..., a torch.nn.Module, or a function that makes one.
        loss: "auto", a name, or a function of (outputs, targets) that returns the mean over the batch.
        metrics: Your own functions of (outputs, targets) by name, each returning one number per sample.   # (b,)
        faults: Lost messages, crashes, partitions, a cap.
        participation: Which nodes take part in a round: `UniformParticipation`, `BernoulliParticipation`, `Teleportation`; all by default.
        eval: When and on what the models are evaluated.
        checkpoint: When the state is saved.
        runtime: How the run is computed.
        network: How deployed nodes communicate.
        clock: How long everything takes; the run then has a simulated time. None: rounds only.
        aggregation: How a node combines its own model with received ones: `Mean` by default, `TrimmedMean`, `Median`, or your own.
        adversary: What malicious nodes do, in a simulation: `SignFlip`, `Alie`, ... of `epidemic.adversary`. None: no node is malicious.
        compression: How the models in messages are compressed: `Float16`, `Int8`, `RandomK`, `TopK`, ... None: not at all.

    Example:
        >>> ep.Experiment(nodes=16, rounds=20, topology=ep.ELLocal(s=4), data=ep.Digits(), model=ep.MLP(hidden=(32,)))
    """

    format: int = FORMAT
    name: str = "experiment"
    nodes: int = 96
    rounds: int = 100
    seeds: Sequence[int] = (1,)
    """One run for each; a list of integers."""
    mixing: str = "auto"
    """auto: the rule that belongs to the topology. samples: weights proportional to numbers of training samples."""
    loss: str | Loss = "auto"
    """auto: cross-entropy for classes, squared error otherwise (half the squared distance, mean over samples); or "module:function"."""
    topology: GivesGraphs = msgspec.field(default_factory=lambda: ELLocal(7))
    algorithm: Algorithm = msgspec.field(default_factory=LocalSGD)
    data: Source | OwnData | Callable[[], OwnData] = msgspec.field(default_factory=Fashion)
    partition: Partition = msgspec.field(default_factory=lambda: Dirichlet(min_samples=1))
    model: Model | nn.Module | Callable[[], nn.Module] = msgspec.field(default_factory=MLP)
    faults: Faults = msgspec.field(default_factory=Faults)
    participation: Participation = msgspec.field(default_factory=Everybody)
    eval: Eval = msgspec.field(default_factory=Eval)
    checkpoint: Checkpoint = msgspec.field(default_factory=Checkpoint)
    runtime: Runtime = msgspec.field(default_factory=Runtime)
    network: Network = msgspec.field(default_factory=Network)
    clock: Clock | None = None
    aggregation: Aggregator = msgspec.field(default_factory=Mean)
    adversary: Adversary | None = None
    compression: Codec | None = None
    metrics: Mapping[str, str | Metric] | Sequence[str] = msgspec.field(default_factory=dict)
    """Further metrics by name: one of `epidemic.metrics.SHIPPED`, "module:name" or a function; a list names them by themselves."""
    callbacks: Sequence[str | Mapping[str, Any] | CallbackName] = ()
    """Callbacks: "module:name" of a Callback, or {use = "module:name", options = {...}}. Pass objects to `simulate`."""

    def __post_init__(self) -> None:
        if isinstance(self.seeds, list | range):
            msgspec.structs.force_setattr(self, "seeds", tuple(self.seeds))
        if self.format != FORMAT:
            raise BadInput(f"format = {self.format} is not supported; this version reads format = {FORMAT}")
        if not isinstance(self.name, str) or not self.name.strip():
            raise BadInput(f"name = {self.name!r} must be a word")
        require_int("nodes", self.nodes, 1)
        require_int("rounds", self.rounds, 0)
        if not isinstance(self.seeds, tuple):
            raise BadInput(f"seeds = {self.seeds!r} must be a list of whole numbers, for example [1, 2, 3]")
        if not self.seeds:
            raise BadInput("seeds = [] must have at least one seed")
        for seed in self.seeds:
            require_int("seeds", seed, 0, 2**63 - 1)
        if len(set(self.seeds)) < len(self.seeds):
            raise BadInput(f"seeds = {list(self.seeds)} must be different")
        require_choice("mixing", self.mixing, ["auto", *RULES])
        for key, kind in {
            "faults": Faults,
            "participation": Participation,
            "eval": Eval,
            "checkpoint": Checkpoint,
            "runtime": Runtime,
            "network": Network,
        }.items():
            if not isinstance(getattr(self, key), kind):
                raise BadInput(f"{key} = {getattr(self, key)!r} must be {kind.__name__}(...)")
        if not isinstance(self.loss, str) and not callable(self.loss):
            raise BadInput(f"loss = {self.loss!r} must be a name or a function of (outputs, targets)")
        msgspec.structs.force_setattr(self, "metrics", named_metrics(self.metrics))
        msgspec.structs.force_setattr(self, "callbacks", _callback_names(self.callbacks))
        if not isinstance(self.topology, GivesGraphs):
            raise BadInput(f"topology = {self.topology!r} must have a method graph(n, round, streams)")
        if not isinstance(self.algorithm, Algorithm):
            raise BadInput(f"algorithm = {self.algorithm!r} is not an algorithm: {MISSING}")
        check_topology(self.topology, self.nodes)
        check_algorithm(self.algorithm, self.topology, self.mixing)
        self.faults.check(self.nodes)
        self.participation.check(self.nodes, self.topology)
        if self.clock is not None and not isinstance(self.clock, Clock):
            raise BadInput(f"clock = {self.clock!r} must be Clock(...)")
        if self.compression is not None and not isinstance(self.compression, Codec):
            raise BadInput(f"compression = {self.compression!r} must be a codec, for example Float16()")
        if not isinstance(self.aggregation, Aggregator):
            raise BadInput(f"aggregation = {self.aggregation!r} is not an aggregator: {NO_AGGREGATOR}")
        if self.adversary is not None:
            if not isinstance(self.adversary, Adversary):
                raise BadInput(f"adversary = {self.adversary!r} must be an adversary, for example SignFlip(nodes=2)")
            self.adversary.check(self.nodes)
        require_compatible(self, "any")
        if self.free is not None:
            for seed in self.seeds:
                self.free.check_run(self.topology, self.nodes, Streams(seed))

    @property
    def mixing_rule(self) -> str:
        """The mixing rule in force."""
        if self.mixing != "auto":
            return self.mixing
        return getattr(self.algorithm, "natural_mixing", None) or natural_mixing(self.topology)

    @property
    def free(self) -> AsynchronousMethod | None:
        """The asynchronous method; None if the experiment has rounds."""
        return asynchronous_method(self.algorithm)

    @property
    def own_training(self) -> bool:
        """Whether scripts of the users' own train, so that there is neither data nor a model here."""
        return bool(getattr(self.algorithm, "own_training", False))

    @property
    def own_data(self) -> bool:
        """Whether deployed nodes have data of their own."""
        return self.network.data == "own" or self.own_training

    def load_data(self) -> Dataset:
        """Load and check the data."""
        if isinstance(self.data, Source):
            return self.data.load()
        return prepared(as_dataset(call_own(self.data, {}, "data") if callable(self.data) else self.data, "data"), 0.0)

    def loss_function(self, data: Dataset) -> Loss:
        """The loss function in force."""
        if callable(self.loss):
            found: Loss = self.loss
            return found
        if self.loss == "auto":
            return LOSSES["cross-entropy" if data.classes else "squared-error"]
        if self.loss in LOSSES:
            return LOSSES[self.loss]
        return self._own_loss(self.loss)

    @staticmethod
    def _own_loss(name: str) -> Loss:
        if ":" not in name:
            raise BadInput(f"loss = {name!r} is not known{suggestion(name, ['auto', *LOSSES])}")
        imported: Loss = import_object(name, "loss")
        if isinstance(imported, type) or not callable(imported):
            kind = imported.__name__ if isinstance(imported, type) else type(imported).__name__
            raise BadInput(f"loss = {name!r} must name a function of (outputs, targets), not {kind}")
        return imported

    def check_names(self) -> None:
        """Import the named loss and metrics, before anything slow begins."""
        if isinstance(self.loss, str) and self.loss not in ("auto", *LOSSES):
            self._own_loss(self.loss)
        self.own_metrics()

    def own_metrics(self) -> dict[str, Metric]:
        """The metrics besides loss and accuracy."""
        assert isinstance(self.metrics, Mapping)
        return {name: metric_from(name, metric) for name, metric in self.metrics.items()}

    @property
    def portable(self) -> bool:
        """Whether the experiment consists of named kinds only, so that a file can hold it."""
        parts = (
            self.topology,
            self.algorithm,
            self.aggregation,
            self.data,
            self.partition,
            self.model,
            self.participation,
            *([] if self.adversary is None else [self.adversary]),
        )
        assert isinstance(self.metrics, Mapping)
        named = all(isinstance(part, str) for part in (self.loss, *self.metrics.values()))
        return named and all(map(_named_kind, parts))

    def table(self) -> dict[str, Any]:
        """The experiment as tables of a TOML file; a user's own objects are given by their description."""
        fields = {f.name: getattr(self, f.name) for f in msgspec.structs.fields(self)}
        metrics, callbacks = fields.pop("metrics"), fields.pop("callbacks")
        for key in ("clock", "compression", "adversary"):
            if fields[key] is None:
                del fields[key]
        for key, usual in (
            ("participation", Everybody()),
            ("aggregation", Mean()),
        ):  # as before there were other values
            if fields[key] == usual:
                del fields[key]
        if self.own_training:
            for key in TRAINED:
                del fields[key]
        table = {key: _described(value) for key, value in fields.items() if key != "seeds"}
        if not self.eval.per_node:  # as before there were other values
            del table["eval"]["per_node"]
        if metrics:
            table["metrics"] = {n: m if isinstance(m, str) else fingerprint(m) for n, m in metrics.items()}
        if callbacks:
            table["callbacks"] = [one.entry for one in callbacks]
        return {**table, "seeds": list(self.seeds)}

    def __repr__(self) -> str:
        what = f"{count(self.nodes, 'node')}, {count(self.rounds, 'round')}, {count(len(self.seeds), 'seed')}"
        others = ", ".join(_class_name(getattr(self, part)) for part in _PARTS[1:])
        topology = repr(self.topology) if _named_kind(self.topology) else _class_name(self.topology)
        return f"Experiment({self.name!r}: {what}; {topology}, {others})"

    def _repr_html_(self) -> str:
        rows = [("nodes", self.nodes), ("rounds", self.rounds), ("seeds", ", ".join(map(str, self.seeds[:10])))]
        if len(self.seeds) > 10:
            rows[-1] = ("seeds", f"{rows[-1][1]}, ... ({len(self.seeds)} in all)")
        for part in (
            *_PARTS,
            *(["faults"] if self.faults != Faults() else []),
            *(["participation"] if self.participation.partial else []),
            *(["clock"] if self.clock else []),
            *(["aggregation"] if self.aggregation != Mean() else []),
            *(["adversary"] if self.adversary else []),
            *(["compression"] if self.compression else []),
            "eval",
        ):
            value = getattr(self, part)
            rows.append((part, plain(repr(value)) if _named_kind(value) else _class_name(value)))
        if self.metrics:
            rows.append(("metrics", ", ".join(self.metrics)))
        return html_table(self.name, rows)


_PARTS = ("topology", "algorithm", "data", "partition", "model")

_SETTINGS = (Faults, Eval, Checkpoint, Runtime, Network, Clock)


def _named_kind(value: Any) -> bool:
    """Whether a file can name the kind of a value (which excludes a user's own class, even a derived one)."""
    if isinstance(value, Wrapper) and not _named_kind(value.inner):
        return False
    kinds = (
        *TOPOLOGIES.values(),
        *ALGORITHMS.values(),
        *SOURCES.values(),
        *PARTITIONS.values(),
        *MODELS.values(),
        *PARTICIPATIONS.values(),
        *CODECS.values(),
        *AGGREGATORS.values(),
        *ADVERSARIES.values(),
        *_SETTINGS,
    )
    return type(value) in kinds


def _class_name(value: Any) -> str:
    """A word for an object: its class, or its own name if it is a function or class."""
    return str(getattr(value, "__name__", type(value).__name__))


def _described(value: Any) -> Any:
    if _named_kind(value):
        return to_table(value)
    if isinstance(value, str | int | float):
        return value
    return {"own": f"{type(value).__module__}.{type(value).__qualname__}", "is": fingerprint(value)}
