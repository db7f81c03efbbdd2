"""Terms: what nodes must have in common to learn together, and how they find out that they do not."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import torch

from epidemic import __version__
from epidemic.callbacks.named import check_shipped
from epidemic.clock import Clock, CloseNeighbours
from epidemic.data import Source
from epidemic.errors import BadInput, plain
from epidemic.experiment import Experiment, node_terms, own_modules
from epidemic.faults import Faults
from epidemic.host.plan import check_first_round
from epidemic.host.setup import Setup
from epidemic.host.start import Start
from epidemic.protocol.commitment import MOST_ROUNDS
from epidemic.protocol.known import MOST_ENTRIES
from epidemic.sampling import PeerSampling
from epidemic.topology import ELLocal, fragments_of, peer_sampling, require_letters

PROTOCOL = 1
"""The version of what nodes say to each other."""
MOST_NAMES, LONGEST_NAME = 64, 48
"""How many names of classes or features are told in words, and how many characters of each; their digest stands for all of them."""


class Names(msgspec.Struct, frozen=True):
    """The names of the classes, or of the features, in order."""

    count: int = 0
    digest: str = ""
    first: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)], ...], msgspec.Meta(max_length=MOST_NAMES)
    ] = ()

    @classmethod
    def of(cls, names: Sequence[str]) -> Names:
        """Told in words as far as there is room."""
        digest = hashlib.blake2b(msgspec.json.encode(list(names)), digest_size=8).hexdigest() if names else ""
        return cls(len(names), digest, tuple(name[:LONGEST_NAME] for name in names[:MOST_NAMES]))

    def __str__(self) -> str:
        """Short, and plain whoever told them."""
        words: list[str] = []
        for name in self.first:
            if sum(map(len, words)) + len(name) > 40:
                break
            words.append(plain(name, 24))
        left = self.count - len(words)
        return f"[{', '.join([*words, *([f'... {left} more'] if left > 0 else [])])}]"


class Terms(msgspec.Struct, frozen=True):
    """What nodes must have in common."""

    experiment: dict[str, Any]  # by dotted keys
    graphs: str  # digest of the first rounds' graphs, as this library draws them
    model: str  # digest of the initial model, with names, shapes and types
    data: str  # digest of the training labels, where all nodes share one data set
    inputs: Annotated[tuple[int, ...], msgspec.Meta(max_length=16)] = ()  # shape of one input
    classes: Names = Names()
    features: Names = Names()  # of a table's columns
    modules: dict[str, str] = {}  # digests of the user's own modules, by name
    protocol: int = PROTOCOL
    version: str = __version__  # told, not compared

    @property
    def run(self) -> bytes:
        """16 bytes that name the run."""
        same = msgspec.structs.replace(self, version="")
        return hashlib.blake2b(msgspec.json.encode(same, order="sorted"), digest_size=16).digest()


def terms_of(setup: Setup, start: Start | None = None) -> Terms:
    """The terms of this seed of this experiment, as computed here; `start`: what it starts from, if it is not the first run of a cluster."""
    experiment, streams = setup.experiment, setup.streams
    own = experiment.network.data == "own"
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
    same = {**_short_terms(node_terms(experiment)), "seed": setup.seed, **({} if start is None else start.terms)}
    may_differ = {"callbacks", "data"} if own else {"callbacks"}
    table = {key: value for key, value in experiment.table().items() if key not in may_differ}
    return Terms(
        same, graphs.hexdigest(), model.hexdigest(), "" if own else labels.hexdigest(),
        setup.data.input_shape, Names.of(setup.data.classes), Names.of(setup.data.features),
        {module.name: module.digest for module in own_modules(table)},
    )  # fmt: skip


def _short_terms(terms: dict[str, Any]) -> dict[str, Any]:
    """What may be as long as the data has classes or columns: lists that are compared as names, and scales as one digest."""
    scale = {key: value for key, value in terms.items() if key.startswith("data.scale.")}
    kept = {
        key: value
        for key, value in terms.items()
        if key not in scale and not (key in ("data.classes", "data.features") and isinstance(value, list))
    }
    if scale:
        kept["data.scale"] = hashlib.blake2b(msgspec.json.encode(scale, order="sorted"), digest_size=8).hexdigest()
    return kept


def differences(here: Terms, there: Terms) -> list[str]:
    """What keeps two nodes apart, for people; empty if nothing does."""
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
            lacking = [side for side, terms in (("here", here), ("there", there)) if name not in terms.modules]
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
    if not found:  # otherwise it is a consequence
        if here.graphs != there.graphs:
            found.append(f"the libraries draw different graphs (versions {here.version} here, {there.version} there)")
        if here.model != there.model:
            found.append("the initial models differ (perhaps another version of PyTorch)")
    return found


def _remedy(key: str, here: Any, there: Any) -> str:
    """What makes two nodes agree again, where one of them was not told what the other was."""
    if key == "rounds" and type(here) is int and type(there) is int:
        return f" (start every node with --set rounds={_short(max(here, there))})"
    if key == "start.run":
        return " (runs with the same keys are counted by 'epidemic cluster next', from the folder of the run before)"
    if key == "start.weights":
        return " (give all nodes the same file with 'epidemic cluster next --weights FILE')"
    return ""


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."


def check_deployable(experiment: Experiment) -> None:
    """Say why an experiment cannot be run by deployed nodes."""
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
    service = peer_sampling(experiment.topology)
    if service is not None:
        _check_view(experiment, service)
    require_letters(experiment.topology, "in a deployment")
    drawn = ("crashes", "random_crashes", "blocked", "partitions", "loss")
    for key in drawn:
        if getattr(experiment.faults, key) != getattr(Faults(), key):
            raise BadInput(
                f"faults.{key} is drawn by the simulator only; on a network things go wrong by themselves: leave it out"
            )
    if experiment.participation.partial:
        raise BadInput(
            "participation is drawn by the simulator only; on a network nodes come and go by themselves: leave it out"
        )
    if fragments_of(experiment.topology) > 1:
        raise BadInput(
            'topology.kind = "fragments" is for simulations; deployed nodes send parts of models with algorithm.kind = "divshare"'
        )
    check_first_round(experiment)
    if experiment.network.data == "own" and isinstance(experiment.data, Source):
        contradiction = experiment.data.differs_by_place()
        if contradiction is not None:
            raise BadInput(contradiction)
    if experiment.free is not None:
        _check_free(experiment, experiment.free.called)
    elif experiment.clock is not None:
        _check_timed_rounds(experiment, experiment.clock)
    network, capped = experiment.network, experiment.faults.cap_of(experiment.nodes) is not None
    if getattr(experiment.algorithm, "exact_exchange", False) and network.close != "barrier":
        kind = experiment.table()["algorithm"]["kind"]
        raise BadInput(
            f'algorithm.kind = "{kind}" needs every letter to arrive; use network.close = "barrier" instead of "{network.close}"'
        )
    if network.blind and not isinstance(experiment.topology, ELLocal):
        raise BadInput(
            f'network.coin = "{network.coin}" needs topology.kind = "el-local", where each node draws its targets by itself;'
            f' this one is "{experiment.table()["topology"]["kind"]}"'
        )
    if network.coin == "committed":
        _check_committed(experiment, capped=capped)
    if network.close == "barrier" and capped:
        raise BadInput('network.close = "barrier" cannot wait for models that faults.cap turns away; use "deadline"')


def _check_committed(experiment: Experiment, *, capped: bool) -> None:
    """What nodes that commit to their targets need."""
    if experiment.free is not None:
        raise BadInput(
            f'network.coin = "committed" is a draw for each round, and algorithm.kind = "{experiment.free.called}" has no rounds; use'
            " --set network.coin=private"
        )
    if capped:
        raise BadInput(
            'network.coin = "committed" does not go with faults.cap: offers have no room for the proof that their receiver was drawn; leave'
            " out the cap, or use --set network.coin=private"
        )
    if experiment.rounds > MOST_ROUNDS:
        raise BadInput(
            f'network.coin = "committed" has a hash chain of at most {MOST_ROUNDS} links, one for each round; rounds = {experiment.rounds}'
            " are more: use fewer, or --set network.coin=private"
        )


def check_hosting(experiment: Experiment, hosted: int) -> None:
    """Say why one process cannot host so many nodes."""
    if hosted > 1 and peer_sampling(experiment.topology) is not None:
        raise BadInput(
            f"topology.view: every node has connections of its own, so that {hosted} nodes cannot share a process; give each its own"
        )


def _check_view(experiment: Experiment, service: PeerSampling) -> None:
    """What nodes that know a part of the others only need."""
    if experiment.network.coin != "private":
        raise BadInput(
            "topology.view: deployed nodes that know a part of the others only draw their targets by themselves; use"
            " --set network.coin=private"
        )
    most = service.side(experiment.nodes, 0, lambda _: 0).most
    if most > MOST_ENTRIES:
        raise BadInput(
            f"topology.view: exchanges of {most} entries are more than {MOST_ENTRIES}, the most that a deployed node takes; use smaller views"
        )


def _check_timed_rounds(experiment: Experiment, clock: Clock) -> None:
    """What a [clock] says of rounds must be what the deployed nodes do; of processors and links it says what they are modelled as."""
    if clock.stop or clock.megabytes:
        key = "stop" if clock.stop else "megabytes"
        raise BadInput(
            f"clock.{key} is for simulations: deployed rounds end after rounds = {experiment.rounds}; leave it out"
        )
    _check_no_churn(clock)
    kind = str(clock.close.__struct_config__.tag)
    same = {"neighbours": "barrier", "global": "barrier", "quorum": "quorum", "deadline": "deadline"}.get(kind)
    if same is None:
        raise BadInput(
            f'clock.close.kind = "{kind}" is for simulations; deployed nodes close by deadline, quorum or barrier'
        )
    if clock.close != CloseNeighbours() and same != experiment.network.close:
        raise BadInput(
            f'clock.close.kind = "{kind}" and network.close = "{experiment.network.close}" contradict each other;'
            f' use network.close = "{same}"'
        )


def _check_no_churn(clock: Clock) -> None:
    if clock.churn is not None:
        raise BadInput(
            "clock.churn is drawn by the simulator only; on a network nodes come and go by themselves: leave it out"
        )


def _check_free(experiment: Experiment, kind: str) -> None:
    """The same of a method without rounds."""
    clock = experiment.clock
    assert clock is not None
    if not clock.stop:
        raise BadInput(
            f'algorithm.kind = "{kind}" has no rounds after which a deployed run would end: give it clock.stop, in seconds'
        )
    if clock.megabytes:
        raise BadInput(
            f"clock.megabytes = {clock.megabytes:g} is for simulations: no node knows what the others have sent; leave it out, and use"
            " clock.stop"
        )
    _check_no_churn(clock)
    if experiment.network.close != "deadline":
        raise BadInput(
            f'network.close = "{experiment.network.close}" has no meaning for algorithm.kind = "{kind}", which has no rounds to close;'
            " leave it out"
        )
