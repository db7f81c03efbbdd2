"""The item `rivals`: what it compares, how rates are found, and what it makes of the records."""

import csv
import json
import math
import statistics
from pathlib import Path

import msgspec
import pytest

from epidemic import theory
from epidemic.cli import main
from epidemic.core.errors import RunFailed
from epidemic.experiment import load
from epidemic.measure import FoundFloors, floors_of
from epidemic.record import MeanMax, Traffic, read_records
from epidemic.report.statistics import Interval
from epidemic.study import reproduce as reproducing
from epidemic.study.reproduce import ITEMS, Request, items_named, planned, rivals, stages
from epidemic.study.reproduce.contests import TUNING_SEED, VALIDATION
from epidemic.study.reproduce.rivals import (
    COMPLETE,
    CONTROLS,
    FRAGMENTS_1,
    FRAGMENTS_4,
    INT8,
    LOCAL,
    METHODS,
    NONE,
    ORACLE,
    PGA,
    QG,
    RANDOM_K,
    RIVALRIES,
    RIVALS,
    TRACKING,
)
from epidemic.topology import topology_from

ROOT = Path(__file__).parents[1]
FEW = (ORACLE, LOCAL, FRAGMENTS_1)
SMALL = msgspec.structs.replace(RIVALRIES["smoke"], rounds=4, samples=50, seeds=2, known={}, rates=(0.1, 0.4))
"""Short, and with rates to be found."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A directory in which three methods have run, after their rates were found."""
    request = Request("smoke", tmp_path_factory.mktemp("rivals") / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RIVALRIES, "smoke", SMALL)
        patch.setattr(rivals, "METHODS", FEW)
        for stage in stages(items_named("rivals"), request):
            assert reproducing.run_jobs(stage, None) == {}
    return request


# -- the setting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", RIVALRIES)
def test_everybody_has_the_same_data_start_and_steps(scale, tmp_path):
    jobs = [RIVALRIES[scale].job(method, Request(scale, tmp_path)) for method in METHODS]
    own = ("name", "topology", "algorithm", "compression")
    same = [{k: v for k, v in job.experiment.table().items() if k not in own} for job in jobs]
    assert all(table == same[0] for table in same)
    assert {(job.experiment.algorithm.local_steps, job.experiment.algorithm.batch_size) for job in jobs} == {(3, 8)}
    assert same[0]["nodes"] == 96


def test_all_that_was_promised_is_compared():
    kinds = [(r.topology["kind"], r.algorithm.get("kind"), (r.compression or {}).get("kind")) for r in RIVALS.values()]
    for s in (1, 2, 4, 7):
        assert RIVALS[f"EL-Oracle, s = {s}"].topology == {"kind": "el-oracle", "s": s}
        assert RIVALS[f"EL-Local, s = {s}"].topology == {"kind": "el-local", "s": s}
    for kind in (
        "base",
        "one-peer-exponential",
        "u-equistatic",
        "exponential",
        "matcha",
        "periodic",
        "none",
        "complete",
    ):
        assert (kind, None, None) in kinds
    assert {r.algorithm["kind"] for r in RIVALS.values() if r.algorithm} == {
        "push-sum",
        "qg-momentum",
        "gradient-tracking",
    }
    assert [r.topology["k"] for r in RIVALS.values() if r.topology["kind"] == "fragments"] == [1, 4, 16]
    assert RIVALS[RANDOM_K].compression == {"kind": "random-k", "share": 0.25}
    assert RIVALS[INT8].compression == {"kind": "int8"}
    assert (RIVALS[PGA].topology["period"], RIVALS[PGA].topology["cost"]) == (6, "all-reduce")


@pytest.mark.parametrize("scale", RIVALRIES)
def test_no_run_ends_when_gossip_pga_has_just_averaged(scale):
    contest = RIVALRIES[scale]
    assert contest.rounds % rivals.PERIOD == 2
    assert contest.rounds % contest.every == 0
    assert contest.quarter % contest.every == 0
    assert contest.quarter == pytest.approx(contest.rounds / 4, rel=0.05)


