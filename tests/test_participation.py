"""Laws of partial participation: who takes part, what becomes of messages, exact factors, travelling models, and runs from files."""

import itertools
import json
import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import epidemic as ep
from epidemic import theory
from epidemic.callbacks import Callback
from epidemic.cli import main
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.deploy.agreement import check_deployable
from epidemic.faults import Crash, Faults, RandomCrashes, Split
from epidemic.participation import BernoulliParticipation as Bernoulli
from epidemic.participation import Everybody, Teleportation
from epidemic.participation import UniformParticipation as Uniform
from epidemic.record import HEADER_BYTES
from epidemic.runtime.plan import plan_round
from epidemic.runtime.saved_models import export_model

STREAMS = Streams(1)


def experiment(n=96, topology=None, participation=None, **changes):
    fields = {
        "nodes": n, "rounds": 6, "topology": topology or ep.ELLocal(7), "participation": participation or Everybody(),
        "algorithm": ep.LocalSGD(lr=0.1, local_steps=2, batch_size=4), "data": ep.Digits(), "partition": ep.IID(),
        "model": ep.Logistic(), "eval": ep.Eval(every=3, samples=100), "runtime": ep.Runtime(strategy="per-node"),
    }  # fmt: skip
    return ep.Experiment(**{**fields, **changes})


def plans(rounds, *arguments, **changes):
    planned = experiment(*arguments, **changes)
    return [plan_round(planned, STREAMS, t) for t in range(rounds)]


def factor(plan):
    """The mean over all directions of |W X|^2 / |X|^2, X without mean: |W - J|^2 / (n - 1)."""
    return float(((plan.weights.dense() - 1 / plan.weights.n) ** 2).sum()) / (plan.weights.n - 1)


# -- exact factors, on the planner that runs are made of --------------------------------------------------------------


@pytest.mark.parametrize(
    ("participation", "topology", "exact"),
    [
        (Uniform(48), ep.ELLocal(7), theory.beta_aware(96, 7, 48)),
        (Uniform(10), ep.ELLocal(7), theory.beta_aware(96, 7, 10)),
        (Uniform(48, links="blind"), ep.ELLocal(7), theory.beta_blind_of(96, 7, 48)),
        (Uniform(48, links="blind"), ep.ELOracle(7), theory.alpha_blind_of(96, 7, 48)),
        (Bernoulli(0.5, links="blind"), ep.ELLocal(7), theory.beta_blind(96, 7, 0.5)),
        (Bernoulli(0.8, links="blind"), ep.ELLocal(7), theory.beta_blind(96, 7, 0.8)),
        (Bernoulli(0.5, links="blind"), ep.ELOracle(7), theory.alpha_blind(96, 7, 0.5)),
    ],
)
def test_the_planner_has_the_exact_factors(participation, topology, exact):
    """5 sigma."""
    found = np.array([factor(plan) for plan in plans(120, 96, topology, participation)])
    assert abs(found.mean() - exact) < 5 * found.std(ddof=1) / math.sqrt(len(found))
    assert found.std() < 0.1


@pytest.mark.parametrize("m", [86, 48, 10])
def test_el_oracle_among_the_active_has_its_factor_in_every_round(m):
    for plan in plans(3, 96, ep.ELOracle(7), Uniform(m)):
        assert factor(plan) == pytest.approx(theory.alpha_aware(96, 7, m), abs=1e-12)
        assert plan.weights.dense().sum(axis=0) == pytest.approx(np.ones(96))  # the mean is kept


@pytest.mark.parametrize(
    ("participation", "exact"),
    [
        (Uniform(8), theory.beta_aware(12, 3, 8)),
        (Uniform(8, links="blind"), theory.beta_blind_of(12, 3, 8)),
        (Bernoulli(0.6, links="blind"), theory.beta_blind(12, 3, 0.6)),
    ],
)
def test_the_factor_is_the_same_wherever_the_models_differ(participation, exact):
    """A single model that differs, node 0's; 5 sigma."""
    x = np.full(12, -1 / 12)
    x[0] += 1
    made = plans(500, 12, ep.ELLocal(3), participation)
    found = [((plan.weights @ x[:, None]) ** 2).sum() / (x**2).sum() for plan in made]
    assert abs(np.mean(found) - exact) < 5 * np.std(found, ddof=1) / math.sqrt(len(found))


