"""Laws of the simulator."""

import gc
import importlib.util
import json
import math
import shutil
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import epidemic as ep
from epidemic import theory
from epidemic.algorithms import LocalSGD
from epidemic.callbacks import Callback
from epidemic.core.errors import BadInput, RunFailed
from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.core.workers import Workers
from epidemic.faults import Crash, Faults, RandomCrashes, Split
from epidemic.learner import PerNode
from epidemic.mixing import disagreement, weights
from epidemic.record import CONTROL_BYTES, HEADER_BYTES
from epidemic.runtime.mixing_arithmetic import mix
from epidemic.runtime.setup import prepare
from epidemic.simulator import simulation
from epidemic.topology import TOPOLOGIES, topology_from

ROOT = Path(__file__).parents[1]


STACKED, PER_NODE, AUTO = (ep.Runtime(strategy=strategy) for strategy in ("stacked", "per-node", "auto"))
both_strategies = pytest.mark.parametrize("runtime", [STACKED, PER_NODE], ids=["stacked", "per-node"])


def small(**changes):
    """12 nodes on the digits, quick.

    One model after the other, because tracing the stacked ones takes ten times as long as a run of this size; and never whichever was
    the faster, because two runs that must be equal would then depend on the clock.
    """
    fields = {
        "nodes": 12, "rounds": 6, "topology": ep.ELLocal(3), "algorithm": LocalSGD(lr=0.1, local_steps=2, batch_size=4),
        "data": ep.Digits(), "partition": ep.IID(), "model": ep.Logistic(), "eval": ep.Eval(every=3, samples=100),
        "runtime": PER_NODE,
    }  # fmt: skip
    return ep.Experiment(**{**fields, **changes})


class Watch(Callback):
    """Keeps what happens."""

    def __init__(self):
        self.models, self.plans, self.indices = [], [], []

    def started(self, setup, learner, rounds_done):
        self.setup, self.learner = setup, learner
        self.models.append(setup.initial.repeat(setup.experiment.nodes, 1))

    def planned(self, plan, index):
        self.plans.append(plan)
        self.indices.append(index)

    def advanced(self, rounds_done, x):
        self.models.append(x.clone())


def watched(experiment):
    watch = Watch()
    run = ep.simulate(experiment, callbacks=watch)
    return run, watch


def double(shape=64, classes=10):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(shape, classes)).double()


# -- learning laws ----------------------------------------------------------------------------------------------------


@both_strategies
def test_complete_topology_is_centralised_sgd(runtime):
    """One local step: everybody holds the model that SGD on the union of all batches gives."""
    algorithm = LocalSGD(lr=0.1, batch_size=4)
    experiment = small(topology=ep.Complete(), algorithm=algorithm, model=double(), runtime=runtime)
    run, watch = watched(experiment)
    plain = double()
    task = watch.setup.task
    for index in watch.indices:
        inputs, targets = task.batch(torch.from_numpy(index).flatten())
        loss = nn.functional.cross_entropy(plain(inputs), targets)
        plain.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in plain.parameters():
                p -= 0.1 * p.grad
    expected = task.layout.row(plain)
    assert (run.models.rows - expected).abs().max() < 1e-6
    assert run.records[-1].disagreement < 1e-20


@pytest.mark.parametrize(
    "topology", [ep.ELOracle(4), ep.Regular(4), ep.Ring(), ep.UEquiStatic(2), ep.Complete(), ep.ErdosRenyi()]
)
def test_doubly_stochastic_exchanges_preserve_the_mean_of_the_models(topology):
    _, watch = watched(small(topology=topology, model=double(), rounds=4))
    x = watch.models[2].clone()
    plan = watch.plans[2]
    mixed = mix(plan.weights, x, Workers(2), torch.empty_like(x))
    torch.testing.assert_close(mixed.mean(0), x.mean(0), atol=1e-12, rtol=0)


def test_el_local_with_everybody_is_complete():
    everybody = ep.simulate(small(topology=ep.ELLocal(11)))
    complete = ep.simulate(small(topology=ep.Complete()))
    assert torch.equal(everybody.models.rows, complete.models.rows)


def test_a_frozen_el_oracle_is_d_psgd_on_its_graph():
    frozen = ep.Every(ep.ELOracle(4), period=1000)

    class Fixed:
        def graph(self, n, round, streams):
            return ep.ELOracle(4).graph(n, 0, streams)

    assert torch.equal(
        ep.simulate(small(topology=frozen)).models.rows, ep.simulate(small(topology=Fixed())).models.rows
    )


@both_strategies
def test_combine_then_adapt_is_the_original_d_psgd(runtime):
    """X_new = W X - lr * gradient(X)."""
    algorithm = LocalSGD(lr=0.1, batch_size=4, order="combine-then-adapt")
    _, watch = watched(small(topology=ep.Ring(), algorithm=algorithm, model=double(), runtime=runtime))
    for t, (plan, index) in enumerate(zip(watch.plans, watch.indices, strict=True)):
        x = watch.models[t]
        _, gradient = PerNode(watch.setup.task, Workers(1)).gradients(
            x.clone(), torch.from_numpy(index[:, 0]), [0] * 12
        )
        expected = torch.from_numpy(plan.weights.dense()) @ x - 0.1 * gradient
        torch.testing.assert_close(watch.models[t + 1], expected, atol=1e-12, rtol=1e-12)