def test_only_el_local_and_fragments_of_it_need_nothing():
    free = [method for method in METHODS if not RIVALS[method].needs]
    assert free == [m for m in METHODS if m.startswith(("EL-Local", "fragments")) or m == NONE]


@pytest.mark.parametrize(
    ("method", "noise", "bias"),
    [
        (ORACLE, 0.130952, 0.165249),
        (LOCAL, 0.152180, 0.198562),
        ("EL-Oracle, s = 1", 0.979167, 2.896701),
        ("one-peer exponential", 0.999971, 2.978803),
        ("exponential", 0.159460, 0.379689),
        (FRAGMENTS_4, 0.152180, 0.198562),
        (COMPLETE, 0, 0),
        (NONE, math.inf, math.inf),
    ],
)
def test_floors_are_those_of_the_theory(method, noise, bias):
    found = rivals.floors_for(method)
    assert (found.noise, found.bias) == (pytest.approx(noise, abs=1e-6), pytest.approx(bias, abs=1e-6))
    assert not found.estimated


def test_floors_of_a_coordinate_that_few_messages_have():
    topology = topology_from({"kind": "el-oracle", "s": 7})
    most = floors_of(topology, 96, share=1 - 1e-9)
    assert most.estimated
    assert most.noise == pytest.approx(theory.floors_oracle(96, 7).noise, rel=0.01)
    found = floors_of(topology, 96, share=0.25)
    shrinks = found.noise / (1 + found.noise)  # F_N = eta / (1 - eta), eta around the new mean
    around_the_old = theory.alpha_masked(96, 7, 0.25)
    assert around_the_old * (1 - 3 / 96) < shrinks < around_the_old, "the mean drifts, by some part of 1 / n"
    assert found == floors_of(topology, 96, share=0.25)


# -- learning rates ---------------------------------------------------------------------------------------------------


def test_known_rates_are_of_the_grid_and_not_at_its_edge():
    contest = RIVALRIES["smoke"]
    assert set(contest.known) == set(METHODS)
    assert set(contest.known.values()) <= set(contest.rates[1:-1])
    for other in RIVALRIES.values():
        assert len(other.rates) == 5
        assert other.rates[-1] >= 10 * other.rates[0], "at least a factor of ten"
    assert not RIVALRIES["laptop"].known
    assert not RIVALRIES["paper"].known


def test_the_committed_scores_give_the_known_rates():
    with (ROOT / "results" / "rivals" / "tuning.csv").open() as file:
        table = list(csv.DictReader(file))
    contest = RIVALRIES["smoke"]
    for method in METHODS:
        scores = {float(row["lr"]): float(row["validation_accuracy"]) for row in table if row["method"] == method}
        assert tuple(scores) == contest.rates
        assert max(scores, key=scores.get) == contest.known[method]


def test_rates_are_tried_on_samples_and_seeds_of_their_own(tmp_path):
    request = Request("laptop", tmp_path, 3)
    first, second = stages(items_named("rivals"), request)
    assert len(first) == len(METHODS) * 5
    assert {(job.experiment.seeds, job.experiment.data.validation) for job in first} == {((TUNING_SEED,), VALIDATION)}
    assert {(job.experiment.seeds, job.experiment.data.validation) for job in second} == {((1, 2, 3), 0.0)}
    jobs = planned(items_named("rivals"), request)
    assert [job.name for job in jobs] == [job.name for job in (*first, *second)]
    assert len({job.path.name for job in jobs}) == len(jobs), "experiment files are called so"