def test_everybody_takes_part_equally_often():
    for participation, share in ((Uniform(8), 8 / 24), (Bernoulli(0.3), 0.3), (Teleportation(8), 8 / 24)):
        times = sum(plan.delivery.alive for plan in plans(250, 24, ep.ELLocal(3), participation))
        assert np.abs(times - 250 * share).max() < 5 * math.sqrt(250 * share * (1 - share))


def test_messages_to_those_who_take_no_part_are_wasted_in_their_share():
    sent = lost = 0
    for plan in plans(100, 96, ep.ELLocal(7), Uniform(48, links="blind")):
        assert plan.delivery.models_sent.sum() == 48 * 7
        sent, lost = sent + plan.delivery.models_sent.sum(), lost + plan.delivery.lost.sum()
    share = (96 - 48) / 95
    assert abs(lost / sent - share) < 5 * math.sqrt(share * (1 - share) / sent)
    for plan in plans(5, 96, ep.ELLocal(7), Uniform(48)):
        assert plan.delivery.lost.sum() == 0
        assert (plan.delivery.graph.out_degree[plan.delivery.alive] == 7).all()


def test_who_is_drawn_never_changes():
    assert Uniform(4).positions(12, 3, STREAMS).tolist() == [1, 4, 8, 10]
    assert Bernoulli(0.3).positions(12, 3, STREAMS).tolist() == [1, 4, 8, 10]
    assert Teleportation(4).positions(12, 3, STREAMS).tolist() == [4, 1, 10, 8]


# -- laws -------------------------------------------------------------------------------------------------------------

KINDS = [
    Uniform(9),
    Uniform(9, links="blind"),
    Bernoulli(0.5),
    Bernoulli(0.5, links="blind"),
    Teleportation(10),
    Uniform(16),
]


@st.composite
def fault_sets(draw):
    cap = draw(st.sampled_from([None, 0, 2, 99]))
    return Faults(
        crashes=tuple(
            Crash(i, at=at, returns=at + 2) for i, at in draw(st.sampled_from([(), ((1, 0), (2, 1), (3, 2))]))
        ),
        random_crashes=draw(st.sampled_from([None, RandomCrashes(0.3, rounds_down=2)])),
        blocked=draw(st.sampled_from([(), ((0, 1), (4, 7))])),
        partitions=draw(st.sampled_from([(), (Split(((0, 1, 2, 3, 4, 5),), start=1, end=4),)])),
        loss=draw(st.sampled_from([0.0, 0.3, 1.0])),
        cap=cap,
        max_retries=draw(st.sampled_from([0, 3, "unlimited"])) if cap is not None else Faults().max_retries,
    )


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(KINDS), fault_sets(), st.sampled_from([ep.ELLocal(4), ep.Complete()]), st.integers(0, 5))
def test_who_takes_no_part_neither_sends_nor_hears(participation, faults, topology, round):
    planned = experiment(16, topology, participation, faults=faults)
    plan = plan_round(planned, STREAMS, round)
    again = plan_round(planned, STREAMS, round)
    assert again.delivery.graph.digest() == plan.delivery.graph.digest()
    d, active = plan.delivery, np.zeros(16, dtype=bool)
    active[participation.positions(16, round, STREAMS)] = True
    assert (d.alive == (active & faults.alive(16, round, STREAMS))).all()
    g = d.graph.explicit()
    assert d.alive[g.senders].all()
    assert d.alive[g.receivers].all()
    for counted in (d.models_sent, d.offers_sent, d.refused, d.lost):
        assert not counted[~d.alive].any()
    if faults.cap in (0, 2):
        assert g.in_degree.max(initial=0) <= faults.cap
        assert (d.models_sent == g.out_degree).all()
        assert (d.offers_sent == g.out_degree + d.refused + d.lost).all()
    else:
        assert (d.models_sent == g.out_degree + d.lost).all()
        if participation.aware and not faults.loss:
            assert not d.lost.any()
    dense = plan.weights.dense()
    assert dense.sum(axis=1) == pytest.approx(np.ones(16))
    assert (dense[~d.alive] == np.eye(16)[~d.alive]).all()
    if not participation.live_only:
        assert d.alive[plan.returning].all()
        assert d.alive[plan.donors].all()