@both_strategies
def test_momentum_is_each_nodes_own(runtime):
    """Nobody talks: every node is plain SGD with momentum over all rounds."""
    algorithm = LocalSGD(lr=0.05, local_steps=2, batch_size=4, momentum=0.9, weight_decay=0.01)
    run, watch = watched(small(topology=ep.Isolated(), algorithm=algorithm, model=double(), runtime=runtime))
    plain = double()
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    for index in watch.indices:
        for r in range(2):
            inputs, targets = watch.setup.task.batch(torch.from_numpy(index[7, r]))
            optimiser.zero_grad()
            nn.functional.cross_entropy(plain(inputs), targets).backward()
            optimiser.step()
    torch.testing.assert_close(run.models.rows[7], watch.setup.task.layout.row(plain), atol=1e-12, rtol=1e-12)


def test_a_single_node_learns_alone():
    run = ep.simulate(small(nodes=1, topology=ep.Isolated(), rounds=40))
    assert run.seeds[0].summary.final_accuracy.mean > 0.7
    assert run.records[-1].bytes.total.max == 0


def test_the_paper_in_one_file_agrees_with_the_engine():
    """Same seed, same graphs, same batches, same models."""
    spec = importlib.util.spec_from_file_location("el_in_one_file", ROOT / "examples" / "el_in_one_file.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    source = ep.Synthetic(features=6, classes=4, samples=400)
    data = source.load()
    for topology, oracle, s in ((ep.ELLocal(3), False, 3), (ep.ELOracle(3), True, 3), (ep.ELOracle(4), True, 4)):
        experiment = small(
            data=source, topology=topology, partition=ep.Dirichlet(min_samples=2), model=double(6, 4), rounds=10,
            algorithm=LocalSGD(lr=0.2, local_steps=3, batch_size=5),
        )  # fmt: skip
        run, watch = watched(experiment)
        models = module.epidemic_learning(
            watch.setup.initial.numpy(), data.train.inputs.astype(np.float64), data.train.targets, watch.setup.parts,
            s=s, rounds=10, lr=0.2, local_steps=3, batch_size=5, seed=1, oracle=oracle,
        )  # fmt: skip
        np.testing.assert_allclose(run.models.rows.numpy(), models, atol=1e-12)
        found = np.mean([module.accuracy(x, data.test.inputs.astype(np.float64), data.test.targets) for x in models])
        assert run.seeds[0].summary.final_accuracy.mean == pytest.approx(found, abs=1e-12)


def test_the_examples_stay_short():
    lines = (ROOT / "examples" / "el_in_one_file.py").read_text().splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if "epidemic" in line and "import" in line] == [
        "from epidemic.core.rng import Streams, distinct"
    ]
    own = [line for line in (ROOT / "examples" / "own_model.py").read_text().splitlines() if line.strip()]
    assert len(own) <= 20 + 1  # and a docstring


# -- randomness and threads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["stacked", "per-node"])
@pytest.mark.parametrize("topology", [ep.ELLocal(3), ep.Complete()])
def test_results_do_not_depend_on_the_number_of_threads(strategy, topology):
    """To the last bit, records and models."""
    found = [ep.simulate(small(topology=topology, runtime=ep.Runtime(strategy=strategy, threads=k))) for k in (1, 3)]
    assert torch.equal(found[0].models.rows, found[1].models.rows)
    assert found[0].records == found[1].records


@pytest.mark.parametrize(
    "model", [ep.Logistic(), ep.MLP(), ep.SmallCNN(), ep.GNLeNet()], ids=lambda m: type(m).__name__
)
def test_the_files_are_the_same_for_any_number_of_threads_at_the_defaults(model, tmp_path):
    """Nobody says which strategy is to be taken."""
    files = []
    for threads in (1, 2, 3):
        experiment = small(model=model, nodes=12, rounds=2, eval=ep.Eval(every=2), runtime=ep.Runtime(threads=threads))
        ep.simulate(experiment, tmp_path / str(threads))
        seed = tmp_path / str(threads) / "seed-1"
        info = json.loads((seed / "run.json").read_text())
        files.append([(seed / name).read_bytes() for name in ("records.jsonl", "summary.json", "models.safetensors")])
        files[-1].append((info["strategy"], info["strategy_reason"]))
    assert files[0] == files[1] == files[2]


def test_seeds_are_independent_and_each_reproducible():
    both = ep.simulate(small(seeds=[1, 2]))
    second = ep.simulate(small(seeds=[2]))
    assert both.seeds[1].records == second.seeds[0].records
    assert both.seeds[0].records != both.seeds[1].records
    assert [r.seed for r in both.records] == [1, 1, 1, 2, 2, 2]


def test_strategies_agree_over_a_run():
    a, b = (ep.simulate(small(model=double(), runtime=ep.Runtime(strategy=s))) for s in ("stacked", "per-node"))
    torch.testing.assert_close(a.models.rows, b.models.rows, atol=1e-9, rtol=1e-9)