def test_the_best_rate_on_the_samples_set_aside_is_taken(found, monkeypatch):
    for method in FEW:
        scores = {}
        for lr, job in SMALL.trials(method, found).items():
            records, _ = read_records(job.path / f"seed-{TUNING_SEED}" / "records.jsonl")
            scores[lr] = statistics.fmean(r.accuracy.mean for r in records if r.round > 0)
        job = SMALL.job(method, found)
        assert job.experiment.algorithm.lr == max(scores, key=scores.get)
        assert job.finished
    monkeypatch.setattr(rivals, "METHODS", FEW)
    notes = SMALL.rate_notes(found, {})
    assert "found with this grid: 0.1, 0.4" in notes[0]
    assert notes[1].startswith(f"{ORACLE}: 0.1: ")


def test_a_failure_is_an_error(tmp_path):
    with pytest.raises(RunFailed, match="rivals: none failed: x"):
        RIVALRIES["smoke"].need(Request("smoke", tmp_path), {"rivals: none": "x"})


# -- what is made of the records --------------------------------------------------------------------------------------


class Made(msgspec.Struct):
    """A record that was made up."""

    round: int
    bytes: Traffic


def test_a_budget_is_read_at_the_last_evaluation_within_it():
    def at(round, sent):
        part = MeanMax(sent, sent)
        return Made(round, Traffic(part, MeanMax(1e6, 10**6), part, part))

    records = [at(0, 0), at(2, 20), at(4, 40), at(6, 60)]
    assert [rivals._within(records, budget).round for budget in (19.5, 19.9, 59, 1000)] == [0, 2, 4, 6]
    assert rivals._within([at(0, 0), at(2, 0)], 5).round == 2, "who sends nothing has all rounds"


def test_standings_are_read_from_the_records(found):
    contest = SMALL
    result = contest.result(LOCAL, found)
    one = rivals.RivalResult(result, budget=7 * 4 * 2410 * 3)
    for i, seed in enumerate((1, 2)):
        place = contest.job(LOCAL, found).path / f"seed-{seed}"
        records, _ = read_records(place / "records.jsonl")
        summary = json.loads((place / "summary.json").read_text())
        finals = sorted(node.final_accuracy for node in result.seeds[i].nodes)
        assert len(finals) == 96
        assert one.final[i] == pytest.approx(100 * summary["final_accuracy"]["mean"])
        assert one.final[i] == pytest.approx(100 * statistics.fmean(finals))
        assert one.worst[i] == pytest.approx(100 * statistics.fmean(finals[:10])), "ten of 96"
        assert one.average[i] == pytest.approx(100 * summary["final_mean_model_accuracy"])
        assert one.disagreement[i] == records[-1].disagreement
        assert one.within[i] == pytest.approx(100 * records[1].accuracy.mean), "two rounds; three are not evaluated"
    assert one.rounds == 2
    other = rivals.RivalResult(contest.result(ORACLE, found), 1e9)
    assert other.rounds == 4
    lead = rivals.lead(one.final, other.final)
    pairs = [a - b for a, b in zip(one.final, other.final, strict=True)]
    assert lead.mean == pytest.approx(statistics.fmean(pairs))
    assert lead.half_width == pytest.approx(12.7062 * abs(pairs[0] - pairs[1]) / 2, rel=1e-4)


def test_one_fragment_is_found_to_be_its_inner_topology_and_others_are_not(found):
    one, inner, other = (
        rivals.RivalResult(SMALL.result(method, found), 1e9) for method in (FRAGMENTS_1, LOCAL, ORACLE)
    )
    assert rivals._same(one, inner).verdict == "agrees"
    assert rivals._same(one, other).verdict == "differs"


def test_a_lead_needs_an_interval_without_zero():
    assert rivals._judged(Interval(2.0, 1.0, 5)) == "ahead"
    assert rivals._judged(Interval(-2.0, 1.0, 5)) == "behind"
    assert rivals._judged(Interval(1.0, 1.0, 5)) == "open"
    assert rivals._judged(Interval(1.0, None, 1)) == "open"


