"""What people look at of a run under the simulated clock: pages, tables, figures, callbacks. Without a clock nothing of it is there."""

import json
import re
from types import SimpleNamespace

import msgspec
import pytest

import epidemic as ep
from epidemic.callbacks import trackers as named
from epidemic.callbacks.progress import Display, share_done
from epidemic.callbacks.trackers import TAGS, WandB
from epidemic.cli import main
from epidemic.clock import Clock, Links, PerStepCompute
from epidemic.core.errors import BadInput
from epidemic.core.formatting import interval, simulated
from epidemic.counting import of_planned, round_label, rounds_planned, without_rounds
from epidemic.report.curves import learning_figure, lines_of
from epidemic.report.page import page
from epidemic.report.results import read_results, to_csv
from epidemic.report.settings import ComparedSettings, looks_of
from epidemic.study import comparison as comparing
from epidemic.web.pages import group_page, index, run_page
from epidemic.web.watch import Catalogue
from timed import at, clocked
from written import a_record, finished

CLOCK = Clock(compute=PerStepCompute(median=0.1, sigma=0.4), links=Links(uplink=0.5, latency=0.02))


def add(run, **tables):
    """Put more into what a written run says of its experiment."""
    for path in run.rglob("run.json"):
        info = json.loads(path.read_text())
        info["experiment"] |= tables
        path.write_text(json.dumps(info))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """EL in rounds of half a second, and a method without rounds that is five times as fast; two seeds each."""
    root = tmp_path_factory.mktemp("timed")
    for seed in (1, 2):
        finished(root / "rounds", name="EL", seed=seed, seeds=(1, 2))
        finished(root / "free", name="free", seed=seed, seeds=(1, 2))
    add(root / "free", algorithm={"kind": "async-el"})
    clocked(root / "rounds", lambda r, seed: 0.5 * r.round * (1 + 0.1 * seed))
    clocked(root / "free", lambda r, seed: 0.1 * r.round, lag=0.7, online=7)
    return root


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    root = tmp_path_factory.mktemp("plain")
    finished(root / "plain", name="plain")
    return root


@pytest.fixture(scope="module")
def small():
    """A real one."""
    experiment = ep.Experiment(
        name="small", nodes=4, rounds=6, seeds=[1, 2], topology=ep.ELLocal(2), data=ep.Digits(), partition=ep.IID(), model=ep.Logistic(),
        algorithm=ep.LocalSGD(lr=0.1, batch_size=4), eval=ep.Eval(every=2, samples=40), runtime=ep.Runtime(threads=1), clock=CLOCK,
    )  # fmt: skip
    return ep.simulate(experiment)


# -- the report -------------------------------------------------------------------------------------------------------


def test_the_report_has_simulated_time_beside_rounds_and_bytes(runs):
    text = page(read_results(runs), target=0.5)
    assert "<h2>Under the clock</h2>" in text
    for title in ("Accuracy against rounds", "Accuracy against simulated time", "Accuracy against traffic"):
        assert f"<figcaption>{title}</figcaption>" in text
    assert "round (without rounds: trainings per node)" in text
    assert "free: no rounds; what stands for them is the number of trainings of a node" in text
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(set(ids)) == len(ids), "no name occurs twice"


def test_the_report_says_what_the_target_takes_in_all_four_quantities(runs):
    """0.5 is reached at round 10: after 5.75 s (seeds 5.5 and 6), 20 steps, 10,000 bytes; without rounds after 1 s."""
    text = page(read_results(runs), target=0.5)
    table = re.search(r"Time and bytes to target.*?</table>", text, re.S)[0]
    heads = re.findall(r"<th scope=col>(.*?)</th>", table)
    rows = {re.sub("<.*>", "", row[0]): row[1:] for row in _rows(table)}
    found = {name: dict(zip(heads[1:], cells, strict=True)) for name, cells in rows.items()}
    assert found["EL"]["rounds"] == found["free"]["rounds"] == "10"
    assert found["EL"]["simulated seconds"] == "5.8"
    assert found["free"]["simulated seconds"] == "1.0"
    assert found["EL"]["local steps"] == "20.0"
    assert found["EL"]["nine tenths of the nodes (s)"].startswith("5.8 ± ")
    assert found["free"]["quickest tenth of the nodes (s)"] == "1.0 ± 0.0"