def test_batches_are_drawn_uniformly_from_the_own_samples():
    setup = prepare(small(partition=ep.Dirichlet(min_samples=5)), 1)
    for t in range(20):
        index = setup.batches.index(setup.streams, t)
        assert index.shape == (12, 2, 4)
        for i, part in enumerate(setup.parts):
            assert np.isin(index[i], part).all()
    drawn = np.concatenate([setup.batches.index(setup.streams, t)[0].ravel() for t in range(2000)])
    counts = np.array([np.sum(drawn == sample) for sample in setup.parts[0]])
    mean = len(drawn) / len(counts)
    assert np.abs(counts - mean).max() < 5 * math.sqrt(mean)
    alone = Streams(1)("batches", 3).uniforms(12, 2, 4)[5]  # what whoever hosts node 5 alone would draw
    own = setup.parts[5][(alone * len(setup.parts[5])).astype(int)]
    assert np.array_equal(own, setup.batches.index(setup.streams, 3)[5])


@pytest.mark.parametrize("n", [1, 5, 64, 65, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_parallel_exchange_is_the_product_with_the_weights(n, dtype):
    torch.manual_seed(0)
    x = torch.randn(n, 40, dtype=dtype)
    graph = ep.Isolated().graph(n, 0, Streams(1)) if n == 1 else ep.ELLocal(min(3, n - 1)).graph(n, 0, Streams(1))
    for w in (weights("uniform", graph), weights("uniform", Graph.complete(n)), weights("metropolis-hastings", Graph.complete(n), Graph.complete(n, np.arange(max(n - 2, 1))))):  # fmt: skip
        results = [mix(w, x, Workers(k), torch.empty_like(x)) for k in (1, 3)]
        assert torch.equal(*results)
        expected = torch.from_numpy(w.dense()).to(torch.float64) @ x.double()
        torch.testing.assert_close(results[0].double(), expected, atol=1e-5, rtol=1e-5)


# -- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "messages"),
    [
        (ep.ELOracle(7), 7), (ep.ELLocal(7), 7), (ep.Regular(7), 7), (ep.ELLocal(4), 4), (ep.ELLocal(14), 14), (ep.Complete(), 95),
        (ep.UEquiStatic(4, strict=True), 8), (ep.Ring(), 2), (ep.Torus(), 4), (ep.Exponential(), 7), (ep.OnePeerExponential(), 1),
        (ep.ODEquiDyn(), 1), (ep.Isolated(), 0),
    ],
)  # fmt: skip
def test_bytes_are_those_of_the_formulas(topology, messages):
    """Per node and round: messages * 4 * parameters, plus a header each."""
    experiment = small(nodes=96, topology=topology, rounds=3, eval=ep.Eval(every=3, samples=10))
    run = ep.simulate(experiment)
    parameters = 64 * 10 + 10
    sent = run.records[-1].bytes
    assert sent.model.mean == sent.model.max == 3 * messages * 4 * parameters
    assert sent.header.max == 3 * messages * HEADER_BYTES
    assert sent.control.max == 0
    assert sent.total.max == sent.model.max + sent.header.max


def test_ou_equidyn_sends_only_where_it_matched():
    evaluation = ep.Eval(every=60, samples=10)
    run = ep.simulate(small(nodes=96, topology=ep.OUEquiDyn(), rounds=60, eval=evaluation, runtime=STACKED))
    assert run.records[-1].bytes.model.mean / (60 * 4 * 650) == pytest.approx(0.888158, abs=0.03)


def test_gn_lenet_bytes_at_96_nodes():
    """The paper's 2,515,352 bytes per node and round."""
    graph = ep.ELLocal(7).graph(96, 0, Streams(1))
    assert (graph.out_degree * 4 * 89_834 == 2_515_352).all()


def test_a_refused_offer_costs_control_bytes_not_a_model():
    run, watch = watched(small(topology=ep.ELLocal(6), faults=Faults(cap=4, max_retries=2)))
    offers = sum(p.delivery.offers_sent.sum() for p in watch.plans)
    models = sum(p.delivery.graph.messages for p in watch.plans)
    assert offers > models
    assert run.records[-1].bytes.control.mean * 12 == offers * CONTROL_BYTES
    assert run.records[-1].bytes.model.mean * 12 == models * 4 * 650


# -- faults -----------------------------------------------------------------------------------------------------------


def test_a_crashed_node_stands_still_and_is_not_heard():
    run, watch = watched(
        small(faults=Faults(crashes=(Crash(3, at=1, returns=4),), on_return="keep"), eval=ep.Eval(every=1, samples=50))
    )
    for t in (1, 2, 3):
        assert torch.equal(watch.models[t + 1][3], watch.models[t][3])
        assert 3 not in watch.plans[t].delivery.graph.senders
    assert not torch.equal(watch.models[5][3], watch.models[4][3])
    assert [r.alive for r in run.records] == [12, 12, 11, 11, 11, 12, 12]


def test_a_returning_node_adopts_a_live_peers_model():
    faults = Faults(crashes=(Crash(3, at=1, returns=4),))
    experiment = small(faults=faults, topology=ep.Isolated(), algorithm=LocalSGD(lr=1e-12, batch_size=1), rounds=5)
    _, watch = watched(experiment)
    plan = watch.plans[4]
    assert plan.returning.tolist() == [3]
    donor = int(plan.donors[0])
    torch.testing.assert_close(watch.models[5][3], watch.models[4][donor], atol=1e-8, rtol=0)


def test_adopting_costs_the_donor_a_model():
    run = ep.simulate(small(faults=Faults(crashes=(Crash(3, at=1, returns=4),)), topology=ep.Isolated()))
    assert run.records[-1].bytes.model.max == 4 * 650
    assert run.records[-1].bytes.model.mean == pytest.approx(4 * 650 / 12)


@pytest.mark.parametrize("algorithm", [LocalSGD(lr=0.1, momentum=0.9), LocalSGD(lr=0.1, order="combine-then-adapt")])
@pytest.mark.parametrize("mixing", ["uniform", "metropolis-hastings"])
@pytest.mark.parametrize("topology", [ep.Ring(), ep.Complete()])
def test_learning_goes_on_through_all_faults(algorithm, mixing, topology):
    faults = Faults(
        crashes=(Crash(0, at=2, returns=6),), random_crashes=RandomCrashes(0.05, rounds_down=2), loss=0.2, blocked=((1, 2),),
        partitions=(Split(((0, 1, 2, 3, 4, 5),), start=3, end=6),),
    )  # fmt: skip
    run = ep.simulate(
        small(algorithm=algorithm, mixing=mixing, topology=topology, faults=faults, rounds=30, eval=ep.Eval(every=10))
    )
    assert run.records[-1].accuracy.mean > run.records[0].accuracy.mean + 0.3
    assert torch.isfinite(run.models.rows).all()


def test_everybody_may_be_down():
    run, watch = watched(small(faults=Faults(crashes=tuple(Crash(i, at=2, returns=4) for i in range(12)))))
    assert torch.equal(watch.models[2], watch.models[4])
    assert run.records[-1].accuracy.mean > 0.2


# -- own code ---------------------------------------------------------------------------------------------------------


class Star:
    """Everybody sends to node 0, which sends to everybody."""

    def graph(self, n, round, streams):
        others = np.arange(1, n)
        hub = np.zeros(n - 1, dtype=int)
        return Graph.from_edges(n, np.concatenate([others, hub]), np.concatenate([hub, others]))


class SignSGD(ep.Defaults):
    """Only the signs of the gradient count; two columns are exchanged."""

    local_steps = 1
    batch_size = 8

    def columns(self, size, dtype):
        return ep.Column("x", (size,), dtype), ep.Column("mean", (size,), dtype)

    def init(self, x):
        return {"x": x, "mean": torch.zeros_like(x)}

    def local_update(self, state, learner, context):
        loss, gradient = learner.gradients(state["x"], context.index[:, 0], context.seeds)
        x = state["x"] - 0.01 * gradient.sign()
        return {**state, "x": x}, {"x": x, "mean": gradient}, loss

    def aggregate(self, state, inbox):
        return {"x": inbox.mean("x"), "mean": inbox.mean("mean")}


def test_a_users_own_topology_algorithm_model_data_loss_and_metric():
    stream = Streams(5)("own")
    x = stream.normals(300, 4)
    y = (x[:, 0] > 0).astype(int)
    experiment = small(
        topology=Star(), algorithm=SignSGD(), model=lambda: nn.Linear(4, 2), data=((x[:200], y[:200]), (x[200:], y[200:])),
        loss=lambda out, target: nn.functional.cross_entropy(out, target, label_smoothing=0.1),
        metrics={"confidence": lambda out, target: out.softmax(-1).amax(-1)}, rounds=200, eval=ep.Eval(every=100),
    )  # fmt: skip
    run = ep.simulate(experiment)
    last = run.records[-1]
    assert last.accuracy.mean > 0.9
    assert 0.5 < last.metrics["confidence"].mean < 1
    assert last.bytes.model.mean == pytest.approx(200 * 22 / 12 * 2 * 4 * 10)  # two columns of 10 numbers


def test_a_module_with_batchnorm_and_dropout_learns():
    def model():
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)
        )

    run, watch = watched(small(model=model, rounds=30, eval=ep.Eval(every=30), runtime=AUTO))
    assert watch.learner.strategy == "per-node"
    assert run.records[-1].accuracy.mean > 0.5
    again = ep.simulate(small(model=model, rounds=30, eval=ep.Eval(every=30)))
    assert torch.equal(run.models.rows, again.models.rows)
    plain = model()
    plain.load_state_dict(run.models[3])
    assert float(plain[2].running_var.mean()) != 1.0


