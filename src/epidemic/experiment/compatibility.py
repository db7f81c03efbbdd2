"""What goes with what: one table of rules. Every refusal of a combination comes from here, before anything runs, for every host.

A rule is two traits that exclude each other, the reason, and what to use instead. A trait is a name and a predicate on an experiment; most read class
attributes that components declare (`exact_exchange`, `balanced`, `static`, `exchange`, `symmetric`, ...), so a new topology, algorithm or codec is judged
without a change here. Limits of single values (s against nodes, shares between 0 and 1) stay with their components.

    refusals(experiment, "deployment")     all reasons against it, a line each
    require_compatible(experiment)         raises the first

Hosts: "simulation" (rounds, or the simulated clock if there is a [clock]), "ranks" (a simulation on several processes), "deployment". Rules of a host
apply on that host only; all others always. An experiment that is made is judged for the host "any": by the rules of no host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from epidemic.adversary import Adversary
from epidemic.aggregation import Aggregator, made
from epidemic.algorithms import asked_for
from epidemic.clock import CloseAdaptive, CloseBarrier, CloseQuorum, LateMessages
from epidemic.compression import Codec, Partial
from epidemic.core.config import to_table
from epidemic.core.errors import BadInput
from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.data import Explicit
from epidemic.faults import CAP_OF_REQUESTS, WHOLE_SUM, Faults
from epidemic.mixing import NEEDS_BOTH_WAYS, NEEDS_NATIVE, OF_WHAT_ARRIVED, weights
from epidemic.protocol.commitment import MOST_ROUNDS
from epidemic.protocol.partial_view import MOST_ENTRIES
from epidemic.topology import (
    Complete,
    ELLocal,
    Fragments,
    exchange_of,
    fragments_of,
    is_doubly_stochastic,
    is_static,
    is_symmetric,
    kind_of,
    natural_mixing,
    peer_sampling,
)

if TYPE_CHECKING:
    from epidemic.experiment.spec import Experiment

HOSTS = ("simulation", "ranks", "deployment")

LOOKED_AT = 4
"""Rounds of each seed checked for balance, if a topology does not declare whether its links go both ways."""

CLOSE = 1e-9

MOST_WHOLE = 1000
"""Nodes that may all hear each other where each of them compares whole models with each other."""

ROUND_FAULTS = ("crashes", "random_crashes", "blocked", "partitions", "loss")
"""Faults that a simulation draws and a real network has by itself."""


def said_of(experiment: Experiment) -> str:
    """The aggregator as a message names it."""
    config = getattr(experiment.aggregation, "__struct_config__", None)
    return f'aggregation.kind = "{(config and config.tag) or type(experiment.aggregation).__name__}"'


def _as_in_a_file(value: Any) -> str:
    from epidemic.experiment.files import toml_value  # `files` imports this module

    return toml_value(to_table(value))


class Incompatible(BadInput):
    """Two settings that exclude each other, whatever their values."""


class Facts:
    """An experiment and its host, as traits and messages see them; messages refer to properties such as `codec` and `close`."""

    def __init__(self, experiment: Experiment, host: str = "simulation", ranks: int = 2, hosted: int = 1) -> None:
        self.experiment, self.host, self.ranks, self.hosted = experiment, host, ranks, hosted
        self.algorithm, self.topology, self.faults = experiment.algorithm, experiment.topology, experiment.faults
        self.participation, self.network, self.clock = experiment.participation, experiment.network, experiment.clock
        self.free, self.mixing, self.nodes, self.rounds = (
            experiment.free,
            experiment.mixing,
            experiment.nodes,
            experiment.rounds,
        )

    def has(self, name: str) -> bool:
        """Whether the algorithm declares this attribute."""
        return bool(getattr(self.algorithm, name, False))

    @property
    def method(self) -> str:
        """The kind of the algorithm, or its class."""
        named = getattr(getattr(self.algorithm, "__struct_config__", None), "tag", None)
        return self.free.called if self.free is not None else str(named or type(self.algorithm).__name__)

    @property
    def kind(self) -> str:
        """The kind of the topology."""
        return kind_of(self.topology)

    @property
    def rule(self) -> str:
        """The mixing rule in force."""
        return self.experiment.mixing_rule

    @property
    def wants(self) -> str | None:
        """The only mixing rule that the algorithm works with; None: any."""
        found: str | None = getattr(self.algorithm, "natural_mixing", None)
        return found

    @property
    def compression(self) -> Codec | None:
        """The codec of [compression]."""
        return self.experiment.compression

    @property
    def codec(self) -> str:
        """The codec, as a message names it."""
        assert self.compression is not None
        return f'compression.kind = "{self.compression.__struct_config__.tag}"'

    @property
    def used_codec(self) -> Any:
        """The codec in force, the algorithm's own or that of [compression]."""
        return getattr(self.algorithm, "compressor", None) or self.compression

    @property
    def said_codec(self) -> str:
        """The setting that selects the codec."""
        return "[compression]" if self.used_codec is self.compression else "algorithm.compressor"

    @property
    def closing(self) -> Any:
        """The closing rule of the clock; None without one."""
        return None if self.clock is None else self.clock.close

    @property
    def close(self) -> str:
        """The kind of the clock's closing rule."""
        return str(self.closing.kind)

    @property
    def aging(self) -> str:
        """The section whose closing rule reduces the weight of late messages; empty if none does."""
        tables = {"network": self.network.close, "clock": self.closing}
        found = [name for name, close in tables.items() if isinstance(close, LateMessages) and close.weight == "age"]
        return found[0] if found else ""

    @property
    def simulated(self) -> str:
        """The closing rule of the clock, as a file states it."""
        return _as_in_a_file(self.closing)

    @property
    def deployed(self) -> str:
        """The closing rule of the network, as a file states it."""
        return _as_in_a_file(self.network.close)

    @cached_property
    def training_settings(self) -> list[str]:
        """Settings of what is trained that are not the defaults."""
        defaults = {field.name: field for field in msgspec.structs.fields(type(self.experiment))}
        usual = {name: defaults[name].default for name in ("loss",)}
        usual |= {name: defaults[name].default_factory() for name in ("partition", "model", "data", "metrics")}
        return [name for name, value in usual.items() if getattr(self.experiment, name) != value]

    @property
    def training_setting(self) -> str:
        """The first of them."""
        return self.training_settings[0]

    @property
    def cap_hint(self) -> str:
        """How to get a cap under a clock, if it is used where it cannot be."""
        return "" if DEPLOYED_PROTOCOL(self) else ' (a cap needs clock.protocol = "deployed")'

    @property
    def capped(self) -> bool:
        """Whether receivers take fewer models than they may be sent."""
        return self.faults.cap_of(self.nodes) is not None

    @cached_property
    def unlike(self) -> list[str]:
        """Fault settings that are not the defaults, except those that only modify others."""
        rest = ("max_retries", "on_return")
        names = [name for name in Faults.__struct_fields__ if name not in rest]
        return [name for name in names if getattr(self.faults, name) != getattr(Faults(), name)]

    @property
    def fault(self) -> str:
        """The first fault setting in use."""
        return self.unlike[0]

    @property
    def drawn_fault(self) -> str:
        """The first fault that only a simulation draws."""
        return next(name for name in ROUND_FAULTS if name in self.unlike)

    @cached_property
    def single_faults(self) -> list[str]:
        """Faults that remove single messages."""
        asked = {
            "loss": self.faults.loss,
            "blocked": self.faults.blocked,
            "partitions": self.faults.partitions,
            "cap": self.capped,
        }
        return [name for name, wanted in asked.items() if wanted]

    @property
    def single_fault(self) -> str:
        """The first fault that removes single messages."""
        return self.single_faults[0]

    @cached_property
    def averages_models(self) -> bool:
        """Whether each message of the algorithm is one model that may lose digits or coordinates."""
        if self.free is not None:
            return False
        columns = self.algorithm.columns(8, "float32")
        return [(c.name, c.shape) for c in columns] == [("x", (8,))] and not self.has("exact_exchange")

    @cached_property
    def inner(self) -> list[Any]:
        """The topologies wrapped by this one."""
        found, inner = [], getattr(self.topology, "inner", None)
        while inner is not None:
            found.append(inner)
            inner = getattr(inner, "inner", None)
        return found

    @cached_property
    def first_graph(self) -> Graph:
        """The graph of the first round."""
        return self.topology.graph(self.nodes, 0, Streams(self.experiment.seeds[0]))

    @cached_property
    def one_way(self) -> bool:
        """Whether some links may go in one direction only."""
        symmetric = is_symmetric(self.topology)
        if symmetric or self.first_graph.clique is not None:
            return False
        return not self.first_graph.undirected if is_static(self.topology) else symmetric is False

    @cached_property
    def unbalanced(self) -> bool:
        """Whether some senders may count more than others, or do in the first rounds."""
        experiment = self.experiment
        if is_doubly_stochastic(self.topology) is False and self.first_graph.clique is None:
            return True
        for seed in experiment.seeds:
            for round in range(min(LOOKED_AT, experiment.rounds) if not is_static(self.topology) else 1):
                graph = self.topology.graph(self.nodes, round, Streams(seed))
                given = weights(self.rule, graph).transpose @ np.ones((self.nodes, 1))
                if np.abs(given - 1).max() > CLOSE:
                    return True
        return False

    @cached_property
    def asymmetric(self) -> bool:
        """Whether two nodes may count each other differently, or do in the first rounds."""
        if is_symmetric(self.topology) is False and not is_static(self.topology) and self.first_graph.clique is None:
            return True
        for seed in self.experiment.seeds:
            for round in range(1 if is_static(self.topology) else min(LOOKED_AT, self.rounds)):
                matrix = weights(self.rule, self.topology.graph(self.nodes, round, Streams(seed))).matrix
                if matrix is not None and abs(matrix - matrix.T).max() > CLOSE:
                    return True
        return False

    @cached_property
    def silent(self) -> bool:
        """Whether nobody sends anything in any round."""
        return is_static(self.topology) and self.first_graph.messages == 0

    @property
    def silence(self) -> str:
        """Why no message arrives, in words."""
        return f'topology.kind = "{self.kind}" has no links' if self.silent else f"faults.loss = {self.faults.loss:g}"

    @cached_property
    def aggregator(self) -> Aggregator:
        """The experiment's aggregator, made if it is a user's own."""
        return made(self.experiment.aggregation)

    @property
    def adversary(self) -> Adversary | None:
        """What malicious nodes do; None where no node is malicious."""
        given = self.experiment.adversary
        return given if given is not None and given.size else None

    @property
    def hostile(self) -> str:
        """How a message names it."""
        assert self.adversary is not None
        return f'adversary.kind = "{self.adversary.called}"'

    @property
    def adopting(self) -> bool:
        """Whether a node may take the model of a single other one."""
        faults = self.faults
        return faults.on_return == "adopt" and bool(faults.crashes or faults.random_crashes)

    @property
    def robust(self) -> str:
        """The aggregator, as a message names it."""
        return said_of(self.experiment)

    @cached_property
    def asked(self) -> frozenset[str]:
        """What a user's own algorithm asks its inbox for, by name; built-in ones declare their needs."""
        return asked_for(self.algorithm)

    @property
    def asked_whole(self) -> str:
        """The first way in which it asks for whole messages."""
        return min(self.asked & {"each", "sum"})

    @property
    def weighing(self) -> str:
        """The setting that gives each input its own weight."""
        if self.mixing == "auto":
            return f'topology.kind = "{self.kind}" has weights of its own, {self.rule}'
        return f'mixing = "{self.rule}" gives each its own weight'

    @property
    def clock_end(self) -> str:
        """The setting that ends a run under the clock."""
        assert self.clock is not None
        return "stop" if self.clock.stop else "megabytes"

    @property
    def most_entries(self) -> int:
        """Entries in one exchange of views."""
        service = peer_sampling(self.topology)
        assert service is not None
        return service.sampler(self.nodes, 0, lambda _: 0).most