def _rows(table):
    for row in re.findall(r"<tr><th scope=row>(.*?)</th>(.*?)</tr>", table, re.S):
        yield [row[0].rpartition("</svg>")[2], *re.findall(r"<td>(.*?)</td>", row[1])]


def test_processors_uplinks_messages_and_staleness_are_told(runs):
    text = page(read_results(runs))
    table = re.search(r"Under the clock.*?</table>", text, re.S)[0]
    rows = {row[0]: row[1:] for row in _rows(table)}
    assert rows["free"] == ["2.0 ± 0.0", "60.0 ± 0.0", "30.0 ± 0.0", "480 ± 0", "80.0 ± 0.0", "5.0 ± 0.0", "5.0 ± 0.0", "0.70 ± 0.00",
                            "2.10 ± 0.00", "7 ± 0"]  # fmt: skip
    for title in ("Processors", "Uplinks", "Staleness"):
        assert f"<figcaption>{title}: " in text


def test_without_a_clock_nothing_speaks_of_it(plain):
    results = read_results(plain)
    text = page(results)
    assert "simulated" not in text
    assert "Under the clock" not in text
    assert "seconds" not in results.rows()[0]


def test_runs_with_and_without_a_clock_side_by_side(runs, plain):
    text = page(read_results(runs, plain))
    assert "Runs without a simulated clock have no line against simulated time." in text
    table = re.search(r"Under the clock.*?</table>", text, re.S)[0]
    assert {row[0]: row[1:] for row in _rows(table)}["plain"] == ["-"] * 10


def test_panels_of_a_sweep_have_simulated_time_too(tmp_path):
    for lr in (0.1, 0.2):
        for s in (2, 3):
            run = tmp_path / f"lr={lr},s={s}"
            finished(run, name="point")
            add(run, topology={"kind": "el-local", "s": s}, algorithm={"lr": lr})
    clocked(tmp_path, lambda r, seed: 2.0 * r.round)
    text = page(read_results(tmp_path))
    assert "<h3>Accuracy (%) against rounds, by " in text
    assert "<h3>Accuracy (%) against simulated time, by " in text


def test_the_table_has_columns_of_time(runs):
    row = read_results(runs / "free").rows()[-1]
    assert (row["seconds"], row["steps"], row["messages_sent"], row["messages_lost"]) == (2.0, 40.0, 480, 24)
    assert (row["staleness"], row["busy"], row["uplink"], row["online"]) == (0.7, 0.6, 0.3, 7)
    assert "accuracies" not in row
    assert ",seconds,steps,messages_sent,messages_received," in to_csv([row]).splitlines()[0]