def test_regression():
    stream = Streams(5)("own")
    x = stream.normals(300, 4)
    y = x @ np.array([1.0, -2.0, 0.5, 0.0])
    experiment = small(
        data=((x[:200], y[:200, None]), (x[200:], y[200:, None])), model=lambda: nn.Linear(4, 1), rounds=80
    )
    run = ep.simulate(experiment)
    assert run.records[-1].accuracy is None
    assert run.records[-1].loss.mean < 0.05
    assert run.seeds[0].summary.best_accuracy is None


# -- every listed kind ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_every_topology_runs(kind):
    extra = {"el-oracle": {"s": 4}, "el-local": {"s": 4}, "regular": {"s": 4}, "unlucky": {"s": 4}, "d-equistatic": {"m": 3},
             "u-equistatic": {"m": 3}, "every": {"inner": {"kind": "el-local", "s": 2}, "period": 2}, "python": {"factory": "epidemic.topology:Ring"},
             "matcha": {"inner": {"kind": "ring"}}, "periodic": {"inner": {"kind": "base"}, "period": 3}, "peer-swap": {"s": 4}, "pull": {"s": 4},
             "fragments": {"inner": {"kind": "el-local", "s": 4}}}  # fmt: skip
    nodes = 8 if kind == "hypercube" else 12
    run = ep.simulate(small(nodes=nodes, topology=topology_from({"kind": kind, **extra.get(kind, {})})))
    assert run.records[-1].accuracy.mean > run.records[0].accuracy.mean