@dataclass(frozen=True)
class Trait:
    """A property that an experiment may have: a name and a predicate."""

    name: str
    seen: Callable[[Facts], Any]

    def __call__(self, facts: Facts) -> bool:
        """Whether this experiment has the trait."""
        return bool(self.seen(facts))


@dataclass(frozen=True)
class Rule:
    """Two traits that exclude each other. `why` and `instead` refer to facts in braces: {f.method} is the kind of the algorithm."""

    one: Trait
    other: Trait
    why: str
    instead: str

    def line(self, facts: Facts) -> str:
        """The message for this experiment."""
        text = f"{self.why}; {self.instead}" if self.instead else self.why
        return text.format(f=facts, limit={"rounds": MOST_ROUNDS, "entries": MOST_ENTRIES, "whole": MOST_WHOLE})


# -- aggregators
UNWEIGHTED = Trait("an aggregator without weights", lambda f: not f.aggregator.weighted)
NOT_AVERAGE = Trait("an aggregator that is no average", lambda f: not f.aggregator.linear)
WHOLE_MODELS = Trait(
    "an aggregator of whole models", lambda f: not f.aggregator.linear and not f.aggregator.coordinatewise
)
NOT_OF_PAIRS = Trait("an aggregator of more than two", lambda f: not f.aggregator.linear and not f.aggregator.pairs)
TOO_FEW_NODES = Trait("fewer nodes than it needs", lambda f: f.aggregator.fewest > f.nodes)
MANY_WHOLE = Trait("an aggregator of whole models of very many", lambda f: WHOLE_MODELS(f) and f.nodes > MOST_WHOLE)
NO_AVERAGE = Trait("an algorithm without an average", lambda f: not f.has("aggregates"))
PAIRS = Trait("an asynchronous method of pairs", lambda f: f.free is not None and f.free.merges_pairs)
BY_AGE = Trait('weight = "age"', lambda f: f.aging)
SOME_NUMBERS = Trait("messages of some numbers", lambda f: f.compression is not None and f.compression.partial)
# -- adversaries
ADVERSARY = Trait("[adversary]", lambda f: f.adversary is not None)
OF_A_STATIC_GRAPH = Trait("an adversary of one graph", lambda f: f.adversary is not None and f.adversary.static_only)
DATA_OF_THE_HONEST = Trait(
    "data of honest nodes only", lambda f: f.adversary is not None and not f.adversary.holds_data
)
SAID_SHARES = Trait("shares that are said", lambda f: isinstance(f.experiment.partition, Explicit))
ADOPTS = Trait("nodes that take the model of one other", lambda f: f.adopting)
# -- what a user's own algorithms ask for
ASKS_WHOLE = Trait("an algorithm that asks for whole messages", lambda f: f.asked & {"each", "sum"})
ASKS_SUMS = Trait("an algorithm that asks for sums", lambda f: "sum" in f.asked)
LEAVES_WEIGHTS = Trait(
    "an algorithm that does not look at weights",
    lambda f: "each" in f.asked and not f.asked & {"weights", "mean", "aggregate"},
)
UNEVEN_MIXING = Trait("a mixing rule that is not uniform", lambda f: f.mixing not in ("auto", "uniform"))
# -- hosts
RANKS = Trait("ranks", lambda f: f.host == "ranks")
SIMULATED = Trait("a simulation", lambda f: f.host in ("simulation", "ranks"))
DEPLOYED = Trait("deployment", lambda f: f.host == "deployment")
PROCESS = Trait("several nodes in a process", lambda f: f.host == "deployment" and f.hosted > 1)
CLOCK = Trait("the simulated clock", lambda f: f.clock is not None)
NO_CLOCK = Trait("no clock", lambda f: f.clock is None)
DEPLOYED_PROTOCOL = Trait(
    'clock.protocol = "deployed"', lambda f: f.clock is not None and f.clock.protocol == "deployed"
)
# -- algorithms
ASYNCHRONOUS = Trait("an asynchronous method", lambda f: f.free is not None)
SYNCHRONOUS = Trait("a method with rounds", lambda f: f.free is None)
EXACT = Trait("an algorithm that needs every message", lambda f: f.has("exact_exchange"))
BALANCED = Trait("an algorithm that needs doubly stochastic weights", lambda f: f.has("balanced"))
NEEDS_SYMMETRY = Trait("an algorithm that needs symmetric weights", lambda f: f.has("symmetric_weights"))
OWN_WEIGHTS = Trait("an algorithm with weights of its own", lambda f: f.wants is not None)
STRICT_WEIGHTS = Trait("an algorithm that ignores mixing", lambda f: f.free is not None or f.has("own_weights"))
DIFFERENCES = Trait("an algorithm of compressed differences", lambda f: f.has("compressor"))
NOT_MODELS = Trait("messages that are not just a model", lambda f: not f.averages_models)
OWN_LOOP = Trait("a script of the user's own", lambda f: f.experiment.own_training)
SAME_NEIGHBOURS = Trait("an algorithm that needs the same neighbours", lambda f: f.has("same_neighbours"))
TRAINS_ON_RECEIPT = Trait("an algorithm that trains what it receives", lambda f: f.has("trains_on_receipt"))
# -- topologies
NOBODY_SENDS = Trait("no links", lambda f: f.silent)
NOTHING_ARRIVES = Trait("no links, or messages that are all lost", lambda f: f.silent or f.faults.loss >= 1)
REQUESTS = Trait("requests for models", lambda f: exchange_of(f.topology) == "requests")
ALL_REDUCE = Trait("an all-reduce", lambda f: exchange_of(f.topology) == "all-reduce")
NOT_MESSAGES = Trait("requests or an all-reduce", lambda f: exchange_of(f.topology) != "messages")
COMPLETE = Trait("a complete graph", lambda f: isinstance(f.topology, Complete))
CHANGING = Trait("a graph that changes", lambda f: not is_static(f.topology))
ROUND_GRAPHS = Trait(
    "a graph for each round", lambda f: not isinstance(f.topology, ELLocal) and not is_static(f.topology)
)
NOT_EL_LOCAL = Trait("a topology that is not el-local", lambda f: not isinstance(f.topology, ELLocal))
ONE_WAY = Trait("directed links", lambda f: f.one_way)
NO_NATIVE = Trait(
    "no weights of the topology's own",
    lambda f: natural_mixing(f.topology) != "native" and f.first_graph.native is None and f.first_graph.clique is None,
)
UNBALANCED = Trait("graphs in which some nodes count more", lambda f: f.unbalanced)
ASYMMETRIC = Trait("weights that are not symmetric", lambda f: f.asymmetric)
FRAGMENTS = Trait("fragments", lambda f: fragments_of(f.topology) > 1)
INNER_FRAGMENTS = Trait("fragments inside", lambda f: any(isinstance(one, Fragments) for one in f.inner))
WRAPPED = Trait("a wrapper", lambda f: bool(f.inner))
VIEWS = Trait("views", lambda f: peer_sampling(f.topology) is not None)
LARGE_VIEWS = Trait("large views", lambda f: VIEWS(f) and f.most_entries > MOST_ENTRIES)
# -- codecs
COMPRESSION = Trait("[compression]", lambda f: f.compression is not None)
LOSSY = Trait("[compression] that loses digits", lambda f: f.compression is not None and not f.compression.exact)
ANY_LOSSY = Trait("compressed messages", lambda f: f.used_codec is not None and not f.used_codec.exact)
COUNTED_FILL = Trait('fill = "count"', lambda f: isinstance(f.compression, Partial) and f.compression.fill == "count")
# -- what is trained
TRAINED_HERE = Trait("settings of training", lambda f: f.training_settings)
# -- weights
MIXING = Trait("a mixing rule", lambda f: f.mixing != "auto")
SAMPLES = Trait('mixing = "samples"', lambda f: f.mixing == "samples")
BY_SAMPLES = Trait("weights by samples", lambda f: f.rule == "samples")
NATIVE = Trait('mixing = "native"', lambda f: f.rule == "native")
METROPOLIS = Trait('mixing = "metropolis-hastings"', lambda f: f.rule == "metropolis-hastings")
NOT_UNIFORM = Trait("weights that are not uniform", lambda f: f.rule != "uniform")
FOR_THE_GRAPH = Trait("weights of the whole graph", lambda f: f.rule not in OF_WHAT_ARRIVED)
# -- faults and participation
FAULTS = Trait("faults", lambda f: f.unlike)
SINGLE_FAULTS = Trait("loss, blocked pairs, partitions, cap", lambda f: f.single_faults)
ROUND_BOUND = Trait(
    "faults that speak of rounds",
    lambda f: (
        f.faults
        != Faults(
            loss=f.faults.loss, max_retries=f.faults.max_retries, cap=f.faults.cap if DEPLOYED_PROTOCOL(f) else None
        )
    ),
)
DRAWN_FAULTS = Trait("faults that are drawn", lambda f: any(name in f.unlike for name in ROUND_FAULTS))
CAP = Trait("faults.cap", lambda f: f.capped)
NO_CAP = Trait("no cap", lambda f: f.faults.cap is None)
REDIRECTS = Trait("faults.cap with retries", lambda f: f.capped and f.faults.max_retries != 0)
RETRIES = Trait("faults.max_retries", lambda f: f.faults.max_retries != Faults().max_retries)
LOSSES = Trait("messages that get lost", lambda f: f.faults.loss or (f.clock is not None and f.clock.churn is not None))
PARTIAL = Trait("participation of some", lambda f: f.participation.partial)
BLIND = Trait('participation.links = "blind"', lambda f: not f.participation.aware)
LIVE_ONLY = Trait("teleportation", lambda f: f.participation.live_only)
# -- the clock's parts
PLAIN_ADAPTIVE = Trait(
    "a wait that adapts, without the deployed protocol",
    lambda f: isinstance(f.closing, CloseAdaptive) and not DEPLOYED_PROTOCOL(f),
)
CLOCK_UNDEPLOYED = Trait("a closing rule that cannot be deployed", lambda f: f.clock is not None and f.closing.deployed)
CATCH_UP = Trait("catch_up", lambda f: isinstance(f.closing, LateMessages) and f.closing.catch_up)
BLIND_BARRIER = Trait(
    "a barrier of nodes that do not know their in-neighbours",
    lambda f: f.clock is not None and f.closing.waits_for_all and (f.network.blind or f.capped),
)
CHURN = Trait("churn", lambda f: f.clock is not None and f.clock.churn is not None)
CLOSING = Trait("a closing rule", lambda f: f.clock is not None and f.closing != CloseBarrier())
WAITS_FOR_ALL = Trait("a round that waits for every message", lambda f: f.clock is not None and f.closing.waits_for_all)
LATE = Trait("a round that closes early", lambda f: SYNCHRONOUS(f) and CLOCK(f) and not f.closing.waits_for_all)
CARRY = Trait('late = "carry"', lambda f: f.clock is not None and f.closing.carries)
QUORUM_ALONE = Trait(
    "a quorum without a deadline", lambda f: isinstance(f.closing, CloseQuorum) and not f.closing.deadline
)
OTHER_CLOSE = Trait("another closing rule", lambda f: CLOSING(f) and f.closing != f.network.close)
UNDEPLOYED_CLOSE = Trait("a closing rule of simulations", lambda f: OTHER_CLOSE(f) and f.closing.deployed)
ENDS = Trait("clock.stop or clock.megabytes", lambda f: f.clock is not None and (f.clock.stop or f.clock.megabytes))
NO_STOP = Trait("no clock.stop", lambda f: f.clock is not None and not f.clock.stop)
ENDS_BY_TRAFFIC = Trait(
    "clock.megabytes alone", lambda f: f.clock is not None and f.clock.megabytes and not f.clock.stop
)
MEGABYTES = Trait("clock.megabytes", lambda f: f.clock is not None and f.clock.megabytes)
# -- the network
OWN_DATA = Trait("data of each node's own", lambda f: f.network.data == "own")
COIN = Trait("a coin of each node's own", lambda f: f.network.blind)
COMMITTED = Trait('coin = "committed"', lambda f: f.network.coin == "committed")
NOT_PRIVATE = Trait("a coin that is not private", lambda f: f.network.coin != "private")
PRIVATE = Trait('coin = "private"', lambda f: f.network.coin == "private")
NOT_BARRIER = Trait('a close other than "barrier"', lambda f: not f.network.close.waits_for_all)
BARRIER = Trait('close = "barrier"', lambda f: f.network.close.waits_for_all)
NETWORK_CLOSE = Trait("a close of rounds", lambda f: not isinstance(f.network.close, CloseAdaptive))
NETWORK_UNDEPLOYED = Trait("a close that cannot be deployed", lambda f: f.network.close.deployed)
NETWORK_QUORUM_ALONE = Trait(
    "a deployed quorum without a deadline",
    lambda f: isinstance(f.network.close, CloseQuorum) and not f.network.close.deadline,
)
NETWORK_CATCH_UP = Trait(
    "a deployed catch_up", lambda f: isinstance(f.network.close, LateMessages) and f.network.close.catch_up
)
NETWORK_CARRY = Trait('a deployed late = "carry"', lambda f: f.network.close.carries)
MANY_ROUNDS = Trait("more rounds than a chain has links", lambda f: f.rounds > MOST_ROUNDS)