def test_floors_explain_accuracies_that_follow_them(monkeypatch):
    made_up = {method: FoundFloors(1.0 + i, (7.0 * i) % 26, 1.0, False) for i, method in enumerate(METHODS)}
    monkeypatch.setattr(rivals, "floors_for", made_up.__getitem__)

    class Finals:
        def __init__(self, values):
            self.final = values

    def explained(sign):
        made = {m: Finals([sign * rivals.floors_for(m).bias + 0.01 * i for i in range(3)]) for m in METHODS}
        return rivals._explained(made, "bias")

    assert (explained(-1).verdict, explained(-1).ours) == ("agrees", pytest.approx(1))
    assert (explained(+1).verdict, explained(+1).ours) == ("differs", pytest.approx(-1))
    plain = [m for m in METHODS if RIVALS[m].plain and m not in (*CONTROLS, FRAGMENTS_1)]
    assert f"over {len(plain)} methods" in explained(-1).what
    assert not {TRACKING, QG, INT8, NONE, COMPLETE} & set(plain)


# -- before it runs ---------------------------------------------------------------------------------------------------


def test_a_dry_run_counts_what_each_method_would_send(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "rivals", "--dry-run", "--json"]) == 0
    runs = {run["run"].removeprefix("rivals: "): run for run in json.loads(capsys.readouterr().out)["runs"]}
    assert list(runs) == list(METHODS)
    model, header, rounds = 4 * 2410, 256, RIVALRIES["smoke"].rounds
    sent = {method: run["cost"]["sent_per_node"] / rounds for method, run in runs.items()}
    reduced = math.ceil(2 * 95 * model / 96) + 2 * 95 * header  # whole bytes
    exact = {
        ORACLE: 7 * (model + header),
        FRAGMENTS_4: 7 * (model + 4 * header),
        TRACKING: 7 * (2 * model + header),
        INT8: 7 * (2410 + 4 * 5 + header),
        COMPLETE: 95 * (model + header),
        "complete, all-reduce": reduced,
        PGA: (5 * (model + header) + reduced) / 6,
        "Base-2": 0.875 * (model + header),
        NONE: 0,
    }
    for method, count in exact.items():
        assert sent[method] == pytest.approx(count), method
    assert list(tmp_path.iterdir()) == []


def test_help_lists_it(capsys):
    assert main(["reproduce", "--help"]) == 0
    assert "spectra, async, rivals" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert ITEMS["rivals"].expected_from == "claim"


# -- what is written of it --------------------------------------------------------------------------------------------


def test_the_documentation_quotes_the_numbers_of_the_committed_table():
    section = (ROOT / "docs" / "results.md").read_text().partition("## EL and its rivals")[2].partition("\n## ")[0]
    with (ROOT / "results" / "rivals" / "rivals.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["method"] for row in table] == list(METHODS)
    for row in table:

        def cell(name, sign="", row=row):
            return f"{float(row[name]):{sign}.1f} ± {float(row[f'{name}_half_width']):.1f}"

        line = next(line for line in section.splitlines() if line.startswith(f"| {row['method']} |"))
        cells = [part.strip() for part in line.strip("|").split("|")]
        assert float(cells[1]) == float(row["lr"]) == RIVALRIES["smoke"].known[row["method"]]
        assert int(row["seeds"]) == 5
        assert cells[2:4] == [f"{float(row[name]):.3f}" for name in ("noise_floor", "bias_floor")]
        assert cells[4] == cell("accuracy")
        assert cells[6:8] == [cell("worst_tenth_accuracy"), cell("averaged_model_accuracy")]
        assert cells[8:10] == [f"{float(row['disagreement']):.3g}", f"{float(row['mib']):.3g}"]
        if row["method"] != ORACLE:
            assert cells[5] == cell("ahead_at_equal_rounds", "+")
            assert cells[10] == cell("ahead_at_equal_bytes", "+")


def test_the_committed_experiments_are_those_of_now(tmp_path):
    for method in METHODS:
        job = RIVALRIES["smoke"].job(method, Request("smoke", tmp_path, 5))
        committed = load(ROOT / "results" / "rivals" / "experiments" / f"{job.path.name}.toml")
        assert committed == job.experiment
