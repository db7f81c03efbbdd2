"""What runs would cost: counted exactly, and measured to the right order."""

import json
import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import epidemic as ep
from epidemic.cli import main
from epidemic.core.errors import BadInput
from epidemic.estimate import plan
from epidemic.estimate.measuring import GpuCost, SampleSizes, TrainingCost, learning_of
from epidemic.estimate.planning import (
    fewest_ranks,
    gpu_memory_of,
    host_memory_of,
    memory_of,
)
from epidemic.experiment import experiment_from
from epidemic.record import HEADER_BYTES
from epidemic.runtime.mixing_arithmetic import COLUMNS
from epidemic.sharding.routing import bounds_of, by_columns
from epidemic.study.batch import Job
from epidemic.study.reproduce import costs

PARAMETERS = 64 * 10 + 10
TABLE = {
    "nodes": 12,
    "rounds": 20,
    "seeds": [1, 2],
    "data": {"kind": "digits"},
    "partition": {"kind": "iid"},
    "model": {"kind": "logistic"},
    "topology": {"kind": "el-local", "s": 3},
    "algorithm": {"local_steps": 2, "batch_size": 4},
    "runtime": {"threads": 2},
}


def planned(ranks=1, **changes):
    return plan(experiment_from({**TABLE, **changes}), ranks)


def test_bytes_are_those_that_a_run_counts():
    found = planned()
    assert found.parameters == PARAMETERS
    assert found.sent_per_round == 3 * (4 * PARAMETERS + HEADER_BYTES)
    assert found.sent_per_node == 20 * found.sent_per_round
    assert found.sent_in_all == 12 * found.sent_per_node
    assert planned(topology={"kind": "complete"}).sent_per_round == 11 * (4 * PARAMETERS + HEADER_BYTES)


def test_memory_counts_every_column_of_the_state():
    row = 4 * PARAMETERS
    plain, momentum = planned().memory, planned(algorithm={**TABLE["algorithm"], "momentum": 0.9}).memory
    assert (plain.state, plain.mixtures, plain.saving, plain.exchange, plain.loading) == (
        12 * row,
        12 * row,
        12 * row,
        0,
        0,
    )
    assert momentum.state == 2 * plain.state
    weighted = planned(algorithm={**TABLE["algorithm"], "kind": "push-sum"})
    assert weighted.memory.mixtures > plain.mixtures  # a weight travels with the model
    assert plain.evaluation == 8 * 12 * min(PARAMETERS, COLUMNS) * 2
    assert plain.total == plain.state + plain.mixtures + plain.data + plain.evaluation + plain.program


@pytest.mark.parametrize("ranks", [1, 2, 5, 12])
def test_ranks_share_nodes_and_samples_and_send_what_is_not_theirs(ranks):
    found, alone = planned(ranks), planned()
    rows = math.ceil(12 / ranks)
    assert found.memory.state == rows * 4 * PARAMETERS
    assert found.memory.data < alone.memory.data or ranks == 1
    assert found.memory.exchange == (0 if ranks == 1 else 4 * rows * 4 * PARAMETERS)
    assert found.memory.evaluation == (16 if ranks == 1 else 12 + 12) * 12 * PARAMETERS
    assert found.memory.loading + alone.memory.data > alone.memory.data or ranks == 1
    assert (found.exchanged_per_round > 0) == (ranks > 1)
    assert found.exchanged_per_round <= 4 * by_columns(np.diff(bounds_of(12, ranks)).tolist(), PARAMETERS)
    assert found.exchanged_per_round % (4 * PARAMETERS) == 0 or ranks > 2  # whole rows between two ranks
    assert found.sent_per_node == alone.sent_per_node


LEARNING = TrainingCost(1e-3, 1e-6, 10**6, 4 * 10**6, 4 * 10**6, (4 * 10**6,), 4 * 10**6, 300 * 2**20)
GPUS = st.builds(
    GpuCost,
    capacity=st.just(24 * 10**9),
    context=st.integers(0, 10**9),
    row=st.integers(4, 10**8),
    numbers=st.integers(10, 10**7),
    stacked=st.booleans(),
    convolved=st.booleans(),
)