@pytest.mark.parametrize("participation", [Uniform(16), Uniform(16, links="blind"), Bernoulli(1.0), Teleportation(16)])
@pytest.mark.parametrize("topology", [ep.ELLocal(4), ep.Ring(), ep.ODEquiDyn()])
def test_if_everybody_takes_part_it_is_as_if_nothing_was_said(participation, topology):
    for with_all, plan in zip(plans(4, 16, topology, participation), plans(4, 16, topology), strict=True):
        assert with_all.delivery.graph.digest() == plan.delivery.graph.digest()
        assert (with_all.weights.dense() == plan.weights.dense()).all()
        assert len(with_all.returning) == 0


def test_all_models_that_travel_on_all_nodes_are_local_sgd():
    usual, travelling = (ep.simulate(experiment(12, ep.ELLocal(3), one)) for one in (Everybody(), Teleportation(12)))
    assert usual.records == travelling.records
    assert torch.equal(usual.models.rows, travelling.models.rows)


def test_weights_of_the_topology_go_along():
    """EquiTopo's weights and those of Metropolis and Hastings, among the active nodes; who takes no part keeps its model."""
    for topology, mixing in ((ep.ODEquiDyn(), "native"), (ep.Complete(), "metropolis-hastings")):
        plan = plans(1, 16, topology, Uniform(8), mixing=mixing)[0]
        positions = plan.delivery.alive.nonzero()[0]
        small = plans(1, 8, topology, mixing=mixing)[0].weights.dense()
        assert plan.weights.dense()[np.ix_(positions, positions)] == pytest.approx(small)


def test_few_active_nodes_hear_all_others_where_their_number_is_drawn():
    seen = set()
    for plan in plans(300, 8, ep.ELLocal(4), Bernoulli(0.3)):
        k = int(plan.delivery.alive.sum())
        seen.add(k)
        assert (plan.delivery.graph.out_degree[plan.delivery.alive] == min(4, max(k - 1, 0))).all()
    assert {0, 1, 2, 4, 6} <= seen


# -- travelling models ------------------------------------------------------------------------------------------------


def travel(plan, x):
    """A round without training."""
    x = x.copy()
    x[plan.returning] = x[plan.donors]
    return plan.weights @ x


def test_models_that_travel_average_exactly_on_their_seats():
    """One-peer exponential graphs among m = 8 positions of 24 nodes: after three rounds all live models are the mean of the first eight."""
    x = STREAMS("x").normals(24, 3)
    made = plans(4, 24, ep.OnePeerExponential(), Teleportation(8))
    first = made[0].delivery.alive
    mean = x[first].mean(axis=0)
    for plan in made[:3]:
        x = travel(plan, x)
    assert np.abs(x[made[2].delivery.alive] - mean).max() < 1e-14
    assert np.abs(x[~made[2].delivery.alive] - mean).max() > 0.1


def test_each_model_is_fetched_once():
    for plan in plans(20, 24, ep.ELLocal(3), Teleportation(8))[1:]:
        assert len(set(plan.returning.tolist())) == len(plan.returning) <= 8
        assert len(set(plan.donors.tolist())) == len(plan.donors)
        assert not set(plan.returning[plan.returning == plan.donors].tolist())
        assert plan.delivery.alive[plan.returning].all()