@pytest.mark.parametrize(
    "partition", [ep.IID(), ep.Dirichlet(), ep.DirichletHsu(), ep.Shards(), ep.Explicit(weights=tuple(range(1, 13)))]
)
def test_every_partition_runs(partition):
    run = ep.simulate(small(partition=partition, rounds=9))
    assert run.records[-1].accuracy.mean > run.records[0].accuracy.mean


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (ep.Logistic(), ep.Digits()), (ep.MLP((16,)), ep.Fashion()), (ep.SmallCNN(), ep.Fashion()), (ep.FEMNISTCNN(), ep.Digits()),
        (ep.GNLeNet(), ep.Digits()), (ep.Logistic(), ep.Synthetic()),
    ],
)  # fmt: skip
def test_every_model_runs(model, data):
    run = ep.simulate(
        small(model=model, data=data, nodes=4, topology=ep.ELOracle(2), rounds=4, eval=ep.Eval(every=4, samples=50))
    )
    assert run.records[-1].loss.mean < run.records[0].loss.mean


def test_natural_partition_runs():
    source = ep.Synthetic(problem="quadratic", groups=12, samples=240, features=5)
    run = ep.simulate(small(data=source, partition=ep.Natural(), model=ep.Point(), rounds=60, eval=ep.Eval(every=60)))
    assert run.models.rows.dtype == torch.float64
    assert float(run.models.rows.mean(0).norm()) < 0.2  # the optimum is the origin


# -- theory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("topology", "name"), [(ep.ELOracle(7), "oracle"), (ep.ELLocal(7), "local")])
@pytest.mark.parametrize("spread", [0.2, 2.0])
def test_the_quadratic_problem_stays_under_the_theorems_bounds(topology, name, spread):
    """Disagreement under the drift lemma, mean squared gradient under the theorem, at the theorem's step size."""
    rounds, n = 400, 96
    source = ep.Synthetic(problem="quadratic", groups=n, samples=n * 20, features=10, spread=spread, noise=1.0)
    known = source.known()
    gap = 0.5  # F(x0) - min F = ||x0||^2 / 2, and x0 has norm 1
    problem = theory.Problem(known.smoothness, gap, known.noise, known.heterogeneity)
    lr = (theory.lr_oracle if name == "oracle" else theory.lr_local)(n, 7, rounds, problem)
    experiment = ep.Experiment(
        nodes=n, rounds=rounds, topology=topology, data=source, partition=ep.Natural(), model=ep.Point(),
        algorithm=LocalSGD(lr=lr, batch_size=1), eval=ep.Eval(every=rounds, samples=10), seeds=[1],
    )  # fmt: skip
    _, watch = watched(experiment)
    models = torch.stack(watch.models[:-1])  # (T, n, d): x_0 ... x_{T-1}
    eta = theory.alpha(n, 7) if name == "oracle" else theory.beta(n, 7)
    apart = [2 * disagreement(x) for x in models]
    assert np.mean(apart) < theory.drift_bound(eta, problem, lr)
    assert max(apart) < 2 * theory.drift_bound(eta, problem, lr)
    squared_gradient = float(models.square().sum(-1).mean())  # grad F(x) = x
    bound = (theory.bound_oracle if name == "oracle" else theory.bound_local)(n, 7, rounds, problem)
    tight = (theory.bound_oracle_at if name == "oracle" else theory.bound_local_tight)(n, 7, rounds, problem, lr)
    assert squared_gradient < tight <= bound
    assert squared_gradient > bound / 1000  # the bound says something


