"""Every table and figure of the paper comes out with the right values, at the smallest scale."""

import csv
import json
import math
from pathlib import Path

import msgspec
import pytest
import scipy.stats

from epidemic import theory
from epidemic.cli import main
from epidemic.experiment import load, same_experiment
from epidemic.record import read_records
from epidemic.report.statistics import Interval
from epidemic.study.reproduce import ITEMS, Request, items_named, learning, planned
from epidemic.study.reproduce import studies as st
from epidemic.study.reproduce.asynchronous import AD_PSGD, DIVSHARE, METHODS, RACES
from epidemic.study.reproduce.base import ahead, measured, near
from epidemic.study.reproduce.rivals import ORACLE, RIVALRIES, RIVALS
from epidemic.study.reproduce.structure import received, worst_deviation


@pytest.fixture(scope="module", autouse=True)
def short():
    """All rivals run, for a few rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RIVALRIES, "smoke", msgspec.structs.replace(RIVALRIES["smoke"], rounds=4))
        yield


@pytest.fixture(scope="module")
def out(short, tmp_path_factory):
    directory = tmp_path_factory.mktemp("reproduce") / "out"
    assert main(["reproduce", "all", "--scale", "smoke", "--out", str(directory), "--quiet"]) == 0
    return directory


def rows(out, item):
    with (out / item / f"{item}.csv").open() as file:
        return list(csv.DictReader(file))


def checks(out, item):
    return {check["what"]: check for check in json.loads((out / item / "checks.json").read_text())["checks"]}


def raw(out, method, setting="cifar10"):
    """The records of both seeds, as plain JSON."""
    place = out / "runs" / setting / method
    return [[json.loads(line) for line in (place / f"seed-{s}/records.jsonl").read_text().splitlines()] for s in (1, 2)]


# -- what every item writes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", ITEMS)
def test_every_item_writes_its_figure_data_and_verdicts(out, item):
    pil = pytest.importorskip("PIL.Image")
    place = out / item
    with pil.open(place / f"{item}.png") as picture:
        assert picture.width > 600
        assert len(picture.convert("L").getcolors(1 << 20)) > 10, "it is not empty"
    assert (place / f"{item}.pdf").read_bytes().startswith(b"%PDF")
    assert "</svg>" in (place / f"{item}.svg").read_text()[-20:]
    assert len(rows(out, item)) >= 2
    assert checks(out, item)


@pytest.mark.parametrize("item", [item.name for item in ITEMS.values() if item.trains])
def test_the_experiment_files_are_those_that_ran(out, item):
    request = Request("smoke", out)
    jobs = ITEMS[item].planned(request)
    files = sorted((out / item / "experiments").glob("*.toml"))
    assert len(files) == len(jobs)
    for job in jobs:
        written = load(out / item / "experiments" / f"{job.path.name}.toml")
        ran = json.loads((job.path / "seed-1/run.json").read_text())["experiment"]
        assert same_experiment(ran, json.loads(json.dumps(written.table()))) == []


def test_running_again_trains_nothing_and_writes_the_same(out, capsys):
    before = {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("records.jsonl")}
    table, picture = (out / "table2/table2.csv").read_bytes(), (out / "table2/table2.svg").read_bytes()
    assert main(["reproduce", "table2", "--out", str(out)]) == 0
    assert "runs are finished already" in capsys.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert (out / "table2/table2.csv").read_bytes() == table
    assert (out / "table2/table2.svg").read_bytes() == picture


# -- values: learning -------------------------------------------------------------------------------------------------


def test_table2_holds_what_the_records_say(out):
    found = {row["method"]: row for row in rows(out, "table2")}
    assert list(found) == ["complete", "7-regular static", "8-U-EquiStatic", "EL-Oracle", "EL-Local"]
    static = raw(out, "7-regular-static")
    mean = [(a["round"], (a["accuracy"]["mean"] + b["accuracy"]["mean"]) / 2) for a, b in zip(*static, strict=True)]
    target = max(accuracy for _, accuracy in mean)
    for method, directory in (
        ("EL-Oracle", "el-oracle"),
        ("complete", "complete"),
        ("7-regular static", "7-regular-static"),
    ):
        by_seed = raw(out, directory)
        row = found[method]
        tops = [max(r["accuracy"]["mean"] for r in records) for records in by_seed]
        assert float(row["best_accuracy"]) == pytest.approx(sum(tops) / 2)
        assert float(row["best_accuracy_half_width"]) == pytest.approx(12.7062 * abs(tops[0] - tops[1]) / 2, rel=1e-4)
        assert float(row["target"]) == pytest.approx(target)
        curve = [
            (a["round"], (a["accuracy"]["mean"] + b["accuracy"]["mean"]) / 2) for a, b in zip(*by_seed, strict=True)
        ]
        reached = next((t for t, accuracy in curve if accuracy >= target - 1e-12), None)
        assert row["rounds_to_target"] == ("" if reached is None else str(reached))
    parameters = 14 * 14 * 32 + 32 + 32 * 10 + 10
    assert float(found["7-regular static"]["gib_in_all"]) * 2**30 == pytest.approx(30 * 7 * (4 * parameters + 256))
    assert float(found["complete"]["gib_in_all"]) * 2**30 == pytest.approx(30 * 95 * (4 * parameters + 256))
    assert found["EL-Oracle"]["paper_best_accuracy"] == "0.6656"


def test_everybody_learns_and_mixing_more_is_better(out):
    final = {name: sum(r[-1]["accuracy"]["mean"] for r in raw(out, name)) / 2 for name in ("complete", "el-oracle", "el-local", "7-regular-static")}  # fmt: skip
    assert min(final.values()) > 0.55
    assert final["complete"] == max(final.values())
    apart = {name: sum(r[-1]["disagreement"] for r in raw(out, name)) / 2 for name in ("el-oracle", "7-regular-static", "unlucky-7-regular")}  # fmt: skip
    assert apart["el-oracle"] < apart["7-regular-static"] < apart["unlucky-7-regular"]
    by_size = [
        sum(r[-1]["accuracy"]["mean"] for r in raw(out, name))
        for name in ("el-oracle-s-4", "el-oracle", "el-oracle-s-14")
    ]
    assert by_size == sorted(by_size)


def test_smoke_never_claims_to_match_a_number_of_the_paper(out):
    for item in ("fig1", "table2"):
        for what, check in checks(out, item).items():
            if what.endswith(("(%)", "loss", "to the target")) and "ahead" not in what:
                assert check["verdict"] == "not comparable", what
                assert check["reason"].startswith("other data and another model")


def test_leads_are_seed_by_seed(out):
    check = checks(out, "fig1")["EL-Oracle ahead of 7-regular static (points)"]
    oracle, static = raw(out, "el-oracle"), raw(out, "7-regular-static")
    leads = [100 * (a[-1]["accuracy"]["mean"] - b[-1]["accuracy"]["mean"]) for a, b in zip(oracle, static, strict=True)]
    assert check["ours"] == pytest.approx(sum(leads) / 2)
    assert check["half_width"] == pytest.approx(12.7062 * abs(leads[0] - leads[1]) / 2, rel=1e-4)


def test_figure6_finds_the_best_learning_rate(out):
    for method, first in (("EL-Oracle", "el-oracle"), ("7-regular static", "7-regular-static")):
        names = {0.05: first, **{lr: f"{first}-lr-{str(lr).replace('.', '-')}" for lr in (0.01, 0.1, 0.5)}}
        tops = {lr: sum(max(r["accuracy"]["mean"] for r in s) for s in raw(out, name)) for lr, name in names.items()}
        assert checks(out, "fig6")[f"{method}: best learning rate"]["ours"] == max(tops, key=tops.get)


def test_figures_hold_all_their_curves(out):
    assert {row["method"] for row in rows(out, "fig5")} == {
        "EL-Oracle, s = 4", "EL-Oracle", "EL-Oracle, s = 14", "EL-Local, s = 4", "EL-Local", "EL-Local, s = 14", "7-regular static"
    }  # fmt: skip
    for item, setting in (("fig7", "cifar10-homogeneous"), ("fig8", "femnist")):
        found = [row for row in rows(out, item) if row["method"] == "EL-Local"]
        by_seed = raw(out, "el-local", setting)
        assert [int(row["round"]) for row in found] == [r["round"] for r in by_seed[0]]
        assert float(found[-1]["accuracy"]) == pytest.approx(sum(r[-1]["accuracy"]["mean"] for r in by_seed) / 2)


# -- values: structure ------------------------------------------------------------------------------------------------


def test_table1_has_the_known_numbers_at_96_nodes(out):
    found = {row["kind"]: row for row in rows(out, "table1")}
    known = {"ring": 1.344e16, "torus": 9.114e9, "exponential": 4.990e7, "el-oracle": 47447.338, "el-local": 42636.108}
    for kind, value in known.items():
        assert float(found[kind]["rounds_at_96"]) == pytest.approx(value, rel=1e-3)
    verdicts = {what: check["verdict"] for what, check in checks(out, "table1").items()}
    random = [f"{kind}: power of n" for kind in ("erdos-renyi", "d-equistatic", "u-equistatic")]
    assert {verdict for what, verdict in verdicts.items() if what not in random} == {"agrees"}
    assert {verdicts[what] for what in random} <= {"agrees", "open"}
    assert checks(out, "table1")["ring: power of n"]["ours"] == pytest.approx(11, abs=0.01)


def test_table3_counts_parameters(out):
    assert [row["parameters"] for row in rows(out, "table3")] == ["89834", "1690046"]
    assert {check["verdict"] for check in checks(out, "table3").values()} == {"agrees"}


def test_figure2_draws_three_targets_a_round(out):
    found = rows(out, "fig2")
    for method in ("EL-Oracle", "EL-Local"):
        for t in ("0", "1"):
            assert len([r for r in found if r["method"] == method and r["round"] == t and r["from"] == "0"]) == 3
    both = {(r["from"], r["to"], r["round"]) for r in found if r["method"] == "EL-Oracle"}
    assert {(b, a, t) for a, b, t in both} == both


def test_figure3_is_the_binomial_law(out):
    found = rows(out, "fig3")
    assert {(int(r["n"]), int(r["s"])) for r in found} == {(100, 7), (1000, 10), (10_000, 13), (10_000, 14)}
    for row in found:
        n, s, k = int(row["n"]), int(row["s"]), int(row["received"])
        exact = scipy.stats.binom.cdf(k, n - 1, s / (n - 1))
        assert float(row["binomial"]) == pytest.approx(exact, abs=1e-10)
        pairs = n * int(row["rounds"])
        assert abs(float(row["at_most"]) - exact) <= 5 * math.sqrt(max(exact * (1 - exact), 20 / pairs) / pairs)
    for n, s in ((100, 7), (10_000, 14)):
        mine = [r for r in found if (r["n"], r["s"]) == (str(n), str(s))]
        assert sum(int(r["pairs"]) for r in mine) == n * int(mine[0]["rounds"])
        assert sum(int(r["pairs"]) * int(r["received"]) for r in mine) == s * n * int(mine[0]["rounds"])


def test_figure3_prints_the_corrected_percentile(out, capsys):
    assert main(["reproduce", "fig3", "--out", str(out)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "99 % receive at most 22 models (99.24 %); fewer than 22 is 98.60 %" in text
    assert "With s = 14 it is 23" in text
    assert theory.indegree(10_000, 13).at_most(22) == pytest.approx(0.9924, abs=5e-5)
    assert theory.indegree(10_000, 13).at_most(21) == pytest.approx(0.98598, abs=5e-6)
    assert theory.indegree(10_000, 14).percentile(0.99) == 23
    assert checks(out, "fig3")["n = 10,000, s = 13: share that receives fewer than 22 (%)"]["verdict"] == "differs"
    assert checks(out, "fig3")["n = 10,000, s = 13: share that receives at most 22 (%)"]["verdict"] == "agrees"


def test_another_law_would_be_noticed():
    counts = received(100, 7, 300)
    assert worst_deviation(counts, 100, 7) < 5
    assert worst_deviation(counts, 100, 8) > 50


# -- values: beyond the paper -----------------------------------------------------------------------------------------


def test_contraction_has_the_known_numbers(out):
    found = {int(row["s"]): row for row in rows(out, "contraction")}
    assert float(found[7]["oracle_exact"]) == pytest.approx(0.11578947, rel=1e-6)
    assert float(found[4]["local_exact"]) == pytest.approx(0.2350314877, rel=1e-9)
    assert float(found[14]["beta"]) == pytest.approx(0.0609022395, rel=1e-8)
    assert {check["verdict"] for check in checks(out, "contraction").values()} == {"agrees"}
    for row in found.values():
        for kind in ("oracle", "local"):
            assert abs(float(row[f"{kind}_measured"]) - float(row[f"{kind}_exact"])) <= float(row[f"{kind}_5_errors"])


def test_drift_is_exact_and_far_below_the_bound(out):
    found = {int(row["s"]): row for row in rows(out, "drift")}
    assert float(found[7]["exact"]) == pytest.approx(1.586e-4, rel=1e-3)
    assert float(found[4]["exact"]) == pytest.approx(4.20146e-4, rel=1e-5)
    assert float(found[4]["paper_bound"]) == pytest.approx(2.45262e-3, rel=1e-5)
    assert {check["verdict"] for check in checks(out, "drift").values()} == {"agrees"}


def test_cap_has_the_known_numbers(out):
    found = {int(row["k"]): row for row in rows(out, "cap")}
    known = {4: (0.19882711, 0.443751), 7: (0.14352699, 0.143398), 8: (0.13789592, 0.086082), 10: (0.13342738, 0.025030), 14: (0.13226398, 0.000908)}  # fmt: skip
    for k, (factor, lost) in known.items():
        assert float(found[k]["exact_no_retry"]) == pytest.approx(factor, abs=1e-8)
        assert float(found[k]["lost_no_retry"]) == pytest.approx(lost, abs=1e-6)
    assert float(found[7]["unlimited_retries"]) == pytest.approx(0.1159, abs=0.002)
    assert float(found[8]["unlimited_retries"]) == pytest.approx(0.1227, abs=0.003)
    assert float(found[10]["unlimited_retries"]) == pytest.approx(0.1287, abs=0.003)
    assert found[4]["unlimited_retries"] == ""
    assert {check["verdict"] for check in checks(out, "cap").values()} == {"agrees"}


def test_spectra_have_the_known_numbers(out):
    from epidemic.topology import TOPOLOGIES

    found = {row["kind"]: row for row in rows(out, "spectra")}
    assert float(found["ring"]["p"]) == pytest.approx(0.0028527316, rel=1e-7)
    assert float(found["torus"]["gap"]) == pytest.approx(0.0535898385, rel=1e-8)
    assert set(found) == {f"{kind}{row}" for kind, cls in TOPOLOGIES.items() for row in cls.compared(4, None)} - {
        "hypercube"
    }  # 96 is no power of two
    assert {check["verdict"] for check in checks(out, "spectra").values()} == {"agrees"}


# -- values: simulated time -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def raced(out):
    """The records of every method of `async` by seed."""
    request = Request("smoke", out)
    jobs = {method: RACES["smoke"].job(method, request) for method in METHODS}
    return {m: [read_records(job.path / f"seed-{s}/records.jsonl")[0] for s in (1, 2)] for m, job in jobs.items()}


def test_async_says_when_each_method_reaches_the_target(out, raced):
    curve = [sum(r.accuracy.mean for r in pair) / 2 for pair in zip(*raced[AD_PSGD], strict=True)]
    target = 0.9 * max(curve)
    found = {row["method"]: row for row in rows(out, "async")}
    assert list(found) == list(METHODS)
    times = {}
    for method, by_seed in raced.items():
        row = found[method]
        firsts = [next((r for r in records if r.accuracy.mean >= target), None) for records in by_seed]
        times[method] = [None if r is None else r.time.seconds for r in firsts]
        assert float(row["target"]) == pytest.approx(target)
        assert int(row["seeds_reaching_target"]) == sum(r is not None for r in firsts)
        tops = [max(r.accuracy.mean for r in records) for records in by_seed]
        assert float(row["best_accuracy"]) == pytest.approx(sum(tops) / 2)
        assert float(row["best_accuracy_half_width"]) == pytest.approx(12.7062 * abs(tops[0] - tops[1]) / 2, rel=1e-4)
        if None in firsts:
            assert row["seconds_to_target"] == row["mib_to_target"] == row["times_faster_than_ad_psgd"] == ""
            continue
        assert float(row["seconds_to_target"]) == pytest.approx(sum(times[method]) / 2)
        assert float(row["steps_to_target"]) == pytest.approx(sum(r.time.steps for r in firsts) / 2)
        assert float(row["mib_to_target"]) == pytest.approx(sum(r.bytes.total.mean for r in firsts) / 2 / 2**20)
    assert None not in times[AD_PSGD] + times[DIVSHARE], "a test of nothing, else"
    pairs = list(zip(times[AD_PSGD], times[DIVSHARE], strict=True))
    ratios, leads = [a / b for a, b in pairs], [a - b for a, b in pairs]
    assert float(found[DIVSHARE]["times_faster_than_ad_psgd"]) == pytest.approx(sum(ratios) / 2)
    published, lead = list(checks(out, "async").values())[:2]
    assert (published["ours"], published["expected"], published["claim"]) == (
        pytest.approx(sum(ratios) / 2),
        3.9,
        "up to",
    )
    assert published["verdict"] == "not comparable"
    assert published["reason"].startswith("other data and another model, 3 of 128 local steps")
    assert lead["ours"] == pytest.approx(sum(leads) / 2)
    assert lead["half_width"] == pytest.approx(12.7062 * abs(leads[0] - leads[1]) / 2, rel=1e-4)


def test_async_looks_at_nodes_one_by_one(out, raced):
    row = next(row for row in rows(out, "async") if row["method"] == DIVSHARE)
    target = float(row["target"])
    for column, place in (("first_nodes_to_target", 5), ("most_nodes_to_target", 53)):
        until = []
        for records in raced[DIVSHARE]:
            firsts = [
                next((r.time.seconds for r in records if r.time.accuracies[node] >= target), math.inf)
                for node in range(60)
            ]
            until.append(sorted(firsts)[place])
        assert float(row[column]) == pytest.approx(sum(until) / 2)


def test_async_gives_everybody_the_same_time(out, raced):
    for by_seed in raced.values():
        for records in by_seed:
            assert [r.time.seconds for r in records] == [r.time.seconds for r in raced[AD_PSGD][0]]
            assert records[-1].time.seconds == RACES["smoke"].stop


def test_async_prints_who_is_there_when(out, capsys):
    assert main(["reproduce", "async", "--out", str(out)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "times AD-PSGD" in printed
    assert "up to 3.90" in printed
    assert "learning rates: each method's own, found before with this grid: 0.05, 0.1, 0.2, 0.4, 0.8" in printed


# -- values: rivals ---------------------------------------------------------------------------------------------------


def test_rivals_are_compared_seed_by_seed_at_equal_rounds_and_bytes(out):
    request = Request("smoke", out)
    found = {row["method"]: row for row in rows(out, "rivals")}
    assert list(found) == list(RIVALS)
    places = {m: RIVALRIES["smoke"].job(m, request).path for m in RIVALS}
    by_seed = {m: [read_records(p / f"seed-{s}/records.jsonl")[0] for s in (1, 2)] for m, p in places.items()}
    final = {
        m: [json.loads((p / f"seed-{s}/summary.json").read_text())["final_accuracy"]["mean"] for s in (1, 2)]
        for m, p in places.items()
    }
    budget = by_seed[ORACLE][0][1].bytes.model.mean
    assert by_seed[ORACLE][0][1].round == 2
    within = {
        m: [[r.accuracy.mean for r in records if r.bytes.model.mean <= 1.01 * budget][-1] for records in by_seed[m]]
        for m in RIVALS
    }
    for method, row in found.items():
        for column, values in (("ahead_at_equal_rounds", final), ("ahead_at_equal_bytes", within)):
            leads = [100 * (a - b) for a, b in zip(values[method], values[ORACLE], strict=True)]
            assert float(row[column]) == pytest.approx(sum(leads) / 2)
            half_width = 12.7062 * abs(leads[0] - leads[1]) / 2
            assert float(row[f"{column}_half_width"]) == pytest.approx(half_width, rel=1e-4, abs=1e-9)
        sent = [records[-1].bytes.total.mean for records in by_seed[method]]
        assert float(row["mib"]) == pytest.approx(sum(sent) / 2 / 2**20)
    rounds = {method: int(row["rounds_within_budget"]) for method, row in found.items()}
    assert (rounds["complete"], rounds["gradient tracking"], rounds["int8"], rounds["none"]) == (0, 0, 4, 4)


def test_rivals_get_verdicts_on_what_is_claimed_of_them(out, capsys):
    found = checks(out, "rivals")
    same = found["fragments, K = 1 and EL-Local, s = 7: largest difference of loss and D(X)"]
    assert (same["verdict"], same["ours"]) == ("agrees", 0)
    assert {check["verdict"] for check in found.values()} <= {"agrees", "differs", "open"}
    assert len(found) == 17
    assert main(["reproduce", "rivals", "--out", str(out)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "found before with this grid: 0.1, 0.2, 0.4, 0.8, 1.6 (mean accuracy over the rounds" in printed
    assert "F_B" in printed
    assert "a shared seed" in printed


# -- verdicts ---------------------------------------------------------------------------------------------------------


def test_verdicts_on_leads():
    assert ahead("x", Interval(2.0, 0.5, 5), 1.0).verdict == "agrees"
    assert ahead("x", Interval(-2.0, 0.5, 5), 1.0).verdict == "differs"
    assert ahead("x", Interval(-2.0, 0.5, 5), -1.0).verdict == "agrees"
    assert ahead("x", Interval(0.4, 0.5, 5), 1.0).verdict == "open"
    assert "the opposite" in ahead("x", Interval(-0.4, 0.5, 5), 1.0).reason
    assert ahead("x", Interval(0.4, None, 1), 1.0).verdict == "open"
    assert "the opposite, but one seed has no interval" in ahead("x", Interval(-0.4, None, 1), None).reason
    assert ahead("x", Interval(2.0, 0.5, 5), 1.0).difference == 1.0


def test_verdicts_on_numbers():
    assert near("x", 1.04, 1.0, 0.05).verdict == "agrees"
    assert near("x", 1.06, 1.0, 0.05).verdict == "differs"
    assert measured("x", [0.9, 1.1, 1.0, 1.05], 1.0).verdict == "agrees"
    assert measured("x", [0.9, 1.1, 1.0, 1.05], 2.0).verdict == "differs"


# -- scales -----------------------------------------------------------------------------------------------------------


def test_the_scale_paper_is_the_papers(tmp_path):
    request = Request("paper", tmp_path)
    jobs = planned(items_named("table2"), request)
    for job in jobs:
        e = job.experiment
        assert (e.nodes, e.rounds, e.seeds, e.eval.every, e.eval.samples) == (96, 3000, (1, 2, 3, 4, 5), 20, "all")
        assert (e.algorithm.local_steps, e.algorithm.batch_size, e.algorithm.momentum) == (3, 8, 0.0)
        assert e.algorithm.lr == (0.1 if e.name in ("complete", "8-U-EquiStatic") else 0.05)
        assert (e.partition.alpha, e.partition.min_samples) == (0.1, 10)
    assert all(
        job.experiment.rounds == 1000 and job.experiment.partition.alpha == 1.0
        for job in planned(items_named("fig7"), request)
    )
    for job in planned(items_named("fig8"), request):
        e = job.experiment
        assert (e.rounds, e.algorithm.lr, e.algorithm.local_steps, e.algorithm.batch_size) == (1440, 0.1, 7, 16)
    assert st.shortfalls(request, st.cifar("paper")) == ""
    assert "1,000 of 3,000 rounds, 1 of 5 seeds" in st.shortfalls(Request("laptop", tmp_path), st.cifar("laptop"))
    assert "2 of 5 seeds" in st.shortfalls(Request("paper", tmp_path, 2), st.cifar("paper"))


def test_runs_of_another_scale_are_never_taken_for_this_one(out, capsys):
    assert main(["reproduce", "table2", "--scale", "laptop", "--out", str(out)]) == 2
    assert "holds a different experiment" in capsys.readouterr().err
    assert main(["reproduce", "fig1", "--scale", "paper", "--seeds", "2", "--out", str(out), "--dry-run"]) == 2


def test_a_shortfall_comes_before_any_agreement(out, monkeypatch):
    study = learning.Study(st.cifar("smoke"), st.FIVE, Request("smoke", out))
    for reached in (None, (10, 2.0**30)):
        for paper in (None, 1.0):
            assert learning._traffic(study, st.EQUISTATIC, reached, paper).verdict == "not comparable"
    study.shortfall = ""
    found = {(r is None, p is None): learning._traffic(study, st.EQUISTATIC, r, p).verdict
             for r in (None, (10, 2.0**30)) for p in (None, 1.0)}  # fmt: skip
    assert found == {
        (True, True): "agrees",
        (True, False): "differs",
        (False, True): "differs",
        (False, False): "agrees",
    }
    assert study.number("x", Interval(66.0, 5.0, 5), 66.5, 1.0).verdict == "agrees"
    assert study.number("x", Interval(66.0, 5.0, 5), 70.0, 1.0).verdict == "open"
    assert study.number("x", Interval(66.0, 0.5, 5), 70.0, 1.0).verdict == "differs"


def test_items_share_their_runs(tmp_path):
    request = Request("smoke", tmp_path)
    assert planned(items_named("fig4"), request)[0].path == planned(items_named("table2"), request)[0].path
    assert len(planned(items_named("all"), request)) == 29 + 9 + 26
    names = [job.name for job in planned(items_named("all"), request)]
    assert len(set(names)) == len(names)


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig9"], "item 'fig9' is not known; did you mean"),
        (["table2", "--scale", "huge"], "--scale = 'huge'"),
        (["table2", "--seeds", "0"], "--seeds = 0 must be at least 1"),
        (["fig3", "--seeds", "2"], "fig3 trains nothing; leave out --seeds"),
        (["table2", "--data", "."], "uses the embedded data; leave out --data"),
        (["table2", "--scale", "laptop", "--data", "/nowhere"], "--data /nowhere is not a directory"),
        (["table2", "--scale", "laptop", "--data", "."], "holds no CIFAR-10: looked for"),
        (["table2", "--scale", "laptop"], "epidemic data fetch cifar10"),
        (["fig8", "--scale", "laptop"], "femnist is not in"),
        (["fig8", "--scale", "laptop", "--data", "sets"], "--data sets has no femnist in it"),
        (["all", "--scale", "paper"], "is not in"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, monkeypatch, arguments, message, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EPIDEMIC_DATA", str(tmp_path / "data"))
    (tmp_path / "sets" / "cifar10").mkdir(parents=True)
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "sets"]


def test_a_dry_run_says_what_it_would_cost_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "table2", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in found["runs"]] == [f"cifar10: {m.name}" for m in st.FIVE]
    parameters = 14 * 14 * 32 + 32 + 32 * 10 + 10
    assert found["runs"][1]["cost"]["sent_per_node"] == 30 * 7 * (4 * parameters + 256)
    assert 0 < found["seconds"] < 3600
    assert list(tmp_path.iterdir()) == []
    assert main(["reproduce", "fig3", "--dry-run"]) == 0
    assert "without training" in capsys.readouterr().out


def test_a_dry_run_knows_what_is_finished(out, capsys):
    assert main(["reproduce", "table2", "--out", str(out), "--dry-run"]) == 0
    assert capsys.readouterr().out.count("finished") == 5


def test_divergence_is_a_result_of_figure_6_and_an_error_elsewhere(out):
    request = Request("smoke", out)
    finding = ITEMS["fig6"].find(request, {"cifar10: EL-Oracle, lr 0.5": "the loss is no longer a finite number"})
    assert any("EL-Oracle, lr 0.5 diverged" in note for note in finding.notes)
    assert not any(row["method"] == "EL-Oracle, lr 0.5" for row in finding.rows)
    from epidemic.core.errors import RunFailed

    with pytest.raises(RunFailed, match="the disk is full"):
        ITEMS["fig6"].find(request, {"cifar10: EL-Oracle, lr 0.5": "the disk is full"})
    with pytest.raises(RunFailed, match="cifar10: complete failed: no disk"):
        ITEMS["table2"].find(request, {"cifar10: complete": "no disk"})


def test_what_failed_is_said_and_the_rest_is_still_made(out, monkeypatch, capsys):
    from epidemic.study import reproduce as reproducing

    monkeypatch.setattr(reproducing, "run_jobs", lambda *_: {"femnist: complete": "no disk"})
    some = {name: item for name, item in reproducing.ITEMS.items() if name in ("fig8", "table2")}
    monkeypatch.setattr(reproducing, "ITEMS", some)
    assert main(["reproduce", "all", "--out", str(out)]) == 1
    captured = capsys.readouterr()
    assert "1 of 2 items could not be made; the first, fig8: femnist: complete failed: no disk" in captured.err
    assert "table2: Best accuracy" in captured.out


def test_interrupted_it_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    from epidemic.core.errors import Interrupted
    from epidemic.study import reproduce as reproducing

    def stop(*_):
        raise Interrupted("interrupted in x, after 0 of 3 runs")

    monkeypatch.setattr(reproducing, "run_jobs", stop)
    place = str(tmp_path / "o")
    assert main(["reproduce", "fig1", "--seeds", "3", "--out", place]) == 130
    assert f"resume with: epidemic reproduce fig1 --scale smoke --out {place} --seeds 3" in capsys.readouterr().err
    assert not Path(place).exists()


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((30, 1), "30 rounds, as many as 7-regular static"),
        ((20, 1), "20 instead of 30 rounds"),
        (None, "did not reach it"),
    ],
)
def test_as_many_rounds_are_said_to_be_as_many(ours, said):
    """It used to say "30 instead of 30 rounds"."""

    class Found:
        shortfall = ""

        def to_target(self, method, target):
            return (30, 1) if method is learning.STATIC else ours

    check = learning._fewer_rounds(Found(), learning.ORACLE, 0.5, 1.7)
    assert check.reason == f"{said}; agrees within 15 %"
