"""The item `async`: what it compares, how rates are found, and what it makes of the records."""

import csv
import json
import math
import statistics
from pathlib import Path

import msgspec
import pytest

from epidemic.cli import main
from epidemic.clock.devices import find_devices, read_devices
from epidemic.core.errors import RunFailed
from epidemic.experiment import load
from epidemic.record import read_records
from epidemic.report.statistics import Interval
from epidemic.simulator.dry_run import dry_run
from epidemic.study import reproduce as reproducing
from epidemic.study.batch import Outcome
from epidemic.study.reproduce import ITEMS, Request, items_named, planned, stages
from epidemic.study.reproduce import asynchronous as item
from epidemic.study.reproduce.asynchronous import (
    AD_PSGD,
    DEGREE,
    DEVICES,
    DIVSHARE,
    FAST_MBIT,
    IN_ROUNDS,
    METHODS,
    NEIGHBOURS,
    RACES,
    TRAINING,
)  # fmt: skip
from epidemic.study.reproduce.contests import TUNING_SEED, VALIDATION

SMALL = msgspec.structs.replace(
    RACES["smoke"], trainings=5, evaluations=5, samples=50, seeds=1, known={}, rates=(0.1, 0.3)
)
"""Short, and with rates to be found."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A directory in which two methods have run, after their rates were found."""
    request = Request("smoke", tmp_path_factory.mktemp("async") / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RACES, "smoke", SMALL)
        for module in (item,):
            patch.setattr(module, "METHODS", (AD_PSGD, DIVSHARE))
        for stage in stages(items_named("async"), request):
            assert reproducing.run_jobs(stage, None) == {}
    return request


# -- the setting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", RACES)
def test_everybody_meets_the_same_network_and_data(scale, tmp_path):
    jobs = [RACES[scale].job(method, Request(scale, tmp_path)) for method in METHODS]
    for job in jobs:
        e = job.experiment
        assert (e.nodes, e.clock.devices, e.clock.links.latency) == (60, "stragglers-60", 0.001)
        assert (e.partition.shards, e.algorithm.batch_size) == (5, 8)
        assert e.algorithm.local_steps == RACES[scale].local_steps
    same = [
        {k: v for k, v in job.experiment.table().items() if k in ("data", "partition", "model", "eval", "nodes")}
        for job in jobs
    ]
    assert all(table == same[0] for table in same)
    clocks = {json.dumps({**job.experiment.table()["clock"], "close": None}, sort_keys=True) for job in jobs}
    assert len(clocks) == 1
    closes = [job.experiment.table()["clock"]["close"]["kind"] for job in jobs[: len(IN_ROUNDS)]]
    assert closes == ["barrier", "quorum", "deadline", "schedule"]
    assert all(job.experiment.topology.s == DEGREE for job in (*jobs[: len(IN_ROUNDS) + 1], jobs[-1]))


def test_the_scale_paper_is_divshares():
    full = RACES["paper"]
    assert (full.data, full.model, full.local_steps, full.seeds) == ("cifar10", {"kind": "gn-lenet"}, 128, 5)
    assert 0.05 in full.rates
    assert not full.known


def test_a_training_lasts_ten_messages_of_a_fast_device_and_two_of_a_slow_one():
    for race in RACES.values():
        assert race.training == pytest.approx(TRAINING * (4 * race.parameters + 256) * 8 / 60e6)
        slow = [d.up_kbps / 1000 for d in read_devices(find_devices(DEVICES, Path())) if d.up_kbps < 60_000]
        assert len(slow) == 7
        assert {int(race.training / (race.message * FAST_MBIT / rate)) for rate in slow} <= {1, 2}


@pytest.mark.parametrize(("scale", "shape"), [("smoke", (1, 8, 8)), ("laptop", (3, 32, 32)), ("paper", (3, 32, 32))])
def test_the_number_of_parameters_is_the_models(scale, shape, tmp_path):
    model = RACES[scale].job(NEIGHBOURS, Request(scale, tmp_path)).experiment.model.build(shape, 10)
    assert sum(p.numel() for p in model.parameters()) == RACES[scale].parameters


def test_time_ends_a_run_and_slow_links_hold_up_who_waits_for_all(tmp_path):
    steps = {}
    race = RACES["smoke"]
    for method in METHODS:
        work = dry_run(race.job(method, Request("smoke", tmp_path)).experiment, 1, 4 * race.parameters)
        assert work.moment().seconds == race.stop, "not its rounds"
        steps[method] = work.moment().steps
    assert steps[NEIGHBOURS] < steps["EL quorum"] < steps["EL deadline"] < steps["async EL"]
    assert steps["async EL"] == steps[DIVSHARE] == pytest.approx(3 * 24, rel=0.1)