def test_the_drift_of_a_stationary_run_is_what_contraction_predicts():
    """Noise enters every round with variance V, and alpha of it stays: D settles at alpha / (1 - alpha) * lr^2 V."""
    n, lr = 48, 0.01
    source = ep.Synthetic(problem="quadratic", groups=n, samples=n * 50, features=8, spread=0.0, noise=1.0)
    experiment = ep.Experiment(
        nodes=n, rounds=600, topology=ep.ELOracle(5), data=source, partition=ep.Natural(), model=ep.Point(),
        algorithm=LocalSGD(lr=lr, batch_size=1), eval=ep.Eval(every=600, samples=10),
    )  # fmt: skip
    _, watch = watched(experiment)
    alpha, keep = theory.alpha(n, 5), (1 - lr) ** 2
    variance = lr**2 * source.known().noise * (1 - 1 / n)
    expected = alpha * variance / (1 - alpha * keep)
    assert np.mean([disagreement(x) for x in watch.models[50:]]) == pytest.approx(expected, rel=0.05)


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_an_exploding_run_says_which_nodes_and_which_round(tmp_path):
    experiment = small(model=ep.MLP((16,)), algorithm=LocalSGD(lr=1e20), rounds=20, checkpoint=ep.Checkpoint(rounds=1))
    with pytest.raises(RunFailed, match=r"seed 1, round \d+: the (training )?loss of \d+ of 12 nodes \(.+\) is no"):
        ep.simulate(experiment, tmp_path / "run")
    assert not (tmp_path / "run" / "seed-1" / "summary.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": lambda: nn.Linear(64, 10)}, "the model cannot take inputs of shape (1, 8, 8)"),
        (
            {"model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 5))},
            "outputs of shape (5,), but the data has 10 classes",
        ),
        ({"model": lambda: "no"}, "must be a torch.nn.Module"),
        ({"model": ep.PythonModel(factory="builtins:dict")}, "must return a torch.nn.Module, not dict"),
        ({"nodes": 2000, "topology": ep.Ring()}, "2000 nodes of at least 1 samples need 2000, but there are 1437"),
        ({"runtime": ep.Runtime(device="cuda")}, 'runtime.device = "cuda" is not available here'),
        ({"runtime": ep.Runtime(device="warp")}, 'runtime.device = "warp" is not available here'),
        ({"mixing": "native"}, "needs a topology with weights of its own"),
        ({"mixing": "metropolis-hastings"}, "links that go both ways"),
        ({"partition": "iid"}, "must be a partition"),
        ({"loss": lambda out, y: out.sum(1)}, "the loss must be the mean over the batch"),
        ({"metrics": {"m": lambda out, y: out}}, "must give a tensor of one number per sample"),
        ({"partition": ep.Natural()}, "who produced each sample"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(tmp_path, changes, message):
    with pytest.raises(BadInput) as caught:
        ep.simulate(small(**changes), tmp_path / "run")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_of_a_finished_run(tmp_path):
    experiment = small(name="files", partition=ep.Dirichlet(min_samples=5))
    run = ep.simulate(experiment, tmp_path)
    seed = tmp_path / "seed-1"
    assert {p.name for p in seed.iterdir()} == {".lock", "checkpoint.safetensors", "models.safetensors", "nodes.json", "records.jsonl", "run.json", "state.json", "summary.json", "timings.jsonl"}  # fmt: skip
    records = [json.loads(line) for line in (seed / "records.jsonl").read_text().splitlines()]
    assert [r["round"] for r in records] == [0, 3, 6]
    assert records[-1]["accuracy"]["mean"] == run.records[-1].accuracy.mean
    assert {"mean", "sd", "min", "max"} == set(records[-1]["accuracy"])
    nodes = json.loads((seed / "nodes.json").read_text())
    assert sum(node["samples"] for node in nodes) == 1437
    for node in nodes:
        assert sum(node["classes"]) == node["samples"]
        assert sum(node["in_degree"].values()) == 6
        assert node["bytes"]["model"] == 6 * 3 * 4 * 650
    summary = json.loads((seed / "summary.json").read_text())
    assert summary["final_accuracy"]["mean"] == pytest.approx(np.mean([n["final_accuracy"] for n in nodes]))
    assert summary["test_samples"] == 360
    info = json.loads((seed / "run.json").read_text())
    assert info["strategy"] in ("stacked", "per-node")
    assert info["experiment"]["partition"] == {"kind": "dirichlet", "alpha": 0.1, "min_samples": 5}
    assert ep.load(tmp_path / "experiment.toml") == experiment
    timings = [json.loads(line) for line in (seed / "timings.jsonl").read_text().splitlines()]
    assert set(timings[-1]["seconds"]) >= {"plan", "train", "mix", "evaluate"}


def test_the_strategy_is_chosen_once_for_all_seeds(tmp_path):
    ep.simulate(small(seeds=[1], runtime=AUTO), tmp_path)
    info = json.loads((tmp_path / "seed-1" / "run.json").read_text())
    other = "per-node" if info["strategy"] == "stacked" else "stacked"
    (tmp_path / "seed-1" / "run.json").write_text(json.dumps({**info, "strategy": other}))
    ep.simulate(small(seeds=[1, 2], runtime=AUTO), tmp_path, resume=True)
    assert json.loads((tmp_path / "seed-2" / "run.json").read_text())["strategy"] == other


def test_validation_samples_are_evaluated_while_training():
    run, watch = watched(small(data=ep.Digits(validation=0.2), eval=ep.Eval(every=3, samples="all")))
    assert len(watch.setup.evaluated[0]) == 287
    assert run.seeds[0].summary.test_samples == 360


class Hoarder(ep.Defaults):
    """Keeps views of what it sent and of what it got."""

    local_steps = 1
    batch_size = 4

    def init(self, x):
        return {"x": x, "sent": torch.zeros_like(x), "got": torch.zeros_like(x)}

    def local_update(self, state, learner, context):
        x = state["x"].clone()
        loss = learner.sgd(x, context.index, LocalSGD(lr=0.1).step, context.seeds)
        return {**state, "sent": x[:]}, {"x": x}, loss

    def aggregate(self, state, inbox):
        x = inbox.mean("x")
        return {"x": x.clone(), "sent": state["sent"], "got": x[:]}


def test_memory_that_an_algorithm_keeps_is_never_reused():
    class Check(Callback):
        state = None

        def planned(self, plan, index):
            self.before = None if self.state is None else {k: v.clone() for k, v in self.state.items()}

        def advanced(self, rounds_done, x):
            self.rounds.append(rounds_done)

        rounds: ClassVar[list] = []

    hoarder, check = Hoarder(), Check()
    original = hoarder.aggregate

    def aggregate(state, inbox):
        if check.before is not None:  # what was got in the last round is untouched by this round's exchange
            assert torch.equal(state["got"], check.before["got"])
        check.state = original(state, inbox)
        return check.state

    hoarder.aggregate = aggregate
    ep.simulate(small(algorithm=hoarder, rounds=8), callbacks=check)
    assert check.rounds == list(range(1, 9))


# -- all sorts of modules ---------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
        self.b.weight = self.a.weight
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        return self.out(self.b(self.a(x.flatten(1)).relu()))


class Scalar(nn.Module):
    """A parameter without dimensions, a buffer that is not saved, and a submodule with an awkward name."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("offset", torch.zeros(64), persistent=False)
        self.common = nn.Linear(64, 10)

    def forward(self, x):
        return self.common(self.scale * (x.flatten(1) + self.offset))


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 10)

    def forward(self, x):
        x -= 0.5
        return self.a(x.flatten(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 10)

    def forward(self, x):
        return self.b(self.a(x.squeeze(1))[0][:, -1])


class MonteCarlo(nn.Module):
    """Draws random numbers in evaluation, too."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 10)

    def forward(self, x):
        return self.a(nn.functional.dropout(x.flatten(1), 0.3, training=True))


@pytest.mark.parametrize("module", [Tied, Scalar, InPlace, Recurrent, MonteCarlo])
def test_all_sorts_of_modules_run_export_and_load(module, tmp_path):
    """auto run -> export -> strict load into the plain module -> the outputs of the row."""
    from epidemic.learner import PerNode
    from epidemic.runtime.saved_models import export_model

    x, y = (
        a[:200].astype(np.float32) if i == 0 else a[:200]
        for i, a in enumerate((ep.Digits().load().train.inputs, ep.Digits().load().train.targets))
    )
    fields = {"model": module, "data": ((x, y), (x[:50].copy(), y[:50])), "algorithm": LocalSGD(lr=0.01, local_steps=2)}
    experiment = small(**fields, runtime=AUTO)
    before = x.copy()
    run = ep.simulate(experiment, tmp_path / "a")
    chosen = json.loads((tmp_path / "a" / "seed-1" / "run.json").read_text())["strategy"]
    again = ep.simulate(small(**fields, runtime=ep.Runtime(strategy=chosen)), tmp_path / "b")
    assert run.records == again.records
    assert np.array_equal(x, before)  # the user's array is not written to
    for state in (run.models[3], export_model(tmp_path / "a" / "seed-1", 3)):
        plain = module()
        plain.load_state_dict(state)
        setup = prepare(experiment, 1)
        row = run.models.rows[3:4].clone()
        workers = Workers(1)
        loss = PerNode(setup.task, workers, draws_random_numbers=True).evaluate(row, *setup.test).loss
        workers.close()
        if module is not MonteCarlo:
            inputs = torch.from_numpy(x[:50].copy())
            with torch.no_grad():
                expected = nn.functional.cross_entropy(plain.eval()(inputs), torch.from_numpy(y[:50]))
            assert float(loss) == pytest.approx(float(expected), abs=1e-5)


def test_whole_number_inputs_reach_an_embedding():
    words = Streams(1)("words").integers(20, 200, 6).astype(np.int64)
    labels = (words[:, 0] > 9).astype(np.int64)
    model = lambda: nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(48, 2))  # noqa: E731
    run = ep.simulate(
        small(
            model=model,
            data=((words, labels), (words, labels)),
            rounds=60,
            algorithm=LocalSGD(lr=0.5, local_steps=3),
            runtime=STACKED,
        )
    )
    assert run.records[-1].accuracy.mean > 0.85
    plain = ep.simulate(
        small(model=lambda: nn.Linear(6, 2), data=((words, labels), (words, labels)))
    )  # and floats a linear layer
    assert plain.records[-1].round == 6


def test_python_model_by_name(tmp_path, monkeypatch):
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\ndef make(width):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))\n"
    )
    monkeypatch.chdir(tmp_path)
    run = ep.simulate(small(model=ep.PythonModel(factory="my_net:make", options={"width": 16})), tmp_path / "run")
    assert run.records[-1].loss.mean < run.records[0].loss.mean
    assert ep.load(tmp_path / "run" / "experiment.toml").model.options == {"width": 16}