def test_ranks_to_fit_is_the_first_number_that_fits():
    experiment = experiment_from(TABLE)

    def total(ranks):
        return memory_of(experiment, LEARNING, SampleSizes(1000, 1000), ranks).total

    for available in [total(ranks) + more for ranks in range(1, 13) for more in (-1, 0)]:
        fitting = [ranks for ranks in range(1, 13) if total(ranks) <= available]
        assert fewest_ranks(total, 12, available) == (fitting[0] if fitting else None)
    assert {fewest_ranks(total, 12, total(ranks)) for ranks in (1, 6, 12)} >= {1, 12}
    assert fewest_ranks(total, 12, 300 * 2**20) is None


# -- GPUs -------------------------------------------------------------------------------------------------------------


@given(
    gpu=GPUS,
    nodes=st.integers(2, 60),
    row=st.integers(1, 10**8),
    samples=st.builds(SampleSizes, *[st.integers(0, 10**10)] * 3),
    share=st.floats(0.2, 1.2),
    threads=st.integers(1, 9),
)
def test_fewest_gpus_are_the_fewest_and_more_memory_never_takes_more(gpu, nodes, row, samples, share, threads):
    learning = msgspec.structs.replace(LEARNING, row_bytes=2 * row, message_bytes=row, gpu=gpu)
    experiment = experiment_from(
        {**TABLE, "nodes": nodes, "topology": {"kind": "complete"}, "runtime": {"threads": threads}}
    )

    def total(ranks):
        return gpu_memory_of(experiment, learning, samples, ranks).total

    totals = [total(ranks) for ranks in range(1, nodes + 1)]
    assert totals[1:] == sorted(totals[1:], reverse=True)
    available = int(share * totals[0])
    fitting = [ranks for ranks, one in enumerate(totals, start=1) if one <= available]
    found = fewest_ranks(total, nodes, available)
    assert found == (fitting[0] if fitting else None)
    with_more = fewest_ranks(total, nodes, available + 10**9)
    assert found is None or (with_more is not None and with_more <= found)


