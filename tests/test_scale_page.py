"""What docs/scale.md works out on paper is what the code counts."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

import epidemic as ep
from epidemic.core.rng import Streams
from epidemic.deploy.views import REMEMBERED
from epidemic.deploy.watching import MOST_NODES
from epidemic.estimate.measuring import SampleSizes, TrainingCost
from epidemic.estimate.planning import memory_of
from epidemic.record import HEADER_BYTES
from epidemic.runtime.describe import SIGMA_LIMIT

PAGE = (Path(__file__).parents[1] / "docs" / "scale.md").read_text()
NODES, PARAMETERS, S = 100_000, 1_690_046, 7


def parameters(model, shape, classes):
    return sum(p.numel() for p in model.build(shape, classes).parameters())


def table():
    """The rows of the table of ranks: R, nodes, and three sizes in GB."""
    rows = re.findall(r"^\| (\d+) \| ([\d,]+) \| ([\d.]+) GB \| ([\d.]+) GB \| ([\d.]+) GB \|$", PAGE, re.MULTILINE)
    return [[float(cell.replace(",", "")) for cell in row] for row in rows]


def test_models_have_as_many_parameters_as_it_says():
    assert parameters(ep.FEMNISTCNN(), (1, 28, 28), 62) == PARAMETERS
    assert (
        f"{PARAMETERS:,} parameters: {4 * PARAMETERS / 1e6:.2f} MB a model, {4 * PARAMETERS * NODES / 1e9:.0f} GB"
        in PAGE
    )
    lenet = parameters(ep.GNLeNet(), (3, 32, 32), 10)
    assert f"{lenet:,} parameters, {4 * lenet:,} bytes a model" in PAGE


def test_the_share_of_a_rank_is_what_plan_counts_and_what_it_sends_follows():
    assert len(table()) == 4
    row = 4 * PARAMETERS
    experiment = ep.Experiment(nodes=NODES, topology=ep.ELLocal(S), runtime=ep.Runtime(threads=1))
    learning = TrainingCost(0.0, 0.0, PARAMETERS, row, row, (row,), row, 0)
    for ranks, nodes, share, by_columns, by_rows in table():
        memory = memory_of(experiment, learning, SampleSizes(0, 0), int(ranks))
        assert nodes == NODES / ranks
        assert share == round((memory.state + memory.mixtures) / 1e9, 1)
        assert by_columns == round(2 * nodes * row * (ranks - 1) / ranks / 1e9, 1)
        assert by_rows == round((NODES - nodes) * (1 - (1 - 1 / ranks) ** S) * row / 1e9, 1)
    in_all = 2 * NODES * row
    assert f"{in_all / 1e9:,.0f} GB in all" in PAGE
    machines = {size: math.ceil(in_all / 1e9 / (size - 4)) for size in (64, 256)}
    assert f"{machines[256]} machines of 256 GB or {machines[64]} of 64 GB" in PAGE


@pytest.mark.parametrize(("ranks", "s"), [(2, 7), (4, 1), (4, 7), (10, 2), (10, 7)])
def test_so_many_rows_of_others_are_heard_on_a_rank(ranks, s):
    n = 4_000
    own = n // ranks
    graph = ep.ELLocal(s).graph(n, 0, Streams(5))
    heard = np.unique(np.concatenate([graph.into(i) for i in range(own)]))
    expected = (n - own) * (1 - (1 - 1 / ranks) ** s)
    found = int((heard >= own).sum())
    assert abs(found - expected) < 5 * math.sqrt(expected)
    by_columns = 2 * own * (ranks - 1) / ranks
    assert (expected < by_columns) == (ranks == 2 or s <= 2)  # as the page says


def test_limits_are_those_of_the_code():
    assert f"left out above {SIGMA_LIMIT:,} nodes" in PAGE
    assert f"refused above {MOST_NODES:,} nodes" in PAGE
    assert f"the last {REMEMBERED} graphs" in PAGE
    assert f"s messages of a model and {HEADER_BYTES} bytes each" in PAGE