def test_a_metric_that_is_not_a_number_can_be_read_back(tmp_path):
    experiment = small(metrics={"odd": lambda out, y: out.sum(-1) * float("nan")})
    ep.simulate(experiment, tmp_path)
    again = ep.simulate(experiment, tmp_path, resume=True)
    assert again.records[-1].metrics["odd"].mean is None


class Growing(SignSGD):
    """Its state gains a part in absorb; it has a method called step; two columns are one tensor."""

    def step(self):
        return None

    def columns(self, size, dtype):
        return ep.Column("x", (size,), dtype), ep.Column("y", (size,), dtype)

    def local_update(self, state, learner, context):
        state, message, loss = super().local_update(state, learner, context)
        return state, {"x": message["x"], "y": message["x"]}, loss

    def aggregate(self, state, inbox):
        x, y = inbox.mean("x"), inbox.mean("y")
        assert torch.equal(x, y)
        return {"x": x, "mean": state["mean"], "new": y, "same": x}


def test_a_demanding_algorithm_with_crashes_resumes(tmp_path):
    experiment = small(
        algorithm=Growing(),
        faults=Faults(crashes=(Crash(2, at=1, returns=3), Crash(4, at=4, returns=6))),
        checkpoint=ep.Checkpoint(rounds=1),
        rounds=8,
    )
    whole = ep.simulate(experiment, tmp_path / "whole")

    class Stop(Callback):
        def advanced(self, rounds_done, x):
            if rounds_done == 5:
                raise KeyboardInterrupt

    with pytest.raises(ep.Interrupted):
        ep.simulate(experiment, tmp_path / "parts", callbacks=Stop())
    parts = ep.simulate(experiment, tmp_path / "parts", resume=True)
    assert torch.equal(whole.models.rows, parts.models.rows)


