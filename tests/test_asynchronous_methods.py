"""Methods without rounds: their tables, what they refuse, and that they know no clock, tensor or dice."""

import ast
from pathlib import Path

import numpy as np
import pytest

import epidemic as ep
from epidemic.algorithms import ALGORITHMS, AsynchronousMethod, algorithm_from, check_algorithm
from epidemic.algorithms.asynchronous import MessageKind
from epidemic.core.config import to_table
from playing import PERIOD, World, el_local

FREE = {kind: method for kind, method in ALGORITHMS.items() if issubclass(method, AsynchronousMethod)}


def test_the_methods_are_known_by_kind():
    assert set(FREE) == {"async-el", "gossip-learning", "ad-psgd", "divshare"}
    assert [algorithm_from({"kind": kind}) for kind in FREE] == [method() for method in FREE.values()]


@pytest.mark.parametrize(
    "method",
    [
        ep.AsyncEL(lr=0.1, order="mix-first", wait=True, queue="keep"),
        ep.GossipLearning(
            period=0.5, jitter=0.1, variant="rw", capacity=3, parts=4, tokens=ep.Tokens("randomised", A=10, C=20)
        ),
        ep.ADPSGD(patience=5.0, momentum=0.9),
        ep.DivShare(fragments=4, order="mix-first"),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_table_gives_the_settings_back(method):
    assert algorithm_from(to_table(method)) == method


def test_messages_say_how_many_parts_and_numbers_they_have():
    assert [(m().parts, m().notes) for m in FREE.values()] == [(1, 0), (1, 1), (1, 1), (10, 0)]
    assert ep.GossipLearning(parts=4).parts == ep.DivShare(fragments=4).parts == 4


def test_messages_are_of_the_kinds_that_deployed_nodes_let_in():
    for method in (*(made() for made in FREE.values()), ep.GossipLearning(parts=3), ep.DivShare(fragments=1)):
        seen = set()

        class Noting(World):
            def happen(self, node, what, detail, seen=seen):
                if what == "received":
                    seen.add(MessageKind(detail.tag, detail.row is not None, detail.part is not None, len(detail.note)))
                super().happen(node, what, detail)

        Noting(method, [np.zeros(4)] * 4, el_local(4, 1), takes=lambda *_: 10).run(
            5 * PERIOD if method.called == "gossip-learning" else 100
        )
        assert seen == set(method.kinds)


@pytest.mark.parametrize("made", [*FREE.values(), lambda: ep.GossipLearning(parts=3, tokens=ep.Tokens("simple", C=4))])
def test_what_is_remembered_over_a_restart_goes_on_where_it_was(made):
    method = made()
    world = World(method, [np.zeros(4)] * 4, el_local(4, 1), takes=lambda *_: PERIOD // 3).run(9 * PERIOD)
    for node in world.nodes:
        again = method.node(node.context)
        again.restore(node.state())
        assert again.state() == node.state()
        assert all(isinstance(value, int) for value in node.state().values())
        assert getattr(again, "ages", None) == getattr(node, "ages", None)
    assert any(value for node in world.nodes for value in node.state().values())


@pytest.mark.parametrize("kind", FREE)
def test_without_a_clock_there_is_nothing_to_take_part_in(kind):
    for step in (lambda m: m.local_update({}, None, None), lambda m: m.aggregate({}, None)):
        with pytest.raises(ep.BadInput, match=f'"{kind}" has no rounds and needs time: add a \\[clock\\] table'):
            step(FREE[kind]())


# -- topologies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FREE)
@pytest.mark.parametrize(
    "topology",
    [ep.ELLocal(1), ep.Complete(), ep.Ring(), ep.Regular(4), ep.Every(ep.Ring(), period=5), ep.UEquiStatic(4)],
)
def test_nodes_choose_among_random_others_or_static_neighbours(kind, topology):
    ep.Experiment(nodes=16, algorithm=FREE[kind](), topology=topology, clock=ep.Clock())


@pytest.mark.parametrize("kind", FREE)
@pytest.mark.parametrize(
    ("topology", "name"),
    [
        (ep.ELOracle(4), "el-oracle"),
        (ep.OnePeerExponential(), "one-peer-exponential"),
        (ep.Every(ep.ELLocal(1), period=5), "every"),
    ],
)
def test_a_topology_with_a_graph_for_each_round_is_refused(kind, topology, name):
    with pytest.raises(ep.BadInput) as problem:
        ep.Experiment(nodes=16, algorithm=FREE[kind](), topology=topology, clock=ep.Clock())
    assert str(problem.value) == (
        f'topology.kind = "{name}" has a graph for each round, but a node of algorithm.kind = "{kind}" has no rounds and draws'
        " its targets itself; use el-local or a static one (complete, ring, torus, regular)"
    )


@pytest.mark.parametrize("kind", FREE)
def test_weights_of_rounds_are_refused(kind):
    with pytest.raises(ep.BadInput, match=f'mixing = "uniform" has no meaning for algorithm.kind = "{kind}"'):
        ep.Experiment(nodes=16, algorithm=FREE[kind](), topology=ep.Complete(), mixing="uniform", clock=ep.Clock())


@pytest.mark.parametrize(
    ("method", "topology", "words"),
    [
        (ep.AsyncEL(wait=True), ep.Isolated(), 'wait = true needs a node that sends, but topology.kind = "none"'),
        (
            ep.ADPSGD(),
            ep.Isolated(),
            'topology.kind = "none" leaves algorithm.kind = "ad-psgd" no peer to exchange with',
        ),
        (ep.ADPSGD(), ep.ELLocal(7), 'topology.s = 7 must be 1 for algorithm.kind = "ad-psgd"'),
    ],
)
def test_what_a_method_cannot_have_is_refused(method, topology, words):
    with pytest.raises(ep.BadInput, match=words):
        check_algorithm(method, topology, "auto")


# -- settings --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"kind": "async-el", "order": "sendfirst"}, "algorithm.order = 'sendfirst' must be one of 'send-first', 'mix-first'"),
        ({"kind": "async-el", "wait": 1}, "algorithm.wait = 1 must be true or false"),
        ({"kind": "async-el", "patience": 3}, "algorithm.patience = 3 has no effect unless nodes wait"),
        ({"kind": "async-el", "patience": 0, "wait": True}, "algorithm.patience = 0.0 must be at least 1e-06"),
        ({"kind": "async-el", "fragments": 3}, "algorithm.fragments is not a known key"),
        ({"kind": "gossip-learning", "period": 0}, "algorithm.period = 0.0 must be at least 1e-06"),
        ({"kind": "gossip-learning", "jitter": 2}, "algorithm.jitter = 2.0 must be at most 1"),
        ({"kind": "gossip-learning", "capacity": 0}, "algorithm.capacity = 0 must be at least 1"),
        ({"kind": "gossip-learning", "capacity": 2, "on_busy": "drop"}, 'algorithm.capacity = 2 has no meaning with on_busy = "drop"'),
        ({"kind": "gossip-learning", "parts": 2, "variant": "um"}, 'algorithm.parts = 2 must be 1 with variant = "um"'),
        ({"kind": "gossip-learning", "tokens": 3}, "algorithm.tokens = 3 must be a table"),
        ({"kind": "gossip-learning", "tokens": {"B": 3}}, "algorithm.tokens.B is not a known key"),
        ({"kind": "gossip-learning", "tokens": {"strategy": "simple"}}, "algorithm.tokens.C is missing"),
        ({"kind": "gossip-learning", "tokens": {"strategy": "simple", "A": 2, "C": 3}}, "algorithm.tokens.A = 2 has no meaning"),
        ({"kind": "gossip-learning", "tokens": {"A": 5, "C": 3}}, "algorithm.tokens.A = 5 must be at most C = 3"),
        ({"kind": "gossip-learning", "tokens": {"A": 0, "C": 3}}, "algorithm.tokens.A = 0 must be at least 1"),
        ({"kind": "ad-psgd", "patience": -1}, "algorithm.patience = -1.0 must be at least 1e-06"),
        ({"kind": "divshare", "fragments": 0}, "algorithm.fragments = 0 must be at least 1"),
        ({"kind": "divshare", "lr": 0}, "algorithm.lr = 0.0 must be greater than 0"),
    ],
)  # fmt: skip
def test_bad_settings_get_one_line(table, line):
    with pytest.raises(ep.BadInput) as problem:
        algorithm_from(table)
    assert line in str(problem.value)
    assert "\n" not in str(problem.value)


def test_tokens_in_python_are_a_value_or_a_table():
    assert ep.GossipLearning(tokens={"strategy": "simple", "C": 3}).tokens == ep.Tokens("simple", C=3)
    with pytest.raises(ep.BadInput, match="is not a known key"):
        ep.GossipLearning(tokens={"D": 3})


# -- purity ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["asynchronous", "async_el", "gossip_learning", "ad_psgd", "divshare"])
def test_what_decides_knows_no_clock_tensor_or_dice(name):
    path = Path(ep.__file__).parent / f"algorithms/{name}.py"
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        imported |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
        imported |= {node.module} if isinstance(node, ast.ImportFrom) else set()
    assert not {module.split(".")[0] for module in imported} & {
        "torch",
        "numpy",
        "random",
        "time",
        "datetime",
        "threading",
    }