def test_what_is_computed_with_lies_on_the_gpu_and_what_is_read_or_written_in_its_host():
    experiment = experiment_from(TABLE)
    cost = GpuCost(capacity=10**10, context=5 * 10**8, row=4 * 10**6, numbers=10**6, stacked=False, convolved=False)
    learning = msgspec.structs.replace(LEARNING, gpu=cost)
    samples = SampleSizes(12_000, 600, 300)
    process = memory_of(experiment, learning, samples, 3)
    gpu, host = gpu_memory_of(experiment, learning, samples, 3), host_memory_of(experiment, learning, samples, 3)
    for name in ("state", "mixtures", "evaluation", "exchange", "saving"):
        assert getattr(gpu, name) == getattr(process, name)
    assert (gpu.data, host.data) == (4_000 + 600 + 300, 4_000 + 600)
    assert gpu.working == 2 * 4 * 10**6  # a row for each of two threads
    in_turn = max(gpu.working, gpu.evaluation, gpu.exchange, gpu.saving)
    assert gpu.total == 5 * 10**8 + gpu.state + gpu.mixtures + gpu.data + in_turn
    assert host.going_on > process.state
    assert host.total == learning.program + host.data + max(host.loading, host.going_on)
    assert gpu_memory_of(experiment, learning, samples, 1).saving == 0  # rows are handed over as they are


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_said_of_gpus(small_file, capsys):
    assert main(["plan", "one.toml", "--gpus"]) == 2
    error = capsys.readouterr().err
    assert "--gpus measures on a GPU, and there is none here" in error
    assert error.count("\n") == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_the_gpu_that_is_there_is_measured(small_file, capsys):
    assert main(["plan", "one.toml", "--gpus", "--ranks", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    gpus = found["gpus"]
    assert found["measured_on"] == "cuda"
    assert (gpus["count"], gpus["fits"], gpus["to_fit"]) == (2, True, 1)
    assert gpus["memory"]["state"] == found["memory"]["state"]
    assert gpus["memory"]["working"] > 0
    assert gpus["memory"]["context"] > 0


@pytest.fixture
def small_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.toml").write_text(
        'nodes = 4\ndata = {kind = "digits"}\nmodel = {kind = "logistic"}\ntopology = {kind = "el-local", s = 2}\n'
    )


def test_time_is_that_of_rounds_and_evaluations_of_all_seeds():
    found = planned()
    assert 0 < found.seconds_per_round < 1
    least = 2 * (20 * found.seconds_per_round + 2 * found.seconds_per_evaluation)
    assert found.seconds >= least  # the full test set comes on top
    assert planned(seeds=[1]).seconds < 100 * found.seconds


def test_a_method_without_rounds_says_what_is_not_counted():
    clock = {"compute": {"kind": "constant", "seconds": 1.0}}
    found = planned(algorithm={"kind": "async-el", "local_steps": 2, "batch_size": 4}, clock=clock)
    assert found.sent_per_round is None
    assert "without rounds" in found.notes[0]


def test_data_that_is_not_there_is_stood_in_for(tmp_path):
    found = planned(data={"kind": "cifar10", "path": str(tmp_path)}, nodes=4)
    assert found.parameters == 3072 * 10 + 10
    assert "not there" in found.notes[0]
    assert found.memory.data > 50_000 * 3072


def test_the_command_prints_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "one.toml"
    file.write_text(
        'nodes = 4\ndata = {kind = "digits"}\nmodel = {kind = "logistic"}\ntopology = {kind = "el-local", s = 3}\n'
    )
    assert main(["plan", "one.toml", "--set", "topology.s=2", "--ranks", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["nodes"], found["ranks"], found["ranks_to_fit"]) == (4, 2, 1)
    assert main(["plan", "one.toml", "--set", "topology.s=2"]) == 0
    assert "ranks to fit: 1" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [file]
    assert main(["plan", "one.toml", "--set", "topology.s=2", "--ranks", "5"]) == 2
    assert capsys.readouterr().err == "error: --ranks 5 must be at most nodes = 4: every rank has at least one node\n"


@pytest.mark.parametrize(
    "settings",
    [
        {"topology": {"kind": "matcha", "inner": {"kind": "ring"}}},
        {"topology": {"kind": "complete", "cost": "all-reduce"}},
        {"topology": {"kind": "periodic", "inner": {"kind": "ring"}, "period": 3}},
        {"topology": {"kind": "fragments", "inner": {"kind": "el-local", "s": 3}, "k": 3}},
        {"topology": {"kind": "el-local", "s": 3, "view": {"kind": "cyclon", "size": 6, "shuffle": 3}}},
        {"topology": {"kind": "pull", "s": 3}},
        {"participation": {"kind": "teleportation", "m": 6}, "compression": {"kind": "int8"}},
        {"participation": {"kind": "bernoulli", "p": 0.5}},
        {"faults": {"cap": 2}},
    ],
)  # fmt: skip
def test_what_is_planned_to_be_sent_is_what_the_run_counts(settings):
    table = {**TABLE, "seeds": [1], "eval": {"every": 20, "samples": 20}, **settings}
    ran = ep.simulate(table).records[-1].bytes.total.mean
    assert planned(**table).sent_per_node == pytest.approx(ran, rel=1e-12)


def test_what_ranks_cannot_do_is_not_planned_for_them():
    with pytest.raises(BadInput, match="compressed messages cannot be mixed on 2 ranks"):
        planned(2, compression={"kind": "int8"})


def test_what_takes_the_same_time_is_measured_once(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(
        "epidemic.study.reproduce.learning_of", lambda *given: measured.append(given) or learning_of(*given)
    )

    def job(name, **algorithm):
        table = {
            **TABLE,
            "clock": {"stop": 2.0, "evaluate": 1.0, "compute": {"seconds": 0.1}},
            "algorithm": {**TABLE["algorithm"], **algorithm},
        }
        return Job(tmp_path / name, experiment_from(table), name)

    free = [job(kind, kind=kind) for kind in ("async-el", "gossip-learning", "divshare")]
    alike = [*free, job("slower", kind="async-el", lr=0.01)]
    assert len(costs(alike)) == 4
    assert len(measured) == 1
    assert len(costs([*alike, job("longer", kind="async-el", local_steps=5), job("rounds", momentum=0.9)])) == 6
    assert len(measured) == 1 + 3
