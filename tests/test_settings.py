"""Components are made by names: the first setting may go without, in all of them alike."""

import copy
import inspect
import pickle

import msgspec
import pytest

import epidemic as ep
from epidemic.adversary import ADVERSARIES
from epidemic.aggregation import AGGREGATORS, TrimmedMean
from epidemic.algorithms import ALGORITHMS, Tokens
from epidemic.clock import CHURNS, CLOSES, COMPUTES, LATENCIES
from epidemic.compression import CODECS, RandomK
from epidemic.core.errors import BadInput
from epidemic.core.settings import Settings
from epidemic.data import PARTITIONS, SOURCES
from epidemic.models import MODELS
from epidemic.participation import PARTICIPATIONS
from epidemic.peer_sampling import SERVICES
from epidemic.topology import TOPOLOGIES

REGISTRIES = (
    *(
        ADVERSARIES,
        AGGREGATORS,
        ALGORITHMS,
        CHURNS,
        CLOSES,
        CODECS,
        COMPUTES,
        LATENCIES,
        MODELS,
        PARTICIPATIONS,
        PARTITIONS,
    ),
    *(SERVICES, SOURCES, TOPOLOGIES),
)
KINDS = [cls for registry in REGISTRIES for cls in registry.values()]
TABLES = [ep.Experiment, ep.Clock, ep.Network, ep.Runtime, ep.Eval, ep.Checkpoint, ep.Faults, ep.Crash, Tokens]


@pytest.mark.parametrize("cls", [*KINDS, *TABLES], ids=lambda cls: cls.__name__)
def test_at_most_one_setting_may_go_without_its_name(cls):
    assert issubclass(cls, Settings)
    parameters = inspect.signature(cls).parameters.values()
    assert sum(p.kind is not p.KEYWORD_ONLY for p in parameters) <= 1
    assert {p.name for p in parameters} == set(cls.__struct_fields__)
    with pytest.raises(TypeError, match=rf"^{cls.__name__}\(\) (takes|has no settings)"):
        cls(1, 2)


@pytest.mark.parametrize(
    ("made", "name", "value"),
    [
        (ep.Dirichlet(1), "alpha", 1),  # not min_samples, which its base declares
        (ep.DirichletHsu(1), "alpha", 1),
        (ep.Shards(3), "shards", 3),
        (ep.ELLocal(7), "s", 7),
        (ep.Every(ep.Ring(), period=2), "inner", ep.Ring()),
        (ep.LocalSGD(0.1), "lr", 0.1),
        (TrimmedMean(2), "f", 2),
        (RandomK(0.25), "share", 0.25),
        (ep.MLP((8, 8)), "hidden", (8, 8)),
        (ep.Crash(3, at=1), "node", 3),
        (ep.UniformParticipation(8), "m", 8),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Settings) else str(x),
)
def test_the_first_is_the_one_that_people_mean(made, name, value):
    assert type(made).first_setting == name
    assert getattr(made, name) == value


def test_misuse_is_one_line_that_shows_how_it_is_done():
    with pytest.raises(TypeError) as caught:
        ep.Dirichlet(0.1, 10)
    said = "Dirichlet() takes one value without a name (alpha), but 2 were given; write Dirichlet(..., min_samples=...)"
    assert str(caught.value) == said
    with pytest.raises(TypeError, match=r"^Ring\(\) has no settings, but 1 was given$"):
        ep.Ring(3)
    with pytest.raises(
        TypeError, match=r"^Clock\(\) takes no value without a name, but 1 was given; write Clock\(comp"
    ):
        ep.Clock(3)
    with pytest.raises(TypeError, match="got s twice: without a name and as s="):
        ep.ELLocal(3, s=3)


def test_own_kinds_follow_the_same_rule():
    class Mine(ep.AsynchronousMethod, frozen=True):
        trust: float = 0.5

    assert Mine(0.2, trust=0.3) == Mine(lr=0.2, trust=0.3)
    with pytest.raises(TypeError, match="takes one value without a name"):
        Mine(0.2, 0.3)


@pytest.mark.parametrize(
    "made",
    [ep.Dirichlet(0.5, min_samples=2), ep.Clock(stop=3.0), ep.Experiment(rounds=3)],
    ids=lambda x: type(x).__name__,
)
def test_copies_and_other_processes_make_the_same(made):
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made), made.replace()):
        assert again == made
        assert type(again) is type(made)
    assert msgspec.structs.replace(made) == made


def test_replace_gives_a_checked_value_and_leaves_the_old_one():
    old = ep.Experiment(rounds=5)
    new = old.replace(rounds=50, algorithm=old.algorithm.replace(lr=0.2))
    assert (old.rounds, new.rounds, new.algorithm.lr, new.nodes) == (5, 50, 0.2, old.nodes)
    with pytest.raises(BadInput, match="rounds = -1"):
        old.replace(rounds=-1)
    with pytest.raises(BadInput):
        old.replace(nodes=7, topology=ep.ELLocal(7))
    with pytest.raises(TypeError, match=r"Experiment has no setting 'round'.*rounds"):
        old.replace(round=50)


NAMESPACES = {
    **{"topology": TOPOLOGIES, "algorithms": ALGORITHMS, "aggregation": AGGREGATORS, "data": SOURCES, "models": MODELS},
    **{"compression": CODECS, "peer_sampling": SERVICES, "participation": PARTICIPATIONS},
}


@pytest.mark.parametrize("name", NAMESPACES)
def test_every_kind_is_in_the_namespace_of_its_axis(name):
    namespace = getattr(ep, name)
    for cls in NAMESPACES[name].values():
        assert getattr(namespace, cls.__name__) is cls


def test_partitions_and_parts_of_the_clock_have_a_namespace():
    for cls in (*PARTITIONS.values(), *CHURNS.values(), *CLOSES.values(), *COMPUTES.values(), *LATENCIES.values()):
        assert getattr(ep.data if cls in PARTITIONS.values() else ep.clock, cls.__name__) is cls
    assert issubclass(ep.faults.Faults, Settings)


def test_the_top_shows_the_names_of_daily_use_and_the_namespaces():
    shown = set(dir(ep))
    assert {
        "Experiment",
        "simulate",
        "compare",
        "sweep",
        "load",
        "read_results",
        "ELLocal",
        "ELOracle",
        "Dirichlet",
    } <= shown
    assert NAMESPACES.keys() <= shown <= set(ep.__all__)
    assert len(shown) < 50 < len(ep.__all__)


@pytest.mark.parametrize("name", ["simulate", "compare", "sweep", "load", "read_results"])
def test_no_any_in_signatures_of_functions_of_daily_use(name):
    signature = inspect.signature(getattr(ep, name))
    said = [str(p.annotation) for p in signature.parameters.values()] + [str(signature.return_annotation)]
    assert not [one for one in said if "Any" in one]


@pytest.mark.parametrize(
    "cls", [ep.Run, ep.RunSummary, ep.Comparison, ep.Sweep, ep.SeedRun, ep.Models, ep.Graph, ep.Streams]
)
def test_no_any_in_signatures_of_what_they_return(cls):
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(function):
            assert "Any" not in str(inspect.signature(function)), name