# -- learning rates ---------------------------------------------------------------------------------------------------


def test_known_rates_are_of_the_grid_and_not_at_its_edge():
    race = RACES["smoke"]
    assert set(race.known) == set(METHODS)
    assert set(race.known.values()) <= set(race.rates[1:-1])
    for other in RACES.values():
        assert other.rates[-1] >= 10 * other.rates[0], "at least a factor of ten"


def test_rates_are_tried_on_samples_and_seeds_of_their_own(tmp_path):
    request = Request("laptop", tmp_path, 3)
    race = RACES["laptop"]
    first, second = stages(items_named("async"), request)
    assert len(first) == len(METHODS) * len(race.rates)
    for job in first:
        assert job.experiment.seeds == (TUNING_SEED,)
        assert job.experiment.data.validation == VALIDATION
    for job in second:
        assert TUNING_SEED not in job.experiment.seeds
        assert job.experiment.data.validation == 0
    assert [job.name for job in planned(items_named("async"), request)] == [job.name for job in (*first, *second)]
    paths = [job.path.name for job in (*first, *second)]
    assert len(set(paths)) == len(paths), "experiment files are called so"


def test_the_best_rate_on_the_samples_set_aside_is_taken(found, monkeypatch):
    for method in (AD_PSGD, DIVSHARE):
        scores = {}
        for lr, job in SMALL.trials(method, found).items():
            records, _ = read_records(job.path / f"seed-{TUNING_SEED}" / "records.jsonl")
            scores[lr] = statistics.fmean(r.accuracy.mean for r in records if r.time.seconds > 0)
        winner = max(scores, key=scores.get)
        assert SMALL.scores(method, found) == pytest.approx(scores)
        job = SMALL.job(method, found)
        assert (SMALL.rate(method, found), job.experiment.algorithm.lr) == (winner, winner)
        assert job.finished
        finished = sorted(path.parent.parent.name for path in (found.out / "runs" / "async").rglob("summary.json"))
        assert len(finished) == 2, "no other rate was run"
    monkeypatch.setattr(item, "METHODS", (AD_PSGD, DIVSHARE))
    notes = item._notes(SMALL, found, 0.5, "", {})
    assert "found with this grid: 0.1, 0.3" in notes[3]
    assert any(note.startswith("AD-PSGD: 0.1: ") and "at the edge" in note for note in notes)


def test_real_data_is_read_once_with_and_once_without_the_samples_set_aside(tmp_path, monkeypatch):
    wanted, given = [], {}

    def load_data(kind, validation, place):
        wanted.append((kind, validation, place))
        return wanted[-1]

    def run_batch(jobs, *, data, **_):
        given.update({job.name: data for job in jobs})
        return Outcome([], [], {})

    monkeypatch.setattr(reproducing, "_load", load_data)
    monkeypatch.setattr(reproducing, "run_batch", run_batch)
    jobs = planned(items_named("async"), Request("laptop", tmp_path))
    assert reproducing.run_jobs(jobs, tmp_path) == {}
    assert wanted == [("cifar10", VALIDATION, tmp_path), ("cifar10", 0.0, tmp_path)]
    assert {job.name: data[1] for job in jobs for data in [given[job.name]]} == {
        job.name: job.experiment.data.validation for job in jobs
    }


def test_a_rate_that_diverges_is_a_result_and_other_failures_are_errors(tmp_path):
    request = Request("smoke", tmp_path)
    one, two = (SMALL.trials(AD_PSGD, request)[lr].name for lr in SMALL.rates)
    SMALL.need(request, {one: "the loss is no longer a finite number"})
    with pytest.raises(RunFailed, match="no disk"):
        SMALL.need(request, {one: "no disk"})
    with pytest.raises(RunFailed, match="finite"):
        SMALL.need(request, dict.fromkeys((one, two), "the loss is no longer a finite number"))
    with pytest.raises(RunFailed, match="async: AD-PSGD failed: x"):
        SMALL.need(request, {"async: AD-PSGD": "x"})


# -- verdicts ---------------------------------------------------------------------------------------------------------


class Made:
    """A standing of given seconds."""

    def __init__(self, *seconds, resolution=0.1):
        from epidemic.report.statistics import CostToTarget

        self.costs = [
            CostToTarget(1, 1, s, 1.0) if math.isfinite(s) else CostToTarget(seconds=math.inf) for s in seconds
        ]
        self.resolution, self.target = resolution, 0.5
        self.reaching = sum(one.reached for one in self.costs)

    earlier, faster, _compared = item.TimeToTarget.earlier, item.TimeToTarget.faster, item.TimeToTarget._compared