def test_where_the_holder_is_down_another_model_is_fetched():
    faults = Faults(
        random_crashes=RandomCrashes(0.15, rounds_down=2), partitions=(Split((tuple(range(12)),), start=5, end=9),)
    )
    made = plans(40, 24, ep.ELLocal(3), Teleportation(8), faults=faults)
    copied = 0
    for before, plan in itertools.pairwise(made):
        assert before.delivery.alive[plan.donors].all()  # they held one
        assert faults.alive(24, plan.round, STREAMS)[plan.donors].all()  # and can be asked
        if 5 <= plan.round < 9:
            assert ((plan.returning < 12) == (plan.donors < 12)).all()
        can_give = before.delivery.alive & faults.alive(24, plan.round, STREAMS)
        kept = can_give & plan.delivery.alive
        kept[plan.returning] = False
        if can_give.any() and not 5 <= plan.round < 9:  # then everybody has a live model
            assert len(plan.returning) + kept.sum() == plan.delivery.alive.sum()
        copied += len(plan.donors) - len(set(plan.donors.tolist()))
    assert copied > 0


def test_only_live_models_are_judged(tmp_path):
    run = ep.simulate(experiment(12, ep.ELLocal(3), Teleportation(5), eval=ep.Eval(every=1, samples=100)), tmp_path)
    last = plan_round(experiment(12, ep.ELLocal(3), Teleportation(5)), STREAMS, 5).delivery.alive
    final = json.loads((tmp_path / "seed-1" / "nodes.json").read_text())
    accuracies = np.array([node["final_accuracy"] for node in final])
    assert run.seeds[0].summary.final_accuracy.mean == pytest.approx(accuracies[last].mean())
    assert run.seeds[0].summary.final_accuracy.min == pytest.approx(accuracies[last].min())
    assert [r.alive for r in run.records[1:]] == [5] * 6
    average = run.seeds[0].summary.final_mean_model_accuracy
    assert accuracies[~last] == pytest.approx(np.full(7, average), abs=0.02)  # who holds none is given the average
    assert export_model(tmp_path / "seed-1", None).keys() == run.models[0].keys()
    for name, mean in export_model(tmp_path / "seed-1", None).items():
        live = torch.stack([run.models[int(i)][name] for i in np.flatnonzero(last)]).double().mean(0)
        assert mean.double().numpy() == pytest.approx(live.numpy(), abs=1e-6)
    assert all(r.living is None for r in run.records)
    assert sum(node["rounds"] for node in final) == 5 * 6


def test_fetching_costs_the_holder_a_model():
    travelling = experiment(12, ep.Isolated(), Teleportation(5))
    run = ep.simulate(travelling)
    fetched = sum(len(plan_round(travelling, STREAMS, t).donors) for t in range(6))
    assert fetched > 15
    assert run.records[-1].bytes.model.mean * 12 == pytest.approx(fetched * 4 * 650)


# -- runs -------------------------------------------------------------------------------------------------------------


class Watch(Callback):
    def __init__(self):
        self.models, self.plans = [], []

    def started(self, setup, learner, rounds_done):
        self.models.append(setup.initial.repeat(setup.experiment.nodes, 1))

    def planned(self, plan, index):
        self.plans.append(plan)

    def advanced(self, rounds_done, x):
        self.models.append(x.clone())


def test_who_takes_no_part_stands_still():
    watch = Watch()
    ep.simulate(experiment(12, ep.ELLocal(3), Uniform(6, links="blind")), callbacks=watch)
    for plan, before, after in zip(watch.plans, watch.models[:-1], watch.models[1:], strict=True):
        moved = (before != after).any(dim=1).numpy()
        assert (moved == plan.delivery.alive).all()


FILE = """
name = "some"
nodes = 12
rounds = 9
topology = {kind = "el-local", s = 3}
data = {kind = "digits"}
partition = {kind = "iid"}
model = {kind = "logistic"}
algorithm = {lr = 0.1, local_steps = 2, batch_size = 4, momentum = 0.5}
eval = {every = 2, samples = 100}
checkpoint = {rounds = 1}
runtime = {strategy = "per-node"}
"""

TABLES = [
    'kind = "uniform"\nm = 6',
    'kind = "uniform"\nm = 6\nlinks = "blind"',
    'kind = "bernoulli"\np = 0.5',
    'kind = "bernoulli"\np = 0.5\nlinks = "blind"',
    'kind = "teleportation"\nm = 6',
]


def outcome(directory):
    names = ("records.jsonl", "models.safetensors", "summary.json", "nodes.json")
    return {name: (directory / "seed-1" / name).read_bytes() for name in names}