def test_under_the_clock_a_round_may_have_several_records_but_time_goes_on(tmp_path):
    run = finished(tmp_path / "run", rounds=6, every=2)
    clocked(tmp_path, lambda r, seed: 1.0 + r.round // 3)
    with pytest.raises(BadInput, match="is damaged: it has rounds twice or out of order"):
        read_results(tmp_path)  # 0 and 2 are both at 1 s
    clocked(tmp_path, lambda r, seed: float(r.round))
    lines = (run.path / "records.jsonl").read_text().replace('"round":4', '"round":2')
    (run.path / "records.jsonl").write_text(lines)
    assert [r.round for r in read_results(tmp_path).runs[0].seeds[0].records] == [0, 2, 2, 6]


def test_seeds_that_end_at_the_same_time_are_not_said_to_differ(tmp_path):
    for seed in (1, 2):
        finished(tmp_path / "run", seed=seed, rounds=18 + 2 * seed)
    clocked(tmp_path, lambda r, seed: 1.0 * r.round / (18 + 2 * seed))
    assert "were evaluated at different times" in page(read_results(tmp_path))
    assert "with clock.evaluate" in page(read_results(tmp_path))
    for seed in (1, 2):  # the same number of evaluations, at the same times
        (path := tmp_path / "even" / "run").mkdir(parents=True, exist_ok=True)
        finished(path, seed=seed, rounds=10 * seed, every=seed)
    clocked(tmp_path / "even", lambda r, seed: 0.25 * r.round / seed)
    results = read_results(tmp_path / "even")
    assert "different times" not in page(results)
    assert "ended after" not in page(results)


# -- commands ---------------------------------------------------------------------------------------------------------


def test_report_prints_simulated_seconds(runs, plain, tmp_path, capsys):
    assert main(["report", str(runs), "-o", str(tmp_path / "r.html"), "--target", "0.5"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"EL +2 +\S+ +\S+ +11\.5±6\.4 +5\.8±3\.2", printed)
    assert "simulated, by the end of the run; to the target of 50.00 %" in printed
    assert main(["report", str(runs), "-o", str(tmp_path / "r.html"), "--target", "0.5", "--json"]) == 0
    found = {row["run"]: row for row in json.loads(capsys.readouterr().out)["runs"]}
    assert found["free"]["seconds_to_target"] == {"mean": 1.0, "half_width": 0.0, "seeds": 2}
    assert main(["report", str(plain), "-o", str(tmp_path / "r.html"), "--json"]) == 0
    assert "seconds" not in json.loads(capsys.readouterr().out)["runs"][0]


def test_watch_draws_against_simulated_seconds(runs, plain, capsys):
    assert main(["watch", "--once", str(runs)]) == 0
    printed = capsys.readouterr().out
    assert "accuracy over nodes (%) against simulated seconds" in printed
    assert re.search(r"EL +20/20 +12\.0 s ", printed)
    assert "without rounds, which are trainings per node there: free" in printed
    assert main(["watch", "--once", str(runs), str(plain)]) == 0
    assert "against rounds" in capsys.readouterr().out


def test_the_live_page_shows_simulated_time(runs, plain):
    catalogue = Catalogue([runs])
    catalogue.look()
    assert ">simulated</th>" in index(catalogue, []).main
    (path, found), *_ = catalogue.groups.items()
    group = group_page(catalogue, path, found).main
    assert "Accuracy by simulated time" in group
    assert "round (without rounds: trainings per node)" in group
    free = next(run for run in found if run.name == "free")
    text = run_page(catalogue, free).main
    assert "<dt>simulated</dt><dd>2.0 s" in text
    assert "<dt>trainings per node</dt><dd>20" in text
    assert "<dt>processors busy</dt><dd>60 %<small>uplinks 30 %" in text
    assert "<dt>staleness</dt><dd>700 ms" in text
    other = Catalogue([plain])
    other.look()
    assert "simulated" not in index(other, []).main


# -- comparisons and figures ------------------------------------------------------------------------------------------


def test_compare_has_time_steps_and_nodes_to_the_target_with_intervals(runs):
    results = {run.label: run for run in read_results(runs).runs}
    base = {"nodes": 8, "rounds": 20, "seeds": [1, 2]}
    methods = {
        "EL": ep.Experiment(name="EL", topology=ep.ELLocal(2), clock=CLOCK, **base),
        "free": ep.Experiment(name="free", topology=ep.ELLocal(2), algorithm=ep.AsyncEL(), clock=CLOCK, **base),
    }
    table = comparing.compare(methods, {name: results[name].by_seed for name in methods}, 0.5)
    el, free = table.rows
    assert el.seconds_to_target.mean == pytest.approx(5.75)
    assert el.steps_to_target.mean == 20
    assert el.rounds_to_target.mean == 10
    assert el.most_nodes_to_target.mean == pytest.approx(5.75)
    assert free.first_nodes_to_target == comparing.Interval(1.0, 0.0, 2)
    assert free.seconds_in_all == comparing.Interval(2.0, 0.0, 2)
    assert (el.without_rounds, free.without_rounds) == (False, True)
    heads, cells = comparing.heads_of(table), comparing.cells_of(table)
    found = dict(zip(heads, cells[1], strict=True))
    assert (found["rounds"], found["seconds"], found["steps"], found["in all (s)"]) == (
        "10±0",
        "1.0±0.0",
        "20±0",
        "2.0±0.0",
    )
    assert "Without rounds, which are the trainings of a node there: free." in comparing.legend_of(table)


def test_a_comparison_without_a_clock_is_as_it_was(plain):
    run = read_results(plain).runs[0]
    methods = {"plain": ep.Experiment(name="plain", nodes=8, rounds=20, seeds=[1], topology=ep.ELLocal(2))}
    table = comparing.compare(methods, {"plain": run.by_seed}, 0.5)
    assert comparing.heads_of(table) == comparing.HEADS
    assert len(comparing.cells_of(table)[0]) == len(comparing.HEADS)
    assert "seconds_in_all" not in msgspec.to_builtins(table.rows[0])


def test_figures_have_a_panel_of_simulated_time(runs, plain):
    found = [lines_of([(r.label, r.experiment, r.by_seed) for r in read_results(d).runs]) for d in (runs, plain)]
    timed, untimed = (learning_figure(lines, "title", 0.5).axes for lines in found)
    assert [a.get_title(loc="left") for a in timed] == ["title", "By simulated time", "By traffic", "Disagreement"]
    assert timed[1].get_xlabel() == "simulated time (s)"
    assert "without rounds: trainings" in timed[0].get_xlabel()
    assert [a.get_title(loc="left") for a in untimed] == ["title", "By traffic", "Disagreement"]
    assert untimed[0].get_xlabel() == "round"
    end = {line.get_label(): line.get_xdata()[-1] for line in timed[1].lines}
    assert end["EL"] == pytest.approx(11.5)
    assert end["free"] == pytest.approx(2.0)


def test_python_shows_seconds_and_steps(small, tmp_path):
    axes = small.plot(x="seconds", path=tmp_path / "s.svg").axes
    assert len(axes) == 1
    assert axes[0].get_xlabel() == "simulated time (s)"
    last = [seed.records[-1].time.seconds for seed in small.seeds]
    assert axes[0].lines[0].get_xdata()[-1] == pytest.approx(sum(last) / 2)
    assert small.plot(x="steps").axes[0].get_xlabel() == "local steps of a node"
    assert len(small.plot().axes) == 4
    assert small.summary.seconds.mean == pytest.approx(sum(s.summary.seconds for s in small.seeds) / 2)
    assert ("simulated seconds", interval(small.summary.seconds, digits=1)) in small.summary.rows()
    assert "simulated" in small._repr_html_()
    assert simulated(last[-1]) in repr(small.records[-1])
    frame = small.dataframe()
    assert list(frame["seconds"])[:1] == [0.0]
    assert {"steps", "messages_sent", "staleness", "busy", "online"} <= set(frame.columns)
    with pytest.raises(BadInput, match="x = 'minutes'"):
        small.plot(x="minutes")


def test_seconds_need_a_clock(tmp_path):
    run = ep.simulate(ep.Experiment(nodes=4, rounds=1, data=ep.Digits(), model=ep.Logistic(), partition=ep.IID(), topology=ep.Ring(),
                                    eval=ep.Eval(samples=20)))  # fmt: skip
    with pytest.raises(BadInput, match=r"x = 'seconds' needs simulated time: add a \[clock\] table"):
        run.plot(x="seconds")
    assert run.summary.seconds is None
    assert "simulated" not in run._repr_html_()


def test_what_stands_for_a_round(runs):
    rounds, free = {"algorithm": {"lr": 0.1}}, {"algorithm": {"kind": "gossip-learning"}}
    assert not without_rounds(rounds)
    assert not without_rounds({})
    assert not without_rounds({"algorithm": {"kind": ["strange"]}})
    assert without_rounds(free)
    assert rounds_planned({**rounds, "rounds": 5, "clock": {"stop": 3.0}}) == 5
    assert rounds_planned({**free, "rounds": 5, "clock": {"stop": 0.0, "megabytes": 0.0}}) == 5
    assert rounds_planned({**free, "rounds": 5, "clock": {"stop": 3.0}}) is None
    assert of_planned(7, {**free, "rounds": 5, "clock": {"megabytes": 3.0}}) == "7"
    assert of_planned(3, {**free, "rounds": 5, "clock": {}}, " of ") == "3 of 5"
    assert round_label([rounds]) == "round"
    assert round_label([free, free]) == "trainings per node"
    assert round_label([free, rounds]) == "round (without rounds: trainings per node)"


def test_methods_with_and_without_rounds_have_a_colour_each():
    same = {"topology": {"kind": "el-local", "s": 3}}
    tables = [
        {**same, "algorithm": {"kind": "local-sgd", "lr": 0.1}, "clock": {"close": {"kind": "barrier"}}},
        {**same, "algorithm": {"kind": "local-sgd", "lr": 0.1}, "clock": {"close": {"kind": "deadline"}}},
        {**same, "algorithm": {"kind": "async-el", "lr": 0.1}, "clock": {"close": {"kind": "barrier"}}},
        {**same, "algorithm": {"kind": "ad-psgd", "lr": 0.1}, "clock": {"close": {"kind": "barrier"}}},
    ]
    assert ComparedSettings.of(tables).comparison
    assert [look.word for look in looks_of(tables)] == [0, 1, 2, 3]


# -- while it runs ----------------------------------------------------------------------------------------------------


def test_numbers_of_time_have_names_for_other_tools():
    record = at(a_record(4, 0.5), 12.5)
    found = named.scalars(record)
    assert (found["seconds"], found["steps"], found["busy"], found["messages_used"]) == (12.5, 8.0, 0.6, 76)
    assert set(found) <= set(TAGS)
    start = at(a_record(0, 0.5), 0.0)
    assert "staleness" not in named.scalars(start)
    assert named.scalar(start, "staleness", "here") is None
    with pytest.raises(BadInput, match="is not in the records"):
        named.scalar(a_record(0, 0.5), "staleness", "here")


def test_tensorboard_draws_against_simulated_time_and_not_twice(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    records = [at(a_record(r, 0.5), s) for r, s in [(0, 0.0), (2, 5.0), (2, 7.5), (2, 9.0)]]
    setup = SimpleNamespace(seed=1)
    for again in (False, True):
        board = ep.callbacks.TensorBoard(tmp_path)
        board.started(setup, None, 0)
        if again:  # the third had been written down, the fourth not
            board.resumed(records[:3])
        for record in records[3:] if again else records:
            board.recorded(record)
        board.finished(None)
    found = EventAccumulator(str(tmp_path / "seed-1"), {"scalars": 0})
    found.Reload()
    drawn = [(e.step, e.wall_time) for e in found.Scalars("accuracy/mean")]
    assert drawn == [(0, 0.0), (2, 5.0), (2, 7.5), (2, 9.0)]
    assert [e.value for e in found.Scalars("time/simulated_seconds")] == [0.0, 5.0, 7.5, 9.0]


class FakeWandB:
    """As far as it is used."""

    def __init__(self, step=0):
        self.step, self.logged, self.axis = step, [], None

    def init(self, **_):
        return self

    def define_metric(self, what, step_metric):
        self.axis = (what, step_metric)

    def log(self, values, step):
        self.logged.append((step, values["round"], values["seconds"]))


def test_wandb_draws_against_seconds_and_keeps_several_records_of_a_round():
    experiment = ep.Experiment(nodes=8, clock=CLOCK)
    records = [at(a_record(r, 0.5), s) for r, s in [(0, 0.0), (2, 5.0), (2, 7.5), (4, 9.0)]]
    for known, expected in ((0, [0, 1, 2, 3]), (2, [2, 3])):
        fake = FakeWandB(known)
        callback = WandB(module=fake)
        callback.started(SimpleNamespace(experiment=experiment, seed=1), None, 0)
        callback.resumed(records[:3])
        callback.recorded(records[3])
        assert [step for step, _, _ in fake.logged] == expected
    assert fake.logged == [(2, 2, 7.5), (3, 4, 9.0)]


def test_progress_says_simulated_time_and_events_a_second(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("epidemic.callbacks.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr("epidemic.callbacks.progress.remarks", lambda *_: [])
    experiment = ep.Experiment(name="timed", nodes=8, rounds=20, clock=CLOCK)
    task = SimpleNamespace(device=SimpleNamespace(type="cpu"))
    display = Display()
    display.started(SimpleNamespace(experiment=experiment, seed=1, task=task), SimpleNamespace(strategy="stacked"), 0)
    display.passed(1.0, 1_000)
    now[0] += 2
    display.passed(30.0, 9_000)
    display.advanced(10, None)
    display.recorded(at(a_record(10, 0.5), 30.0))
    assert (
        "round 10/20  accuracy 50.00%  D 4.55e-02  sent 9.77 KiB  30.0 s  5.0 rounds/s  4,000 events/s"
        in capsys.readouterr().err
    )


def test_a_run_that_stops_at_a_time_is_done_by_time():
    assert share_done(100, Clock(stop=20.0), 10, 15.0) == 0.75
    assert share_done(100, Clock(stop=20.0), 90, 15.0) == 0.9
    assert share_done(100, Clock(stop=20.0), 90, 25.0) == 1.0
    assert share_done(100, None, 10, None) == 0.1
    assert share_done(None, Clock(stop=20.0, megabytes=2.0), 10, 5.0, 1e6) == 0.5, "rounds do not end it"
    assert share_done(None, Clock(stop=20.0, megabytes=2.0), 10, 15.0, 1e6) == 0.75


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0.0 s"),
        (0.0421, "42.1 ms"),
        (12.345, "12.3 s"),
        (119.0, "119.0 s"),
        (150.0, "2.5 min"),
        (7200.0, "2.0 h"),
    ],
)
def test_simulated_time_for_people(seconds, said):
    assert simulated(seconds) == said