def lead(one, other):
    return item._lead("a", "b", {"a": one, "b": other}, "our guess")


def test_a_lead_needs_an_interval_without_zero_and_more_than_the_clock_can_tell():
    assert lead(Made(1, 1.1, 1), Made(2, 2.1, 2.2)).verdict == "agrees"
    assert lead(Made(2, 2.1, 2.2), Made(1, 1.1, 1)).verdict == "differs"
    assert lead(Made(1, 2, 3), Made(3, 2, 1.5)).verdict == "open"
    assert lead(Made(1), Made(2)).verdict == "open"
    assert lead(Made(1, math.inf, 1), Made(2, 2, 2)).verdict == "open"
    near = lead(Made(1, 1, 1), Made(1.1, 1.1, 1.1))
    assert (near.verdict, near.reason) == ("open", "not more than the time between two evaluations")
    assert item._judged(Interval(1.0, 0.5, 3), 0.1) == "faster"
    assert item._judged(Interval(-1.0, 0.5, 3), 0.1) == "slower"
    assert item._judged(Interval(0.1, 0.0, 3), 0.1) == "open"
    assert item._judged(Interval(1.0, None, 1), 0.1) == "open"
    assert item._judged(None, 0.1) == "open"


def test_the_published_number_is_judged_at_its_own_scale_only():
    slow, fast, alike = Made(4, 4.1, 3.9), Made(1, 1, 1), Made(3.9, 4, 4.1)
    assert item._published(fast, slow, "fewer steps").verdict == "not comparable"
    assert item._published(fast, slow, "").verdict == "agrees"
    assert item._published(alike, slow, "").verdict == "differs"
    assert item._published(Made(1, 4, 2), slow, "").verdict == "open"
    never = item._published(Made(1, math.inf, 1), slow, "")
    assert (never.verdict, never.ours) == ("open", None)
    assert item._published(Made(1, math.inf, 1), slow, "x").verdict == "not comparable"


# -- before it runs ---------------------------------------------------------------------------------------------------


def test_a_dry_run_counts_what_the_clock_would_send(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "async", "--dry-run", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["run"] for run in runs] == [f"async: {method}" for method in METHODS]
    sent = {run["run"]: run["cost"]["sent_per_node"] for run in runs}
    message = 4 * 2410 + 256
    most = DEGREE * message * 24 * 1.25
    assert sent["async: AD-PSGD"] < sent["async: EL neighbours"] < sent["async: async EL"] < most
    assert list(tmp_path.iterdir()) == []


def test_help_lists_it(capsys):
    assert main(["reproduce", "--help"]) == 0
    assert "spectra, async" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert ITEMS["async"].expected_from == "DivShare"


# -- what is written of it --------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]


def test_the_documentation_quotes_the_numbers_of_the_committed_table():
    section = (ROOT / "docs" / "time.md").read_text().partition("## Who is fastest")[2]
    with (ROOT / "results" / "async" / "async.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["method"] for row in table] == list(METHODS)
    for row in table:

        def cell(name, factor=1.0, digits=2, row=row):
            if not row[name]:
                return "-"
            return f"{factor * float(row[name]):.{digits}f} ± {factor * float(row[f'{name}_half_width']):.{digits}f}"

        line = next(line for line in section.splitlines() if line.startswith(f"| {row['method']} |"))
        cells = [part.strip() for part in line.strip("|").split("|")]
        seeds = f"{row['seeds_reaching_target']} of {row['seeds']} seeds"
        assert float(cells[1]) == float(row["lr"]) == RACES["smoke"].known[row["method"]]
        assert cells[2:4] == [cell("best_accuracy", 100, 1), cell("final_accuracy_of_the_average_model", 100, 1)]
        assert cells[4] == (cell("seconds_to_target") if row["seconds_to_target"] else seeds)
        assert cells[5:8] == [cell("most_nodes_to_target"), cell("steps_to_target", 1, 0), cell("mib_to_target")]
        assert cells[8] == ("1" if row["method"] == AD_PSGD else cell("times_faster_than_ad_psgd"))


def test_the_committed_experiments_are_those_of_now(tmp_path):
    for method in METHODS:
        job = RACES["smoke"].job(method, Request("smoke", tmp_path, 5))
        committed = load(ROOT / "results" / "async" / "experiments" / f"{job.path.name}.toml")
        assert committed == job.experiment