@pytest.mark.parametrize("table", TABLES)
def test_a_run_from_a_file_and_going_on_with_it(tmp_path, table):
    """Interrupted after five rounds, or ended after five and lengthened: the same bytes."""
    file = tmp_path / "some.toml"
    file.write_text(f"{FILE}\n[participation]\n{table}\n")
    assert main(["run", str(file), "--out", str(tmp_path / "whole"), "--quiet"]) == 0
    whole = outcome(tmp_path / "whole")

    class Stop(Callback):
        def advanced(self, rounds_done, x):
            if rounds_done == 5:
                raise KeyboardInterrupt

    with pytest.raises(ep.Interrupted):
        ep.simulate(file, tmp_path / "parts", callbacks=Stop())
    assert main(["run", "--resume", str(tmp_path / "parts"), "--quiet"]) == 0
    assert outcome(tmp_path / "parts") == whole
    assert main(["run", str(file), "--out", str(tmp_path / "more"), "--quiet", "--set", "rounds=5"]) == 0
    assert main(["run", "--resume", str(tmp_path / "more"), "--quiet", "--set", "rounds=9"]) == 0
    assert outcome(tmp_path / "more")["models.safetensors"] == whole["models.safetensors"]

    records = [json.loads(line) for line in whole["records.jsonl"].splitlines()]
    nodes = json.loads(whole["nodes.json"])
    assert all(node["steps"] == 2 * node["rounds"] for node in nodes)
    assert sum(node["rounds"] for node in nodes) < 12 * 9
    assert ("wasted" in records[-1]["bytes"]) == ("blind" in table)
    if "blind" in table:
        wasted = records[-1]["bytes"]["wasted"]["mean"] * 12
        assert wasted % (4 * 650 + HEADER_BYTES) == 0
        assert 0 < wasted < records[-1]["bytes"]["total"]["mean"] * 12
    living = "teleportation" not in table
    assert ("living" in records[-1]) == ("final_living_accuracy" in json.loads(whole["summary.json"])) == living
    if "bernoulli" not in table:
        assert main(["report", str(tmp_path / "whole")]) == 0
        page = (tmp_path / "whole" / "report.html").read_text()
        assert ("of those in the last round" in page) == living
    rows = ep.read_results(tmp_path / "whole").rows()
    assert ("living_accuracy" in rows[-1]) == living


def test_topologies_with_weights_of_their_own_bear_rounds_in_which_hardly_anybody_takes_part():
    """Found by random experiments: with weights of the topology's own, a round of one node or none ended the run."""
    experiment = ep.Experiment(
        nodes=6, rounds=12, topology=ep.OUEquiDyn(), participation=ep.BernoulliParticipation(p=0.2), model=ep.Logistic(),
        data=ep.Synthetic(features=3, classes=3, samples=60), eval=ep.Eval(samples=8),
    )  # fmt: skip
    assert ep.simulate(experiment).records[-1].round == 12


def test_a_table_is_read_back_as_it_was_and_left_out_for_everybody():
    for table in TABLES:
        tables = {**msgspec.toml.decode(FILE.encode()), "participation": msgspec.toml.decode(table.encode())}
        read = ep.experiment.files.experiment_from(tables)
        assert ep.experiment.files.experiment_from(read.table()) == read
    assert "participation" not in experiment().table()
    assert experiment(participation=Everybody()) == experiment()


def test_push_sum_among_those_who_take_part_keeps_its_mass():
    found = ep.simulate(
        experiment(12, ep.ELLocal(4), Uniform(8), algorithm=ep.PushSum(lr=1e-9, batch_size=4), rounds=10)
    )
    assert found.records[-1].loss.sd < 1e-3
    for plan in plans(4, 12, ep.ELLocal(4), Uniform(8)):
        split = plan.weights.ones.dense() / (1 + plan.delivery.graph.out_degree)
        assert split.sum(axis=0) == pytest.approx(np.ones(12))