def test_training_that_fails_is_one_line():
    batchnorm = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))  # noqa: E731
    with pytest.raises(
        RunFailed, match="seed 1, round 0: training failed: ValueError: Expected more than 1 value per channel"
    ):
        ep.simulate(small(model=batchnorm, algorithm=LocalSGD(batch_size=1)))


def test_the_readmes_experiment_runs():
    run = ep.simulate(ep.Experiment(nodes=96, rounds=2, topology=ep.ELLocal(s=7)))
    assert run.records[-1].round == 2


def test_torchs_threads_are_given_back():
    before = torch.get_num_threads()
    ep.simulate(small(rounds=1))
    assert torch.get_num_threads() == before


def test_the_strategy_is_chosen_once_for_several_seeds(monkeypatch):
    from epidemic.runtime import setup

    calls = []
    original = setup.choose
    monkeypatch.setattr(setup, "choose", lambda *a: calls.append(1) or original(*a))
    ep.simulate(small(seeds=[1, 2, 3], rounds=1, runtime=AUTO))
    assert len(calls) == 1


@pytest.mark.parametrize("clock", [None, ep.Clock()], ids=["rounds", "clock"])
def test_models_of_finished_seeds_are_on_the_disk_not_in_memory(clock, tmp_path, monkeypatch):
    class Counting(Callback):
        def __init__(self):
            self.found = []

        def advanced(self, rounds_done, x):
            if rounds_done == 1:
                large = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.numel() == x.numel()]
                self.found.append(len({one.untyped_storage().data_ptr() for one in large}))

    monkeypatch.setattr(simulation, "LARGE", 0)
    gc.collect()  # what other tests have left behind
    counting = Counting()
    run = ep.simulate(small(seeds=(1, 2, 3), clock=clock), tmp_path, callbacks=counting)
    first, *others = counting.found
    assert others == [first] * 2
    alone = ep.simulate(small(clock=clock))
    assert torch.equal(run.models.rows, alone.models.rows)


def test_models_are_read_from_the_directory_as_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = ep.simulate(small(rounds=2), "here")
    kept = ep.simulate(small(rounds=2), "other")
    monkeypatch.chdir("/")
    assert torch.equal(short.models.rows, ep.simulate(small(rounds=2)).models.rows)
    monkeypatch.chdir(tmp_path)
    ep.simulate(small(rounds=4), "other", resume=True)
    with pytest.raises(BadInput, match="had 2 rounds: it has continued"):
        kept.models  # noqa: B018
    lost = ep.simulate(small(rounds=2), "here", resume=True)
    shutil.rmtree("here")
    with pytest.raises(BadInput, match="here/seed-1 is gone, and with it the models"):
        lost.models  # noqa: B018
    assert short.models.rows.device.type == "cpu", "it has been read before"


def test_several_callbacks_are_told_in_their_order():
    heard = []

    class Told(ep.Callback):
        def __init__(self, name):
            self.name = name

        def advanced(self, rounds_done, x):
            heard.append((self.name, rounds_done, len(x)))

    ep.simulate(small(rounds=2), callbacks=[Told("a"), Told("b")])
    n = small().nodes
    assert heard == [("a", 1, n), ("b", 1, n), ("a", 2, n), ("b", 2, n)]