def deployed(trait: Trait) -> Trait:
    """The same trait, only for deployments."""
    return Trait(f"{trait.name}, deployed", lambda f: DEPLOYED(f) and trait(f))


def rounds(trait: Trait) -> Trait:
    """The same trait, only for methods with rounds."""
    return Trait(f"{trait.name}, with rounds", lambda f: f.free is None and trait(f))


def asynchronous(trait: Trait) -> Trait:
    """The same trait, only for asynchronous methods."""
    return Trait(f"{trait.name}, without rounds", lambda f: f.free is not None and trait(f))


ASK_INSTEAD = 'ask inbox.aggregate and say how models become one by [aggregation] kind = "python"'

RULES: tuple[Rule, ...] = (
    # algorithms and topologies
    Rule(
        ASYNCHRONOUS,
        VIEWS,
        'topology.view advances by rounds, but a node of algorithm.kind = "{f.method}" has no rounds',
        "leave out the view, and every node draws from all others, or use local-sgd",
    ),
    Rule(
        ASYNCHRONOUS,
        ROUND_GRAPHS,
        'topology.kind = "{f.kind}" has a graph for each round, but a node of algorithm.kind = "{f.method}" has no rounds and draws its targets'
        " itself",
        "use el-local or a static one (complete, ring, torus, regular)",
    ),
    Rule(
        TRAINS_ON_RECEIPT,
        NOTHING_ARRIVES,
        'algorithm.kind = "{f.method}" trains when a message arrives, and none ever does ({f.silence}): nobody would train',
        'use another topology and less loss, or algorithm.kind = "async-el"',
    ),
    Rule(
        asynchronous(ENDS_BY_TRAFFIC),
        NOBODY_SENDS,
        'clock.megabytes = {f.clock.megabytes:g} is never reached where nobody sends (topology.kind = "{f.kind}"): the run would never end',
        "use clock.stop or rounds",
    ),
    Rule(
        SAME_NEIGHBOURS,
        CHANGING,
        'algorithm.kind = "{f.method}" needs the same neighbours in all rounds, and topology.kind = "{f.kind}" changes them',
        'use a static topology, or algorithm.kind = "local-sgd" with [compression] kind = "random-k", which needs no memory',
    ),
    Rule(
        STRICT_WEIGHTS,
        MIXING,
        'mixing = "{f.mixing}" has no meaning for algorithm.kind = "{f.method}", which has weights of its own',
        "leave it out",
    ),
    # scripts of the users' own
    Rule(
        OWN_LOOP,
        SIMULATED,
        'algorithm.kind = "own-loop" is trained by a script of your own, which a simulation has not',
        'start it with: epidemic cluster up FILE --script train.py; or use algorithm.kind = "local-sgd"',
    ),
    Rule(
        OWN_LOOP,
        CLOCK,
        '[clock]: nobody knows how long a script of your own (algorithm.kind = "own-loop") computes',
        "leave it out; network.close says how long deployed nodes wait",
    ),
    Rule(
        OWN_LOOP,
        TRAINED_HERE,
        '{f.training_setting} has no meaning for algorithm.kind = "own-loop", whose data and model are in your script',
        "leave it out",
    ),
    Rule(
        OWN_LOOP,
        BY_SAMPLES,
        'mixing = "samples": nobody counts the samples of a script of your own (algorithm.kind = "own-loop")',
        'use mixing = "uniform"',
    ),
    Rule(
        PROCESS,
        OWN_LOOP,
        'algorithm.kind = "own-loop": a script is one node, so that {f.hosted} nodes cannot share a process',
        "give each its own",
    ),
    # how models travel, and what can happen to them
    Rule(ALL_REDUCE, SINGLE_FAULTS, WHOLE_SUM[0].replace("{fault}", "{f.single_fault}"), WHOLE_SUM[1]),
    Rule(REQUESTS, CAP, CAP_OF_REQUESTS[0].replace("{cap}", "{f.faults.cap}"), CAP_OF_REQUESTS[1]),
    Rule(
        RETRIES,
        NO_CAP,
        "faults.max_retries = {f.faults.max_retries} has no effect without faults.cap",
        "set a cap, or leave it out",
    ),
    Rule(
        BLIND,
        NOT_MESSAGES,
        'participation.links = "blind" sends messages to nodes that take no part, but in this topology models are requested or summed on their way',
        'use links = "aware"',
    ),
    Rule(
        BLIND,
        EXACT,
        'participation.links = "blind" loses messages, which this algorithm cannot bear',
        'use links = "aware"',
    ),
    Rule(
        LIVE_ONLY,
        EXACT,
        'participation.kind = "teleportation" hands models to nodes with state of their own, which this algorithm cannot bear',
        'use kind = "uniform"',
    ),
    # weights
    Rule(
        FOR_THE_GRAPH,
        REDIRECTS,
        'mixing = "{f.rule}" has no weight for the messages that faults.cap redirects',
        'use faults.max_retries = 0 or mixing = "uniform"',
    ),
    # the clock
    Rule(NO_CLOCK, ASYNCHRONOUS, "{f.free.no_rounds}", ""),
    Rule(
        CLOCK,
        REQUESTS,
        'topology.kind = "pull" asks for models, and nobody answers under a [clock]',
        'use topology.kind = "el-local"',
    ),
    Rule(
        CLOCK,
        ALL_REDUCE,
        'cost = "all-reduce" says what would be sent, and is not carried out under a [clock]',
        'use cost = "all-to-all"',
    ),
    Rule(
        CLOCK,
        ROUND_BOUND,
        "faults: under a [clock] only faults.loss can be had, because the others speak of rounds",
        "say when nodes are away by clock.churn, and leave out crashes, blocked, partitions and cap{f.cap_hint}",
    ),
    Rule(
        CLOCK,
        PARTIAL,
        "participation needs rounds that begin for all nodes at once, which a [clock] does not have",
        "use clock.churn to say when nodes are online",
    ),
    Rule(
        CLOSING,
        ASYNCHRONOUS,
        'clock.close has no meaning for algorithm.kind = "{f.method}", which has no rounds to close',
        "leave it out",
    ),
    Rule(
        CHURN,
        rounds(VIEWS),
        "topology.view advances by rounds and ignores absences by clock.churn",
        "leave out the view or the churn, or use rounds without a [clock] and faults.random_crashes",
    ),
    Rule(
        DEPLOYED_PROTOCOL,
        ASYNCHRONOUS,
        'clock.protocol = "deployed" is about rounds, and algorithm.kind = "{f.method}" has none',
        "leave it out",
    ),
    Rule(
        DEPLOYED_PROTOCOL,
        rounds(CLOCK_UNDEPLOYED),
        'clock.protocol = "deployed": clock.close.kind = "{f.close}" {f.closing.deployed}',
        "",
    ),
    Rule(
        DEPLOYED_PROTOCOL,
        rounds(CATCH_UP),
        'clock.close.catch_up: with clock.protocol = "deployed" nodes leave rounds out by themselves, when enough others are ahead',
        "leave it out",
    ),
    Rule(
        DEPLOYED_PROTOCOL,
        rounds(COMMITTED),
        'network.coin = "committed" is not simulated under a [clock] with protocol = "deployed"',
        'use "shared", or "private"',
    ),
    Rule(
        DEPLOYED_PROTOCOL,
        rounds(VIEWS),
        'clock.protocol = "deployed" does not simulate exchanges of views',
        'leave out topology.view, or use "plain"',
    ),
    Rule(
        DEPLOYED_PROTOCOL,
        rounds(BLIND_BARRIER),
        'clock.close.kind = "barrier" needs known in-neighbours',
        'leave out faults.cap and use network.coin = "shared", or use "adaptive"',
    ),
    Rule(
        PLAIN_ADAPTIVE,
        SYNCHRONOUS,
        'clock.close.kind = "adaptive" is a rule of deployed nodes',
        'use clock.protocol = "deployed" with it, or "deadline" with seconds',
    ),
    Rule(
        CHURN,
        rounds(WAITS_FOR_ALL),
        'clock.close.kind = "{f.close}" waits for every message, and clock.churn loses some: nodes would wait for ever',
        'use "deadline", "schedule", or "quorum" with a deadline',
    ),
    Rule(
        QUORUM_ALONE,
        LOSSES,
        "clock.close.q = {f.closing.q:g} may never be reached where messages get lost (clock.churn, faults.loss): give it a clock.close.deadline"
        " in seconds",
        "",
    ),
    Rule(
        CARRY,
        NOT_UNIFORM,
        'clock.close.late = "carry" needs uniform weights, and mixing is "{f.rule}" here',
        'use late = "drop" or mixing = "uniform"',
    ),
    Rule(
        LATE,
        EXACT,
        'clock.close.kind = "{f.close}" loses late messages, but this algorithm needs every message',
        'use "barrier" or "global"',
    ),
    # weights that must balance
    Rule(
        BALANCED,
        FAULTS,
        'faults.{f.fault}: algorithm.kind = "{f.method}" needs weights that add up to 1 for every sender, too, and they do not where messages are'
        " missing",
        'leave it out, or use algorithm.kind = "push-pull", whose senders keep what does not arrive',
    ),
    Rule(
        BALANCED,
        BY_SAMPLES,
        'mixing = "samples": algorithm.kind = "{f.method}" needs weights that add up to 1 for every sender, too',
        'leave it out, or use algorithm.kind = "local-sgd"',
    ),
    Rule(NATIVE, NO_NATIVE, *NEEDS_NATIVE),
    Rule(METROPOLIS, ONE_WAY, *NEEDS_BOTH_WAYS),
    Rule(
        BALANCED,
        UNBALANCED,
        'topology.kind = "{f.kind}" with mixing = "{f.rule}": algorithm.kind = "{f.method}" needs weights that add up to 1 for every sender, too,'
        " and on graphs like these all would agree on a wrong point",
        'use algorithm.kind = "push-pull", or el-oracle, ring, regular or another topology whose nodes send as many models as they receive',
    ),
    Rule(
        NEEDS_SYMMETRY,
        ASYMMETRIC,
        'topology.kind = "{f.kind}" with mixing = "{f.rule}": algorithm.kind = "{f.method}" needs symmetric weights (two nodes count each other'
        " alike), and diverges without them",
        'use algorithm.kind = "gradient-tracking", or el-oracle, ring, regular or another topology whose links go both ways',
    ),
    # smaller messages
    Rule(
        ALL_REDUCE,
        ANY_LOSSY,
        'topology.cost = "all-reduce" sums models on their way, which is impossible with compressed messages',
        'use cost = "all-to-all", or do not compress',
    ),
    Rule(
        DIFFERENCES,
        PARTIAL,
        "participation: this algorithm's messages are differences, and a node that misses one stays out of sync",
        'leave it out, or use algorithm.kind = "local-sgd" with [compression]',
    ),
    Rule(
        DIFFERENCES,
        FAULTS,
        "faults: this algorithm's messages are differences, and a node that misses one stays out of sync",
        'leave loss, crashes, blocked, partitions and cap out, or use algorithm.kind = "local-sgd" with [compression]',
    ),
    Rule(
        COMPRESSION,
        ASYNCHRONOUS,
        '{f.codec} is for methods with rounds, and algorithm.kind = "{f.method}" has none',
        'leave it out, or use algorithm.kind = "divshare", whose messages are parts of models',
    ),
    Rule(
        COMPRESSION,
        DIFFERENCES,
        "{f.codec}: this algorithm compresses its messages itself",
        "set algorithm.compressor and leave it out",
    ),
    Rule(
        LOSSY,
        NOT_MODELS,
        "{f.codec} is for algorithms whose messages are models that are averaged, and this one needs its messages exact",
        'leave it out, or use algorithm.kind = "local-sgd"',
    ),
    Rule(
        COUNTED_FILL,
        NATIVE,
        '{f.codec} with fill = "count" shares the weight of a coordinate anew, which has no meaning for the weights that a topology brings along',
        'use compression.fill = "own" or mixing = "uniform"',
    ),
    Rule(
        INNER_FRAGMENTS,
        WRAPPED,
        'topology.inner.kind = "fragments": parts of models go by all that is inside',
        "make it the outermost",
    ),
    Rule(
        FRAGMENTS,
        CLOCK,
        'topology.kind = "fragments" is for rounds without a [clock]',
        'under one use algorithm.kind = "divshare", whose messages are fragments',
    ),
    Rule(
        FRAGMENTS,
        VIEWS,
        'topology.kind = "fragments" draws links of each part among all nodes',
        "leave topology.inner.view out",
    ),
    Rule(
        FRAGMENTS,
        LOSSY,
        'topology.kind = "fragments" has messages of parts of models, which [compression] does not know',
        "leave one of them out",
    ),
    Rule(
        FRAGMENTS,
        NOT_MODELS,
        'topology.kind = "fragments" is for algorithms whose messages are models that are averaged',
        'use its inner topology alone, or algorithm.kind = "local-sgd"',
    ),
    Rule(
        FRAGMENTS,
        DIFFERENCES,
        'topology.kind = "fragments" is for algorithms whose messages are models that are averaged',
        'use its inner topology alone, or algorithm.kind = "local-sgd"',
    ),
    Rule(
        SAMPLES,
        OWN_WEIGHTS,
        'mixing = "samples" does not fit this algorithm, which needs "{f.wants}" weights',
        "leave it out",
    ),
    # a user's own algorithms
    Rule(
        FRAGMENTS,
        ASKS_WHOLE,
        'topology.kind = "fragments": this algorithm asks for messages as a whole (inbox.{f.asked_whole}), and none holds a whole model',
        f"{ASK_INSTEAD}, or use its inner topology alone",
    ),
    Rule(
        LOSSY,
        ASKS_SUMS,
        "[compression]: compressed messages can be averaged, not added up, and this algorithm asks inbox.sum",
        "leave [compression] out",
    ),
    Rule(
        UNEVEN_MIXING,
        LEAVES_WEIGHTS,
        'mixing = "{f.mixing}" would have no effect: this algorithm asks for the messages (inbox.each) and does not look at their weights',
        f"use heard.weights, leave mixing out, or {ASK_INSTEAD}",
    ),
    # aggregators
    Rule(
        UNWEIGHTED,
        NOT_UNIFORM,
        "{f.robust} takes all inputs alike, but {f.weighing}",
        'use mixing = "uniform", or aggregation.kind = "mean"',
    ),
    Rule(
        UNWEIGHTED,
        BY_AGE,
        '{f.robust} takes all inputs alike, but {f.aging}.close.weight = "age" lets late ones count less',
        'use weight = "fresh", or aggregation.kind = "mean"',
    ),
    Rule(
        NOT_AVERAGE,
        asynchronous(NO_AVERAGE),
        '{f.robust} replaces the average of a node\'s model and those that it received, and algorithm.kind = "{f.method}" has none of whole models',
        'leave it out, or use algorithm.kind = "async-el"',
    ),
    Rule(
        NOT_AVERAGE,
        rounds(NO_AVERAGE),
        '{f.robust} replaces an average, and algorithm.kind = "{f.method}" needs its weighted sums as they are (it does not ask inbox.aggregate)',
        'leave it out, or use algorithm.kind = "local-sgd" or "qg-momentum"',
    ),
    Rule(
        NOT_OF_PAIRS,
        PAIRS,
        '{f.robust} says nothing of two models, which is what algorithm.kind = "{f.method}" merges at a time',
        'leave it out, or use algorithm.kind = "async-el", which takes all that came',
    ),
    Rule(
        NOT_AVERAGE,
        ALL_REDUCE,
        '{f.robust} needs single models, but topology.cost = "all-reduce" sums them on their way',
        'use cost = "all-to-all"',
    ),
    Rule(
        NOT_AVERAGE,
        SOME_NUMBERS,
        "{f.robust} needs every number of each model, and {f.codec} sends some of them",
        'use "int8" or "float16"',
    ),
    Rule(
        WHOLE_MODELS,
        FRAGMENTS,
        '{f.robust} needs whole models, and topology.kind = "{f.kind}" sends their parts separate ways',
        'use its inner topology alone, or a rule that goes by coordinates ("trimmed-mean", "median")',
    ),
    Rule(
        NOT_AVERAGE,
        TOO_FEW_NODES,
        "{f.robust} needs {f.aggregator.fewest} models, and nodes = {f.nodes} is all there are: every node would keep its own",
        "use more nodes, or leave fewer out",
    ),
    Rule(
        NOT_AVERAGE,
        REDIRECTS,
        "{f.robust} tolerates as many liars as the round's graph lets through, and the messages that faults.cap redirects follow no graph",
        "use faults.max_retries = 0",
    ),
    Rule(
        MANY_WHOLE,
        COMPLETE,
        "{f.robust} compares all models that a node receives, and nodes = {f.nodes} that all send to all are more than {limit[whole]}",
        'use topology.kind = "el-oracle", or a rule that goes by coordinates ("trimmed-mean", "median")',
    ),
    # adversaries
    Rule(
        DEPLOYED,
        ADVERSARY,
        "[adversary] is for simulations: deployed nodes run the protocol as it is",
        "leave it out",
    ),
    Rule(
        ADVERSARY,
        RANKS,
        "{f.hostile} looks at models of all nodes, and {f.ranks} ranks have a part each",
        "run it in one process",
    ),
    Rule(
        ADVERSARY,
        rounds(CLOCK),
        "[adversary] sees what honest nodes are about to send in a round, and under a [clock] they do not send together",
        "leave [clock] out",
    ),
    Rule(
        ADVERSARY,
        ASYNCHRONOUS,
        '[adversary] sees what honest nodes are about to send in a round, and algorithm.kind = "{f.method}" has none',
        'use algorithm.kind = "local-sgd"',
    ),
    Rule(
        ADVERSARY,
        NOT_MODELS,
        '{f.hostile} sends models, and messages of algorithm.kind = "{f.method}" are something else, or must all arrive',
        'use algorithm.kind = "local-sgd" or "qg-momentum"',
    ),
    Rule(
        ADVERSARY,
        BALANCED,
        'algorithm.kind = "{f.method}" needs weights that add up to 1 for every sender, too, which malicious ones do not keep to',
        'use algorithm.kind = "local-sgd" or "qg-momentum"',
    ),
    Rule(
        ADVERSARY,
        DIFFERENCES,
        '{f.hostile} sends models, and messages of algorithm.kind = "{f.method}" are differences',
        'use algorithm.kind = "local-sgd" or "qg-momentum"',
    ),
    Rule(
        ADVERSARY,
        ALL_REDUCE,
        'topology.cost = "all-reduce" has no messages that could be malicious: models are added up on their way',
        'use cost = "all-to-all"',
    ),
    Rule(
        ADVERSARY,
        FRAGMENTS,
        '{f.hostile} sends whole models, and topology.kind = "{f.kind}" sends their parts separate ways',
        "use its inner topology alone",
    ),
    Rule(
        ADVERSARY,
        COMPRESSION,
        "{f.hostile} sends models as they are, and [compression] makes them smaller",
        "leave one of them out",
    ),
    Rule(
        ADVERSARY,
        BY_SAMPLES,
        'mixing = "samples" goes by what nodes say of themselves, and malicious ones can say anything',
        'use mixing = "uniform"',
    ),
    Rule(
        ADVERSARY,
        LIVE_ONLY,
        'participation.kind = "teleportation" hands models from node to node, and a malicious one would hand over anything',
        'use kind = "uniform"',
    ),
    Rule(
        ADVERSARY,
        ADOPTS,
        'faults.on_return = "adopt" gives a returning node the model of a single other one, which may be malicious',
        'use on_return = "keep"',
    ),
    Rule(
        DATA_OF_THE_HONEST,
        SAID_SHARES,
        'partition.kind = "explicit" says the share of every node, and malicious ones hold none',
        'use adversary.data = "all"',
    ),
    Rule(
        OF_A_STATIC_GRAPH,
        CHANGING,
        '{f.hostile} needs one graph for all rounds, and topology.kind = "{f.kind}" changes it',
        "use a static topology (ring, torus, regular, complete)",
    ),
    Rule(
        OF_A_STATIC_GRAPH,
        ONE_WAY,
        '{f.hostile} needs links that go both ways, and some of topology.kind = "{f.kind}" go one way only',
        "use ring, torus, regular or complete",
    ),
    # ranks
    Rule(
        RANKS,
        OWN_DATA,
        'network.data = "own" is for deployed nodes',
        'run it in one process, or use "partition"',
    ),
    Rule(
        RANKS,
        ASYNCHRONOUS,
        'algorithm.kind = "{f.method}" has no rounds and cannot run on {f.ranks} ranks',
        "run it in one process",
    ),
    Rule(
        RANKS,
        CLOCK,
        "[clock]: an experiment under the simulated clock cannot run on {f.ranks} ranks",
        "run it in one process, or leave [clock] out",
    ),
    Rule(
        RANKS,
        ANY_LOSSY,
        "{f.said_codec}: compressed messages cannot be mixed on {f.ranks} ranks",
        "run it in one process, or do not compress",
    ),
    Rule(
        RANKS,
        FRAGMENTS,
        'topology.kind = "fragments" cannot run on {f.ranks} ranks',
        "run it in one process, or use its inner topology",
    ),
    Rule(
        RANKS,
        LIVE_ONLY,
        'participation.kind = "teleportation" cannot run on {f.ranks} ranks',
        "run it in one process",
    ),
    # deployments
    Rule(
        deployed(VIEWS),
        NOT_PRIVATE,
        "topology.view: deployed nodes that know a part of the others only draw their targets by themselves",
        "use --set network.coin=private",
    ),
    Rule(
        DEPLOYED,
        LARGE_VIEWS,
        "topology.view: exchanges of {f.most_entries} entries are more than {limit[entries]}, the most that a deployed node takes",
        "use smaller views",
    ),
    Rule(
        DEPLOYED,
        REQUESTS,
        'topology.kind = "pull" asks for models, which is not implemented in deployments',
        'use topology.kind = "el-local"',
    ),
    Rule(
        DEPLOYED,
        ALL_REDUCE,
        'cost = "all-reduce" says what would be sent, and is not carried out in a deployment',
        'use cost = "all-to-all"',
    ),
    Rule(
        DEPLOYED,
        DRAWN_FAULTS,
        "faults.{f.drawn_fault} is drawn by the simulator only; on a network things go wrong by themselves: leave it out",
        "",
    ),
    Rule(
        DEPLOYED,
        PARTIAL,
        "participation is drawn by the simulator only; on a real network nodes leave and return by themselves: remove it",
        "",
    ),
    Rule(
        DEPLOYED,
        FRAGMENTS,
        'topology.kind = "fragments" is for simulations',
        'deployed nodes send parts of models with algorithm.kind = "divshare"',
    ),
    Rule(
        deployed(ASYNCHRONOUS),
        NO_STOP,
        'algorithm.kind = "{f.method}" has no rounds after which a deployed run would end: give it clock.stop, in seconds',
        "",
    ),
    Rule(
        deployed(ASYNCHRONOUS),
        MEGABYTES,
        "clock.megabytes = {f.clock.megabytes:g} is for simulations: no node knows what the others have sent",
        "leave it out, and use clock.stop",
    ),
    Rule(
        DEPLOYED,
        rounds(ENDS),
        "clock.{f.clock_end} is for simulations: deployed rounds end after rounds = {f.rounds}",
        "leave it out",
    ),
    Rule(
        DEPLOYED,
        CHURN,
        "clock.churn is drawn by the simulator only; on a real network nodes leave and return by themselves: remove it",
        "",
    ),
    Rule(
        DEPLOYED,
        rounds(UNDEPLOYED_CLOSE),
        'clock.close.kind = "{f.close}" {f.closing.deployed}',
        "",
    ),
    Rule(
        DEPLOYED,
        rounds(OTHER_CLOSE),
        "clock.close = {f.simulated} and network.close = {f.deployed} contradict each other",
        "give both the same",
    ),
    Rule(
        deployed(ASYNCHRONOUS),
        NETWORK_CLOSE,
        'network.close.kind = "{f.network.close.kind}" has no meaning for algorithm.kind = "{f.method}", which has no rounds to close',
        "leave it out",
    ),
    Rule(DEPLOYED, NETWORK_UNDEPLOYED, 'network.close.kind = "{f.network.close.kind}" {f.network.close.deployed}', ""),
    Rule(
        DEPLOYED,
        NETWORK_QUORUM_ALONE,
        "network.close.q = {f.network.close.q:g} may never be reached where messages get lost: give it a network.close.deadline in seconds",
        "",
    ),
    Rule(
        DEPLOYED,
        NETWORK_CATCH_UP,
        "network.close.catch_up = true goes by a single message, which may lie",
        "deployed nodes leave rounds out by themselves, when enough others are ahead: leave it out",
    ),
    Rule(
        deployed(NETWORK_CARRY),
        NOT_UNIFORM,
        'network.close.late = "carry" needs uniform weights, and mixing is "{f.rule}" here',
        'use late = "drop" or mixing = "uniform"',
    ),
    Rule(
        deployed(EXACT),
        NOT_BARRIER,
        'algorithm.kind = "{f.method}" needs every message to arrive',
        'use network.close.kind = "barrier" instead of "{f.network.close.kind}"',
    ),
    Rule(
        deployed(COIN),
        NOT_EL_LOCAL,
        'network.coin = "{f.network.coin}" needs topology.kind = "el-local", where each node draws its own targets',
        'this one is "{f.kind}"',
    ),
    Rule(
        NOT_AVERAGE,
        deployed(PRIVATE),
        '{f.robust} tolerates as many liars as the round\'s graph lets through, and with network.coin = "private" they choose whom they send to',
        'use coin = "shared" or "committed", whose graphs receivers can check',
    ),
    Rule(
        deployed(COMMITTED),
        ASYNCHRONOUS,
        'network.coin = "committed" is a draw for each round, and algorithm.kind = "{f.method}" has no rounds',
        "use --set network.coin=private",
    ),
    Rule(
        deployed(COMMITTED),
        CAP,
        'network.coin = "committed" does not go with faults.cap: offers have no room for the proof that their receiver was drawn',
        "leave out the cap, or use --set network.coin=private",
    ),
    Rule(
        deployed(COMMITTED),
        MANY_ROUNDS,
        'network.coin = "committed" has a hash chain of at most {limit[rounds]} links, one for each round',
        "rounds = {f.rounds} are more: use fewer, or --set network.coin=private",
    ),
    Rule(
        deployed(BARRIER),
        CAP,
        'network.close.kind = "barrier" cannot wait for models that faults.cap turns away',
        'use "adaptive"',
    ),
    Rule(
        PROCESS,
        VIEWS,
        "topology.view: every node has connections of its own, so that {f.hosted} nodes cannot share a process",
        "give each its own",
    ),
)


def refusals(
    experiment: Experiment, host: str = "simulation", *, ranks: int = 2, hosted: int = 1
) -> Iterator[tuple[Rule, str]]:
    """All rules that an experiment breaks on a host, with their messages.

    Args:
        experiment: An experiment whose single values are valid.
        host: One of `HOSTS`.
        ranks: The number of processes that share a simulation.
        hosted: The number of nodes of a deployed process.
    """
    facts = Facts(experiment, host, ranks, hosted)
    return ((rule, rule.line(facts)) for rule in RULES if rule.one(facts) and rule.other(facts))


def require_compatible(experiment: Experiment, host: str = "simulation", *, ranks: int = 2, hosted: int = 1) -> None:
    """Raise Incompatible, a BadInput, with the first combination that does not work."""
    for _, line in refusals(experiment, host, ranks=ranks, hosted=hosted):
        raise Incompatible(line)