def test_a_node_that_returns_takes_a_model_in_a_round_in_which_it_takes_part():
    faults = Faults(random_crashes=RandomCrashes(0.2, rounds_down=1))
    fetched = [len(plan.returning) for plan in plans(60, 16, ep.ELLocal(3), Uniform(8), faults=faults)]
    usual = [len(plan.returning) for plan in plans(60, 16, ep.ELLocal(3), faults=faults)]
    assert 0 < sum(fetched) < sum(usual)


# -- what cannot be had -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(0), "participation.m = 0 must be at least 1"),
        (lambda: Uniform(4, links="seen"), "participation.links = 'seen' is not known"),
        (lambda: Bernoulli(0.0), "participation.p = 0.0 must be greater than 0"),
        (lambda: Bernoulli(1.5), "participation.p = 1.5 must be at most 1"),
        (lambda: experiment(12, ep.ELLocal(3), Uniform(13)), "participation.m = 13 must be at most nodes = 12"),
        (
            lambda: experiment(12, ep.ELLocal(3), Uniform(3)),
            "among 3 nodes that take part the topology does not exist (topology.s = 3 must be at most nodes - 1 = 2); use another m, or"
            ' participation.links = "blind"',
        ),
        (lambda: experiment(12, ep.ELOracle(3), Uniform(7)), "nodes * s even"),
        (lambda: experiment(12, ep.ELOracle(3), Bernoulli(0.5)), 'use kind = "uniform" with an m that does'),
        (lambda: experiment(12, ep.Ring(), Uniform(6)), 'graphs that stay; use links = "blind", kind = "teleportation"'),
        (lambda: experiment(12, ep.Torus(), Uniform(9)), 'graphs that stay; use links = "blind"'),
        (lambda: experiment(12, ep.Torus(), Bernoulli(0.5)), 'graphs that stay; use links = "blind"'),
        (lambda: experiment(12, ep.Every(ep.ELLocal(3), period=2), Uniform(6)), "graphs that stay"),
        (lambda: experiment(12, ep.Torus(), Teleportation(8)), "use another m, or another topology"),
        (
            lambda: experiment(12, ep.ELLocal(4), Uniform(6, links="blind"), algorithm=ep.PushSum()),
            'this algorithm cannot bear; use links = "aware"',
        ),
        (
            lambda: experiment(12, ep.ELLocal(4), Teleportation(6), algorithm=ep.PushSum()),
            'this algorithm cannot bear; use kind = "uniform"',
        ),
        (
            lambda: experiment(12, ep.ELLocal(4), Uniform(6), clock=ep.Clock()),
            "participation needs rounds that begin for all nodes at once, which a [clock] does not have; use clock.churn to say when nodes are online",
        ),
        (lambda: experiment(12, participation="all"), "participation = 'all' must be Participation(...)"),
        (
            lambda: check_deployable(experiment(12, ep.ELLocal(4), Uniform(6))),
            "participation is drawn by the simulator only; on a real network nodes leave and return by themselves: remove it",
        ),
    ],
)  # fmt: skip
def test_the_impossible_is_refused(make, message):
    with pytest.raises(BadInput) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("topology", "participation"),
    [
        (ep.Complete(), Uniform(5)),
        (ep.Isolated(), Uniform(5)),
        (ep.Every(ep.Complete(), period=3), Uniform(5)),
        (ep.Ring(), Uniform(5, links="blind")),
        (ep.Torus(), Uniform(5, links="blind")),
        (ep.Ring(), Teleportation(5)),
        (ep.OnePeerExponential(), Uniform(5)),
        (ep.ELOracle(4), Bernoulli(0.5)),
    ],
)
def test_what_can_be_had_runs(topology, participation):
    run = ep.simulate(experiment(12, topology, participation, rounds=2, eval=ep.Eval(every=2, samples=20)))
    assert math.isfinite(run.records[-1].loss.mean)


@pytest.mark.parametrize(
    "table", [{"kind": "uniforn", "m": 3}, {"m": 3}, {"kind": "uniform"}, {"kind": "uniform", "n": 3}]
)
def test_mistakes_in_a_table_are_named(table):
    with pytest.raises(BadInput, match=r"participation\.(kind|m|n)"):
        ep.experiment.files.experiment_from({**msgspec.toml.decode(FILE.encode()), "participation": table})
